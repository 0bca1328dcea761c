//! The bottleneck of a run in one sentence, from the time shares of all ranks. Pure.
use common::units::Nanoseconds;
use telemetry::{PhaseTotals, RankTotals};

use crate::cli::profile::trace::RankRecords;

/// If time other than computing has at least this share, it is the bottleneck; otherwise computing is.
const SHARE_MIN: f64 = 0.1;

/// Shares of a phase's time over all ranks; they sum to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Shares {
    threads: f64,
    wait: f64,
    wire: f64,
    bubble: f64,
}

impl Shares {
    fn of(phase: &PhaseTotals) -> Self {
        let share = |part: Nanoseconds| part.0 as f64 / phase.total().0.max(1) as f64;
        Self {
            threads: share(phase.threads),
            wait: share(phase.wait),
            wire: share(phase.wire),
            bubble: share(phase.bubble),
        }
    }
}

/// One sentence: the bottleneck of decode (of prefill if nothing was decoded), and a remedy. `causes`: the problem
/// that each rank's machine reports, if any.
pub(super) fn verdict(totals: &[RankTotals], records: &RankRecords<'_>, causes: &[Option<String>]) -> String {
    let mut sums = RankTotals::default();
    for rank in totals {
        sums.prefill.add(&rank.prefill);
        sums.decode.add(&rank.decode);
    }
    let (name, phase) = if sums.decode.steps > 0 { ("Decode", sums.decode) } else { ("Prefill", sums.prefill) };
    let Shares { threads, wait, wire, bubble } = Shares::of(&phase);
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let most = threads.max(wait).max(wire).max(bubble);
    if most < SHARE_MIN {
        let compute = percent(1.0 - threads - wait - wire - bubble);
        let limit = if name == "Decode" { "memory bandwidth" } else { "arithmetic" };
        return format!(
            "{name} computes {compute} of the time: the bottleneck is the {limit} of the nodes. Use more ranks."
        );
    }
    if most == bubble {
        let next = if name == "Decode" { "a sequence occupies one stage at a time" } else { "the prompt is short" };
        return format!(
            "{name} waits {} of the time for other stages: {next}. Run more sequences at once or use tensor \
             parallelism.",
            percent(bubble)
        );
    }
    if most == wire {
        return format!(
            "{name} spends {} of the time on the wire. Use --exchange q80, a faster link or fewer ranks.",
            percent(wire)
        );
    }
    if most == threads {
        return format!(
            "{name} spends {} of the time waiting for the rank's own threads. Use fewer threads, or dedicate \
             cores to them.",
            percent(threads)
        );
    }
    let Some((rank, share)) = slowest(records) else {
        return format!("{name} waits {} of the time for other ranks.", percent(wait));
    };
    let cause = causes.get(rank).cloned().flatten();
    let cause =
        cause.map_or("cause unknown; give it a smaller weight".into(), |cause| format!("its machine reports: {cause}"));
    format!(
        "{name} waits {} of the time for other ranks, {} of it for {}: {cause}.",
        percent(wait),
        percent(share),
        records.names[rank]
    )
}

/// The rank that caused the most waiting, and its share of all waiting.
fn slowest(records: &RankRecords<'_>) -> Option<(usize, f64)> {
    let mut waits = vec![0_u64; records.names.len()];
    for record in records.records.iter().flatten() {
        if let Some(wait) = waits.get_mut(record.slowest.index()) {
            *wait += record.wait.0;
        }
    }
    let sum: u64 = waits.iter().sum();
    let (rank, most) = waits.into_iter().enumerate().max_by_key(|(_, wait)| *wait)?;
    (most > 0).then(|| (rank, most as f64 / sum as f64))
}

#[cfg(test)]
mod tests {
    use common::ids::Rank;
    use telemetry::{PhaseTotals, SyncRecord};

    use super::*;
    use crate::cli::profile::trace::tests::record;

    fn said(decode: PhaseTotals, waits: &[(u16, u64)], cause: Option<&str>) -> String {
        let names = ["pi1".to_owned(), "pi2".to_owned(), "pi3".to_owned()];
        let waits = waits.iter().map(|(rank, wait)| SyncRecord {
            slowest: Rank(*rank),
            wait: Nanoseconds(*wait),
            ..record(1, 0, 0)
        });
        let records = vec![waits.collect()];
        let totals = [RankTotals { decode: PhaseTotals { steps: 1, ..decode }, ..RankTotals::default() }];
        let causes = [None, None, cause.map(str::to_owned)];
        verdict(&totals, &RankRecords { names: &names, ranks: 3, records: &records }, &causes)
    }

    #[test]
    fn bottleneck_is_named_with_share_and_remedy() {
        let time = Nanoseconds;
        let base = PhaseTotals { compute: time(90), ..PhaseTotals::default() };
        assert!(said(PhaseTotals { wire: time(5), ..base }, &[], None).contains("computes 95 %"));
        assert!(said(PhaseTotals { wire: time(60), ..base }, &[], None).contains("40 % of the time on the wire"));
        assert!(
            said(PhaseTotals { bubble: time(90), ..base }, &[], None)
                .contains("waits 50 % of the time for other stages")
        );
        assert!(
            said(PhaseTotals { threads: time(30), ..base }, &[], None)
                .contains("25 % of the time waiting for the rank's own threads")
        );
        let waits = PhaseTotals { wait: time(60), ..base };
        let named = said(waits, &[(2, 45), (1, 15)], Some("throttled"));
        assert!(
            named.contains("40 %") && named.contains("75 % of it for pi3: its machine reports: throttled"),
            "{named}"
        );
        assert!(said(waits, &[(2, 45)], None).contains("cause unknown"));
    }
}
