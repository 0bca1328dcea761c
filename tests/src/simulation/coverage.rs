//! The state of the cluster at the instant of a fault, and how often each kind of fault met each state.
use std::{collections::BTreeMap, fmt};

use telemetry::NodeState;
use topology::Rolling;

use crate::simulation::{faults::TroubleKind, world::World};

/// What a cluster is doing; if several of these hold, [`World::cluster_state`] prefers the rarer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterState {
    /// All members serve, and no request runs.
    Idle,
    /// All members serve, and requests run.
    Answering,
    /// A member loads its shard.
    Loading,
    /// A member opens its links.
    Connecting,
    /// A member holds a vote about the next topology.
    Voting,
    /// The topology is broken, and waits for members.
    Recovering,
    /// A rolling restart is in progress.
    Rolling,
    /// A member drains.
    Draining,
    /// The topology of fewer members serves.
    Reduced,
    /// The topology of fewer members serves, and the next one is voted on or loaded.
    Returning,
    /// One replica serves, another one is broken.
    HalfDown,
}

impl ClusterState {
    /// All states.
    pub const ALL: [Self; 11] = [
        Self::Idle,
        Self::Answering,
        Self::Loading,
        Self::Connecting,
        Self::Voting,
        Self::Recovering,
        Self::Rolling,
        Self::Draining,
        Self::Reduced,
        Self::Returning,
        Self::HalfDown,
    ];
}

impl World {
    /// The current state of the cluster.
    pub(crate) fn cluster_state(&self) -> ClusterState {
        let states = || {
            let processes = self.machines.iter().filter_map(|machine| machine.process.as_ref());
            processes.map(|process| process.node.state())
        };
        let is_voting = self
            .machines
            .iter()
            .any(|machine| machine.process.as_ref().is_some_and(|process| process.steward.is_voting()));
        let mut processes = self.machines.iter().filter_map(|machine| machine.process.as_ref());
        let is_opening = processes.any(|process| process.opening.is_some());
        let (serves, is_reduced, some_replica) = self.served();
        let mut rolling = self.machines.iter().filter_map(|machine| machine.process.as_ref()?.node.rolling());
        if rolling.any(Rolling::is_running) {
            ClusterState::Rolling
        } else if states().any(|state| state == NodeState::Draining) {
            ClusterState::Draining
        } else if is_reduced && serves && (is_voting || is_opening) {
            ClusterState::Returning
        } else if is_voting {
            ClusterState::Voting
        } else if states().any(|state| state == NodeState::Connecting) {
            ClusterState::Connecting
        } else if some_replica && !serves {
            ClusterState::HalfDown
        } else if states().any(|state| matches!(state, NodeState::Loading | NodeState::Prepared)) {
            ClusterState::Loading
        } else if !serves {
            ClusterState::Recovering
        } else if is_reduced {
            ClusterState::Reduced
        } else if states().any(|state| state == NodeState::Serving) {
            ClusterState::Answering
        } else {
            ClusterState::Idle
        }
    }

    /// Whether all members of the latest topology serve it, whether it is a reduced one, and whether all members of
    /// some replica serve it.
    fn served(&self) -> (bool, bool, bool) {
        let held = self.machines.iter().filter_map(|machine| machine.process.as_ref()?.node.committed());
        let Some(latest) = held.max_by_key(|committed| committed.epoch) else { return (false, false, false) };
        let serves: Vec<bool> = latest
            .topology
            .members
            .iter()
            .map(|member| {
                let node = self.named(&member.name).and_then(|node| self.machines[node].process.as_ref());
                node.is_some_and(|process| {
                    let is_latest = process.node.committed().is_some_and(|own| own.epoch == latest.epoch);
                    is_latest && process.node.state().serves() && process.node.computes().is_some()
                })
            })
            .collect();
        let layout = latest.topology.layout;
        let some = (0..layout.replicas).any(|replica| serves[layout.members(replica)].iter().all(|one| *one));
        (serves.iter().all(|one| *one), latest.desired.is_some(), some)
    }
}

/// How often each kind of fault met each state.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<(TroubleKind, ClusterState), u32>);

impl Coverage {
    /// Counts a fault.
    pub(crate) fn met(&mut self, kind: TroubleKind, state: ClusterState) {
        *self.0.entry((kind, state)).or_default() += 1;
    }

    /// Adds the counts of another history.
    pub fn add(&mut self, other: &Self) {
        for (pair, count) in &other.0 {
            *self.0.entry(*pair).or_default() += count;
        }
    }

    fn of(&self, kind: TroubleKind, state: ClusterState) -> u32 {
        self.0.get(&(kind, state)).copied().unwrap_or(0)
    }

    /// Pairs that no fault met.
    pub fn missing(&self) -> Vec<(TroubleKind, ClusterState)> {
        let pairs = TroubleKind::ALL.into_iter().flat_map(|kind| ClusterState::ALL.map(|state| (kind, state)));
        pairs.filter(|pair| !self.0.contains_key(pair)).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<15}", "")?;
        for state in ClusterState::ALL {
            write!(f, "{:>11}", format!("{state:?}"))?;
        }
        for kind in TroubleKind::ALL {
            write!(f, "\n{:<15}", format!("{kind:?}"))?;
            for state in ClusterState::ALL {
                write!(f, "{:>11}", self.of(kind, state))?;
            }
        }
        Ok(())
    }
}
