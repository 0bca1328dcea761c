//! `console node exclude` and `console node include`: exclude a node with a reason, or include it again. The running topology is
//! assigned again to the remaining nodes.
use std::pin::pin;

use common::fault::{Fault, FaultKind};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cli::{
    Failure,
    shared::{
        find_node::{find, progress},
        interrupts::Interrupts,
        options, output,
        silent::SilentNodes,
    },
};
use crate::client::{
    cluster::Cluster,
    exclude::{ExclusionOutcome, ExclusionStop, WhenStopped, exclude},
    with_port,
};

/// Runs `console node exclude`.
pub(super) async fn run_exclude(options: options::Exclude) -> Result<u8, Failure> {
    change(options.change, Some(&options.reason)).await
}

/// Runs `console node include`.
pub(super) async fn run_include(options: options::Include) -> Result<u8, Failure> {
    change(options.change, None).await
}

async fn change(options: options::Change, reason: Option<&str>) -> Result<u8, Failure> {
    options.consent.check()?;
    let addresses: Vec<String> = options.nodes.nodes.iter().map(|node| with_port(node)).collect();
    let mut interrupts = Interrupts::listen()?;
    let dialled = async { Ok::<_, Failure>(Cluster::dial(&addresses).await.with_known(&options.node).await) };
    let cluster = interrupts.end(dialled).await?;
    let node = find(&cluster, &options.node)?;
    let name = output::clean(cluster.name(&cluster.nodes[node]));
    // An excluded node need not answer.
    let silent = SilentNodes::of(&cluster).except(&cluster.nodes[node].address);
    let question = match reason {
        Some(_) => {
            format!("Exclude {name}? Running requests have 20 s to finish, then the other nodes serve without it.")
        }
        None if cluster.is_cordoned(&cluster.nodes[node]) => {
            format!("Schedule new requests again on {name} and its replica?")
        }
        None => format!("Include {name} again? Running requests have 20 s to finish, then all nodes serve with it."),
    };
    let plan = json!({"node": cluster.name(&cluster.nodes[node]), "out": reason.is_some(), "reason": reason});
    if !interrupts.end(options.consent.obtain(&question, &plan, options.json)).await? {
        return Ok(0);
    }
    let (stop, told) = (CancellationToken::new(), |event| progress(&event));
    let mut work =
        pin!(exclude(cluster, node, reason, ExclusionStop { token: &stop, leaves: WhenStopped::AsBefore }, &told));
    let done = tokio::select! {
        done = &mut work => done,
        code = interrupts.next() => {
            // The heads refuse requests as long as the list excludes a member.
            output::note("stopping: reverting the change on all nodes; interrupt again to stop at once");
            stop.cancel();
            match interrupts.end(work).await {
                Err(Failure::Fault(Fault { kind: FaultKind::AssignmentAborted { .. }, .. })) => {
                    let state = if reason.is_some() { "is not excluded" } else { "stays excluded" };
                    output::note(&format!("{name} {state}"));
                    return Err(Failure::Interrupted { code });
                }
                Err(failure) => return Err(failure),
                // It was too late.
                Ok(done) => Ok(done),
            }
        }
    };
    tell(&done?, reason, &silent, options.json);
    Ok(0)
}

/// Prints the result. A topology that only silent nodes hold did not change, and no node has reported it.
fn tell(done: &ExclusionOutcome, reason: Option<&str>, silent: &SilentNodes, json: bool) {
    let ExclusionOutcome { node, assigned } = done;
    let now = assigned.as_ref().map(|done| done.topology.layout.to_string());
    if json {
        let epoch = assigned.as_ref().map(|done| done.epoch.0);
        let object = json!({"node": node, "out": reason.is_some(), "reason": reason, "topology": now, "epoch": epoch,
            "away": silent.objects()});
        return output::line(&object.to_string());
    }
    let state = if reason.is_some() { "excluded" } else { "included" };
    let serves = match now {
        Some(now) => format!("{now} serves"),
        None if silent.is_empty() => "no topology had to change".to_owned(),
        None => format!("no topology of the nodes that answer had to change; no answer from {}", silent.names()),
    };
    output::line(&format!("{} is {state}; {serves}", output::clean(node)));
}
