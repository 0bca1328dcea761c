//! What a machine does with real work, as `brambled bench` finds it and `console bench` shows it. Plain values with their
//! units; nothing is measured here.
pub mod collectives;
pub mod network;
mod table;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

pub use collectives::{CollectiveBench, CollectiveRow, LinkBench, LinkTime, collectives_table};
pub use network::{Incast, KnownLink, NetworkBench, PeerLink, network_table};
pub use table::{kernels_table, node_table};

/// Longest text of a progress line in bytes.
const WHAT_BYTES_MAX: usize = 96;

/// What a bench found.
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
    /// What this machine reads from memory, by number of threads; the last is with all of them.
    pub bandwidth: Vec<Bandwidth>,
    /// How long a load takes.
    pub load: Load,
    /// Weights that a decoded token reads, in bytes.
    pub weight_bytes: u64,
    /// Prompts.
    pub prefill: Vec<Prefill>,
    /// Tokens one by one.
    pub decode: Vec<Decode>,
    /// Steps of several tokens, if asked for.
    pub rows: Vec<Rows>,
    /// The most probable token behind each id that was given.
    pub ids: Vec<u32>,
    /// What was left out, and why.
    pub skipped: Vec<String>,
    /// Peak resident memory of one load, prefill and decode in bytes, file pages included; none where the system does
    /// not tell.
    pub resident_peak: Option<u64>,
}

/// Memory that is read by so many threads, in the best of several ways.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Threads.
    pub threads: u16,
    /// Bytes a second of all of them.
    pub bytes_per_second: f64,
    /// Streams that a thread reads side by side.
    pub streams: u32,
    /// How far ahead lines are asked for, in bytes.
    pub ahead: u32,
    /// Whether huge pages were asked for.
    pub huge_pages: bool,
}

/// From opening the file to a shard whose pages are all there, without packed shards of earlier loads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Seconds when the file's pages were dropped from the page cache first; none where they could not be.
    pub cold_seconds: Option<f64>,
    /// Bytes that came from the disk meanwhile; none where the system does not tell.
    pub cold_disk_bytes: Option<u64>,
    /// Why there are no such seconds, or what is not known of them.
    pub cold_note: Option<String>,
    /// Seconds when the file was read just before.
    pub warm_seconds: f64,
}

/// A prompt.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prefill {
    /// Its length.
    pub tokens: u32,
    /// Tokens a second.
    pub tokens_per_second: f64,
    /// Multiply-adds a second in the weight matrices, in thousands of millions.
    pub gmacs: f64,
}

/// Tokens one by one behind a context.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decode {
    /// Tokens in the KV cache before the first.
    pub context: u32,
    /// Tokens a second.
    pub tokens_per_second: f64,
    /// Bytes of weights and KV cache that a token reads.
    pub bytes: u64,
    /// Bytes read a second by what the same threads read with nothing else to do right before and after; the median of the
    /// repeats. On a shared machine that moves by the second, and an earlier limit says nothing.
    pub share_of_bandwidth: f64,
}

/// A step of several tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    /// Tokens of the step.
    pub rows: u32,
    /// Its time.
    pub milliseconds: f64,
    /// Relative to a step of one.
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
    /// Multiply-adds a second of registers alone, with one thread, in thousands of millions; none where no instruction
    /// multiplies and adds.
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
    /// Multiply-adds a second, in thousands of millions.
    pub gmacs: f64,
    /// Bytes of weights a second, in thousands of millions: once for all tokens.
    pub gigabytes: f64,
}

/// What a bench does now. As a line: `3/12 prefill of 512 tokens`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchProgress {
    /// From 1.
    pub step: u16,
    /// Steps in all.
    pub steps: u16,
    /// What this step is.
    pub what: String,
}

impl fmt::Display for BenchProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} {}", self.step, self.steps, self.what)
    }
}

/// The line is none of progress.
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
    fn progress_survives_its_line_and_other_lines_are_none() {
        let progress = BenchProgress { step: 3, steps: 12, what: "prefill of 512 tokens".into() };
        assert_eq!(progress.to_string(), "3/12 prefill of 512 tokens");
        assert_eq!(progress.to_string().parse(), Ok(progress));
        let long = format!("1/2 {}", "x".repeat(WHAT_BYTES_MAX + 1));
        for line in ["", "3/12", "3/12 ", "3 of 12", "x/12 y", "3/99999 y", "brambled: cannot use m.gguf", &long] {
            assert_eq!(line.parse::<BenchProgress>(), Err(NoProgress), "{line}");
        }
    }
}
