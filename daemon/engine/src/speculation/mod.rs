//! Speculative decoding: tokens that may follow are fed before they are sampled, and those that are sampled as proposed
//! save a step each. The door of the scheduler to it: propose before a step, compare the sampled tokens. A further
//! source of proposals belongs behind it; scheduler and head see only tokens. Pure; allocates nothing.
use smallvec::SmallVec;

use super::step_latency::{ROWS_MAX, StepLatency};
use acceptance::{Acceptance, ProposalSource};
use draft_model::{DraftModelUse, FedTokens};
use lookup::find;

mod acceptance;
mod draft_model;
mod lookup;

pub use draft_model::{DraftSum, DraftText};

/// Speculative decoding of a replica.
#[derive(Debug)]
pub struct Speculation {
    is_on: bool,
    /// Initial acceptance rates of new sequences.
    acceptance: Acceptance,
    /// The draft model, if there is one.
    draft_model: Option<DraftModelUse>,
}

/// The speculative tokens of one sequence, and the acceptance rates of its proposals.
#[derive(Debug)]
pub struct SequenceDrafts {
    /// Most speculative tokens in one step.
    most: usize,
    tokens: SmallVec<[u32; ROWS_MAX]>,
    /// How many of them were sampled so far.
    accepted: usize,
    /// Length of the text that they follow.
    after: usize,
    /// Where they came from.
    source: ProposalSource,
    acceptance: Acceptance,
    /// What the draft model has computed.
    fed: FedTokens,
}

/// Room for speculative tokens in a step.
#[derive(Clone, Copy, Debug)]
pub struct DraftRoom {
    /// Most speculative tokens of the sequence.
    pub most: usize,
    /// Decode rows of the step without them.
    pub rows: usize,
}

impl Default for Speculation {
    fn default() -> Self {
        Self { is_on: true, acceptance: Acceptance::default(), draft_model: None }
    }
}

impl Speculation {
    /// Proposes nothing.
    pub fn off() -> Self {
        Self { is_on: false, ..Self::default() }
    }

    /// The state of a new sequence that takes at most `most` speculative tokens in a step; a constrained one takes none.
    pub fn begin(&self, most: usize, is_constrained: bool) -> SequenceDrafts {
        SequenceDrafts {
            most: if self.is_on && !is_constrained { most } else { 0 },
            tokens: SmallVec::new(),
            accepted: 0,
            after: 0,
            source: ProposalSource::Lookup(1),
            acceptance: self.acceptance.begin(),
            fed: FedTokens::default(),
        }
    }

    /// Proposes tokens after `tokens`, the whole text of a sequence: those of the draft model if it proposed some, otherwise
    /// those of prompt lookup; as many as are expected to save time, possibly none.
    pub fn propose(&self, drafts: &mut SequenceDrafts, tokens: &[u32], room: DraftRoom, latency: &StepLatency) {
        let most = room.most.min(drafts.most);
        if !drafts.tokens.is_empty() {
            return drafts.keep(most);
        }
        let Some(found) = Some(most).filter(|most| *most > 0).and_then(|_| find(tokens)) else { return };
        let count = drafts.acceptance.count(found, most, room.rows, latency);
        (drafts.source, drafts.accepted, drafts.after) = (ProposalSource::Lookup(found.length), 0, tokens.len());
        for index in found.next..found.next + count {
            // A repetition that reaches the end of the text continues with its own speculative tokens.
            let token = tokens.get(index).copied().unwrap_or_else(|| drafts.tokens[index - tokens.len()]);
            drafts.tokens.push(token);
        }
    }

    /// Compares a sampled token with the proposed one; returns whether they are equal. The first that differs, or that
    /// follows the last proposed one, ends the proposal: its acceptance is learned.
    pub fn accept(&mut self, drafts: &mut SequenceDrafts, token: u32) -> bool {
        if drafts.tokens.get(drafts.accepted) == Some(&token) {
            drafts.accepted += 1;
            return true;
        }
        if !drafts.tokens.is_empty() {
            let (source, drafted, accepted) = (drafts.source, drafts.tokens.len(), drafts.accepted);
            drafts.acceptance.observe(source, drafted, accepted);
            self.acceptance.observe_for_all(source, drafted, accepted);
            drafts.keep(accepted);
            drafts.tokens.clear();
        }
        false
    }
}

impl SequenceDrafts {
    /// The proposed tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}
