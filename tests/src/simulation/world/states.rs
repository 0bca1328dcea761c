//! What the cluster is doing at an instant.
use telemetry::NodeState;
use topology::Rolling;

use crate::simulation::{states::ClusterState, world::World};

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
