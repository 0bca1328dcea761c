//! Remote prefills of a decode group, on its head: from the request to a prefill group until all ranks hold the keys
//! and values, or until the prompt is computed locally. Pure except for time.
use std::time::{Duration, Instant};

use common::{
    ids::Slot,
    latency::TransferTimes,
    limits::{KV_BLOCK_LENGTH, SLOTS_MAX},
    units::Nanoseconds,
};
use protocol::across::{Across, Ask};

use super::{TransferId, TransferOrder};
use crate::{RequestKey, scheduler::AwaitedPrompt};

/// Keys and values of a computed prompt must arrive within this time.
const ARRIVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct RequestedPrompt {
    key: RequestKey,
    slot: Slot,
    transfer: TransferId,
    replica: u16,
    tokens: u32,
    first_block: u32,
    begun: Instant,
    /// When the prefill group reported completion, with its queueing and computing times.
    done: Option<(Instant, Nanoseconds, Nanoseconds)>,
}

/// A transfer that ended, successfully or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Request key.
    pub key: RequestKey,
    /// Its slot.
    pub slot: Slot,
    /// The transfer.
    pub transfer: TransferId,
    /// The prefill group.
    pub replica: u16,
}

/// Remote prefills in progress.
#[derive(Debug)]
pub struct RequestedPrefills {
    /// Available prefill groups, and the number of prompts that each has from this group.
    groups: Vec<(u16, usize)>,
    list: Vec<RequestedPrompt>,
    latest: u64,
}

impl RequestedPrefills {
    /// Creates the state for these prefill groups.
    pub fn new(replicas: &[u16]) -> Self {
        let groups = replicas.iter().map(|replica| (*replica, 0)).collect();
        Self { groups, list: Vec::with_capacity(usize::from(SLOTS_MAX)), latest: 0 }
    }

    /// Whether any prefill group is available.
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Whether any transfer is in progress.
    pub fn is_busy(&self) -> bool {
        !self.list.is_empty()
    }

    /// Sends a prompt to the least busy group: returns the order for this group's own ranks, the group, and the message
    /// for it.
    pub fn ask(&mut self, remote: &AwaitedPrompt, tokens: &[u32]) -> Option<(TransferOrder, u16, Across)> {
        let group = self.groups.iter_mut().min_by_key(|(_, count)| *count)?;
        group.1 += 1;
        let replica = group.0;
        self.latest += 1;
        let (transfer, length) = (TransferId(self.latest), tokens.len() as u32);
        let AwaitedPrompt { key, slot, state, first_block, .. } = *remote;
        self.list.push(RequestedPrompt {
            key,
            slot,
            transfer,
            replica,
            tokens: length,
            first_block,
            begun: Instant::now(),
            done: None,
        });
        let (blocks, windowed) = (remote.blocks.clone(), remote.windowed.clone());
        let order = TransferOrder::Receive { transfer, replica, blocks, windowed, state, first_block, length };
        let ask = Ask { transfer: transfer.0, tokens: tokens.to_vec(), first_block };
        Some((order, replica, Across::Ask(Box::new(ask))))
    }

    /// Records that a prompt is computed.
    pub fn done(&mut self, replica: u16, transfer: u64, times: (Nanoseconds, Nanoseconds)) {
        let transfer = TransferId(transfer);
        let mut list = self.list.iter_mut();
        if let Some(prompt) = list.find(|prompt| prompt.replica == replica && prompt.transfer == transfer) {
            prompt.done = Some((Instant::now(), times.0, times.1));
        }
    }

    /// The oldest computed prompt whose transfer is in progress.
    pub fn computed(&self) -> Option<TransferId> {
        self.list.iter().find(|prompt| prompt.done.is_some()).map(|prompt| prompt.transfer)
    }

    /// All transfers in progress.
    pub fn transfers(&self) -> impl Iterator<Item = TransferId> {
        self.list.iter().map(|prompt| prompt.transfer)
    }

    /// Whether a computed prompt's keys and values did not arrive in time.
    pub fn is_late(&self, transfer: TransferId) -> bool {
        let prompt = self.list.iter().find(|prompt| prompt.transfer == transfer);
        prompt.and_then(|prompt| prompt.done).is_some_and(|(at, ..)| at.elapsed() > ARRIVAL)
    }

    /// Ends a transfer that all ranks have received: returns it with the number of tokens present and its times.
    pub fn arrived(&mut self, transfer: TransferId, bytes: u64) -> Option<(Ended, usize, TransferTimes)> {
        let (ended, prompt) = self.remove(transfer)?;
        let (_, queued, compute) = prompt.done?;
        let total = prompt.begun.elapsed().as_nanos() as u64;
        let visible = Nanoseconds(total.saturating_sub(queued.0).saturating_sub(compute.0));
        let tokens = prompt.tokens - prompt.first_block * KV_BLOCK_LENGTH as u32;
        Some((ended, prompt.tokens as usize, TransferTimes { tokens, bytes, queued, compute, visible }))
    }

    /// Ends a transfer that failed.
    pub fn give_up(&mut self, transfer: TransferId) -> Option<Ended> {
        self.remove(transfer).map(|(ended, _)| ended)
    }

    /// The transfer of a request.
    pub fn of(&self, key: RequestKey) -> Option<TransferId> {
        self.list.iter().find(|prompt| prompt.key == key).map(|prompt| prompt.transfer)
    }

    /// Removes a group that was lost, and returns the transfers that it was working on.
    pub fn lose(&mut self, replica: u16) -> Vec<TransferId> {
        self.groups.retain(|(group, _)| *group != replica);
        self.list.iter().filter(|prompt| prompt.replica == replica).map(|prompt| prompt.transfer).collect()
    }

    fn remove(&mut self, transfer: TransferId) -> Option<(Ended, RequestedPrompt)> {
        let index = self.list.iter().position(|prompt| prompt.transfer == transfer)?;
        let prompt = self.list.remove(index);
        if let Some(group) = self.groups.iter_mut().find(|(replica, _)| *replica == prompt.replica) {
            group.1 -= 1;
        }
        let RequestedPrompt { key, slot, transfer, replica, .. } = prompt;
        Some((Ended { key, slot, transfer, replica }, prompt))
    }
}
