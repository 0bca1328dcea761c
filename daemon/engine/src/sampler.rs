//! Samples the tokens of a step on the first rank of the last stage, from the summaries of all ranks of that stage.
//! Reuses its buffers: no allocation per token.
use std::collections::BTreeMap;

use common::{ids::Slot, sampling::SamplingParameters, units::Nanoseconds};
use models::Pooling;
use protocol::frame::FrameKind;
use telemetry::RankTotals;

use super::{
    error::EngineError,
    model::Pooled,
    plan::{Plan, PlanEntry},
    sample::{Answer, Chooser, Chosen, SampleError, Step, Summary},
    step_latency::ROWS_MAX,
    worker::{CandidatesMessage, Worker},
};
use crate::worker::encode_totals;

/// Initial capacity of a query, in bytes.
const QUERY_ROOM: usize = 1024;

/// The tokens of a step, and the time accounting of every rank of the replica since the previous tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampledTokens {
    /// In the order of the plan's entries that want logits; of a slot's speculative tokens only those that follow
    /// accepted ones.
    pub tokens: Vec<(Slot, Chosen)>,
    /// Time accounting, by rank.
    pub totals: Vec<RankTotals>,
    /// Embeddings of prompts that ended, in the order of their slots' tokens.
    pub embeddings: Vec<(Slot, Vec<f32>)>,
    /// Time from the end of the layers until all tokens were sampled.
    pub sampling: Nanoseconds,
}

/// Samples a step's tokens on the first rank of the last stage.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Summaries of the latest step, rank by rank with this one first, one for each token that wants logits.
    summaries: Vec<Summary>,
    answers: Vec<Answer>,
    chooser: Chooser,
    payload: Vec<u8>,
    /// Embeddings in progress.
    pools: BTreeMap<Slot, Pooled>,
    /// Result of the latest step.
    pub sampled: SampledTokens,
}

impl Sampler {
    /// Runs one step on this rank and samples its tokens into `sampled`; false if no token is wanted.
    ///
    /// # Errors
    /// Any error that ends the topology.
    pub fn step(&mut self, worker: &mut Worker, plan: &Plan) -> Result<bool, EngineError> {
        self.summaries.reserve(ROWS_MAX * worker.place.group.len());
        worker.step(plan, &mut self.summaries)?;
        self.sampled.embeddings.clear();
        self.pool(worker, plan);
        self.sample(worker, plan)
    }

    /// Runs one step of the draft model on this rank and samples its tokens into `sampled`, each with the random number
    /// of its position; false if no token is wanted.
    ///
    /// # Errors
    /// Any error that ends the topology.
    pub fn draft(&mut self, worker: &mut Worker, plan: &Plan) -> Result<bool, EngineError> {
        self.summaries.reserve(ROWS_MAX * worker.place.group.len());
        worker.draft_step(plan, &mut self.summaries)?;
        self.sampled.embeddings.clear();
        self.sample(worker, plan)
    }

    /// Samples the tokens of a step from this rank's summaries and those of the others.
    fn sample(&mut self, worker: &mut Worker, plan: &Plan) -> Result<bool, EngineError> {
        self.sampled.tokens.clear();
        let count = self.summaries.len();
        if count == 0 {
            return Ok(false);
        }
        self.gather(worker)?;
        self.sampled.tokens.reserve(ROWS_MAX);
        let wanted = plan.entries.iter().filter(|entry| entry.wants_logits);
        let mut refused = None;
        for (place, entry) in wanted.enumerate() {
            // A second row of a slot is speculative, or one of its prompt, where the next token is always the one given: its logits count only if its token equals the one sampled before
            // it.
            let before = self.sampled.tokens.last().filter(|(slot, _)| *slot == entry.slot);
            if before.is_some_and(|(_, before)| before.id != entry.token) {
                refused = Some(entry.slot);
            }
            if refused == Some(entry.slot) {
                continue;
            }
            let chosen = self.choose(worker, place, count, entry)?;
            self.sampled.tokens.push((entry.slot, chosen));
        }
        self.sampled.sampling = worker.since_computed();
        Ok(true)
    }

    /// Adds the step's tokens to the embeddings that sequences want, and completes those whose prompts end.
    fn pool(&mut self, worker: &mut Worker, plan: &Plan) {
        plan.closed.iter().for_each(|slot| drop(self.pools.remove(slot)));
        let pooling = worker.model.shard().spec.pooling.unwrap_or(Pooling::Mean);
        for opened in plan.opened.iter().filter(|opened| opened.sampling.embeds) {
            self.pools.insert(opened.slot, Pooled::new(pooling));
        }
        if self.pools.is_empty() {
            return;
        }
        let mut begin = 0;
        for run in plan.entries.chunk_by(|one, next| one.slot == next.slot) {
            let (tokens, last) = (begin..begin + run.len(), run[run.len() - 1]);
            begin = tokens.end;
            let Some(pooled) = self.pools.get_mut(&last.slot) else { continue };
            worker.model.pool(tokens, pooled);
            let is_whole = worker.sequences.get(last.slot).is_some_and(|sequence| sequence.ends_prompt(last.position));
            if is_whole && let Some(pooled) = self.pools.remove(&last.slot) {
                self.sampled.embeddings.push((last.slot, worker.model.embedding(pooled)));
            }
        }
    }

    /// Collects the summaries and the time accounting of the stage's other ranks.
    fn gather(&mut self, worker: &mut Worker) -> Result<(), EngineError> {
        let Self { summaries, sampled: SampledTokens { totals, .. }, .. } = self;
        let (count, ranks, first) = (summaries.len(), worker.place.group.len(), worker.place.leader());
        totals.clear();
        totals.resize(usize::from(worker.place.stages) * ranks, RankTotals::default());
        let mut broken = None;
        let sequence = worker.group.next_sequence();
        worker.group.gather(FrameKind::Candidates, sequence, |rank, payload| {
            let column = totals[rank.index() - first.index()..].iter_mut().step_by(ranks);
            broken = broken.take().or(CandidatesMessage::decode(payload, column, count, summaries).err());
        })?;
        if let Some(error) = broken {
            return Err(error);
        }
        worker.group.timing.close_compute();
        let own = worker.take_totals();
        totals.iter_mut().step_by(ranks).zip(own).for_each(|(place, own)| *place = *own);
        Ok(())
    }

    /// Samples a token from the summaries of all ranks, with further rounds if these do not suffice. Its summary is at
    /// index `place` of the `count` that each rank has.
    fn choose(
        &mut self,
        worker: &mut Worker,
        place: usize,
        count: usize,
        entry: &PlanEntry,
    ) -> Result<Chosen, EngineError> {
        let broken = || EngineError::Message(FrameKind::Candidates);
        let sequence = worker.sequences.get(entry.slot).ok_or_else(broken)?;
        let summaries = self.summaries.iter().skip(place).step_by(count);
        let is_prompted = sequence.prompted_after(entry.position).is_some();
        let prompted;
        let sampling = if is_prompted {
            // The only candidate is the prompt's next token.
            let logprobs = sequence.sampling.logprobs.max(1);
            prompted = SamplingParameters { temperature: 0.0, logprobs, ..SamplingParameters::default() };
            &prompted
        } else {
            &sequence.sampling
        };
        let mut step = match self.chooser.begin(place, sampling, entry.position, summaries) {
            Err(SampleError::NoToken) if worker.masks.holds(entry.slot) => return Ok(Chosen::none()),
            // A sequence with broken logits affects no other: only its request fails.
            Err(SampleError::NoToken | SampleError::NotANumber) => return Ok(Chosen::broken()),
            begun => begun?,
        };
        loop {
            let query = match step {
                Step::Done(chosen) => return Ok(chosen),
                Step::Ask(query) => query,
            };
            self.payload.clear();
            self.payload.reserve(QUERY_ROOM);
            query.encode(&mut self.payload);
            let number = worker.group.next_sequence();
            worker.group.tell(FrameKind::Query, number, &self.payload)?;
            let own = worker.slice(place).ok_or_else(broken)?.answer(&query)?;
            let answers = &mut self.answers;
            answers.clear();
            answers.push(own);
            let mut wrong = None;
            worker.group.gather(FrameKind::Answer, number, |_, payload| match Answer::decode(payload) {
                Ok(answer) => answers.push(answer),
                Err(error) => wrong = Some(error),
            })?;
            if let Some(error) = wrong {
                return Err(error.into());
            }
            step = match self.chooser.answer(answers) {
                Err(SampleError::NoToken) => return Ok(Chosen::broken()),
                step => step?,
            };
        }
    }
}

impl SampledTokens {
    /// Appends the payload of the frame that is sent to the head.
    pub fn encode(&self, payload: &mut Vec<u8>) {
        payload.extend(self.sampling.0.to_le_bytes());
        payload.extend((self.embeddings.len() as u16).to_le_bytes());
        for (slot, values) in &self.embeddings {
            payload.extend(slot.0.to_le_bytes());
            payload.extend((values.len() as u32).to_le_bytes());
            values.iter().for_each(|value| payload.extend(value.to_le_bytes()));
        }
        payload.extend((self.tokens.len() as u16).to_le_bytes());
        for (slot, chosen) in &self.tokens {
            payload.extend(slot.0.to_le_bytes());
            chosen.encode(payload);
        }
        let room = std::mem::take(payload);
        *payload = self.totals.iter().fold(room, |room, totals| encode_totals(totals, room));
    }

    /// Decodes a payload, which must contain the totals of exactly `ranks` ranks.
    ///
    /// # Errors
    /// The payload is malformed; the contents are then undefined.
    pub fn decode(&mut self, payload: &[u8], ranks: usize) -> Result<(), EngineError> {
        let broken = || EngineError::Message(FrameKind::Drawn);
        self.tokens.clear();
        self.totals.clear();
        let (sampling, rest) = payload.split_first_chunk().ok_or_else(broken)?;
        self.sampling = Nanoseconds(u64::from_le_bytes(*sampling));
        let (count, mut rest) = rest.split_first_chunk().ok_or_else(broken)?;
        self.embeddings.clear();
        for _ in 0..u16::from_le_bytes(*count) {
            let (slot, behind) = rest.split_first_chunk().ok_or_else(broken)?;
            let (length, behind) = behind.split_first_chunk().ok_or_else(broken)?;
            let bytes = (u32::from_le_bytes(*length) as usize).saturating_mul(4);
            let (values, behind) = behind.split_at_checked(bytes).ok_or_else(broken)?;
            let values = values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            self.embeddings.push((Slot(u16::from_le_bytes(*slot)), values));
            rest = behind;
        }
        let (count, mut rest) = rest.split_first_chunk().ok_or_else(broken)?;
        for _ in 0..u16::from_le_bytes(*count) {
            let (slot, behind) = rest.split_first_chunk().ok_or_else(broken)?;
            let (chosen, behind) = Chosen::decode(behind)?;
            self.tokens.push((Slot(u16::from_le_bytes(*slot)), chosen));
            rest = behind;
        }
        for _ in 0..ranks {
            let (totals, behind) = postcard::take_from_bytes(rest).map_err(|_| broken())?;
            self.totals.push(totals);
            rest = behind;
        }
        if rest.is_empty() { Ok(()) } else { Err(SampleError::Broken("bytes follow its end").into()) }
    }
}

#[cfg(test)]
mod tests {
    use telemetry::PhaseTotals;

    use super::*;

    #[test]
    fn samples_survive_encoding_and_malformed_ones_are_errors() {
        let chosen = Chosen { id: 7, rounds: 2, top_logprobs: [(7, -0.5), (9, -1.5)].into_iter().collect() };
        let decode = PhaseTotals { steps: 3, tokens: 900, ..PhaseTotals::default() };
        let totals = RankTotals { decode, ..RankTotals::default() };
        let sampled = SampledTokens {
            tokens: vec![(Slot(1), chosen.clone()), (Slot(300), Chosen { top_logprobs: Default::default(), ..chosen })],
            totals: vec![totals; 3],
            embeddings: vec![(Slot(1), vec![0.5, -2.0])],
            sampling: Nanoseconds(70_000),
        };
        let mut payload = Vec::new();
        sampled.encode(&mut payload);
        let mut found = SampledTokens { tokens: Vec::new(), totals: vec![totals; 9], ..SampledTokens::default() };
        found.decode(&payload, 3).expect("it is whole");
        assert_eq!(found, sampled);
        assert!(found.decode(&payload, 2).is_err() && found.decode(&payload, 4).is_err());
        (0..payload.len()).for_each(|end| assert!(found.decode(&payload[..end], 3).is_err(), "cut at {end}"));
    }
}
