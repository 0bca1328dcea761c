//! Performance of a machine with real work, as measured by `brambled bench` and shown by `console bench node`. Plain values
//! with their units; nothing is measured here.
pub mod collectives;
pub mod network;
mod table;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

pub use collectives::{AllReduceTimes, CollectiveBench, CollectiveRow, LinkBench, LinkTime, collectives_table};
pub use network::{Incast, KnownLink, NetworkBench, PeerLink, network_table};
pub use table::{kernels_table, node_table};

/// Longest text of a progress line in bytes.
const WHAT_BYTES_MAX: usize = 96;

/// The results of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum BenchFound {
    /// A whole model on one machine.
    Node(Box<NodeBench>),
    /// Matrix products.
    Kernels(KernelBench),
    /// Links to other nodes. Since wire version 5.
    Network(NetworkBench),
}

/// A whole model on one machine alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeBench {
    /// File name of the model.
    pub model: String,
    /// Kernel table.
    pub kernels: String,
    /// Compute threads.
    pub threads: u16,
    /// Memory read bandwidth by number of threads; the last entry uses all of them.
    pub bandwidth: Vec<Bandwidth>,
    /// Time to load the model.
    pub load: Load,
    /// Bytes of weights that each decoded token reads.
    pub weight_bytes: u64,
    /// Prefill speeds.
    pub prefill: Vec<Prefill>,
    /// Decode speeds.
    pub decode: Vec<Decode>,
    /// Steps of several tokens, if requested.
    pub rows: Vec<Rows>,
    /// The most probable next token after each of the given ids.
    pub ids: Vec<u32>,
    /// Cases that were skipped, with the reason.
    pub skipped: Vec<String>,
    /// Peak resident memory of one load, prefill and decode in bytes, file pages included; `None` if the system does
    /// not report it.
    pub resident_peak: Option<u64>,
}

/// Read bandwidth of this number of threads, the best of several access patterns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Threads.
    pub threads: u16,
    /// Bytes per second of all threads together.
    pub bytes_per_second: f64,
    /// Streams that each thread reads in parallel.
    pub streams: u32,
    /// Prefetch distance in bytes.
    pub ahead: u32,
    /// Whether huge pages were requested.
    pub huge_pages: bool,
}

/// From opening the file to a shard with all pages in memory, without packed shards of earlier loads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Seconds after dropping the file's pages from the page cache; `None` if they could not be dropped.
    pub cold_seconds: Option<f64>,
    /// Bytes read from the disk meanwhile; `None` if the system does not report it.
    pub cold_disk_bytes: Option<u64>,
    /// Why the cold time is missing or uncertain.
    pub cold_note: Option<String>,
    /// Seconds with the file in the page cache.
    pub warm_seconds: f64,
}

/// Prefill of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prefill {
    /// Its length.
    pub tokens: u32,
    /// Tokens per second.
    pub tokens_per_second: f64,
    /// Multiply-adds per second in the weight matrices, in billions (1e9).
    pub gmacs: f64,
}

/// Decoding after a context.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decode {
    /// Tokens in the KV cache before the first.
    pub context: u32,
    /// Tokens per second.
    pub tokens_per_second: f64,
    /// Bytes of weights and KV cache that each token reads.
    pub bytes: u64,
    /// Bytes read per second relative to the read bandwidth of the same threads measured directly before and after; the
    /// median of the repeats. On a shared machine the bandwidth varies from second to second, so an earlier measurement
    /// is not comparable.
    pub share_of_bandwidth: f64,
}

/// A step of several tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    /// Tokens of the step.
    pub rows: u32,
    /// Its time.
    pub milliseconds: f64,
    /// Relative to a step of one token.
    pub times_of_one: f64,
}

/// Matrix products by kernel table and format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelBench {
    /// Compute threads.
    pub threads: u16,
    /// Kernel tables.
    pub tables: Vec<Table>,
}

/// Products of one kernel table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Its name.
    pub kernels: String,
    /// Multiply-adds per second on registers only, with one thread, in billions (1e9); `None` if the table has no
    /// multiply-add instruction.
    pub peak_gmacs: Option<f64>,
    /// Products.
    pub products: Vec<Product>,
}

/// A product of a matrix with some tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Product {
    /// Format of the weights, as llama.cpp names it.
    pub format: String,
    /// Rows of the matrix.
    pub rows: u64,
    /// Columns of the matrix.
    pub columns: u64,
    /// Tokens.
    pub tokens: u32,
    /// Time of the product.
    pub microseconds: f64,
    /// Multiply-adds per second, in billions (1e9).
    pub gmacs: f64,
    /// Bytes of weights per second, in billions (1e9), counted once for all tokens.
    pub gigabytes: f64,
}

/// The current step of a benchmark. As a line: `3/12 prefill of 512 tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchProgress {
    /// Number of the step, from 1.
    pub step: u16,
    /// Total number of steps.
    pub steps: u16,
    /// Description of the step.
    pub what: String,
}

impl fmt::Display for BenchProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} {}", self.step, self.steps, self.what)
    }
}

/// The line does not report progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoProgress;

impl FromStr for BenchProgress {
    type Err = NoProgress;

    fn from_str(line: &str) -> Result<Self, NoProgress> {
        let (place, what) = line.split_once(' ').ok_or(NoProgress)?;
        let (step, steps) = place.split_once('/').ok_or(NoProgress)?;
        let number = |text: &str| text.parse().map_err(|_| NoProgress);
        if what.is_empty() || what.len() > WHAT_BYTES_MAX || what.chars().any(char::is_control) {
            return Err(NoProgress);
        }
        Ok(Self { step: number(step)?, steps: number(steps)?, what: what.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_parses_from_its_line_and_rejects_other_lines() {
        let progress = BenchProgress { step: 3, steps: 12, what: "prefill of 512 tokens".into() };
        assert_eq!(progress.to_string(), "3/12 prefill of 512 tokens");
        assert_eq!(progress.to_string().parse(), Ok(progress));
        let long = format!("1/2 {}", "x".repeat(WHAT_BYTES_MAX + 1));
        for line in ["", "3/12", "3/12 ", "3 of 12", "x/12 y", "3/99999 y", "brambled: cannot use m.gguf", &long] {
            assert_eq!(line.parse::<BenchProgress>(), Err(NoProgress), "{line}");
        }
    }
}
