//! Unloading a topology, at an operator's command or after some time without requests, and the other nodes of the cluster.
use std::collections::BTreeSet;

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
    tombstone::Tombstone,
};
use crate::node::effect::{DiskEffect, Effect, EngineEffect, PendingAnswer};

impl Node {
    /// The latest topology that was unloaded here, until another one is committed: its other members unload it, too.
    pub fn unloaded(&self) -> Option<(Epoch, TopologyHash)> {
        self.unloaded.map(|tombstone| tombstone.latest)
    }

    /// The topology that the last unload named, until another one is committed: the one that served. A vote may have
    /// chosen a later one, which had not begun to serve.
    pub fn named_unloaded(&self) -> Option<(Epoch, TopologyHash)> {
        self.unloaded.map(|tombstone| tombstone.named)
    }

    /// Whether a topology was unloaded here, or is the one that this node had accepted as the next of the unloaded one.
    pub(super) fn is_unloaded(&self, name: (Epoch, TopologyHash)) -> bool {
        let Some(Tombstone { named, latest }) = self.unloaded else { return false };
        let votes = self.voter.votes.as_ref().filter(|votes| self.committed.is_none() && votes.base.name() == latest);
        let accepted = votes.and_then(|votes| votes.accepted.as_ref());
        [named, latest].contains(&name) || accepted.is_some_and(|accepted| accepted.next.name() == name)
    }

    /// Keeps away a topology that was unloaded here. If a vote that this node took part in has chosen it since, members
    /// that hold it find here that it was unloaded.
    pub(super) fn learn_unloaded(&mut self, committed: Committed) -> Vec<Record> {
        let name = committed.name();
        match &mut self.unloaded {
            Some(tombstone) if ![tombstone.named, tombstone.latest].contains(&name) => tombstone.latest = name,
            _ => return Vec::new(),
        }
        vec![Record::Unloaded(Some(name)), self.votes_from(committed)]
    }

    /// Addresses of other nodes of the cluster.
    pub fn neighbours(&self) -> impl Iterator<Item = &String> {
        self.neighbours.addresses()
    }

    /// Never forgets these other nodes of the cluster: the settings name them.
    pub fn keep_neighbours(&mut self, configured: impl IntoIterator<Item = String>) {
        self.neighbours.keep(configured);
    }

    /// Seconds since the last request of this head ended, if its topology is unloaded after some.
    pub fn idle(&self) -> Option<u32> {
        let running = self.running.as_ref().filter(|running| running.assignment.place().is_head())?;
        running.assignment.topology.unload_after?;
        Some(running.requests.idle().as_secs() as u32)
    }

    /// Stops the engine of a topology, frees its memory and drops its record, so that no recovery brings it back. Ends
    /// the next topology as well, if a vote has chosen one and it is being loaded here. Other members that miss this
    /// learn it from this node's standing.
    pub(super) fn unload(&mut self, to: ReplyTo, unload: Unload) -> Vec<Effect> {
        let done = PendingAnswer { to, body: ResponseBody::Done };
        let is_named = |(epoch, hash): (Epoch, TopologyHash)| hash == unload.hash && epoch <= unload.epoch;
        let held = self.committed.clone().filter(|held| is_named(held.name()));
        if held.is_none() && self.unloaded.is_some_and(|one| is_named(one.named) || is_named(one.latest)) {
            return vec![Effect::Disk(DiskEffect::Write { records: Vec::new(), then: Some(done) })];
        }
        let held = match self.check_unload(unload, held) {
            Ok(held) => held,
            Err(kind) => return self.refuse(to.session, to.id, kind),
        };
        let mut effects = Vec::new();
        let fault = self.fault_here(FaultKind::NotServing { state: "unloaded".into() });
        if let Some(mut running) = self.running.take() {
            effects.extend(running.requests.fail_all(&fault));
            effects.push(Effect::Engine(EngineEffect::Stop(running.engine)));
        }
        // The node that brings up the topology, or the next one, waits for an answer.
        let next = self.open.as_ref().map(|open| open.assignment.committed());
        effects.extend(self.fail_open(fault));
        let latest = next.filter(|next| next.is_later_than(&held)).unwrap_or_else(|| held.clone());
        self.unloaded = Some(Tombstone { named: held.name(), latest: latest.name() });
        (self.committed, self.takes_over) = (None, false);
        let mut records = Vec::new();
        // Members that were away hold an earlier topology when they return. They learn this one, and unload it.
        if self.voter.votes.as_ref().is_none_or(|votes| latest.is_later_than(&votes.base)) {
            records.push(self.votes_from(latest));
        }
        records.extend([Record::Committed(None), Record::Unloaded(self.unloaded())]);
        effects.push(Effect::Disk(DiskEffect::Write { records, then: Some(done) }));
        effects
    }

    /// The topology to unload, if nothing prevents it.
    fn check_unload(&self, unload: Unload, held: Option<Committed>) -> Result<Committed, FaultKind> {
        if self.draining.is_some() {
            return Err(FaultKind::Draining);
        }
        let Some(held) = held else { return Err(FaultKind::NotServing { state: self.state().name().into() }) };
        if self.open.as_ref().is_some_and(|open| !open.again) {
            self.check_assigning()?;
        }
        match self.request_count() {
            count if unload.if_idle && count > 0 => Err(FaultKind::RequestsRun { count }),
            _ => Ok(held),
        }
    }

    /// Remembers addresses of other nodes of the cluster.
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
        let committed = self.committed.iter().flat_map(|one| [&one.topology, one.desired()]);
        let assigned = self.running.iter().map(|running| &running.assignment);
        let assigned = assigned.chain(self.open.iter().map(|open| &open.assignment));
        let topologies = committed.chain(assigned.map(|assignment| &assignment.topology));
        let members = topologies.flat_map(|topology| &topology.members);
        let members: BTreeSet<String> = members.map(|member| member.address.clone()).collect();
        let mut has_new = false;
        for address in addresses {
            has_new |= self.neighbours.remember(address, &members, self.now);
        }
        has_new.then(|| Record::Neighbours(self.neighbours.addresses().cloned().collect()))
    }
}
