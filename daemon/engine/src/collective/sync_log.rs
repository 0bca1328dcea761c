//! Records of a rank's latest all-reduces and hand-overs. An all-reduce record takes one additional word for each peer
//! of the stage.
use std::{
    ops::Range,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use collectives::Table;
use common::{
    ids::{LayerIndex, Rank},
    units::Nanoseconds,
};
use telemetry::{
    Arrival, SyncKind, SyncRecord,
    sync::{ARRIVALS_MAX, RECORDS_MAX},
};

use super::{hops::HopRing, words::WordRing};

/// Words of a record without those of the peers.
const WORDS: usize = 8;
/// The word of a peer that sent nothing.
const SILENT: u64 = u64::MAX;

/// The part of a record that does not depend on peers; wire time is the rest between enter and exit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) step: u64,
    pub(super) enter: Nanoseconds,
    pub(super) exit: Nanoseconds,
    pub(super) layer: LayerIndex,
    pub(super) kind: SyncKind,
    pub(super) tokens: u32,
    pub(super) compute: Nanoseconds,
    pub(super) wait: Nanoseconds,
    pub(super) slowest: Rank,
    pub(super) last: Rank,
    pub(super) late: Nanoseconds,
}

/// Ring of records: about three seconds of a fast small model.
#[derive(Debug)]
pub struct SyncLog {
    /// The fixed words of a record, then one for each peer.
    records: WordRing,
    own: Rank,
    stage: Range<u16>,
    table: OnceLock<Table>,
    hops: HopRing,
    /// Total stall time while waiting for plans, in nanoseconds.
    plan_stalls: AtomicU64,
}

impl SyncLog {
    /// Creates an empty ring of a rank in its stage.
    pub fn new(own: Rank, stage: Range<u16>) -> Self {
        let peers = stage.clone().filter(|rank| *rank != own.0).count();
        let records = WordRing::new(RECORDS_MAX.min(ARRIVALS_MAX / peers.max(1)), WORDS + peers);
        Self { records, own, stage, table: OnceLock::new(), hops: HopRing::default(), plan_stalls: AtomicU64::new(0) }
    }

    /// Creates the ring of a rank without peers.
    pub fn alone() -> Self {
        Self::new(Rank(0), 0..1)
    }

    fn peers(&self) -> impl Iterator<Item = Rank> + Clone + use<> {
        let own = self.own.0;
        self.stage.clone().filter(move |rank| *rank != own).map(Rank)
    }

    /// Adds a record; `heard` gives, for each peer of the stage by rank, the first and the last byte as times after
    /// enter.
    pub(super) fn push(&self, entry: &Entry, heard: impl Iterator<Item = Option<(Nanoseconds, Nanoseconds)>>) {
        let heard = heard.map(|times| times.map_or(SILENT, |(first, whole)| pack_arrival(first, whole)));
        let heard = heard.chain(std::iter::repeat(SILENT));
        self.records.push(pack(entry).into_iter().chain(heard));
    }

    /// Publishes the algorithm table to readers; only the first one counts, because it is decided once per assignment.
    pub(super) fn publish(&self, table: &Table) {
        let _ = self.table.set(table.clone());
    }

    /// The algorithm table, once it is decided.
    pub fn table(&self) -> Option<&Table> {
        self.table.get()
    }

    /// The hand-overs of this rank, if it is part of a pipeline.
    pub fn hops(&self) -> &HopRing {
        &self.hops
    }

    /// Total time for which this rank was stalled while waiting for plans.
    pub fn plan_stalls(&self) -> Nanoseconds {
        Nanoseconds(self.plan_stalls.load(Relaxed))
    }

    pub(super) fn add_plan_stall(&self, stall: Nanoseconds) {
        self.plan_stalls.fetch_add(stall.0, Relaxed);
    }

    /// Calls `visit` for each record since `cursor` that still exists, and moves the cursor to the end.
    pub fn read_since(&self, cursor: &mut u64, mut visit: impl FnMut(&SyncRecord)) {
        // One record for all calls, so that the list of peers is allocated once.
        let mut arrivals = Vec::with_capacity(self.stage.len());
        self.records.read_since(cursor, |words| {
            let (record, peers) = words.split_at(WORDS);
            arrivals.clear();
            let heard = self.peers().zip(peers.iter().copied());
            arrivals.extend(heard.filter(|(_, word)| *word != SILENT).map(|(rank, word)| unpack_arrival(rank, word)));
            let record = unpack(record, std::mem::take(&mut arrivals));
            visit(&record);
            arrivals = record.arrivals;
        });
    }
}

fn pack(entry: &Entry) -> [u64; WORDS] {
    let kind = u64::from(entry.kind == SyncKind::FeedForward);
    let place = u64::from(entry.layer.0) << 32 | u64::from(entry.slowest.0) << 8 | kind;
    let tokens = u64::from(entry.last.0) << 32 | u64::from(entry.tokens);
    let Entry { step, enter, exit, compute, wait, late, .. } = entry;
    [place, tokens, compute.0, wait.0, exit.0, late.0, *step, enter.0]
}

fn unpack(words: &[u64], arrivals: Vec<Arrival>) -> SyncRecord {
    let [place, tokens, compute, wait, exit, late, step, enter] = *words else {
        unreachable!("a record has so many words")
    };
    SyncRecord {
        step,
        enter: Nanoseconds(enter),
        exit: Nanoseconds(exit),
        layer: LayerIndex((place >> 32) as u32),
        kind: if place & 1 == 1 { SyncKind::FeedForward } else { SyncKind::Attention },
        tokens: tokens as u32,
        compute: Nanoseconds(compute),
        wait: Nanoseconds(wait),
        wire: Nanoseconds(exit.wrapping_sub(enter).wrapping_sub(wait)),
        slowest: Rank((place >> 8) as u16),
        last: Rank((tokens >> 32) as u16),
        late: Nanoseconds(late),
        arrivals,
    }
}

/// Packs two times of 32 bits each, saturating at 4.29 s.
fn pack_arrival(first: Nanoseconds, whole: Nanoseconds) -> u64 {
    let half = |time: Nanoseconds| time.0.min(u64::from(u32::MAX - 1));
    half(first) << 32 | half(whole)
}

fn unpack_arrival(rank: Rank, word: u64) -> Arrival {
    Arrival { rank, first: Nanoseconds(word >> 32), whole: Nanoseconds(word & u64::from(u32::MAX)) }
}

#[cfg(test)]
mod tests {
    use common::{ids::RequestId, limits::NODES_MAX};
    use protocol::message::{MESSAGE_BYTES_MAX, Response, ResponseBody, encode};

    use super::*;

    fn entry(number: u32) -> Entry {
        Entry {
            step: 1 + u64::from(number),
            enter: Nanoseconds(7),
            exit: Nanoseconds(12),
            layer: LayerIndex(number),
            kind: if number.is_multiple_of(2) { SyncKind::Attention } else { SyncKind::FeedForward },
            tokens: 1,
            compute: Nanoseconds(u64::from(number)),
            wait: Nanoseconds(2),
            slowest: Rank(4),
            last: Rank(5),
            late: Nanoseconds(6),
        }
    }

    /// Arrivals at rank 5 in a stage of ranks 4 to 7: rank 6 is silent.
    fn heard(number: u32) -> [Option<(Nanoseconds, Nanoseconds)>; 3] {
        let (first, whole) = (Nanoseconds(u64::from(number)), Nanoseconds(5_000_000_000));
        [Some((first, Nanoseconds(1000))), None, Some((Nanoseconds(0), whole))]
    }

    fn record(number: u32) -> SyncRecord {
        let Entry { step, enter, exit, layer, kind, tokens, compute, wait, slowest, last, late } = entry(number);
        let arrival = |rank, first, whole| Arrival { rank, first: Nanoseconds(first), whole: Nanoseconds(whole) };
        let arrivals = vec![arrival(Rank(4), u64::from(number), 1000), arrival(Rank(7), 0, u64::from(u32::MAX - 1))];
        let wire = Nanoseconds(3);
        SyncRecord { step, enter, exit, layer, kind, tokens, compute, wait, wire, slowest, last, late, arrivals }
    }

    #[test]
    fn reader_gets_each_record_once_and_latest_if_overrun() {
        let ring = SyncLog::new(Rank(5), 4..8);
        let push = |number| ring.push(&entry(number), heard(number).into_iter());
        let mut cursor = 0;
        let mut seen = Vec::new();
        (0..10).for_each(push);
        ring.read_since(&mut cursor, |record| seen.push(record.clone()));
        assert_eq!(seen, (0..10).map(record).collect::<Vec<_>>());
        seen.clear();
        (10..10 + 2 * RECORDS_MAX as u32).for_each(push);
        ring.read_since(&mut cursor, |record| seen.push(record.clone()));
        assert_eq!(seen.len(), RECORDS_MAX);
        assert_eq!(seen.last(), Some(&record(9 + 2 * RECORDS_MAX as u32)));
    }

    #[test]
    fn missing_arrival_is_silence_not_a_stale_value() {
        let ring = SyncLog::new(Rank(0), 0..3);
        let time = Some((Nanoseconds(1), Nanoseconds(2)));
        (0..RECORDS_MAX).for_each(|_| ring.push(&entry(0), [time, time].into_iter()));
        (0..RECORDS_MAX).for_each(|_| ring.push(&entry(0), [time].into_iter()));
        let mut peers = 0;
        ring.read_since(&mut 0, |record| peers += record.arrivals.len());
        assert_eq!(peers, RECORDS_MAX);
    }

    #[test]
    fn records_of_largest_stage_fit_one_message() {
        for ranks in [1, 2, 17, 18, NODES_MAX as u16] {
            let ring = SyncLog::new(Rank(0), 0..ranks);
            let most = Nanoseconds(u64::MAX);
            let times = (Nanoseconds(u64::from(u32::MAX)), most);
            let (exit, late) = (most, most);
            let most = Entry { step: u64::MAX, enter: Nanoseconds(0), exit, compute: most, late, ..entry(u32::MAX) };
            (0..RECORDS_MAX).for_each(|_| ring.push(&most, std::iter::repeat(Some(times))));
            let mut records = Vec::new();
            ring.read_since(&mut 0, |record| records.push(record.clone()));
            let arrivals: usize = records.iter().map(|record| record.arrivals.len()).sum();
            assert!(arrivals <= ARRIVALS_MAX && arrivals == records.len() * usize::from(ranks - 1));
            let body = ResponseBody::Records(records);
            let bytes = encode(&Response { id: RequestId(u64::MAX), body }).len();
            assert!(bytes <= MESSAGE_BYTES_MAX, "{bytes} bytes of {ranks} ranks");
        }
    }
}
