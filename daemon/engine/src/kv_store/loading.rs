//! Reads stored blocks and states into the memory of a rank, between its steps.
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
    mpsc::{Receiver, SyncSender, TryRecvError},
};

use common::limits::KV_BLOCK_LENGTH;

use super::{
    label::{Kind, Label, LabelBase, Stored},
    order::{LoadId, LoadStatus, StoreOrder},
    port::{Found, Read},
    shape::Shape,
};
use crate::model::Memories;

/// Most bytes copied between two steps: about a millisecond, so that running answers do not wait.
const BETWEEN_STEPS: usize = 4 << 20;

/// A load in progress.
#[derive(Debug)]
struct Load {
    load: LoadId,
    /// The sequence's blocks from the first wanted one on.
    blocks: Vec<u32>,
    /// Its blocks in layers with a window, behind the number of wanted ones before the first of them.
    windowed: (usize, Vec<u32>),
    state: Option<u16>,
    status: LoadStatus,
    is_ended: Arc<AtomicBool>,
}

/// What a rank loads.
#[derive(Debug)]
pub(super) struct Loading {
    base: LabelBase,
    list: Vec<Load>,
    reads: SyncSender<Read>,
    found: Receiver<Found>,
}

impl Loading {
    /// Nothing is loaded yet.
    pub(super) fn new(reads: SyncSender<Read>, found: Receiver<Found>, base: LabelBase) -> Self {
        Self { base, list: Vec::new(), reads, found }
    }

    /// Whether anything is being read.
    pub(super) fn is_busy(&self) -> bool {
        self.list.iter().any(|load| !load.status.is_over)
    }

    /// Executes an order of the head; false if it is invalid.
    pub(super) fn execute(&mut self, order: &StoreOrder, shape: &Shape) -> bool {
        match order {
            StoreOrder::Load { .. } => return self.begin(order, shape),
            StoreOrder::End { load } => {
                let ended = self.list.extract_if(.., |known| known.load == *load);
                ended.for_each(|load| load.is_ended.store(true, Ordering::Relaxed));
            }
            StoreOrder::Tell { .. } => {}
        }
        true
    }

    fn begin(&mut self, order: &StoreOrder, shape: &Shape) -> bool {
        let (StoreOrder::Load { load, tokens, first_block, blocks, state, .. }, Some(wanted)) = (order, order.wanted())
        else {
            return false;
        };
        let ((texts, []), first) = (tokens.as_chunks(), *first_block as usize) else { return false };
        let is_new = self.list.iter().all(|known| known.load < *load);
        if !is_new || first >= texts.len() || texts.len() > blocks.len() || shape.has_states != state.is_some() {
            return false;
        }
        let mut before = self.base.space.beginning();
        let labels = texts.iter().map(|tokens: &[u32; KV_BLOCK_LENGTH]| {
            let label = self.base.block(before, tokens);
            before = label.name();
            label
        });
        let mut labels: Vec<Label> = labels.collect();
        if let (true, Some(last)) = (shape.has_states, labels.last()) {
            labels.push(Label { kind: Kind::State, ..*last });
        }
        let is_ended = Arc::new(AtomicBool::new(false));
        let read = Read { load: *load, labels: labels.split_off(first), is_ended: Arc::clone(&is_ended) };
        // Each slot has one load at a time, so there is room.
        let status = LoadStatus { is_over: self.reads.try_send(read).is_err(), ..LoadStatus::NOTHING };
        let (before, windowed) = wanted.windowed;
        let windowed = (before, windowed.to_vec());
        let blocks = wanted.whole[..texts.len() - first].to_vec();
        self.list.push(Load { load: *load, blocks, windowed, state: *state, status, is_ended });
        true
    }

    /// Status of a load.
    pub(super) fn status(&self, load: LoadId) -> LoadStatus {
        let known = self.list.iter().find(|known| known.load == load);
        known.map_or(LoadStatus::NOTHING, |known| known.status)
    }

    /// Stores files that were read in the memory of the rank; returns whether there was anything.
    pub(super) fn step(&mut self, shape: &Shape, memories: &mut Memories<'_>) -> bool {
        let mut bytes = 0;
        while bytes < BETWEEN_STEPS && self.is_busy() {
            let Found { load, stored } = match self.found.try_recv() {
                Ok(found) => found,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.list.iter_mut().for_each(|load| load.status.is_over = true);
                    break;
                }
            };
            let files = stored.iter().flat_map(|(_, files)| files);
            bytes += 1 + files.map(|file| file.payload().len()).sum::<usize>();
            if let Some(load) = self.list.iter_mut().find(|known| known.load == load) {
                load.take(stored.as_ref(), shape, memories);
            }
        }
        bytes > 0
    }
}

impl Load {
    fn take(&mut self, stored: Option<&(Kind, Vec<Stored>)>, shape: &Shape, memories: &mut Memories<'_>) {
        let (index, all) = (self.status.blocks as usize, self.blocks.len());
        let is_taken = match stored {
            Some((Kind::Block, files)) if index < all => {
                let windowed = index.checked_sub(self.windowed.0).and_then(|index| self.windowed.1.get(index));
                let files = files.iter().map(Stored::payload);
                let is_taken = shape.take_block(memories.cache, self.blocks[index], windowed.copied(), files);
                self.status.blocks += u32::from(is_taken);
                self.status.is_complete = is_taken && index + 1 == all && self.state.is_none();
                is_taken
            }
            Some((Kind::State, files)) => {
                let files = files.iter().map(Stored::payload);
                let is_taken = self.state.is_some_and(|state| shape.take_state(memories.states, state, files));
                self.status.is_complete = is_taken && index == all;
                is_taken
            }
            _ => false,
        };
        self.status.is_over |= !is_taken;
    }
}
