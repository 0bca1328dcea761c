//! `console node`: adds and removes nodes of a running topology.
//! `console ok-to-stop`: whether the cluster can spare a node.
pub(crate) mod discover;
pub(crate) mod exclude;
pub(crate) mod show;

use std::sync::Arc;

use common::{ids::MemberIndex, units::Bytes};
use planner::replan;
use serde_json::json;
use telemetry::NodeState;
use topology::{Member, Topology};

use crate::cli::{
    Failure, cluster,
    shared::{
        confirm::Consent,
        find_node::{find, progress},
        interrupts::Interrupts,
        options::{Change, Exclude, Include, Nodes},
        output,
        target::need::{Need, Reach},
    },
};
use crate::{
    client::{
        assign::{Assigned, assign, identify_on_any},
        cluster::Cluster,
        event::OperateEvent,
        exclude::{drain, say},
        recovery::{standings, take_over},
        session::Session,
        with_port,
    },
    operator::desired::DesiredTopology,
};

/// Subcommands of `console node`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Node {
    /// Add a node to the running topology without interrupting requests
    Add(Change),
    /// Remove a node from the running topology (unlike exclude, without a stored reason)
    Remove(Change),
    /// Stop scheduling new requests on a node and its replica; running requests continue. Undo: uncordon
    Cordon(Exclude),
    /// Cordon a node and wait until its requests have finished
    Drain(Exclude),
    /// Exclude a node and assign the topology to the remaining nodes
    Exclude(Exclude),
    /// Include an excluded node and assign the topology with it
    Include(Include),
    /// Schedule requests again on a cordoned node and its replica
    Uncordon(Include),
    /// Show all details of a node, with its problems and their remedies
    Show(crate::cli::node::show::Show),
}

impl Node {
    /// The nodes that the command contacts.
    pub(crate) fn reach(&mut self) -> Reach<'_> {
        let nodes = match self {
            Self::Add(change) | Self::Remove(change) => &mut change.nodes,
            Self::Cordon(exclude) | Self::Drain(exclude) | Self::Exclude(exclude) => &mut exclude.change.nodes,
            Self::Include(include) | Self::Uncordon(include) => &mut include.change.nodes,
            Self::Show(show) => return Reach::Nodes(&mut show.nodes.nodes, Need::Looks),
        };
        Reach::Nodes(&mut nodes.nodes, Need::Acts)
    }

    /// Whether to print JSON.
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Add(change) | Self::Remove(change) => change.json,
            Self::Cordon(exclude) | Self::Drain(exclude) | Self::Exclude(exclude) => exclude.change.json,
            Self::Include(include) | Self::Uncordon(include) => include.change.json,
            Self::Show(show) => show.look.json,
        }
    }
}

/// Runs `console node`.
pub(crate) async fn run(node: Node, kept: Option<&str>) -> Result<u8, Failure> {
    match node {
        Node::Add(change) => join(change, kept).await,
        Node::Remove(change) => leave(change, kept).await,
        Node::Cordon(exclude) => cordon(exclude, false).await,
        Node::Drain(exclude) => cordon(exclude, true).await,
        Node::Exclude(exclude) => crate::cli::node::exclude::run_exclude(exclude).await,
        Node::Include(include) => crate::cli::node::exclude::run_include(include).await,
        Node::Uncordon(include) => crate::cli::node::exclude::run_uncordon(include).await,
        Node::Show(show) => crate::cli::node::show::run(show).await,
    }
}

async fn dial(nodes: &Nodes, more: Option<&str>) -> Cluster {
    let named = nodes.nodes.iter().map(String::as_str).chain(more);
    let mut addresses: Vec<String> = Vec::new();
    for address in named.map(with_port) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Cluster::dial(&addresses).await
}

/// The running topology, and the sessions of its members in member order.
fn serving(cluster: &Cluster) -> Result<(Topology, Vec<Arc<Session>>), Failure> {
    let Some((topology, _)) = cluster.topology() else {
        let message = "no topology runs on these nodes".to_owned();
        return Err(Failure::State {
            message,
            next: "console generate --topology tpN, or console topology assign FILE",
        });
    };
    let session = |name: &str| {
        let node = cluster.nodes.iter().find(|node| cluster.name(node) == name);
        let message =
            || format!("the topology has the member {}, which is not among the given nodes", output::clean(name));
        let node = node.ok_or_else(|| Failure::Usage {
            message: message(),
            next: "name all nodes of the topology with --nodes",
        })?;
        Ok::<_, Failure>(node.session()?)
    };
    let sessions = topology.members.iter().map(|member| session(&member.name)).collect::<Result<_, _>>()?;
    Ok((topology.clone(), sessions))
}

/// Upper bound of the speed-up in decoding, which is bound by the bytes that a node reads per token.
fn gain(before: &Topology, after: &DesiredTopology) -> f64 {
    let ranks = |stages: u16, ranks: u16| f64::from(stages) * f64::from(ranks);
    let per_answer = ranks(1, after.layout.ranks) / ranks(1, before.layout.ranks);
    let replicas = f64::from(after.layout.replicas) / f64::from(before.layout.replicas);
    per_answer * replicas
}

async fn join(change: Change, kept: Option<&str>) -> Result<u8, Failure> {
    change.consent.check()?;
    let mut interrupts = Interrupts::listen()?;
    let dialled = async { Ok::<_, Failure>(dial(&change.nodes, Some(&change.node)).await) };
    let cluster = interrupts.end(dialled).await?;
    let (topology, mut sessions) = serving(&cluster)?;
    let node = &cluster.nodes[find(&cluster, &change.node)?];
    let session = node.session()?;
    let name = session.identity.name.clone();
    if topology.members.iter().any(|member| member.name == name) {
        let message = format!("{} is already a member of the topology", output::clean(&name));
        return Err(Failure::State { message, next: "name the address of another node" });
    }
    sessions.push(session);
    let wanted = DesiredTopology::again(&topology, sessions.len());
    let (now, then) = (topology.layout, wanted.layout);
    let times = gain(&topology, &wanted);
    let what = format!("{now} becomes {then}: at most {times:.2} times the tokens per second, before network costs");
    output::note(&what);
    let question = format!("Add {} to the topology? Running requests continue.", output::clean(&name));
    let plan = json!({"node": name, "topology": then.to_string(), "times": times});
    if !interrupts.end(change.consent.obtain(&question, &plan, change.json)).await? {
        return Ok(0);
    }
    let address = sessions.last().map_or_else(String::new, |session| session.address.clone());
    let assigned = interrupts.end(switch(&sessions, &wanted)).await?;
    done(&change, &name, "joined", &assigned);
    cluster::follow(kept, &[address], &[]);
    Ok(0)
}

async fn leave(change: Change, kept: Option<&str>) -> Result<u8, Failure> {
    change.consent.check()?;
    let mut interrupts = Interrupts::listen()?;
    let cluster = interrupts.end(async { Ok::<_, Failure>(dial(&change.nodes, None).await) }).await?;
    let (topology, sessions) = serving(&cluster)?;
    let node = &cluster.nodes[find(&cluster, &change.node)?];
    let (name, address) = (cluster.name(node).to_owned(), node.address.clone());
    let rest: Vec<Arc<Session>> = sessions.into_iter().filter(|session| session.identity.name != name).collect();
    if rest.is_empty() || rest.len() == topology.members.len() {
        let message =
            format!("{} cannot leave: it is not a member of the topology, or its only member", output::clean(&name));
        return Err(Failure::State { message, next: "list the members with console topology show" });
    }
    let wanted = DesiredTopology::again(&topology, rest.len());
    let question =
        format!("Remove {} from {}? The new layout is {}.", output::clean(&name), topology.layout, wanted.layout);
    let plan = json!({"node": name, "topology": wanted.layout.to_string()});
    if !interrupts.end(change.consent.obtain(&question, &plan, change.json)).await? {
        return Ok(0);
    }
    let assigned = interrupts.end(switch(&rest, &wanted)).await?;
    done(&change, &name, "left", &assigned);
    cluster::follow(kept, &[], &[address]);
    Ok(0)
}

async fn switch(sessions: &[Arc<Session>], wanted: &DesiredTopology) -> Result<Assigned, Failure> {
    Ok(assign(sessions, wanted, &|event| progress(&OperateEvent::Assign(event))).await?)
}

fn done(change: &Change, name: &str, how: &str, assigned: &Assigned) {
    let (layout, epoch) = (assigned.topology.layout.to_string(), assigned.epoch.0);
    if change.json {
        output::line(&json!({"node": name, "state": how, "topology": layout, "epoch": epoch}).to_string());
    } else {
        output::line(&format!("{} {how}; {layout} is serving, epoch {epoch}", output::clean(name)));
    }
}

/// Whether a replica other than the node's own accepts requests.
fn others_serve(cluster: &Cluster, name: &str) -> bool {
    let Some((topology, reports)) = cluster.topology() else { return true };
    let Some(place) = topology.members.iter().position(|member| member.name == name) else { return true };
    let own = topology.layout.replica_of(MemberIndex(place as u16));
    let takes = |member: &Member| {
        let report = reports.iter().find(|report| report.name == member.name);
        let serves = report.is_some_and(|report| matches!(report.state, NodeState::Ready | NodeState::Serving));
        serves && cluster.exclusions.of(&member.name, &member.address).is_none()
    };
    // Groups with prefill and decode roles depend on each other.
    let others = (0..topology.layout.replicas).filter(|replica| *replica != own);
    !topology.layout.has_roles() && others.into_iter().any(|replica| topology.replica(replica).iter().all(takes))
}

async fn cordon(exclude: Exclude, waits: bool) -> Result<u8, Failure> {
    let Exclude { change, reason } = exclude;
    change.consent.check()?;
    let mut interrupts = Interrupts::listen()?;
    let dialled = async { Ok::<_, Failure>(dial(&change.nodes, None).await.with_known(&change.node).await) };
    let mut cluster = interrupts.end(dialled).await?;
    let node = find(&cluster, &change.node)?;
    let name = cluster.name(&cluster.nodes[node]).to_owned();
    let is_outage = !others_serve(&cluster, &name);
    let who = output::clean(&name);
    let outage = format!(
        " No other replica accepts requests: new ones are refused (HTTP 503, /health is not ready) until console \
         node uncordon {who}."
    );
    let outage = if is_outage { outage } else { String::new() };
    let question = format!("Stop scheduling new requests on {who} and its replica?{outage}");
    let plan = json!({"node": name, "reason": reason, "waits": waits, "outage": is_outage});
    if is_outage && change.consent.yes {
        output::note(outage.trim());
    }
    if !interrupts.end(change.consent.obtain(&question, &plan, change.json)).await? {
        return Ok(0);
    }
    let told = |event: OperateEvent| progress(&event);
    let name = interrupts.end(async { Ok::<_, Failure>(say(&mut cluster, node, Some(&reason), &told).await?) }).await?;
    let is_drained = match waits {
        true => interrupts.end(async { Ok::<_, Failure>(drain(&cluster, &name, &told).await?) }).await?,
        false => false,
    };
    let state = if is_drained { "drained" } else { "cordoned" };
    if change.json {
        output::line(&json!({"node": name, "state": state, "reason": reason}).to_string());
    } else {
        output::line(&format!("{} is {state}; undo: console node uncordon {0}", output::clean(&name)));
    }
    Ok(u8::from(waits && !is_drained))
}

/// Options of `console ok-to-stop`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct OkToStop {
    /// The node, by name or address
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `console ok-to-stop`. Exit code 0 if the cluster keeps serving, 1 if not.
pub(crate) async fn ok_to_stop(options: OkToStop) -> Result<u8, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let cluster = interrupts.end(async { Ok::<_, Failure>(dial(&options.nodes, None).await) }).await?;
    let name = cluster.name(&cluster.nodes[find(&cluster, &options.node)?]).to_owned();
    let topology = cluster.topology().map(|(topology, _)| topology.clone());
    let place = topology.as_ref().and_then(|all| all.members.iter().position(|member| member.name == name));
    let (Some(topology), Some(place)) = (topology, place) else {
        let text = format!("{} holds no shard of the running topology and can be stopped", output::clean(&name));
        let object = json!({"node": name, "ok": true, "member": false});
        output::line(&if options.json { object.to_string() } else { text });
        return Ok(0);
    };
    let standings = standings(&cluster).await;
    let now = |member: &topology::Member| {
        let found = standings.iter().flatten().find(|(_, standing)| standing.name == member.name);
        let serves = |standing: &protocol::recovery::Standing| {
            use telemetry::NodeState::{Ready, Serving};
            matches!(standing.state, Ready | Serving)
        };
        replan::Now {
            answers: found.is_some(),
            serves: found.is_some_and(|(_, standing)| serves(standing)),
            free: found.map_or(Bytes(0), |(_, standing)| standing.free),
            shard: found.map_or(Bytes(0), |(_, standing)| standing.shard),
        }
    };
    let all: Vec<replan::Now> = topology.members.iter().map(now).collect();
    let desired = cluster.desired().unwrap_or(&topology).clone();
    let sessions: Vec<_> = cluster.nodes.iter().filter_map(|node| node.session().ok()).collect();
    let card = identify_on_any(sessions.iter().map(|session| &**session), &topology.model).await;
    let sizes = card.ok().map(|card| card.sizes);
    let leaving = MemberIndex(place as u16);
    let outlook = replan::ok_to_stop(&topology, &desired, leaving, &all, sizes.as_ref());
    let layout = outlook.layout().map(|layout| layout.to_string());
    let then: Option<Vec<&str>> =
        outlook.topology.as_ref().ok().map(|all| all.members.iter().map(|member| member.name.as_str()).collect());
    if options.json {
        let object = json!({"node": name, "ok": outlook.is_ok(), "member": true, "replicas": outlook.replicas,
            "majority": outlook.has_majority, "topology": layout, "nodes": then, "needed_bytes": outlook.needed.0,
            "reason": outlook.topology.as_ref().err(), "holds_both": outlook.holds_both});
        output::line(&object.to_string());
    } else {
        output::line(&format!("{}: {}", output::clean(&name), sentence(&outlook)));
    }
    Ok(u8::from(!outlook.is_ok()))
}

/// Describes the consequences of stopping the node, in chronological order.
fn sentence(outlook: &replan::Outlook) -> String {
    let needed = outlook.needed;
    let others = match outlook.replicas {
        1 => "the other replica keeps serving without interruption".to_owned(),
        count => format!("{count} other replicas keep serving without interruption"),
    };
    match (outlook.replicas, outlook.layout()) {
        (1.., Some(layout)) if outlook.has_majority => {
            format!("{others}; then {layout} serves, with up to {needed} per node, until the node is back")
        }
        (1.., _) => format!("{others}; the node's own replica is down until the node is back"),
        (0, None) => {
            format!(
                "the cluster would stop serving: {}",
                outlook.topology.as_ref().err().map_or("no layout fits", String::as_str)
            )
        }
        (0, Some(layout)) if outlook.has_majority => {
            let first = if outlook.holds_both { "; exclude the node first to avoid the pause" } else { "" };
            format!(
                "answers pause, then {layout} serves on the remaining nodes, with up to {needed} per node, until the \
                 node is back{first}"
            )
        }
        (0, Some(layout)) => format!(
            "the cluster would stop serving: no majority is left. {layout} would fit (up to {needed} per node): run \
             console node remove or console topology take-over"
        ),
    }
}

/// Options of `console topology take-over`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TakeOver {
    #[command(flatten)]
    pub(crate) nodes: Nodes,
    #[command(flatten)]
    consent: Consent,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `console topology take-over`.
pub(crate) async fn run_take_over(options: &TakeOver) -> Result<u8, Failure> {
    options.consent.check()?;
    let cluster = dial(&options.nodes, None).await;
    let question =
        "Do the unreachable members serve no clients any more? If so, the remaining members continue without them.";
    if !options.consent.obtain(question, &serde_json::Value::Null, options.json).await? {
        return Ok(0);
    }
    let names = take_over(&cluster).await?;
    if options.json {
        output::line(&json!({"told": names}).to_string());
    } else {
        let names: Vec<String> = names.iter().map(|name| output::clean(name)).collect();
        output::line(&format!(
            "{} may continue without the others; run console status to see when the cluster serves",
            names.join(", ")
        ));
    }
    Ok(0)
}
