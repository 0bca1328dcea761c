//! The head of a decode group: prompts that it has computed elsewhere, from the ask until all ranks hold the keys and values, or until
//! it computes one itself. Pure but for time.
use std::time::{Duration, Instant};

use shared::{
    ids::Slot,
    latency::TransferTimes,
    protocol::across::{Across, Ask},
    topology::spec::{KV_BLOCK_LENGTH, SLOTS_MAX},
    units::Nanoseconds,
};

use super::{Order, TransferId};
use crate::engine::{RequestKey, schedule::Departure};

/// Keys and values of a prompt that is computed must be there within this.
const ARRIVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Asked {
    key: RequestKey,
    slot: Slot,
    transfer: TransferId,
    replica: u16,
    tokens: u32,
    first_block: u32,
    begun: Instant,
    /// When the prefill group said that it is computed, its queueing and its computing.
    done: Option<(Instant, Nanoseconds, Nanoseconds)>,
}

/// A transfer that ended, one way or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The request.
    pub key: RequestKey,
    /// Its place.
    pub slot: Slot,
    /// The transfer.
    pub transfer: TransferId,
    /// The prefill group.
    pub replica: u16,
}

/// The prompts that are computed elsewhere.
#[derive(Debug)]
pub struct Asking {
    /// The prefill groups that are there, and how many prompts each has of this group.
    groups: Vec<(u16, usize)>,
    list: Vec<Asked>,
    latest: u64,
}

impl Asking {
    /// Nothing asked of these groups.
    pub fn new(replicas: &[u16]) -> Self {
        let groups = replicas.iter().map(|replica| (*replica, 0)).collect();
        Self { groups, list: Vec::with_capacity(usize::from(SLOTS_MAX)), latest: 0 }
    }

    /// Whether anybody can be asked.
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Whether anything is under way.
    pub fn is_busy(&self) -> bool {
        !self.list.is_empty()
    }

    /// Asks the least busy group for a prompt: what the own ranks are told first, then whom to ask what.
    pub fn ask(&mut self, departure: &Departure, tokens: &[u32]) -> Option<(Order, u16, Across)> {
        let group = self.groups.iter_mut().min_by_key(|(_, count)| *count)?;
        group.1 += 1;
        let replica = group.0;
        self.latest += 1;
        let (transfer, length) = (TransferId(self.latest), tokens.len() as u32);
        let Departure { key, slot, first_block, .. } = *departure;
        self.list.push(Asked {
            key,
            slot,
            transfer,
            replica,
            tokens: length,
            first_block,
            begun: Instant::now(),
            done: None,
        });
        let order = Order::Receive { transfer, replica, blocks: departure.blocks.clone(), first_block, length };
        let ask = Ask { transfer: transfer.0, tokens: tokens.to_vec(), first_block };
        Some((order, replica, Across::Ask(Box::new(ask))))
    }

    /// A prompt is computed.
    pub fn done(&mut self, replica: u16, transfer: u64, times: (Nanoseconds, Nanoseconds)) {
        let is_it = |asked: &&mut Asked| asked.replica == replica && asked.transfer == TransferId(transfer);
        if let Some(asked) = self.list.iter_mut().find(is_it) {
            asked.done = Some((Instant::now(), times.0, times.1));
        }
    }

    /// The oldest prompt that is computed.
    pub fn computed(&self) -> Option<TransferId> {
        self.list.iter().find(|asked| asked.done.is_some()).map(|asked| asked.transfer)
    }

    /// All that is under way.
    pub fn transfers(&self) -> impl Iterator<Item = TransferId> {
        self.list.iter().map(|asked| asked.transfer)
    }

    /// Whether what is computed did not come in time.
    pub fn is_late(&self, transfer: TransferId) -> bool {
        let asked = self.list.iter().find(|asked| asked.transfer == transfer);
        asked.and_then(|asked| asked.done).is_some_and(|(at, ..)| at.elapsed() > ARRIVAL)
    }

    /// All ranks hold it: whose it is, how many tokens are there now, and what it took.
    pub fn arrived(&mut self, transfer: TransferId, bytes: u64) -> Option<(Ended, usize, TransferTimes)> {
        let (ended, asked) = self.remove(transfer)?;
        let (_, queued, compute) = asked.done?;
        let total = asked.begun.elapsed().as_nanos() as u64;
        let visible = Nanoseconds(total.saturating_sub(queued.0).saturating_sub(compute.0));
        let tokens = asked.tokens - asked.first_block * KV_BLOCK_LENGTH as u32;
        Some((ended, asked.tokens as usize, TransferTimes { tokens, bytes, queued, compute, visible }))
    }

    /// It does not come.
    pub fn give_up(&mut self, transfer: TransferId) -> Option<Ended> {
        self.remove(transfer).map(|(ended, _)| ended)
    }

    /// The transfer of a request.
    pub fn of(&self, key: RequestKey) -> Option<TransferId> {
        self.list.iter().find(|asked| asked.key == key).map(|asked| asked.transfer)
    }

    /// A group is gone, for good: what was asked of it.
    pub fn lose(&mut self, replica: u16) -> Vec<TransferId> {
        self.groups.retain(|(group, _)| *group != replica);
        self.list.iter().filter(|asked| asked.replica == replica).map(|asked| asked.transfer).collect()
    }

    fn remove(&mut self, transfer: TransferId) -> Option<(Ended, Asked)> {
        let index = self.list.iter().position(|asked| asked.transfer == transfer)?;
        let asked = self.list.remove(index);
        if let Some(group) = self.groups.iter_mut().find(|(replica, _)| *replica == asked.replica) {
            group.1 -= 1;
        }
        let Asked { key, slot, transfer, replica, .. } = asked;
        Some((Ended { key, slot, transfer, replica }, asked))
    }
}
