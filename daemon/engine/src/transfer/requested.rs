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
/// A group receives no prompt for this long after a transfer from it failed.
const PAUSE: Duration = Duration::from_secs(60);

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

/// Why a transfer ends without its keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferEnd {
    /// The request ended.
    Cancelled,
    /// The prefill group refused the prompt.
    Refused,
    /// The prefill group was lost.
    GroupLost,
    /// They did not arrive in time.
    Late,
    /// A link to the prefill group is broken.
    Failed,
}

/// A prefill group.
#[derive(Debug)]
struct PrefillGroup {
    replica: u16,
    /// Number of prompts that it has from this group.
    count: usize,
    /// When a transfer from it failed; `None` if a later one succeeded.
    failed: Option<Instant>,
}

impl PrefillGroup {
    /// Whether it may receive a prompt. After a failure and a pause, it receives one prompt at a time until one
    /// succeeds: a broken link is not restored before the topology is assigned again.
    fn is_available(&self) -> bool {
        self.failed.is_none_or(|since| self.count == 0 && since.elapsed() > PAUSE)
    }
}

/// Remote prefills in progress.
#[derive(Debug)]
pub struct RequestedPrefills {
    groups: Vec<PrefillGroup>,
    list: Vec<RequestedPrompt>,
    latest: u64,
}

impl RequestedPrefills {
    /// Creates the state for these prefill groups.
    pub fn new(replicas: &[u16]) -> Self {
        let groups = replicas.iter().map(|replica| PrefillGroup { replica: *replica, count: 0, failed: None });
        let groups = groups.collect();
        Self { groups, list: Vec::with_capacity(usize::from(SLOTS_MAX)), latest: 0 }
    }

    /// Whether any prefill group is available.
    pub fn has_groups(&self) -> bool {
        self.groups.iter().any(PrefillGroup::is_available)
    }

    /// Whether any transfer is in progress.
    pub fn is_busy(&self) -> bool {
        !self.list.is_empty()
    }

    /// Sends a prompt to the least busy available group: returns the order for this group's own ranks, the group, and
    /// the message for it.
    pub fn ask(&mut self, remote: &AwaitedPrompt, tokens: &[u32]) -> Option<(TransferOrder, u16, Across)> {
        let available = self.groups.iter_mut().filter(|group| group.is_available());
        let group = available.min_by_key(|group| group.count)?;
        group.count += 1;
        let replica = group.replica;
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
        // A transfer that began before the failure may have been complete when the link broke.
        if let Some(group) = self.group(ended.replica)
            && group.failed.is_some_and(|since| prompt.begun > since)
        {
            group.failed = None;
        }
        let (_, queued, compute) = prompt.done?;
        let total = prompt.begun.elapsed().as_nanos() as u64;
        let visible = Nanoseconds(total.saturating_sub(queued.0).saturating_sub(compute.0));
        let tokens = prompt.tokens - prompt.first_block * KV_BLOCK_LENGTH as u32;
        Some((ended, prompt.tokens as usize, TransferTimes { tokens, bytes, queued, compute, visible }))
    }

    /// Ends a transfer without its keys and values: returns it with the message for the group, if that may still be
    /// computing the prompt.
    pub fn give_up(&mut self, transfer: TransferId, why: TransferEnd) -> Option<(Ended, Option<Across>)> {
        let (ended, _) = self.remove(transfer)?;
        if why == TransferEnd::Failed
            && let Some(group) = self.group(ended.replica)
        {
            group.failed = Some(Instant::now());
        }
        let is_over = matches!(why, TransferEnd::Refused | TransferEnd::GroupLost);
        Some((ended, (!is_over).then_some(Across::Cancel { transfer: transfer.0 })))
    }

    /// The transfer of a request.
    pub fn of(&self, key: RequestKey) -> Option<TransferId> {
        self.list.iter().find(|prompt| prompt.key == key).map(|prompt| prompt.transfer)
    }

    /// Removes a group that was lost, and returns the transfers that it was working on.
    pub fn lose(&mut self, replica: u16) -> Vec<TransferId> {
        self.groups.retain(|group| group.replica != replica);
        self.list.iter().filter(|prompt| prompt.replica == replica).map(|prompt| prompt.transfer).collect()
    }

    fn remove(&mut self, transfer: TransferId) -> Option<(Ended, RequestedPrompt)> {
        let index = self.list.iter().position(|prompt| prompt.transfer == transfer)?;
        let prompt = self.list.remove(index);
        if let Some(group) = self.group(prompt.replica) {
            group.count -= 1;
        }
        let RequestedPrompt { key, slot, transfer, replica, .. } = prompt;
        Some((Ended { key, slot, transfer, replica }, prompt))
    }

    fn group(&mut self, replica: u16) -> Option<&mut PrefillGroup> {
        self.groups.iter_mut().find(|group| group.replica == replica)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::KvSource;

    const GROUP: u16 = 3;

    fn ask(requested: &mut RequestedPrefills) -> Option<TransferId> {
        let (key, slot, source) = (RequestKey(1), Slot(0), KvSource::Group);
        let (blocks, windowed, state) = (vec![0], (0, Vec::new()), None);
        let prompt = AwaitedPrompt { key, slot, source, blocks, windowed, state, first_block: 0 };
        let (order, replica, _) = requested.ask(&prompt, &[1; 8])?;
        assert_eq!(replica, GROUP);
        match order {
            TransferOrder::Receive { transfer, .. } => Some(transfer),
            _ => None,
        }
    }

    fn complete(requested: &mut RequestedPrefills, transfer: TransferId) {
        requested.done(GROUP, transfer.0, (Nanoseconds(0), Nanoseconds(0)));
        requested.arrived(transfer, 1).expect("it is in progress");
    }

    #[test]
    fn group_with_a_broken_link_receives_one_prompt_after_a_pause() {
        let mut requested = RequestedPrefills::new(&[GROUP]);
        let failed = ask(&mut requested).expect("the group is available");
        let complete_before = ask(&mut requested).expect("the group is available");
        let (_, message) = requested.give_up(failed, TransferEnd::Failed).expect("it is in progress");
        assert_eq!(message, Some(Across::Cancel { transfer: failed.0 }));
        assert!(!requested.has_groups() && ask(&mut requested).is_none());
        complete(&mut requested, complete_before);
        assert!(!requested.has_groups(), "it began before the failure");
        requested.groups[0].failed = Instant::now().checked_sub(2 * PAUSE);
        let trial = ask(&mut requested).expect("the pause is over");
        assert!(ask(&mut requested).is_none(), "one prompt shows whether the group can be used");
        requested.give_up(trial, TransferEnd::Failed).expect("it is in progress");
        assert!(!requested.has_groups(), "the next pause has begun");
        requested.groups[0].failed = Instant::now().checked_sub(2 * PAUSE);
        let trial = ask(&mut requested).expect("the pause is over");
        complete(&mut requested, trial);
        assert!(ask(&mut requested).is_some() && ask(&mut requested).is_some(), "it is used as before");
    }

    #[test]
    fn group_that_may_compute_a_prompt_receives_a_cancel() {
        let ends = [
            (TransferEnd::Cancelled, true),
            (TransferEnd::Late, true),
            (TransferEnd::Refused, false),
            (TransferEnd::GroupLost, false),
        ];
        let mut requested = RequestedPrefills::new(&[GROUP]);
        for (why, is_cancelled) in ends {
            let transfer = ask(&mut requested).expect("the group is available");
            let (ended, message) = requested.give_up(transfer, why).expect("it is in progress");
            assert_eq!((ended.replica, message.is_some()), (GROUP, is_cancelled), "{why:?}");
            assert!(requested.has_groups() && !requested.is_busy(), "{why:?}");
        }
    }
}
