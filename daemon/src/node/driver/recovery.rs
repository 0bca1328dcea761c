//! What recovery wants of the driver: records on the disk before their answers go out, and what this node holds for those who ask.
use shared::{
    ids::RequestId,
    protocol::{
        message::ResponseBody,
        recovery::{RecoveryAnswer, Slow, Standing},
    },
    topology::spec::{NAME_LENGTH_MAX, NODES_MAX},
    units::Bytes,
};

use super::Driver;
use crate::{
    health::memory,
    node::{SessionId, event::Record},
};

impl Driver {
    /// Writes records, then answers. What cannot be written is named; without an answer to give the node goes on without the record.
    pub(super) async fn write(&mut self, records: Vec<Record>, then: Option<(SessionId, RequestId, ResponseBody)>) {
        let result = match records.is_empty() {
            true => Ok(()),
            false => self.keep(move |state| records.iter().try_for_each(|record| state.save(record))).await,
        };
        if let Err(fault) = &result {
            tracing::warn!(
                "{fault}: after a restart this node knows less than it does now; make room or repair the disk"
            );
        }
        if let Some((session, id, body)) = then {
            let body = result.map_or_else(ResponseBody::Failed, |()| body);
            self.respond(session, id, body).await;
        }
    }

    /// Says what this node holds, and remembers where the caller listens.
    pub(super) async fn standing(&mut self, session: SessionId, id: RequestId, caller: Option<(String, String)>) {
        if let Some((name, address)) = caller
            && name.len().max(address.len()) <= NAME_LENGTH_MAX
            && (self.heard.len() < NODES_MAX || self.heard.contains_key(&name))
        {
            self.heard.insert(name, address);
        }
        let slow = self.slow();
        let (node, free) = (&self.node, memory::available());
        let free = self.config.memory_max.map_or(free.0 + node.shard().0, |most| most.min(free.0 + node.shard().0));
        let standing = Standing {
            name: self.config.name.clone(),
            instance: self.instance,
            state: node.state(),
            epoch: node.epoch(),
            committed: node.committed().cloned(),
            accepted: node.has_accepted(),
            free: Bytes(free),
            shard: node.shard(),
            supervised: self.config.supervised,
            takes_over: node.takes_over(),
            exclusions: node.exclusions().clone(),
            rolling: node.rolling().cloned(),
            heard: self.heard.iter().map(|(name, address)| (name.clone(), address.clone())).collect(),
            slow,
            trouble: self.watching.health.cause().map(|warning| warning.to_string()),
        };
        let body = ResponseBody::Recovery(RecoveryAnswer::Standing(Box::new(standing)));
        self.respond(session, id, body).await;
    }
    /// The rank that this node would be faster without, by its all-reduces up to now.
    fn slow(&mut self) -> Option<Slow> {
        let Some(running) = &self.running else { return None };
        let (cursor, part) = self.slowness.part(running.run, self.started.elapsed())?;
        running.ring.read_since(cursor, |record| part.add(record));
        let (topology, _, member) = self.node.topology()?;
        self.slowness.slow(topology.layout.place(member).group.len() as u16)
    }
}
