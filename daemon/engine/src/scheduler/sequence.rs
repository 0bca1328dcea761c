//! A request from the queue to its last token, as the scheduler tracks it.
use common::{ids::Slot, sampling::SamplingParameters};
use smallvec::SmallVec;

use super::RequestKey;
use crate::{
    block_pool::BlockTable,
    plan::Constraint,
    speculation::{Acceptance, Match, find},
    step_latency::{ROWS_MAX, StepLatency},
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

/// A request whose prompt is to be computed by a prefill group; its slot and blocks are allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePrompt {
    /// Request key.
    pub key: RequestKey,
    /// Its slot.
    pub slot: Slot,
    /// Its blocks.
    pub blocks: Vec<u32>,
    /// Number of these that already hold the beginning of its prompt.
    pub first_block: u32,
}

/// What the ranks have received of the sequence in a slot.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing: its prompt is computed by a prefill group.
    RemotePrefill(Opening),
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
    pub(super) table: BlockTable,
    /// Number of sequences opened before this one.
    pub(super) number: u64,
    /// Longest length in tokens, prompt included.
    pub(super) length: usize,
    pub(super) drafts_max: usize,
    /// The speculative tokens after the latest token, the match they came from, and how many were sampled so far.
    pub(super) drafts: DraftTokens,
    pub(super) found: Match,
    pub(super) accepted: usize,
    pub(super) acceptance: Acceptance,
}

pub(super) type DraftTokens = SmallVec<[u32; ROWS_MAX]>;

impl Running {
    /// Whether its prompt is computed: it feeds one sampled token at a time, or waits for the next.
    pub(super) fn is_answering(&self) -> bool {
        self.fed >= self.prompt_length
    }

    /// Whether its prompt is being computed by this group.
    pub(super) fn is_prompt(&self) -> bool {
        !self.is_answering() && !self.awaits_mask && !matches!(self.phase, Phase::RemotePrefill(_))
    }

    /// Proposes at most `most` speculative tokens after the latest token, in a step that carries `rows` decode rows
    /// without them.
    pub(super) fn draft(&mut self, most: usize, rows: usize, latency: &StepLatency) {
        // The token sampled after the last speculative token must fit, too.
        let most = most.min(self.length.saturating_sub(self.tokens.len() + 1)).min(self.drafts_max);
        let Some(found) = Some(most).filter(|most| *most > 0).and_then(|_| find(&self.tokens)) else { return };
        let count = self.acceptance.count(found, most, rows, latency);
        (self.found, self.accepted) = (found, 0);
        for index in found.next..found.next + count {
            // A repetition that reaches the end of the text continues with its own speculative tokens.
            let token = self.tokens.get(index).copied().unwrap_or_else(|| self.drafts[index - self.tokens.len()]);
            self.drafts.push(token);
        }
    }
}
