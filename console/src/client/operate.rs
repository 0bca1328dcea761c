//! Orders of the dashboard, done: nodes that are cordoned, drained, taken out or in; the rolling restart that nodes keep; requests ended.
use shared::{
    protocol::error::{Fault, FaultKind},
    topology::{Rolling, rolling::Phase},
};

use tokio_util::sync::CancellationToken;

use super::{
    cluster::Cluster,
    event::OperateEvent,
    exclude::{drain_until, exclude_until, say},
    recovery::{change, in_phase},
    session::own_name,
};
use crate::order::{How, Roll};

/// Longest drain of a node in a rolling restart where nothing is said: replay is cheaper than a wait.
pub const DRAIN_MS: u32 = 1000;

/// Changes the rolling restart that the nodes keep.
///
/// # Errors
/// One is under way already, there is none to change, or no node keeps it.
pub async fn roll(cluster: &Cluster, roll: Roll) -> Result<Rolling, Fault> {
    match roll {
        Roll::Begin(which) => begin(cluster, &which, DRAIN_MS).await,
        Roll::Pause => in_phase(cluster, Phase::Paused(format!("{} said so", own_name()))).await,
        Roll::Resume => in_phase(cluster, Phase::Runs).await,
        Roll::Abort => in_phase(cluster, Phase::Aborted).await,
    }
}

/// Tells the nodes to restart those at these places of the list, in this order.
///
/// # Errors
/// One is under way already, nobody is named, or no node keeps it.
pub async fn begin(cluster: &Cluster, which: &[usize], drain_ms: u32) -> Result<Rolling, Fault> {
    let refused = |reason: String| Fault::new("console", FaultKind::ParameterInvalid { reason });
    let target = |node: &usize| {
        let node = cluster.nodes.get(*node)?;
        Some((cluster.name(node).to_owned(), node.address.clone()))
    };
    let targets: Vec<(String, String)> = which.iter().filter_map(target).collect();
    let (done, before, phase, by, revision) = (0, None, Phase::Runs, own_name(), 0);
    let wanted = Rolling { targets, done, before, phase, drain_ms, by, revision };
    wanted.check().map_err(refused)?;
    change(cluster, |latest| match latest.filter(|latest| latest.is_running()) {
        Some(other) => {
            let by = &other.by;
            Err(refused(format!(
                "{by} has a rolling restart under way: watch it, pause it or end it (--watch, --pause, --abort)"
            )))
        }
        None => Ok(wanted),
    })
    .await
}

/// Takes a node out as far as `how` says; `stop` ends it while requests finish or nodes load, and leaves the node cordoned.
///
/// # Errors
/// Too few nodes keep the list, or an assignment failed: what served before serves on as before.
pub async fn out(
    mut cluster: Cluster,
    node: usize,
    reason: &str,
    how: How,
    stop: &CancellationToken,
    tell: &(dyn Fn(OperateEvent) + Sync),
) -> Result<OperateEvent, Fault> {
    let others =
        cluster.nodes.iter().enumerate().filter(|(index, other)| *index != node && cluster.exclusion(other).is_none());
    // Without another node there is nothing to assign anew: the last one takes nothing new, and that is all.
    let has_rest = others.count() > 0;
    match how {
        How::Exclude if has_rest => {
            let name = cluster.name(&cluster.nodes[node]).to_owned();
            match exclude_until(cluster, node, Some(reason), stop, tell).await {
                Ok(done) => {
                    let running = done.assigned.map(|done| (done.epoch, Box::new(done.topology)));
                    Ok(OperateEvent::Excluded { node: done.node, out: true, running })
                }
                // What runs was left as it is: nothing new begins on it.
                Err(fault) if stop.is_cancelled() && matches!(fault.kind, FaultKind::AssignmentAborted { .. }) => {
                    Ok(OperateEvent::Cordoned { node: name, drained: None })
                }
                Err(fault) => Err(fault),
            }
        }
        How::Exclude => {
            let node = say(&mut cluster, node, Some(reason), tell).await?;
            Ok(OperateEvent::Excluded { node, out: true, running: None })
        }
        How::Cordon => {
            let node = say(&mut cluster, node, Some(reason), tell).await?;
            Ok(OperateEvent::Cordoned { node, drained: None })
        }
        How::Drain => {
            let node = say(&mut cluster, node, Some(reason), tell).await?;
            let drained = Some(drain_until(&cluster, &node, stop, tell).await?);
            Ok(OperateEvent::Cordoned { node, drained })
        }
    }
}

#[cfg(test)]
#[path = "operate_tests.rs"]
mod tests;
