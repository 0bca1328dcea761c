//! Who holds the others up, from the all-reduces of the ranks: the one rule that consoles and simulation share. Pure.
use super::SyncRecord;
use crate::latency::ratio;

/// A rank that costs the others less than this share of their time is no straggler.
pub const STRAGGLER_SHARE: f64 = 0.1;
/// Nor is one that is not this much later than the next.
pub const STRAGGLER_FACTOR: f64 = 2.0;

/// The rank that holds the others up, if one does. `late[rank]` is the share of the other ranks' time in which only this
/// rank's part was missing.
pub fn straggler(late: &[f64]) -> Option<usize> {
    let latest = (0..late.len()).max_by(|one, two| late[*one].total_cmp(&late[*two]).then(two.cmp(one)))?;
    let next = (0..late.len()).filter(|rank| *rank != latest).map(|rank| late[rank]).max_by(f64::total_cmp)?;
    let is_late = late[latest] >= STRAGGLER_SHARE && late[latest] >= STRAGGLER_FACTOR * next;
    is_late.then_some(latest)
}

/// Sums of the all-reduces of all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatenessSums {
    /// Nanoseconds of each rank's all-reduces, computing included.
    times: Vec<u64>,
    /// Nanoseconds in which others missed only this rank's part.
    late: Vec<u64>,
}

impl LatenessSums {
    /// Sums of so many ranks, all zero.
    pub fn new(ranks: usize) -> Self {
        Self { times: vec![0; ranks], late: vec![0; ranks] }
    }

    /// Adds an all-reduce as `observer` saw it; ranks that are not counted are left out.
    pub fn add(&mut self, observer: usize, record: &SyncRecord) {
        if let Some(time) = self.times.get_mut(observer) {
            *time += record.compute.0 + record.wait.0 + record.wire.0;
        }
        if let Some(late) = self.late.get_mut(record.last.index()).filter(|_| record.last.index() != observer) {
            *late += record.late.0;
        }
    }

    /// The share of the other ranks' time in which only this rank's part was missing, rank by rank.
    pub fn shares(&self) -> Vec<f64> {
        let all: u64 = self.times.iter().sum();
        let share = |(late, own): (&u64, &u64)| ratio(*late as f64, (all - own) as f64);
        self.late.iter().zip(&self.times).map(share).collect()
    }

    /// Begins anew.
    pub fn clear(&mut self) {
        self.times.fill(0);
        self.late.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{LayerIndex, Rank},
        telemetry::SyncKind,
        units::Nanoseconds,
    };

    #[test]
    fn nobody_is_named_for_a_little_or_when_two_are_late() {
        assert_eq!(straggler(&[0.05, 0.2, 0.04]), Some(1));
        assert_eq!(straggler(&[0.08, 0.01]), None);
        assert_eq!(straggler(&[0.2, 0.15]), None);
        assert_eq!((straggler(&[0.9]), straggler(&[]), straggler(&[0.2, 0.2])), (None, None, None));
        assert_eq!(straggler(&[0.0, f64::NAN, 0.0]), None);
    }

    #[test]
    fn shares_are_of_the_time_of_the_others() {
        let record = |last: u16, late: u64| SyncRecord {
            step: 0,
            enter: Nanoseconds(0),
            layer: LayerIndex(0),
            kind: SyncKind::Attention,
            tokens: 1,
            compute: Nanoseconds(80),
            wait: Nanoseconds(15),
            wire: Nanoseconds(5),
            slowest: Rank(last),
            last: Rank(last),
            late: Nanoseconds(late),
        };
        let mut sums = LatenessSums::new(3);
        sums.add(0, &record(2, 10));
        sums.add(1, &record(2, 10));
        sums.add(2, &record(2, 0));
        assert_eq!(sums.shares(), [0.0, 0.0, 0.1]);
        sums.add(0, &record(9, 10));
        sums.clear();
        assert_eq!(sums.shares(), [0.0; 3]);
    }
}
