//! A rank other than the head: follows the plans of its stage's leader, or of the head if it is the leader itself;
//! answers the sampler's queries, or samples if it leads the last stage. No allocation per token.
use std::time::Instant;

use common::{ids::Rank, units::Nanoseconds};
use protocol::frame::{FrameHeader, FrameKind};

use super::{
    costs::ROWS_MAX,
    error::EngineError,
    plan::Plan,
    sample::{Query, Summary},
    sampler::Sampler,
    step::{Candidates, Stepper},
    transfer::Order,
};
use crate::collective::accounting::Span;

const HEAD: Rank = Rank(0);

/// A rank that follows plans; reuses its buffers.
#[derive(Debug)]
pub struct Follower {
    stepper: Stepper,
    plan: Plan,
    sampler: Sampler,
    summaries: Vec<Summary>,
    payload: Vec<u8>,
}

impl Follower {
    /// Creates a follower without sequences.
    pub fn new(stepper: Stepper) -> Self {
        let (plan, sampler) = (Plan::default(), Sampler::default());
        // Reserved for the most rows with logits that a step may have.
        let summaries = Vec::with_capacity(ROWS_MAX);
        let payload = Vec::with_capacity(ROWS_MAX * Summary::BYTES_MAX);
        Self { stepper, plan, sampler, summaries, payload }
    }

    /// Returns the rank together with its links.
    pub fn into_stepper(self) -> Stepper {
        self.stepper
    }

    /// The rank whose plans it follows.
    fn leader(&self) -> Rank {
        let leader = self.stepper.place.leader();
        if leader == self.stepper.place.rank { HEAD } else { leader }
    }

    /// Follows until the wait is aborted.
    ///
    /// # Errors
    /// Anything that ends the topology; an abort too.
    pub fn follow(&mut self) -> Result<(), EngineError> {
        let (leader, is_pipeline) = (self.leader(), self.stepper.place.stages > 1);
        loop {
            let group = &mut self.stepper.group;
            let compute = group.accounting.compute_so_far();
            let sent = Instant::now();
            self.stepper.move_transfers(leader)?;
            let group = &mut self.stepper.group;
            let links = group.links().expect("a follower has a leader");
            links.wait_for(std::iter::once(leader))?;
            let arrived = Instant::now();
            let (header, payload) = links.front_any(leader);
            let slowest = (Nanoseconds(header.compute_ns), leader);
            let span = Span { compute, slowest, last: (leader, Nanoseconds(0)), sent, arrived };
            match header.kind {
                FrameKind::Plan => {
                    self.plan.decode(payload)?;
                    self.payload.clear();
                    self.payload.extend_from_slice(payload);
                    links.consume(leader)?;
                    group.begin_step(header.step);
                    match (self.plan.continues, is_pipeline) {
                        (false, _) => group.accounting.idle(),
                        (true, true) => group.accounting.close_bubble(compute, sent, arrived),
                        (true, false) => drop(group.accounting.close(span)),
                    }
                    group.accounting.begin_step(self.plan.is_prefill, self.plan.entries.len() as u32);
                    self.step()?;
                }
                FrameKind::Query => {
                    let query = Query::decode(payload)?;
                    links.consume(leader)?;
                    group.accounting.close(span);
                    self.answer(header, &query)?;
                }
                FrameKind::Transfer => {
                    let order = postcard::from_bytes(payload);
                    self.payload.clear();
                    self.payload.extend_from_slice(payload);
                    links.consume(leader)?;
                    group.accounting.idle();
                    self.obey(&order.map_err(|_| EngineError::Message(FrameKind::Transfer))?)?;
                }
                // Sent between steps, while no request runs; only the head's stage is benchmarked.
                FrameKind::Tune if leader == self.stepper.place.leader() => group.follow_order(leader, header.step)?,
                kind => return Err(EngineError::Message(kind)),
            }
        }
    }

    /// Executes a transfer order of the head; the leader of a stage forwards it.
    fn obey(&mut self, order: &Order) -> Result<(), EngineError> {
        let broken = || EngineError::Message(FrameKind::Transfer);
        let place = &self.stepper.place;
        if place.leader() == place.rank {
            self.stepper.group.tell(FrameKind::Transfer, 0, &self.payload)?;
        }
        let transfers = self.stepper.transfers.as_mut().ok_or_else(broken)?;
        if !transfers.obey(order) {
            return Err(broken());
        }
        if let Order::Tell { transfer } = order {
            transfers.step(self.stepper.model.cache());
            let standing = postcard::to_stdvec(&transfers.standing(*transfer)).map_err(|_| broken())?;
            self.stepper.group.send(HEAD, FrameKind::Transfer, 0, &standing)?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), EngineError> {
        let place = &self.stepper.place;
        if place.leader() != place.rank {
            return self.follow_step();
        }
        let is_last = place.is_last_stage();
        self.stepper.group.tell(FrameKind::Plan, 0, &self.payload)?;
        if !is_last {
            return self.stepper.step(&self.plan, &mut self.summaries);
        }
        if self.sampler.step(&mut self.stepper, &self.plan)? {
            self.payload.clear();
            self.sampler.drawn.encode(&mut self.payload);
            self.stepper.group.send(HEAD, FrameKind::Drawn, 0, &self.payload)?;
        }
        Ok(())
    }

    fn follow_step(&mut self) -> Result<(), EngineError> {
        self.stepper.step(&self.plan, &mut self.summaries)?;
        if self.summaries.is_empty() {
            return Ok(());
        }
        self.payload.clear();
        Candidates::encode(self.stepper.take_totals(), &self.summaries, &mut self.payload);
        let (leader, sequence) = (self.leader(), self.stepper.group.next_sequence());
        self.stepper.group.send(leader, FrameKind::Candidates, sequence, &self.payload)?;
        Ok(())
    }

    fn answer(&mut self, header: FrameHeader, query: &Query) -> Result<(), EngineError> {
        let broken = EngineError::Message(FrameKind::Query);
        let answer = self.stepper.slice(query.place()).ok_or(broken)?.answer(query)?;
        self.payload.clear();
        answer.encode(&mut self.payload);
        self.stepper.group.send(self.leader(), FrameKind::Answer, header.sequence, &self.payload)?;
        Ok(())
    }
}
