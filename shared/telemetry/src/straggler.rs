//! Finds the straggler from the all-reduces of the ranks: the rule shared by consoles and the simulation. Pure.
use std::collections::BTreeMap;

use common::latency::ratio;

use super::SyncRecord;

/// Steps over which lateness is summed before the rule is applied; a decode step is one token of each sequence.
pub const WINDOW_STEPS: u32 = 64;
/// Fewer steps than this at the end of the records are not judged.
const STEPS_MIN: u32 = WINDOW_STEPS / 2;

/// A rank that costs its peers less than this share of their time is not a straggler.
pub const STRAGGLER_SHARE: f64 = 0.1;
/// Neither is a rank that is not this much later than the next one.
pub const STRAGGLER_FACTOR: f64 = 2.0;

/// The straggler, if there is one. `late[rank]` is the share of the other ranks' time in which only this rank's part
/// was missing.
pub fn straggler(late: &[f64]) -> Option<usize> {
    let latest = (0..late.len()).max_by(|one, two| late[*one].total_cmp(&late[*two]).then(two.cmp(one)))?;
    let next = (0..late.len()).filter(|rank| *rank != latest).map(|rank| late[rank]).max_by(f64::total_cmp)?;
    let is_late = late[latest] >= STRAGGLER_SHARE && late[latest] >= STRAGGLER_FACTOR * next;
    is_late.then_some(latest)
}

/// Sums over the all-reduces of all ranks of a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatenessSums {
    /// The stage's first rank: records number ranks within the replica.
    first: usize,
    /// Nanoseconds of each rank's all-reduces, compute included.
    times: Vec<u64>,
    /// Nanoseconds in which peers missed only this rank's part.
    late: Vec<u64>,
    /// Number of each rank's all-reduces.
    counts: Vec<u64>,
    /// Number of peers' all-reduces in which this rank's part arrived last.
    last: Vec<u64>,
}

impl LatenessSums {
    /// Zero sums for this many ranks, starting at the `first` rank of a stage.
    pub fn new(first: usize, ranks: usize) -> Self {
        Self { first, times: vec![0; ranks], late: vec![0; ranks], counts: vec![0; ranks], last: vec![0; ranks] }
    }

    /// Adds an all-reduce as seen by `observer`, numbered within the stage; ranks outside the stage are ignored.
    pub fn add(&mut self, observer: usize, record: &SyncRecord) {
        if observer < self.times.len() {
            self.times[observer] += record.compute.0 + record.wait.0 + record.wire.0;
            self.counts[observer] += 1;
        }
        let last = record.last.index().checked_sub(self.first);
        if let Some(last) = last.filter(|last| *last < self.late.len() && *last != observer) {
            self.late[last] += record.late.0;
            self.last[last] += 1;
        }
    }

    /// The share of the other ranks' time in which only this rank's part was missing, by rank.
    pub fn shares(&self) -> Vec<f64> {
        of_others(&self.late, &self.times)
    }

    /// The share of the other ranks' all-reduces in which this rank's part arrived last, by rank.
    pub fn last_shares(&self) -> Vec<f64> {
        of_others(&self.last, &self.counts)
    }

    /// Resets all sums.
    pub fn clear(&mut self) {
        [&mut self.times, &mut self.late, &mut self.counts, &mut self.last].into_iter().for_each(|sums| sums.fill(0));
    }
}

/// Each rank's part relative to the sum of all other ranks.
fn of_others(parts: &[u64], all: &[u64]) -> Vec<f64> {
    let sum: u64 = all.iter().sum();
    parts.iter().zip(all).map(|(part, own)| ratio(*part as f64, (sum - own) as f64)).collect()
}

/// A straggler named by the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Named {
    /// Its rank in the stage.
    pub rank: usize,
    /// The share of its peers' time in which only its part was missing.
    pub late: f64,
    /// The share of its peers' all-reduces in which its part arrived last.
    pub last: f64,
    /// Steps of the window after which it was named and stayed named.
    pub after: u32,
}

/// The straggler in each [`WINDOW_STEPS`] steps, from the all-reduces of the ranks of a stage, whose first rank in the
/// replica is `first`. Steps that not all ranks recorded are skipped, and so is a remainder too short to judge.
pub fn judge(first: usize, records: &[Vec<SyncRecord>]) -> Vec<Option<Named>> {
    let mut steps: BTreeMap<u64, Vec<(usize, &SyncRecord)>> = BTreeMap::new();
    for (rank, list) in records.iter().enumerate() {
        list.iter().for_each(|record| steps.entry(record.step).or_default().push((rank, record)));
    }
    // Records are pushed rank by rank: each new rank is one change.
    let whole: Vec<_> =
        steps.values().filter(|step| step.chunk_by(|one, two| one.0 == two.0).count() == records.len()).collect();
    let windows = whole.chunks(WINDOW_STEPS as usize).filter(|window| window.len() >= STEPS_MIN as usize);
    windows.map(|window| judge_window(first, records.len(), window)).collect()
}

fn judge_window(first: usize, ranks: usize, steps: &[&Vec<(usize, &SyncRecord)>]) -> Option<Named> {
    let mut sums = LatenessSums::new(first, ranks);
    let mut named: Option<(usize, u32)> = None;
    for (step, records) in (1..).zip(steps) {
        records.iter().for_each(|(rank, record)| sums.add(*rank, record));
        let rank = straggler(&sums.shares());
        named = rank.map(|rank| named.filter(|(before, _)| *before == rank).unwrap_or((rank, step)));
    }
    let (rank, after) = named?;
    Some(Named { rank, late: sums.shares()[rank], last: sums.last_shares()[rank], after })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SyncKind;
    use common::{
        ids::{LayerIndex, Rank},
        units::Nanoseconds,
    };

    #[test]
    fn small_lateness_or_two_late_ranks_name_no_straggler() {
        assert_eq!(straggler(&[0.05, 0.2, 0.04]), Some(1));
        assert_eq!(straggler(&[0.08, 0.01]), None);
        assert_eq!(straggler(&[0.2, 0.15]), None);
        assert_eq!((straggler(&[0.9]), straggler(&[]), straggler(&[0.2, 0.2])), (None, None, None));
        assert_eq!(straggler(&[0.0, f64::NAN, 0.0]), None);
    }

    fn record(step: u64, last: u16, late: u64) -> SyncRecord {
        SyncRecord {
            step,
            enter: Nanoseconds(0),
            exit: Nanoseconds(20),
            layer: LayerIndex(0),
            kind: SyncKind::Attention,
            tokens: 1,
            compute: Nanoseconds(80),
            wait: Nanoseconds(15),
            wire: Nanoseconds(5),
            slowest: Rank(last),
            last: Rank(last),
            late: Nanoseconds(late),
            arrivals: Vec::new(),
        }
    }

    #[test]
    fn shares_are_of_the_time_of_the_others() {
        let mut sums = LatenessSums::new(0, 3);
        sums.add(0, &record(1, 2, 10));
        sums.add(1, &record(1, 2, 10));
        sums.add(2, &record(1, 2, 0));
        assert_eq!((sums.shares(), sums.last_shares()), (vec![0.0, 0.0, 0.1], vec![0.0, 0.0, 1.0]));
        sums.add(0, &record(1, 9, 10));
        sums.clear();
        assert_eq!(sums.shares(), [0.0; 3]);
    }

    #[test]
    fn window_names_its_straggler_and_the_first_step() {
        // Rank 1 is the straggler from step 8 to 64, by half of the others' time; the next 64 steps have no straggler.
        let late = |step: u64| if (8..64).contains(&step) { 50 } else { 0 };
        let of = |rank: u64, last: u16| -> Vec<SyncRecord> {
            (0..128).map(|step| record(step, last, if rank == 0 { late(step) } else { 0 })).collect()
        };
        let judged = judge(0, &[of(0, 1), of(1, 1)]);
        assert_eq!((judged.len(), judged[1]), (2, None));
        // The same in a later stage, whose ranks are numbered within the replica.
        assert_eq!(judge(4, &[of(0, 5), of(1, 5)]), judged);
        assert_eq!(judge(4, &[of(0, 1), of(1, 1)]), [None, None], "a rank of another stage");
        let named = judged[0].expect("rank 1 is the straggler");
        // 2 of 10 steps, late by half, are a tenth.
        assert_eq!((named.rank, named.after, named.last), (1, 10, 1.0));
        assert!((named.late - 56.0 * 50.0 / 6400.0).abs() < 1e-9);
        let short = |steps| judge(0, &[of(0, 1)[..steps].to_vec(), of(1, 1)[..steps].to_vec()]).len();
        assert_eq!((short(31), short(32), short(64 + 31)), (0, 1, 1));
        assert_eq!(judge(0, &[of(0, 1), Vec::new()]), [], "steps that one rank did not record");
        assert_eq!(judge(0, &[]), []);
    }
}
