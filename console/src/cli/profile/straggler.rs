//! The straggler of a run, found by the rule of the dashboard, with the cause that its machine reports. Pure.
use serde_json::{Value, json};
use telemetry::{Health, Named, SyncRecord, judge};

use crate::cli::profile::trace::RankRecords;
use crate::state::sync::cause;

/// A straggler of a run.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::cli) struct Straggler {
    /// Its index among the members of the replica.
    pub(in crate::cli) member: usize,
    /// The result of the rule in the window in which the rank delayed its peers most.
    pub(in crate::cli) named: Named,
    /// How many windows named it, and how many windows there are.
    pub(in crate::cli) windows: (usize, usize),
}

/// The worst straggler of the decode steps of a request, if the rule names one.
pub(super) fn straggler(records: &RankRecords<'_>) -> Option<Straggler> {
    let lists = records.records.iter();
    let decode: Vec<Vec<SyncRecord>> =
        lists.map(|list| list.iter().filter(|record| record.tokens == 1).cloned().collect()).collect();
    let found = decode.chunks(records.ranks.max(1)).enumerate().filter_map(|(stage, ranks)| {
        let first = stage * records.ranks;
        let found = of_ranks(first, ranks)?;
        Some(Straggler { member: first + found.member, ..found })
    });
    found.max_by(|one, two| one.named.late.total_cmp(&two.named.late))
}

/// The worst straggler of one stage over all-reduces of any kind of step, if the rule names one. `first` is the
/// stage's first rank in the replica.
pub(in crate::cli) fn of_ranks(first: usize, ranks: &[Vec<SyncRecord>]) -> Option<Straggler> {
    let windows = judge(first, ranks);
    let named = windows.iter().flatten().copied().max_by(|one, two| one.late.total_cmp(&two.late))?;
    let times = windows.iter().flatten().filter(|other| other.rank == named.rank).count();
    Some(Straggler { member: named.rank, named, windows: (times, windows.len()) })
}

impl Straggler {
    /// A sentence with the name, the shares, the number of tokens until it was named, and the cause.
    pub(in crate::cli) fn sentence(&self, name: &str, health: &Health, others: &[&Health]) -> String {
        let Named { late, last, after, .. } = self.named;
        let cause = cause(health, others);
        let end = if cause.ends_with('?') { "" } else { "." };
        format!(
            "{name} is the straggler: its peers spent {:.0} % of their time waiting for it alone, and it was the last \
             in {:.0} % of their all-reduces; named after {after} tokens; {cause}{end}",
            100.0 * late,
            100.0 * last,
        )
    }

    /// The straggler as a JSON object.
    pub(in crate::cli) fn object(&self, name: &str, health: &Health, others: &[&Health]) -> Value {
        let Named { rank, late, last, after } = self.named;
        json!({"node": name, "rank": rank, "late": late, "last": last, "after_tokens": after,
            "windows_named": self.windows.0, "windows": self.windows.1, "run_queue": health.run_queue,
            "cause": health.cause_beside(others).map(|cause| cause.to_string())})
    }
}

#[cfg(test)]
mod tests {
    use common::{ids::Rank, units::Nanoseconds};
    use telemetry::{SyncRecord, health::RunQueue};

    use super::*;
    use crate::cli::profile::trace::tests::record;

    #[test]
    fn straggler_of_any_stage_is_named_with_shares_and_cause() {
        // Two stages of two ranks; in the second stage, rank 3 costs its peer a ninth of its time.
        let late = |last: u16, late: u64| -> Vec<SyncRecord> {
            let (compute, wait, late) = (Nanoseconds(90), Nanoseconds(60), Nanoseconds(late));
            let one = SyncRecord { tokens: 1, compute, wait, late, last: Rank(last), ..record(1, 0, 0) };
            (1..=64).map(|step| SyncRecord { step, ..one.clone() }).collect()
        };
        let names = ["pi1", "pi2", "pi3", "pi4"].map(str::to_owned);
        let lists = [late(1, 0), late(1, 0), late(3, 50), late(3, 0)];
        let records = RankRecords { names: &names, ranks: 2, records: &lists };
        let found = straggler(&records).expect("one rank is a straggler");
        assert_eq!((found.member, found.named.after, found.windows), (3, 1, (1, 1)));
        let health = |waited| Health { run_queue: Some(RunQueue { waited, ran: 0.5 }), ..Health::default() };
        let said = found.sentence("pi4", &health(0.3), &[&health(0.1)]);
        assert!(said.starts_with("pi4 is the straggler") && said.contains("CPU contention"), "{said}");
        let said = found.sentence("pi4", &health(0.3), &[&health(0.25), &health(0.3), &health(0.01)]);
        assert!(said.contains("no cause is known"), "most others have it as well: {said}");
        let said = found.sentence("pi4", &health(0.01), &[]);
        assert!(said.contains("no cause is known: its engine waited 1 %") && said.ends_with("too large?"), "{said}");
        let prompt: Vec<Vec<SyncRecord>> =
            lists.iter().map(|list| list.iter().map(|one| SyncRecord { tokens: 9, ..one.clone() }).collect()).collect();
        assert_eq!(straggler(&RankRecords { records: &prompt, ..records }), None, "a prompt is no decoding");
    }
}
