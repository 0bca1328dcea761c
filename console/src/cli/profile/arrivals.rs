//! When the parts of each rank came, as the other ranks of its stage saw it: who starts late, and whose parts are long on the way.
//! Two things that waiting and wire together do not tell apart. Pure.
use serde_json::{Value, json};
use shared::{
    ids::Rank,
    telemetry::{
        Arrival,
        bench::collectives::median_and_p99,
        straggler::{STRAGGLER_FACTOR, STRAGGLER_SHARE},
    },
    units::Nanoseconds,
};

use super::trace::RankRecords;

/// Median and 99th percentile.
type Times = (Nanoseconds, Nanoseconds);

/// The parts of one rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// Steps of one token, or of several.
    is_decode: bool,
    rank: usize,
    count: usize,
    /// First byte and last after the others' enter, and the time between the two.
    first: Times,
    whole: Times,
    way: Times,
    /// Medians of its own computing, and of an all-reduce of the others with the computing before it.
    compute: Nanoseconds,
    total: Nanoseconds,
}

/// Rows of several tokens a step, then those of one token, by rank; none for a rank that nobody heard of.
pub(super) fn rows(records: &RankRecords<'_>) -> Vec<Row> {
    let ranks = (0..records.records.len()).flat_map(|rank| [(false, rank), (true, rank)]);
    let mut rows: Vec<Row> = ranks.filter_map(|(is_decode, rank)| row(records, is_decode, rank)).collect();
    rows.sort_by_key(|row| (row.is_decode, row.rank));
    rows
}

fn row(records: &RankRecords<'_>, is_decode: bool, rank: usize) -> Option<Row> {
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
    Some(Row {
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

/// The table, empty where nobody heard of anybody.
pub(super) fn lines(rows: &[Row], names: &[String]) -> Vec<String> {
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
        "first and whole: when the first byte and the last of a node's parts were read by the others of its stage, after they had \
         entered the all-reduce; way: between the two; batch: steps of several tokens"
            .into(),
    );
    lines
}

fn phase(row: &Row) -> &'static str {
    if row.is_decode { "decode" } else { "batch" }
}

/// The rows as objects.
pub(super) fn objects(rows: &[Row], names: &[String]) -> Value {
    let times = |(p50, p99): Times| json!({"p50_ns": p50.0, "p99_ns": p99.0});
    let object = |row: &Row| {
        json!({"phase": phase(row), "node": names[row.rank], "rank": Rank(row.rank as u16), "count": row.count,
            "first": times(row.first), "whole": times(row.whole), "way": times(row.way), "compute_p50_ns": row.compute.0})
    };
    rows.iter().map(object).collect()
}

/// Who starts late and whose parts are long on the way, in sentences; of decode, of batches where nothing was decoded. Named is
/// who costs as much and stands out as much as a straggler must.
pub(super) fn sentences(rows: &[Row], names: &[String], ranks: usize) -> Vec<String> {
    let is_decode = rows.iter().any(|row| row.is_decode);
    let rows: Vec<&Row> = rows.iter().filter(|row| row.is_decode == is_decode).collect();
    let stages = rows.chunk_by(|one, two| one.rank / ranks.max(1) == two.rank / ranks.max(1));
    stages.flat_map(|stage| [late(stage, names), long(stage, names)].into_iter().flatten()).collect()
}

/// The row whose time stands out, and the next one.
fn outstanding<'a>(stage: &[&'a Row], time: fn(&Row) -> Nanoseconds) -> Option<(&'a Row, &'a Row)> {
    let most = *stage.iter().max_by_key(|row| time(row))?;
    let next = *stage.iter().filter(|row| row.rank != most.rank).max_by_key(|row| time(row))?;
    let (at, other) = (time(most).0 as f64, time(next).0 as f64);
    (at >= STRAGGLER_SHARE * most.total.0 as f64 && at >= STRAGGLER_FACTOR * other).then_some((most, next))
}

fn late(stage: &[&Row], names: &[String]) -> Option<String> {
    let (late, next) = outstanding(stage, |row| row.first.0)?;
    let others = stage.iter().filter(|row| row.rank != late.rank).map(|row| row.compute).max()?;
    // Half of the lateness is explained: what is left is the delay of links that all have.
    let why = if late.compute.0.saturating_sub(others.0) >= late.first.0.0 / 2 {
        format!("it computes {} where the others compute {others}", late.compute)
    } else {
        "it computes no longer than they do: the delay of its link, or what stops its process, is to be looked at"
            .into()
    };
    Some(format!(
        "{} starts late: its first byte comes {} after the others have entered ({} of the next, {}); {why}.",
        names[late.rank], late.first.0, next.first.0, names[next.rank]
    ))
}

fn long(stage: &[&Row], names: &[String]) -> Option<String> {
    let (long, next) = outstanding(stage, |row| row.way.0)?;
    Some(format!(
        "{}'s parts are long on the way: {} from the first byte to the last ({} of the next, {}); its link is to be looked at.",
        names[long.rank], long.way.0, next.way.0, names[next.rank]
    ))
}

#[cfg(test)]
mod tests {
    use shared::telemetry::SyncRecord;

    use super::*;
    use crate::cli::profile::trace::tests::record;

    /// What rank `own` of three saw in 100 steps: each peer's first byte and last in microseconds; own computing.
    fn seen(compute: u64, peers: [(u16, u64, u64); 2]) -> Vec<SyncRecord> {
        let us = |time| Nanoseconds(1000 * time);
        let arrivals =
            peers.map(|(rank, first, whole)| Arrival { rank: Rank(rank), first: us(first), whole: us(whole) });
        let record = |step| SyncRecord { compute: us(compute), arrivals: arrivals.to_vec(), ..record(step, 0, 0) };
        (1..=100).map(record).collect()
    }

    fn said(lists: &[Vec<SyncRecord>]) -> (Vec<Row>, String) {
        let rows = rows(&RankRecords { names: &names(), ranks: 3, records: lists });
        let sentences = sentences(&rows, &names(), 3).join("|");
        (rows, sentences)
    }

    fn names() -> Vec<String> {
        ["pi1", "pi2", "pi3"].map(str::to_owned).into()
    }

    #[test]
    fn who_starts_late_is_told_from_whose_parts_are_long_on_the_way() {
        let even = |rank: u16| -> [(u16, u64, u64); 2] { [(rank + 1) % 3, (rank + 2) % 3].map(|peer| (peer, 20, 40)) };
        let list = |rank, late: (u64, u64)| {
            seen(100, even(rank).map(|(peer, ..)| if peer == 2 { (2, late.0, late.1) } else { (peer, 20, 40) }))
        };
        let quiet = [list(0, (20, 40)), list(1, (20, 40)), seen(100, even(2))];
        assert_eq!(said(&quiet).1, "");
        let (rows, sentence) = said(&[list(0, (300, 320)), list(1, (300, 320)), seen(390, even(2))]);
        assert!(
            sentence.starts_with("pi3 starts late: its first byte comes 300 us") && !sentence.contains('|'),
            "{sentence}"
        );
        assert!(sentence.contains("it computes 390 us where the others compute 100 us"), "{sentence}");
        assert_eq!((rows[2].count, rows[2].first.0, rows[2].way.1), (200, Nanoseconds(300_000), Nanoseconds(20_000)));
        let (_, sentence) = said(&[list(0, (300, 320)), list(1, (300, 320)), seen(100, even(2))]);
        assert!(sentence.contains("computes no longer than they do"), "{sentence}");
        let (_, sentence) = said(&[list(0, (20, 320)), list(1, (20, 320)), seen(100, even(2))]);
        assert!(
            sentence.starts_with("pi3's parts are long on the way: 300 us") && !sentence.contains('|'),
            "{sentence}"
        );
    }

    #[test]
    fn the_table_has_a_line_a_phase_and_rank_and_nothing_of_a_lone_rank() {
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
