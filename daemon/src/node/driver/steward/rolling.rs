//! Drives a rolling restart: asks the nodes for their standings and executes what `node::steward::rolling` decides.
use std::time::Duration;

use protocol::recovery::{RecoveryAsk, Standing};
use topology::{Rolling, rolling::Phase};

use super::{StewardDriver, peers::Peers};
use crate::node::steward::rolling::{Restarting, RollingStep, candidates};

/// Takes the next step of a restart that this node drives. Returns a node that the topology should exclude before it
/// restarts. `now` is the time since the daemon started.
pub(super) async fn look(
    steward: &StewardDriver,
    peers: &mut Peers,
    own: &Standing,
    memory: &mut Restarting,
    now: Duration,
) -> Option<String> {
    let candidates = candidates(own).unwrap_or_default();
    let answers = peers.standings(candidates.into_iter().map(|(_, address)| address).collect()).await;
    match memory.look(own, &answers, now) {
        RollingStep::Rest => None,
        RollingStep::Leave(node) => Some(node),
        RollingStep::Learn(later) => {
            // If this node cannot store it, the next look tries again.
            let _ = peers.tell(&steward.settings.own, RecoveryAsk::Rolling(later)).await;
            None
        }
        RollingStep::Restart { address, drain_ms } => {
            if let Err(fault) = peers.tell(&address, RecoveryAsk::Restart { drain_ms }).await {
                tracing::warn!("rolling restart: {fault}");
            }
            None
        }
        RollingStep::Spread(next) => {
            if let Phase::Paused(reason) = &next.phase {
                tracing::warn!("rolling restart paused: {reason}");
            }
            spread(steward, peers, &next, answers.keys()).await;
            None
        }
    }
}

/// Sends the record to all nodes that answer. This node stores it first; if that fails, nothing is sent.
async fn spread(
    steward: &StewardDriver,
    peers: &mut Peers,
    rolling: &Rolling,
    addresses: impl Iterator<Item = &String>,
) {
    if let Err(fault) = peers.tell(&steward.settings.own, RecoveryAsk::Rolling(rolling.clone())).await {
        return tracing::warn!("rolling restart: {fault}");
    }
    for address in addresses {
        if let Err(fault) = peers.tell(address, RecoveryAsk::Rolling(rolling.clone())).await {
            tracing::warn!("rolling restart: {fault}");
        }
    }
}
