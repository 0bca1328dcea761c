//! What a head of a group with a role does beside its own requests: has prompts computed elsewhere, or computes them for others.
use shared::{
    protocol::{across::Across, frame::FrameKind},
    topology::spec::KV_BLOCK_LENGTH,
    units::Nanoseconds,
};

use super::{Order, Partners, Standing, TransferId, asking::Asking, computing::Computing};
use crate::{
    collective::CollectiveError,
    engine::{RequestKey, head::Head, plan::Plan, step::EngineError},
    node::Progress,
};

/// The other groups, as the head of a group knows them.
#[derive(Debug)]
pub struct Elsewhere {
    asking: Asking,
    computing: Computing,
    /// Prompts of at least so many tokens are computed elsewhere.
    least: usize,
    /// Transfers that are over and of which the ranks do not know yet.
    ending: Vec<Order>,
}

impl Elsewhere {
    /// The groups that are there at the beginning; `asks` on the head of a decode group.
    pub fn new(partners: &Partners, asks: bool) -> Self {
        let asking = Asking::new(if asks { &partners.replicas } else { &[] });
        Self { asking, computing: Computing::default(), least: partners.least, ending: Vec::new() }
    }

    /// Whether something is under way that needs no step.
    pub fn is_busy(&self) -> bool {
        self.asking.is_busy() || !self.ending.is_empty()
    }

    /// Whether a prompt is to be computed elsewhere: all tokens but the last, which gives the first logits here.
    pub fn takes(&self, tokens: usize) -> bool {
        tokens > self.least && self.asking.has_groups()
    }
}

impl Head<'_> {
    /// The head of another group says something.
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

    /// Another group is gone.
    pub fn across_lost(&mut self, replica: u16) {
        let Some(elsewhere) = &mut self.elsewhere else { return };
        let orders = elsewhere.computing.cancel(&mut self.scheduler, replica, None);
        elsewhere.ending.extend(orders);
        for transfer in elsewhere.asking.lose(replica) {
            self.give_up(transfer);
        }
    }

    /// The prompt is computed here after all.
    fn give_up(&mut self, transfer: TransferId) {
        let Some(elsewhere) = &mut self.elsewhere else { return };
        let Some(ended) = elsewhere.asking.give_up(transfer) else { return };
        tracing::info!("a prompt is computed here: group {} does not", ended.replica);
        elsewhere.ending.push(Order::End { transfer, replica: ended.replica });
        self.scheduler.come_back(ended.slot, 0);
    }

    /// A request ends: nothing is computed for it any more.
    pub(in crate::engine) fn forget_transfer(&mut self, key: RequestKey) {
        let Some(elsewhere) = &mut self.elsewhere else { return };
        let ended = elsewhere.asking.of(key).and_then(|transfer| elsewhere.asking.give_up(transfer));
        let Some(ended) = ended else { return };
        elsewhere.ending.push(Order::End { transfer: ended.transfer, replica: ended.replica });
        (self.sink)(Progress::Across(ended.replica, Across::Cancel { transfer: ended.transfer.0 }));
    }

    /// Looks after transfers between two steps.
    ///
    /// # Errors
    /// A peer of the own group is lost.
    pub(in crate::engine) fn attend(&mut self) -> Result<(), EngineError> {
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

    /// Asks the own ranks how it stands with a prompt that is computed; once all hold it, its sequence goes on here.
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

    /// Asks for the prompts of requests that got their slots.
    ///
    /// # Errors
    /// A peer of the own group is lost.
    pub(in crate::engine) fn depart(&mut self) -> Result<(), EngineError> {
        while let Some(departure) = self.scheduler.departure() {
            let now = self.since_received(departure.key);
            if let Some(times) = self.times(departure.key) {
                (times.dispatched, times.cached_tokens) = (now, departure.first_block * KV_BLOCK_LENGTH as u32);
            }
            let tokens = self.scheduler.tokens(departure.slot);
            let before_last = &tokens[..tokens.len().saturating_sub(1)];
            let cached = departure.first_block as usize * KV_BLOCK_LENGTH;
            // What is left of a prompt whose beginning is here may be too little to ask for.
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

    /// Before a plan: the ranks hear of the sequences in it that are computed for others.
    pub(in crate::engine) fn announce(&mut self, plan: &Plan) -> Result<(), EngineError> {
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

    /// Whether what was computed was for another group: then that is told, and no token is wanted.
    pub(in crate::engine) fn is_for_others(&mut self, key: RequestKey) -> bool {
        let Some(elsewhere) = &mut self.elsewhere else { return false };
        let Some((replica, done)) = elsewhere.computing.end(&mut self.scheduler, key) else { return false };
        (self.sink)(Progress::Across(replica, done));
        true
    }

    /// Whether keys and values move though no step runs.
    pub(in crate::engine) fn is_transferring(&self) -> bool {
        self.elsewhere.as_ref().is_some_and(Elsewhere::is_busy)
            || self.stepper.transfers.as_ref().is_some_and(super::Transfers::is_busy)
    }

    /// No step is to be run: a moment for keys and values to move.
    ///
    /// # Errors
    /// Waits are to end.
    pub(in crate::engine) fn rest(&mut self) -> Result<(), EngineError> {
        let Some(transfers) = &mut self.stepper.transfers else { return Ok(()) };
        if let Some(links) = self.stepper.group.links() {
            if links.abort().is_raised() {
                return Err(CollectiveError::Aborted.into());
            }
            // It waits for another group, which its own must not take for a stall.
            links.abort().set_waiting(true);
        }
        transfers.sleep(None);
        transfers.step(self.stepper.model.cache());
        Ok(())
    }

    /// Tells all ranks of the group, this one too.
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
