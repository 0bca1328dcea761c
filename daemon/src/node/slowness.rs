//! Detects a rank that delays its stage for long, from this node's all-reduces and its waits for plans; the input of the
//! circuit breaker. Pure: sums over the parts of a sliding window that the driver advances.
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use common::{ids::Rank, latency::ratio, units::Nanoseconds};
use protocol::recovery::Slow;
use telemetry::{SyncRecord, UsualWait, straggler::STRAGGLER_FACTOR};

/// Number of parts in a window. In a window of 3 s, a part is still longer than the interval between two reads.
const PARTS: usize = 10;
/// Minimum share of the active time during which the same rank must be last.
const STEADY: f64 = 0.9;
/// A stage without its straggler must need at most this share of the time that it needs with it; otherwise the rank
/// stays.
const WORTH: f64 = 0.8;

/// Sums of one part of the window.
#[derive(Clone, Debug, Default)]
pub struct WindowPart {
    /// Nanoseconds of this node's all-reduces, including the computation before each, and of plans that stalled it.
    time: u64,
    /// Nanoseconds of `time` that this node spent computing.
    compute: u64,
    /// Nanoseconds of `time` in which this rank's data was missing; if several ranks' was, equal parts of it.
    late: BTreeMap<Rank, u64>,
    /// The usual wait in an all-reduce, passed on from part to part.
    usual: UsualWait,
}

impl WindowPart {
    /// Adds an all-reduce of this node. In some algorithms only one rank sees whose part is late, and the others wait for
    /// that rank's result. Stalls therefore count for any missing message.
    pub fn add(&mut self, record: &SyncRecord) {
        self.time += record.compute.0 + record.wait.0 + record.wire.0;
        self.compute += record.compute.0;
        let whole = record.arrivals.iter().map(|arrival| arrival.whole).max().unwrap_or_default();
        let stall = self.usual.stall(whole, record.tokens);
        if stall.0 > 2 * record.late.0 {
            self.add_stall(record);
        } else if record.late.0 > 0 {
            *self.late.entry(record.last).or_default() += record.late.0;
        }
    }

    /// Divides the wait among the ranks whose data was missing at each time.
    fn add_stall(&mut self, record: &SyncRecord) {
        let mut arrivals: Vec<(Nanoseconds, Rank)> = record.arrivals.iter().map(|one| (one.whole, one.rank)).collect();
        arrivals.sort_unstable();
        let mut since = 0;
        for index in 0..arrivals.len() {
            let missing = &arrivals[index..];
            let each = (missing[0].0.0 - since) / missing.len() as u64;
            missing.iter().for_each(|(_, rank)| *self.late.entry(*rank).or_default() += each);
            since = missing[0].0.0;
        }
    }

    /// Adds the time for which plans of the stage's leader stalled this node.
    pub fn add_plan_stalls(&mut self, leader: Rank, stalls: Nanoseconds) {
        if stalls.0 > 0 {
            self.time += stalls.0;
            *self.late.entry(leader).or_default() += stalls.0;
        }
    }

    /// Whether no rank is clearly later than this one.
    fn names(&self, rank: Rank) -> bool {
        let latest = self.late.values().max().copied().unwrap_or_default();
        self.late.get(&rank).is_some_and(|late| *late as f64 >= STEADY * latest as f64)
    }
}

/// How far an engine's records were read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadSoFar {
    /// Its all-reduces.
    pub records: u64,
    /// The stalls of its plans.
    pub plan_stalls: Nanoseconds,
}

/// A window over the last all-reduces of one run of the engine.
#[derive(Debug)]
pub struct Slowness {
    /// `None`: disabled.
    window: Option<Duration>,
    /// Number of the engine's run.
    run: u64,
    read: ReadSoFar,
    /// Start of the last part.
    begun: Duration,
    /// At most [`PARTS`] complete parts, and the current one.
    parts: VecDeque<WindowPart>,
}

impl Slowness {
    /// A window of this length.
    pub fn new(window: Option<Duration>) -> Self {
        Self { window, run: 0, read: ReadSoFar::default(), begun: Duration::ZERO, parts: VecDeque::new() }
    }

    /// The current part at `now`, and what is in it already; `None`: disabled. Another run starts with an empty window.
    pub fn part(&mut self, run: u64, now: Duration) -> Option<(&mut ReadSoFar, &mut WindowPart)> {
        let length = self.window? / PARTS as u32;
        if run != self.run || self.parts.is_empty() {
            *self = Self { run, begun: now, parts: [WindowPart::default()].into(), ..Self::new(self.window) };
        }
        for _ in 0..=PARTS {
            if now < self.begun + length {
                break;
            }
            self.begun += length;
            let usual = self.parts.back().map_or_else(UsualWait::default, |part| part.usual);
            self.parts.push_back(WindowPart { usual, ..WindowPart::default() });
        }
        // After a long silence the whole window is stale.
        self.begun = self.begun.max(now.saturating_sub(length));
        while self.parts.len() > PARTS + 1 {
            self.parts.pop_front();
        }
        self.parts.back_mut().map(|part| (&mut self.read, part))
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

    /// The rank that is worth excluding: during a whole window it was last in nearly all time with work, and the other
    /// `ranks - 1` would lose less time with its work than they do by waiting for it.
    pub fn slow(&self, ranks: u16) -> Option<Slow> {
        if ranks < 2 || self.parts.len() <= PARTS {
            return None;
        }
        let active: Vec<&WindowPart> = self.parts.iter().take(PARTS).filter(|part| part.time > 0).collect();
        let mut late = BTreeMap::<Rank, u64>::new();
        active.iter().flat_map(|part| &part.late).for_each(|(rank, part)| *late.entry(*rank).or_default() += part);
        let rank = late.iter().max_by_key(|(_, late)| **late).map(|(rank, _)| *rank)?;
        let others = late.iter().filter(|(other, _)| **other != rank).map(|(_, late)| *late).max().unwrap_or_default();
        let late = late[&rank];
        let time: u64 = active.iter().map(|part| part.time).sum();
        let named: u64 = active.iter().filter(|part| part.names(rank)).map(|part| part.time).sum();
        let share = ratio(late as f64, time as f64);
        let without = (1.0 - share) * f64::from(ranks) / f64::from(ranks - 1);
        let is_alone = late as f64 >= STRAGGLER_FACTOR * others as f64;
        let is_steady = 2 * active.len() >= PARTS && named as f64 >= STEADY * time as f64;
        let seconds = self.window.unwrap_or_default().as_secs() as u32;
        (is_alone && is_steady && without <= WORTH).then_some(Slow { rank, percent: (share * 100.0) as u8, seconds })
    }
}

#[cfg(test)]
mod tests {
    use common::ids::LayerIndex;
    use telemetry::{Arrival, SyncKind};

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
        assert_eq!(filled(21, |number| (number % 6 == 0).then(|| record(2, 80))).slow(4), None, "too little was done");
        assert!(filled(21, |number| (number % 4 != 0).then(|| record(2, 80))).slow(4).is_some());
        assert_eq!(filled(21, |_| None).slow(4), None);
    }

    /// An all-reduce of rank 1 in which the peers' last messages arrived after so many milliseconds.
    fn arrived(whole: [(u16, u64); 2], late: (u16, u64)) -> SyncRecord {
        let times = |milliseconds| Nanoseconds(milliseconds * 1_000_000);
        let arrivals = whole.map(|(rank, whole)| Arrival { rank: Rank(rank), first: times(0), whole: times(whole) });
        let (last, late) = (Rank(late.0), times(late.1));
        let wire = times(whole.map(|(_, whole)| whole).into_iter().max().unwrap_or_default());
        SyncRecord { compute: times(1), wire, last, late, arrivals: arrivals.into(), ..record(0, 0) }
    }

    /// As recorded on three nodes whose head was stopped for 95 of every 100 ms: most stalls occur while a result of the
    /// head is missing, or of a rank that waits for the head, or between two steps.
    #[test]
    fn stopped_rank_is_named_for_stalls_at_any_point_of_a_step() {
        let cases: [(_, fn() -> SyncRecord); 3] = [
            ("only its result is missing", || arrived([(0, 95), (2, 1)], (2, 0))),
            ("another rank sends nothing", || arrived([(0, 95), (2, 0)], (1, 0))),
            ("only its part is missing", || arrived([(0, 95), (2, 1)], (0, 94))),
        ];
        for (case, stall) in cases {
            let stalled =
                filled(210, |number| Some(if number % 2 == 0 { stall() } else { arrived([(0, 1), (2, 1)], (2, 0)) }));
            assert_eq!(stalled.slow(3).map(|slow| slow.rank), Some(Rank(0)), "{case}");
        }
        let shared = filled(210, |number| match number % 5 {
            0 => Some(arrived([(0, 95), (2, 96)], (2, 1))),
            _ => Some(arrived([(0, 95), (2, 1)], (0, 94))),
        });
        assert_eq!(shared.slow(3).map(|slow| slow.rank), Some(Rank(0)));
        // Their common cause may be this node: it was stopped itself.
        assert_eq!(filled(210, |_| Some(arrived([(0, 95), (2, 96)], (2, 1)))).slow(3), None);
        let mut between = Slowness::new(Some(Duration::from_secs(2)));
        for number in 0..40 {
            let (_, part) = between.part(3, Duration::from_millis(100 * number)).expect("it is enabled");
            part.add(&arrived([(0, 1), (2, 1)], (2, 0)));
            part.add_plan_stalls(Rank(0), Nanoseconds(95_000_000));
        }
        assert_eq!(between.slow(3), Some(Slow { rank: Rank(0), percent: 97, seconds: 2 }));
    }

    #[test]
    fn long_messages_blame_no_rank() {
        let result = || arrived([(0, 95), (2, 1)], (2, 0));
        assert_eq!(filled(210, |_| Some(SyncRecord { tokens: 512, ..result() })).slow(3), None);
        assert_eq!(filled(400, |_| Some(result())).slow(3), None, "a wait that is always as long is no stall");
    }

    #[test]
    fn compute_share_is_known_after_a_full_window_with_work() {
        assert_eq!(filled(21, |_| Some(record(2, 60))).busy(), Some(400));
        assert_eq!(filled(20, |_| Some(record(2, 60))).busy(), None);
        assert_eq!(filled(21, |number| (number % 6 == 0).then(|| record(2, 60))).busy(), None);
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
