//! Detects a rank that delays its stage for long, from this node's all-reduces; the input of the circuit breaker. Pure:
//! sums over the parts of a sliding window that the driver advances.
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use common::{ids::Rank, latency::ratio};
use protocol::recovery::Slow;
use telemetry::SyncRecord;

/// Parts of a window: in nearly every part with work the same rank must be last.
const PARTS: usize = 20;
/// A stage without its straggler must need at most this share of the time that it needs with it; otherwise the rank
/// stays.
const WORTH: f64 = 0.8;

/// Sums of one part of the window.
#[derive(Clone, Debug, Default)]
pub struct WindowPart {
    /// Nanoseconds of this node's all-reduces, including the computation before each.
    time: u64,
    /// Nanoseconds of `time` that this node spent computing.
    compute: u64,
    /// Nanoseconds of `time` in which only this rank's data was missing.
    late: BTreeMap<Rank, u64>,
}

impl WindowPart {
    /// Adds an all-reduce of this node.
    pub fn add(&mut self, record: &SyncRecord) {
        self.time += record.compute.0 + record.wait.0 + record.wire.0;
        self.compute += record.compute.0;
        if record.late.0 > 0 {
            *self.late.entry(record.last).or_default() += record.late.0;
        }
    }

    fn latest(&self) -> Option<Rank> {
        self.late.iter().max_by_key(|(_, late)| **late).map(|(rank, _)| *rank)
    }
}

/// A window over the last all-reduces of one run of the engine.
#[derive(Debug)]
pub struct Slowness {
    /// `None`: disabled.
    window: Option<Duration>,
    /// Number of the engine's run.
    run: u64,
    cursor: u64,
    /// Start of the last part.
    begun: Duration,
    /// At most [`PARTS`] complete parts, and the current one.
    parts: VecDeque<WindowPart>,
}

impl Slowness {
    /// A window of this length.
    pub fn new(window: Option<Duration>) -> Self {
        Self { window, run: 0, cursor: 0, begun: Duration::ZERO, parts: VecDeque::new() }
    }

    /// The current part at `now`, and the number of the last record in it; `None`: disabled. Another run starts with an
    /// empty window.
    pub fn part(&mut self, run: u64, now: Duration) -> Option<(&mut u64, &mut WindowPart)> {
        let length = self.window? / PARTS as u32;
        if run != self.run || self.parts.is_empty() {
            *self = Self { run, begun: now, parts: [WindowPart::default()].into(), ..Self::new(self.window) };
        }
        for _ in 0..=PARTS {
            if now < self.begun + length {
                break;
            }
            self.begun += length;
            self.parts.push_back(WindowPart::default());
        }
        // After a long silence the whole window is stale.
        self.begun = self.begun.max(now.saturating_sub(length));
        while self.parts.len() > PARTS + 1 {
            self.parts.pop_front();
        }
        self.parts.back_mut().map(|part| (&mut self.cursor, part))
    }

    /// Share of its time that this node computes, in thousandths; `None` until a window is full and at least half of
    /// its parts had work.
    pub fn busy(&self) -> Option<u16> {
        if self.parts.len() <= PARTS {
            return None;
        }
        let active = || self.parts.iter().take(PARTS).filter(|part| part.time > 0);
        let [time, compute] = active().fold([0; 2], |[time, compute], part| [time + part.time, compute + part.compute]);
        (2 * active().count() >= PARTS).then(|| (1000.0 * ratio(compute as f64, time as f64)) as u16)
    }

    /// The rank that is worth excluding: during a whole window it was last in nearly every part with work, and the
    /// other `ranks - 1` would lose less time with its work than they do by waiting for it.
    pub fn slow(&self, ranks: u16) -> Option<Slow> {
        if ranks < 2 || self.parts.len() <= PARTS {
            return None;
        }
        let active: Vec<&WindowPart> = self.parts.iter().take(PARTS).filter(|part| part.time > 0).collect();
        let mut all = WindowPart::default();
        for part in &active {
            all.time += part.time;
            part.late.iter().for_each(|(rank, late)| *all.late.entry(*rank).or_default() += late);
        }
        let rank = all.latest()?;
        let named = active.iter().filter(|part| part.latest() == Some(rank)).count();
        let share = ratio(all.late[&rank] as f64, all.time as f64);
        let without = (1.0 - share) * f64::from(ranks) / f64::from(ranks - 1);
        let is_steady = 2 * active.len() >= PARTS && 10 * named >= 9 * active.len();
        let seconds = self.window.unwrap_or_default().as_secs() as u32;
        (is_steady && without <= WORTH).then_some(Slow { rank, percent: (share * 100.0) as u8, seconds })
    }
}

#[cfg(test)]
mod tests {
    use common::{ids::LayerIndex, units::Nanoseconds};
    use telemetry::SyncKind;

    use super::*;

    fn record(rank: u16, late: u64) -> SyncRecord {
        SyncRecord {
            step: 1,
            enter: Nanoseconds(0),
            exit: Nanoseconds(late),
            layer: LayerIndex(0),
            kind: SyncKind::Attention,
            tokens: 1,
            compute: Nanoseconds(100 - late),
            wait: Nanoseconds(late),
            wire: Nanoseconds(0),
            slowest: Rank(rank),
            last: Rank(rank),
            late: Nanoseconds(late),
            arrivals: Vec::new(),
        }
    }

    /// One record every tenth of a second, chosen by its number; a window of two seconds.
    fn filled(parts: u64, record_of: impl Fn(u64) -> Option<SyncRecord>) -> Slowness {
        let mut slowness = Slowness::new(Some(Duration::from_secs(2)));
        for number in 0..parts {
            let (_, part) = slowness.part(3, Duration::from_millis(100 * number)).expect("it is enabled");
            if let Some(record) = record_of(number) {
                part.add(&record);
            }
        }
        slowness
    }

    #[test]
    fn straggler_is_named_only_after_a_whole_window() {
        let late = |late| move |_| Some(record(2, late));
        assert_eq!(filled(21, late(60)).slow(3), Some(Slow { rank: Rank(2), percent: 60, seconds: 2 }));
        assert_eq!(filled(20, late(60)).slow(3), None, "the window is not full");
        assert_eq!(filled(200, late(60)).slow(3).map(|slow| slow.percent), Some(60), "the window advances");
        // Two ranks share the work of three: 1.5 times as much each, so waiting less than 47 % of the time is not
        // worse.
        assert_eq!(filled(21, late(40)).slow(3), None);
        assert!(filled(21, late(40)).slow(8).is_some(), "of eight, seven lose little without one");
        assert_eq!(filled(21, late(60)).slow(1), None);
    }

    #[test]
    fn short_delays_changing_ranks_and_silence_blame_no_rank() {
        assert_eq!(filled(21, |number| Some(record(2, if number < 10 { 90 } else { 0 }))).slow(4), None);
        assert_eq!(filled(21, |number| Some(record((number % 2) as u16, 80))).slow(4), None);
        assert_eq!(filled(21, |number| (number % 4 == 0).then(|| record(2, 80))).slow(4), None, "too little was done");
        assert!(filled(21, |number| (number % 4 != 0).then(|| record(2, 80))).slow(4).is_some());
        assert_eq!(filled(21, |_| None).slow(4), None);
    }

    #[test]
    fn compute_share_is_known_after_a_full_window_with_work() {
        assert_eq!(filled(21, |_| Some(record(2, 60))).busy(), Some(400));
        assert_eq!(filled(20, |_| Some(record(2, 60))).busy(), None);
        assert_eq!(filled(21, |number| (number % 4 == 0).then(|| record(2, 60))).busy(), None);
    }

    #[test]
    fn other_topology_or_long_pause_resets_the_window() {
        let mut slowness = filled(21, |_| Some(record(2, 80)));
        slowness.part(3, Duration::from_secs(3600));
        assert_eq!(slowness.slow(4), None);
        let mut slowness = filled(21, |_| Some(record(2, 80)));
        slowness.part(4, Duration::from_millis(2100));
        assert_eq!(slowness.slow(4), None);
        assert!(Slowness::new(None).part(3, Duration::ZERO).is_none());
    }
}
