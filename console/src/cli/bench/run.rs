//! Runs the cells of a matrix: assigns their layouts to the first of the nodes, sends the requests, keeps what came of it.
use std::{sync::Arc, time::Duration};

use shared::{ids::MemberIndex, topology::Topology};

use crate::{
    bench::{
        cell::{Cell, Phase},
        load::{Job, Prompt},
        run::{ContextShort, Machine, Measured, Node},
        sample::{Slo, Summary},
    },
    cli::{Failure, endpoint::Endpoint, generate::assign_and_tell, options::Assignment},
    client::{
        assign::report,
        session::Session,
        target::{Load, Target, Until},
    },
};

/// Requests of 9999 that are silent for so long have failed.
const PATIENCE: Duration = Duration::from_secs(900);
/// Tokens of an answer's worth of waves in a decode cell, and the most waves.
const WAVE_TOKENS: u32 = 128;
const WAVES_MAX: u32 = 8;
/// The most slots that a topology has.
const SLOTS: std::ops::RangeInclusive<u16> = 4..=shared::topology::spec::SLOTS_MAX;

/// What cells are run on.
pub(super) struct Rig {
    /// In the order in which they were named.
    pub(super) sessions: Vec<Arc<Session>>,
    pub(super) model: String,
    pub(super) assignment: Assignment,
    pub(super) endpoint: Endpoint,
    /// The most requests at a time of any cell: layouts get as many slots as that.
    pub(super) concurrency: u16,
    /// Requests of a prefill cell, requests before each, seed.
    pub(super) requests: u32,
    pub(super) warmup: u32,
    pub(super) seed: u64,
}

/// A layout that runs.
pub(super) struct Running {
    layout: String,
    context: u32,
    heads: Vec<usize>,
}

impl Rig {
    /// The nodes as a run remembers them.
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

    /// Makes a cell's layout run on the first of the nodes, if it is not what runs.
    pub(super) async fn assign(&self, cell: &Cell, running: &mut Option<Running>) -> Result<(), Failure> {
        if running.as_ref().is_some_and(|running| running.layout == cell.layout) {
            return Ok(());
        }
        *running = None;
        let Some(layout) = cell.layout() else {
            let message = format!("{} is no layout", cell.layout);
            return Err(Failure::Usage { message, next: "a layout is tpN, ppS-tpN or dpR-ppS-tpN" });
        };
        let sessions = self.sessions.get(..layout.node_count()).ok_or_else(|| Failure::State {
            message: format!("{layout} needs {} nodes, {} are named", layout.node_count(), self.sessions.len()),
            next: "name more nodes, or fewer ranks and replicas",
        })?;
        let mut assignment = self.assignment.clone();
        assignment.topology = Some(layout);
        let mut wanted = assignment.wanted(sessions.len(), &self.model);
        wanted.slots = self.concurrency.clamp(*SLOTS.start(), *SLOTS.end());
        let assigned = assign_and_tell(sessions, &wanted).await?;
        let heads = heads(&assigned.topology).map(MemberIndex::index).collect();
        *running = Some(Running { layout: cell.layout.clone(), context: assigned.topology.context_length, heads });
        Ok(())
    }

    /// Runs a cell once on what runs.
    pub(super) async fn measure(&self, cell: &Cell, running: &Running, round: u32) -> Result<Measured, Failure> {
        let skipped = ContextShort::of(cell, running.context);
        let mut measured = Measured { cell: cell.clone(), skipped, repeats: Vec::new() };
        if measured.skipped.is_some() {
            return Ok(measured);
        }
        let seed = self.seed.wrapping_add(0x5851_f42d * (u64::from(round) + 1)).wrapping_add(of_cell(cell));
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
        // Answers are measured while all of them run: in waves, of which short answers need several.
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
            let head = |index: &usize| (Arc::clone(&self.sessions[*index]), Default::default());
            return Ok(Target::Heads(running.heads.iter().map(head).collect()));
        }
        let model = self.endpoint.model(&apis, None).await?;
        Ok(Target::Http { api: apis.remove(0), model })
    }
}

fn heads(topology: &Topology) -> impl Iterator<Item = MemberIndex> + '_ {
    topology.layout.heads()
}

/// A number of a cell that other cells hardly have: prompts of one are not found in the cache of another.
fn of_cell(cell: &Cell) -> u64 {
    let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    cell.to_string().bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The machine that this runs on.
pub(super) fn machine() -> Machine {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    // A Raspberry Pi names its board, not its processor.
    let cpu = named("model name").or_else(|| named("Model")).unwrap_or_default();
    Machine { host, cpu, cores: std::thread::available_parallelism().map_or(0, usize::from) }
}
