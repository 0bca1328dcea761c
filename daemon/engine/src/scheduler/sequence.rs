//! A request from the queue to its last token, as the scheduler tracks it.
use common::{ids::Slot, sampling::SamplingParameters};

use super::RequestKey;
use crate::{
    block_pool::BlockTable,
    plan::Constraint,
    speculation::{DraftRoom, SequenceDrafts},
};

/// A request whose prompt is tokenized and fits the limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// Request key.
    pub key: RequestKey,
    /// Its prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Most tokens to sample, at least one.
    pub max_tokens: usize,
    /// Sampling parameters.
    pub sampling: SamplingParameters,
    /// Most speculative tokens in one step.
    pub drafts_max: usize,
    /// Constraint on its answer.
    pub grammar: Option<Constraint>,
}

/// Where the keys and values of a prompt come from, if this group does not compute them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSource {
    /// A prefill group computes them, for all tokens but the last one.
    Group,
    /// The ranks read them from their disks.
    Store {
        /// For so many tokens at most, in whole blocks.
        tokens: usize,
    },
}

/// A request whose keys and values come from elsewhere; its slot and blocks are allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedPrompt {
    /// Request key.
    pub key: RequestKey,
    /// Its slot.
    pub slot: Slot,
    /// Where they come from.
    pub source: KvSource,
    /// Its blocks.
    pub blocks: Vec<u32>,
    /// Its blocks in layers with a window that later tokens see, and the index of the first of them.
    pub windowed: (u32, Vec<u32>),
    /// Number of the state that its own is received into; `None` in a model without states.
    pub state: Option<u16>,
    /// Number of its blocks that already hold the beginning of its prompt.
    pub first_block: u32,
}

/// What the ranks have received of the sequence in a slot.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing: its keys and values come from elsewhere.
    Awaiting(Opening),
    /// Nothing: the next step that is sent opens it.
    Opening(Opening),
    /// It was opened by a step that was sent.
    Open,
}

/// The part of a plan that opens a sequence.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) sampling: SamplingParameters,
    pub(super) grammar: Option<Constraint>,
    /// Prompt tokens whose keys and values are cached.
    pub(super) cached: usize,
    /// Most speculative tokens in one step.
    pub(super) drafts_max: usize,
    /// The saved state that is set aside for that of its prompt, while it comes from elsewhere.
    pub(super) awaited: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) key: RequestKey,
    /// Prompt, then sampled tokens.
    pub(super) tokens: Vec<u32>,
    /// Number of tokens that came with the request; for a remotely computed prompt, without the last one.
    pub(super) prompt_length: usize,
    pub(super) phase: Phase,
    /// Whether it is held back until its masks are compiled.
    pub(super) awaits_mask: bool,
    /// Tokens that went through the layers.
    pub(super) fed: usize,
    /// Tokens that its state of recurrent layers follows: those before a step with speculative tokens.
    pub(super) followed: usize,
    pub(super) table: BlockTable,
    /// Number of sequences opened before this one.
    pub(super) number: u64,
    /// Longest length in tokens, prompt included.
    pub(super) length: usize,
    /// The speculative tokens after the latest token.
    pub(super) drafts: SequenceDrafts,
    /// Where the state of its prompt is saved.
    pub(super) boundary: Option<usize>,
    /// Whether the logits at all positions of its prompt are wanted.
    pub(super) scores_prompt: bool,
    /// Rows with logits of its prompt that are in flight: the next part of the prompt waits for them, so that the ranks
    /// never hold more than those of one step.
    pub(super) unscored: usize,
}

impl Running {
    /// Whether its prompt is computed: it feeds one sampled token at a time, or waits for the next.
    pub(super) fn is_answering(&self) -> bool {
        self.fed >= self.prompt_length
    }

    /// Whether its prompt is being computed by this group.
    pub(super) fn is_prompt(&self) -> bool {
        !self.is_answering() && !self.awaits_mask && self.unscored == 0 && !matches!(self.phase, Phase::Awaiting(_))
    }

    /// The room for its speculative tokens in a step with `rows` decode rows without them and at most `most` more.
    pub(super) fn draft_room(&self, most: usize, rows: usize) -> DraftRoom {
        // The token sampled after the last speculative token must fit, too.
        DraftRoom { most: most.min(self.length.saturating_sub(self.tokens.len() + 1)), rows }
    }
}
