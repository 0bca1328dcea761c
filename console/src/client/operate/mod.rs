//! Carries out orders of the dashboard: cordon, drain, exclude and include nodes, control rolling restarts, cancel
//! requests.
use common::fault::{Fault, FaultKind};
use tokio_util::sync::CancellationToken;
use topology::{Rolling, rolling::Phase};

use super::{
    cluster::Cluster,
    event::OperateEvent,
    exclude::{ExclusionStop, WhenStopped, drain_until, exclude, say},
    recovery::{change, in_phase},
    session::own_name,
};
use crate::operator::command::{Removal, RollingCommand};

/// Default of the longest drain of a node in a rolling restart, in milliseconds: replaying a request is cheaper
/// than waiting for it.
pub const DRAIN_MS: u32 = 1000;

/// Changes the rolling restart that the nodes store.
///
/// # Errors
/// One is already running, there is none to change, or no node stores the change.
pub async fn roll(cluster: &Cluster, roll: RollingCommand) -> Result<Rolling, Fault> {
    match roll {
        RollingCommand::Begin(which) => begin(cluster, &which, DRAIN_MS).await,
        RollingCommand::Pause => in_phase(cluster, Phase::Paused(format!("requested by {}", own_name()))).await,
        RollingCommand::Resume => in_phase(cluster, Phase::Runs).await,
        RollingCommand::Abort => in_phase(cluster, Phase::Aborted).await,
    }
}

/// Starts a rolling restart of the nodes at these indices, in this order.
///
/// # Errors
/// One is already running, no node is given, or no node stores it.
pub async fn begin(cluster: &Cluster, which: &[usize], drain_ms: u32) -> Result<Rolling, Fault> {
    let refused = |reason: String| Fault::new("console", FaultKind::ParameterInvalid { reason });
    let targets: Vec<(String, String)> = which
        .iter()
        .filter_map(|node: &usize| {
            let node = cluster.nodes.get(*node)?;
            Some((cluster.name(node).to_owned(), node.address.clone()))
        })
        .collect();
    let (done, before, phase, by, revision) = (0, None, Phase::Runs, own_name(), 0);
    let wanted = Rolling { targets, done, before, phase, drain_ms, by, revision };
    wanted.check().map_err(refused)?;
    change(cluster, |latest| match latest.filter(|latest| latest.is_running()) {
        Some(other) => {
            let by = &other.by;
            Err(refused(format!(
                "a rolling restart by {by} is running: watch, pause or abort it (--watch, --pause, --abort)"
            )))
        }
        None => Ok(wanted),
    })
    .await
}

/// Cordons, drains or excludes a node, according to `how`. While requests finish or nodes load, `stop` ends the
/// operation and leaves the node cordoned.
///
/// # Errors
/// Too few nodes store the list, or an assignment failed; the previous topology keeps serving.
pub async fn out(
    mut cluster: Cluster,
    node: usize,
    reason: &str,
    how: Removal,
    stop: &CancellationToken,
    tell: &(dyn Fn(OperateEvent) + Sync),
) -> Result<OperateEvent, Fault> {
    let others =
        cluster.nodes.iter().enumerate().filter(|(index, other)| *index != node && cluster.exclusion(other).is_none());
    // The last included node has no others to assign the topology to, so it only stops accepting requests.
    let has_rest = others.count() > 0;
    match how {
        Removal::Exclude if has_rest => {
            let name = cluster.name(&cluster.nodes[node]).to_owned();
            match exclude(
                cluster,
                node,
                Some(reason),
                ExclusionStop { token: stop, leaves: WhenStopped::Cordoned },
                tell,
            )
            .await
            {
                Ok(done) => {
                    let running = done.assigned.map(|done| (done.epoch, Box::new(done.topology)));
                    Ok(OperateEvent::Excluded { node: done.node, out: true, running })
                }
                // The topology is unchanged, so the node is cordoned.
                Err(fault) if stop.is_cancelled() && matches!(fault.kind, FaultKind::AssignmentAborted { .. }) => {
                    Ok(OperateEvent::Cordoned { node: name, drained: None })
                }
                Err(fault) => Err(fault),
            }
        }
        Removal::Exclude => {
            let node = say(&mut cluster, node, Some(reason), tell).await?;
            Ok(OperateEvent::Excluded { node, out: true, running: None })
        }
        Removal::Cordon => {
            let node = say(&mut cluster, node, Some(reason), tell).await?;
            Ok(OperateEvent::Cordoned { node, drained: None })
        }
        Removal::Drain => {
            let node = say(&mut cluster, node, Some(reason), tell).await?;
            let drained = Some(drain_until(&cluster, &node, stop, tell).await?);
            Ok(OperateEvent::Cordoned { node, drained })
        }
    }
}

#[cfg(test)]
mod tests;
