//! Runs the cells of a matrix: assigns their layouts to the first of the nodes, sends the requests and summarizes the
//! answers.
use std::{sync::Arc, time::Duration};

use common::{digest::fnv1a, ids::MemberIndex};
use console::{
    cli::toolkit::{Assignment, Endpoint, Failure, assign_and_tell},
    client::{assign::report, session::Session},
};

use crate::{
    measurement::{
        cell::{Cell, Phase},
        load::{Job, Prompt},
        run::{ContextShort, Machine, Measured, Node},
        sample::{Slo, Summary},
    },
    target::{Load, Target, Until},
};

/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(900);
/// A decode cell repeats its requests in waves until the outputs of a slot add up to this many tokens, at most
/// [`WAVES_MAX`] times.
const WAVE_TOKENS: u32 = 128;
const WAVES_MAX: u32 = 8;
/// Bounds of the number of slots of a topology.
const SLOTS: std::ops::RangeInclusive<u16> = 4..=common::limits::SLOTS_MAX;

/// The nodes, and the settings that all cells share.
pub(super) struct Rig {
    /// In the order of the command line.
    pub(super) sessions: Vec<Arc<Session>>,
    pub(super) model: String,
    pub(super) assignment: Assignment,
    pub(super) endpoint: Endpoint,
    /// Largest concurrency of any cell, which is also the number of slots of each topology.
    pub(super) concurrency: u16,
    /// Requests of a prefill cell. `warmup`: requests before each cell. `seed`: of the prompts.
    pub(super) requests: u32,
    pub(super) warmup: u32,
    pub(super) seed: u64,
}

/// The running layout, its context length in tokens and the member indices of its heads.
pub(super) struct Running {
    layout: String,
    context: u32,
    heads: Vec<usize>,
}

impl Rig {
    /// The nodes as a run records them.
    pub(super) async fn nodes(&self) -> Result<Vec<Node>, Failure> {
        let mut nodes = Vec::with_capacity(self.sessions.len());
        for session in &self.sessions {
            let report = report(session).await?;
            let (name, build, kernels) = (report.name, report.build, report.kernels);
            nodes.push(Node { name, address: session.address.clone(), build, kernels });
        }
        Ok(nodes)
    }

    /// Hop latency at each stage boundary since the previous report, in milliseconds; empty without a pipeline.
    pub(super) async fn hops(&self) -> Result<Vec<f64>, Failure> {
        let mut found = Vec::new();
        for session in &self.sessions {
            let hops = report(session).await?.hops;
            found.extend(hops.iter().filter(|hop| hop.timed > 0).map(|hop| hop.hop.milliseconds()));
        }
        Ok(found)
    }

    /// Assigns a cell's layout to the first of the nodes, unless it is already running.
    pub(super) async fn assign(&self, cell: &Cell, running: &mut Option<Running>) -> Result<(), Failure> {
        if running.as_ref().is_some_and(|running| running.layout == cell.layout) {
            return Ok(());
        }
        *running = None;
        let Some(layout) = cell.layout() else {
            let message = format!("{} is not a layout", cell.layout);
            return Err(Failure::Usage { message, next: "use tpN, ppS-tpN or dpR-ppS-tpN" });
        };
        let sessions = self.sessions.get(..layout.node_count()).ok_or_else(|| Failure::State {
            message: format!("{layout} needs {} nodes, {} are given", layout.node_count(), self.sessions.len()),
            next: "pass more nodes, or use fewer ranks or replicas",
        })?;
        let mut assignment = self.assignment.clone();
        assignment.layout.topology = Some(layout);
        let mut wanted = assignment.wanted(sessions.len(), &self.model);
        wanted.slots = self.concurrency.clamp(*SLOTS.start(), *SLOTS.end());
        let assigned = assign_and_tell(sessions, &wanted).await?;
        let heads = assigned.topology.layout.heads().map(MemberIndex::index).collect();
        *running = Some(Running { layout: cell.layout.clone(), context: assigned.topology.context_length, heads });
        Ok(())
    }

    /// Measures a cell once on the running topology, or skips it if it does not fit into the context.
    pub(super) async fn measure(&self, cell: &Cell, running: &Running, round: u32) -> Result<Measured, Failure> {
        let skipped = ContextShort::of(cell, running.context);
        let mut measured = Measured { cell: cell.clone(), skipped, repeats: Vec::new() };
        if measured.skipped.is_some() {
            return Ok(measured);
        }
        // The prompts of other cells may be in the prefix cache.
        let of_cell = fnv1a(&cell.to_string());
        let seed = self.seed.wrapping_add(0x5851_f42d * (u64::from(round) + 1)).wrapping_add(of_cell);
        let load = Arc::new(Load::new(self.target(running).await?, PATIENCE, seed));
        measured.repeats.push(self.once(cell, &load).await);
        Ok(measured)
    }

    async fn once(&self, cell: &Cell, load: &Arc<Load>) -> Summary {
        let job = |output| [Job { prompt: Prompt::Made(cell.input), max_tokens: output }];
        let concurrency = usize::from(cell.concurrency);
        if self.warmup > 0 {
            let until = Until { requests: self.warmup as usize, elapsed: PATIENCE };
            load.closed(&job(cell.output.min(4)), 1, until).await;
        }
        if cell.phase == Phase::Prefill {
            let until = Until { requests: concurrency.max(self.requests as usize), elapsed: PATIENCE };
            return Summary::of(&load.closed(&job(cell.output), concurrency, until).await, &Slo::default());
        }
        // Decoding is measured while all requests of a wave run; short outputs need several waves.
        let waves = (WAVE_TOKENS / cell.output.max(1)).clamp(1, WAVES_MAX);
        let until = Until { requests: concurrency, elapsed: PATIENCE };
        let mut samples = Vec::with_capacity(waves as usize);
        for _ in 0..waves {
            samples.push(load.closed(&job(cell.output), concurrency, until).await);
        }
        Summary::of_waves(samples, &Slo::default())
    }

    async fn target(&self, running: &Running) -> Result<Target, Failure> {
        let mut apis = self.endpoint.apis();
        if apis.is_empty() {
            let heads = running.heads.iter().map(|head| (Arc::clone(&self.sessions[*head]), Default::default()));
            return Ok(Target::Heads(heads.collect()));
        }
        let model = self.endpoint.model(&apis, None).await?;
        Ok(Target::Http { api: apis.remove(0), model })
    }
}

/// This machine.
pub(super) fn machine() -> Machine {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    // A Raspberry Pi reports its board, not its processor.
    let cpu = named("model name").or_else(|| named("Model")).unwrap_or_default();
    Machine { host, cpu, cores: std::thread::available_parallelism().map_or(0, usize::from) }
}
