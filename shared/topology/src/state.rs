//! The states of recurrent layers: one for each slot, and saved ones with which later sequences can begin.

use models::ModelSpec;

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
}
