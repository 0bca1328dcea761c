//! Times of all-reduces between ranks that are threads of one process, or nodes on their links; and the table of both.
//! Columns as in nccl-tests: algbw = bytes / time, busbw = algbw * 2(n-1)/n, with the bytes of the tensor in f32.
use collectives::Algorithm;
use common::{precision::Exchange, units::Nanoseconds};
use serde::{Deserialize, Serialize};

/// Times measured by the leader of a stage on the links of a running topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkBench {
    /// Ranks of the stage.
    pub ranks: u16,
    /// Format of the values on the wire.
    pub exchange: Exchange,
    /// Columns of the tensors.
    pub columns: u32,
    /// By tokens, then by algorithm, in the requested order.
    pub times: Vec<LinkTime>,
    /// Token counts for which time ran out.
    pub left_out: Vec<u32>,
}

/// One kind of all-reduce on the links, timed on the leader from its start until it has the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTime {
    /// Tokens of the tensor.
    pub tokens: u32,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Bytes of the tensor in f32.
    pub bytes: u64,
    /// Number of timed all-reduces.
    pub count: u32,
    /// Median.
    pub p50: Nanoseconds,
    /// 99th percentile.
    pub p99: Nanoseconds,
    /// Whether the topology uses this algorithm for this token count.
    pub is_used: bool,
}

/// Displayed results of all-reduces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectiveBench {
    /// Ranks.
    pub ranks: u16,
    /// Format of the values on the wire.
    pub exchange: Exchange,
    /// Nodes of the ranks in rank order; `None` for threads over loopback.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Whether waiting ranks spin; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spin: Option<bool>,
    /// All-reduces of each kind, at most.
    pub repeats: u32,
    /// One row for each kind.
    pub rows: Vec<CollectiveRow>,
    /// Cases that were skipped, with the reason.
    #[serde(default)]
    pub skipped: Vec<String>,
}

/// One kind of all-reduce.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectiveRow {
    /// Tokens of the tensor.
    pub tokens: u32,
    /// Its columns.
    pub columns: u32,
    /// Its bytes in f32: what algbw counts.
    pub bytes: u64,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Number of timed all-reduces.
    pub count: u32,
    /// Median in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// Bytes of the tensor per second, by the median.
    pub algbw_bytes_per_second: f64,
    /// Bytes per second that a link carries in one direction, if all links carry the same.
    pub busbw_bytes_per_second: f64,
    /// Whether the topology uses this algorithm for this token count; `None` without a topology.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_used: Option<bool>,
    /// Comparison with a bare exchange; only if the sockets are accessible.
    #[serde(flatten)]
    pub bare: Option<Bare>,
}

/// An all-reduce compared with a bare exchange of as many bytes between the same ranks, all at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bare {
    /// Median of the bare exchange in microseconds.
    pub bare_us: f64,
    /// Ratio of the medians.
    pub over_bare: f64,
    /// Messages of all ranks per all-reduce.
    pub messages: f64,
    /// System calls of all ranks per message, sends and receives together.
    pub calls_per_message: f64,
}

/// The median and the 99th percentile; `None` of an empty list.
pub fn median_and_p99<T: Copy>(ascending: &[T]) -> Option<(T, T)> {
    let at = |percent: usize| ascending.get(ascending.len() * percent / 100).copied();
    at(50).zip(at(99))
}

/// The measured times of one kind of all-reduce.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllReduceTimes {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Tokens of the tensor.
    pub tokens: u32,
    /// Its columns.
    pub columns: u32,
    /// Ranks that it was summed over.
    pub ranks: u16,
    /// Number of timed all-reduces.
    pub count: u32,
    /// Median in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
}

impl CollectiveRow {
    /// The row of these times, with its bandwidths.
    pub fn new(times: AllReduceTimes) -> Self {
        let AllReduceTimes { algorithm, tokens, columns, ranks, count, p50_us, p99_us } = times;
        let bytes = 4 * u64::from(tokens) * u64::from(columns);
        let algbw = bytes as f64 / (p50_us.max(1e-3) / 1e6);
        let world = f64::from(ranks.max(1));
        Self {
            tokens,
            columns,
            bytes,
            algorithm,
            count,
            p50_us,
            p99_us,
            algbw_bytes_per_second: algbw,
            busbw_bytes_per_second: algbw * 2.0 * (world - 1.0) / world,
            is_used: None,
            bare: None,
        }
    }
}

impl CollectiveBench {
    /// The displayed results of a leader's measurement between the ranks of its stage on `nodes`.
    pub fn of_links(found: &LinkBench, nodes: Vec<String>, repeats: u32) -> Self {
        let skipped = found.left_out.iter().map(|tokens| format!("{tokens} tokens: time ran out"));
        let rows = found.times.iter().map(|time| {
            let row = CollectiveRow::new(AllReduceTimes {
                algorithm: time.algorithm,
                tokens: time.tokens,
                columns: found.columns,
                ranks: found.ranks,
                count: time.count,
                p50_us: time.p50.0 as f64 / 1e3,
                p99_us: time.p99.0 as f64 / 1e3,
            });
            CollectiveRow { is_used: Some(time.is_used), ..row }
        });
        Self {
            ranks: found.ranks,
            exchange: found.exchange,
            nodes,
            spin: None,
            repeats,
            rows: rows.collect(),
            skipped: skipped.collect(),
        }
    }
}

/// Lines of text for a benchmark of all-reduces.
pub fn collectives_table(found: &CollectiveBench) -> Vec<String> {
    let CollectiveBench { ranks, exchange, nodes, repeats, rows, .. } = found;
    let has_bare = rows.iter().any(|row| row.bare.is_some());
    let between = if nodes.is_empty() {
        let waiting = found.spin.map(|spin| if spin { ", waiting ranks spinning" } else { ", waiting ranks sleeping" });
        format!("{ranks} ranks as threads over loopback, {exchange}{}", waiting.unwrap_or_default())
    } else {
        format!("{ranks} ranks on the links between {}, {exchange}", nodes.join(", "))
    };
    let mut head = format!(
        "{:>12} {:>10} {:<10} {:>6} {:>10} {:>10} {:>12} {:>12}",
        "size", "bytes", "algorithm", "count", "p50 us", "p99 us", "algbw MB/s", "busbw MB/s"
    );
    if has_bare {
        head += &format!(" {:>10} {:>6} {:>8} {:>10}", "bare us", "ratio", "messages", "calls/msg");
    }
    let mut lines = vec![format!("{between}, up to {repeats} all-reduces of each"), String::new(), head];
    lines.extend(rows.iter().map(line));
    lines.push(String::new());
    lines.extend(found.skipped.iter().map(|why| format!("left out: {why}")));
    if has_bare {
        let what = "the same bytes between the same ranks at once, without sums and without waiting for a sum";
        lines.push(format!("bare: {what}"));
    }
    if rows.iter().any(|row| row.is_used.is_some()) {
        lines.push(
            "times are of the first rank; used: the algorithm of the running topology for this token count".into(),
        );
    }
    lines
}

fn line(row: &CollectiveRow) -> String {
    let mut line = format!(
        "{:>12} {:>10} {:<10} {:>6} {:>10.1} {:>10.1} {:>12.1} {:>12.1}",
        format!("{}x{}", row.tokens, row.columns),
        row.bytes,
        row.algorithm.name(),
        row.count,
        row.p50_us,
        row.p99_us,
        row.algbw_bytes_per_second / 1e6,
        row.busbw_bytes_per_second / 1e6
    );
    if let Some(Bare { bare_us, over_bare, messages, calls_per_message }) = row.bare {
        line += &format!(" {bare_us:>10.1} {over_bare:>6.2} {messages:>8.1} {calls_per_message:>10.2}");
    }
    if row.is_used == Some(true) {
        line += "  used";
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_times_are_shown_like_nccl_tests() {
        let time = |algorithm, is_used| LinkTime {
            tokens: 16,
            algorithm,
            bytes: 4 * 16 * 2048,
            count: 100,
            p50: Nanoseconds(1_000_000),
            p99: Nanoseconds(2_500_000),
            is_used,
        };
        let found = LinkBench {
            ranks: 4,
            exchange: Exchange::F32,
            columns: 2048,
            times: vec![time(Algorithm::Direct, false), time(Algorithm::ReduceScatter, true)],
            left_out: vec![128],
        };
        let shown = CollectiveBench::of_links(&found, vec!["pi1".into(), "pi2".into()], 200);
        let lines = collectives_table(&shown);
        let wanted = [
            "4 ranks on the links between pi1, pi2, f32, up to 200 all-reduces of each",
            "",
            "        size      bytes algorithm   count     p50 us     p99 us   algbw MB/s   busbw MB/s",
            "     16x2048     131072 direct        100     1000.0     2500.0        131.1        196.6",
            "     16x2048     131072 rs-ag         100     1000.0     2500.0        131.1        196.6  used",
            "",
            "left out: 128 tokens: time ran out",
            "times are of the first rank; used: the algorithm of the running topology for this token count",
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn median_and_p99_are_found_of_any_count() {
        let times: Vec<u32> = (0..200).collect();
        assert_eq!(median_and_p99(&times), Some((100, 198)));
        assert_eq!(median_and_p99(&[7]), Some((7, 7)));
        assert_eq!(median_and_p99::<u32>(&[]), None);
    }
}
