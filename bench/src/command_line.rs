//! The command line.
use std::process::ExitCode;

use anyhow::anyhow;
use clap::{Parser, Subcommand};
use console::cli::toolkit::{Connection, Failure, Need, output};

use crate::{
    commands::{
        ab::{self, Ab},
        collectives::{self, Collectives},
        disaggregation::{self, Disaggregation},
        drafts::{self, Drafts},
        matrix::{self, Matrix},
        pages::{self, Compare, Report},
        serve::{self, Serve},
    },
    daemon_variant::{self, DaemonOptions},
};

/// Benchmarks of Bramble for developers; nodes and links are measured by console bench
#[derive(Clone, Debug, Parser)]
#[command(name = "bramble-bench", version)]
struct Arguments {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Compare layouts, measured in alternating rounds, with a verdict
    Ab(Box<Ab>),
    /// Time all-reduces between the nodes of a topology, or between threads of this machine
    Collectives(Box<Collectives>),
    /// Compare two matrices (exit 1 if the second is worse by more than the noise)
    Compare(Compare),
    /// Run a brambled that leaves out or delays a part of its work
    Daemon(Box<DaemonOptions>),
    /// Compare a prefill group with replicas without roles on the same nodes, by prompt length
    Disagg(Box<Disaggregation>),
    /// Compare speculative decoding on and off on a fixed prompt set (exit 1 on a slowdown)
    Drafts(Box<Drafts>),
    /// Sweep ranks, replicas, prompt length, output length and concurrency; resumable
    Matrix(Box<Matrix>),
    /// Write a report about a matrix, with three graphs
    Report(Report),
    /// Load the HTTP API of a server: at a request rate, from a trace, or with a fixed concurrency
    Serve(Box<Serve>),
    /// Prepare requests for the daemon that starts this process
    #[command(hide = true)]
    Text,
}

impl Command {
    fn json(&self) -> bool {
        match self {
            Self::Ab(ab) => ab.json,
            Self::Collectives(collectives) => collectives.json,
            Self::Compare(compare) => compare.json,
            Self::Disagg(disaggregation) => disaggregation.json,
            Self::Drafts(drafts) => drafts.json,
            Self::Matrix(matrix) => matrix.json,
            Self::Serve(serve) => serve.json,
            Self::Daemon(_) | Self::Report(_) | Self::Text => false,
        }
    }
}

/// The clap definition of the command line.
pub fn command() -> clap::Command {
    <Arguments as clap::CommandFactory>::command()
}

/// Runs the program. Exit codes are those of `console`, and of brambled for `daemon`.
pub fn run() -> ExitCode {
    let Arguments { connection, command } = Arguments::parse();
    match command {
        Command::Daemon(options) => return of_process(daemon_variant::run(*options)),
        Command::Text => return of_process(daemon::text::child::run().map(|()| 0)),
        _ => {}
    }
    let json = command.json();
    let result = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::from(anyhow::Error::from(error)))
        .and_then(|runtime| {
            let result = runtime.block_on(execute(connection, command));
            // Threads that are measured must not delay the exit.
            runtime.shutdown_background();
            result
        });
    match (result, output::failure()) {
        (Ok(0), Some(reason)) => report(&anyhow!("cannot write to standard output: {reason}").into(), false),
        (Ok(code), _) => ExitCode::from(code),
        (Err(failure), _) => report(&failure, json),
    }
}

async fn execute(connection: Connection, command: Command) -> Result<u8, Failure> {
    match command {
        Command::Ab(options) => ab::run(*options, connection.nodes(Need::Acts)?).await,
        Command::Collectives(options) if options.local => {
            connection.refuse("measures this machine because of --local")?;
            collectives::run(*options, Vec::new()).await
        }
        Command::Collectives(options) => collectives::run(*options, connection.nodes(Need::May)?).await,
        Command::Disagg(options) => disaggregation::run(*options, connection.nodes(Need::Acts)?).await,
        Command::Matrix(options) => matrix::run(*options, connection.nodes(Need::Acts)?).await,
        Command::Drafts(options) => {
            connection.refuse("uses the HTTP API given by --url")?;
            drafts::run(*options).await
        }
        Command::Serve(options) => {
            connection.refuse("uses the HTTP API given by --url")?;
            serve::run(*options).await
        }
        Command::Compare(options) => {
            connection.refuse("reads local files")?;
            pages::compare(&options)
        }
        Command::Report(options) => {
            connection.refuse("reads local files")?;
            pages::report(&options)
        }
        Command::Daemon(_) | Command::Text => unreachable!("these run without a runtime"),
    }
}

fn of_process(result: anyhow::Result<i32>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            eprintln!("bramble-bench: {error:#}");
            ExitCode::from(1)
        }
    }
}

/// Prints the message and the next step on standard error, and with `json` the object on standard output.
fn report(failure: &Failure, json: bool) -> ExitCode {
    let object = failure.json();
    output::note(&format!("bramble-bench: {}", output::clean(&failure.to_string())));
    if let Some(next) = object["error"]["next"].as_str() {
        output::note(&format!("next: {next}"));
    }
    if json {
        output::line(&object.to_string());
    }
    ExitCode::from(failure.code())
}
