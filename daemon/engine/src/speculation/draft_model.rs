//! Proposals of a draft model: when they pay, and what the model has computed of each sequence. Its keys and values
//! only matter for how many of its tokens are accepted: no text depends on them.
use common::{ids::Slot, limits::KV_BLOCK_LENGTH, units::Nanoseconds};

use super::{
    DraftRoom, SequenceDrafts, Speculation,
    acceptance::{Gain, ProposalSource},
    lookup::find,
};
use crate::{
    plan::PlanEntry,
    step_latency::{ROWS_MAX, StepLatency},
};

/// Assumed time of a draft step relative to a step, before one was measured.
const COST_FIRST: f32 = 0.05;
/// Answer tokens over which computing a prompt on the draft model must pay.
const AHEAD: usize = 256;
/// Assumed time of a prompt token on the draft model relative to a step of one token, before it was measured.
const ROW_FIRST: f32 = 0.15;
/// Most tokens that the draft model may lag behind where it is only tried.
const LAG_TRIED_MAX: usize = 512;
/// Share of the time of steps that is spent on trying the draft model where it does not pay, and most steps that this
/// share is saved for.
const TRIED_SHARE: f32 = 0.015;
const TRIED_STEPS: f32 = 400.0;
/// Begin and factor of the hash of a text.
const HASH_BEGIN: u64 = 0xcbf2_9ce4_8422_2325;
const HASH_FACTOR: u64 = 0x0100_0000_01b3;

/// The draft model of a replica.
#[derive(Debug)]
pub(super) struct DraftModelUse {
    /// Token ids that it has.
    vocabulary: usize,
    /// Whether steps of the target model feed it all tokens but the latest one.
    is_predictor: bool,
    latency: StepLatency,
    /// For each KV block, the hash of the text up to its end whose keys and values of the draft model it holds; 0: not
    /// known.
    blocks: Vec<u64>,
    /// Whether draft steps are under way.
    is_drafting: bool,
    /// Whether they only try, and the nanoseconds that may be spent on that.
    tries: bool,
    credit: f32,
}

/// What the draft model has computed of a sequence.
#[derive(Debug, Default)]
pub(super) struct FedTokens {
    /// Leading tokens of the text and its proposals; `None` until the first proposal.
    count: Option<usize>,
    /// Whole blocks of them that are noted in [`DraftModelUse::blocks`], and the hash of their tokens.
    noted: (usize, u64),
    /// How many tokens the draft model is to propose before the next step.
    wanted: usize,
}

/// A sequence as it is before a step.
#[derive(Clone, Copy, Debug)]
pub struct DraftText<'a> {
    /// Prompt, then sampled tokens.
    pub tokens: &'a [u32],
    /// KV blocks.
    pub blocks: &'a [u32],
    /// Most tokens that may follow.
    pub left: usize,
}

/// What a step is expected to yield with the proposals chosen so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct DraftSum {
    sequences: usize,
    /// Speculative tokens, and most of one sequence.
    tokens: usize,
    longest: usize,
    accepted: f32,
    /// Whether a sequence only tries.
    tries: bool,
}

fn hash(before: u64, tokens: &[u32]) -> u64 {
    tokens.iter().fold(before, |hash, token| (hash ^ u64::from(*token)).wrapping_mul(HASH_FACTOR))
}

impl DraftModelUse {
    /// Notes which whole blocks hold the draft model's keys and values of a sequence.
    fn note(&mut self, fed: &mut FedTokens, text: DraftText<'_>) {
        let count = fed.count.unwrap_or(0).min(text.tokens.len());
        let (mut noted, mut hashed) = fed.noted;
        for (tokens, block) in text.tokens[..count].chunks(KV_BLOCK_LENGTH).zip(text.blocks).skip(noted) {
            let Some(place) = self.place(*block) else { return };
            if tokens.len() < KV_BLOCK_LENGTH {
                // Its former content is being replaced.
                *place = 0;
                break;
            }
            hashed = hash(hashed, tokens);
            *place = hashed;
            noted += 1;
        }
        fed.noted = (noted, hashed);
    }

    /// Finds what the draft model has computed of a new sequence for earlier ones that begin alike.
    fn find(&mut self, text: DraftText<'_>) -> FedTokens {
        let (mut noted, mut hashed) = (0, HASH_BEGIN);
        // The last token's logits are needed.
        let (whole, _) = text.tokens[..text.tokens.len().saturating_sub(1)].as_chunks::<KV_BLOCK_LENGTH>();
        for (tokens, block) in whole.iter().zip(text.blocks) {
            let next = hash(hashed, tokens);
            if self.place(*block).is_none_or(|place| *place != next) {
                break;
            }
            (noted, hashed) = (noted + 1, next);
        }
        FedTokens { count: Some(noted * KV_BLOCK_LENGTH), noted: (noted, hashed), wanted: 0 }
    }

    fn place(&mut self, block: u32) -> Option<&mut u64> {
        let index = block as usize;
        if index >= self.blocks.len() {
            self.blocks.resize(index + 1, 0);
        }
        self.blocks.get_mut(index)
    }

    /// Time of a draft step for so many sequences, relative to that of a step of `rows` rows.
    fn cost(&self, sequences: usize, rows: usize, latency: &StepLatency) -> Option<f32> {
        let step = latency.answer_time(rows)?;
        Some(self.latency.answer_time(sequences).map_or(COST_FIRST, |time| time / step))
    }

    /// Nanoseconds in which it computes tokens that it has not seen.
    fn catch_up_time(&self, lag: usize, step: f32) -> f32 {
        let row = self.latency.answer_time(1).unwrap_or(COST_FIRST * step);
        self.latency.prompt_time(lag, lag).map_or(ROW_FIRST * row * lag as f32, |time| time.0 as f32)
    }

    /// Whether it pays that the draft model computes the tokens that it has not seen, if the proposals then yield `gain`
    /// times as many tokens.
    fn catches_up(&self, lag: usize, left: usize, gain: f32, step: f32) -> bool {
        let time = self.catch_up_time(lag, step);
        lag <= ROWS_MAX || time < left.min(AHEAD) as f32 * step * (1.0 - 1.0 / gain.max(1.0))
    }
}

impl SequenceDrafts {
    /// Drops all proposals but the first `most`, and the record of computed tokens behind them.
    pub(super) fn keep(&mut self, most: usize) {
        self.tokens.truncate(most);
        let end = self.after + self.tokens.len();
        self.fed.count = self.fed.count.map(|count| count.min(end));
        self.fed.wanted = 0;
    }

    /// Adds what the draft model computes next: at most `room` tokens that it has not seen, and a token is sampled from
    /// the logits of the last one. Returns their number.
    pub fn feed(&mut self, slot: Slot, text: &[u32], room: usize, entries: &mut Vec<PlanEntry>) -> usize {
        if self.tokens.len() >= self.fed.wanted {
            return 0;
        }
        let (begin, length) = (self.fed.count.unwrap_or(0), text.len() + self.tokens.len());
        let end = length.min(begin + room);
        let all = text.iter().chain(&self.tokens).enumerate();
        entries.extend(all.take(end).skip(begin).map(|(index, token)| PlanEntry {
            slot,
            position: index as u32,
            token: *token,
            wants_logits: index + 1 == length,
        }));
        self.fed.count = Some(end);
        if end < length {
            // It continues before the next step.
            self.fed.wanted = 0;
        }
        end - begin
    }

    /// Whether it has speculative tokens.
    pub fn is_proposed(&self) -> bool {
        !self.tokens.is_empty()
    }
}

impl Speculation {
    /// Speculative decoding with a draft model, if there is one: of so many token ids, and whether it is a predictor.
    pub fn with_draft_model(kind: Option<(usize, bool)>) -> Self {
        let draft_model = kind.map(|(vocabulary, is_predictor)| DraftModelUse {
            vocabulary,
            is_predictor,
            latency: StepLatency::default(),
            blocks: Vec::new(),
            is_drafting: false,
            tries: false,
            credit: 0.0,
        });
        Self { draft_model, ..Self::default() }
    }

    /// Whether the steps of the draft model before a step have begun; sets whether they have.
    pub fn set_drafting(&mut self, is_drafting: bool) -> bool {
        let draft = self.draft_model.as_mut();
        draft.is_some_and(|draft| std::mem::replace(&mut draft.is_drafting, is_drafting))
    }

    /// Whether there is a draft model.
    pub fn has_draft_model(&self) -> bool {
        self.draft_model.is_some()
    }

    /// Chooses how many tokens the draft model proposes for a sequence before a step with this room, and adds them to
    /// `sum`. Returns their number.
    pub fn choose(
        &mut self,
        drafts: &mut SequenceDrafts,
        text: DraftText<'_>,
        room: DraftRoom,
        latency: &StepLatency,
        sum: &mut DraftSum,
    ) -> usize {
        drafts.fed.wanted = 0;
        let (most, rows) = (room.most.min(drafts.most), room.rows);
        let Some(draft) = self.draft_model.as_mut().filter(|_| most > 0) else { return 0 };
        let Some((cost, step)) = draft.cost(rows, rows, latency).zip(latency.answer_time(rows)) else { return 0 };
        if draft.is_predictor {
            drafts.fed.count = Some(text.tokens.len().saturating_sub(1));
        } else {
            if drafts.fed.count.is_none() {
                drafts.fed = draft.find(text);
            }
            draft.note(&mut drafts.fed, text);
        }
        let fed = drafts.fed.count.unwrap_or(0);
        if text.tokens[fed..].iter().any(|token| *token as usize >= draft.vocabulary) {
            // The vocabulary of its file is shorter.
            drafts.fed.count = Some(text.tokens.len());
            return 0;
        }
        let acceptance = &mut drafts.acceptance;
        let looked_up = find(text.tokens).map(|found| ProposalSource::Lookup(found.length));
        let looked_up = looked_up.map_or(0.0, |source| acceptance.best(source, most, rows, latency, 0.0).rate);
        let best = acceptance.best(ProposalSource::DraftModel, most, rows, latency, cost / rows as f32);
        let (lag, gain) = (text.tokens.len() - fed, best.rate / rows as f32);
        if best.rate < looked_up {
            return 0;
        }
        let pays = best.count > 0 && draft.catches_up(lag, text.left, gain, step);
        let count = acceptance.retried(ProposalSource::DraftModel, if pays { best.count } else { 0 }, most);
        if !pays && (lag > LAG_TRIED_MAX || cost * step + draft.catch_up_time(lag, step) > draft.credit) {
            return 0;
        }
        drafts.fed.wanted = count;
        drafts.after = text.tokens.len();
        if count > 0 {
            sum.add(count, best);
            sum.tries |= !pays;
        }
        count
    }

    /// Whether the proposals that were chosen for all sequences of a step of `rows` rows pay together.
    pub fn pays(&mut self, sum: &DraftSum, rows: usize, latency: &StepLatency) -> bool {
        let Some(draft) = self.draft_model.as_mut() else { return false };
        if let Some(step) = latency.answer_time(rows) {
            draft.credit = (draft.credit + TRIED_SHARE * step).min(TRIED_SHARE * TRIED_STEPS * step);
        }
        draft.tries = sum.tries;
        if sum.tokens == 0 {
            return false;
        }
        let cost = draft.cost(sum.sequences, rows, latency).unwrap_or(COST_FIRST);
        let time = latency.relative(rows + sum.tokens, rows) + cost * sum.longest as f32;
        sum.tries || rows as f32 + sum.accepted > rows as f32 * time
    }

    /// Takes a token that the draft model proposes for a sequence. An id outside of either vocabulary, or a marker of an
    /// error, ends the proposal.
    pub fn drafted(&self, drafts: &mut SequenceDrafts, token: u32, vocabulary: usize) {
        let own = self.draft_model.as_ref().map_or(0, |draft| draft.vocabulary);
        if (token as usize) >= own.min(vocabulary) || drafts.tokens.len() >= drafts.fed.wanted {
            drafts.fed.wanted = 0;
            return;
        }
        if drafts.tokens.is_empty() {
            (drafts.source, drafts.accepted) = (ProposalSource::DraftModel, 0);
        }
        drafts.tokens.push(token);
    }

    /// Records the time of a draft step of so many tokens.
    pub fn record_draft_time(&mut self, tokens: usize, is_prompt: bool, time: Nanoseconds) {
        if let Some(draft) = &mut self.draft_model {
            draft.latency.observe(tokens, is_prompt, time);
            if draft.tries {
                draft.credit -= time.0 as f32;
            }
        }
    }
}

impl DraftSum {
    fn add(&mut self, count: usize, gain: Gain) {
        self.sequences += 1;
        self.tokens += count;
        self.longest = self.longest.max(count);
        self.accepted += gain.accepted;
    }
}
