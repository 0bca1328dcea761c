//! Loads of stored keys and values on the head: which prompts are read from the disks, from the order until all ranks have
//! read them, or until the rest is computed. Pure except for time.
use std::time::{Duration, Instant};

use common::{
    ids::Slot,
    limits::{KV_BLOCK_LENGTH, SLOTS_MAX},
    units::Nanoseconds,
};

use super::order::{LoadId, LoadStatus, StoreOrder};
use crate::{RequestKey, scheduler::AwaitedPrompt};

/// Fewest tokens that are read.
const LEAST: usize = 2 * KV_BLOCK_LENGTH;
/// Longest time for a load while it is unknown how long its tokens would take to compute.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Every so many loads that are not worth it, one is done all the same: disks recover.
const TRIED: u32 = 32;

/// A load in progress.
#[derive(Debug)]
struct RequestedLoad {
    key: RequestKey,
    slot: Slot,
    load: LoadId,
    /// Tokens that were cached before.
    cached: usize,
    blocks: u32,
    begun: Instant,
    time_max: Duration,
}

/// A load that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedLoad {
    /// Its request.
    pub key: RequestKey,
    /// The slot of the request.
    pub slot: Slot,
    /// Tokens from the beginning of the prompt whose keys and values are there; 0: the sequence begins as without it.
    pub tokens: usize,
    /// Those of them that were read.
    pub read: usize,
}

/// Loads in progress, and how fast they were.
#[derive(Debug)]
pub struct RequestedLoads {
    list: Vec<RequestedLoad>,
    latest: u64,
    /// Whether the model has layers with a window, or states: then a part of a load is of no use.
    is_whole: bool,
    /// Mean time of a token in nanoseconds; unknown before the first load.
    token_time: Option<f64>,
    declined: u32,
    /// Orders that the ranks have not received yet.
    pub(crate) ending: Vec<StoreOrder>,
}

impl RequestedLoads {
    /// No loads, in a model of which a part of a load is of no use if `is_whole`.
    pub fn new(is_whole: bool) -> Self {
        let list = Vec::with_capacity(usize::from(SLOTS_MAX));
        Self { list, latest: 0, is_whole, token_time: None, declined: 0, ending: Vec::new() }
    }

    /// Whether any load needs attention without a step.
    pub fn is_busy(&self) -> bool {
        !self.list.is_empty() || !self.ending.is_empty()
    }

    /// Whether so many tokens are to be read, which take `compute` to compute if that is known.
    pub fn is_worth(&mut self, tokens: usize, compute: Option<Nanoseconds>) -> bool {
        if tokens < LEAST {
            return false;
        }
        let reading = self.token_time.map(|time| time * tokens as f64);
        if reading.zip(compute).is_none_or(|(reading, compute)| reading < compute.0 as f64) {
            return true;
        }
        self.declined = (self.declined + 1) % TRIED;
        self.declined == 0
    }

    /// Begins to read the first `tokens` of a prompt that got its slot; `None` if they are cached meanwhile.
    pub fn begin(
        &mut self,
        prompt: &AwaitedPrompt,
        tokens: &[u32],
        compute: Option<Nanoseconds>,
    ) -> Option<StoreOrder> {
        let AwaitedPrompt { key, slot, state, first_block, .. } = *prompt;
        let blocks = (tokens.len() / KV_BLOCK_LENGTH) as u32;
        let count = blocks.checked_sub(first_block).filter(|count| *count > 0)?;
        self.latest += 1;
        let (load, cached) = (LoadId(self.latest), first_block as usize * KV_BLOCK_LENGTH);
        let time_max = compute.map_or(TIME_MAX, |time| Duration::from_nanos(time.0).max(Duration::from_secs(1)));
        self.list.push(RequestedLoad { key, slot, load, cached, blocks: count, begun: Instant::now(), time_max });
        let (tokens, blocks, windowed) = (tokens.to_vec(), prompt.blocks.clone(), prompt.windowed.clone());
        Some(StoreOrder::Load { load, tokens, first_block, blocks, windowed, state })
    }

    /// The oldest load that this rank has read, or that takes longer than computing.
    pub fn due(&self, status: impl Fn(LoadId) -> LoadStatus) -> Option<LoadId> {
        let mut list = self.list.iter();
        let due = list.find(|load| status(load.load).is_over || load.begun.elapsed() > load.time_max);
        due.map(|load| load.load)
    }

    /// Ends a load of which all ranks have `status` at least; `None` if it continues.
    pub fn end(&mut self, load: LoadId, status: LoadStatus) -> Option<EndedLoad> {
        let index = self.list.iter().position(|known| known.load == load)?;
        let elapsed = self.list[index].begun.elapsed();
        let is_late = elapsed > self.list[index].time_max;
        if !status.is_over && !is_late {
            return None;
        }
        let RequestedLoad { key, slot, cached, blocks, .. } = self.list.remove(index);
        let is_used = if self.is_whole { status.is_complete } else { status.blocks > 0 };
        let read = if is_used { status.blocks.min(blocks) as usize * KV_BLOCK_LENGTH } else { 0 };
        let tokens = if is_used { cached + read } else { 0 };
        // What came too late or not at all counts as slow.
        let measured = elapsed.as_nanos() as f64 / if read > 0 { read as f64 } else { KV_BLOCK_LENGTH as f64 };
        if read > 0 || is_late || !is_used {
            self.token_time = Some(self.token_time.map_or(measured, |known| known + (measured - known) / 4.0));
        }
        self.ending.push(StoreOrder::End { load });
        Some(EndedLoad { key, slot, tokens, read })
    }

    /// Forgets the load of a request that ends.
    pub fn cancel(&mut self, key: RequestKey) {
        let ended = self.list.extract_if(.., |load| load.key == key);
        self.ending.extend(ended.map(|load| StoreOrder::End { load: load.load }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::KvSource;

    fn prompt(key: u64, first_block: u32) -> AwaitedPrompt {
        AwaitedPrompt {
            key: RequestKey(key),
            slot: Slot(1),
            source: KvSource::Store { tokens: 128 },
            blocks: vec![4, 5, 6, 7, 8],
            windowed: (0, Vec::new()),
            state: None,
            first_block,
        }
    }

    const fn status(blocks: u32, is_complete: bool, is_over: bool) -> LoadStatus {
        LoadStatus { blocks, is_complete, is_over }
    }

    #[test]
    fn sequence_continues_behind_what_all_ranks_have() {
        let mut loads = RequestedLoads::new(false);
        let Some(StoreOrder::Load { load, tokens, first_block: 1, .. }) = loads.begin(&prompt(7, 1), &[1; 128], None)
        else {
            panic!("three blocks are wanted")
        };
        assert_eq!((load, tokens.len(), loads.begin(&prompt(8, 4), &[1; 128], None)), (LoadId(1), 128, None));
        assert_eq!(loads.due(|_| status(1, false, false)), None);
        assert_eq!(loads.due(|_| status(3, false, true)), Some(load));
        assert_eq!(loads.end(load, status(2, false, false)), None, "a rank reads on");
        let ended = loads.end(load, status(2, false, true)).expect("a rank has no more");
        assert_eq!((ended.tokens, ended.read, ended.slot), (96, 64, Slot(1)));
        assert_eq!(loads.ending, [StoreOrder::End { load }]);
    }

    #[test]
    fn part_of_a_load_is_of_no_use_with_states_or_windows() {
        for (found, tokens) in [(status(4, true, true), 128), (status(4, false, true), 0)] {
            let mut loads = RequestedLoads::new(true);
            loads.begin(&prompt(7, 0), &[1; 128], None).expect("four blocks are wanted");
            assert_eq!(loads.end(LoadId(1), found).map(|ended| ended.tokens), Some(tokens), "{found:?}");
        }
    }

    #[test]
    fn loads_that_find_nothing_on_another_rank_are_not_repeated() {
        let mut loads = RequestedLoads::new(false);
        let compute = Some(Nanoseconds(1));
        let begin = loads.begin(&prompt(7, 0), &[1; 128], compute).expect("four blocks are wanted");
        let StoreOrder::Load { load, .. } = begin else { panic!("{begin:?}") };
        assert!(loads.end(load, status(0, false, true)).is_some_and(|ended| ended.tokens == 0));
        let asked = (0..TRIED).filter(|_| loads.is_worth(128, compute)).count();
        assert_eq!(asked, 1);
    }

    #[test]
    fn slow_disks_are_left_alone_and_tried_again() {
        let mut loads = RequestedLoads::new(false);
        assert!(!loads.is_worth(LEAST - 1, None) && loads.is_worth(LEAST, Some(Nanoseconds(1))));
        loads.begin(&prompt(7, 0), &[1; 128], Some(Nanoseconds(1))).expect("four blocks are wanted");
        loads.list[0].time_max = Duration::ZERO;
        assert_eq!(loads.due(|_| status(0, false, false)), Some(LoadId(1)), "computing is faster");
        assert_eq!(loads.end(LoadId(1), status(0, false, false)).map(|ended| ended.tokens), Some(0));
        loads.token_time = Some(1e6);
        let asked = (0..TRIED).map(|_| loads.is_worth(100, Some(Nanoseconds(90_000_000)))).collect::<Vec<_>>();
        assert_eq!(asked.iter().filter(|is_worth| **is_worth).count(), 1);
        assert!(loads.is_worth(100, Some(Nanoseconds(110_000_000))));
        loads.begin(&prompt(9, 0), &[1; 128], None).expect("four blocks are wanted");
        loads.cancel(RequestKey(9));
        assert_eq!((loads.list.len(), loads.ending.len()), (0, 2));
    }
}
