//! The rank that held the others up in a run: by the rule that the dashboard has, with the cause that its machine gives. Pure.
use serde_json::{Value, json};
use shared::telemetry::{Health, Named, SyncRecord, judge};

use super::trace::RankRecords;
use crate::state::sync::cause;

/// A straggler of a run.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::cli) struct Straggler {
    /// Its place among the members of the replica.
    pub(in crate::cli) member: usize,
    /// What the rule found in the window in which it was latest.
    pub(in crate::cli) named: Named,
    /// The windows that named it, of so many.
    pub(in crate::cli) windows: (usize, usize),
}

/// The rank that held the others up most, if the rule names one in the decoding steps of a request.
pub(super) fn straggler(records: &RankRecords<'_>) -> Option<Straggler> {
    let is_decode = |record: &&SyncRecord| record.tokens == 1;
    let decode: Vec<Vec<SyncRecord>> =
        records.records.iter().map(|list| list.iter().filter(is_decode).cloned().collect()).collect();
    let stages = decode.chunks(records.ranks.max(1)).enumerate();
    let of_stage = |(stage, ranks): (usize, &[Vec<SyncRecord>])| {
        let first = stage * records.ranks;
        let found = of_ranks(first, ranks)?;
        Some(Straggler { member: first + found.member, ..found })
    };
    stages.filter_map(of_stage).max_by(|one, two| one.named.late.total_cmp(&two.named.late))
}

/// The rank of a stage that held the others up most in all-reduces of whatever steps, if the rule names one. `first` is the
/// stage's first rank in the replica.
pub(in crate::cli) fn of_ranks(first: usize, ranks: &[Vec<SyncRecord>]) -> Option<Straggler> {
    let windows = judge(first, ranks);
    let named = windows.iter().flatten().copied().max_by(|one, two| one.late.total_cmp(&two.late))?;
    let times = windows.iter().flatten().filter(|other| other.rank == named.rank).count();
    Some(Straggler { member: named.rank, named, windows: (times, windows.len()) })
}

impl Straggler {
    /// A sentence: who, by which shares, after how many tokens, and why.
    pub(in crate::cli) fn sentence(&self, name: &str, health: &Health, others: &[&Health]) -> String {
        let Named { late, last, after, .. } = self.named;
        format!(
            "{name} holds the others up: for {:.0} % of their time only its part was missing, it was the last in {:.0} % of their \
             all-reduces; named after {after} tokens; {}.",
            100.0 * late,
            100.0 * last,
            cause(health, others)
        )
    }

    /// The same as an object.
    pub(in crate::cli) fn object(&self, name: &str, health: &Health, others: &[&Health]) -> Value {
        let Named { rank, late, last, after } = self.named;
        json!({"node": name, "rank": rank, "late": late, "last": last, "after_tokens": after,
            "windows_named": self.windows.0, "windows": self.windows.1, "run_queue": health.run_queue,
            "cause": health.cause_beside(others).map(|cause| cause.to_string())})
    }
}

#[cfg(test)]
mod tests {
    use shared::{
        ids::Rank,
        telemetry::{SyncRecord, health::RunQueue},
        units::Nanoseconds,
    };

    use super::*;
    use crate::cli::profile::trace::tests::record;

    #[test]
    fn the_straggler_of_any_stage_is_named_with_its_shares_and_cause() {
        // Two stages of two; in the second, rank 3 costs the other a ninth of its time.
        let late = |last: u16, late: u64| -> Vec<SyncRecord> {
            let times = |step| SyncRecord { tokens: 1, compute: Nanoseconds(90), ..record(step, 0, 0) };
            let late =
                |record| SyncRecord { last: Rank(last), wait: Nanoseconds(60), late: Nanoseconds(late), ..record };
            (1..=64).map(times).map(late).collect()
        };
        let names = ["pi1", "pi2", "pi3", "pi4"].map(str::to_owned);
        let lists = [late(1, 0), late(1, 0), late(3, 50), late(3, 0)];
        let records = RankRecords { names: &names, ranks: 2, records: &lists };
        let found = straggler(&records).expect("one is late");
        assert_eq!((found.member, found.named.after, found.windows), (3, 1, (1, 1)));
        let health = |waited| Health { run_queue: Some(RunQueue { waited, ran: 0.5 }), ..Health::default() };
        let said = found.sentence("pi4", &health(0.3), &[&health(0.1)]);
        assert!(said.starts_with("pi4 holds the others up") && said.contains("cores shared"), "{said}");
        let said = found.sentence("pi4", &health(0.3), &[&health(0.25), &health(0.3), &health(0.01)]);
        assert!(said.contains("no cause is known"), "most others have it as well: {said}");
        let said = found.sentence("pi4", &health(0.01), &[]);
        assert!(said.contains("no cause is known: its engine waited 1 %"), "{said}");
        let prompt: Vec<Vec<SyncRecord>> =
            lists.iter().map(|list| list.iter().map(|one| SyncRecord { tokens: 9, ..one.clone() }).collect()).collect();
        assert_eq!(straggler(&RankRecords { records: &prompt, ..records }), None, "a prompt is no decoding");
    }
}
