//! Runs each benchmark in a child process, so that its peak memory is that of the benchmark alone and is freed when it
//! ends. The child ends when its standard input closes, so that none outlives the daemon.
use std::{
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use common::{
    fault::{Fault, FaultKind},
    limits::KV_BLOCK_LENGTH,
    precision::Exchange,
};
use engine::model::needs::shard_bytes;
use gguf::{BlockFormat, GgufFile};
use kernels::Kernels;
use planner::{
    holding::{Holding, kv_bytes},
    working::{BASE_BYTES, Seat, working_bytes},
};
use protocol::bench::{BENCH_OUTPUT_BYTES_MAX, BENCH_SECONDS_MAX, Bench, BenchKernels, BenchNode, CONTEXT_DEFAULT};
use telemetry::BenchFound;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
    sync::mpsc::Sender,
    task::spawn_blocking,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use topology::{KvBlocks, cut, sizes::ModelSizes};

use super::{
    Event, Input,
    bench_task::{BenchSources, BenchStart, BenchTask},
    context::DriverContext,
    loading::program,
    network::{self, Network},
    opening::{self, ModelFile},
    room::preflight,
};
use crate::{
    config::Config,
    node::{BenchKey, effect::BenchEffect},
};

/// Longest reason, in characters.
const REASON_MAX: usize = 500;

/// Context of a benchmark's task.
struct BenchJob {
    config: Arc<Config>,
    kernels: &'static Kernels,
    bench: Arc<Bench>,
    key: BenchKey,
    inputs: Sender<Input>,
    patience: Duration,
}

/// The node's benchmarks: the latest one, and the measurements of the network.
#[derive(Debug, Default)]
pub(super) struct BenchHost {
    latest: Option<BenchTask>,
    pub(super) network: Network,
}

impl BenchHost {
    pub(super) fn perform(&mut self, effect: BenchEffect, sources: BenchSources<'_>) {
        match effect {
            BenchEffect::Start(key, bench) => match *bench {
                Bench::Network(wanted) => {
                    let before = self.latest.take();
                    self.latest = Some(network::start(BenchStart { key, before }, wanted, sources));
                }
                bench @ (Bench::Node(_) | Bench::Kernels(_)) => self.start(key, bench, sources.context),
            },
            BenchEffect::Stop(key) => {
                if let Some(bench) = self.latest.as_ref().filter(|bench| bench.key == key) {
                    bench.stop();
                }
            }
        }
    }

    /// The latest benchmark, for which its successor waits.
    pub(super) fn take(&mut self) -> Option<BenchTask> {
        self.latest.take()
    }

    fn start(&mut self, key: BenchKey, bench: Bench, context: &DriverContext) {
        let cancel = CancellationToken::new();
        let job = BenchJob {
            config: Arc::clone(&context.config),
            kernels: context.kernels,
            bench: Arc::new(bench),
            key,
            inputs: context.inputs.clone(),
            patience: Duration::from_secs(u64::from(BENCH_SECONDS_MAX)),
        };
        let (cancelled, before) = (cancel.clone(), self.latest.take());
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                before.gone().await;
            }
            let result = job.run(&cancelled).await;
            if cancelled.is_cancelled() {
                return;
            }
            let result = result.map_err(|kind| Fault::new(&job.config.name, kind));
            tracing::info!(ok = result.is_ok(), "benchmark ended");
            let _ = job.inputs.send(Input::Event(Event::BenchEnded(key, result))).await;
        });
        self.latest = Some(BenchTask::new(key, cancel, task));
    }
}

impl BenchJob {
    async fn run(&self, cancelled: &CancellationToken) -> Result<BenchFound, FaultKind> {
        let (config, kernels, bench) = (Arc::clone(&self.config), self.kernels, Arc::clone(&self.bench));
        let model = spawn_blocking(move || check(&config, kernels, &bench)).await;
        let model = model.unwrap_or_else(|error| Err(FaultKind::Internal { reason: error.to_string() }))?;
        let mut child = spawn(&self.bench, model.as_deref())?;
        tracing::info!(model = self.bench.model(), pid = child.id(), "benchmark started");
        self.see_through(&mut child, cancelled).await
    }

    /// Reads the process's output until it ends, is cancelled or times out; afterwards the process has ended.
    async fn see_through(&self, child: &mut Child, cancelled: &CancellationToken) -> Result<BenchFound, FaultKind> {
        let ended = tokio::select! {
            () = cancelled.cancelled() => None,
            ended = timeout(self.patience, self.listen(child)) => Some(ended),
        };
        // Fails if the process has already ended.
        let _ = child.start_kill();
        let _ = child.wait().await;
        match ended {
            Some(Ok(result)) => result,
            Some(Err(_)) => {
                Err(FaultKind::Timeout { what: "the benchmark".into(), seconds: self.patience.as_secs() as u32 })
            }
            None => Err(FaultKind::BenchFailed { reason: "cancelled".into() }),
        }
    }

    /// Forwards progress until the process ends.
    async fn listen(&self, child: &mut Child) -> Result<BenchFound, FaultKind> {
        let failed = |reason: String| FaultKind::BenchFailed { reason };
        // Keeps stdin open: the process ends when it closes.
        let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (out, err) = out.zip(err).ok_or_else(|| failed("the process has no output".into()))?;
        let printing = async {
            let mut bytes = Vec::new();
            // Truncated output is not valid JSON and is reported below.
            let _ = out.take(BENCH_OUTPUT_BYTES_MAX).read_to_end(&mut bytes).await;
            bytes
        };
        let telling = async {
            let mut lines = BufReader::new(err.take(BENCH_OUTPUT_BYTES_MAX)).lines();
            let mut last = String::new();
            while let Ok(Some(line)) = lines.next_line().await {
                match line.parse() {
                    Ok(progress) => {
                        let event = Event::BenchProgress(self.key, progress);
                        // If the driver is gone, this benchmark is killed anyway.
                        let _ = self.inputs.send(Input::Event(event)).await;
                    }
                    Err(_) => last = line.chars().take(REASON_MAX).collect(),
                }
            }
            last
        };
        let (printed, last) = tokio::join!(printing, telling);
        let status = child.wait().await.map_err(|error| failed(error.to_string()))?;
        drop(stdin);
        if !status.success() {
            return Err(failed(reason(status, &last)));
        }
        let found = match &*self.bench {
            Bench::Node(_) => serde_json::from_slice(&printed).map(BenchFound::Node),
            Bench::Kernels(_) | Bench::Network(_) => serde_json::from_slice(&printed).map(BenchFound::Kernels),
        };
        found.map_err(|error| failed(format!("the process printed unexpected output: {error}")))
    }
}

/// The last line that the process printed, without the program's name.
fn reason(status: ExitStatus, last: &str) -> String {
    let said = last.strip_prefix("brambled: ").unwrap_or(last);
    if said.is_empty() { format!("the process ended with {status}") } else { said.into() }
}

fn spawn(bench: &Bench, model: Option<&Path>) -> Result<Child, FaultKind> {
    let arguments = bench.arguments(model);
    let arguments =
        arguments.ok_or_else(|| FaultKind::BenchFailed { reason: "links are not measured by a process".into() })?;
    let mut command = Command::new(program());
    command.args(arguments).arg0("brambled");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    // These variables of the service manager are meant for the daemon only.
    for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
        command.env_remove(name);
    }
    command.spawn().map_err(|error| FaultKind::BenchFailed { reason: format!("cannot start brambled: {error}") })
}

/// The model's file, if the benchmark needs one. Checks the memory first, so that the out-of-memory killer never
/// strikes.
fn check(config: &Config, kernels: &'static Kernels, bench: &Bench) -> Result<Option<PathBuf>, FaultKind> {
    if let Some(paced) = &config.paced {
        let reason = format!(
            "this node is paced ({}) and computes nothing; measure nodes without [paced] in their settings",
            paced.kernels()
        );
        return Err(FaultKind::BenchFailed { reason });
    }
    let opened = bench.model().map(|model| opening::open(&config.models, model)).transpose()?;
    let needed = match (bench, &opened) {
        (Bench::Node(node), Some(model)) => node_bytes(node, model, kernels)?,
        (Bench::Node(_), None) | (Bench::Network(_), _) => BASE_BYTES,
        (Bench::Kernels(products), opened) => {
            BASE_BYTES + kernel_bytes(products, opened.as_ref().map(|model| &*model.file))
        }
    };
    preflight(needed, config.memory_max)?;
    Ok(opened.map(|model| model.path))
}

fn node_bytes(node: &BenchNode, model: &ModelFile, kernels: &'static Kernels) -> Result<u64, FaultKind> {
    let ModelFile { file, spec, .. } = model;
    let invalid = |reason: String| FaultKind::ModelInvalid { model: node.model.clone(), reason };
    let plans = cut(spec, &[1]).map_err(|error| invalid(error.to_string()))?;
    let weights = shard_bytes(file, spec, &plans[0], kernels).map_err(|error| invalid(error.to_string()))?;
    let context = if node.context.is_empty() { &CONTEXT_DEFAULT } else { node.context.as_slice() };
    let longest = node.prefill.iter().chain(context).max().map_or(0, |tokens| *tokens);
    let positions = ((longest + node.tokens + 1) as usize).min(spec.context_length);
    let blocks = positions.div_ceil(KV_BLOCK_LENGTH);
    let cache = kv_bytes(node.kv, spec, &plans[0], KvBlocks::alike(blocks));
    // The buffer that is read for the bandwidth exists twice, before or after the weights are loaded.
    let read = node.read_mib.map_or(0, |mib| u64::from(mib) << 21);
    let sizes = ModelSizes::of_file(file, spec);
    let seat = Seat { stages: 1, ranks: 1, is_head: false, slots: 1, exchange: Exchange::F32 };
    let working = working_bytes(&Holding { sizes: &sizes, plan: &plans[0] }, &seat);
    Ok((weights + cache).max(read) + working)
}

/// One matrix of each format, and the largest one twice because it is also packed.
fn kernel_bytes(products: &BenchKernels, file: Option<&GgufFile>) -> u64 {
    let formats = BlockFormat::ALL.into_iter().filter(|format| {
        let mut names = products.formats.iter();
        products.formats.is_empty() || names.any(|name| name.eq_ignore_ascii_case(format.name()))
    });
    let each: Vec<u64> = formats.map(|format| matrix_bytes(products, file, format)).collect();
    each.iter().sum::<u64>() + each.iter().max().copied().unwrap_or(0)
}

/// The largest matrix of a format in a model file, or a synthetic one.
fn matrix_bytes(products: &BenchKernels, file: Option<&GgufFile>, format: BlockFormat) -> u64 {
    match file {
        Some(file) => {
            let of_format = file.tensors().filter(|tensor| tensor.format == format && tensor.rows() > 1);
            let bytes = of_format.map(|tensor| tensor.rows().min(products.rows as usize) * tensor.row_bytes());
            bytes.max().unwrap_or(0) as u64
        }
        None => u64::from(products.rows) * format.row_bytes(products.columns as usize).unwrap_or(0) as u64,
    }
}

#[cfg(test)]
mod tests {
    use telemetry::BenchProgress;
    use tokio::sync::mpsc::channel;

    use super::*;
    use crate::config::DaemonArguments;

    const LONG: Duration = Duration::from_secs(60);

    fn kernels(rows: u32, formats: &[&str]) -> BenchKernels {
        BenchKernels {
            model: None,
            threads: 1,
            formats: formats.iter().map(|format| (*format).to_owned()).collect(),
            tables: Vec::new(),
            tokens: Vec::new(),
            rows,
            columns: 256,
            repeats: 1,
        }
    }

    /// Runs a shell as the benchmark process and returns its progress and result; the process has ended afterwards.
    async fn seen(
        script: &str,
        patience: Duration,
        cancels: bool,
    ) -> (Vec<BenchProgress>, Result<BenchFound, FaultKind>) {
        let (inputs, mut told) = channel(64);
        let config = Config::load(DaemonArguments::default()).expect("defaults are settings");
        let bench = Arc::new(Bench::Kernels(kernels(1, &[])));
        let kernels = Kernels::choose(None).expect("there is one");
        let job = BenchJob { config: config.into(), kernels, bench, key: BenchKey(1), inputs, patience };
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn().expect("there is a shell");
        let cancelled = CancellationToken::new();
        if cancels {
            cancelled.cancel();
        }
        let result = job.see_through(&mut child, &cancelled).await;
        assert!(matches!(child.try_wait(), Ok(Some(_))), "it is gone");
        let mut progress = Vec::new();
        while let Ok(Input::Event(Event::BenchProgress(BenchKey(1), one))) = told.try_recv() {
            progress.push(one);
        }
        (progress, result)
    }

    #[tokio::test]
    async fn process_output_is_parsed_and_its_failure_quoted() {
        let works = "echo '1/2 one' >&2; echo aside >&2; echo '2/2 two' >&2; echo '{\"threads\":3,\"tables\":[]}'";
        let (progress, found) = seen(works, LONG, false).await;
        assert_eq!(progress.iter().map(|one| one.what.as_str()).collect::<Vec<_>>(), ["one", "two"]);
        assert!(matches!(found, Ok(BenchFound::Kernels(found)) if found.threads == 3));
        let failed = |result| match result {
            Err(FaultKind::BenchFailed { reason }) => reason,
            other => panic!("{other:?}"),
        };
        let (_, result) = seen("echo 'brambled: cannot use m.gguf' >&2; exit 1", LONG, false).await;
        assert_eq!(failed(result), "cannot use m.gguf");
        let (_, result) = seen("kill -9 $$", LONG, false).await;
        assert!(failed(result).contains("signal: 9"));
        let (_, result) = seen("echo hello", LONG, false).await;
        assert!(failed(result).contains("unexpected output"));
    }

    #[tokio::test]
    async fn slow_or_cancelled_process_is_killed() {
        let (_, late) = seen("exec sleep 60", Duration::from_millis(20), false).await;
        assert!(matches!(late, Err(FaultKind::Timeout { .. })), "{late:?}");
        let (_, cancelled) = seen("exec sleep 60", LONG, true).await;
        assert!(matches!(cancelled, Err(FaultKind::BenchFailed { .. })), "{cancelled:?}");
    }

    #[test]
    fn memory_of_made_up_matrices_counts_the_largest_twice() {
        // Rows of 256 weights: 144 bytes of Q4_0, 272 of Q8_0.
        assert_eq!(kernel_bytes(&kernels(10, &["q4_0", "Q8_0"]), None), 1440 + 2720 + 2720);
        assert_eq!(kernel_bytes(&kernels(10, &["Q4_0"]), None), 2 * 1440);
        assert!(kernel_bytes(&kernels(10, &[]), None) > 10 * 2 * 1024, "F32 among them");
    }
}
