//! The command line: one file per command. Every command works without a screen and has --json where it reads something.
mod adopt;
mod answer;
mod arrange;
mod bench;
mod brambled;
mod chat;
mod clusters;
mod collectives;
mod confirm;
mod dashboard;
mod demo;
mod described;
mod disaggregation;
mod discover;
mod doctor;
mod endpoint;
mod events;
mod exclude;
mod failure;
mod first;
mod generate;
mod hypothetical;
mod interrupts;
mod key;
mod keys;
mod layout;
mod links;
mod logs;
mod look;
mod model;
mod node;
mod obtain;
mod options;
mod output;
mod plan;
mod profile;
mod progress;
mod proxy;
mod reach;
mod replay;
mod requests;
mod restart;
mod rolling;
mod rotate;
mod sampling;
mod screen;
mod show;
mod simulate;
mod sizing;
mod source;
mod status;
mod support;
mod sync;
#[cfg(test)]
mod tests;
mod tokenize;
mod topology;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use anyhow::{Context, anyhow};
use clap::{Parser, Subcommand};
use tracing_appender::rolling::{RollingFileAppender, Rotation};

pub use failure::Failure;

/// The operator's terminal of a bramble: a cluster of brambled nodes that runs one language model.
#[derive(Debug, Parser)]
#[command(
    name = "console",
    version,
    after_help = "Examples:\n  console demo\n  console --nodes pi1,pi2 --model llama-3.2-1b-q4_k_m.gguf\n  \
        console generate --nodes pi1,pi2 --model llama-3.2-1b-q4_k_m.gguf --prompt 'Once upon a time'\n\n\
        Exit codes: 0 ok, 1 failed, 2 wrong usage, or a confirmation without a terminal, 3 node unreachable, 4 refused, 5 request lost, 6 warnings, \
        7 errors (doctor), 8 the cluster is not in a state for this command, 130 interrupted (SIGTERM: 143)"
)]
struct Arguments {
    #[command(flatten)]
    dashboard: options::Dashboard,
    /// Nodes as ADDRESS[:PORT], in the order replica, stage, rank; the first is the head [env: BRAMBLE_NODES=]
    #[arg(long, global = true, value_delimiter = ',', value_name = "A,B,..", value_parser = options::node)]
    nodes: Vec<String>,
    /// Only look: commands that change something, and generations, are refused
    #[arg(long, global = true)]
    readonly: bool,
    /// Folder for log files of the console itself [default: no log]
    #[arg(long, global = true, env = "BRAMBLE_LOG_DIR", value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Key file of the cluster [default: ~/.config/bramble/cluster.key, if it is there]
    #[arg(long, global = true, env = "BRAMBLE_KEY_FILE", value_name = "FILE")]
    key: Option<PathBuf>,
    /// Nodes and key of a cluster that is kept (console clusters) [default: the only one, or that of console clusters use]
    #[arg(long, global = true, value_name = "NAME", value_parser = clusters::cluster_name)]
    cluster: Option<String>,
    /// Talk in clear to nodes without a key, although this console has one
    #[arg(long, global = true, env = "BRAMBLE_INSECURE")]
    insecure: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Commands; without one the dashboard opens.
#[derive(Debug, Subcommand)]
enum Command {
    /// Give nodes without a key the cluster's key, by the code that each shows
    Adopt(adopt::Adopt),
    /// Measure nodes, or this machine: read bandwidth, load, prefill, decode, memory, kernels; all-reduces
    Bench(options::Bench),
    /// Talk with the model over the HTTP API of a node
    Chat(chat::Chat),
    /// Clusters that are kept by name, so that nobody types addresses
    #[command(subcommand)]
    Clusters(clusters::Command),
    /// Start daemons on this machine, assign a topology and open the dashboard (or print a text, without a terminal)
    Demo(options::Demo),
    /// Show the nodes that announce themselves on the local network
    Discover(discover::Discover),
    /// Say what is wrong with nodes and between them, and what cures it
    Doctor(doctor::Doctor),
    /// Show what happened on all nodes, in one list by time
    Events(events::Events),
    /// Exclude a node, with a reason; the topology is assigned again on the rest
    Exclude(options::Exclude),
    /// Complete a text, on nodes or over the HTTP API of one
    Generate(options::Generate),
    /// Include a node again; the topology is assigned again with it
    Include(options::Include),
    /// Show the latest lines of a node's log, and follow it
    Logs(logs::Logs),
    /// Show a node; let nodes join and leave what serves, or begin nothing new on them
    #[command(subcommand)]
    Node(node::Node),
    /// Say what would be left if a node were stopped; exit code 1: nothing that serves
    OkToStop(node::OkToStop),
    /// Model files of nodes: list, pull, add, fetch, verify, remove
    #[command(subcommand)]
    Model(model::Model),
    /// Make the cluster's key, show it or what is derived from it
    #[command(subcommand)]
    Key(key::Command),
    /// Show the keys of the dashboard as they are in force, in the form of ~/.config/bramble/keys.toml
    Keys(keys::Keys),
    /// Rank layouts of a model on nodes, by what they would do; what does not fit is dropped with its reason
    Plan(plan::Plan),
    /// Complete a text and say where the time went: a table, the bottleneck in a sentence, a trace
    Profile(options::Profile),
    /// Relay the HTTP API of the first node that answers to this machine
    Proxy(proxy::Proxy),
    /// Play a recorded session, or print its events
    Replay(replay::Replay),
    /// Show what waits, runs and ran on the heads; end a request
    Requests(requests::Requests),
    /// Restart nodes one by one
    Restart(options::Restart),
    /// Draw a page of the dashboard as text or SVG, of the cluster or of a recording
    Screen(screen::Screen),
    /// Run a model on nodes that need not exist, in virtual time
    Simulate(simulate::Simulate),
    /// Show the nodes
    #[command(visible_alias = "cluster")]
    Status(options::Status),
    /// Gather what whoever helps from afar asks for, in one file without secrets
    SupportBundle(support::Support),
    /// Show the all-reduces of what runs: rank by rank, layer by layer, who holds the others up and why
    Sync(sync::Sync),
    /// Show the tokens of a text
    Tokenize(options::Tokenize),
    /// Show what runs as a topology file, check such a file against the nodes, or assign it
    #[command(subcommand)]
    Topology(options::Topology),
}

impl Arguments {
    fn json(&self) -> bool {
        match &self.command {
            Some(Command::Adopt(adopt)) => adopt.json,
            Some(Command::Bench(bench)) => bench.json(),
            Some(Command::Chat(chat)) => chat.json,
            Some(Command::Clusters(command)) => command.json(),
            Some(Command::Demo(demo)) => demo.json,
            Some(Command::Discover(discover)) => discover.json,
            Some(Command::Doctor(doctor)) => doctor.json,
            Some(Command::Events(events)) => events.json,
            Some(Command::Exclude(exclude)) => exclude.change.json,
            Some(Command::Generate(generate)) => generate.completing.json,
            Some(Command::Include(include)) => include.change.json,
            Some(Command::Logs(logs)) => logs.json,
            Some(Command::Node(node)) => node.json(),
            Some(Command::OkToStop(options)) => options.json,
            Some(Command::Model(model)) => model.json(),
            Some(Command::Key(key)) => key.json(),
            Some(Command::Keys(keys)) => keys.json,
            Some(Command::Replay(replay)) => replay.json,
            Some(Command::Plan(plan)) => plan.json(),
            Some(Command::Profile(profile)) => profile.completing.json,
            Some(Command::Proxy(_) | Command::Screen(_)) | None => false,
            Some(Command::Requests(requests)) => requests.json(),
            Some(Command::Restart(restart)) => restart.json,
            Some(Command::Simulate(simulate)) => simulate.json(),
            Some(Command::Status(status)) => status.look.json,
            Some(Command::SupportBundle(support)) => support.json,
            Some(Command::Sync(sync)) => sync.look.json,
            Some(Command::Tokenize(tokenize)) => tokenize.json,
            Some(Command::Topology(topology)) => topology.json(),
        }
    }
}

/// The command line as clap knows it, for man pages and completions.
pub fn command() -> clap::Command {
    <Arguments as clap::CommandFactory>::command()
}

/// Runs the console; never waits for a key where there is no terminal.
pub fn run() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let wants_json = line.iter().any(|argument| argument == "--json");
    let mut arguments = match reach::parse(line.iter().cloned()) {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    if let Err(failure) = looks_only(&arguments, &line).and_then(|()| reach::resolve(&mut arguments)) {
        return failure.report(wants_json);
    }
    let json = arguments.json();
    let _log = match arguments.log_dir.as_deref().map(log).transpose() {
        Ok(guard) => guard,
        Err(failure) => return failure.report(json),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Failure::from(anyhow::Error::from(error)).report(json),
    };
    let result = runtime.block_on(execute(arguments));
    // A read of standard input or a dial under way must not hold up the exit.
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

/// With `--readonly` nothing is asked of nodes that changes something: such commands are those with `--dry-run`, and those that generate.
fn looks_only(arguments: &Arguments, line: &[OsString]) -> Result<(), Failure> {
    let Some(found) = &arguments.command else { return Ok(()) };
    if !arguments.readonly {
        return Ok(());
    }
    let matches = command().ignore_errors(true).try_get_matches_from(line).map_err(anyhow::Error::from)?;
    let (mut at, mut leaf) = (&matches, command());
    while let Some((name, below)) = at.subcommand() {
        let Some(next) = leaf.find_subcommand(name).cloned() else { break };
        (at, leaf) = (below, next);
    }
    let changes = leaf.get_arguments().any(|argument| argument.get_id() == "dry_run");
    if changes || matches!(found, Command::Chat(_)) {
        let message = format!("--readonly only looks, and {} does more", leaf.get_name());
        return Err(Failure::Usage { message, next: "leave out --readonly, or look with console status" });
    }
    Ok(())
}

async fn execute(arguments: Arguments) -> Result<u8, Failure> {
    if !matches!(
        arguments.command,
        Some(Command::Adopt(_) | Command::Clusters(_) | Command::Key(_) | Command::Simulate(_) | Command::Tokenize(_))
    ) {
        // The demo's own daemons have no key.
        let allows_plain = arguments.insecure || matches!(arguments.command, Some(Command::Demo(_)));
        key::load(arguments.key.as_deref(), allows_plain)?;
    }
    match arguments.command {
        Some(Command::Adopt(adopt)) => adopt::run(adopt, arguments.key, arguments.cluster).await,
        Some(Command::Bench(bench)) => bench::run(bench).await,
        Some(Command::Chat(chat)) => chat::run(chat).await,
        Some(Command::Clusters(command)) => clusters::run(command),
        Some(Command::Demo(demo)) => demo::run(demo).await,
        Some(Command::Discover(discover)) => discover::run(discover).await,
        Some(Command::Doctor(doctor)) => doctor::run(doctor).await,
        Some(Command::Events(events)) => events::run(events).await,
        Some(Command::Exclude(exclude)) => exclude::run_exclude(exclude).await,
        Some(Command::Generate(generate)) => generate::run(generate).await,
        Some(Command::Include(include)) => exclude::run_include(include).await,
        Some(Command::Logs(logs)) => logs::run(logs).await,
        Some(Command::Node(node)) => node::run(node, arguments.cluster.as_deref()).await,
        Some(Command::OkToStop(options)) => node::ok_to_stop(options).await,
        Some(Command::Model(model)) => model::run(model).await,
        Some(Command::Key(key)) => key::run(key, arguments.key).await,
        Some(Command::Keys(options)) => keys::run(&options),
        Some(Command::Replay(options)) => Box::pin(replay::run(options)).await,
        Some(Command::Screen(options)) => screen::run(options).await,
        Some(Command::Plan(plan)) => plan::run(plan).await,
        Some(Command::Profile(profile)) => profile::run(profile).await,
        Some(Command::Proxy(proxy)) => proxy::run(proxy).await,
        Some(Command::Requests(requests)) => requests::run(requests).await,
        Some(Command::Restart(restart)) if restart.rolling.is_wanted() => rolling::run(restart).await,
        Some(Command::Restart(restart)) => restart::run(restart).await,
        Some(Command::Simulate(simulate)) => simulate::run(&simulate),
        Some(Command::Status(status)) => status::run(&status).await,
        Some(Command::SupportBundle(support)) => support::run(support).await,
        Some(Command::Sync(sync)) => sync::run(sync).await,
        Some(Command::Tokenize(tokenize)) => tokenize::run(&tokenize),
        Some(Command::Topology(topology)) => topology::run(topology).await,
        None => dashboard::run(arguments.dashboard, arguments.readonly).await,
    }
}

/// A command line that cannot be, or one that asks for help: as clap prints it, and as an object with --json.
fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
        output::line(&usage_failure(error).json().to_string());
    }
    // A reader that left had enough.
    let _ = error.print();
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn usage_failure(error: &clap::Error) -> Failure {
    let rendered = error.render().to_string();
    let lines: Vec<&str> = rendered.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let message = lines.join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    Failure::Usage { message, next: "console --help, or console COMMAND --help" }
}

/// Logs to daily files: the terminal belongs to the screen.
fn log(folder: &std::path::Path) -> Result<tracing_appender::non_blocking::WorkerGuard, Failure> {
    let appender =
        RollingFileAppender::builder().rotation(Rotation::DAILY).filename_prefix("console.log").build(folder);
    let appender = appender.with_context(|| format!("cannot log to {}", folder.display()))?;
    let (writer, guard) = tracing_appender::non_blocking(appender);
    tracing_subscriber::fmt().with_writer(writer).with_ansi(false).init();
    Ok(guard)
}
