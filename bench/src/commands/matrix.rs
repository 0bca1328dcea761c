//! `bramble-bench matrix`: assigns layouts one after another and measures each cell by cell.
use std::{
    path::PathBuf,
    time::{Instant, SystemTime},
};

use clap::Args;
use console::cli::toolkit::{Assignment, Consent, Endpoint, Failure, Interrupts, clear_way, output};
use protocol::BUILD;
use serde_json::json;

use super::{
    pages::{matrix, write},
    rig::{Rig, machine},
    serve::{check_folder, shown},
};
use crate::measurement::{
    cell::{Plan, degrees},
    run::{Configuration, Measured, Metric, Run, VERSION},
    svg::number,
};

/// Default time limit of a reduced matrix, in minutes.
const REDUCED_MINUTES: u64 = 10;

/// Options that `bramble-bench matrix` and `bramble-bench ab` share.
#[derive(Clone, Debug, Args)]
pub(super) struct On {
    /// Model file; each node looks up its name in its model folders
    #[arg(long, value_name = "NAME|FILE")]
    model: String,
    /// Requests of a prefill cell; at least its concurrency
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    requests: u32,
    /// Warm-up requests before each repeat, not measured
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    warmup: u32,
    /// Seed of the prompts; no two prompts share a prefix
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    #[command(flatten)]
    assignment: Assignment,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    endpoint: Endpoint,
}

/// Options of `bramble-bench matrix`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Matrix {
    #[command(flatten)]
    on: On,
    /// Result file (JSON), saved after each cell so that the same command resumes; the table is written to FILE.csv
    #[arg(long, value_name = "FILE.json")]
    out: PathBuf,
    /// Measure a small matrix: 64 and 256 prompt tokens, 1 and 32 output tokens, concurrency 1 and 4, 10 minutes
    #[arg(long)]
    reduced: bool,
    /// First experiment: numbers of tensor-parallel ranks [default: powers of two up to all nodes]
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = clap::value_parser!(u16).range(1..=64))]
    tp: Vec<u16>,
    /// Second experiment: numbers of replicas [default: powers of two up to all nodes; 0: none]
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = clap::value_parser!(u16).range(0..=64))]
    replicas: Vec<u16>,
    /// Tensor-parallel ranks of each replica in the second experiment
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    replica_ranks: u16,
    /// Prompt lengths in tokens [default: 256,1024,4096,8192]
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    inputs: Vec<u32>,
    /// Output lengths in tokens; 1 measures prefill only [default: 1,128,512]
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    outputs: Vec<u32>,
    /// Numbers of concurrent requests [default: 1,4,8,16]
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrencies: Vec<u16>,
    /// Repeats of each cell
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    /// Stop after this many minutes, at the end of a cell; the same command resumes [default: 10 with --reduced]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    minutes: Option<u64>,
    /// Commit that is measured, recorded in the result
    #[arg(long, env = "BRAMBLE_COMMIT", value_name = "ID")]
    commit: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl On {
    /// Asks for consent and opens the nodes; `None` for a dry run.
    pub(super) async fn rig(
        &self,
        nodes: &[String],
        concurrency: u16,
        layouts: &[String],
        needed: usize,
    ) -> Result<Option<Rig>, Failure> {
        if self.assignment.layout.topology.is_some() {
            let message = "--topology cannot be used: this benchmark assigns its own layouts".into();
            return Err(Failure::Usage { message, next: "remove --topology" });
        }
        if self.endpoint.url.len() > 1 {
            let message = format!("{} URLs given, expected at most one", self.endpoint.url.len());
            return Err(Failure::Usage { message, next: "pass one --url, or none to use the heads on port 9999" });
        }
        let purpose = format!("{} with {}", layouts.join(", then "), output::clean(&self.model));
        let Some(sessions) = clear_way(nodes, &purpose, self.consent, false).await? else {
            return Ok(None);
        };
        if sessions.len() < needed {
            let message = format!("{needed} nodes are needed, {} are available", sessions.len());
            return Err(Failure::State { message, next: "pass more nodes, or use fewer ranks or replicas" });
        }
        let (model, assignment, endpoint) = (self.model.clone(), self.assignment.clone(), self.endpoint.clone());
        let (requests, warmup, seed) = (self.requests, self.warmup, self.seed);
        Ok(Some(Rig { sessions, model, assignment, endpoint, concurrency, requests, warmup, seed }))
    }
}

/// The distinct layouts of a plan, in order.
pub(super) fn layouts(plan: &Plan) -> Vec<String> {
    let mut layouts: Vec<String> = plan.cells().into_iter().map(|cell| cell.layout).collect();
    layouts.dedup();
    layouts
}

impl Matrix {
    fn plan(&self, nodes: usize) -> Plan {
        let or = |given: &Vec<u32>, reduced: &[u32], full: &[u32]| match (given.is_empty(), self.reduced) {
            (false, _) => given.clone(),
            (true, true) => reduced.to_vec(),
            (true, false) => full.to_vec(),
        };
        let given: Vec<u32> = self.concurrencies.iter().map(|count| u32::from(*count)).collect();
        let concurrencies = or(&given, &[1, 4], &[1, 4, 8, 16]).into_iter().map(|count| count as u16).collect();
        let replicas = match self.replicas.is_empty() {
            true => degrees(nodes / usize::from(self.replica_ranks)).into_iter().filter(|count| *count > 0).collect(),
            false => self.replicas.iter().copied().filter(|count| *count > 0).collect(),
        };
        Plan {
            tp: if self.tp.is_empty() { degrees(nodes) } else { self.tp.clone() },
            replicas,
            replica_ranks: self.replica_ranks,
            layouts: Vec::new(),
            inputs: or(&self.inputs, &[64, 256], &[256, 1024, 4096, 8192]),
            outputs: or(&self.outputs, &[1, 32], &[1, 128, 512]),
            concurrencies,
        }
    }

    /// The run stored in the result file, or a new one.
    async fn begin(&self, rig: &Rig, plan: Plan) -> Result<Run, Failure> {
        let door = self.on.endpoint.url.first().map_or("9999".into(), |url| format!("http://{}", url.authority));
        let wanted = self.on.assignment.wanted(1, &self.on.model);
        let settings = format!(
            "kv {:?}, exchange {:?}, collective {:?}, context {:?}",
            wanted.kv, wanted.exchange, wanted.collective, wanted.context_length
        );
        let fresh = Run {
            version: VERSION,
            build: BUILD.into(),
            commit: self.commit.clone(),
            begun: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            machine: machine(),
            nodes: rig.nodes().await?,
            configuration: Configuration {
                model: wanted.model,
                plan,
                repeats: self.repeats,
                requests: self.on.requests,
                warmup: self.on.warmup,
                seed: self.on.seed,
                door,
                settings,
            },
            cells: Vec::new(),
        };
        if !self.out.exists() {
            return Ok(fresh);
        }
        let kept = matrix(&self.out)?;
        match kept.differs(&fresh) {
            None => Ok(kept),
            Some(what) => Err(Failure::State {
                message: format!("{} was measured with other settings: {what} differs", shown(&self.out)),
                next: "pass another --out, or repeat the command that wrote the file",
            }),
        }
    }
}

/// Runs the command. Exit code 1 if requests failed, or if the time limit left cells unmeasured.
pub(crate) async fn run(options: Matrix, nodes: Vec<String>) -> Result<u8, Failure> {
    check_folder(&options.out)?;
    let plan = options.plan(nodes.len());
    let concurrency = plan.concurrencies.iter().max().copied().unwrap_or(1);
    let mut interrupts = Interrupts::listen()?;
    let layouts = layouts(&plan);
    let rig = options.on.rig(&nodes, concurrency, &layouts, plan.node_count());
    let Some(rig) = interrupts.end(rig).await? else { return Ok(0) };
    let mut run = interrupts.end(options.begin(&rig, plan)).await?;
    let begun = Instant::now();
    let minutes = options.minutes.or(options.reduced.then_some(REDUCED_MINUTES));
    let (turns, mut running) = (run.turns(), None);
    let all = turns.len();
    for (turn, (cell, round)) in turns.into_iter().enumerate() {
        if minutes.is_some_and(|minutes| begun.elapsed().as_secs() >= 60 * minutes) {
            break;
        }
        if run.of(&cell).is_some_and(|measured| measured.skipped.is_some()) {
            continue;
        }
        let work = async {
            rig.assign(&cell, &mut running).await?;
            match &running {
                Some(running) => rig.measure(&cell, running, round).await,
                None => Err(anyhow::anyhow!("no topology is running").into()),
            }
        };
        let measured = run.add(interrupts.end(work).await?);
        if !options.json {
            output::line(&output::clean(&format!("{:>4}/{all}  {}", turn + 1, told(measured))));
        }
        write(&options.out, &serde_json::to_string(&run).map_err(anyhow::Error::from)?)?;
        write(&options.out.with_extension("csv"), &run.csv())?;
    }
    if options.json {
        output::line(&json!(run).to_string());
    }
    let (left, failed) = (run.remaining().len(), run.cells.iter().map(Measured::failed).sum::<u64>());
    if left > 0 {
        output::note(&format!("{left} cells remain; run the same command again to measure them"));
    }
    if failed > 0 {
        output::note(&format!("{failed} requests failed"));
    }
    Ok(u8::from(left > 0 || failed > 0))
}

/// The result of a cell as a line of text.
pub(super) fn told(measured: &Measured) -> String {
    let mut line = format!("{:<44}", measured.cell.to_string());
    if let Some(short) = &measured.skipped {
        return format!("{line} {short}");
    }
    let shown = |metric: Metric| measured.median(metric).map_or("-".into(), number);
    line += &format!(" TTFT p95 {:>7} ms (spread {:>3.0} %)", shown(Metric::Ttft), 100.0 * measured.ttft_spread());
    line += &format!("  TPOT p95 {:>6} ms  {:>7} tokens/s", shown(Metric::Tpot), shown(Metric::Throughput));
    match (measured.failed(), measured.is_unstable()) {
        (0, true) => line + "  unstable",
        (0, false) => line,
        (failed, _) => format!("{line}  {failed} requests failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::run::ContextShort;

    #[test]
    fn skipped_cell_names_the_required_context() {
        let cell = Plan {
            tp: vec![4],
            replicas: Vec::new(),
            replica_ranks: 1,
            layouts: Vec::new(),
            inputs: vec![64],
            outputs: vec![1],
            concurrencies: vec![1],
        }
        .cells()
        .remove(0);
        let skipped = ContextShort::of(&cell, cell.input + cell.output - 1);
        assert_eq!(ContextShort::of(&cell, cell.input + cell.output), None);
        let measured = Measured { cell, skipped, repeats: Vec::new() };
        assert!(told(&measured).ends_with("-- (context 64; --context 65)"), "{}", told(&measured));
    }
}
