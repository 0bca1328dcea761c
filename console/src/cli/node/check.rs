//! `console node check`: whether the cluster can spare a node.
use common::{ids::MemberIndex, units::Bytes};
use planner::replan;
use protocol::recovery::Standing;
use serde_json::json;
use telemetry::NodeState;
use topology::Member;

use super::{dial, membership::ensure_peers_answer};
use crate::{
    cli::{
        Failure,
        shared::{find_node::find, interrupts::Interrupts, options::Nodes, output},
    },
    client::{assign::identify_on_any, cluster::Cluster, recovery::standings},
};

/// Options of `console node check`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Check {
    /// The node, by name or address
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    pub(super) nodes: Nodes,
    #[arg(from_global)]
    pub(super) json: bool,
}

/// Runs `console node check`. Exit code 0 if the cluster keeps serving, 1 if not.
pub(super) async fn run(options: Check) -> Result<u8, Failure> {
    let mut interrupts = Interrupts::listen()?;
    let cluster = interrupts.end(async { Ok::<_, Failure>(dial(&options.nodes, None).await) }).await?;
    let index = find(&cluster, &options.node)?;
    let name = cluster.name(&cluster.nodes[index]).to_owned();
    let group = cluster.topology_of(&name);
    let place = group.as_ref().and_then(|own| own.topology.members.iter().position(|member| member.name == name));
    let (Some(group), Some(place)) = (group, place) else {
        ensure_spare(&cluster, index)?;
        let text = format!("{} holds no shard of the running topology and can be stopped", output::clean(&name));
        let object = json!({"node": name, "ok": true, "member": false});
        output::line(&if options.json { object.to_string() } else { text });
        return Ok(0);
    };
    let topology = group.topology;
    let standings = standings(&cluster).await;
    let standings: Vec<&Standing> = standings.iter().flatten().map(|(_, standing)| standing).collect();
    let all: Vec<replan::Now> = topology.members.iter().map(|member| now(member, &standings)).collect();
    let desired = group.desired().unwrap_or(topology).clone();
    let sessions: Vec<_> = cluster.nodes.iter().filter_map(|node| node.session().ok()).collect();
    let card = identify_on_any(sessions.iter().map(|session| &**session), &topology.model).await;
    let sizes = card.ok().and_then(|card| card.sizes().ok());
    let leaving = MemberIndex(place as u16);
    let outlook = replan::ok_to_stop(topology, &desired, leaving, &all, sizes.as_ref());
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

/// Makes sure that a node that no reported topology has as a member does not hold one that was not reported.
///
/// # Errors
/// The node, or another one that may hold a topology with it, does not answer.
fn ensure_spare(cluster: &Cluster, node: usize) -> Result<(), Failure> {
    ensure_peers_answer(cluster, node, None)?;
    let own = &cluster.nodes[node];
    // Its peers may report that they lost it, or that it is excluded. Otherwise it may serve a model on its own, which
    // no other node would report.
    if cluster.topology_of(cluster.name(own)).is_none() && cluster.may_be_member(own) {
        own.session()?;
    }
    Ok(())
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

/// What a member does now, as far as its node answers.
fn now(member: &Member, standings: &[&Standing]) -> replan::Now {
    let found = standings.iter().find(|standing| standing.name == member.name);
    replan::Now {
        answers: found.is_some(),
        serves: found.is_some_and(|standing| matches!(standing.state, NodeState::Ready | NodeState::Serving)),
        free: found.map_or(Bytes(0), |standing| standing.free),
        shard: found.map_or(Bytes(0), |standing| standing.shard),
    }
}
