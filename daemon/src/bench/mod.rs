//! `brambled bench`: real work on this machine, compared with its limits. Prints a table or JSON; never touches a
//! running daemon.
pub(crate) mod bandwidth;
mod cold;
mod kernels;
mod node;
mod progress;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use common::precision::KvFormat;
use protocol::bench::{
    BENCH_COLUMNS_MAX, BENCH_COLUMNS_MIN, BENCH_POSITIONS_MAX, BENCH_PRODUCT_TOKENS_MAX, BENCH_READ_MIB_MAX,
    BENCH_READ_MIB_MIN, BENCH_ROWS_MAX, BENCH_THREADS_MAX, BENCH_TOKENS_MAX, MATRIX_DEFAULT, PRODUCT_TOKENS_DEFAULT,
};
use serde::Serialize;
use telemetry::bench::{kernels_table, node_table};

use crate::print::line_out;

/// The benchmarks.
#[derive(Clone, Debug, Subcommand)]
pub enum Bench {
    /// A whole model on this machine: load, prefill, decode, memory
    Node(NodeArguments),
    /// Matrix products of every format and kernel table
    Kernels(KernelArguments),
}

/// Options of `brambled bench kernels`.
#[derive(Clone, Debug, Args)]
pub struct KernelArguments {
    /// Multiply with matrices of this GGUF file instead of made-up ones
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Formats by their llama.cpp names [default: all, or those of the file]
    #[arg(long, value_name = "FORMAT,..", value_delimiter = ',')]
    formats: Vec<String>,
    /// Kernel tables [default: the one in use; `all`: every one that this machine can run]
    #[arg(long, value_name = "TABLE,..", value_delimiter = ',')]
    tables: Vec<String>,
    /// Tokens per product
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = PRODUCT_TOKENS_DEFAULT,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_PRODUCT_TOKENS_MAX)))]
    tokens: Vec<u32>,
    /// Rows per matrix
    #[arg(long, value_name = "N", default_value_t = MATRIX_DEFAULT,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_ROWS_MAX)))]
    rows: u32,
    /// Columns per matrix
    #[arg(long, value_name = "N", default_value_t = MATRIX_DEFAULT,
        value_parser = clap::value_parser!(u32).range(i64::from(BENCH_COLUMNS_MIN)..=i64::from(BENCH_COLUMNS_MAX)))]
    columns: u32,
    /// Compute threads
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(BENCH_THREADS_MAX)))]
    threads: u16,
    /// Number of repeats; the median is reported
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=9999))]
    repeats: u32,
    /// Print progress on standard error even if it is not a terminal
    #[arg(long)]
    progress: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `brambled bench node`.
#[derive(Clone, Debug, Args)]
pub struct NodeArguments {
    /// GGUF file
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// Compute threads [default: all allowed cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(BENCH_THREADS_MAX)))]
    threads: Option<u16>,
    /// Prompt lengths in tokens [default: 32,128,512, as far as they fit the model's context]
    #[arg(long, value_name = "N,..", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(0..=i64::from(BENCH_POSITIONS_MAX)))]
    prefill: Vec<u32>,
    /// Contexts to decode at, in tokens [default: 0,1000,5000, as far as they fit the model's context]
    #[arg(long, value_name = "N,..", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(0..=i64::from(BENCH_POSITIONS_MAX)))]
    context: Vec<u32>,
    /// Tokens to decode at each context
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_TOKENS_MAX)))]
    tokens: u32,
    /// Number of repeats; the median is reported
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    repeats: u32,
    /// Format of the KV cache: f16, q8_0, q4_0 or f32
    #[arg(long, default_value = "f16")]
    kv: KvFormat,
    /// Steps with these numbers of tokens are compared with a step of one token; for example 1,2,4,8
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    rows: Vec<u32>,
    /// Memory to read for the bandwidth, in MiB; must exceed all caches [default: a quarter of the free memory, at most
    /// 1024]
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(i64::from(BENCH_READ_MIB_MIN)..=i64::from(BENCH_READ_MIB_MAX)))]
    read_mib: Option<u32>,
    /// Token ids; prints the most probable next token after each, for comparison with other programs
    #[arg(long, value_name = "ID,..", value_delimiter = ',')]
    ids: Vec<u32>,
    /// Print progress on standard error even if it is not a terminal
    #[arg(long)]
    progress: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs a benchmark and prints its results.
///
/// # Errors
/// The model cannot be used.
pub fn run(bench: Bench, kernels: &'static ::kernels::Kernels) -> anyhow::Result<()> {
    match bench {
        Bench::Node(arguments) => {
            let found = node::run(&arguments, kernels)?;
            show(&found, node_table, arguments.json)
        }
        Bench::Kernels(arguments) => {
            let found = kernels::run(&arguments, kernels)?;
            show(&found, kernels_table, arguments.json)
        }
    }
}

/// Ends the process when standard input closes: the parent has ended, or has cancelled the benchmark.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        // Bytes are ignored; an error counts as the end.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
}

fn show<F: Serialize>(found: &F, table: fn(&F) -> Vec<String>, json: bool) -> anyhow::Result<()> {
    if json {
        line_out(&serde_json::to_string(found)?)
    } else {
        table(found).iter().try_for_each(|line| line_out(line))
    }
}

/// The median.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
