//! The latest hand-overs that a rank took over. The engine adds one a step; readers copy what is new.
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use shared::telemetry::HopRecord;

/// Hand-overs that are kept.
const KEPT_MAX: usize = 4096;

/// The ring.
#[derive(Debug)]
pub struct HopRing(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    latest: VecDeque<HopRecord>,
    /// How many ever came.
    written: u64,
}

impl Default for HopRing {
    fn default() -> Self {
        // Room for all from the beginning: the engine allocates nothing while it runs.
        Self(Mutex::new(Kept { latest: VecDeque::with_capacity(KEPT_MAX), written: 0 }))
    }
}

impl HopRing {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one.
    pub(super) fn push(&self, record: HopRecord) {
        let mut kept = self.kept();
        if kept.latest.len() == KEPT_MAX {
            kept.latest.pop_front();
        }
        kept.latest.push_back(record);
        kept.written += 1;
    }

    /// Those since `cursor` that are still kept; moves the cursor to the end.
    pub fn since(&self, cursor: &mut u64) -> Vec<HopRecord> {
        let kept = self.kept();
        let new = kept.written.saturating_sub(*cursor).min(kept.latest.len() as u64) as usize;
        *cursor = kept.written;
        kept.latest.range(kept.latest.len() - new..).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use shared::{ids::Rank, units::Nanoseconds};

    use super::*;

    #[test]
    fn what_is_new_is_read_once_and_the_oldest_give_way() {
        let (ring, zero) = (HopRing::default(), Nanoseconds(0));
        let times = |step| HopRecord {
            step,
            from: Rank(0),
            is_prefill: false,
            tokens: 1,
            bytes: 64,
            hop: None,
            blocked: zero,
            compute: zero,
            sending: zero,
        };
        let mut cursor = 0;
        let steps = |cursor: &mut u64| ring.since(cursor).iter().map(|one| one.step).collect::<Vec<_>>();
        assert!(steps(&mut cursor).is_empty());
        (1..=3).for_each(|step| ring.push(times(step)));
        assert_eq!((steps(&mut cursor), steps(&mut cursor)), (vec![1, 2, 3], vec![]));
        (4..=5 + KEPT_MAX as u64).for_each(|step| ring.push(times(step)));
        let found = steps(&mut cursor);
        assert_eq!((found.len(), found[0], found.last()), (KEPT_MAX, 6, Some(&(5 + KEPT_MAX as u64))));
    }
}
