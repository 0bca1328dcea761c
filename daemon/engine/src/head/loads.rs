//! Stored keys and values on the head: has the ranks read the beginnings of prompts, and continues behind what all have.
use common::{limits::KV_BLOCK_LENGTH, units::Nanoseconds};
use protocol::frame::FrameKind;

use super::Head;
use crate::{
    RequestKey,
    error::EngineError,
    kv_store::{LoadId, StoreOrder},
    port::RequestEvent,
    scheduler::{AwaitedPrompt, KvSource},
    transfer::TransferOrder,
};

impl Head<'_> {
    /// How many tokens at the beginning of a prompt are to be read from the disks; `None`: it is computed.
    pub(super) fn stored_beginning(&mut self, prompt: &[u32]) -> Option<KvSource> {
        let tokens = self.worker.store.stored(prompt);
        let missing = tokens.saturating_sub(self.scheduler.cached(prompt));
        let compute = self.scheduler.prompt_time(missing);
        self.loads.is_worth(missing, compute).then_some(KvSource::Store { tokens })
    }

    /// Has the ranks read the beginning of a prompt that got its slot.
    ///
    /// # Errors
    /// A peer of this group is lost.
    pub(super) fn dispatch_load(&mut self, prompt: &AwaitedPrompt, tokens: usize) -> Result<(), EngineError> {
        let wanted = &self.scheduler.tokens(prompt.slot)[..tokens];
        let missing = tokens.saturating_sub(prompt.first_block as usize * KV_BLOCK_LENGTH);
        let Some(order) = self.loads.begin(prompt, wanted, self.scheduler.prompt_time(missing)) else {
            self.scheduler.resume_with_kv(prompt.slot, 0);
            return Ok(());
        };
        if let Some(request) = self.requests.get_mut(&prompt.key) {
            request.times.dispatched = Nanoseconds(request.received.elapsed().as_nanos() as u64);
            request.is_loaded = true;
        }
        self.order(&TransferOrder::Store(order))?;
        self.report(prompt.key, RequestEvent::Dispatched);
        Ok(())
    }

    /// Handles loads between two steps.
    ///
    /// # Errors
    /// A peer of this group is lost.
    pub(super) fn poll_loads(&mut self) -> Result<(), EngineError> {
        let store = &self.worker.store;
        if let Some(load) = self.loads.due(|load| store.status(load)) {
            self.poll_load(load)?;
        }
        // Before the next plan: it may give the blocks and the state of an ended load to another sequence.
        while let Some(order) = self.loads.ending.pop() {
            self.order(&TransferOrder::Store(order))?;
        }
        Ok(())
    }

    /// Polls the ranks for the status of a load; once all have read their files, its sequence continues behind the last
    /// block that all have.
    fn poll_load(&mut self, load: LoadId) -> Result<(), EngineError> {
        while self.is_in_flight() {
            self.recv_tokens()?;
        }
        self.order(&TransferOrder::Store(StoreOrder::Tell { load }))?;
        let (mut status, mut broken) = (self.worker.store.status(load), false);
        self.worker.group.collect(FrameKind::Transfer, |payload| match postcard::from_bytes(payload) {
            Ok(other) => status = status.and(other),
            Err(_) => broken = true,
        })?;
        if broken {
            return Err(EngineError::Message(FrameKind::Transfer));
        }
        // Receiving tokens may have ended its request.
        let Some(ended) = self.loads.end(load, status) else { return Ok(()) };
        if let Some(times) = self.times(ended.key) {
            times.stored_tokens = ended.read as u32;
        }
        self.scheduler.resume_with_kv(ended.slot, ended.tokens);
        Ok(())
    }

    /// Forgets the load of a request that ends.
    pub(super) fn cancel_load(&mut self, key: RequestKey) {
        self.loads.cancel(key);
    }
}
