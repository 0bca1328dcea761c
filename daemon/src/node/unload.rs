//! Unloading a topology, at an operator's command or after some time without requests, and the other nodes of the cluster.
use common::{
    fault::FaultKind,
    ids::{Epoch, TopologyHash},
    limits::NODES_MAX,
};
use protocol::{
    address::is_address,
    message::{ResponseBody, Unload},
    recovery::Committed,
};

use super::{
    event::{Record, ReplyTo},
    machine::Node,
};
use crate::node::effect::{DiskEffect, Effect, EngineEffect, PendingAnswer};

impl Node {
    /// The topology that was last unloaded here, until another one is committed.
    pub fn unloaded(&self) -> Option<(Epoch, TopologyHash)> {
        self.unloaded
    }

    /// Addresses of other nodes of the cluster.
    pub fn neighbours(&self) -> impl Iterator<Item = &String> {
        self.neighbours.iter()
    }

    /// Seconds since the last request of this head ended, if its topology is unloaded after some.
    pub fn idle(&self) -> Option<u32> {
        let running = self.running.as_ref().filter(|running| running.assignment.place().is_head())?;
        running.assignment.topology.unload_after?;
        Some(running.requests.idle().as_secs() as u32)
    }

    /// Stops the engine of a topology, frees its memory and drops its record, so that no recovery brings it back. Other
    /// members that miss this learn it from this node's standing.
    pub(super) fn unload(&mut self, to: ReplyTo, unload: Unload) -> Vec<Effect> {
        let done = PendingAnswer { to, body: ResponseBody::Done };
        let is_named = |(epoch, hash): (Epoch, TopologyHash)| hash == unload.hash && epoch <= unload.epoch;
        let name = self.committed.as_ref().map(Committed::name).filter(|name| is_named(*name));
        if name.is_none() && self.unloaded.is_some_and(is_named) {
            return vec![Effect::Disk(DiskEffect::Write { records: Vec::new(), then: Some(done) })];
        }
        if let Err(kind) = self.check_unload(unload, name.is_some()) {
            return self.refuse(to.session, to.id, kind);
        }
        let mut effects = Vec::new();
        if let Some(mut running) = self.running.take() {
            let fault = self.fault_here(FaultKind::NotServing { state: "unloaded".into() });
            effects.extend(running.requests.fail_all(&fault));
            effects.push(Effect::Engine(EngineEffect::Stop(running.engine)));
        }
        // It may be about to be brought up again.
        effects.extend(self.give_up());
        (self.committed, self.unloaded, self.takes_over) = (None, name, false);
        let records = vec![Record::Unloaded(self.unloaded), Record::Committed(None)];
        effects.push(Effect::Disk(DiskEffect::Write { records, then: Some(done) }));
        effects
    }

    fn check_unload(&self, unload: Unload, is_held: bool) -> Result<(), FaultKind> {
        if self.draining.is_some() {
            return Err(FaultKind::Draining);
        }
        if !is_held {
            return Err(FaultKind::NotServing { state: self.state().name().into() });
        }
        if self.open.as_ref().is_some_and(|open| !open.again) {
            self.check_assigning()?;
        }
        match self.request_count() {
            count if unload.if_idle && count > 0 => Err(FaultKind::RequestsRun { count }),
            _ => Ok(()),
        }
    }

    /// Remembers addresses of other nodes of the cluster; beyond the largest number of nodes, further ones are ignored.
    pub(super) fn meet(&mut self, to: ReplyTo, addresses: Vec<String>) -> Vec<Effect> {
        if addresses.len() > NODES_MAX || !addresses.iter().all(|address| is_address(address)) {
            let reason = format!("the neighbours are not at most {NODES_MAX} entries of the form ADDRESS:PORT");
            return self.refuse(to.session, to.id, FaultKind::Malformed { reason });
        }
        let records = self.remember(addresses).into_iter().collect();
        let then = Some(PendingAnswer { to, body: ResponseBody::Done });
        vec![Effect::Disk(DiskEffect::Write { records, then })]
    }

    /// The record with new neighbours, if there are any.
    pub(super) fn remember(&mut self, addresses: impl IntoIterator<Item = String>) -> Option<Record> {
        let before = self.neighbours.len();
        for address in addresses {
            if self.neighbours.len() < NODES_MAX {
                self.neighbours.insert(address);
            }
        }
        (self.neighbours.len() > before).then(|| Record::Neighbours(self.neighbours.iter().cloned().collect()))
    }
}
