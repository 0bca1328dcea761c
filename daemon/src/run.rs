//! Runs brambled: flags -> checked settings -> serve -> exit code.
use std::path::Path;

use engine::Variant;
use kernels::Kernels;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use protocol::noise::keyring;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::{
    Layer as _,
    filter::{LevelFilter, Targets, filter_fn},
    fmt,
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{
    bench, check,
    command_line::{Command, CommandLine},
    config::Config,
    gateway, keys,
    log::{self, OneLineEach},
    node::driver::{
        pacemaker,
        state::{StateFolder, StateLock},
    },
    pair,
    serve::{self, PidFile, Signals},
    text,
};

/// Limit of file descriptors, for connections of both ports, links and files.
const DESCRIPTORS: u64 = 65_536;

/// Runs the daemon, or the command that the line names; returns the exit code. `variant` is the default, except in
/// benchmarks.
///
/// # Errors
/// A setting is invalid, a resource cannot be used, or the command fails.
pub fn run(line: CommandLine, variant: Variant) -> anyhow::Result<i32> {
    let CommandLine { settings: arguments, command } = line;
    if matches!(command, Some(Command::Text)) {
        return text::child::run().map(|()| 0);
    }
    let forced = std::env::var("BRAMBLE_KERNELS").ok();
    let kernels = Kernels::choose(forced.as_deref())?;
    match command {
        Some(Command::Bench(bench)) => {
            if arguments.exit_with_parent {
                bench::end_with_parent();
            }
            return bench::run(bench, kernels).map(|()| 0);
        }
        Some(Command::Check(check)) => {
            return check::run(&check, Config::for_check(arguments)?.as_ref()).map(i32::from);
        }
        Some(Command::Pair(pair)) => {
            return pair::run(&pair, &Config::load_as_packaged(arguments)?).map(|()| 0);
        }
        Some(Command::Text) | None => {}
    }
    let config = Config::load(arguments.clone())?;
    let _lock = StateLock::take(&config.state, &config.name, config.listen)?;
    let keyring = keys::load(&config)?;
    let _log_guard = write_log(&config);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    allow_descriptors();
    let heartbeats = pacemaker::runtime()?;
    let beating = heartbeats.handle().clone();
    let code = runtime.block_on(async {
        let signals = Signals::listen()?;
        let listener = serve::bind(config.listen).await?;
        let http = gateway::bind(&config.http).await?;
        let _pid_file = config.pid_file.as_deref().map(PidFile::write).transpose()?;
        let (state, persisted) = StateFolder::open(&config.state)?;
        // A code from before this start; if it cannot be removed, it expires after its minutes.
        let _ = pair::forget(&config.state);
        tracing::info!(
            name = config.name, listen = %config.listen, epoch = %persisted.epoch, kernels = kernels.name, "brambled {}", env!("CARGO_PKG_VERSION")
        );
        if let Some(paced) = &config.paced {
            tracing::warn!("{}: this node is paced and computes nothing: its answers are meaningless and its HTTP \
             API is off; remove [paced] from its settings to use it", paced.kernels());
        }
        keys::tell(keyring.current(), &config.key_file);
        if config.insecure && !keyring.has_key() && !config.listen.ip().is_loopback() {
            tracing::warn!("insecure: everyone who can reach {} may use this node", config.listen);
        }
        keyring::set_own(keyring);
        let resources = serve::Resources { signals, listener, http, state, persisted };
        Box::pin(serve::serve(config, arguments, resources, kernels, beating, variant)).await
    })?;
    // Blocking tasks (a read of standard input, an engine that still computes) must not delay the exit.
    runtime.shutdown_background();
    heartbeats.shutdown_background();
    Ok(code)
}

/// Raises the limit of open descriptors to the number that this process needs; shells set it to 1024 by default.
fn allow_descriptors() {
    if let Ok((soft, most)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < DESCRIPTORS
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, most.min(DESCRIPTORS), most)
    {
        tracing::warn!("cannot open more than {soft} files and connections: {error}");
    }
}

/// Logs to the ring that consoles read, to standard error (without time and colour under journald), and to daily files
/// if the settings name a folder that can be written.
fn write_log(config: &Config) -> Option<WorkerGuard> {
    let usual = Targets::new().with_default(LevelFilter::INFO);
    let wanted = std::env::var("RUST_LOG").ok().filter(|text| !text.trim().is_empty());
    let wanted = wanted.map_or_else(|| Ok(usual.clone()), |text| text.parse());
    let refused = wanted.as_ref().err().map(ToString::to_string);
    let filter = wanted.unwrap_or(usual);
    let journald = log::is_journal(std::env::var("JOURNAL_STREAM").ok().as_deref(), Path::new("/proc/self/fd/2"));
    let console = fmt::layer().with_writer(OneLineEach(std::io::stderr)).with_target(false).with_ansi(false);
    let console = if journald { console.without_time().boxed() } else { console.boxed() };
    let console = console.with_filter(filter_fn(log::is_for_disk));
    // A disk that has become read-only must not prevent the start: state and lock are used without writing, too.
    let (daily, unwritable) = match config.log_dir.as_deref().map(log::daily).transpose() {
        Ok(daily) => (daily, None),
        Err(error) => (None, Some(error)),
    };
    let (files, guard) = match daily {
        Some(daily) => {
            let (writer, guard) = tracing_appender::non_blocking(daily);
            let layer = fmt::layer().with_writer(OneLineEach(writer)).with_ansi(false);
            (Some(layer.with_filter(filter_fn(log::is_for_disk))), Some(guard))
        }
        None => (None, None),
    };
    tracing_subscriber::registry().with(filter).with(log::RecentLog).with(console).with(files).init();
    if let Some(error) = refused {
        tracing::warn!(
            "RUST_LOG has no effect: {error}; write for example RUST_LOG=debug or RUST_LOG=info,engine=debug"
        );
    }
    if let Some(error) = unwritable {
        tracing::warn!("{error:#}; until the next start, the log is written to standard error only");
    }
    guard
}
