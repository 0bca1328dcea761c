//! Effects of recovery: writes records to the disk before their answers are sent, and reports this node's standing.
use common::{ids::RequestId, limits::NAME_LENGTH_MAX, units::Bytes};
use protocol::{
    message::ResponseBody,
    noise::key::Role,
    recovery::{RecoveryAnswer, Slow, Standing},
};
use topology::Member;

use super::{Driver, Guest};
use crate::{
    health::memory,
    node::{SessionId, event::Record},
};

impl Driver {
    /// Writes records, then sends the answer. If a record cannot be written, logs a warning and answers with the fault;
    /// without an answer to send, the node continues.
    pub(super) async fn write(&mut self, records: Vec<Record>, then: Option<(SessionId, RequestId, ResponseBody)>) {
        let result = match records.is_empty() {
            true => Ok(()),
            false => self.keep(move |state| records.iter().try_for_each(|record| state.save(record))).await,
        };
        if let Err(fault) = &result {
            tracing::warn!("{fault}: a restart would lose this record; free space or repair the disk");
        }
        if let Some((session, id, body)) = then {
            let body = result.map_or_else(ResponseBody::Failed, |()| body);
            self.respond(session, id, body).await;
        }
    }

    /// Reports this node's standing, and stores the address at which the caller listens.
    pub(super) async fn standing(&mut self, session: SessionId, id: RequestId, caller: Option<(String, String)>) {
        if let (Some((name, address)), Some(outbox)) = (caller, self.sessions.get(&session)) {
            let members = self.node.committed().map_or(&[][..], |committed| &committed.topology.members);
            if is_member(&outbox.guest, &name, members) && address.len() <= NAME_LENGTH_MAX {
                self.heard.retain(|name, _| members.iter().any(|member| member.name == *name));
                self.heard.insert(name, address);
            }
        }
        let (slow, busy) = (self.slow(), self.busy());
        let (node, free) = (&self.node, memory::available());
        let free = match (self.config.memory_max, &self.config.paced) {
            // A paced node needs no memory for weights: only its configured limit counts. 0 would mean unknown.
            (most, Some(_)) => most.unwrap_or(0),
            (most, None) => most.unwrap_or(u64::MAX).min(free.0 + node.shard().0),
        };
        let standing = Standing {
            name: self.config.name.clone(),
            instance: self.instance,
            state: node.state(),
            epoch: node.epoch(),
            committed: node.committed().cloned(),
            accepted: node.has_accepted(),
            forgets: node.forgets(),
            free: Bytes(free),
            shard: node.shard(),
            supervised: self.config.supervised,
            takes_over: node.takes_over(),
            exclusions: node.exclusions().clone(),
            rolling: node.rolling().cloned(),
            heard: self.heard.iter().map(|(name, address)| (name.clone(), address.clone())).collect(),
            slow,
            busy,
            trouble: self.watching.health.cause().map(|warning| warning.to_string()),
        };
        let body = ResponseBody::Recovery(RecoveryAnswer::Standing(Box::new(standing)));
        self.respond(session, id, body).await;
    }

    /// Share of its time that this node computes, in thousandths, from its recent all-reduces.
    fn busy(&mut self) -> Option<u16> {
        let Some(running) = &self.running else { return None };
        let (cursor, part) = self.balance.part(running.run, self.started.elapsed())?;
        running.ring.read_since(cursor, |record| part.add(record));
        self.balance.busy()
    }

    /// The rank without which this node would be faster, from its all-reduces so far.
    fn slow(&mut self) -> Option<Slow> {
        let Some(running) = &self.running else { return None };
        let (cursor, part) = self.slowness.part(running.run, self.started.elapsed())?;
        running.ring.read_since(cursor, |record| part.add(record));
        let (topology, _, member) = self.node.topology()?;
        self.slowness.slow(topology.layout.place(member).group.len() as u16)
    }
}

/// Whether a caller may announce its address: only a node, for itself, and as a member of the topology that this node
/// holds. Otherwise any client could make nodes dial arbitrary addresses.
fn is_member(guest: &Guest, name: &str, members: &[Member]) -> bool {
    matches!(guest.role, None | Some(Role::Node))
        && guest.name == name
        && members.iter().any(|member| member.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::topology;

    #[test]
    fn only_members_announce_only_their_own_address() {
        let members = topology(2).members;
        let guest = |role, name: &str| Guest { role, name: name.into() };
        for role in [None, Some(Role::Node)] {
            assert!(is_member(&guest(role, "pi2"), "pi2", &members));
        }
        for role in [Role::Viewer, Role::Operator, Role::Owner] {
            assert!(!is_member(&guest(Some(role), "pi2"), "pi2", &members), "{role}");
        }
        assert!(!is_member(&guest(Some(Role::Node), "pi1"), "pi2", &members), "of another node");
        assert!(!is_member(&guest(Some(Role::Node), "pi9"), "pi9", &members), "no member");
    }
}
