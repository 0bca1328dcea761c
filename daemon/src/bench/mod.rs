//! `brambled bench`: what this machine does with real work, beside what it could do at most. Prints a table or JSON; never
//! touches a running daemon.
mod bandwidth;
mod node;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use shared::topology::KvFormat;

/// What brambled can do instead of serving.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Measure this machine
    #[command(subcommand)]
    Bench(Bench),
}

/// What is measured.
#[derive(Clone, Debug, Subcommand)]
pub enum Bench {
    /// A whole model on this machine: load, prefill, decode, memory
    Node(NodeArguments),
}

/// Options of `brambled bench node`.
#[derive(Clone, Debug, Args)]
pub struct NodeArguments {
    /// A GGUF file
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// Compute threads [default: all allowed cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Lengths of prompts, in tokens
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [32, 128, 512])]
    prefill: Vec<u32>,
    /// Contexts to decode at, in tokens
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [0, 1000, 5000])]
    context: Vec<u32>,
    /// Tokens to decode at each context
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    tokens: u32,
    /// Repeats; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    repeats: u32,
    /// Format of the KV cache: f32 or f16
    #[arg(long, default_value = "f16", value_parser = kv)]
    kv: KvFormat,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn kv(text: &str) -> Result<KvFormat, String> {
    match text {
        "f32" => Ok(KvFormat::F32),
        "f16" => Ok(KvFormat::F16),
        _ => Err("f32 or f16".into()),
    }
}

/// Runs a command to its end and prints what it found.
///
/// # Errors
/// The model cannot be used.
pub fn run(command: Command, kernels: &'static crate::kernels::Kernels) -> anyhow::Result<()> {
    let Command::Bench(Bench::Node(arguments)) = command;
    let found = node::run(&arguments, kernels)?;
    if arguments.json { print(&found) } else { node::table(&found).iter().try_for_each(|line| line_out(line)) }
}

fn print(found: &impl Serialize) -> anyhow::Result<()> {
    line_out(&serde_json::to_string(found)?)
}

/// A reader that left had enough.
fn line_out(line: &str) -> anyhow::Result<()> {
    use std::io::{ErrorKind, Write};
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// The middle of several measurements.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
