//! The plan of a step: what the head tells every rank, and the sequences that a rank knows because of it.
use serde::{Deserialize, Serialize};
use shared::{
    ids::Slot,
    sampling::SamplingParameters,
    topology::{Topology, spec::KV_BLOCK_LENGTH},
};

use crate::model::BatchToken;

/// Most tokens in a step: a prompt goes through the layers in chunks of this, mixed with the tokens of running answers.
pub const STEP_TOKENS_MAX: usize = 128;

/// One step, as the head decided it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The head had work right before: waiting for this plan was waiting, not idleness.
    pub continues: bool,
    /// Whether prompt tokens are in it.
    pub is_prefill: bool,
    /// Sequences that begin.
    pub opened: Vec<Opened>,
    /// Sequences that ended before this step.
    pub closed: Vec<Slot>,
    /// KV blocks appended to sequences, in order.
    pub blocks: Vec<(Slot, u32)>,
    /// The step's tokens.
    pub entries: Vec<PlanEntry>,
}

/// A sequence that begins: all that a surviving rank needs to continue it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    /// Its place.
    pub slot: Slot,
    /// How its tokens are drawn.
    pub sampling: SamplingParameters,
    /// Its prompt.
    pub prompt: Vec<u32>,
}

/// A token of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanEntry {
    /// Its sequence.
    pub slot: Slot,
    /// Its place in the sequence.
    pub position: u32,
    /// Its id.
    pub token: u32,
    /// Whether a token is sampled after it.
    pub wants_logits: bool,
}

/// Why a plan cannot be followed: the ranks are out of step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plan of the head cannot be followed: {0}")]
pub struct PlanError(String);

/// What bounds a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences at the same time.
    pub slots: usize,
    /// KV blocks of each rank.
    pub blocks: usize,
    /// Longest sequence.
    pub context_length: usize,
    /// Ids are below this.
    pub vocabulary_length: usize,
}

impl Limits {
    /// The limits of a topology with a model of `vocabulary_length` tokens.
    pub fn of(topology: &Topology, vocabulary_length: usize) -> Self {
        Self {
            slots: usize::from(topology.slots),
            blocks: topology.kv_block_count(),
            context_length: topology.context_length as usize,
            vocabulary_length,
        }
    }
}

/// A running sequence, the same on every rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// How its tokens are drawn.
    pub sampling: SamplingParameters,
    /// Prompt and tokens fed so far.
    pub tokens: Vec<u32>,
}

/// The sequences and block tables of one rank, kept by applying plans.
#[derive(Debug)]
pub struct Sequences {
    limits: Limits,
    slots: Vec<Option<Sequence>>,
    blocks: Vec<Vec<u32>>,
    batch: Vec<BatchToken>,
}

impl Plan {
    /// The bytes of the frame's payload.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a plan holds only types that postcard encodes")
    }

    /// Reads the payload of a frame.
    ///
    /// # Errors
    /// Bytes that are no plan.
    pub fn decode(bytes: &[u8]) -> Result<Self, PlanError> {
        postcard::from_bytes(bytes).map_err(|error| PlanError(error.to_string()))
    }
}

impl Sequences {
    /// No sequences.
    pub fn new(limits: Limits) -> Self {
        let slots = (0..limits.slots).map(|_| None).collect();
        Self { limits, slots, blocks: vec![Vec::new(); limits.slots], batch: Vec::new() }
    }

    /// The sequence in a slot.
    pub fn get(&self, slot: Slot) -> Option<&Sequence> {
        self.slots.get(slot.index()).and_then(Option::as_ref)
    }

    /// The step's tokens after [`Self::apply`], and the block tables.
    pub fn batch(&self) -> (&[BatchToken], &[Vec<u32>]) {
        (&self.batch, &self.blocks)
    }

    /// Takes over a plan: closes, opens, appends blocks and notes the tokens.
    ///
    /// # Errors
    /// A slot, block, position or id outside the limits, or a token that does not continue its sequence.
    pub fn apply(&mut self, plan: &Plan) -> Result<(), PlanError> {
        for slot in &plan.closed {
            let sequence = self.slots.get_mut(slot.index());
            sequence.and_then(Option::take).ok_or_else(|| PlanError(format!("slot {slot} is closed twice")))?;
            self.blocks[slot.index()].clear();
        }
        for opened in &plan.opened {
            self.open(opened)?;
        }
        for (slot, block) in &plan.blocks {
            if self.get(*slot).is_none() || *block as usize >= self.limits.blocks {
                return Err(PlanError(format!("block {block} for slot {slot}")));
            }
            self.blocks[slot.index()].push(*block);
        }
        self.batch.clear();
        if plan.entries.is_empty() || plan.entries.len() > STEP_TOKENS_MAX {
            return Err(PlanError(format!("{} tokens in a step", plan.entries.len())));
        }
        plan.entries.iter().try_for_each(|entry| self.enter(entry))
    }

    fn open(&mut self, opened: &Opened) -> Result<(), PlanError> {
        let in_vocabulary = opened.prompt.iter().all(|id| (*id as usize) < self.limits.vocabulary_length);
        let fits = (1..=self.limits.context_length).contains(&opened.prompt.len());
        let place = self.slots.get_mut(opened.slot.index()).filter(|place| place.is_none());
        let (Some(place), true, true) = (place, in_vocabulary, fits) else {
            return Err(PlanError(format!("a sequence of {} tokens in slot {}", opened.prompt.len(), opened.slot)));
        };
        *place = Some(Sequence { sampling: opened.sampling.clone(), tokens: opened.prompt.clone() });
        Ok(())
    }

    fn enter(&mut self, entry: &PlanEntry) -> Result<(), PlanError> {
        let PlanEntry { slot, position, token, wants_logits } = *entry;
        let blocks = self.blocks.get(slot.index()).map_or(0, Vec::len);
        let place = position as usize;
        let error = || PlanError(format!("token {token} at position {position} of slot {slot}"));
        let sequence = self.slots.get_mut(slot.index()).and_then(Option::as_mut).ok_or_else(error)?;
        let is_known = sequence.tokens.get(place) == Some(&token);
        let is_next = place == sequence.tokens.len() && place < self.limits.context_length;
        let in_vocabulary = (token as usize) < self.limits.vocabulary_length;
        if !(is_known || is_next) || !in_vocabulary || place / KV_BLOCK_LENGTH >= blocks {
            return Err(error());
        }
        if is_next {
            sequence.tokens.push(token);
        }
        self.batch.push(BatchToken { slot, position, token, wants_logits });
        Ok(())
    }
}
