//! `console topology unload`: ends a topology, so that its nodes are free for another model.
use std::sync::Arc;

use assignment::unload::unload;
use clap::Args;
use common::fault::{Fault, FaultKind};
use protocol::{models::is_named, recovery::Committed};
use serde_json::json;
use topology::Member;

use crate::{
    cli::{
        Failure,
        node::dial,
        shared::{confirm::Consent, options::Nodes, output},
    },
    client::{
        cluster::{Cluster, ClusterNode},
        session::Session,
    },
};

/// What a member does that has missed an unload.
const LATER: &str = "it unloads the topology when it sees another member";

/// Options of `console topology unload`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UnloadTopology {
    /// Model to unload, if several are loaded
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    pub(super) nodes: Nodes,
    /// Cancel running requests instead of refusing, and do without heads that do not answer
    #[arg(long)]
    now: bool,
    #[command(flatten)]
    consent: Consent,
    #[arg(from_global)]
    json: bool,
}

/// Runs `console topology unload`.
pub(super) async fn run(options: &UnloadTopology) -> Result<u8, Failure> {
    options.consent.check()?;
    let cluster = dial(&options.nodes, None).await;
    let mut held = cluster.topologies();
    held.retain(|(topology, _)| options.model.as_ref().is_none_or(|asked| is_named(asked, &topology.model)));
    let names: Vec<&str> = held.iter().map(|(topology, _)| topology.model.as_str()).collect();
    let (topology, reports) = match held.as_slice() {
        [one] => one,
        [] => {
            // An unreachable node may hold a topology, so report the node as unreachable instead of "no topology".
            cluster.usable()?;
            let message = match &options.model {
                Some(model) => format!("no node has {} loaded", output::clean(model)),
                None => "no topology is loaded on these nodes".to_owned(),
            };
            return Err(Failure::State { message, next: "console status shows the loaded models" });
        }
        _ => {
            let message = format!("several topologies are loaded: {}", output::clean(&names.join(", ")));
            return Err(Failure::Usage { message, next: "name the model: console topology unload MODEL" });
        }
    };
    let nodes: Vec<String> = topology.members.iter().map(|member| output::clean(&member.name)).collect();
    let what = format!("{} with {}", topology.layout, output::clean(&topology.model));
    let requests: u32 = reports.iter().map(|report| report.requests).sum();
    let plan = json!({"topology": topology.layout.to_string(), "model": topology.model, "nodes": nodes,
        "requests": requests});
    // A head that does not answer may run more.
    let least = if reports.len() < topology.members.len() { "at least " } else { "" };
    let question = format!("Unload {what} from {} ({least}{requests} running requests)?", nodes.join(", "));
    if !options.consent.obtain(&question, &plan, options.json).await? {
        return Ok(0);
    }
    let sessions: Vec<Arc<Session>> =
        cluster.nodes.iter().filter_map(|node: &ClusterNode| node.session().ok()).collect();
    let epoch = reports.iter().map(|report| report.epoch).max().unwrap_or_default();
    let committed = Committed::new(epoch, (*topology).clone());
    let faults = unload(&sessions, &committed, !options.now).await?;
    let (mut confirmed, mut unconfirmed, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    for member in &topology.members {
        let name = output::clean(&member.name);
        match why_unconfirmed(&cluster, member, &faults) {
            Some(why) => {
                output::note(&output::clean(&format!("{name} has not confirmed the unload: {why}")));
                reasons.push(json!({"node": name, "why": why}));
                unconfirmed.push(name);
            }
            None => confirmed.push(name),
        }
    }
    if options.json {
        let object = json!({"unloaded": topology.model, "nodes": confirmed, "unconfirmed": unconfirmed,
            "reasons": reasons});
        output::line(&object.to_string());
    } else {
        output::line(&format!("{what} is unloaded from {}", confirmed.join(", ")));
    }
    Ok(0)
}

/// Why a member has not confirmed the unload, and when it unloads; `None` if it has. `faults` are those of the members
/// that were asked.
fn why_unconfirmed(cluster: &Cluster, member: &Member, faults: &[Fault]) -> Option<String> {
    let Some(node) = cluster.nodes.iter().find(|node| cluster.name(node) == member.name) else {
        return Some(format!("none of the given nodes answers by this name; {LATER}"));
    };
    let fault = match &node.answer {
        Ok(_) => faults.iter().find(|fault| fault.node == member.name)?,
        Err(fault) => fault,
    };
    let then = match &fault.kind {
        FaultKind::NotServing { .. } => "it does not hold this topology".to_owned(),
        // It cannot learn of the unload from the others.
        FaultKind::PeerOlder { .. } => fault.next(),
        _ => LATER.to_owned(),
    };
    Some(format!("{}; {then}", fault.kind))
}

#[cfg(test)]
mod tests {
    use assignment::fixtures;
    use topology::{Layout, Topology};

    use super::*;
    use crate::client::fake_node::{FakeNode, Script};

    #[tokio::test]
    async fn member_that_does_not_answer_has_not_confirmed_an_unload() {
        let node = FakeNode::start("pi1", Script::default()).await;
        let away = "127.0.0.1:1".to_owned();
        let mut topology = Topology { layout: Layout::tensor_parallel(3), ..fixtures::topology() };
        topology.members.truncate(3);
        let addresses = [node.address.clone(), away.clone(), "127.0.0.1:2".to_owned()];
        for (member, address) in topology.members.iter_mut().zip(addresses) {
            member.address = address;
        }
        topology.members[0].name = "pi1".into();
        topology.members[1].name = "pi2".into();
        topology.members[2].name = "pi3".into();
        node.serves(&topology, 0, true);
        let cluster = Cluster::dial(&[node.address.clone(), away]).await;
        let why = |member: usize, faults: &[Fault]| why_unconfirmed(&cluster, &topology.members[member], faults);
        assert_eq!(why(0, &[]), None);
        let reason = why(1, &[]).expect("it does not answer");
        assert!(reason.contains("cannot be reached at 127.0.0.1:1") && reason.ends_with(LATER), "{reason}");
        let reason = why(2, &[]).expect("it was not asked");
        assert!(reason.starts_with("none of the given nodes") && reason.ends_with(LATER), "{reason}");
        let of = |kind: FaultKind| [Fault::new("pi1", kind)];
        let reason = why(0, &of(FaultKind::Draining)).expect("it refused");
        assert!(reason.ends_with(LATER), "{reason}");
        let idle = why(0, &of(FaultKind::NotServing { state: "idle".into() })).expect("it refused");
        assert!(idle.ends_with("it does not hold this topology"), "{idle}");
        let older = why(0, &of(FaultKind::PeerOlder { version: 4, what: "unload".into() })).expect("it refused");
        assert!(older.ends_with("upgrade the node to this release"), "{older}");
    }
}
