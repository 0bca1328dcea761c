//! What a node of a topology reports of itself, as the node that leads sees it.
use std::time::Duration;

use protocol::recovery::Standing;
use telemetry::NodeState;
use topology::{Exclusion, Exclusions, Rolling};

/// The latest observation of a member.
#[derive(Clone, Debug)]
pub struct View {
    /// Its standing; `None`: it does not answer.
    pub standing: Option<Standing>,
    /// The address at which it answered.
    pub address: String,
    /// Since when it does not answer.
    pub lost: Duration,
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

/// Prefix of the reason with which nodes exclude a member that does not answer. Such an exclusion ends when the member
/// is back.
pub(super) const AWAY: &str = "did not answer for";

/// Suffix of the author of exclusions that were made automatically and therefore end automatically.
pub const BY_ITSELF: &str = "(by itself)";

/// Prefix of the reason with which nodes exclude a member whose model file is missing or differs. It ends when the file is
/// the right one, because files are compared before a member joins.
pub(super) const NO_MODEL: &str = "has no usable model file";

/// Prefix of the reason with which nodes exclude a member that has the right file but cannot load its shard. It ends when
/// an operator includes the member: another attempt would end the topology that serves.
pub(super) const CANNOT_LOAD: &str = "cannot load its shard";

/// Prefix of the reason with which nodes exclude a straggler. They try it again later.
pub(super) const SLOW: &str = "delayed its peers";

/// Whether nodes have excluded a member because it could not load its shard.
pub(super) fn is_failing(entry: &Exclusion) -> bool {
    has_reason(entry, &[NO_MODEL, CANNOT_LOAD])
}

/// Whether nodes have excluded a straggler.
pub(super) fn is_straggler(entry: &Exclusion) -> bool {
    has_reason(entry, &[SLOW])
}

/// Whether nodes have excluded a member for a reason that ends by itself.
pub(super) fn is_away(entry: &Exclusion) -> bool {
    has_reason(entry, &[AWAY, NO_MODEL])
}

fn has_reason(entry: &Exclusion, prefixes: &[&str]) -> bool {
    let reason = entry.reason.as_ref().filter(|_| entry.by.ends_with(BY_ITSELF));
    reason.is_some_and(|reason| prefixes.iter().any(|prefix| reason.starts_with(prefix)))
}

/// The exclusions that the lists of these nodes give together.
pub(super) fn exclusions<'a>(standings: impl Iterator<Item = &'a Standing>) -> Exclusions {
    let mut list = Exclusions::default();
    standings.for_each(|one| {
        list.merge(&one.exclusions);
    });
    list
}
