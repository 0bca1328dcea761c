//! A request from the queue to its last token, as the schedule holds it.
use shared::{ids::Slot, sampling::SamplingParameters};
use smallvec::SmallVec;

use super::RequestKey;
use crate::engine::{
    blocks::Table,
    costs::{Costs, ROWS_MAX},
    drafts::{Acceptance, Match, find},
    grammar::Constraint,
};

/// A request whose prompt is tokenized and fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// Its name.
    pub key: RequestKey,
    /// Its prompt, at least one token.
    pub prompt: Vec<u32>,
    /// Most tokens to sample, at least one.
    pub max_tokens: usize,
    /// How tokens are drawn.
    pub sampling: SamplingParameters,
    /// Most tokens that may be drafted at once.
    pub drafts_max: usize,
    /// What the answer must look like.
    pub grammar: Option<Constraint>,
}

/// A request whose prompt is to be computed elsewhere: it has its slot and its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Its name.
    pub key: RequestKey,
    /// Its place.
    pub slot: Slot,
    /// Its blocks.
    pub blocks: Vec<u32>,
    /// How many of these hold its beginning already.
    pub first_block: u32,
}

/// What the ranks know of a sequence in a slot.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing: its prompt is computed elsewhere.
    Elsewhere(Opening),
    /// Nothing: the next step that is sent opens it.
    Opening(Opening),
    /// A step that was sent has opened it.
    Open,
}

/// What a step says of a sequence that it opens.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) sampling: SamplingParameters,
    pub(super) grammar: Option<Constraint>,
    /// Tokens of the prompt whose keys and values are there.
    pub(super) cached: usize,
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) key: RequestKey,
    /// Prompt, then sampled tokens.
    pub(super) tokens: Vec<u32>,
    /// Tokens of it that came with the request; of a prompt that was computed elsewhere without the last.
    pub(super) prompt_length: usize,
    pub(super) phase: Phase,
    /// Tokens that went through the layers.
    pub(super) fed: usize,
    pub(super) table: Table,
    /// Counts those that were opened before.
    pub(super) number: u64,
    /// Most tokens, prompt included.
    pub(super) length: usize,
    pub(super) drafts_max: usize,
    /// What was entered behind the latest token, where it was found, and how many of it were drawn so far.
    pub(super) drafts: Drafts,
    pub(super) found: Match,
    pub(super) accepted: usize,
    pub(super) acceptance: Acceptance,
}

pub(super) type Drafts = SmallVec<[u32; ROWS_MAX]>;

impl Running {
    /// Whether its prompt is through: it feeds one sampled token at a time, or waits for the next.
    pub(super) fn is_answering(&self) -> bool {
        self.fed >= self.prompt_length
    }

    /// Whether its prompt goes through the layers here.
    pub(super) fn is_prompt(&self) -> bool {
        !self.is_answering() && !matches!(self.phase, Phase::Elsewhere(_))
    }

    /// Drafts what may follow the latest token, at most `most` tokens, in a step that carries `rows` answers' tokens without them.
    pub(super) fn draft(&mut self, most: usize, rows: usize, costs: &Costs) {
        // What is drawn after the last draft must fit, too.
        let most = most.min(self.length.saturating_sub(self.tokens.len() + 1)).min(self.drafts_max);
        let Some(found) = Some(most).filter(|most| *most > 0).and_then(|_| find(&self.tokens)) else { return };
        let count = self.acceptance.count(found, most, rows, costs);
        (self.found, self.accepted) = (found, 0);
        for index in found.next..found.next + count {
            // A repetition that reaches the end of the text continues with its own drafts.
            let token = self.tokens.get(index).copied().unwrap_or_else(|| self.drafts[index - self.tokens.len()]);
            self.drafts.push(token);
        }
    }
}
