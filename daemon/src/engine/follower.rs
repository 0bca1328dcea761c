//! A rank that is not the head: follows plans, answers the sampler's questions, waits in between. A token allocates nothing.
use std::time::Instant;

use shared::{
    ids::Rank,
    protocol::frame::{FrameHeader, FrameKind},
    units::Nanoseconds,
};

use super::{
    plan::Plan,
    sample::{Query, Summary},
    step::{Candidates, EngineError, Stepper},
};
use crate::collective::accounting::Span;

const HEAD: Rank = Rank(0);

/// A rank that follows; keeps its buffers.
#[derive(Debug)]
pub struct Follower {
    stepper: Stepper,
    plan: Plan,
    summaries: Vec<Summary>,
    payload: Vec<u8>,
}

impl Follower {
    /// A follower without sequences.
    pub fn new(stepper: Stepper) -> Self {
        Self { stepper, plan: Plan::default(), summaries: Vec::new(), payload: Vec::new() }
    }

    /// Gives the rank back, links and all.
    pub fn into_stepper(self) -> Stepper {
        self.stepper
    }

    /// Follows the head until the wait is aborted.
    ///
    /// # Errors
    /// Anything that ends the topology; an abort too.
    pub fn follow(&mut self) -> Result<(), EngineError> {
        loop {
            let group = &mut self.stepper.group;
            let compute = group.accounting.compute_so_far();
            let sent = Instant::now();
            let links = group.links().expect("a follower has a head");
            links.wait_for(std::iter::once(HEAD))?;
            let arrived = Instant::now();
            let (header, payload) = links.front_any(HEAD);
            let slowest = (Nanoseconds(header.compute_ns), HEAD);
            let span = Span { compute, slowest, last: (HEAD, Nanoseconds(0)), sent, arrived };
            match header.kind {
                FrameKind::Plan => {
                    self.plan.decode(payload)?;
                    links.consume(HEAD)?;
                    group.begin_step(header.step);
                    if self.plan.continues {
                        group.accounting.close(span);
                    } else {
                        group.accounting.idle();
                    }
                    group.accounting.begin_step(self.plan.is_prefill, self.plan.entries.len() as u32);
                    self.step()?;
                }
                FrameKind::Query => {
                    let query = Query::decode(payload)?;
                    links.consume(HEAD)?;
                    group.accounting.close(span);
                    self.answer(header, &query)?;
                }
                kind => return Err(EngineError::Message(kind)),
            }
        }
    }

    fn step(&mut self) -> Result<(), EngineError> {
        self.stepper.step(&self.plan, &mut self.summaries)?;
        if self.summaries.is_empty() {
            return Ok(());
        }
        let group = &mut self.stepper.group;
        let totals = group.accounting.take_totals();
        self.payload.clear();
        Candidates::encode(&totals, &self.summaries, &mut self.payload);
        let sequence = group.next_sequence();
        group.send(HEAD, FrameKind::Candidates, sequence, &self.payload)?;
        Ok(())
    }

    fn answer(&mut self, header: FrameHeader, query: &Query) -> Result<(), EngineError> {
        let broken = EngineError::Message(FrameKind::Query);
        let answer = self.stepper.slice(query.place()).ok_or(broken)?.answer(query)?;
        self.payload.clear();
        answer.encode(&mut self.payload);
        self.stepper.group.send(HEAD, FrameKind::Answer, header.sequence, &self.payload)?;
        Ok(())
    }
}
