//! Runs the predictor of a file beside its model.
use engine::{
    collective::Group,
    model::{Batch, Model},
};

/// A rank's part of a predictor.
#[derive(Debug)]
pub struct Predicting {
    model: Model,
    /// The state of the target model before the next step `[embedding_length]`.
    before: Vec<f32>,
    /// Those of a step.
    states: Vec<f32>,
}

impl Predicting {
    /// A predictor before the first step of its model.
    pub fn new(model: Model) -> Self {
        let before = vec![0.0; model.shard().spec.embedding_length];
        Self { model, before, states: Vec::new() }
    }

    /// The logits of this rank's vocabulary rows for all tokens of a step that the target model has just computed.
    ///
    /// # Panics
    /// Another rank is lost.
    pub fn step(&mut self, target: &mut Model, batch: Batch<'_>, group: &mut Group) -> Vec<f32> {
        let length = self.before.len();
        target.output_states(&mut self.states);
        let joined = self.model.joined(batch.tokens.len());
        let (first, rest) = joined.split_at_mut(length);
        first.copy_from_slice(&self.before);
        let (all_but_last, last) = self.states.split_at(rest.len());
        rest.copy_from_slice(all_but_last);
        self.before.copy_from_slice(last);
        self.model.forward(batch, group).expect("all ranks run");
        self.model.output_states(&mut self.states);
        target.logits_of(self.states.chunks_exact(length)).to_vec()
    }
}
