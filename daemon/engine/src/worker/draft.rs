//! The draft model on one rank: its weights, its keys and values, and its steps. Its layers are cut over the same ranks
//! as those of the target model, and its cache has the same blocks, reached through the same tables.
use protocol::frame::FrameKind;

use super::Worker;
use crate::{
    error::EngineError,
    model::{BatchToken, Model},
    plan::Plan,
    sample::{Slice, Summary},
    step_latency::ROWS_MAX,
};

/// A draft model.
#[derive(Debug)]
pub struct DraftModel {
    model: Model,
    /// One slice for each row of a batch that wants logits.
    slices: Vec<Slice>,
    /// Whether the latest step was one of this model: queries are about its logits.
    pub(super) is_latest: bool,
}

impl DraftModel {
    /// This rank's slice for a row of the latest step.
    pub(super) fn slice(&mut self, place: usize) -> Option<&mut Slice> {
        self.slices.get_mut(place)
    }
}

impl Worker {
    /// Adds a draft model, whose threads are those of the target model.
    #[must_use]
    pub fn with_draft(mut self, model: Model) -> Self {
        let (vocabulary, columns) = (model.shard().plan.vocabulary.clone(), model.shard().spec.embedding_length);
        let slices = (0..ROWS_MAX).map(|_| Slice::with_room(vocabulary.start as u32, vocabulary.len())).collect();
        self.group.add_draft(columns);
        Self { draft: Some(DraftModel { model, slices, is_latest: false }), ..self }
    }

    /// Number of token ids of the draft model, if there is one.
    pub fn draft_vocabulary(&self) -> Option<usize> {
        self.draft.as_ref().map(|draft| draft.model.shard().spec.vocabulary_length)
    }

    /// Runs the draft model over the entries of a plan; the other parts of the plan are empty. Leaves in `summaries` one
    /// summary for each token that wants logits, in the plan's order.
    ///
    /// # Errors
    /// There is no draft model, the plan cannot be applied, or a peer is lost.
    pub fn draft_step(&mut self, plan: &Plan, summaries: &mut Vec<Summary>) -> Result<(), EngineError> {
        summaries.clear();
        let draft = self.draft.as_mut().ok_or(EngineError::Message(FrameKind::Draft))?;
        draft.is_latest = true;
        self.sequences.draft(plan, draft.model.shard().spec.vocabulary_length)?;
        let batch = self.sequences.draft_batch();
        self.group.switch_model();
        let forward = draft.model.forward(batch, &mut self.group).map(|_| ());
        self.group.switch_model();
        forward?;
        let vocabulary = draft.model.shard().plan.vocabulary.clone();
        let logits = draft.model.logits();
        let wanted = batch.tokens.iter().filter(|token| token.wants_logits);
        for (index, BatchToken { slot, position, .. }) in wanted.enumerate() {
            let broken = EngineError::Message(FrameKind::Draft);
            let (Some(sequence), Some(slice)) = (self.sequences.get(*slot), draft.slices.get_mut(index)) else {
                return Err(broken);
            };
            let logits = &logits[index * vocabulary.len()..(index + 1) * vocabulary.len()];
            let history = &sequence.tokens[..=*position as usize];
            summaries.push(slice.summary(&sequence.sampling, *position, history, logits, None));
        }
        Ok(())
    }
}
