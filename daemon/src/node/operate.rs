//! Operator commands: restart this node, exclude and include nodes.
use common::{
    fault::FaultKind,
    ids::RequestId,
    planted::{Planted, is_planted},
};
use protocol::message::ResponseBody;
use topology::{Exclusion, Exclusions, Member};

use super::{
    event::{ExclusionsKept, ReplyTo, SessionId},
    machine::{Node, RESTART_CODE},
    steward::BY_ITSELF,
};
use crate::node::effect::{DiskEffect, Effect, SessionEffect};

/// Lists of excluded nodes that may wait for the disk.
pub(super) const EXCLUSION_WRITES_MAX: usize = 64;

impl Node {
    /// Drains like after SIGTERM, then exits with [`RESTART_CODE`]. Refused without a supervisor.
    pub(super) fn restart(&mut self, session: SessionId, id: RequestId) -> Vec<Effect> {
        if !self.supervised {
            return self.refuse(session, id, FaultKind::Unsupervised);
        }
        if self.draining.is_some() {
            return self.refuse(session, id, FaultKind::Draining);
        }
        self.exit_code = RESTART_CODE;
        let mut effects = vec![Effect::Session(SessionEffect::Respond { session, id, body: ResponseBody::Restarting })];
        effects.extend(self.terminate(self.now));
        effects
    }

    /// Stores a list of exclusions. It takes effect, and is answered, once it is on the disk; if it cannot be stored,
    /// nothing changes.
    pub(super) fn exclude(&mut self, to: ReplyTo, list: Exclusions) -> Vec<Effect> {
        let writes = &mut self.exclusion_writes;
        if writes.is_writing && writes.waiting.len() >= EXCLUSION_WRITES_MAX {
            let what = "lists of excluded nodes that wait for the disk".into();
            return self.refuse(to.session, to.id, FaultKind::Full { what, limit: EXCLUSION_WRITES_MAX as u32 });
        }
        writes.waiting.push_back((to, list));
        self.write_exclusions()
    }

    /// Answers waiting lists that change nothing, and writes the first one that does.
    fn write_exclusions(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        while !self.exclusion_writes.is_writing
            && let Some((to, list)) = self.exclusion_writes.waiting.pop_front()
        {
            let ReplyTo { session, id } = to;
            let mut merged = self.exclusions.clone();
            if let Err(error) = list.check_after(&self.exclusions) {
                effects.extend(self.refuse(session, id, FaultKind::Malformed { reason: error.to_string() }));
            } else if merged.merge(&list) {
                if is_planted(Planted::ExclusionBeforeDisk) {
                    self.exclusions = merged.clone();
                }
                self.exclusion_writes.is_writing = true;
                effects.push(Effect::Disk(DiskEffect::KeepExclusions { session, id, list: merged }));
            } else {
                effects.push(Effect::respond(to, ResponseBody::Excluded));
            }
        }
        effects
    }

    /// A list of exclusions was written to the disk, or could not be.
    pub(super) fn exclusions_kept(&mut self, kept: ExclusionsKept) -> Vec<Effect> {
        let ExclusionsKept { session, id, list, result } = kept;
        let body = match result {
            Ok(()) => {
                self.exclusions.merge(&list);
                ResponseBody::Excluded
            }
            Err(fault) => ResponseBody::Failed(fault),
        };
        let mut effects = vec![Effect::respond(ReplyTo { session, id }, body)];
        self.exclusion_writes.is_writing = false;
        effects.extend(self.write_exclusions());
        effects
    }

    /// Refuses a topology with an excluded member. A topology that forms `again` keeps its cordoned members and those
    /// that nodes excluded: its members have voted for it since, but this node's disk may have been full at that time.
    pub(super) fn check_members(&self, members: &[Member], again: bool) -> Result<(), FaultKind> {
        self.check_entries(members, |entry| again && (entry.is_cordon || entry.by.ends_with(BY_ITSELF)))
    }

    /// Refuses requests to a replica with a member that an operator excluded or cordoned. If nodes excluded a member, a
    /// vote ends its replica; until then it serves.
    pub(super) fn check_replica(&self, members: &[Member]) -> Result<(), FaultKind> {
        self.check_entries(members, |entry| entry.by.ends_with(BY_ITSELF))
    }

    fn check_entries(&self, members: &[Member], stays: impl Fn(&Exclusion) -> bool) -> Result<(), FaultKind> {
        // A member may have several entries: that of an operator by its address, that of nodes by its name.
        let mut entries = self
            .exclusions
            .out()
            .filter(|entry| members.iter().any(|member| entry.node == member.name || entry.node == member.address));
        match entries.find(|entry| !stays(entry) && !is_planted(Planted::ExcludedServes)) {
            Some(entry) => Err(FaultKind::Excluded {
                member: entry.node.clone(),
                reason: entry.reason.clone().unwrap_or_default(),
                by: entry.by.clone(),
            }),
            None => Ok(()),
        }
    }
}
