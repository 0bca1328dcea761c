//! `brambled bench`: what this machine does with real work, beside what it could do at most. Prints a table or JSON; never
//! touches a running daemon.
mod bandwidth;
mod bare;
mod cold;
mod collectives;
mod kernels;
mod node;
mod progress;

use std::path::PathBuf;

use crate::print::line_out;
use clap::{Args, Subcommand};
use serde::Serialize;
use shared::{
    protocol::bench::{
        BENCH_COLUMNS_MAX, BENCH_COLUMNS_MIN, BENCH_POSITIONS_MAX, BENCH_PRODUCT_TOKENS_MAX, BENCH_READ_MIB_MAX,
        BENCH_READ_MIB_MIN, BENCH_ROWS_MAX, BENCH_THREADS_MAX, BENCH_TOKENS_MAX, MATRIX_DEFAULT,
        PRODUCT_TOKENS_DEFAULT,
    },
    telemetry::bench::{collectives_table, kernels_table, node_table},
    topology::KvFormat,
};

/// What is measured.
#[derive(Clone, Debug, Subcommand)]
pub enum Bench {
    /// A whole model on this machine: load, prefill, decode, memory
    Node(NodeArguments),
    /// Matrix products of every format and kernel table
    Kernels(KernelArguments),
    /// All-reduces between ranks that are threads of this process, over loopback, beside a bare exchange of the same bytes
    Collectives(collectives::Arguments),
}

/// Options of `brambled bench kernels`.
#[derive(Clone, Debug, Args)]
pub struct KernelArguments {
    /// Multiply with matrices of this GGUF file instead of made-up ones
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Formats as llama.cpp names them [default: all, or those of the file]
    #[arg(long, value_name = "FORMAT,..", value_delimiter = ',')]
    formats: Vec<String>,
    /// Kernel tables [default: the one that is used; `all`: every one that this machine can run]
    #[arg(long, value_name = "TABLE,..", value_delimiter = ',')]
    tables: Vec<String>,
    /// Tokens of a product
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = PRODUCT_TOKENS_DEFAULT,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_PRODUCT_TOKENS_MAX)))]
    tokens: Vec<u32>,
    /// Rows of a matrix
    #[arg(long, value_name = "N", default_value_t = MATRIX_DEFAULT,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_ROWS_MAX)))]
    rows: u32,
    /// Columns of a matrix
    #[arg(long, value_name = "N", default_value_t = MATRIX_DEFAULT,
        value_parser = clap::value_parser!(u32).range(i64::from(BENCH_COLUMNS_MIN)..=i64::from(BENCH_COLUMNS_MAX)))]
    columns: u32,
    /// Compute threads
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(BENCH_THREADS_MAX)))]
    threads: u16,
    /// Repeats; the median counts
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=9999))]
    repeats: u32,
    /// Tell on standard error what is measured, also where that is no terminal
    #[arg(long)]
    progress: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `brambled bench node`.
#[derive(Clone, Debug, Args)]
pub struct NodeArguments {
    /// A GGUF file
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// Compute threads [default: all allowed cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(BENCH_THREADS_MAX)))]
    threads: Option<u16>,
    /// Lengths of prompts, in tokens [default: 32,128,512 as far as the model's context goes]
    #[arg(long, value_name = "N,..", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(0..=i64::from(BENCH_POSITIONS_MAX)))]
    prefill: Vec<u32>,
    /// Contexts to decode at, in tokens [default: 0,1000,5000 as far as the model's context goes]
    #[arg(long, value_name = "N,..", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(0..=i64::from(BENCH_POSITIONS_MAX)))]
    context: Vec<u32>,
    /// Tokens to decode at each context
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(BENCH_TOKENS_MAX)))]
    tokens: u32,
    /// Repeats; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    repeats: u32,
    /// Format of the KV cache: f16, q8_0 or f32
    #[arg(long, default_value = "f16")]
    kv: KvFormat,
    /// Tokens of steps whose cost is compared with that of one; for example 1,2,4,8
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64))]
    rows: Vec<u32>,
    /// Memory to read for the bandwidth, in MiB; more than all caches hold [default: a quarter of what is free, at most 1024]
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(i64::from(BENCH_READ_MIB_MIN)..=i64::from(BENCH_READ_MIB_MAX)))]
    read_mib: Option<u32>,
    /// Token ids; the most probable token behind each of them is found, for comparing with other programs
    #[arg(long, value_name = "ID,..", value_delimiter = ',')]
    ids: Vec<u32>,
    /// Tell on standard error what is measured, also where that is no terminal
    #[arg(long)]
    progress: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs a command to its end and prints what it found.
///
/// # Errors
/// The model cannot be used.
pub fn run(bench: Bench, kernels: &'static crate::kernels::Kernels) -> anyhow::Result<()> {
    match bench {
        Bench::Node(arguments) => {
            let found = node::run(&arguments, kernels)?;
            show(&found, node_table, arguments.json)
        }
        Bench::Kernels(arguments) => {
            let found = kernels::run(&arguments, kernels)?;
            show(&found, kernels_table, arguments.json)
        }
        Bench::Collectives(arguments) => {
            let found = collectives::run(&arguments, kernels)?;
            show(&found, collectives_table, arguments.json)
        }
    }
}

/// Ends the process when standard input closes: whoever started it is gone, or wants nothing more.
pub fn end_with_parent() {
    std::thread::spawn(|| {
        // Bytes are ignored; an error means as much as the end.
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

/// The middle of several measurements.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
