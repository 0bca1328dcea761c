//! The bottleneck of a run in a sentence, from where the time of every rank went. Pure.
use shared::{
    telemetry::{PhaseTotals, RankTotals},
    units::Nanoseconds,
};

use super::trace::RankRecords;

/// From this share of the time on, what is not computing is the bottleneck; below it, computing is.
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

/// One sentence: what takes the time of decode (of prefill where nothing was decoded), and what helps. `causes`: what each
/// rank's machine says against itself.
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
            "{name} computes {compute} of the time: the nodes' {limit} is the limit; more ranks make it faster."
        );
    }
    if most == bubble {
        let next = if name == "Decode" { "one sequence is in one stage at a time" } else { "the prompt is short" };
        return format!(
            "{name} waits {} of the time for other stages: {next}; more sequences at once or tensor parallelism fill it.",
            percent(bubble)
        );
    }
    if most == wire {
        return format!(
            "{name} spends {} of the time on the wire; --exchange q80, a faster link or fewer ranks shorten it.",
            percent(wire)
        );
    }
    if most == threads {
        return format!(
            "{name} spends {} of the time waiting for the rank's own threads; fewer threads, or cores of their own, help.",
            percent(threads)
        );
    }
    let Some((rank, share)) = slowest(records) else {
        return format!("{name} waits {} of the time for other ranks.", percent(wait));
    };
    let cause = causes.get(rank).cloned().flatten();
    let cause = cause.map_or("no cause is known; a smaller weight for it helps".into(), |cause| {
        format!("its machine says: {cause}")
    });
    format!(
        "{name} waits {} of the time for other ranks, {} of that for {}: {cause}.",
        percent(wait),
        percent(share),
        records.names[rank]
    )
}

/// The rank that was waited for longest, and its share of all waiting.
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
    use shared::{
        ids::Rank,
        telemetry::{PhaseTotals, SyncRecord},
    };

    use super::*;
    use crate::cli::profile::trace::tests::record;

    fn said(decode: PhaseTotals, waits: &[(u16, u64)], cause: Option<&str>) -> String {
        let names = ["pi1".to_owned(), "pi2".to_owned(), "pi3".to_owned()];
        let wait = |(rank, wait): &(u16, u64)| SyncRecord {
            slowest: Rank(*rank),
            wait: Nanoseconds(*wait),
            ..record(1, 0, 0)
        };
        let records = vec![waits.iter().map(wait).collect()];
        let totals = [RankTotals { decode: PhaseTotals { steps: 1, ..decode }, ..RankTotals::default() }];
        let causes = [None, None, cause.map(str::to_owned)];
        verdict(&totals, &RankRecords { names: &names, ranks: 3, records: &records }, &causes)
    }

    #[test]
    fn the_bottleneck_is_named_with_its_share_and_what_helps() {
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
            named.contains("40 %") && named.contains("75 % of that for pi3: its machine says: throttled"),
            "{named}"
        );
        assert!(said(waits, &[(2, 45)], None).contains("no cause is known"));
    }
}
