//! Members that answer but cannot load their shard, for example because their disk cannot be read. Like members that do
//! not answer, they are voted out in the end, so that the others serve.
use std::time::Duration;

use common::{
    fault::FaultKind,
    ids::{Epoch, MemberIndex, TopologyHash},
};
use protocol::recovery::Committed;

use super::{
    Decision, PAUSE, Rules, Steward, View,
    decide::{FailingMember, decide},
    reasons::{CANNOT_LOAD, NO_MODEL, is_failing},
    view::exclusions,
};

/// The next step, in the reason of an exclusion that only an operator ends.
const REPAIR: &str = "repair, then include it";
/// Failures in a row until a member counts as failing: one may be the effect of a restart.
const FAILURES_MIN: u32 = 3;
/// Most bytes of the fault in the reason of an exclusion, which is at most 200 bytes long.
const CAUSE_LENGTH: usize = 130;

/// The failures of one member in attempts to bring a topology up.
#[derive(Debug)]
pub(super) struct Failing {
    /// The topology.
    base: (Epoch, TopologyHash),
    since: Duration,
    latest: Duration,
    failures: u32,
    /// Why the member is to be excluded.
    reason: String,
}

/// The member that a vote leaves out because it fails. It is remembered until the topology is another one: an interrupted
/// vote is finished by another.
#[derive(Debug)]
pub(super) struct LeftOut {
    base: (Epoch, TopologyHash),
    name: String,
    reason: String,
}

impl Steward {
    /// A member could not compare its model file (`compares`) or load its shard.
    pub(super) fn member_failed(&mut self, base: &Committed, name: &str, kind: &FaultKind, compares: bool) {
        // The others are about commands that cross each other, and about members that are lost.
        let is_own = match kind {
            FaultKind::ModelMissing { .. }
            | FaultKind::ModelInvalid { .. }
            | FaultKind::ModelDiffers { .. }
            | FaultKind::ContentDiffers { .. }
            | FaultKind::StoreFailed { .. }
            | FaultKind::MemoryShort { .. }
            | FaultKind::ExpertsFitOnDisk { .. }
            | FaultKind::Internal { .. }
            // A disk that answers no read.
            | FaultKind::Timeout { .. } => true,
            // Earlier requests still wait for that disk.
            FaultKind::Full { .. } => self.failing.contains_key(name),
            _ => false,
        };
        let has_no_model = compares && !matches!(kind, FaultKind::Timeout { .. } | FaultKind::Full { .. });
        if !is_own {
            return;
        }
        let cause: String = kind.to_string().chars().filter(|one| !one.is_control()).collect();
        let cause = &cause[..cause.floor_char_boundary(CAUSE_LENGTH)];
        let reason =
            if has_no_model { format!("{NO_MODEL}: {cause}") } else { format!("{CANNOT_LOAD} ({REPAIR}): {cause}") };
        let before = self.failing.remove(name).filter(|before| before.base == base.name());
        let (since, failures) = before.map_or((self.now, 0), |before| (before.since, before.failures));
        let failures = failures.saturating_add(1);
        let failing = Failing { base: base.name(), since, latest: self.now, failures, reason };
        self.failing.insert(name.into(), failing);
    }

    /// A member has loaded its shard. If it could not before, the pause between attempts is short again.
    pub(super) fn member_loaded(&mut self, name: &str) {
        if self.failing.remove(name).is_some() {
            self.pause = PAUSE;
        }
        self.left_out.take_if(|out| out.name == name);
    }

    /// Remembers the member that a vote is to leave out because it fails.
    pub(super) fn leave_out(&mut self, base: &Committed, lost: &[(MemberIndex, String)]) {
        let failing = self.failing(base).map(|one| one.member);
        if let Some((member, reason)) = lost.iter().find(|one| Some(one.0) == failing) {
            let name = base.topology.members[member.index()].name.clone();
            self.left_out = Some(LeftOut { base: base.name(), name, reason: reason.clone() });
        }
    }

    /// Why the next topology has no place for a member, if it fails.
    pub(super) fn why_left_out(&self, base: &Committed, name: &str) -> Option<&str> {
        let out = self.left_out.as_ref().filter(|out| out.base == base.name() && out.name == name)?;
        Some(&out.reason)
    }

    /// The decision to leave out a member that fails. Without one, or if the others cannot serve without it, the attempts
    /// with all members continue.
    pub(super) fn without_failing(
        &self,
        own: MemberIndex,
        base: &Committed,
        views: &[View],
        rules: Rules<'_>,
    ) -> Option<Decision> {
        // If a second member cannot load it either, the cause may be the model or the release.
        let list = exclusions(views.iter().filter_map(|view| view.standing.as_ref()));
        let members = &base.desired().members;
        if list.out().any(|entry| is_failing(entry) && members.iter().any(|member| member.name == entry.node)) {
            return None;
        }
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
        let is_current = is_overdue && last.base == base.name();
        is_current.then_some(FailingMember { member: MemberIndex(place as u16), reason: &last.reason })
    }
}
