//! Where the time of each collective went: own compute, waiting for a rank, wire (HOUSE "Where time goes").
//! Records go into a ring of atomics that any thread may read; the engine's thread alone writes.
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering, fence},
    },
    time::Instant,
};

use crate::kernels::PoolClock;
use shared::{
    ids::{LayerIndex, Rank},
    schedule::Table,
    telemetry::{PhaseTotals, RankTotals, SyncKind, SyncRecord, sync::RECORDS_MAX},
    units::Nanoseconds,
};

/// Records that the ring holds: about three seconds of a fast small model.
const RING_LENGTH: usize = RECORDS_MAX;

/// Words of a record in the ring.
const WORDS: usize = 8;

/// One collective between its send and its last arrival.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Own computing before the send.
    pub compute: Nanoseconds,
    /// Longest computing that a peer's frame reported, and whose.
    pub slowest: (Nanoseconds, Rank),
    /// The rank whose part came last, and how long it was the only one missing.
    pub last: (Rank, Nanoseconds),
    /// The own send.
    pub sent: Instant,
    /// The last arrival; computing is counted from here on.
    pub arrived: Instant,
}

/// The engine's clock and sums. `left` is when it left the previous collective.
#[derive(Debug)]
pub struct Accounting {
    own: Rank,
    begun: Instant,
    left: Instant,
    step: u64,
    is_prefill: bool,
    tokens: u32,
    totals: RankTotals,
    ring: Arc<SyncRing>,
    /// Of the own pool, and what it said last.
    threads: Option<(Arc<PoolClock>, u64)>,
}

impl Accounting {
    /// Starts with empty sums.
    pub fn new(own: Rank, ring: Arc<SyncRing>) -> Self {
        let now = Instant::now();
        Self {
            own,
            begun: now,
            left: now,
            step: 0,
            is_prefill: false,
            tokens: 0,
            totals: RankTotals::default(),
            ring,
            threads: None,
        }
    }

    /// From now on what a pool's caller spends on the other threads is told apart from computing.
    pub fn watch(&mut self, clock: Arc<PoolClock>) {
        let now = clock.nanoseconds();
        self.threads = Some((clock, now));
    }

    /// Adds time since the last collective: computing, but for what went to the pool's threads.
    fn add_compute(&mut self, compute: Nanoseconds) {
        let threads = self.threads.as_mut().map_or(0, |(clock, seen)| {
            let now = clock.nanoseconds();
            now - std::mem::replace(seen, now)
        });
        let threads = threads.min(compute.0);
        let phase = self.phase();
        phase.compute.0 += compute.0 - threads;
        phase.threads.0 += threads;
    }

    /// Records are of this step from now on.
    pub fn at_step(&mut self, step: u64) {
        self.step = step;
    }

    /// A step begins: its records count as prefill or decode.
    pub fn begin_step(&mut self, is_prefill: bool, tokens: u32) {
        (self.is_prefill, self.tokens) = (is_prefill, tokens);
        let phase = self.phase();
        phase.steps += 1;
        phase.tokens += u64::from(tokens);
    }

    /// Shows which algorithm the all-reduces use to those who read the records; the first table stays.
    pub fn publish(&self, table: &Table) {
        // It is decided once for an assignment.
        let _ = self.ring.table.set(table.clone());
    }

    /// Forgets the time since the last collective: nobody computed or waited for a peer in it.
    pub fn idle(&mut self) {
        self.left = Instant::now();
    }

    /// Computing since the last collective, so far.
    pub fn compute_so_far(&self) -> Nanoseconds {
        Nanoseconds(self.left.elapsed().as_nanos() as u64)
    }

    /// Counts what was sent.
    pub fn sent(&mut self, bytes: u64, messages: u64) {
        let phase = self.phase();
        phase.bytes_sent += bytes;
        phase.messages_sent += messages;
    }

    /// Closes a collective: splits its time, adds it to the sums. Returns (waiting, wire).
    pub fn close(&mut self, span: Span) -> (Nanoseconds, Nanoseconds) {
        self.left = span.arrived;
        let exchange = span.arrived.duration_since(span.sent).as_nanos() as u64;
        let wait = span.slowest.0.0.saturating_sub(span.compute.0).min(exchange);
        let wire = exchange - wait;
        self.add_compute(span.compute);
        let phase = self.phase();
        phase.wait.0 += wait;
        phase.wire.0 += wire;
        (Nanoseconds(wait), Nanoseconds(wire))
    }

    /// As [`Self::close`], and keeps a record of the layer for the dashboard.
    pub fn close_layer(&mut self, layer: LayerIndex, kind: SyncKind, span: Span) {
        let (wait, wire) = self.close(span);
        let slowest = if wait.0 > 0 { span.slowest.1 } else { self.own };
        let (compute, tokens, (last, late)) = (span.compute, self.tokens, span.last);
        let enter = Nanoseconds(span.sent.saturating_duration_since(self.begun).as_nanos() as u64);
        let step = self.step;
        self.ring.push(SyncRecord { step, enter, layer, kind, tokens, compute, wait, wire, slowest, last, late });
    }

    /// Closes a wait for another stage: all of it is the pipeline's bubble.
    pub fn close_bubble(&mut self, compute: Nanoseconds, sent: Instant, arrived: Instant) {
        self.left = arrived;
        self.add_compute(compute);
        self.phase().bubble.0 += arrived.duration_since(sent).as_nanos() as u64;
    }

    /// The end of a step's own computing that no collective closes (a lone rank, the last sampling).
    pub fn close_compute(&mut self) {
        let compute = self.compute_so_far();
        self.left = Instant::now();
        self.add_compute(compute);
    }

    /// The sums since the last call.
    pub fn take_totals(&mut self) -> RankTotals {
        std::mem::take(&mut self.totals)
    }

    fn phase(&mut self) -> &mut PhaseTotals {
        if self.is_prefill { &mut self.totals.prefill } else { &mut self.totals.decode }
    }
}

/// The latest records: one writer, any number of readers, no locks. A reader skips a record that is being overwritten.
#[derive(Debug)]
pub struct SyncRing {
    slots: Box<[RingSlot]>,
    written: AtomicU64,
    table: OnceLock<Table>,
}

#[derive(Debug, Default)]
struct RingSlot {
    /// Twice the record's number plus two when whole, odd while being written.
    stamp: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Default for SyncRing {
    fn default() -> Self {
        let slots = (0..RING_LENGTH).map(|_| RingSlot::default()).collect();
        Self { slots, written: AtomicU64::new(0), table: OnceLock::new() }
    }
}

impl SyncRing {
    fn push(&self, record: SyncRecord) {
        let number = self.written.load(Ordering::Relaxed);
        let slot = &self.slots[number as usize % RING_LENGTH];
        slot.stamp.store(2 * number + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in slot.words.iter().zip(pack(&record)) {
            word.store(value, Ordering::Relaxed);
        }
        slot.stamp.store(2 * number + 2, Ordering::Release);
        self.written.store(number + 1, Ordering::Release);
    }

    /// Which algorithm the all-reduces use, once that is decided.
    pub fn table(&self) -> Option<&Table> {
        self.table.get()
    }

    /// Calls `visit` for each record since `cursor` that is still there, and moves the cursor to the end.
    pub fn read_since(&self, cursor: &mut u64, mut visit: impl FnMut(SyncRecord)) {
        let end = self.written.load(Ordering::Acquire);
        let begin = (*cursor).max(end.saturating_sub(RING_LENGTH as u64));
        for number in begin..end {
            let slot = &self.slots[number as usize % RING_LENGTH];
            let before = slot.stamp.load(Ordering::Acquire);
            let words: [u64; WORDS] = std::array::from_fn(|index| slot.words[index].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before == 2 * number + 2 && slot.stamp.load(Ordering::Relaxed) == before {
                visit(unpack(words));
            }
        }
        *cursor = end;
    }
}

fn pack(record: &SyncRecord) -> [u64; WORDS] {
    let kind = u64::from(record.kind == SyncKind::FeedForward);
    let place = u64::from(record.layer.0) << 32 | u64::from(record.slowest.0) << 8 | kind;
    let tokens = u64::from(record.last.0) << 32 | u64::from(record.tokens);
    [place, tokens, record.compute.0, record.wait.0, record.wire.0, record.late.0, record.step, record.enter.0]
}

fn unpack(words: [u64; WORDS]) -> SyncRecord {
    SyncRecord {
        step: words[6],
        enter: Nanoseconds(words[7]),
        layer: LayerIndex((words[0] >> 32) as u32),
        kind: if words[0] & 1 == 1 { SyncKind::FeedForward } else { SyncKind::Attention },
        tokens: words[1] as u32,
        compute: Nanoseconds(words[2]),
        wait: Nanoseconds(words[3]),
        wire: Nanoseconds(words[4]),
        slowest: Rank((words[0] >> 8) as u16),
        last: Rank((words[1] >> 32) as u16),
        late: Nanoseconds(words[5]),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn record(number: u32) -> SyncRecord {
        SyncRecord {
            step: 1 + u64::from(number),
            enter: Nanoseconds(7),
            layer: LayerIndex(number),
            kind: if number.is_multiple_of(2) { SyncKind::Attention } else { SyncKind::FeedForward },
            tokens: 1,
            compute: Nanoseconds(u64::from(number)),
            wait: Nanoseconds(2),
            wire: Nanoseconds(3),
            slowest: Rank(4),
            last: Rank(5),
            late: Nanoseconds(6),
        }
    }

    #[test]
    fn a_reader_gets_every_record_once_and_the_latest_when_it_was_late() {
        let ring = SyncRing::default();
        let mut cursor = 0;
        let mut seen = Vec::new();
        (0..10).for_each(|number| ring.push(record(number)));
        ring.read_since(&mut cursor, |record| seen.push(record));
        assert_eq!(seen, (0..10).map(record).collect::<Vec<_>>());
        seen.clear();
        (10..10 + 2 * RING_LENGTH as u32).for_each(|number| ring.push(record(number)));
        ring.read_since(&mut cursor, |record| seen.push(record));
        assert_eq!(seen.len(), RING_LENGTH);
        assert_eq!(seen.last(), Some(&record(9 + 2 * RING_LENGTH as u32)));
    }

    #[test]
    fn waiting_is_what_the_slowest_computed_longer_and_the_rest_is_wire() {
        let mut accounting = Accounting::new(Rank(0), Arc::default());
        accounting.begin_step(false, 1);
        let sent = Instant::now();
        let span = |compute, slowest, exchange| Span {
            compute: Nanoseconds(compute),
            slowest: (Nanoseconds(slowest), Rank(2)),
            last: (Rank(2), Nanoseconds(0)),
            sent,
            arrived: sent + Duration::from_nanos(exchange),
        };
        assert_eq!(accounting.close(span(100, 400, 350)), (Nanoseconds(300), Nanoseconds(50)));
        assert_eq!(accounting.close(span(400, 100, 50)), (Nanoseconds(0), Nanoseconds(50)));
        assert_eq!(accounting.close(span(0, 900, 50)), (Nanoseconds(50), Nanoseconds(0)));
        let decode = accounting.take_totals().decode;
        assert_eq!((decode.compute.0, decode.wait.0, decode.wire.0), (500, 350, 100));
    }
}
