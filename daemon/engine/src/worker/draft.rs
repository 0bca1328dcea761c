//! The draft model on one rank: its weights, its keys and values, and its steps. Its layers are cut over the same ranks
//! as those of the target model, and its cache has the same blocks, reached through the same tables. A predictor, the
//! block of the target model's own file, also reads the states of the target model, and each step of that feeds it.
use common::{ids::Slot, limits::SLOTS_MAX};
use protocol::frame::FrameKind;

use super::Worker;
use crate::{
    error::EngineError,
    model::{Batch, BatchToken, Model},
    plan::Plan,
    sample::{Slice, Summary},
    step_latency::ROWS_MAX,
};

/// States of a sequence that are kept: those behind any row of a step.
const KEPT: usize = 2 * ROWS_MAX;

/// A draft model.
#[derive(Debug)]
pub struct DraftModel {
    model: Model,
    /// What it reads of the target model, if it is a predictor.
    states: Option<LatestStates>,
    /// One slice for each row of a batch that wants logits.
    slices: Vec<Slice>,
    /// Whether the latest step was one of this model: queries are about its logits.
    pub(super) is_latest: bool,
}

/// The latest hidden states of each sequence behind an output norm: of the target model, then of the predictor.
#[derive(Debug)]
struct LatestStates {
    /// For each slot, the first position, and states `[position, embedding_length]`.
    slots: Vec<(usize, Vec<f32>)>,
    /// Those of a step `[token, embedding_length]`.
    step: Vec<f32>,
    length: usize,
}

impl LatestStates {
    fn new(length: usize) -> Self {
        let slots = vec![(0, Vec::new()); usize::from(SLOTS_MAX)];
        Self { slots, step: Vec::new(), length }
    }

    /// Copies the states before the tokens of a batch, in which a token may follow another; zeros where none is known.
    /// `own` are those of the batch itself, if its tokens are known at once.
    fn before(&self, tokens: &[BatchToken], own: &[f32], out: &mut [f32]) {
        for (index, (token, out)) in tokens.iter().zip(out.chunks_exact_mut(self.length)).enumerate() {
            let follows = index > 0 && tokens[index - 1].slot == token.slot && !own.is_empty();
            let state = match follows {
                true => own.get((index - 1) * self.length..index * self.length),
                false => self.at(token.slot, (token.position as usize).checked_sub(1)),
            };
            match state {
                Some(state) => out.copy_from_slice(state),
                None => out.fill(0.0),
            }
        }
    }

    fn at(&self, slot: Slot, position: Option<usize>) -> Option<&[f32]> {
        let (first, states) = self.slots.get(slot.index())?;
        let begin = position?.checked_sub(*first)? * self.length;
        states.get(begin..begin + self.length)
    }

    /// Takes the states of a step ([`Self::step`]): a position's replaces those from there on.
    fn take(&mut self, tokens: &[BatchToken]) {
        for (token, state) in tokens.iter().zip(self.step.chunks_exact(self.length)) {
            let Some((first, states)) = self.slots.get_mut(token.slot.index()) else { continue };
            let position = token.position as usize;
            let before = position.checked_sub(*first).map_or(usize::MAX, |before| before.saturating_mul(self.length));
            if before > states.len() {
                *first = position;
                states.clear();
            }
            states.truncate(before);
            if states.len() >= KEPT * self.length {
                states.drain(..KEPT / 2 * self.length);
                *first += KEPT / 2;
            }
            states.extend_from_slice(state);
        }
    }
}

impl DraftModel {
    /// Feeds a predictor with the latest step of its model, so that it has keys and values of all tokens.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn follow(
        &mut self,
        target: &Model,
        batch: Batch<'_>,
        copies: &[(u32, u32)],
    ) -> Result<(), EngineError> {
        let Some(states) = &mut self.states else { return Ok(()) };
        self.model.copy_blocks(copies);
        target.output_states(&mut states.step);
        states.before(batch.tokens, &states.step, self.model.joined(batch.tokens.len()));
        states.take(batch.tokens);
        self.model.remember(batch).map_err(EngineError::from)
    }

    /// This rank's slice for a row of the latest step.
    pub(super) fn slice(&mut self, place: usize) -> Option<&mut Slice> {
        self.slices.get_mut(place)
    }
}

impl Worker {
    /// Adds a draft model, whose threads are those of the target model.
    #[must_use]
    pub fn with_draft(mut self, model: Model) -> Self {
        let shard = model.shard();
        let states = shard.join.as_ref().map(|_| LatestStates::new(shard.spec.embedding_length));
        // A predictor has the output matrix of the target model.
        let of_output = if states.is_some() { &self.model } else { &model };
        let (vocabulary, columns) = (of_output.shard().plan.vocabulary.clone(), shard.spec.embedding_length);
        let slices = (0..ROWS_MAX).map(|_| Slice::with_room(vocabulary.start as u32, vocabulary.len())).collect();
        self.group.add_draft(columns);
        Self { draft: Some(DraftModel { model, states, slices, is_latest: false }), ..self }
    }

    /// Number of token ids of the draft model, if there is one, and whether it is a predictor.
    pub fn draft_kind(&self) -> Option<(usize, bool)> {
        self.draft.as_ref().map(|draft| (draft.model.shard().spec.vocabulary_length, draft.states.is_some()))
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
        if let Some(states) = &draft.states {
            states.before(batch.tokens, &[], draft.model.joined(batch.tokens.len()));
        }
        self.group.switch_model();
        let forward = draft.model.forward(batch, &mut self.group).map(|_| ());
        self.group.switch_model();
        forward?;
        let wanted = batch.tokens.iter().filter(|token| token.wants_logits);
        let (logits, shard) = match &mut draft.states {
            Some(states) => {
                draft.model.output_states(&mut states.step);
                states.take(batch.tokens);
                let rows = batch.tokens.iter().zip(states.step.chunks_exact(states.length));
                let rows = rows.filter(|(token, _)| token.wants_logits).map(|(_, row)| row);
                self.model.logits_of(rows);
                (self.model.logits(), self.model.shard())
            }
            None => (draft.model.logits(), draft.model.shard()),
        };
        let vocabulary = shard.plan.vocabulary.clone();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(slot: u16, positions: std::ops::Range<u32>) -> Vec<BatchToken> {
        let (slot, wants_logits, is_speculative) = (Slot(slot), false, false);
        positions.map(|position| BatchToken { slot, position, token: 0, wants_logits, is_speculative }).collect()
    }

    /// Takes a step whose state at each position is its number and `mark`.
    fn step(states: &mut LatestStates, tokens: &[BatchToken], mark: f32) {
        states.step = tokens.iter().flat_map(|token| [token.position as f32, mark]).collect();
        states.take(tokens);
    }

    /// The states before tokens that are not known at once.
    fn before(states: &LatestStates, tokens: &[BatchToken]) -> Vec<[f32; 2]> {
        let mut out = vec![f32::NAN; 2 * tokens.len()];
        states.before(tokens, &[], &mut out);
        out.as_chunks().0.to_vec()
    }

    #[test]
    fn each_token_reads_the_state_before_it() {
        let mut states = LatestStates::new(2);
        let prompt = [tokens(3, 0..5), tokens(1, 7..9)].concat();
        states.step = prompt.iter().map(|token| token.position as f32).flat_map(|position| [position, 1.0]).collect();
        let mut out = vec![f32::NAN; 2 * prompt.len()];
        states.before(&prompt, &states.step, &mut out);
        // The first token, and one whose prompt was computed elsewhere, have none.
        assert_eq!(out.iter().step_by(2).collect::<Vec<_>>(), [&0.0, &0.0, &1.0, &2.0, &3.0, &0.0, &7.0]);
        states.take(&prompt);
        assert_eq!(before(&states, &[tokens(3, 5..6), tokens(1, 9..10)].concat()), [[4.0, 1.0], [8.0, 1.0]]);
    }

    #[test]
    fn states_of_rejected_tokens_are_replaced() {
        let mut states = LatestStates::new(2);
        step(&mut states, &tokens(0, 0..200), 1.0);
        // Three tokens, of which the last two are rejected; the proposals before them have states of their own.
        step(&mut states, &tokens(0, 200..203), 2.0);
        assert_eq!(before(&states, &tokens(0, 201..202)), [[200.0, 2.0]]);
        step(&mut states, &tokens(0, 201..202), 3.0);
        assert_eq!(before(&states, &tokens(0, 202..203)), [[201.0, 3.0]]);
        assert_eq!(before(&states, &tokens(0, 203..204)), [[0.0; 2]]);
        step(&mut states, &tokens(0, 201..203), 4.0);
        assert_eq!(before(&states, &tokens(0, 202..203)), [[201.0, 4.0]]);
        // Another sequence takes the slot.
        step(&mut states, &tokens(0, 0..3), 5.0);
        assert_eq!(before(&states, &tokens(0, 3..4)), [[2.0, 5.0]]);
        assert!(states.slots[0].1.len() <= 2 * KEPT);
    }
}
