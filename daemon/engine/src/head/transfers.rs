//! Disaggregated prefill on the head of a group with a role: has prompts computed by other groups, or computes prompts
//! for them.
use common::{limits::KV_BLOCK_LENGTH, units::Nanoseconds};
use protocol::{across::Across, frame::FrameKind};

use crate::transfer::{
    TransferId, TransferOrder, TransferStatus,
    requested::{Ended, TransferEnd},
};
use crate::{
    RequestKey,
    collective::CollectiveError,
    error::EngineError,
    head::Head,
    plan::Plan,
    port::{EngineEvent, ReplicaEvent, RequestEvent},
    scheduler::KvSource,
};

impl Head<'_> {
    /// Handles a message from the head of another group.
    pub fn across(&mut self, replica: u16, message: &Across) {
        let remote_prefill = &mut self.remote_prefill;
        if !remote_prefill.is_on() {
            return;
        }
        match message {
            Across::Beat(_) => {}
            Across::Ask(ask) => {
                if !remote_prefill.served.take(&mut self.scheduler, &self.limits, replica, ask) {
                    self.tell_group(replica, Across::Refused { transfer: ask.transfer });
                }
            }
            Across::Cancel { transfer } => {
                let orders = remote_prefill.served.cancel(&mut self.scheduler, replica, Some(*transfer));
                remote_prefill.ending.extend(orders);
            }
            Across::Done { transfer, queued, compute } => {
                remote_prefill.requested.done(replica, *transfer, (*queued, *compute));
            }
            Across::Refused { transfer } => self.give_up(TransferId(*transfer), TransferEnd::Refused),
        }
    }

    /// Handles the loss of another group.
    pub fn across_lost(&mut self, replica: u16) {
        let remote_prefill = &mut self.remote_prefill;
        let orders = remote_prefill.served.cancel(&mut self.scheduler, replica, None);
        remote_prefill.ending.extend(orders);
        for transfer in remote_prefill.requested.lose(replica) {
            self.give_up(transfer, TransferEnd::GroupLost);
        }
    }

    /// Computes the prompt locally after all.
    fn give_up(&mut self, transfer: TransferId, why: TransferEnd) {
        let Some(ended) = self.end_transfer(transfer, why) else { return };
        tracing::info!(?why, "prefill group {} is unavailable; computing the prompt locally", ended.replica);
        self.scheduler.resume_with_kv(ended.slot, 0);
    }

    /// Ends a transfer without its keys and values, here and in the prefill group.
    fn end_transfer(&mut self, transfer: TransferId, why: TransferEnd) -> Option<Ended> {
        let (ended, message) = self.remote_prefill.requested.give_up(transfer, why)?;
        self.remote_prefill.ending.push(TransferOrder::End { transfer, replica: ended.replica });
        if let Some(message) = message {
            self.tell_group(ended.replica, message);
        }
        Some(ended)
    }

    /// Cancels the transfer of a request that ends.
    pub(crate) fn cancel_transfer(&mut self, key: RequestKey) {
        if let Some(transfer) = self.remote_prefill.requested.of(key) {
            self.end_transfer(transfer, TransferEnd::Cancelled);
        }
    }

    /// Handles transfers between two steps.
    ///
    /// # Errors
    /// A peer of this group is lost.
    pub(crate) fn poll_transfers(&mut self) -> Result<(), EngineError> {
        if !self.remote_prefill.is_busy() {
            return Ok(());
        }
        let (requested, transfers) = (&self.remote_prefill.requested, &self.worker.transfers);
        let ended = requested.transfers().filter_map(|transfer| {
            if transfers.status(transfer) == TransferStatus::Failed {
                return Some((transfer, TransferEnd::Failed));
            }
            requested.is_late(transfer).then_some((transfer, TransferEnd::Late))
        });
        for (transfer, why) in ended.collect::<Vec<_>>() {
            self.give_up(transfer, why);
        }
        if let Some(transfer) = self.remote_prefill.requested.computed() {
            self.poll_transfer(transfer)?;
        }
        while let Some(order) = self.remote_prefill.ending.pop() {
            self.order(&order)?;
        }
        Ok(())
    }

    /// Polls this group's ranks for the status of a computed prompt; once all have received it, its sequence continues
    /// here.
    fn poll_transfer(&mut self, transfer: TransferId) -> Result<(), EngineError> {
        let TransferStatus::Arrived { bytes: own } = self.worker.transfers.status(transfer) else { return Ok(()) };
        while self.is_in_flight() {
            self.recv_tokens()?;
        }
        self.order(&TransferOrder::Tell { transfer })?;
        let (mut bytes, mut status, mut broken) = (own, TransferStatus::Arrived { bytes: own }, false);
        self.worker.group.collect(FrameKind::Transfer, |payload| match postcard::from_bytes(payload) {
            Ok(TransferStatus::Arrived { bytes: more }) => bytes += more,
            Ok(other) if status != TransferStatus::Failed => status = other,
            Ok(_) => {}
            Err(_) => broken = true,
        })?;
        if broken {
            return Err(EngineError::Message(FrameKind::Transfer));
        }
        match status {
            TransferStatus::Waiting => {}
            TransferStatus::Failed => self.give_up(transfer, TransferEnd::Failed),
            TransferStatus::Arrived { .. } => self.arrived(transfer, bytes)?,
        }
        Ok(())
    }

    fn arrived(&mut self, transfer: TransferId, bytes: u64) -> Result<(), EngineError> {
        let arrived = self.remote_prefill.requested.arrived(transfer, bytes);
        let Some((ended, tokens, times)) = arrived else { return Ok(()) };
        self.order(&TransferOrder::End { transfer, replica: ended.replica })?;
        if let Some(times_of) = self.times(ended.key) {
            times_of.transfer = times;
        }
        self.scheduler.resume_with_kv(ended.slot, tokens);
        Ok(())
    }

    /// Asks for the keys and values of requests that got their slots and wait for them.
    ///
    /// # Errors
    /// A peer of this group is lost.
    pub(crate) fn dispatch_awaited(&mut self) -> Result<(), EngineError> {
        while let Some(remote) = self.scheduler.next_awaited() {
            if let KvSource::Store { tokens } = remote.source {
                self.dispatch_load(&remote, tokens)?;
                continue;
            }
            let now = self.since_received(remote.key);
            if let Some(times) = self.times(remote.key) {
                (times.dispatched, times.cached_tokens) = (now, remote.first_block * KV_BLOCK_LENGTH as u32);
            }
            let tokens = self.scheduler.tokens(remote.slot);
            let before_last = &tokens[..tokens.len().saturating_sub(1)];
            let cached = remote.first_block as usize * KV_BLOCK_LENGTH;
            // After a prefix-cache hit, the rest of the prompt may be too short for a remote prefill.
            let is_long = before_last.len() >= cached.saturating_add(self.remote_prefill.least.max(1));
            let asked = is_long.then(|| self.remote_prefill.requested.ask(&remote, before_last)).flatten();
            let Some((order, replica, ask)) = asked else {
                self.scheduler.resume_with_kv(remote.slot, 0);
                continue;
            };
            self.order(&order)?;
            self.report(remote.key, RequestEvent::Dispatched);
            self.tell_group(replica, ask);
        }
        Ok(())
    }

    /// Before a plan, sends the ranks a `Send` order for each sequence in it that is computed for another group.
    pub(crate) fn announce_sends(&mut self, plan: &Plan) -> Result<(), EngineError> {
        for opened in &plan.opened {
            let Some(key) = self.scheduler.key(opened.slot) else { continue };
            if let Some(order) = self.remote_prefill.served.begin(key, opened.slot) {
                self.order(&order)?;
            }
        }
        Ok(())
    }

    /// Whether a computed prompt belongs to another group: then its completion is reported there, and no token is
    /// sampled.
    pub(crate) fn complete_for_group(&mut self, key: RequestKey) -> bool {
        let Some((replica, done)) = self.remote_prefill.served.end(&mut self.scheduler, key) else { return false };
        self.tell_group(replica, done);
        true
    }

    /// Whether keys and values may be on their way while no step runs.
    pub(crate) fn is_transferring(&self) -> bool {
        self.remote_prefill.is_busy() || self.loads.is_busy() || self.worker.is_moving()
    }

    /// Moves keys and values for a moment while there is no step to run.
    ///
    /// # Errors
    /// The wait was aborted.
    pub(crate) fn idle(&mut self) -> Result<(), EngineError> {
        if !self.worker.transfers.is_on() && !self.loads.is_busy() {
            return Ok(());
        }
        if self.worker.group.links().is_some_and(|links| links.abort().is_raised()) {
            return Err(CollectiveError::Aborted.into());
        }
        // Waiting for another group or a disk is no stall; a turn that waits for nothing is no progress. A grammar needs
        // no such turns: if no other sequence can run, a step waits until it is compiled.
        if self.is_transferring()
            && let Some(abort) = self.worker.group.abort()
        {
            abort.advance();
        }
        if !self.worker.move_arrived() {
            self.worker.transfers.sleep(None);
            self.worker.move_arrived();
        }
        Ok(())
    }

    /// Sends an order to all ranks of the group and executes it on this one.
    pub(super) fn order(&mut self, order: &TransferOrder) -> Result<(), EngineError> {
        let payload = postcard::to_stdvec(order).expect("an order holds only types that postcard encodes");
        self.tell_all(FrameKind::Transfer, &payload)?;
        if self.worker.execute(order) { Ok(()) } else { Err(EngineError::Message(FrameKind::Transfer)) }
    }

    /// Sends a message to the head of another group.
    fn tell_group(&self, replica: u16, message: Across) {
        (self.sink)(EngineEvent::Replica(ReplicaEvent::Across(replica, message)));
    }

    fn since_received(&self, key: RequestKey) -> Nanoseconds {
        self.received(key).map_or(Nanoseconds(0), |received| Nanoseconds(received.elapsed().as_nanos() as u64))
    }
}
