//! `console node add` and `remove`: changes the nodes of the running topology.
use std::sync::Arc;

use serde_json::json;
use topology::Topology;

use super::dial;
use crate::{
    cli::{
        Failure, cluster,
        model::choice::advised,
        shared::{
            find_node::{find, progress},
            interrupts::Interrupts,
            options::Change,
            output,
        },
    },
    client::{
        assign::{Assigned, assign},
        cluster::Cluster,
        event::OperateEvent,
        session::Session,
    },
    operator::desired::DesiredTopology,
};

/// The running topology, and the sessions of its members in member order.
fn serving(cluster: &Cluster) -> Result<(Topology, Vec<Arc<Session>>), Failure> {
    let Some((topology, _)) = cluster.topology() else {
        let message = "no topology runs on these nodes".to_owned();
        return Err(Failure::State {
            message,
            next: "console generate --topology tpN, or console topology assign FILE",
        });
    };
    let sessions = topology.members.iter().map(|member| session_of(cluster, &member.name)).collect::<Result<_, _>>()?;
    Ok((topology.clone(), sessions))
}

/// The session of a member of the topology.
fn session_of(cluster: &Cluster, member: &str) -> Result<Arc<Session>, Failure> {
    let name = output::clean(member);
    let Some(node) = cluster.nodes.iter().find(|node| cluster.name(node) == member) else {
        let message = format!("the topology has the member {name}, which is not among the given nodes");
        return Err(Failure::Usage { message, next: "name all nodes of the topology with --nodes" });
    };
    node.session().map_err(|fault| {
        let next = format!(
            "start {name} again, or let the others continue without it: console node exclude {name} --reason TEXT"
        );
        Failure::Advised { fault: Box::new(fault), next }
    })
}

/// Upper bound of the speed-up in decoding, which is bound by the bytes that a node reads per token.
fn gain(before: &Topology, after: &DesiredTopology) -> f64 {
    let ranks = |stages: u16, ranks: u16| f64::from(stages) * f64::from(ranks);
    let per_answer = ranks(1, after.layout.ranks) / ranks(1, before.layout.ranks);
    let replicas = f64::from(after.layout.replicas) / f64::from(before.layout.replicas);
    per_answer * replicas
}

/// Adds a node.
pub(super) async fn join(change: Change, kept: Option<&str>) -> Result<u8, Failure> {
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
    let assigned = match interrupts.end(switch(&sessions, &wanted)).await {
        Ok(assigned) => assigned,
        Err(failure) => return Err(advised(failure, &sessions).await),
    };
    done(&change, &name, "joined", &assigned);
    cluster::follow(kept, &[address], &[]);
    Ok(0)
}

/// Removes a node.
pub(super) async fn leave(change: Change, kept: Option<&str>) -> Result<u8, Failure> {
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
    uncordoned(&cluster, &name)?;
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

/// Refuses to assign a topology while a member that stays is cordoned.
fn uncordoned(cluster: &Cluster, leaving: &str) -> Result<(), Failure> {
    let cordoned = cluster.nodes.iter().find(|node| cluster.name(node) != leaving && cluster.is_cordoned(node));
    let Some(entry) = cordoned.and_then(|node| cluster.exclusion(node)) else { return Ok(()) };
    let message = format!("{} is cordoned ({}: {})", entry.node, entry.by, entry.reason.as_deref().unwrap_or_default());
    Err(Failure::State { message: output::clean(&message), next: "include it first: console node include NODE" })
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
