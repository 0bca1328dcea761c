//! The plan of a step: what the head sends to every rank, and the sequence state that each rank keeps by applying
//! plans.
use common::{
    ids::Slot,
    limits::{KV_BLOCK_LENGTH, SLOTS_MAX},
    sampling::SamplingParameters,
    tool_use::AnswerGrammar,
};
use models::ModelSpec;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use topology::{KvBlocks, StateCount, Topology, layout::STEP_TOKENS_MAX, state::LOGGED_MAX};

use super::step_latency::ROWS_MAX;
use crate::model::{Batch, BatchToken, BlockTables};

/// One step, as scheduled by the head.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The head had work right before this step: time spent waiting for this plan is waiting, not idling.
    pub continues: bool,
    /// Whether it contains prompt tokens.
    pub is_prefill: bool,
    /// A constrained sequence is about to begin: ranks of the last stage read the vocabulary in the background.
    pub prepares: bool,
    /// Sequences that begin.
    pub opened: Vec<Opened>,
    /// Sequences that ended before this step.
    pub closed: Vec<Slot>,
    /// KV blocks appended to sequences, in order, as (slot, block).
    pub blocks: Vec<(Slot, u32)>,
    /// KV blocks of sequences in layers with a window, as (slot, index in the sequence, block).
    pub windowed: Vec<(Slot, u32, u32)>,
    /// KV blocks to copy before the step, one after another, as (source, destination).
    pub copies: Vec<(u32, u32)>,
    /// States to copy before the step, behind the openings, one after another, as (source, destination).
    pub states: Vec<(u16, u16)>,
    /// The step's tokens.
    pub entries: Vec<PlanEntry>,
}

/// A sequence that begins, with everything a surviving rank needs to continue it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    /// Its slot.
    pub slot: Slot,
    /// Sampling parameters.
    pub sampling: SamplingParameters,
    /// Prompt tokens whose keys and values are cached: their rows are never written, because other sequences may read
    /// them.
    pub cached: u32,
    /// Its prompt.
    pub prompt: Vec<u32>,
    /// Constraint on its answer.
    pub grammar: Option<Constraint>,
}

/// A token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanEntry {
    /// Slot of its sequence.
    pub slot: Slot,
    /// Its position in the sequence.
    pub position: u32,
    /// Token id.
    pub token: u32,
    /// Whether a token is sampled after it, or the next token of the prompt gets a log probability.
    pub wants_logits: bool,
}

/// Most states that a plan copies: each slot may end, begin and be saved on its way.
const STATE_COPIES_MAX: usize = 4 * SLOTS_MAX as usize;

/// Why a plan cannot be applied: the ranks are out of step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the head's plan does not match this rank's state: {0}")]
pub struct PlanError(String);

/// Limits on a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent sequences.
    pub slots: usize,
    /// KV blocks of a layer on each rank.
    pub blocks: KvBlocks,
    /// Longest window of the model; `None`: every layer attends to all positions.
    pub window: Option<usize>,
    /// Longest sequence, in tokens.
    pub context_length: usize,
    /// Exclusive limit on token ids.
    pub vocabulary_length: usize,
    /// States of each recurrent layer; none in a model without such layers.
    pub states: StateCount,
}

impl Limits {
    /// The limits of a topology for a model.
    pub fn of(topology: &Topology, spec: &ModelSpec) -> Self {
        let window = spec.window();
        Self {
            slots: usize::from(topology.slots),
            blocks: topology.kv_blocks(window),
            window,
            context_length: topology.context_length as usize,
            vocabulary_length: spec.vocabulary_length,
            states: StateCount::in_model(spec, usize::from(topology.slots)),
        }
    }
}

/// A running sequence, the same on every rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// Sampling parameters.
    pub sampling: SamplingParameters,
    /// Prompt and tokens fed so far; the last of these may be speculative.
    pub tokens: Vec<u32>,
    /// Number of cached positions, which are never written; length of the prompt, whose tokens are final.
    settled: (usize, usize),
    /// Tokens that the states of recurrent layers follow for good: positions before are never computed again.
    followed: usize,
}

/// Sequences and block tables of one rank, maintained by applying plans.
#[derive(Clone, Debug)]
pub struct Sequences {
    limits: Limits,
    slots: Vec<Option<Sequence>>,
    blocks: Vec<Vec<u32>>,
    /// In layers with a window; empty without one.
    windowed: Vec<Vec<u32>>,
    batch: Vec<BatchToken>,
}

impl Sequence {
    /// Whether a position is the last one of the prompt.
    pub fn ends_prompt(&self, position: u32) -> bool {
        position as usize + 1 == self.settled.1
    }

    /// The token of the prompt after a position, which is not sampled; `None` if the position is the prompt's last one or
    /// behind it.
    pub fn prompted_after(&self, position: u32) -> Option<u32> {
        let next = position as usize + 1;
        self.tokens.get(next).copied().filter(|_| next < self.settled.1)
    }
}

impl Plan {
    /// Empties the plan; its lists keep their capacity.
    pub fn clear(&mut self) {
        let Self { continues, is_prefill, prepares, opened, closed, blocks, windowed, copies, states, entries } = self;
        (*continues, *is_prefill, *prepares) = (false, false, false);
        opened.clear();
        closed.clear();
        blocks.clear();
        windowed.clear();
        copies.clear();
        states.clear();
        entries.clear();
    }

    /// Appends the encoded plan to a frame's payload.
    pub fn encode(&self, payload: &mut Vec<u8>) {
        let room = std::mem::take(payload);
        *payload = postcard::to_extend(self, room).expect("a plan holds only types that postcard encodes");
    }

    /// Decodes a frame's payload in place, reusing the lists: there is one plan per token.
    ///
    /// # Errors
    /// The bytes are not a plan; the contents are then undefined.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<(), PlanError> {
        self.clear();
        let rest = self.read(bytes).map_err(|error| PlanError(error.to_string()))?;
        if rest.is_empty() { Ok(()) } else { Err(PlanError(format!("{} bytes follow its end", rest.len()))) }
    }

    /// Reads the fields in the order of the derived encoding.
    fn read<'a>(&mut self, bytes: &'a [u8]) -> postcard::Result<&'a [u8]> {
        let rest;
        (self.continues, rest) = postcard::take_from_bytes(bytes)?;
        let ((is_prefill, prepares), rest) = postcard::take_from_bytes(rest)?;
        (self.is_prefill, self.prepares) = (is_prefill, prepares);
        let rest = read_list(rest, &mut self.opened)?;
        let rest = read_list(rest, &mut self.closed)?;
        let rest = read_list(rest, &mut self.blocks)?;
        let rest = read_list(rest, &mut self.windowed)?;
        let rest = read_list(rest, &mut self.copies)?;
        let rest = read_list(rest, &mut self.states)?;
        read_list(rest, &mut self.entries)
    }
}

/// Reads a counted list. A count larger than the remaining bytes fails when they run out: each item takes at least one.
fn read_list<'a, T: DeserializeOwned>(bytes: &'a [u8], list: &mut Vec<T>) -> postcard::Result<&'a [u8]> {
    let (count, mut rest) = postcard::take_from_bytes::<u64>(bytes)?;
    for _ in 0..count {
        let item;
        (item, rest) = postcard::take_from_bytes(rest)?;
        list.push(item);
    }
    Ok(rest)
}

impl Sequences {
    /// Creates an empty set.
    pub fn new(limits: Limits) -> Self {
        let slots = (0..limits.slots).map(|_| None).collect();
        let [blocks, windowed] = [(); 2].map(|()| vec![Vec::new(); limits.slots]);
        Self { limits, slots, blocks, windowed, batch: Vec::new() }
    }

    /// The sequence in a slot.
    pub fn get(&self, slot: Slot) -> Option<&Sequence> {
        self.slots.get(slot.index()).and_then(Option::as_ref)
    }

    /// The step's tokens as of the latest [`Self::apply`], and the block tables.
    pub fn batch(&self) -> Batch<'_> {
        Batch { tokens: &self.batch, tables: BlockTables { whole: &self.blocks, windowed: &self.windowed } }
    }

    /// The step's tokens as of the latest [`Self::draft`], and the block tables: all layers of a draft model have the
    /// blocks of layers that attend to everything.
    pub fn draft_batch(&self) -> Batch<'_> {
        Batch { tokens: &self.batch, tables: BlockTables::alike(&self.blocks) }
    }

    /// Applies a plan of a step of the draft model, which has only entries; its vocabulary has `vocabulary` tokens.
    ///
    /// # Errors
    /// A slot, position or id outside the limits, or a token that does not continue its sequence.
    pub fn draft(&mut self, plan: &Plan, vocabulary: usize) -> Result<(), PlanError> {
        self.batch.clear();
        let wanted = plan.entries.iter().filter(|entry| entry.wants_logits).count();
        if plan.entries.is_empty() || plan.entries.len() > STEP_TOKENS_MAX || wanted > ROWS_MAX {
            return Err(PlanError(format!("a draft step of {} tokens is empty or too large", plan.entries.len())));
        }
        plan.entries.iter().try_for_each(|entry| self.enter_draft(entry, vocabulary))
    }

    /// Adds a token to a draft step. Unlike the target model, a draft model may compute any position again.
    fn enter_draft(&mut self, entry: &PlanEntry, vocabulary: usize) -> Result<(), PlanError> {
        let PlanEntry { slot, position, token, wants_logits } = *entry;
        let place = position as usize;
        let blocks = self.blocks.get(slot.index()).map_or(0, Vec::len);
        let error = || PlanError(format!("the draft model is fed token {token} at position {position} of slot {slot}"));
        let sequence = self.slots.get_mut(slot.index()).and_then(Option::as_mut).ok_or_else(error)?;
        let is_known = sequence.tokens.get(place) == Some(&token);
        let is_next = (sequence.settled.1..=sequence.tokens.len()).contains(&place);
        let in_vocabulary = (token as usize) < vocabulary.min(self.limits.vocabulary_length);
        let fits = place < self.limits.context_length && place / KV_BLOCK_LENGTH < blocks;
        let is_taken_back = !is_known && self.batch.iter().any(|one| one.slot == slot && one.position >= position);
        if !(is_known || is_next) || !in_vocabulary || !fits || is_taken_back {
            return Err(error());
        }
        if !is_known {
            sequence.tokens.truncate(place);
            sequence.tokens.push(token);
        }
        self.batch.push(BatchToken { slot, position, token, wants_logits, is_speculative: false });
        Ok(())
    }

    /// Applies a plan: closes and opens sequences, appends blocks and records the tokens.
    ///
    /// # Errors
    /// A slot, block, position or id outside the limits, or a token that does not continue its sequence.
    pub fn apply(&mut self, plan: &Plan) -> Result<(), PlanError> {
        for slot in &plan.closed {
            let sequence = self.slots.get_mut(slot.index());
            sequence.and_then(Option::take).ok_or_else(|| PlanError(format!("it closes idle slot {slot}")))?;
            self.blocks[slot.index()].clear();
            self.windowed[slot.index()].clear();
        }
        for opened in &plan.opened {
            self.open(opened)?;
        }
        for (slot, block) in &plan.blocks {
            let is_running = self.get(*slot).is_some();
            let most = self.limits.context_length.div_ceil(KV_BLOCK_LENGTH);
            let table = self.blocks.get_mut(slot.index()).filter(|table| is_running && table.len() < most);
            let table = table.filter(|_| (*block as usize) < self.limits.blocks.whole);
            table.ok_or_else(|| PlanError(format!("it appends block {block} to slot {slot}")))?.push(*block);
        }
        plan.windowed.iter().try_for_each(|placed| self.place_windowed(placed))?;
        for opened in &plan.opened {
            self.make_room(opened.slot);
        }
        let mut copies = plan.copies.iter();
        let most = self.limits.blocks.whole;
        let is_beyond = copies.any(|(from, to)| (*from).max(*to) as usize >= most);
        if plan.copies.len() > plan.opened.len() || is_beyond {
            return Err(PlanError(format!("it copies blocks {:?} of {most}", plan.copies)));
        }
        let most = self.limits.states.all();
        let is_beyond = plan.states.iter().any(|(from, to)| usize::from((*from).max(*to)) >= most);
        if plan.states.len() > STATE_COPIES_MAX || is_beyond {
            return Err(PlanError(format!("it copies states {:?} of {most}", plan.states)));
        }
        self.batch.clear();
        if plan.entries.is_empty() || plan.entries.len() > STEP_TOKENS_MAX {
            return Err(PlanError(format!("a step of {} tokens is empty or too large", plan.entries.len())));
        }
        let wanted = plan.entries.iter().filter(|entry| entry.wants_logits).count();
        if wanted > ROWS_MAX {
            return Err(PlanError(format!("it requests the logits of {wanted} tokens in one step")));
        }
        plan.entries.iter().try_for_each(|entry| self.enter(entry))?;
        if most > 0 { self.follow() } else { Ok(()) }
    }

    /// Follows the states of recurrent layers, which cannot be taken back, through the step's tokens.
    fn follow(&mut self) -> Result<(), PlanError> {
        let mut logged = 0;
        for run in self.batch.chunk_by(|one, next| one.slot == next.slot) {
            let (first, last) = (run[0], run[run.len() - 1]);
            let Some(sequence) = &mut self.slots[first.slot.index()] else { continue };
            let place = first.position as usize;
            if place < sequence.followed {
                return Err(PlanError(format!("it takes the state of slot {} back to position {place}", first.slot)));
            }
            logged += if last.is_speculative { run.len() } else { 0 };
            sequence.followed = if last.is_speculative { place } else { last.position as usize + 1 };
        }
        if logged > LOGGED_MAX {
            return Err(PlanError(format!("{logged} tokens of sequences with speculative tokens in one step")));
        }
        Ok(())
    }

    /// Places a block of a sequence in layers with a window. The blocks before the first one fell out of the window.
    fn place_windowed(&mut self, placed: &(Slot, u32, u32)) -> Result<(), PlanError> {
        let (slot, index, block) = *placed;
        let is_there = (index as usize) < self.blocks.get(slot.index()).map_or(0, Vec::len)
            && (block as usize) < self.limits.blocks.windowed;
        let table = self.windowed.get_mut(slot.index()).filter(|_| is_there);
        let table = table.ok_or_else(|| PlanError(format!("it places block {block} at {index} of slot {slot}")))?;
        table.resize(table.len().max(index as usize + 1), 0);
        table[index as usize] = block;
        Ok(())
    }

    fn open(&mut self, opened: &Opened) -> Result<(), PlanError> {
        let in_vocabulary = opened.prompt.iter().all(|id| (*id as usize) < self.limits.vocabulary_length);
        let fits = (1..=self.limits.context_length).contains(&opened.prompt.len());
        let place = self.slots.get_mut(opened.slot.index()).filter(|place| place.is_none());
        let settled = (opened.cached as usize, opened.prompt.len());
        let (Some(place), true, true, true) = (place, in_vocabulary, fits, settled.0 < settled.1) else {
            return Err(PlanError(format!("a sequence of {} tokens for slot {}", opened.prompt.len(), opened.slot)));
        };
        *place = Some(Sequence {
            sampling: opened.sampling.clone(),
            tokens: opened.prompt.clone(),
            settled,
            followed: settled.0,
        });
        Ok(())
    }

    /// Reserves capacity for all tokens that a new sequence's blocks can hold, so that no token allocates later.
    fn make_room(&mut self, slot: Slot) {
        let most = self.blocks[slot.index()].len() * KV_BLOCK_LENGTH;
        if let Some(sequence) = self.slots[slot.index()].as_mut() {
            sequence.tokens.reserve(most.saturating_sub(sequence.tokens.len()));
        }
        if self.limits.window.is_some() {
            let (most, table) = (self.blocks[slot.index()].len(), &mut self.windowed[slot.index()]);
            table.reserve(most.saturating_sub(table.len()));
        }
    }

    fn enter(&mut self, entry: &PlanEntry) -> Result<(), PlanError> {
        let PlanEntry { slot, position, token, wants_logits } = *entry;
        let blocks = self.blocks.get(slot.index()).map_or(0, Vec::len);
        let windowed = self.windowed.get(slot.index()).map_or(0, Vec::len);
        let blocks = if self.limits.window.is_some() { blocks.min(windowed) } else { blocks };
        let place = position as usize;
        let error = || PlanError(format!("it feeds token {token} at position {position} of slot {slot}"));
        let sequence = self.slots.get_mut(slot.index()).and_then(Option::as_mut).ok_or_else(error)?;
        let (cached, settled) = sequence.settled;
        let is_known = (cached..settled).contains(&place) && sequence.tokens[place] == token;
        // After the prompt, a token may replace a rejected speculative token and all tokens after that.
        let is_next = (settled..=sequence.tokens.len()).contains(&place) && place < self.limits.context_length;
        let in_vocabulary = (token as usize) < self.limits.vocabulary_length;
        // It replaces tokens of earlier steps, never of this one.
        let replaces = is_next && place < sequence.tokens.len();
        let is_taken_back = replaces && self.batch.iter().any(|one| one.slot == slot && one.position >= position);
        if !(is_known || is_next) || !in_vocabulary || place / KV_BLOCK_LENGTH >= blocks || is_taken_back {
            return Err(error());
        }
        if is_next {
            sequence.tokens.truncate(place);
            sequence.tokens.push(token);
        }
        let before = self.batch.last().filter(|before| before.slot == slot);
        // Tokens of the prompt are final, also where their log probabilities are wanted.
        let is_speculative = is_next && before.is_some_and(|before| before.wants_logits);
        self.batch.push(BatchToken { slot, position, token, wants_logits, is_speculative });
        Ok(())
    }
}

/// Constraint on the answer of a sequence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constraint {
    /// Form of the answer.
    pub grammar: AnswerGrammar,
    /// Position of the answer's first token.
    pub begin: u32,
}

impl Constraint {
    /// Whether it holds only from a call on.
    pub fn is_lazy(&self) -> bool {
        matches!(&self.grammar, AnswerGrammar::Calls(calls) if !calls.is_required)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One slot with one block.
    pub(crate) const LIMITS: Limits = Limits {
        slots: 1,
        blocks: KvBlocks::alike(1),
        window: None,
        context_length: 32,
        vocabulary_length: 10,
        states: StateCount::NONE,
    };

    fn entries(list: &[(u32, u32)]) -> Vec<PlanEntry> {
        list.iter()
            .map(|&(position, token)| PlanEntry { slot: Slot(0), position, token, wants_logits: false })
            .collect()
    }

    #[test]
    fn a_step_replaces_tokens_of_earlier_steps_only() {
        let opened = Opened {
            slot: Slot(0),
            sampling: SamplingParameters::default(),
            cached: 0,
            prompt: vec![1, 2],
            grammar: None,
        };
        let first = Plan {
            opened: vec![opened],
            blocks: vec![(Slot(0), 0)],
            entries: entries(&[(0, 1), (1, 2)]),
            ..Plan::default()
        };
        let step = |list| Plan { entries: entries(list), ..Plan::default() };
        let mut sequences = Sequences::new(LIMITS);
        sequences.apply(&first).expect("it begins");
        sequences.apply(&step(&[(2, 3), (3, 4)])).expect("they follow");
        sequences.apply(&step(&[(2, 5), (3, 6)])).expect("rejected tokens are replaced");
        assert_eq!(sequences.get(Slot(0)).expect("it runs").tokens, [1, 2, 5, 6]);
        for wrong in [&[(4, 7), (2, 8)][..], &[(4, 7), (4, 8)]] {
            assert!(sequences.clone().apply(&step(wrong)).is_err(), "{wrong:?}");
            assert!(sequences.clone().draft(&step(wrong), 10).is_err(), "{wrong:?}");
        }
        let again = [(3, 6), (4, 7), (3, 6)];
        assert!(sequences.draft(&step(&again), 10).is_ok(), "a draft model may compute a position again");
    }
}
