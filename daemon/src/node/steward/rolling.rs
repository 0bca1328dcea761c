//! Decides the next step of a rolling restart, whose record the nodes share: one node at a time, the next one when all
//! members of all topologies serve again; pauses at the first problem. The driver is the first reachable node of the
//! restart, preferably of the target's topology, otherwise of the driver's own, that is not being restarted; if it is
//! lost, another one takes over. A node without peers restarts itself and reads the pending step from its disk. Pure.
use std::{collections::BTreeMap, time::Duration};

use protocol::recovery::{Committed, Standing};
use telemetry::NodeState;
use topology::{Rolling, Topology, rolling::Phase};

use super::reasons::is_failing;

/// Time for a node to restart and for all members to serve again, without its drain. Shards of gigabytes load from SD
/// cards.
const STEP: Duration = Duration::from_secs(300);
/// Interval between two orders to restart.
const TOLD: Duration = Duration::from_secs(2);

/// The next step of a node that may drive a rolling restart.
#[derive(Clone, Debug, PartialEq)]
pub enum RollingStep {
    /// Nothing to do now.
    Rest,
    /// This node learns a later record.
    Learn(Rolling),
    /// The nodes that answer learn the next record.
    Spread(Rolling),
    /// The node at this address is ordered to restart.
    Restart {
        /// Address of the node.
        address: String,
        /// Longest drain.
        drain_ms: u32,
    },
    /// The topology continues without this node before that restarts.
    Leave(String),
}

/// What the driver of a restart remembers.
#[derive(Debug, Default)]
pub struct Restarting {
    /// The step under way, and since when.
    step: Option<(u64, Duration)>,
    /// When the order to restart was last sent to the node.
    told: Option<Duration>,
    /// Whether the other members were already requested to continue without the node.
    has_left: bool,
}

/// The nodes whose standings decide, by name and address; `None`: no restart is in progress.
pub fn candidates(own: &Standing) -> Option<Vec<(String, String)>> {
    let rolling = own.rolling.as_ref().filter(|rolling| rolling.is_running())?;
    let members = own.committed.iter().flat_map(|committed| &committed.topology.members);
    let mut candidates = rolling.targets.clone();
    candidates.extend(members.map(|member| (member.name.clone(), member.address.clone())));
    Some(candidates)
}

impl Restarting {
    /// Decides with the standings of the [`candidates`] that answered, by address; `now` is the time since the daemon
    /// started.
    pub fn look(&mut self, own: &Standing, answers: &BTreeMap<String, Standing>, now: Duration) -> RollingStep {
        let (Some(rolling), Some(candidates)) = (own.rolling.as_ref(), candidates(own)) else {
            *self = Self::default();
            return RollingStep::Rest;
        };
        let known = answers.values().filter_map(|standing| standing.rolling.as_ref());
        let later = known.max_by_key(|known| known.revision).filter(|later| later.revision > rolling.revision);
        if let Some(later) = later {
            return RollingStep::Learn(later.clone());
        }
        let Some((target, address)) = rolling.target() else { return RollingStep::Rest };
        let others = candidates.iter().filter(|(name, _)| name != target);
        // A node that was away when the restart was ordered does not know of it, and drives nothing.
        let others = others.filter(|(name, address)| {
            let known = answers.get(address).filter(|one| one.name == *name).and_then(|one| one.rolling.as_ref());
            known.is_some_and(|known| known.revision == rolling.revision)
        });
        let others: Vec<&str> = others.map(|(name, _)| name.as_str()).collect();
        if driver(rolling, &others, &topologies(own, answers)).unwrap_or(target) != own.name.as_str() {
            self.step = None;
            return RollingStep::Rest;
        }
        if self.step.is_none_or(|(revision, _)| revision != rolling.revision) {
            *self = Self { step: Some((rolling.revision, now)), ..Self::default() };
        }
        let view = answers.get(address).filter(|standing| standing.name == *target);
        let step = self.step_of(rolling, own, view, answers, now);
        let since = self.step.map_or(Duration::ZERO, |(_, since)| now.saturating_sub(since));
        let patience = STEP + Duration::from_millis(rolling.drain_ms.into());
        if matches!(step, RollingStep::Rest | RollingStep::Restart { .. }) && since > patience {
            let why = why_overdue(rolling, view, is_well(own, answers), patience);
            return RollingStep::Spread(rolling.in_phase(Phase::Paused(why)));
        }
        step
    }

    fn step_of(
        &mut self,
        rolling: &Rolling,
        own: &Standing,
        view: Option<&Standing>,
        answers: &BTreeMap<String, Standing>,
        now: Duration,
    ) -> RollingStep {
        let (Some((target, address)), Some(view)) = (rolling.target(), view) else { return RollingStep::Rest };
        let is_well = is_well(own, answers).is_ok();
        match rolling.before {
            None if is_well && !view.supervised => {
                let why = format!("{target} cannot be restarted remotely: it does not run under a supervisor");
                RollingStep::Spread(rolling.in_phase(Phase::Paused(why)))
            }
            None if is_well => RollingStep::Spread(rolling.begun(view.instance)),
            Some(before) if view.instance != before && is_well && !has_left(own, answers, target) => {
                let took = self.step.map_or(Duration::ZERO, |(_, since)| now.saturating_sub(since));
                tracing::info!(
                    "rolling restart: {target} serves again, {} ms after the order to restart",
                    took.as_millis()
                );
                RollingStep::Spread(rolling.advanced())
            }
            Some(before) if view.instance == before && view.state != NodeState::Draining => {
                if !std::mem::replace(&mut self.has_left, true) && is_well {
                    return RollingStep::Leave(target.to_owned());
                }
                if self.told.is_some_and(|told| now.saturating_sub(told) <= TOLD) {
                    return RollingStep::Rest;
                }
                self.told = Some(now);
                tracing::info!("rolling restart: ordering {target} to restart");
                RollingStep::Restart { address: address.clone(), drain_ms: rolling.drain_ms }
            }
            _ => RollingStep::Rest,
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

/// The first of these nodes that is a member of the target's topology, otherwise the first one. Only a member can
/// exclude the target before it restarts. It must be a target, too: nodes of other topologies ask no further members,
/// and all nodes must choose the same driver.
fn driver<'a>(rolling: &Rolling, others: &[&'a str], held: &[&Committed]) -> Option<&'a str> {
    let group = rolling.target().and_then(|(target, _)| group(held, target));
    let near = others.iter().find(|name| {
        let is_target = rolling.targets.iter().any(|(target, _)| target == *name);
        is_target && group.is_some_and(|group| is_in(&group.topology, name))
    });
    near.or(others.first()).copied()
}

/// The topologies that these nodes hold, without those that a later one on some of the same nodes has replaced.
fn topologies<'a>(own: &'a Standing, answers: &'a BTreeMap<String, Standing>) -> Vec<&'a Committed> {
    let mut held: Vec<&Committed> = Vec::new();
    for committed in [own].into_iter().chain(answers.values()).filter_map(|standing| standing.committed.as_ref()) {
        if !held.contains(&committed) {
            held.push(committed);
        }
    }
    let latest = held.iter().filter(|one| {
        !held.iter().any(|other| {
            other.is_later_than(one) && other.topology.members.iter().any(|member| is_in(&one.topology, &member.name))
        })
    });
    latest.copied().collect()
}

/// The topology of a node, or the one that it is expected to rejoin.
fn group<'a>(held: &[&'a Committed], node: &str) -> Option<&'a Committed> {
    let own = held.iter().find(|held| is_in(&held.topology, node));
    own.or_else(|| held.iter().find(|held| is_in(held.desired(), node))).copied()
}

fn is_in(topology: &Topology, node: &str) -> bool {
    topology.members.iter().any(|member| member.name == node)
}

/// Whether the topology of a node excludes it now, but expects it to rejoin.
fn has_left(own: &Standing, answers: &BTreeMap<String, Standing>, node: &str) -> bool {
    let left = group(&topologies(own, answers), node).is_some_and(|held| !is_in(&held.topology, node));
    // A node that an operator excluded does not rejoin. One that cannot load its shard ends the restart.
    left && own.exclusions.out().all(|entry| entry.node != node || is_failing(entry))
}

/// Whether all members of all topologies serve; otherwise the first one that does not, and its state.
fn is_well(own: &Standing, answers: &BTreeMap<String, Standing>) -> Result<(), String> {
    let candidates = candidates(own).unwrap_or_default();
    for held in topologies(own, answers) {
        // Of the topologies of other nodes, only targets are asked.
        let is_own = is_in(&held.topology, &own.name);
        for member in &held.topology.members {
            let mut named = answers.values().filter(|standing| standing.name == member.name);
            match named.next().map(|standing| standing.state) {
                Some(NodeState::Ready | NodeState::Serving) => {}
                Some(state) => return Err(format!("{} is {}", member.name, state.name())),
                None if is_own || candidates.iter().any(|(name, _)| *name == member.name) => {
                    return Err(format!("{} does not answer", member.name));
                }
                None => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use common::ids::Epoch;
    use topology::Layout;

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

    #[test]
    fn next_node_restarts_only_when_all_topologies_serve() {
        let (all, later) = (base(4), Committed { epoch: Epoch(9), ..base(2) });
        let mut earlier = base(4);
        earlier.topology.members.drain(..2);
        earlier.topology.layout = Layout::tensor_parallel(2);
        let rolling = Rolling {
            targets: all.topology.members.iter().map(|one| (one.name.clone(), one.address.clone())).collect(),
            done: 2,
            before: Some(9),
            phase: Phase::Runs,
            drain_ms: 0,
            by: "me@here".into(),
            revision: 7,
        };
        // pi3 has restarted; `states` are those of pi3 and pi4.
        let answers = |states: [NodeState; 2]| -> BTreeMap<String, Standing> {
            let serving = [0, 1].map(|index| view(&later, index, NodeState::Ready));
            let views = serving.into_iter().chain([0, 1].map(|index| view(&earlier, index, states[index])));
            let answers = views.map(|view| {
                let standing = view.standing.expect("it answers");
                (view.address, Standing { rolling: Some(rolling.clone()), ..standing })
            });
            answers.collect()
        };
        let look = |own: usize, answers: &BTreeMap<String, Standing>| {
            let own = &answers[&all.topology.members[own].address];
            Restarting::default().look(own, answers, STEP)
        };
        let advanced = RollingStep::Spread(rolling.advanced());
        for states in [[NodeState::Idle, NodeState::Faulted], [NodeState::Idle, NodeState::Ready]] {
            let mut answers = answers(states);
            assert_eq!([look(0, &answers), look(3, &answers)], [RollingStep::Rest, RollingStep::Rest], "{states:?}");
            // No member of its topology has the record of the restart.
            answers.get_mut(&all.topology.members[3].address).expect("it answers").rolling = None;
            assert_eq!(look(0, &answers), RollingStep::Rest, "{states:?}");
            // pi4 continues without pi3, which is to return.
            let alone = answers.get_mut(&all.topology.members[3].address).expect("it answers");
            let mut reduced = Committed { epoch: Epoch(5), ..earlier.clone() };
            reduced.desired = Some(Box::new(earlier.topology.clone()));
            reduced.topology.members.remove(0);
            (alone.committed, alone.state) = (Some(reduced), NodeState::Ready);
            answers.get_mut(&all.topology.members[2].address).expect("it answers").committed = None;
            assert_eq!(look(0, &answers), RollingStep::Rest, "{states:?}");
            // Nor if they left it out because it cannot load its shard; an operator's exclusion is final.
            let driver = &all.topology.members[0].address;
            for (by, step) in [("pi4 (by itself)", RollingStep::Rest), ("me@desk", advanced.clone())] {
                let own = answers.get_mut(driver).expect("it answers");
                own.exclusions.say("pi3", "pi3:9999", Some("cannot load its shard: read error"), by);
                assert_eq!(look(0, &answers), step, "{states:?}, by {by}");
            }
        }
        let mut well = answers([NodeState::Ready, NodeState::Serving]);
        assert_eq!([look(0, &well), look(3, &well)], [RollingStep::Rest, advanced.clone()], "a member drives");
        well.get_mut(&all.topology.members[3].address).expect("it answers").rolling = None;
        assert_eq!(look(0, &well), advanced);
        // A topology that another one on the same nodes has replaced serves nowhere.
        let stale = Committed { epoch: Epoch(3), ..base(5) };
        well.get_mut(&all.topology.members[1].address).expect("it answers").committed = Some(stale);
        assert_eq!(look(0, &well), advanced);
    }

    #[test]
    fn node_that_does_not_know_the_restart_is_not_waited_for() {
        let base = base(3);
        let rolling = Rolling {
            targets: base.topology.members.iter().map(|one| (one.name.clone(), one.address.clone())).collect(),
            done: 2,
            before: None,
            phase: Phase::Runs,
            drain_ms: 0,
            by: "me@here".into(),
            revision: 7,
        };
        let mut answers = BTreeMap::new();
        for index in 0..3 {
            let view = view(&base, index, NodeState::Ready);
            let standing = view.standing.expect("it answers");
            answers.insert(view.address, Standing { rolling: Some(rolling.clone()), ..standing });
        }
        let (first, second) = (base.topology.members[0].address.clone(), base.topology.members[1].address.clone());
        let own = answers[&second].clone();
        assert_eq!(Restarting::default().look(&own, &answers, STEP), RollingStep::Rest, "the first one drives");
        // It was away when the restart was ordered.
        answers.get_mut(&first).expect("it answers").rolling = None;
        let begun = RollingStep::Spread(rolling.begun(1));
        assert_eq!(Restarting::default().look(&own, &answers, STEP), begun);
    }
}
