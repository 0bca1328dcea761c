//! Runs benches, each as a process of its own: its peak of memory is that of the work alone, and all of it comes back at
//! its end. None stays behind: a process ends when its standard input closes, whatever happens to the daemon.
use std::{
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use shared::{
    gguf::{BlockFormat, GgufFile, Shape},
    protocol::{
        bench::{BENCH_OUTPUT_BYTES_MAX, BENCH_SECONDS_MAX, Bench, BenchKernels, BenchNode, CONTEXT_DEFAULT},
        error::{Fault, FaultKind},
    },
    telemetry::BenchFound,
    topology::{cut, spec::KV_BLOCK_LENGTH},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
    sync::mpsc::Sender,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    Driver, Event, Input,
    loading::{self, preflight},
};
use crate::{
    config::Config,
    kernels::Kernels,
    model::{KvCache, weights::shard_bytes},
    node::BenchKey,
};

/// A killed process must be gone within this, its memory given back.
const GONE: Duration = Duration::from_secs(5);
/// Longest reason in characters.
const REASON_MAX: usize = 500;

/// A bench under way, or one that is being killed.
#[derive(Debug)]
pub(super) struct Benching {
    pub(super) key: BenchKey,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Benching {
    /// Kills it.
    pub(super) fn stop(&self) {
        self.cancel.cancel();
    }

    /// Waits until its process is gone.
    pub(super) async fn gone(self) {
        // One that cannot be killed hangs in the kernel: what comes next checks the memory itself.
        let _ = timeout(GONE, self.task).await;
    }
}

/// What a bench's task works with.
struct Job {
    config: Arc<Config>,
    kernels: &'static Kernels,
    bench: Arc<Bench>,
    key: BenchKey,
    inputs: Sender<Input>,
}

impl Driver {
    pub(super) fn bench(&mut self, key: BenchKey, bench: Bench) {
        let cancel = CancellationToken::new();
        let job = Job {
            config: Arc::clone(&self.config),
            kernels: self.around.kernels,
            bench: Arc::new(bench),
            key,
            inputs: self.around.inputs.clone(),
        };
        let (cancelled, before) = (cancel.clone(), self.benching.take());
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                before.gone().await;
            }
            let result = job.run(&cancelled).await;
            if cancelled.is_cancelled() {
                return;
            }
            let result = result.map_err(|kind| Fault::new(&job.config.name, kind));
            tracing::info!(ok = result.is_ok(), "bench ended");
            let _ = job.inputs.send(Input::Event(Event::BenchEnded(key, result))).await;
        });
        self.benching = Some(Benching { key, cancel, task });
    }
}

impl Job {
    async fn run(&self, cancelled: &CancellationToken) -> Result<BenchFound, FaultKind> {
        let (config, kernels, bench) = (Arc::clone(&self.config), self.kernels, Arc::clone(&self.bench));
        let model = spawn_blocking(move || check(&config, kernels, &bench)).await;
        let model = model.unwrap_or_else(|error| Err(FaultKind::Internal { reason: error.to_string() }))?;
        let mut child = spawn(&self.bench, model.as_deref())?;
        tracing::info!(model = self.bench.model(), pid = child.id(), "bench begins");
        let patience = Duration::from_secs(u64::from(BENCH_SECONDS_MAX));
        let ended = tokio::select! {
            () = cancelled.cancelled() => None,
            ended = timeout(patience, self.listen(&mut child)) => Some(ended),
        };
        // One that ended by itself is past killing.
        let _ = child.start_kill();
        let _ = child.wait().await;
        match ended {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(FaultKind::Timeout { what: "the bench".into(), seconds: BENCH_SECONDS_MAX }),
            None => Err(FaultKind::BenchFailed { reason: "it was cancelled".into() }),
        }
    }

    /// Passes progress on until the process ends.
    async fn listen(&self, child: &mut Child) -> Result<BenchFound, FaultKind> {
        let failed = |reason: String| FaultKind::BenchFailed { reason };
        // Kept open: where it closes, the process ends.
        let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (out, err) = out.zip(err).ok_or_else(|| failed("its process has no output".into()))?;
        let printing = async {
            let mut bytes = Vec::new();
            // What is cut off is no JSON, which is said below.
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
                        // A driver that is gone kills this bench.
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
            Bench::Kernels(_) => serde_json::from_slice(&printed).map(BenchFound::Kernels),
        };
        found.map_err(|error| failed(format!("it printed something else: {error}")))
    }
}

/// What its process said last, without the program's name.
fn reason(status: ExitStatus, last: &str) -> String {
    let said = last.strip_prefix("brambled: ").unwrap_or(last);
    if said.is_empty() { format!("its process ended with {status}") } else { said.into() }
}

fn spawn(bench: &Bench, model: Option<&Path>) -> Result<Child, FaultKind> {
    let mut command = Command::new(program());
    command.args(bench.arguments(model)).arg0("brambled");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    // What the service manager says is for the daemon.
    for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
        command.env_remove(name);
    }
    command.spawn().map_err(|error| FaultKind::BenchFailed { reason: format!("brambled cannot be started: {error}") })
}

/// This program; where an upgrade has replaced its file, the one that runs all the same.
fn program() -> PathBuf {
    let own = std::env::current_exe().ok().filter(|path| path.is_file());
    own.unwrap_or_else(|| "/proc/self/exe".into())
}

/// The model's file, if it needs one and its memory is there: nothing must end in the out-of-memory killer.
fn check(config: &Config, kernels: &'static Kernels, bench: &Bench) -> Result<Option<PathBuf>, FaultKind> {
    let opened = bench.model().map(|model| loading::open(&config.models, model)).transpose()?;
    let needed = match (bench, &opened) {
        (Bench::Node(node), Some((_, file, shape))) => node_bytes(node, (file, shape), kernels)?,
        (Bench::Node(_), None) => 0,
        (Bench::Kernels(products), opened) => kernel_bytes(products, opened.as_ref().map(|(_, file, _)| &**file)),
    };
    preflight(needed + loading::WORKING_BYTES, config.memory_max)?;
    Ok(opened.map(|(path, ..)| path))
}

fn node_bytes(
    node: &BenchNode,
    (file, shape): (&GgufFile, &Shape),
    kernels: &'static Kernels,
) -> Result<u64, FaultKind> {
    let invalid = |reason: String| FaultKind::ModelInvalid { model: node.model.clone(), reason };
    let plans = cut(shape, &[1]).map_err(|error| invalid(error.to_string()))?;
    let weights = shard_bytes(file, shape, &plans[0], kernels).map_err(|error| invalid(error.to_string()))?;
    let context = if node.context.is_empty() { &CONTEXT_DEFAULT } else { node.context.as_slice() };
    let longest = node.prefill.iter().chain(context).max().map_or(0, |tokens| *tokens);
    let positions = ((longest + node.tokens + 1) as usize).min(shape.context_length);
    let blocks = positions.div_ceil(KV_BLOCK_LENGTH);
    let cache = KvCache::bytes(node.kv, shape.block_count, blocks, shape.head_count_kv, shape.head_length);
    // What is read for the bandwidth is there twice, and before or after the weights.
    let read = node.read_mib.map_or(0, |mib| u64::from(mib) << 21);
    Ok((weights + cache).max(read))
}

/// A matrix of each format, and the largest once more, packed.
fn kernel_bytes(products: &BenchKernels, file: Option<&GgufFile>) -> u64 {
    let asked = |format: &BlockFormat| {
        let mut names = products.formats.iter();
        products.formats.is_empty() || names.any(|name| name.eq_ignore_ascii_case(format.name()))
    };
    let bytes = |format: BlockFormat| match file {
        Some(file) => {
            let of_format = file.tensors().filter(|tensor| tensor.format == format && tensor.rows() > 1);
            let bytes = of_format.map(|tensor| tensor.rows().min(products.rows as usize) * tensor.row_bytes());
            bytes.max().unwrap_or(0) as u64
        }
        None => u64::from(products.rows) * format.row_bytes(products.columns as usize).unwrap_or(0) as u64,
    };
    let each: Vec<u64> = BlockFormat::ALL.into_iter().filter(asked).map(bytes).collect();
    each.iter().sum::<u64>() + each.iter().max().copied().unwrap_or(0)
}
