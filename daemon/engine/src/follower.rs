//! A rank other than the head: follows the plans of its stage's leader, or of the head if it is the leader itself;
//! answers the sampler's queries, or samples if it leads the last stage. No allocation per token.
use std::time::Instant;

use common::{ids::Rank, units::Nanoseconds};
use protocol::frame::{FrameHeader, FrameKind};

use super::{
    error::EngineError,
    plan::Plan,
    sample::{Query, Summary},
    sampler::Sampler,
    step_latency::ROWS_MAX,
    transfer::TransferOrder,
    worker::{CandidatesMessage, Worker},
};
use crate::{
    collective::{SlowestRank, timing::ExchangeTiming},
    kv_store::StoreOrder,
};

const HEAD: Rank = Rank(0);

/// A rank that follows plans; reuses its buffers.
#[derive(Debug)]
pub struct Follower {
    worker: Worker,
    plan: Plan,
    sampler: Sampler,
    summaries: Vec<Summary>,
    payload: Vec<u8>,
}

impl Follower {
    /// Creates a follower without sequences.
    pub fn new(worker: Worker) -> Self {
        let (plan, sampler) = (Plan::default(), Sampler::default());
        // Reserved for the most rows with logits that a step may have.
        let summaries = Vec::with_capacity(ROWS_MAX);
        let payload = Vec::with_capacity(ROWS_MAX * Summary::BYTES_MAX);
        Self { worker, plan, sampler, summaries, payload }
    }

    /// Returns the rank together with its links.
    pub fn into_worker(self) -> Worker {
        self.worker
    }

    /// The rank whose plans it follows.
    fn leader(&self) -> Rank {
        let leader = self.worker.place.leader();
        if leader == self.worker.place.rank { HEAD } else { leader }
    }

    /// Follows until the wait is aborted.
    ///
    /// # Errors
    /// Anything that ends the topology; an abort too.
    pub fn follow(&mut self) -> Result<(), EngineError> {
        let (leader, is_pipeline) = (self.leader(), self.worker.place.stages > 1);
        loop {
            let group = &mut self.worker.group;
            let compute = group.timing.compute_so_far();
            let sent = Instant::now();
            self.worker.move_transfers(leader)?;
            let group = &mut self.worker.group;
            let links = group.links().expect("a follower has a leader");
            links.wait_for(std::iter::once(leader))?;
            let arrived = Instant::now();
            let last = links.last_arrival();
            let (header, payload) = links.front_any(leader);
            let slowest = SlowestRank { compute: Nanoseconds(header.compute_ns), rank: leader };
            let span = ExchangeTiming { compute, slowest, last, sent, arrived };
            match header.kind {
                kind @ (FrameKind::Plan | FrameKind::Draft) => {
                    self.plan.decode(payload)?;
                    self.payload.clear();
                    self.payload.extend_from_slice(payload);
                    links.consume(leader)?;
                    group.begin_step(header.step);
                    match (self.plan.continues, is_pipeline) {
                        (false, _) => group.timing.idle(),
                        (true, true) => group.timing.close_bubble(compute, sent, arrived),
                        (true, false) => group.timing.close_plan(span),
                    }
                    if kind == FrameKind::Draft {
                        group.timing.begin_draft(self.plan.entries.len() as u32);
                        self.worker.draft_step(&self.plan, &mut self.summaries)?;
                        self.send_candidates()?;
                        continue;
                    }
                    group.timing.begin_step(self.plan.is_prefill, self.plan.entries.len() as u32);
                    self.step()?;
                }
                FrameKind::Query => {
                    let query = Query::decode(payload)?;
                    links.consume(leader)?;
                    group.timing.close(span);
                    self.answer(header, &query)?;
                }
                FrameKind::Transfer => {
                    let order = postcard::from_bytes(payload);
                    self.payload.clear();
                    self.payload.extend_from_slice(payload);
                    links.consume(leader)?;
                    group.catch_up(header.step);
                    group.timing.idle();
                    self.execute(&order.map_err(|_| EngineError::Message(FrameKind::Transfer))?)?;
                }
                // Sent between steps, while no request runs; only the head's stage is benchmarked.
                FrameKind::Tune if leader == self.worker.place.leader() => group.follow_order(leader, header.step)?,
                kind => return Err(EngineError::Message(kind)),
            }
        }
    }

    /// Executes a transfer order of the head; the leader of a stage forwards it.
    fn execute(&mut self, order: &TransferOrder) -> Result<(), EngineError> {
        let broken = || EngineError::Message(FrameKind::Transfer);
        let place = &self.worker.place;
        if place.leader() == place.rank {
            self.worker.group.tell(FrameKind::Transfer, 0, &self.payload)?;
        }
        if !self.worker.execute(order) {
            return Err(broken());
        }
        self.worker.move_arrived();
        let Worker { transfers, store, .. } = &self.worker;
        let status = match order {
            TransferOrder::Tell { transfer } => postcard::to_stdvec(&transfers.status(*transfer)),
            TransferOrder::Store(StoreOrder::Tell { load }) => postcard::to_stdvec(&store.status(*load)),
            _ => return Ok(()),
        };
        self.worker.group.send(HEAD, FrameKind::Transfer, 0, &status.map_err(|_| broken())?)?;
        Ok(())
    }

    fn step(&mut self) -> Result<(), EngineError> {
        let place = &self.worker.place;
        if place.leader() != place.rank {
            return self.follow_step();
        }
        let is_last = place.is_last_stage();
        self.worker.group.tell(FrameKind::Plan, 0, &self.payload)?;
        if !is_last {
            return self.worker.step(&self.plan, &mut self.summaries);
        }
        if self.sampler.step(&mut self.worker, &self.plan)? {
            self.payload.clear();
            self.sampler.sampled.encode(&mut self.payload);
            self.worker.group.send(HEAD, FrameKind::Drawn, 0, &self.payload)?;
        }
        Ok(())
    }

    fn follow_step(&mut self) -> Result<(), EngineError> {
        self.worker.step(&self.plan, &mut self.summaries)?;
        self.send_candidates()
    }

    /// Sends the summaries of a step to the leader, if it wants any.
    fn send_candidates(&mut self) -> Result<(), EngineError> {
        if self.summaries.is_empty() {
            return Ok(());
        }
        self.payload.clear();
        CandidatesMessage::encode(self.worker.take_totals(), &self.summaries, &mut self.payload);
        let (leader, sequence) = (self.leader(), self.worker.group.next_sequence());
        self.worker.group.send(leader, FrameKind::Candidates, sequence, &self.payload)?;
        Ok(())
    }

    fn answer(&mut self, header: FrameHeader, query: &Query) -> Result<(), EngineError> {
        let broken = EngineError::Message(FrameKind::Query);
        let answer = self.worker.slice(query.place()).ok_or(broken)?.answer(query)?;
        self.payload.clear();
        answer.encode(&mut self.payload);
        self.worker.group.send(self.leader(), FrameKind::Answer, header.sequence, &self.payload)?;
        Ok(())
    }
}
