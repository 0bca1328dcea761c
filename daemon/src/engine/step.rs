//! One step on one rank, head or not: apply the plan, run the layers, summarise the logits of the own vocabulary slice.
use shared::{protocol::frame::FrameKind, telemetry::RankTotals};

use super::{
    plan::{Limits, Plan, PlanError, Sequences},
    sample::{SampleError, Slice, Summary},
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
    /// This rank's model.
    pub model: Model,
    /// The ranks.
    pub group: Group,
    /// The running sequences.
    pub sequences: Sequences,
    /// One slice for each place of a batch that wants logits.
    slices: Vec<Slice>,
}

impl Stepper {
    /// A rank without sequences.
    pub fn new(model: Model, group: Group, limits: Limits) -> Self {
        Self { model, group, sequences: Sequences::new(limits), slices: Vec::new() }
    }

    /// Applies a plan and runs the layers. Leaves in `summaries` one of each token that wants logits, in the plan's order.
    ///
    /// # Errors
    /// The plan cannot be followed, a peer is lost, or the logits are no numbers.
    pub fn step(&mut self, plan: &Plan, summaries: &mut Vec<Summary>) -> Result<(), EngineError> {
        summaries.clear();
        self.sequences.apply(plan)?;
        let (tokens, blocks) = self.sequences.batch();
        let vocabulary = self.model.shard().plan.vocabulary.clone();
        let logits = self.model.forward(Batch { tokens, blocks }, &mut self.group)?;
        let wanted = tokens.iter().filter(|token| token.wants_logits);
        for (index, BatchToken { slot, position, .. }) in wanted.enumerate() {
            let sequence = self.sequences.get(*slot).ok_or(EngineError::Message(FrameKind::Plan))?;
            let logits = &logits[index * vocabulary.len()..(index + 1) * vocabulary.len()];
            let history = &sequence.tokens[..=*position as usize];
            if self.slices.len() == index {
                self.slices.push(Slice::new(vocabulary.start as u32));
            }
            summaries.push(self.slices[index].summary(&sequence.sampling, *position, history, logits)?);
        }
        Ok(())
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
    pub fn encode(totals: &RankTotals, summaries: &[Summary], payload: &mut Vec<u8>) {
        let room = std::mem::take(payload);
        *payload = postcard::to_extend(totals, room).expect("sums are plain numbers");
        summaries.iter().for_each(|summary| summary.encode(payload));
    }

    /// Reads a payload that must hold exactly `count` summaries; appends them.
    ///
    /// # Errors
    /// It does not.
    pub fn decode(payload: &[u8], count: usize, summaries: &mut Vec<Summary>) -> Result<RankTotals, EngineError> {
        let broken = || EngineError::Message(FrameKind::Candidates);
        let (totals, mut rest) = postcard::take_from_bytes(payload).map_err(|_| broken())?;
        for _ in 0..count {
            let (summary, left) = Summary::decode(rest)?;
            summaries.push(summary);
            rest = left;
        }
        if rest.is_empty() { Ok(totals) } else { Err(broken()) }
    }
}
