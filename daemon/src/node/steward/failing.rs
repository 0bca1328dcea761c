//! Members that answer but cannot load their shard: their disk cannot be read, or their daemon ends each time that it loads.
//! Like members that do not answer, they are voted out in the end, so that the others serve.
use std::time::Duration;

use common::{fault::FaultKind, ids::MemberIndex};
use protocol::recovery::Committed;

use super::{
    Decision, PAUSE, Rules, Steward, View,
    decide::{FailingMember, decide},
    view::{CANNOT_LOAD, NO_MODEL},
};

/// Failures in a row until a member counts as failing: one may be the effect of a restart.
const FAILURES_MIN: u32 = 3;
/// Most characters of the fault in the reason of an exclusion, which is at most 200 bytes long.
const CAUSE_LENGTH: usize = 150;

/// What a member because of which attempts to bring the topology up have failed has done so far.
#[derive(Debug)]
pub(super) struct Failing {
    since: Duration,
    latest: Duration,
    failures: u32,
    reason: String,
}

impl Steward {
    /// A member could not compare its model file (`compares`) or load its shard.
    pub(super) fn member_failed(&mut self, name: &str, kind: &FaultKind, compares: bool) {
        // The others are about commands that cross each other.
        let is_own = matches!(
            kind,
            FaultKind::ModelMissing { .. }
                | FaultKind::ModelInvalid { .. }
                | FaultKind::ModelDiffers { .. }
                | FaultKind::ContentDiffers { .. }
                | FaultKind::MemoryShort { .. }
                | FaultKind::ExpertsFitOnDisk { .. }
                | FaultKind::Internal { .. }
                | FaultKind::SessionLost { .. }
                | FaultKind::Unreachable { .. }
                | FaultKind::Timeout { .. }
        );
        if !is_own {
            return;
        }
        let cause: String = kind.to_string().chars().filter(|one| !one.is_control()).collect();
        let cause = &cause[..cause.floor_char_boundary(CAUSE_LENGTH)];
        let reason = format!("{}: {cause}", if compares { NO_MODEL } else { CANNOT_LOAD });
        let failing = self.failing.entry(name.into()).or_insert(Failing {
            since: self.now,
            latest: self.now,
            failures: 0,
            reason: String::new(),
        });
        failing.failures = failing.failures.saturating_add(1);
        (failing.latest, failing.reason) = (self.now, reason);
    }

    /// A member has loaded its shard. If it could not before, the pause between attempts is short again.
    pub(super) fn member_loaded(&mut self, name: &str) {
        if self.failing.remove(name).is_some() {
            self.pause = PAUSE;
        }
    }

    /// The decision to leave out a member that fails. Without one, or if the others cannot serve without it, the attempts
    /// with all members go on.
    pub(super) fn without_failing(
        &self,
        own: MemberIndex,
        base: &Committed,
        views: &[View],
        rules: Rules<'_>,
    ) -> Option<Decision> {
        let failing = self.failing(base)?;
        let decision = decide(own, base, views, &Rules { failing: Some(failing), ..rules });
        Some(decision).filter(|decision| matches!(decision, Decision::Propose { .. }))
    }

    /// The member that failed last, if it has failed for longer than members may be away.
    fn failing(&self, base: &Committed) -> Option<FailingMember<'_>> {
        let patience = self.settings.recovery.exclude_after?;
        let (name, last) = self.failing.iter().max_by_key(|entry| entry.1.latest)?;
        let place = base.topology.members.iter().position(|member| member.name == *name)?;
        let is_overdue = last.failures >= FAILURES_MIN && last.latest >= last.since + patience;
        is_overdue.then_some(FailingMember { member: MemberIndex(place as u16), reason: &last.reason })
    }
}
