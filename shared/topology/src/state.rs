//! The states of recurrent layers: one for each slot, and saved ones with which later sequences can begin. What the tokens
//! of a step with speculative tokens change is logged until it is known which of them are accepted.

use common::limits::SLOTS_MAX;
use models::ModelSpec;

use crate::shard::ShardPlan;

/// Number of states that every rank has for each of its recurrent layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCount {
    /// Those of the slots, which come first.
    pub slots: usize,
    /// Those that are saved.
    pub saved: usize,
}

/// Saved states of each conversation: the beginning that its next prompt is likely to share, and its end.
const SAVED: usize = 2;
/// Conversations that are saved, at most: states are large.
const CONVERSATIONS: usize = 4;

/// Most tokens of a step that are logged: those of all sequences with speculative tokens, which all want logits.
pub const LOGGED_MAX: usize = SLOTS_MAX as usize;

impl StateCount {
    /// Those of a model without recurrent layers.
    pub const NONE: Self = Self { slots: 0, saved: 0 };

    /// The states of a model for so many slots.
    pub fn in_model(spec: &ModelSpec, slots: usize) -> Self {
        if spec.has_state() { Self::of(slots) } else { Self::NONE }
    }

    /// The states for so many slots.
    pub fn of(slots: usize) -> Self {
        Self { slots, saved: SAVED * (slots + 1).min(CONVERSATIONS) }
    }

    /// All of them.
    pub const fn all(&self) -> usize {
        self.slots + self.saved
    }

    /// Floats that a rank has for them: the states, the logged tokens, and the state of a layer ahead of its slot's.
    pub fn floats(&self, spec: &ModelSpec, plan: &ShardPlan) -> u64 {
        let layers = plan.layers.clone().map(|layer| {
            let (state, input) = (plan.state_length(spec, layer), plan.input_length(spec, layer));
            (self.all() * state + LOGGED_MAX * input) as u64
        });
        let ahead = plan.layers.clone().map(|layer| plan.state_length(spec, layer) as u64);
        layers.sum::<u64>() + ahead.max().unwrap_or(0)
    }
}
