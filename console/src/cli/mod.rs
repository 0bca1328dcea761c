//! The command line: a folder per noun, and `shared` for all. Every command works without a terminal; read-only commands
//! take --json.
mod acceptance;
mod bench;
mod cluster;
mod completions;
mod dashboard;
mod demo;
mod doctor;
mod events;
mod generate;
mod key;
mod kv;
mod logs;
mod model;
mod node;
mod profile;
mod proxy;
mod requests;
mod restart;
mod shared;
mod status;
mod sync;
mod target;
#[cfg(test)]
mod tests;
mod tokenize;
pub mod toolkit;
mod topology;
mod up;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use anyhow::{Context, anyhow};
use clap::{Parser, Subcommand};
use tracing_appender::rolling::{RollingFileAppender, Rotation};

use shared::{options, output, paint};

pub use shared::failure::Failure;

/// Heading of the options that every command has.
const GLOBAL: &str = "Options of every command";

/// Operate a Bramble cluster: brambled nodes that run one language model together
#[derive(Debug, Parser)]
#[command(
    name = "console",
    version,
    styles = paint::STYLES,
    after_help = "Examples:\n  console demo\n  console --nodes pi1,pi2 --model llama-3.2-1b-q4_k_m.gguf\n  \
        console generate --nodes pi1,pi2 --model llama-3.2-1b-q4_k_m.gguf --prompt 'Once upon a time'\n\n\
        Exit codes: 0 ok, 1 failed, 2 wrong usage, or a confirmation without a terminal, 3 node unreachable, 4 refused, 5 request lost, 6 warnings, \
        7 errors (doctor), 8 the cluster is not in a state for this command, 130 interrupted (SIGTERM: 143)"
)]
struct Arguments {
    #[command(flatten)]
    dashboard: dashboard::Dashboard,
    /// Nodes as ADDRESS[:PORT], in the order replica, stage, rank; the first one is the head [env: BRAMBLE_NODES=]
    #[arg(long, global = true, help_heading = GLOBAL, value_delimiter = ',', value_name = "A,B,..", value_parser = options::node)]
    nodes: Vec<String>,
    /// Refuse commands that change the cluster or generate text
    #[arg(long, global = true, hide_short_help = true, help_heading = GLOBAL)]
    readonly: bool,
    /// Write log files of the console to this folder [default: no log]
    #[arg(long, global = true, hide_short_help = true, help_heading = GLOBAL, env = "BRAMBLE_LOG_DIR", value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Key file of the cluster [default: ~/.config/bramble/cluster.key if it exists]
    #[arg(long, global = true, hide_short_help = true, help_heading = GLOBAL, env = "BRAMBLE_KEY_FILE", value_name = "FILE")]
    key: Option<PathBuf>,
    /// Use the nodes and the key of a saved cluster (see console cluster) [default: the one chosen with console
    /// cluster use, or the only one]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "NAME", value_parser = cluster::cluster_name)]
    cluster: Option<String>,
    /// Connect without encryption to nodes that have no key, even if this console has one
    #[arg(long, global = true, hide_short_help = true, help_heading = GLOBAL, env = "BRAMBLE_INSECURE")]
    insecure: bool,
    /// Print JSON instead of text
    #[arg(long, global = true, help_heading = GLOBAL)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Commands. Without a command, the dashboard opens.
#[derive(Debug, Subcommand)]
enum Command {
    /// Measure a cluster of real machines and write a report to share, with predictions and verdicts
    Acceptance(acceptance::Acceptance),
    /// Measure nodes, and the links between them
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Save clusters by name, so that you need not type addresses
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Print the completion script of a shell: bash, zsh or fish
    Completions(completions::Completions),
    /// Start local daemons, assign a topology and open the dashboard (without a terminal: print a completion)
    Demo(demo::options::Demo),
    /// Diagnose problems of nodes and links, with a remedy for each
    Doctor(doctor::Doctor),
    /// Show the events of all nodes, ordered by time
    Events(events::Events),
    /// Complete a text on nodes, or over the HTTP API of one; with --profile, show where the time went
    Generate(options::Generate),
    /// Create, show or rotate the cluster key, give it to new nodes, or derive restricted keys from it
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Show or delete the keys and values of earlier prompts that nodes store on their disks
    Kv(kv::Kv),
    /// Show or follow the log of a node
    Logs(logs::Logs),
    /// Manage the model files of nodes
    #[command(subcommand)]
    Model(model::Model),
    /// Show, find, add, remove, cordon, drain, exclude or include nodes
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Relay the HTTP API of the first reachable node to this machine
    Proxy(proxy::Proxy),
    /// Replay a recorded session, or print its events
    Replay(dashboard::replay::Replay),
    /// Show queued, running and finished requests; cancel a request
    Requests(requests::Requests),
    /// Restart nodes one by one
    Restart(restart::RestartOptions),
    /// Chat with a model of the cluster or over an HTTP API, or answer one prompt; loads the model if it does not run
    #[command(visible_alias = "chat")]
    Run(generate::run_options::RunOptions),
    /// Print a page of the dashboard as text or SVG, from the cluster or a recording, or its key bindings
    Screen(dashboard::screen::Screen),
    /// Show the nodes
    Status(options::Status),
    /// Show all-reduce times by rank and layer, and the straggler with its cause
    Sync(sync::Sync),
    /// Show the tokens of a text
    Tokenize(options::Tokenize),
    /// Show the running topology, assign a topology file, plan or simulate a topology
    #[command(subcommand)]
    Topology(topology::TopologyCommand),
    /// Set up new nodes step by step, from discovery to the first answer; repeat it to continue after an interruption
    Up(up::Up),
}

/// The clap definition of the command line, for man pages and completions.
pub fn command() -> clap::Command {
    <Arguments as clap::CommandFactory>::command()
}

/// Runs the console. Without a terminal, it never waits for a key press.
pub fn run() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let wants_json = line.iter().any(|argument| argument == "--json");
    let mut arguments = match target::parse(line.iter().cloned()) {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    if let Err(failure) = looks_only(&arguments, &line).and_then(|()| target::resolve(&mut arguments)) {
        return failure.report(wants_json);
    }
    let json = arguments.json;
    let _log = match arguments.log_dir.as_deref().map(log).transpose() {
        Ok(guard) => guard,
        Err(failure) => return failure.report(json),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::from(anyhow::Error::from(error)).report(json),
    };
    let result = runtime.block_on(execute(arguments));
    // A pending read of standard input or a pending connection must not delay the exit.
    runtime.shutdown_background();
    match (result, output::failure()) {
        (Ok(0), Some(reason)) => Failure::Other(anyhow!("cannot write to standard output: {reason}")).report(false),
        (Ok(code), _) => ExitCode::from(code),
        (Err(failure), _) => {
            tracing::error!("{failure}");
            failure.report(json)
        }
    }
}

/// Refuses with `--readonly` every command that changes the cluster or generates: those that have `--dry-run`, without
/// it.
fn looks_only(arguments: &Arguments, line: &[OsString]) -> Result<(), Failure> {
    if !arguments.readonly || arguments.command.is_none() {
        return Ok(());
    }
    let matches = command().ignore_errors(true).try_get_matches_from(line).map_err(anyhow::Error::from)?;
    let (mut at, mut leaf) = (&matches, command());
    while let Some((name, below)) = at.subcommand() {
        let Some(next) = leaf.find_subcommand(name).cloned() else { break };
        (at, leaf) = (below, next);
    }
    let changes = leaf.get_arguments().any(|argument| argument.get_id() == "dry_run");
    if changes && !at.get_flag("dry_run") {
        let message = format!("{} is not allowed with --readonly", leaf.get_name());
        return Err(Failure::Usage {
            message,
            next: "remove --readonly, or run a read-only command such as console status",
        });
    }
    Ok(())
}

async fn execute(arguments: Arguments) -> Result<u8, Failure> {
    let Arguments { command, key, cluster, insecure, dashboard, readonly, .. } = arguments;
    let needs_key = match &command {
        Some(Command::Cluster(_) | Command::Completions(_) | Command::Key(_) | Command::Tokenize(_)) => false,
        Some(Command::Acceptance(options)) => !options.is_local(),
        Some(Command::Topology(topology)) => !topology.is_local(),
        _ => true,
    };
    if needs_key {
        // The daemons that the demo starts have no key.
        let allows_plain = insecure || matches!(command, Some(Command::Demo(_)));
        // `console up` creates the key of --key.
        let file = key.as_deref().filter(|file| !matches!(command, Some(Command::Up(_))) || file.exists());
        key::load(file, allows_plain)?;
    }
    let Some(command) = command else { return dashboard::run(dashboard, readonly).await };
    match command {
        Command::Acceptance(options) => Box::pin(acceptance::run(options)).await,
        Command::Bench(bench) => bench::run(bench).await,
        Command::Cluster(command) => cluster::run(command),
        Command::Completions(options) => completions::run(&options),
        Command::Demo(demo) => demo::run(demo).await,
        Command::Doctor(doctor) => doctor::run(doctor).await,
        Command::Events(events) => events::run(events).await,
        Command::Generate(generate) if generate.profiling.profile => profile::run(generate).await,
        Command::Generate(generate) => generate::run(generate).await,
        Command::Key(command) => key::run(command, key, cluster).await,
        Command::Kv(options) => kv::run(options).await,
        Command::Logs(logs) => logs::run(logs).await,
        Command::Model(model) => model::run(model).await,
        Command::Node(node) => node::run(node, cluster.as_deref(), key).await,
        Command::Proxy(proxy) => proxy::run(proxy).await,
        Command::Replay(replay) => Box::pin(dashboard::replay::run(replay)).await,
        Command::Requests(requests) => requests::run(requests).await,
        Command::Restart(restart) => restart::run(restart).await,
        Command::Run(options) => generate::run::run(options).await,
        Command::Screen(screen) => dashboard::screen::run(screen).await,
        Command::Status(status) => status::run(&status).await,
        Command::Sync(sync) => sync::run(sync).await,
        Command::Tokenize(tokenize) => tokenize::run(&tokenize),
        Command::Topology(topology) => topology::run(topology).await,
        Command::Up(options) => Box::pin(up::run(options, up::Setting { key, cluster, insecure })).await,
    }
}

/// Prints a usage error or a help text as clap does, or a usage error as an object with --json.
fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
        output::line(&usage_failure(error).json().to_string());
    }
    // A reader that closed its end needs no output.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn usage_failure(error: &clap::Error) -> Failure {
    let rendered = error.render().to_string();
    let lines: Vec<&str> = rendered.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let message = lines.join(" ");
    let mut message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    // clap's "did you mean".
    if let Some(tip) = rendered.lines().find_map(|line| line.trim().strip_prefix("tip: ")) {
        message.push_str(&format!(" ({tip})"));
    }
    Failure::Usage { message, next: "console --help, or console COMMAND --help" }
}

/// Logs to daily files, because the terminal shows the dashboard.
fn log(folder: &std::path::Path) -> Result<tracing_appender::non_blocking::WorkerGuard, Failure> {
    let appender =
        RollingFileAppender::builder().rotation(Rotation::DAILY).filename_prefix("console.log").build(folder);
    let appender = appender.with_context(|| format!("cannot log to {}", folder.display()))?;
    let (writer, guard) = tracing_appender::non_blocking(appender);
    tracing_subscriber::fmt().with_writer(writer).with_ansi(false).init();
    Ok(guard)
}
