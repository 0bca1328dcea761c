//! The latest hand-overs that a rank received: one a step.
use common::{ids::Rank, units::Nanoseconds};
use telemetry::HopRecord;

use super::words::WordRing;

/// Number of records kept.
const KEPT_MAX: usize = 4096;
const WORDS: usize = 7;
/// Marks an unknown transmission time.
const UNKNOWN: u64 = u64::MAX;

/// Ring of hand-over records.
#[derive(Debug)]
pub struct HopRing(WordRing);

impl Default for HopRing {
    fn default() -> Self {
        Self(WordRing::new(KEPT_MAX, WORDS))
    }
}

impl HopRing {
    /// Adds a record.
    pub(super) fn push(&self, record: &HopRecord) {
        let HopRecord { step, from, is_prefill, tokens, bytes, hop, blocked, compute, sending } = *record;
        let place = u64::from(from.0) << 1 | u64::from(is_prefill);
        let size = u64::from(tokens) << 32 | u64::from(bytes);
        let hop = hop.map_or(UNKNOWN, |hop| hop.0);
        self.0.push([step, place, size, hop, blocked.0, compute.0, sending.0].into_iter());
    }

    /// The records since `cursor` that are still kept; moves the cursor to the end.
    pub fn since(&self, cursor: &mut u64) -> Vec<HopRecord> {
        let mut found = Vec::new();
        self.0.read_since(cursor, |words| found.extend(unpack(words)));
        found
    }
}

fn unpack(words: &[u64]) -> Option<HopRecord> {
    let [step, place, size, hop, blocked, compute, sending] = *words else { return None };
    Some(HopRecord {
        step,
        from: Rank((place >> 1) as u16),
        is_prefill: place & 1 == 1,
        tokens: (size >> 32) as u32,
        bytes: size as u32,
        hop: (hop != UNKNOWN).then_some(Nanoseconds(hop)),
        blocked: Nanoseconds(blocked),
        compute: Nanoseconds(compute),
        sending: Nanoseconds(sending),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_records_are_read_once_and_oldest_are_overwritten() {
        let (ring, time) = (HopRing::default(), Nanoseconds);
        let record = |step| HopRecord {
            step,
            from: Rank(3),
            is_prefill: step % 2 == 0,
            tokens: 256,
            bytes: 1 << 21,
            hop: (step > 1).then_some(time(70 * step)),
            blocked: time(5 * step),
            compute: time(9),
            sending: time(11),
        };
        let mut cursor = 0;
        assert!(ring.since(&mut cursor).is_empty());
        (1..=3).for_each(|step| ring.push(&record(step)));
        assert_eq!(ring.since(&mut cursor), (1..=3).map(record).collect::<Vec<_>>());
        assert!(ring.since(&mut cursor).is_empty());
        (4..=5 + KEPT_MAX as u64).for_each(|step| ring.push(&record(step)));
        let steps: Vec<u64> = ring.since(&mut cursor).iter().map(|one| one.step).collect();
        assert_eq!((steps.len(), steps[0], steps.last()), (KEPT_MAX, 6, Some(&(5 + KEPT_MAX as u64))));
    }
}
