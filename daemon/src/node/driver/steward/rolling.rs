//! Drives a rolling restart, whose record the nodes share: one node at a time, the next one when all members serve
//! again; pauses at the first problem. The driver is the first reachable node of the restart, otherwise of the
//! topology, that is not being restarted; if it is lost, another one takes over. A node without peers restarts itself
//! and reads the pending step from its disk.
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use protocol::recovery::{RecoveryAsk, Standing};
use telemetry::NodeState;
use topology::{Rolling, Topology, rolling::Phase};

use super::{StewardDriver, peers::Peers};

/// Time for a node to restart and for all members to serve again, without its drain. Shards of gigabytes load from SD
/// cards.
const STEP: Duration = Duration::from_secs(300);

/// State of the driver of a restart.
#[derive(Debug, Default)]
pub(super) struct Restarting {
    /// The step under way, and since when.
    step: Option<(u64, Instant)>,
    /// When the order to restart was last sent to the node.
    told: Option<Instant>,
    /// Whether the other members were already requested to continue without the node.
    has_left: bool,
}

/// Takes the next step of a restart that this node drives. Returns a node that the topology should exclude before it
/// restarts.
pub(super) async fn look(
    steward: &StewardDriver,
    peers: &mut Peers,
    own: &Standing,
    memory: &mut Restarting,
) -> Option<String> {
    let Some(rolling) = own.rolling.as_ref().filter(|rolling| rolling.is_running()) else {
        *memory = Restarting::default();
        return None;
    };
    let members = own.committed.iter().flat_map(|committed| &committed.topology.members);
    let mut candidates = rolling.targets.clone();
    candidates.extend(members.map(|member| (member.name.clone(), member.address.clone())));
    let answers = peers.standings(candidates.iter().map(|(_, address)| address.clone()).collect()).await;
    let known = answers.values().filter_map(|standing| standing.rolling.as_ref());
    if let Some(later) = known.max_by_key(|known| known.revision).filter(|later| later.revision > rolling.revision) {
        let _ = peers.tell(&steward.settings.own, RecoveryAsk::Rolling(later.clone())).await;
        return None;
    }
    let (target, address) = rolling.target()?;
    let mut others = candidates.iter().filter(|(name, _)| name != target);
    let driver = others.find(|(name, address)| answers.get(address).is_some_and(|one| one.name == *name));
    if driver.map_or(target, |(name, _)| name) != own.name.as_str() {
        memory.step = None;
        return None;
    }
    if memory.step.is_none_or(|(revision, _)| revision != rolling.revision) {
        *memory = Restarting { step: Some((rolling.revision, Instant::now())), ..Restarting::default() };
    }
    let since = memory.step.map_or(Duration::ZERO, |(_, since)| since.elapsed());
    let view = answers.get(address).filter(|standing| standing.name == *target);
    let well = is_well(own, &answers);
    let next = match (rolling.before, view) {
        (None, Some(standing)) if well.is_ok() && !standing.supervised => {
            Some(rolling.in_phase(Phase::Paused(format!(
                "{target} cannot be restarted remotely: it does not run \
             under a supervisor"
            ))))
        }
        (None, Some(standing)) if well.is_ok() => Some(rolling.begun(standing.instance)),
        (Some(before), Some(standing)) if standing.instance != before && well.is_ok() && !has_left(own, target) => {
            tracing::info!(
                "rolling restart: {target} serves again, {} ms after the order to restart",
                since.as_millis()
            );
            Some(rolling.advanced())
        }
        (Some(before), Some(standing)) if standing.instance == before && standing.state != NodeState::Draining => {
            if !std::mem::replace(&mut memory.has_left, true) && well.is_ok() {
                return Some(target.to_owned());
            }
            if memory.told.is_none_or(|told| told.elapsed() > Duration::from_secs(2)) {
                memory.told = Some(Instant::now());
                tracing::info!("rolling restart: ordering {target} to restart");
                let ask = RecoveryAsk::Restart { drain_ms: rolling.drain_ms };
                if let Err(fault) = peers.tell(address, ask).await {
                    tracing::warn!("rolling restart: {fault}");
                }
            }
            None
        }
        _ => None,
    };
    let patience = STEP + Duration::from_millis(rolling.drain_ms.into());
    let next = next.or_else(|| {
        (since > patience).then(|| rolling.in_phase(Phase::Paused(why_overdue(rolling, view, well, patience))))
    });
    if let Some(next) = next {
        if let Phase::Paused(reason) = &next.phase {
            tracing::warn!("rolling restart paused: {reason}");
        }
        spread(steward, peers, &next, answers.keys()).await;
    }
    None
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

/// Why a step takes longer than `patience`; `well` is the first member that does not serve.
fn why_overdue(rolling: &Rolling, view: Option<&Standing>, well: Result<(), String>, patience: Duration) -> String {
    let (seconds, target) = (patience.as_secs(), rolling.target().map_or("?", |(name, _)| name));
    match (well, rolling.before, view) {
        (Err(why), ..) => format!("{why}, for {seconds} s"),
        (Ok(()), Some(before), Some(one)) if one.instance != before => {
            format!(
                "{target} restarted but is not a member again after {seconds} s; run `console node include {target}`"
            )
        }
        (Ok(()), ..) => format!("{target} has not restarted after {seconds} s"),
    }
}

/// Whether the running topology excludes a node that is expected to rejoin.
fn has_left(own: &Standing, node: &str) -> bool {
    let is_in = |topology: &Topology| topology.members.iter().any(|member| member.name == node);
    let left = own.committed.as_ref().is_some_and(|held| is_in(held.desired()) && !is_in(&held.topology));
    // A node that an operator excluded does not rejoin.
    left && own.exclusions.out().all(|entry| entry.node != node)
}

/// Whether all members of the topology serve it; otherwise the first one that does not, and its state.
fn is_well(own: &Standing, answers: &BTreeMap<String, Standing>) -> Result<(), String> {
    // The driver need not be a member itself.
    let all = answers.values().chain([own]).filter_map(|standing| standing.committed.as_ref());
    let Some(committed) = all.max_by_key(|committed| committed.epoch) else { return Ok(()) };
    for member in &committed.topology.members {
        let mut named = answers.values().filter(|standing| standing.name == member.name);
        match named.next().map(|standing| standing.state) {
            Some(NodeState::Ready | NodeState::Serving) => {}
            Some(state) => return Err(format!("{} is {}", member.name, state.name())),
            None => return Err(format!("{} does not answer", member.name)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::steward::{base, view};

    #[test]
    fn pause_names_what_the_target_lacks() {
        let standing = view(&base(1), 0, NodeState::Idle).standing;
        let why = |before, well: Result<(), &str>| {
            let targets = vec![("pi3".into(), "pi3:9999".into())];
            let (phase, by) = (Phase::Runs, "me".into());
            let rolling = Rolling { targets, done: 0, before, phase, drain_ms: 0, by, revision: 1 };
            why_overdue(&rolling, standing.as_ref(), well.map_err(str::to_owned), STEP)
        };
        let gone = "pi3 restarted but is not a member again after 300 s; run `console node include pi3`";
        assert_eq!(why(Some(9), Ok(())), gone, "run 1 answers");
        assert_eq!(why(Some(1), Ok(())), "pi3 has not restarted after 300 s");
        assert_eq!(why(Some(9), Err("pi2 is loading")), "pi2 is loading, for 300 s");
    }
}
