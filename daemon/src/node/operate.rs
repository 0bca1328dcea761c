//! What an operator does to nodes: restart this one, take any out or in again.
use shared::{
    ids::RequestId,
    protocol::{error::FaultKind, message::ResponseBody},
    topology::{Exclusions, Member},
};

use super::{
    event::{Effect, SessionId},
    machine::{Node, RESTART_CODE},
};

impl Node {
    /// Drains as after SIGTERM, then ends with [`RESTART_CODE`]. Refused where nothing would start it again.
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

    /// Takes in a list of exclusions; the answer comes when it is on the disk.
    pub(super) fn exclude(&mut self, session: SessionId, id: RequestId, list: &Exclusions) -> Vec<Effect> {
        if let Err(error) = list.check() {
            return self.refuse(session, id, FaultKind::Malformed { reason: error.to_string() });
        }
        if self.exclusions.merge(list) {
            vec![Effect::KeepExclusions { session, id, list: self.exclusions.clone() }]
        } else {
            vec![Effect::Respond { session, id, body: ResponseBody::Excluded }]
        }
    }

    /// Refuses a topology with a member that is out.
    pub(super) fn check_members(&self, members: &[Member]) -> Result<(), FaultKind> {
        let out = members.iter().find_map(|member| self.exclusions.of(&member.name, &member.address));
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
