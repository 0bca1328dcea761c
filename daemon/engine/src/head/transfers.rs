//! Disaggregated prefill on the head of a group with a role: has prompts computed by other groups, or computes prompts
//! for them.
use common::{limits::KV_BLOCK_LENGTH, units::Nanoseconds};
use protocol::{across::Across, frame::FrameKind};

use crate::transfer::{Elsewhere, Transfers};
use crate::transfer::{Order, Standing, TransferId};
use crate::{RequestKey, collective::CollectiveError, error::EngineError, head::Head, plan::Plan, port::Progress};

impl Head<'_> {
    /// Handles a message from the head of another group.
    pub fn across(&mut self, replica: u16, message: &Across) {
        let Some(elsewhere) = &mut self.elsewhere else { return };
        match message {
            Across::Beat(_) => {}
            Across::Ask(ask) => {
                if !elsewhere.computing.take(&mut self.scheduler, &self.limits, replica, ask) {
                    (self.sink)(Progress::Across(replica, Across::Refused { transfer: ask.transfer }));
                }
            }
            Across::Cancel { transfer } => {
                let orders = elsewhere.computing.cancel(&mut self.scheduler, replica, Some(*transfer));
                elsewhere.ending.extend(orders);
            }
            Across::Done { transfer, queued, compute } => {
                elsewhere.asking.done(replica, *transfer, (*queued, *compute));
            }
            Across::Refused { transfer } => self.give_up(TransferId(*transfer)),
        }
    }

    /// Handles the loss of another group.
    pub fn across_lost(&mut self, replica: u16) {
        let Some(elsewhere) = &mut self.elsewhere else { return };
        let orders = elsewhere.computing.cancel(&mut self.scheduler, replica, None);
        elsewhere.ending.extend(orders);
        for transfer in elsewhere.asking.lose(replica) {
            self.give_up(transfer);
        }
    }

    /// Computes the prompt locally after all.
    fn give_up(&mut self, transfer: TransferId) {
        let Some(elsewhere) = &mut self.elsewhere else { return };
        let Some(ended) = elsewhere.asking.give_up(transfer) else { return };
        tracing::info!("prefill group {} is unavailable; computing the prompt locally", ended.replica);
        elsewhere.ending.push(Order::End { transfer, replica: ended.replica });
        self.scheduler.come_back(ended.slot, 0);
    }

    /// Cancels the transfer of a request that ends.
    pub(crate) fn forget_transfer(&mut self, key: RequestKey) {
        let Some(elsewhere) = &mut self.elsewhere else { return };
        let ended = elsewhere.asking.of(key).and_then(|transfer| elsewhere.asking.give_up(transfer));
        let Some(ended) = ended else { return };
        elsewhere.ending.push(Order::End { transfer: ended.transfer, replica: ended.replica });
        (self.sink)(Progress::Across(ended.replica, Across::Cancel { transfer: ended.transfer.0 }));
    }

    /// Handles transfers between two steps.
    ///
    /// # Errors
    /// A peer of this group is lost.
    pub(crate) fn attend(&mut self) -> Result<(), EngineError> {
        if self.elsewhere.as_ref().is_none_or(|elsewhere| !elsewhere.is_busy()) {
            return Ok(());
        }
        let failed: Vec<TransferId> = match (&self.elsewhere, &self.stepper.transfers) {
            (Some(elsewhere), Some(transfers)) => {
                let fails = |transfer: &TransferId| {
                    transfers.standing(*transfer) == Standing::Failed || elsewhere.asking.is_late(*transfer)
                };
                elsewhere.asking.transfers().filter(fails).collect()
            }
            _ => Vec::new(),
        };
        for transfer in failed {
            self.give_up(transfer);
        }
        let computed = self.elsewhere.as_ref().and_then(|elsewhere| elsewhere.asking.computed());
        if let Some(transfer) = computed {
            self.look(transfer)?;
        }
        while let Some(order) = self.elsewhere.as_mut().and_then(|elsewhere| elsewhere.ending.pop()) {
            self.order(&order)?;
        }
        Ok(())
    }

    /// Polls this group's ranks for the status of a computed prompt; once all have received it, its sequence continues
    /// here.
    fn look(&mut self, transfer: TransferId) -> Result<(), EngineError> {
        let own = self.stepper.transfers.as_ref().map(|transfers| transfers.standing(transfer));
        let Some(Standing::Arrived { bytes: own }) = own else { return Ok(()) };
        while self.is_in_flight() {
            self.land()?;
        }
        self.order(&Order::Tell { transfer })?;
        let (mut bytes, mut standing, mut broken) = (own, Standing::Arrived { bytes: own }, false);
        self.stepper.group.collect(FrameKind::Transfer, |payload| match postcard::from_bytes(payload) {
            Ok(Standing::Arrived { bytes: more }) => bytes += more,
            Ok(other) if standing != Standing::Failed => standing = other,
            Ok(_) => {}
            Err(_) => broken = true,
        })?;
        if broken {
            return Err(EngineError::Message(FrameKind::Transfer));
        }
        match standing {
            Standing::Waiting => {}
            Standing::Failed => self.give_up(transfer),
            Standing::Arrived { .. } => self.arrived(transfer, bytes)?,
        }
        Ok(())
    }

    fn arrived(&mut self, transfer: TransferId, bytes: u64) -> Result<(), EngineError> {
        let arrived = self.elsewhere.as_mut().and_then(|elsewhere| elsewhere.asking.arrived(transfer, bytes));
        let Some((ended, tokens, times)) = arrived else { return Ok(()) };
        self.order(&Order::End { transfer, replica: ended.replica })?;
        if let Some(times_of) = self.times(ended.key) {
            times_of.transfer = times;
        }
        self.scheduler.come_back(ended.slot, tokens);
        Ok(())
    }

    /// Dispatches the remote prefills of requests that got their slots.
    ///
    /// # Errors
    /// A peer of this group is lost.
    pub(crate) fn depart(&mut self) -> Result<(), EngineError> {
        while let Some(departure) = self.scheduler.departure() {
            let now = self.since_received(departure.key);
            if let Some(times) = self.times(departure.key) {
                (times.dispatched, times.cached_tokens) = (now, departure.first_block * KV_BLOCK_LENGTH as u32);
            }
            let tokens = self.scheduler.tokens(departure.slot);
            let before_last = &tokens[..tokens.len().saturating_sub(1)];
            let cached = departure.first_block as usize * KV_BLOCK_LENGTH;
            // After a prefix-cache hit, the rest of the prompt may be too short for a remote prefill.
            let elsewhere = self.elsewhere.as_mut().filter(|it| before_last.len() >= cached + it.least.max(1));
            let asked = elsewhere.and_then(|elsewhere| elsewhere.asking.ask(&departure, before_last));
            let Some((order, replica, ask)) = asked else {
                self.scheduler.come_back(departure.slot, 0);
                continue;
            };
            self.order(&order)?;
            (self.sink)(Progress::Dispatched(departure.key));
            (self.sink)(Progress::Across(replica, ask));
        }
        Ok(())
    }

    /// Before a plan, sends the ranks a `Send` order for each sequence in it that is computed for another group.
    pub(crate) fn announce(&mut self, plan: &Plan) -> Result<(), EngineError> {
        if self.elsewhere.is_none() {
            return Ok(());
        }
        for opened in &plan.opened {
            let Some(key) = self.scheduler.key(opened.slot) else { continue };
            let order = self.elsewhere.as_mut().and_then(|elsewhere| elsewhere.computing.begin(key, opened.slot));
            if let Some(order) = order {
                self.order(&order)?;
            }
        }
        Ok(())
    }

    /// Whether a computed prompt belongs to another group: then its completion is reported there, and no token is
    /// sampled.
    pub(crate) fn is_for_others(&mut self, key: RequestKey) -> bool {
        let Some(elsewhere) = &mut self.elsewhere else { return false };
        let Some((replica, done)) = elsewhere.computing.end(&mut self.scheduler, key) else { return false };
        (self.sink)(Progress::Across(replica, done));
        true
    }

    /// Whether keys and values may be in transfer while no step runs.
    pub(crate) fn is_transferring(&self) -> bool {
        self.elsewhere.as_ref().is_some_and(Elsewhere::is_busy)
            || self.stepper.transfers.as_ref().is_some_and(Transfers::is_busy)
    }

    /// Moves keys and values for a moment while there is no step to run.
    ///
    /// # Errors
    /// The wait was aborted.
    pub(crate) fn rest(&mut self) -> Result<(), EngineError> {
        let Some(transfers) = &mut self.stepper.transfers else { return Ok(()) };
        if let Some(links) = self.stepper.group.links() {
            if links.abort().is_raised() {
                return Err(CollectiveError::Aborted.into());
            }
            // Waiting for another group must not look like a stall to this group's peers.
            links.abort().set_waiting(true);
        }
        transfers.sleep(None);
        transfers.step(self.stepper.model.cache());
        Ok(())
    }

    /// Sends an order to all ranks of the group and executes it on this one.
    fn order(&mut self, order: &Order) -> Result<(), EngineError> {
        let payload = postcard::to_stdvec(order).expect("an order holds only types that postcard encodes");
        self.tell_all(FrameKind::Transfer, &payload)?;
        let obeyed = self.stepper.transfers.as_mut().is_none_or(|transfers| transfers.obey(order));
        if obeyed { Ok(()) } else { Err(EngineError::Message(FrameKind::Transfer)) }
    }

    fn since_received(&self, key: RequestKey) -> Nanoseconds {
        self.received(key).map_or(Nanoseconds(0), |received| Nanoseconds(received.elapsed().as_nanos() as u64))
    }
}
