//! One step on one rank, head or not: apply the plan, receive hidden states, run the layers, then hand the states over
//! or summarise the logits of this rank's vocabulary slice.
mod draft;
mod transfers;

use std::time::Instant;

use common::{ids::Rank, units::Nanoseconds};
use protocol::frame::FrameKind;
use telemetry::RankTotals;
use topology::Place;

pub use draft::DraftModel;

use super::{
    plan::{Limits, Plan, Sequences},
    sample::{Slice, Summary},
    step_latency::ROWS_MAX,
    structured_output::TokenMasks,
    transfer::Transfers,
};
use crate::error::EngineError;
use crate::{
    collective::Group,
    kv_store::KvStore,
    model::{BatchToken, Model},
};

/// Executes steps on one rank.
#[derive(Debug)]
pub struct Worker {
    /// Its position in the replica.
    pub place: Place,
    /// This rank's model.
    pub model: Model,
    /// Links to the other ranks.
    pub group: Group,
    /// The running sequences.
    pub sequences: Sequences,
    /// Constraints on the answers of some of them, on the last stage.
    pub masks: TokenMasks,
    /// KV transfers between groups; none unless the topology's groups have roles.
    pub transfers: Transfers,
    /// Keys and values on this rank's disk.
    pub store: KvStore,
    /// The draft model, if the topology has one.
    pub draft: Option<DraftModel>,
    /// One slice for each row of a batch that wants logits.
    slices: Vec<Slice>,
    /// Time accounting of the ranks that hand over to this one, stage by stage, and of this rank last.
    totals: Vec<RankTotals>,
    payload: Vec<u8>,
    /// When the latest step finished its layers and its output.
    computed: Instant,
}

impl Worker {
    /// Creates a rank without sequences.
    pub fn new(place: Place, model: Model, mut group: Group, limits: Limits) -> Self {
        group.timing.watch(model.compute().pool.clock());
        let (sequences, totals) = (Sequences::new(limits), vec![RankTotals::default(); usize::from(place.stage) + 1]);
        let vocabulary = model.shard().plan.vocabulary.clone();
        // Reserve for the largest batch; untouched pages cost nothing.
        let slices = (0..ROWS_MAX).map(|_| Slice::with_room(vocabulary.start as u32, vocabulary.len())).collect();
        let (masks, transfers, payload) = (TokenMasks::default(), Transfers::default(), Vec::new());
        let (store, computed) = (KvStore::default(), Instant::now());
        Self { place, model, group, sequences, masks, transfers, store, draft: None, slices, totals, payload, computed }
    }

    /// Applies a plan and runs the layers. On the last stage, leaves in `summaries` one summary for each token that
    /// wants logits, in the plan's order; on other stages it stays empty.
    ///
    /// # Errors
    /// The plan cannot be applied, or a peer is lost.
    pub fn step(&mut self, plan: &Plan, summaries: &mut Vec<Summary>) -> Result<(), EngineError> {
        summaries.clear();
        self.draft.iter_mut().for_each(|draft| draft.is_latest = false);
        self.sequences.apply(plan)?;
        self.model.copy_blocks(&plan.copies);
        self.model.copy_states(&plan.states);
        let batch = self.sequences.batch();
        let tokens = batch.tokens;
        if let Some(before) = self.place.before() {
            let (hidden, totals) = (self.model.hidden(tokens.len()), &mut self.totals[..usize::from(self.place.stage)]);
            let mut read = Ok(());
            self.group.take_over(before, hidden, |bytes| read = decode_totals(bytes, totals))?;
            read?;
        }
        if self.place.is_last_stage() {
            // Other threads prepare grammars while the layers run.
            if plan.prepares {
                self.masks.prepare();
            }
            self.masks.apply(plan);
        }
        let vocabulary = self.model.shard().plan.vocabulary.clone();
        self.store.step(self.model.memories());
        self.transfers.forward(&mut self.model, batch, &mut self.group)?;
        self.store.stepped(plan, &self.sequences, self.model.memories());
        if let Some(draft) = &mut self.draft {
            draft.follow(&self.model, self.sequences.draft_batch(), &plan.copies)?;
        }
        self.computed = Instant::now();
        let logits = self.model.logits();
        if let Some(next) = self.place.next() {
            let wants_logits = tokens.iter().any(|token| token.wants_logits);
            return self.hand_over(next, tokens.len(), wants_logits);
        }
        let wanted = tokens.iter().filter(|token| token.wants_logits);
        for (index, BatchToken { slot, position, .. }) in wanted.enumerate() {
            let sequence = self.sequences.get(*slot).ok_or(EngineError::Message(FrameKind::Plan))?;
            let logits = &logits[index * vocabulary.len()..(index + 1) * vocabulary.len()];
            let history = &sequence.tokens[..=*position as usize];
            let slice = self.slices.get_mut(index).ok_or(EngineError::Message(FrameKind::Plan))?;
            if let Some(id) = sequence.prompted_after(*position) {
                summaries.push(slice.prompted(&sequence.sampling, id, logits));
                continue;
            }
            let mask = self.masks.mask(*slot, history);
            summaries.push(slice.summary(&sequence.sampling, *position, history, logits, mask));
        }
        Ok(())
    }

    /// Sends hidden states to the next stage; a step that samples tokens also carries the time accounting of this rank
    /// and the previous ones.
    fn hand_over(&mut self, next: Rank, tokens: usize, wants_logits: bool) -> Result<(), EngineError> {
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        if wants_logits {
            payload = self.take_totals().iter().fold(payload, |room, totals| encode_totals(totals, room));
        }
        self.payload = payload;
        self.group.hand_over(next, self.model.hidden(tokens), &self.payload)?;
        Ok(())
    }

    /// Takes the time accounting since the last call: previous ranks stage by stage, this rank last.
    pub fn take_totals(&mut self) -> &[RankTotals] {
        if let Some(own) = self.totals.last_mut() {
            *own = self.group.timing.take_totals();
        }
        &self.totals
    }

    /// Time since the latest step finished its layers and its output.
    pub fn since_computed(&self) -> Nanoseconds {
        Nanoseconds(self.computed.elapsed().as_nanos() as u64)
    }

    /// This rank's slice for a row of the latest step.
    pub fn slice(&mut self, place: usize) -> Option<&mut Slice> {
        match self.draft.as_mut().filter(|draft| draft.is_latest) {
            Some(draft) => draft.slice(place),
            None => self.slices.get_mut(place),
        }
    }
}

/// Message of another rank to the sampler after a step: its time accounting since the last message, and its summaries.
#[derive(Debug)]
pub struct CandidatesMessage;

impl CandidatesMessage {
    /// Appends the payload of the frame.
    pub fn encode(totals: &[RankTotals], summaries: &[Summary], payload: &mut Vec<u8>) {
        let room = std::mem::take(payload);
        *payload = totals.iter().fold(room, |room, totals| encode_totals(totals, room));
        summaries.iter().for_each(|summary| summary.encode(payload));
    }

    /// Decodes a payload, which must contain an entry for each of `totals` and exactly `count` summaries; appends the
    /// summaries.
    ///
    /// # Errors
    /// The payload is malformed.
    pub fn decode<'a>(
        payload: &[u8],
        totals: impl Iterator<Item = &'a mut RankTotals>,
        count: usize,
        summaries: &mut Vec<Summary>,
    ) -> Result<(), EngineError> {
        let broken = || EngineError::Message(FrameKind::Candidates);
        let mut rest = payload;
        for place in totals {
            (*place, rest) = postcard::take_from_bytes(rest).map_err(|_| broken())?;
        }
        for _ in 0..count {
            let (summary, left) = Summary::decode(rest)?;
            summaries.push(summary);
            rest = left;
        }
        if rest.is_empty() { Ok(()) } else { Err(broken()) }
    }
}

/// Decodes the totals of each rank, or nothing from an empty payload: they then stay unchanged.
fn decode_totals(bytes: &[u8], totals: &mut [RankTotals]) -> Result<(), EngineError> {
    let broken = || EngineError::Message(FrameKind::HandOver);
    let mut rest = bytes;
    if rest.is_empty() {
        return Ok(());
    }
    for place in totals {
        (*place, rest) = postcard::take_from_bytes(rest).map_err(|_| broken())?;
    }
    if rest.is_empty() { Ok(()) } else { Err(broken()) }
}

/// Appends the encoded totals of a rank.
pub(super) fn encode_totals(totals: &RankTotals, room: Vec<u8>) -> Vec<u8> {
    postcard::to_extend(totals, room).expect("sums are plain numbers")
}
