//! `bramble-bench daemon`: a daemon that leaves out or delays a part of its work, to measure what the part costs.
use clap::Args;
use daemon::command_line::CommandLine;
use engine::Variant;

/// Options of `bramble-bench daemon`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DaemonOptions {
    /// Skip all all-reduces; results are meaningless, only timings are valid
    #[arg(long)]
    omit_exchange: bool,
    /// Send keys and values from a prefill group only when the prompt is complete
    #[arg(long)]
    transfer_at_end: bool,
    /// Disable speculative decoding and the prefix cache
    #[arg(long)]
    plain: bool,
    /// The options of brambled
    #[command(flatten)]
    settings: daemon::config::DaemonArguments,
}

/// Runs the daemon; returns its exit code.
pub(crate) fn run(options: DaemonOptions) -> anyhow::Result<i32> {
    let DaemonOptions { omit_exchange, transfer_at_end, plain, settings } = options;
    let variant = Variant { omits_exchange: omit_exchange, is_plain: plain, transfers_at_end: transfer_at_end };
    daemon::run::run(CommandLine { settings, command: None }, variant)
}
