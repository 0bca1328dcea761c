//! Arrival times of each rank's parts, as measured by the other ranks of its stage. They separate a rank that sends
//! late from a rank whose link is slow, which the waiting and wire times alone cannot do. Pure.
use common::{ids::Rank, units::Nanoseconds};
use serde_json::{Value, json};
use telemetry::{
    Arrival,
    bench::collectives::median_and_p99,
    straggler::{STRAGGLER_FACTOR, STRAGGLER_SHARE},
};

use crate::cli::profile::trace::RankRecords;

/// Median and 99th percentile.
type Times = (Nanoseconds, Nanoseconds);

/// Arrivals of the parts of one rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ArrivalRow {
    /// Steps of one token (decode) rather than of several (batch).
    is_decode: bool,
    rank: usize,
    count: usize,
    /// First byte and last byte, counted from the moment the receiver entered the all-reduce, and the time between
    /// the two.
    first: Times,
    whole: Times,
    way: Times,
    /// Medians of the rank's own computing, and of the peers' all-reduces including the computing before them.
    compute: Nanoseconds,
    total: Nanoseconds,
}

/// Rows of batch steps, then of decode steps, by rank. A rank without recorded arrivals has no row.
pub(super) fn rows(records: &RankRecords<'_>) -> Vec<ArrivalRow> {
    let ranks = (0..records.records.len()).flat_map(|rank| [(false, rank), (true, rank)]);
    let mut rows: Vec<ArrivalRow> = ranks.filter_map(|(is_decode, rank)| row(records, is_decode, rank)).collect();
    rows.sort_by_key(|row| (row.is_decode, row.rank));
    rows
}

fn row(records: &RankRecords<'_>, is_decode: bool, rank: usize) -> Option<ArrivalRow> {
    let of_phase = |observer: usize| records.records[observer].iter().filter(move |one| (one.tokens == 1) == is_decode);
    let (mut heard, mut totals) = (Vec::<Arrival>::new(), Vec::new());
    for observer in (0..records.records.len()).filter(|observer| *observer != rank) {
        for record in of_phase(observer) {
            let found = record.arrivals.iter().find(|arrival| arrival.rank.index() == rank);
            if let Some(arrival) = found {
                heard.push(*arrival);
                totals.push(Nanoseconds(record.compute.0.saturating_add(record.wait.0).saturating_add(record.wire.0)));
            }
        }
    }
    let times = |time: fn(&Arrival) -> Nanoseconds| sorted(heard.iter().map(time));
    let compute = sorted(of_phase(rank).map(|record| record.compute)).map_or(Nanoseconds(0), |(median, _)| median);
    Some(ArrivalRow {
        is_decode,
        rank,
        count: heard.len(),
        first: times(|arrival| arrival.first)?,
        whole: times(|arrival| arrival.whole)?,
        way: times(Arrival::way)?,
        compute,
        total: sorted(totals.into_iter())?.0,
    })
}

fn sorted(times: impl Iterator<Item = Nanoseconds>) -> Option<Times> {
    let mut times: Vec<Nanoseconds> = times.collect();
    times.sort_unstable();
    median_and_p99(&times)
}

/// The lines of the table; empty without rows.
pub(super) fn lines(rows: &[ArrivalRow], names: &[String]) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let head = ["first p50", "p99", "whole p50", "p99", "way p50", "p99"].map(|title| format!(" {title:>9}")).join("");
    let mut lines = vec![format!("{:<8} {:<10} {:>9}{head}", "phase", "parts of", "count")];
    lines.extend(rows.iter().map(|row| {
        let times = [row.first, row.whole, row.way].map(|(p50, p99)| format!(" {p50:>9} {p99:>9}")).join("");
        format!("{:<8} {:<10} {:>9}{times}", phase(row), names[row.rank], row.count)
    }));
    lines.push(String::new());
    lines.push(
        "first and whole: arrival of the first and the last byte of a node's parts at its peers, since they entered \
         the all-reduce; way: the time between the two; batch: steps of several tokens"
            .into(),
    );
    lines
}

fn phase(row: &ArrivalRow) -> &'static str {
    if row.is_decode { "decode" } else { "batch" }
}

/// The rows as JSON objects.
pub(super) fn objects(rows: &[ArrivalRow], names: &[String]) -> Value {
    let times = |(p50, p99): Times| json!({"p50_ns": p50.0, "p99_ns": p99.0});
    let objects = rows.iter().map(|row| {
        json!({"phase": phase(row), "node": names[row.rank], "rank": Rank(row.rank as u16), "count": row.count,
            "first": times(row.first), "whole": times(row.whole), "way": times(row.way), "compute_p50_ns": row.compute.0})
    });
    objects.collect()
}

/// Sentences on ranks that send late and on ranks with slow transmission, for decode steps (for batches if nothing
/// was decoded). The thresholds are those of the straggler rule.
pub(super) fn sentences(rows: &[ArrivalRow], names: &[String], ranks: usize) -> Vec<String> {
    let is_decode = rows.iter().any(|row| row.is_decode);
    let rows: Vec<&ArrivalRow> = rows.iter().filter(|row| row.is_decode == is_decode).collect();
    let stages = rows.chunk_by(|one, two| one.rank / ranks.max(1) == two.rank / ranks.max(1));
    stages.flat_map(|stage| [late(stage, names), long(stage, names)].into_iter().flatten()).collect()
}

/// The row with the largest time, if it is an outlier, and the second largest.
fn outstanding<'a>(
    stage: &[&'a ArrivalRow],
    time: fn(&ArrivalRow) -> Nanoseconds,
) -> Option<(&'a ArrivalRow, &'a ArrivalRow)> {
    let most = *stage.iter().max_by_key(|row| time(row))?;
    let next = *stage.iter().filter(|row| row.rank != most.rank).max_by_key(|row| time(row))?;
    let (at, other) = (time(most).0 as f64, time(next).0 as f64);
    (at >= STRAGGLER_SHARE * most.total.0 as f64 && at >= STRAGGLER_FACTOR * other).then_some((most, next))
}

fn late(stage: &[&ArrivalRow], names: &[String]) -> Option<String> {
    let (late, next) = outstanding(stage, |row| row.first.0)?;
    let others = stage.iter().filter(|row| row.rank != late.rank).map(|row| row.compute).max()?;
    // A longer computation must explain at least half of the lateness; otherwise the cause is the delay of the link.
    let why = if late.compute.0.saturating_sub(others.0) >= late.first.0.0 / 2 {
        format!("it computes for {}, its peers for {others}", late.compute)
    } else {
        "it computes no longer than its peers: check the latency of its link and what else runs on the machine".into()
    };
    Some(format!(
        "{} sends late: its first byte arrives {} after its peers enter the all-reduce (next: {}, {}); {why}.",
        names[late.rank], late.first.0, next.first.0, names[next.rank]
    ))
}

fn long(stage: &[&ArrivalRow], names: &[String]) -> Option<String> {
    let (long, next) = outstanding(stage, |row| row.way.0)?;
    Some(format!(
        "{} has slow transmission: {} from the first byte to the last (next: {}, {}); check its link.",
        names[long.rank], long.way.0, next.way.0, names[next.rank]
    ))
}

#[cfg(test)]
mod tests {
    use telemetry::SyncRecord;

    use super::*;
    use crate::cli::profile::trace::tests::record;

    /// Records of rank `own` of three over 100 steps: its computing, and for each peer the first and last byte in
    /// microseconds.
    fn seen(compute: u64, peers: [(u16, u64, u64); 2]) -> Vec<SyncRecord> {
        let us = |time| Nanoseconds(1000 * time);
        let arrivals =
            peers.map(|(rank, first, whole)| Arrival { rank: Rank(rank), first: us(first), whole: us(whole) });
        let one = SyncRecord { compute: us(compute), arrivals: arrivals.to_vec(), ..record(1, 0, 0) };
        (1..=100).map(|step| SyncRecord { step, ..one.clone() }).collect()
    }

    fn said(lists: &[Vec<SyncRecord>]) -> (Vec<ArrivalRow>, String) {
        let rows = rows(&RankRecords { names: &names(), ranks: 3, records: lists });
        let sentences = sentences(&rows, &names(), 3).join("|");
        (rows, sentences)
    }

    fn names() -> Vec<String> {
        ["pi1", "pi2", "pi3"].map(str::to_owned).into()
    }

    #[test]
    fn late_senders_are_distinguished_from_slow_links() {
        let even = |rank: u16| -> [(u16, u64, u64); 2] { [(rank + 1) % 3, (rank + 2) % 3].map(|peer| (peer, 20, 40)) };
        let list = |rank, late: (u64, u64)| {
            seen(100, even(rank).map(|(peer, ..)| if peer == 2 { (2, late.0, late.1) } else { (peer, 20, 40) }))
        };
        let quiet = [list(0, (20, 40)), list(1, (20, 40)), seen(100, even(2))];
        assert_eq!(said(&quiet).1, "");
        let (rows, sentence) = said(&[list(0, (300, 320)), list(1, (300, 320)), seen(390, even(2))]);
        assert!(
            sentence.starts_with("pi3 sends late: its first byte arrives 300 us") && !sentence.contains('|'),
            "{sentence}"
        );
        assert!(sentence.contains("it computes for 390 us, its peers for 100 us"), "{sentence}");
        assert_eq!((rows[2].count, rows[2].first.0, rows[2].way.1), (200, Nanoseconds(300_000), Nanoseconds(20_000)));
        let (_, sentence) = said(&[list(0, (300, 320)), list(1, (300, 320)), seen(100, even(2))]);
        assert!(sentence.contains("computes no longer than its peers"), "{sentence}");
        let (_, sentence) = said(&[list(0, (20, 320)), list(1, (20, 320)), seen(100, even(2))]);
        assert!(sentence.starts_with("pi3 has slow transmission: 300 us") && !sentence.contains('|'), "{sentence}");
    }

    #[test]
    fn table_has_a_line_per_phase_and_rank_and_none_for_a_lone_rank() {
        let one = seen(100, [(1, 20, 1200), (2, 0, 5)]);
        let batch: Vec<SyncRecord> = one.iter().map(|record| SyncRecord { tokens: 8, ..record.clone() }).collect();
        let lists = [[batch, one].concat(), Vec::new(), Vec::new()];
        let found = rows(&RankRecords { names: &names(), ranks: 3, records: &lists });
        let lines = lines(&found, &names());
        let wanted = [
            "phase    parts of       count first p50       p99 whole p50       p99   way p50       p99",
            "batch    pi2              100     20 us     20 us   1.20 ms   1.20 ms   1.18 ms   1.18 ms",
            "batch    pi3              100      0 ns      0 ns      5 us      5 us      5 us      5 us",
            "decode   pi2              100     20 us     20 us   1.20 ms   1.20 ms   1.18 ms   1.18 ms",
            "decode   pi3              100      0 ns      0 ns      5 us      5 us      5 us      5 us",
        ];
        assert_eq!(lines[..5], wanted);
        assert_eq!(objects(&found, &names())[2]["whole"]["p99_ns"], 1_200_000);
        let hostile = [seen(100, [(9, 20, 40), (u16::MAX, 20, 40)])];
        assert_eq!(rows(&RankRecords { names: &names(), ranks: 1, records: &hostile }), [], "ranks that are none");
    }
}
