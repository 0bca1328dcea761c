//! One step on one rank, head or not: apply the plan, take hidden states over, run the layers, hand them over or summarise the
//! logits of the own vocabulary slice.
use std::time::Instant;

use shared::{ids::Rank, protocol::frame::FrameKind, telemetry::RankTotals, topology::Place, units::Nanoseconds};

use super::{
    costs::ROWS_MAX,
    grammar::Grammars,
    plan::{Limits, Plan, PlanError, Sequences},
    sample::{SampleError, Slice, Summary},
    sampler::encode_totals,
    transfer::Transfers,
};
use crate::{
    collective::{CollectiveError, Group},
    model::{Batch, BatchToken, ForwardError, Model},
};

/// Why an engine cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A peer is lost, or out of step.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The model's file cannot be read any more.
    #[error(transparent)]
    Model(ForwardError),
    /// The head's plan and this rank do not fit together.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Logits or a rank's message about them are broken.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A message of another rank is broken.
    #[error("a rank sent a broken {0:?} message")]
    Message(FrameKind),
}

impl From<ForwardError> for EngineError {
    fn from(error: ForwardError) -> Self {
        match error {
            ForwardError::Collective(error) => Self::Collective(error),
            error @ ForwardError::Embedding { .. } => Self::Model(error),
        }
    }
}

/// A rank that steps.
#[derive(Debug)]
pub struct Stepper {
    /// Where it stands.
    pub place: Place,
    /// This rank's model.
    pub model: Model,
    /// The ranks.
    pub group: Group,
    /// The running sequences.
    pub sequences: Sequences,
    /// What the answers of some of them must look like, on the last stage.
    pub grammars: Grammars,
    /// In a topology whose groups have roles: keys and values that go from one group to another.
    pub transfers: Option<Transfers>,
    /// One slice for each place of a batch that wants logits.
    slices: Vec<Slice>,
    /// Where the time went of the ranks that handed over to this one, stage by stage, and last its own.
    totals: Vec<RankTotals>,
    payload: Vec<u8>,
    /// When the latest step had computed its layers and its output.
    computed: Instant,
}

impl Stepper {
    /// A rank without sequences.
    pub fn new(place: Place, model: Model, mut group: Group, limits: Limits) -> Self {
        group.accounting.watch(model.compute().pool.clock());
        let (sequences, totals) = (Sequences::new(limits), vec![RankTotals::default(); usize::from(place.stage) + 1]);
        let vocabulary = model.shard().plan.vocabulary.clone();
        // Memory that is not touched before it is used.
        let slices = (0..ROWS_MAX).map(|_| Slice::with_room(vocabulary.start as u32, vocabulary.len())).collect();
        let (grammars, transfers, payload) = (Grammars::default(), None, Vec::new());
        let computed = Instant::now();
        Self { place, model, group, sequences, grammars, transfers, slices, totals, payload, computed }
    }

    /// Applies a plan and runs the layers. Leaves in `summaries` one of each token that wants logits, in the plan's order; on all
    /// stages but the last, none.
    ///
    /// # Errors
    /// The plan cannot be followed, or a peer is lost.
    pub fn step(&mut self, plan: &Plan, summaries: &mut Vec<Summary>) -> Result<(), EngineError> {
        summaries.clear();
        self.sequences.apply(plan)?;
        self.model.copy_blocks(&plan.copies);
        let (tokens, blocks) = self.sequences.batch();
        if let Some(before) = self.place.before() {
            let (hidden, totals) = (self.model.hidden(tokens.len()), &mut self.totals[..usize::from(self.place.stage)]);
            let mut read = Ok(());
            self.group.take_over(before, hidden, |bytes| read = decode_totals(bytes, totals))?;
            read?;
        }
        if self.place.is_last_stage() {
            // What grammars need is made on other threads while the layers run.
            if plan.prepares {
                self.grammars.prepare();
            }
            self.grammars.apply(plan);
        }
        let vocabulary = self.model.shard().plan.vocabulary.clone();
        let batch = Batch { tokens, blocks };
        match &mut self.transfers {
            None => drop(self.model.forward(batch, &mut self.group)?),
            Some(transfers) => {
                transfers.step(self.model.cache());
                transfers.begin(tokens);
                self.model.forward_beside(batch, &mut self.group, &mut transfers.sink(blocks))?;
                transfers.end(&mut self.model, blocks);
            }
        }
        self.computed = Instant::now();
        let logits = self.model.logits();
        if let Some(next) = self.place.next() {
            let wants_logits = tokens.iter().any(|token| token.wants_logits);
            return self.hand_over(next, tokens.len(), wants_logits);
        }
        let wanted = tokens.iter().filter(|token| token.wants_logits);
        for (index, BatchToken { slot, position, .. }) in wanted.enumerate() {
            let sequence = self.sequences.get(*slot).ok_or(EngineError::Message(FrameKind::Plan))?;
            let logits = &logits[index * vocabulary.len()..(index + 1) * vocabulary.len()];
            let history = &sequence.tokens[..=*position as usize];
            let slice = self.slices.get_mut(index).ok_or(EngineError::Message(FrameKind::Plan))?;
            let mask = self.grammars.mask(*slot, history);
            summaries.push(slice.summary(&sequence.sampling, *position, history, (logits, mask)));
        }
        Ok(())
    }

    /// Hidden states for the next stage; with a step that ends in tokens go the sums of this rank and those before it.
    fn hand_over(&mut self, next: Rank, tokens: usize, wants_logits: bool) -> Result<(), EngineError> {
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        if wants_logits {
            payload = self.take_totals().iter().fold(payload, |room, totals| encode_totals(totals, room));
        }
        self.payload = payload;
        self.group.hand_over(next, self.model.hidden(tokens), &self.payload)?;
        Ok(())
    }

    /// Where the time went since the last call: of the ranks before this one, stage by stage, and last of this one.
    pub fn take_totals(&mut self) -> &[RankTotals] {
        if let Some(own) = self.totals.last_mut() {
            *own = self.group.accounting.take_totals();
        }
        &self.totals
    }

    /// Time since the latest step had computed its layers and its output.
    pub fn since_computed(&self) -> Nanoseconds {
        Nanoseconds(self.computed.elapsed().as_nanos() as u64)
    }

    /// This rank's slice for a place of the latest step.
    pub fn slice(&mut self, place: usize) -> Option<&mut Slice> {
        self.slices.get_mut(place)
    }
}

/// What another rank sends to the sampler after a step: where its time went since the last message, and its summaries.
#[derive(Debug)]
pub struct Candidates;

impl Candidates {
    /// Appends the payload of the frame.
    pub fn encode(totals: &[RankTotals], summaries: &[Summary], payload: &mut Vec<u8>) {
        let room = std::mem::take(payload);
        *payload = totals.iter().fold(room, |room, totals| encode_totals(totals, room));
        summaries.iter().for_each(|summary| summary.encode(payload));
    }

    /// Reads a payload that must hold a sum for each place in `totals` and exactly `count` summaries; appends these.
    ///
    /// # Errors
    /// It does not.
    pub fn decode<'a>(
        payload: &[u8],
        (totals, count): (impl Iterator<Item = &'a mut RankTotals>, usize),
        summaries: &mut Vec<Summary>,
    ) -> Result<(), EngineError> {
        let broken = || EngineError::Message(FrameKind::Candidates);
        let mut rest = payload;
        for place in totals {
            (*place, rest) = postcard::take_from_bytes(rest).map_err(|_| broken())?;
        }
        for _ in 0..count {
            let (summary, left) = Summary::decode(rest)?;
            summaries.push(summary);
            rest = left;
        }
        if rest.is_empty() { Ok(()) } else { Err(broken()) }
    }
}

/// Reads a sum for each place, or nothing: then they stay as they are.
fn decode_totals(bytes: &[u8], totals: &mut [RankTotals]) -> Result<(), EngineError> {
    let broken = || EngineError::Message(FrameKind::HandOver);
    let mut rest = bytes;
    if rest.is_empty() {
        return Ok(());
    }
    for place in totals {
        (*place, rest) = postcard::take_from_bytes(rest).map_err(|_| broken())?;
    }
    if rest.is_empty() { Ok(()) } else { Err(broken()) }
}
