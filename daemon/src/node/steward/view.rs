//! What a node of a topology reports of itself, as the node that leads sees it.
use std::time::Duration;

use protocol::recovery::Standing;
use telemetry::NodeState;
use topology::{Exclusions, Rolling};

/// The latest observation of a member.
#[derive(Clone, Debug)]
pub struct View {
    /// Its standing; `None`: it does not answer.
    pub standing: Option<Standing>,
    /// The address at which it answered.
    pub address: String,
    /// Since when it does not answer.
    pub lost: Duration,
    /// Whether it was lost too often before the topology served, so that the others no longer wait for it.
    pub is_unstable: bool,
}

impl View {
    pub(super) fn state(&self) -> Option<NodeState> {
        self.standing.as_ref().map(|standing| standing.state)
    }

    /// Whether it takes requests, possibly because it has not noticed that its replica is broken.
    pub(in crate::node) fn serves(&self) -> bool {
        matches!(self.state(), Some(NodeState::Ready | NodeState::Serving))
    }

    /// Whether a rolling restart runs, as far as this member has learned.
    pub(in crate::node) fn is_restarting(&self) -> bool {
        self.rolling().is_some()
    }

    /// Whether a rolling restart is about to end this run of a node's daemon.
    pub(super) fn is_about_to_restart(&self, name: &str, instance: u64) -> bool {
        self.rolling().is_some_and(|rolling| {
            rolling.before == Some(instance) && rolling.target().is_some_and(|(target, _)| target == name)
        })
    }

    pub(super) fn rolling(&self) -> Option<&Rolling> {
        self.standing.as_ref()?.rolling.as_ref().filter(|rolling| rolling.is_running())
    }

    pub(super) fn is_free(&self) -> bool {
        matches!(self.state(), Some(NodeState::Idle | NodeState::Faulted))
    }
}

/// The exclusions that the lists of these nodes give together.
pub(super) fn exclusions<'a>(standings: impl Iterator<Item = &'a Standing>) -> Exclusions {
    let mut list = Exclusions::default();
    standings.for_each(|one| {
        list.merge(&one.exclusions);
    });
    list
}
