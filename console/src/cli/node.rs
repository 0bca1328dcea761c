//! `console node`: nodes leave and join a cluster that serves. `console ok-to-stop`: what would be left.
use std::sync::Arc;

use serde_json::json;
use shared::{
    ids::MemberIndex,
    telemetry::NodeState,
    topology::{Member, Topology, replan},
    units::Bytes,
};

use super::{
    Failure, clusters,
    confirm::Consent,
    exclude::{find, progress},
    interrupts::Interrupts,
    options::{Change, Exclude, Include, Nodes},
    output,
    reach::{Need, Reach},
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
    wanted::Wanted,
};

/// `console node`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Node {
    /// A further node joins what serves: it goes on with it, running requests go on
    Add(Change),
    /// A node leaves what serves, without a reason that is kept
    Remove(Change),
    /// Stop scheduling new requests on a node and its replica; running requests continue. Undo: uncordon
    Cordon(Exclude),
    /// As cordon, and wait until nothing runs there
    Drain(Exclude),
    /// Exclude a node, with a reason; the topology is assigned again on the rest
    Exclude(Exclude),
    /// Include a node again; the topology is assigned again with it
    Include(Include),
    /// Let requests begin again on a node that is cordoned, and on its replica
    Uncordon(Include),
    /// Show all that is known of a node, with what is wrong and what cures it
    Show(super::show::Show),
}

impl Node {
    /// The nodes that it is about.
    pub(super) fn reach(&mut self) -> Reach<'_> {
        let nodes = match self {
            Self::Add(change) | Self::Remove(change) => &mut change.nodes,
            Self::Cordon(exclude) | Self::Drain(exclude) | Self::Exclude(exclude) => &mut exclude.change.nodes,
            Self::Include(include) | Self::Uncordon(include) => &mut include.change.nodes,
            Self::Show(show) => return Reach::Nodes(&mut show.nodes.nodes, Need::Looks),
        };
        Reach::Nodes(&mut nodes.nodes, Need::Acts)
    }

    /// Whether an object is wanted.
    pub(super) fn json(&self) -> bool {
        match self {
            Self::Add(change) | Self::Remove(change) => change.json,
            Self::Cordon(exclude) | Self::Drain(exclude) | Self::Exclude(exclude) => exclude.change.json,
            Self::Include(include) | Self::Uncordon(include) => include.change.json,
            Self::Show(show) => show.look.json,
        }
    }
}

/// Runs `console node`.
pub(super) async fn run(node: Node, kept: Option<&str>) -> Result<u8, Failure> {
    match node {
        Node::Add(change) => join(change, kept).await,
        Node::Remove(change) => leave(change, kept).await,
        Node::Cordon(exclude) => cordon(exclude, false).await,
        Node::Drain(exclude) => cordon(exclude, true).await,
        Node::Exclude(exclude) => super::exclude::run_exclude(exclude).await,
        Node::Include(include) => super::exclude::run_include(include).await,
        Node::Uncordon(include) => super::exclude::run_uncordon(include).await,
        Node::Show(show) => super::show::run(show).await,
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

/// The topology that serves, and the sessions of its members in their order.
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
        let message = || format!("member {} of the topology was not named", output::clean(name));
        let node =
            node.ok_or_else(|| Failure::Usage { message: message(), next: "name all its nodes with --nodes" })?;
        Ok::<_, Failure>(node.session()?)
    };
    let sessions = topology.members.iter().map(|member| session(&member.name)).collect::<Result<_, _>>()?;
    Ok((topology.clone(), sessions))
}

/// What a node reads for a token, before and after: decoding is bound by it.
fn gain(before: &Topology, after: &Wanted) -> f64 {
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
        let message = format!("{} is in it already", output::clean(&name));
        return Err(Failure::State { message, next: "name the address of another node" });
    }
    sessions.push(session);
    let wanted = Wanted::again(&topology, sessions.len());
    let (now, then) = (topology.layout, wanted.layout);
    let times = gain(&topology, &wanted);
    let what =
        format!("{now} becomes {then}: at most {times:.2} times the tokens a second, before what the network takes");
    output::note(&what);
    let question = format!("Let {} join? Running requests continue.", output::clean(&name));
    let plan = json!({"node": name, "topology": then.to_string(), "times": times});
    if !interrupts.end(change.consent.obtain(&question, &plan, change.json)).await? {
        return Ok(0);
    }
    let address = sessions.last().map_or_else(String::new, |session| session.address.clone());
    let assigned = interrupts.end(switch(&sessions, &wanted)).await?;
    done(&change, &name, "joined", &assigned);
    clusters::follow(kept, &[address], &[]);
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
        let message = format!("{} is not one of several members", output::clean(&name));
        return Err(Failure::State { message, next: "console topology show names them" });
    }
    let wanted = Wanted::again(&topology, rest.len());
    let question = format!("Take {} out of {}? {} follows.", output::clean(&name), topology.layout, wanted.layout);
    let plan = json!({"node": name, "topology": wanted.layout.to_string()});
    if !interrupts.end(change.consent.obtain(&question, &plan, change.json)).await? {
        return Ok(0);
    }
    let assigned = interrupts.end(switch(&rest, &wanted)).await?;
    done(&change, &name, "left", &assigned);
    clusters::follow(kept, &[], &[address]);
    Ok(0)
}

async fn switch(sessions: &[Arc<Session>], wanted: &Wanted) -> Result<Assigned, Failure> {
    Ok(assign(sessions, wanted, &|event| progress(&OperateEvent::Assign(event))).await?)
}

fn done(change: &Change, name: &str, how: &str, assigned: &Assigned) {
    let (layout, epoch) = (assigned.topology.layout.to_string(), assigned.epoch.0);
    if change.json {
        output::line(&json!({"node": name, "state": how, "topology": layout, "epoch": epoch}).to_string());
    } else {
        output::line(&format!("{} {how}; {layout} serves with epoch {epoch}", output::clean(name)));
    }
}

/// Whether another replica than that of the node takes requests.
fn others_serve(cluster: &Cluster, name: &str) -> bool {
    let Some((topology, reports)) = cluster.topology() else { return true };
    let Some(place) = topology.members.iter().position(|member| member.name == name) else { return true };
    let own = topology.layout.replica_of(MemberIndex(place as u16));
    let takes = |member: &Member| {
        let report = reports.iter().find(|report| report.name == member.name);
        let serves = report.is_some_and(|report| matches!(report.state, NodeState::Ready | NodeState::Serving));
        serves && cluster.exclusions.of(&member.name, &member.address).is_none()
    };
    // Groups with roles serve together.
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
        " No other replica takes requests: new ones are refused (HTTP 503, /health is not ready) until console node uncordon {who}."
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
pub(super) struct OkToStop {
    /// The node, by name or address
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    pub(super) nodes: Nodes,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Runs `console ok-to-stop`: 0 if something goes on serving, 1 if not.
pub(super) async fn ok_to_stop(options: OkToStop) -> Result<u8, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let cluster = interrupts.end(async { Ok::<_, Failure>(dial(&options.nodes, None).await) }).await?;
    let name = cluster.name(&cluster.nodes[find(&cluster, &options.node)?]).to_owned();
    let topology = cluster.topology().map(|(topology, _)| topology.clone());
    let place = topology.as_ref().and_then(|all| all.members.iter().position(|member| member.name == name));
    let (Some(topology), Some(place)) = (topology, place) else {
        let text = format!("{} holds no shard of what serves: it can be stopped", output::clean(&name));
        let object = json!({"node": name, "ok": true, "member": false});
        output::line(&if options.json { object.to_string() } else { text });
        return Ok(0);
    };
    let standings = standings(&cluster).await;
    let now = |member: &shared::topology::Member| {
        let found = standings.iter().flatten().find(|(_, standing)| standing.name == member.name);
        let serves = |standing: &shared::protocol::recovery::Standing| {
            use shared::telemetry::NodeState::{Ready, Serving};
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

/// What will happen, in the order in which it does.
fn sentence(outlook: &replan::Outlook) -> String {
    let needed = outlook.needed;
    let others = match outlook.replicas {
        1 => "the other replica keeps serving without a pause".to_owned(),
        count => format!("{count} other replicas keep serving without a pause"),
    };
    match (outlook.replicas, outlook.layout()) {
        (1.., Some(layout)) if outlook.has_majority => {
            format!("{others}; then {layout} serves, up to {needed} a node, until the node is back")
        }
        (1.., _) => format!("{others}; the node's replica waits until the node is back"),
        (0, None) => {
            format!("nothing would serve: {}", outlook.topology.as_ref().err().map_or("nothing fits", String::as_str))
        }
        (0, Some(layout)) if outlook.has_majority => {
            let first = if outlook.holds_both { "; none pause if the node is excluded first" } else { "" };
            format!(
                "answers pause, then {layout} serves on the rest, up to {needed} a node, until the node is back{first}"
            )
        }
        (0, Some(layout)) => format!(
            "nothing would serve: no majority is left. {layout} would fit (up to {needed} a node): run console node remove or topology take-over"
        ),
    }
}

/// Options of `console topology take-over`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TakeOver {
    #[command(flatten)]
    pub(super) nodes: Nodes,
    #[command(flatten)]
    consent: Consent,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Runs `console topology take-over`.
pub(super) async fn run_take_over(options: &TakeOver) -> Result<u8, Failure> {
    options.consent.check()?;
    let cluster = dial(&options.nodes, None).await;
    let question = "Do the members that do not answer serve nothing, to nobody? Then the rest goes on without them.";
    if !options.consent.obtain(question, &serde_json::Value::Null, options.json).await? {
        return Ok(0);
    }
    let names = take_over(&cluster).await?;
    if options.json {
        output::line(&json!({"told": names}).to_string());
    } else {
        let names: Vec<String> = names.iter().map(|name| output::clean(name)).collect();
        output::line(&format!(
            "{} may go on without the others; console status shows when it serves",
            names.join(", ")
        ));
    }
    Ok(0)
}
