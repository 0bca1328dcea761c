//! The command line: one file per command. Every command works without a screen and has --json where it reads something.
mod dashboard;
mod demo;
mod failure;
mod generate;
mod options;
mod output;
mod profile;
mod status;
mod tokenize;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

pub use failure::Failure;

/// The operator's terminal of a bramble: a cluster of brambled nodes that runs one language model.
#[derive(Debug, Parser)]
#[command(
    name = "console",
    version,
    after_help = "Examples:\n  console demo\n  console --nodes pi1,pi2 --model llama-3.2-1b-q4_k_m.gguf\n  \
        console generate --nodes pi1,pi2 --model llama-3.2-1b-q4_k_m.gguf --prompt 'Once upon a time'\n\n\
        Exit codes: 0 ok, 1 failed, 2 usage, 3 node unreachable, 4 refused, 5 request lost, 130 interrupted"
)]
struct Arguments {
    #[command(flatten)]
    dashboard: options::Dashboard,
    /// Folder for log files of the console itself [default: no log]
    #[arg(long, global = true, env = "BRAMBLE_LOG_DIR", value_name = "DIR")]
    log_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Commands; without one the dashboard opens.
#[derive(Debug, Subcommand)]
enum Command {
    /// Start daemons on this machine, assign a topology and open the dashboard (or print a text, without a terminal)
    Demo(options::Demo),
    /// Complete a text
    Generate(options::Generate),
    /// Show the nodes
    Status(options::Status),
    /// Show the tokens of a text
    Tokenize(options::Tokenize),
}

/// Runs the console; never waits for a key where there is no terminal.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let _log = arguments.log_dir.as_deref().map(log);
    let json = match &arguments.command {
        Some(Command::Demo(demo)) => demo.json,
        Some(Command::Generate(generate)) => generate.json,
        Some(Command::Status(status)) => status.json,
        Some(Command::Tokenize(tokenize)) => tokenize.json,
        None => false,
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::from(anyhow::Error::from(error)).report(json),
    };
    let result = runtime.block_on(async {
        match arguments.command {
            Some(Command::Demo(demo)) => demo::run(demo).await,
            Some(Command::Generate(generate)) => generate::run(generate).await,
            Some(Command::Status(status)) => status::run(&status).await,
            Some(Command::Tokenize(tokenize)) => tokenize::run(&tokenize),
            None => dashboard::run(arguments.dashboard).await,
        }
    });
    // A read of standard input or a dial under way must not hold up the exit.
    runtime.shutdown_background();
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(json),
    }
}

/// Logs to daily files: the terminal belongs to the screen.
fn log(folder: &std::path::Path) -> tracing_appender::non_blocking::WorkerGuard {
    let appender = tracing_appender::rolling::daily(folder, "console.log");
    let (writer, guard) = tracing_appender::non_blocking(appender);
    tracing_subscriber::fmt().with_writer(writer).with_ansi(false).init();
    guard
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_topology_or_node_list_that_cannot_be_is_a_usage_error() {
        for line in [
            "console generate --nodes a --topology 4tp --prompt x --model m",
            "console generate --nodes , --prompt x --model m",
            "console generate --nodes a --prompt x --model m --temperature nan",
            "console generate --nodes a --prompt x --model m --top-p 2",
            "console generate --nodes a --prompt x --model m --max-tokens 0",
            "console demo --nodes 0",
        ] {
            let error = Arguments::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
