//! `console node cordon`: no new requests on a node and its replica.
use std::sync::{Mutex, PoisonError};

use common::ids::MemberIndex;
use serde_json::json;
use telemetry::{NodeReport, NodeState};
use topology::Member;

use super::dial;
use crate::{
    cli::{
        Failure,
        shared::{
            find_node::{find, progress},
            interrupts::Interrupts,
            options::Exclude,
            output,
            silent::SilentNodes,
        },
    },
    client::{
        cluster::Cluster,
        event::OperateEvent,
        exclude::{drain, say},
    },
    operator::groups::TopologyGroup,
};

/// Options of `console node cordon`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Cordon {
    #[command(flatten)]
    pub(super) exclude: Exclude,
    /// Also wait until the running requests have finished (exit 1 if they have not)
    #[arg(long)]
    drain: bool,
}

/// Whether a replica other than the node's own accepts requests.
fn others_serve(cluster: &Cluster, name: &str) -> bool {
    let Some(TopologyGroup { topology, reports }) = cluster.topology_of(name) else { return true };
    let Some(place) = topology.members.iter().position(|member| member.name == name) else { return true };
    let own = topology.layout.replica_of(MemberIndex(place as u16));
    // Groups with prefill and decode roles depend on each other.
    let mut others = (0..topology.layout.replicas).filter(|replica| *replica != own);
    !topology.layout.has_roles()
        && others.any(|replica| topology.replica(replica).iter().all(|member| takes(cluster, &reports, member)))
}

/// Whether a member serves and is not excluded.
fn takes(cluster: &Cluster, reports: &[&NodeReport], member: &Member) -> bool {
    let report = reports.iter().find(|report| report.name == member.name);
    let serves = report.is_some_and(|report| matches!(report.state, NodeState::Ready | NodeState::Serving));
    serves && cluster.exclusions.of(&member.name, &member.address).is_none()
}

/// The name of the node that admits the requests of a node: the head of its replica, or itself without a topology.
fn head<'c>(cluster: &'c Cluster, name: &'c str) -> &'c str {
    let head = cluster.topology_of(name).and_then(|group| group.topology.head_of(name));
    head.map_or(name, |head| head.name.as_str())
}

/// What a cordoned node does now, and how to undo it. `is_stored`: whether the head of its replica has stored that.
fn cordoned(name: &str, is_drained: bool, is_stored: bool) -> String {
    let now = match (is_drained, is_stored) {
        (true, _) => "has finished its requests and takes no new ones",
        (false, true) => "takes no new requests",
        (false, false) => "is cordoned, but the head of its replica has not confirmed it",
    };
    format!("{name} {now}; undo: console node uncordon {name}")
}

/// Runs `console node cordon`.
pub(super) async fn run(options: Cordon) -> Result<u8, Failure> {
    let Cordon { exclude: Exclude { change, reason }, drain: waits } = options;
    change.consent.check()?;
    let mut interrupts = Interrupts::listen()?;
    let dialled = async { Ok::<_, Failure>(dial(&change.nodes, None).await.with_known(&change.node).await) };
    let mut cluster = interrupts.end(dialled).await?;
    let node = find(&cluster, &change.node)?;
    let name = cluster.name(&cluster.nodes[node]).to_owned();
    let entry = cluster.exclusions.of(&name, &cluster.nodes[node].address);
    if entry.is_some_and(|entry| !entry.is_cordon) && !cluster.is_cordoned(&cluster.nodes[node]) {
        // A cordoned node is included again by the nodes' own recovery.
        return Err(Failure::State {
            message: format!("{} is excluded already: it serves nothing", output::clean(&name)),
            next: "console node include NODE takes it back",
        });
    }
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
    let head = output::clean(head(&cluster, &name));
    let silent = SilentNodes::of(&cluster);
    let refused = Mutex::new(Vec::new());
    let told = |event: OperateEvent| {
        if let OperateEvent::NotKept(fault) = &event {
            refused.lock().unwrap_or_else(PoisonError::into_inner).push(output::clean(&fault.node));
        }
        progress(&event);
    };
    let stored = interrupts.end(async { Ok::<_, Failure>(say(&mut cluster, node, Some(&reason), &told).await?) }).await;
    if matches!(stored, Err(Failure::Interrupted { .. })) {
        output::note(&format!("{who} may be cordoned: console status shows it; undo: console node uncordon {who}"));
    }
    let name = stored?;
    let is_drained = if waits {
        let drained = interrupts.end(async { Ok::<_, Failure>(drain(&cluster, &name, &told).await?) }).await;
        if drained.is_err() {
            output::note(&format!("{who} stays cordoned: it takes no new requests; undo: console node uncordon {who}"));
        }
        drained?
    } else {
        false
    };
    let refused = refused.into_inner().unwrap_or_else(PoisonError::into_inner);
    let unconfirmed: Vec<String> = silent.each().map(str::to_owned).chain(refused).collect();
    if !unconfirmed.is_empty() {
        output::note(&format!("not confirmed by {}: repeat the command when they answer", unconfirmed.join(", ")));
    }
    let state = if is_drained { "drained" } else { "cordoned" };
    if change.json {
        let object = json!({"node": name, "state": state, "reason": reason, "outage": is_outage,
            "unconfirmed": unconfirmed});
        output::line(&object.to_string());
    } else {
        output::line(&cordoned(&output::clean(&name), is_drained, !unconfirmed.contains(&head)));
    }
    Ok(u8::from(waits && !is_drained))
}
