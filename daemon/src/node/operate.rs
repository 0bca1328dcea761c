//! Operator commands: restart this node, exclude and include nodes.
use common::{fault::FaultKind, ids::RequestId};
use protocol::message::ResponseBody;
use topology::{Exclusions, Member};

use super::{
    event::{Effect, ExclusionsKept, SessionId},
    machine::{Node, RESTART_CODE},
};

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
        let mut effects = vec![Effect::Respond { session, id, body: ResponseBody::Restarting }];
        effects.extend(self.terminate(self.now));
        effects
    }

    /// Stores a list of exclusions. It takes effect, and is answered, once it is on the disk; if it cannot be stored,
    /// nothing changes.
    pub(super) fn exclude(&mut self, session: SessionId, id: RequestId, list: &Exclusions) -> Vec<Effect> {
        if let Err(error) = list.check_after(&self.exclusions) {
            return self.refuse(session, id, FaultKind::Malformed { reason: error.to_string() });
        }
        let mut merged = self.exclusions.clone();
        if merged.merge(list) {
            vec![Effect::KeepExclusions { session, id, list: merged }]
        } else {
            vec![Effect::Respond { session, id, body: ResponseBody::Excluded }]
        }
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
        vec![Effect::Respond { session, id, body }]
    }

    /// Refuses a topology with an excluded member. A topology that forms `again` keeps its cordoned members.
    pub(super) fn check_members(&self, members: &[Member], again: bool) -> Result<(), FaultKind> {
        let out = members.iter().find_map(|member| self.exclusions.of(&member.name, &member.address));
        let out = out.filter(|entry| !(again && entry.is_cordon));
        match out {
            Some(entry) => Err(FaultKind::Excluded {
                member: entry.node.clone(),
                reason: entry.reason.clone().unwrap_or_default(),
                by: entry.by.clone(),
            }),
            None => Ok(()),
        }
    }
}
