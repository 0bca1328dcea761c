//! `console bench matrix` and `console bench ab`: layouts assigned one after the other, measured cell by cell.
use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Instant, SystemTime},
};

use clap::Args;
use serde_json::{Value, json};
use shared::{latency::ratio, protocol::BUILD, topology::Layout};

use super::{
    load::{check_folder, shown},
    pages::{matrix, told_change, write},
    run::{Rig, machine},
};
use crate::{
    bench::{
        cell::{Cell, Experiment, Plan, degrees},
        compare::judge,
        run::{Configuration, Measured, Metric, Run, VERSION},
        sample::Stages,
        stats::median,
        svg::number,
    },
    cli::{
        Failure,
        confirm::Consent,
        endpoint::Endpoint,
        interrupts::Interrupts,
        obtain::clear_way,
        options::{Assignment, Nodes},
        output,
    },
};

/// Below this share two layouts count as the same.
const FLOOR: f64 = 0.03;
/// Above this ratio of TTFT p95 to that of the first layout, the verdict advises ending the experiment.
const TTFT_MOST: f64 = 1.3;
/// How long a small matrix may take, in minutes, where nothing is said.
const REDUCED_MINUTES: u64 = 10;

/// What both commands measure on.
#[derive(Clone, Debug, Args)]
struct On {
    #[command(flatten)]
    nodes: Nodes,
    /// Model file; its name is looked for in the model folders of every node
    #[arg(long, value_name = "NAME|FILE")]
    model: String,
    /// Requests of a prefill cell, at least as many as run at once
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    requests: u32,
    /// Requests before each repeat, not counted
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    warmup: u32,
    /// Seed of the prompts, of which no two begin alike
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    #[command(flatten)]
    assignment: Assignment,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    endpoint: Endpoint,
}

/// Options of `console bench matrix`.
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct Matrix {
    #[command(flatten)]
    on: On,
    /// The result (JSON, kept after each cell: the same command goes on with it); the table lies beside it, FILE.csv
    #[arg(long, value_name = "FILE.json")]
    out: PathBuf,
    /// A small one: prompts of 64 and 256 tokens, answers of 1 and 32, 1 and 4 at a time, at most 10 minutes
    #[arg(long)]
    reduced: bool,
    /// Ranks that share a layer, of the first experiment [default: powers of two up to all nodes]
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = clap::value_parser!(u16).range(1..=64))]
    tp: Vec<u16>,
    /// Replicas, of the second [default: powers of two up to all nodes; 0: none]
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = clap::value_parser!(u16).range(0..=64))]
    replicas: Vec<u16>,
    /// Ranks of a replica, the same for any number of them
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    replica_ranks: u16,
    /// Tokens of prompts [default: 256,1024,4096,8192]
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    inputs: Vec<u32>,
    /// Tokens of answers; 1 is prefill alone [default: 1,128,512]
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    outputs: Vec<u32>,
    /// Requests at a time [default: 1,4,8,16]
    #[arg(long, value_delimiter = ',', value_name = "N,..", value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrencies: Vec<u16>,
    /// Repeats of each cell
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    /// Stop after the cell that runs then; the same command goes on [default: 10 with --reduced]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    minutes: Option<u64>,
    /// The commit that is measured, for the record
    #[arg(long, env = "BRAMBLE_COMMIT", value_name = "ID")]
    commit: Option<String>,
    /// Print JSON: the result
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

/// Options of `console bench ab`.
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct Ab {
    #[command(flatten)]
    on: On,
    /// The layouts; each takes the first of the nodes, the first layout is what the others are compared with
    #[arg(long, value_delimiter = ',', required = true, value_name = "L,L,..",
        value_parser = |text: &str| text.parse::<Layout>().map_err(|error| error.to_string()))]
    topologies: Vec<Layout>,
    /// Tokens of prompts
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    input: u32,
    /// Tokens of answers
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=131_072))]
    output: u32,
    /// Requests at a time
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Rounds; in each every layout has its turn
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

impl On {
    /// Nodes and settings; `None`: it was a dry run.
    async fn rig(&self, concurrency: u16, layouts: &[String], nodes: usize) -> Result<Option<Rig>, Failure> {
        if self.assignment.topology.is_some() {
            let message = "--topology cannot be: layouts are what is measured".into();
            return Err(Failure::Usage { message, next: "leave it out" });
        }
        if self.endpoint.url.len() > 1 {
            let message = format!("{} servers named", self.endpoint.url.len());
            return Err(Failure::Usage { message, next: "name one --url, or none to ask the heads on 9999" });
        }
        let purpose = format!("{} with {}", layouts.join(", then "), output::clean(&self.model));
        let Some(sessions) = clear_way(&self.nodes.nodes, &purpose, self.consent, false).await? else {
            return Ok(None);
        };
        if sessions.len() < nodes {
            let message = format!("{nodes} nodes are needed, {} are there", sessions.len());
            return Err(Failure::State { message, next: "name more nodes, or fewer ranks and replicas" });
        }
        let (model, assignment, endpoint) = (self.model.clone(), self.assignment.clone(), self.endpoint.clone());
        let (requests, warmup, seed) = (self.requests, self.warmup, self.seed);
        Ok(Some(Rig { sessions, model, assignment, endpoint, concurrency, requests, warmup, seed }))
    }
}

/// The layouts of a plan, each once.
fn layouts(plan: &Plan) -> Vec<String> {
    let mut layouts: Vec<String> = plan.cells().into_iter().map(|cell| cell.layout).collect();
    layouts.dedup();
    layouts
}

impl Ab {
    /// The nodes to measure on.
    pub(in crate::cli) fn nodes(&mut self) -> &mut Vec<String> {
        &mut self.on.nodes.nodes
    }
}

impl Matrix {
    /// The nodes to measure on.
    pub(in crate::cli) fn nodes(&mut self) -> &mut Vec<String> {
        &mut self.on.nodes.nodes
    }

    fn plan(&self) -> Plan {
        let nodes = self.on.nodes.nodes.len();
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

    /// The run so far, or a new one.
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
                next: "name another --out, or repeat the command that wrote it",
            }),
        }
    }
}

/// Runs `console bench matrix`: exit code 1 where requests failed or time ran out before all cells were measured.
pub(super) async fn run(options: Matrix) -> Result<u8, Failure> {
    check_folder(&options.out)?;
    let plan = options.plan();
    let concurrency = plan.concurrencies.iter().max().copied().unwrap_or(1);
    let mut interrupts = Interrupts::listen()?;
    let layouts = layouts(&plan);
    let rig = options.on.rig(concurrency, &layouts, plan.node_count());
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
                None => Err(anyhow::anyhow!("nothing runs").into()),
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
        output::note(&format!("{left} cells are left: the same command goes on with them"));
    }
    if failed > 0 {
        output::note(&format!("{failed} requests failed"));
    }
    Ok(u8::from(left > 0 || failed > 0))
}

/// A cell as a line.
fn told(measured: &Measured) -> String {
    let mut line = format!("{:<44}", measured.cell.to_string());
    if let Some(reason) = &measured.skipped {
        return format!("{line} {reason}");
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

/// Runs `console bench ab`.
pub(super) async fn ab(options: Ab) -> Result<u8, Failure> {
    let plan = Plan {
        tp: Vec::new(),
        replicas: Vec::new(),
        replica_ranks: 1,
        layouts: options.topologies.clone(),
        inputs: vec![options.input],
        outputs: vec![1, options.output],
        concurrencies: vec![options.concurrency],
    };
    let mut interrupts = Interrupts::listen()?;
    let names = layouts(&plan);
    let rig = options.on.rig(options.concurrency, &names, plan.node_count());
    let Some(rig) = interrupts.end(rig).await? else { return Ok(0) };
    let cells = plan.cells();
    let mut found: Vec<Measured> =
        cells.iter().map(|cell| Measured { cell: cell.clone(), skipped: None, repeats: Vec::new() }).collect();
    let (mut running, layouts, mut hops) = (None, options.topologies.len(), BTreeMap::<String, Vec<f64>>::new());
    for round in 0..options.rounds {
        for turn in 0..layouts {
            // Whoever begins differs from round to round: what warms up or cools down meets all.
            let layout = options.topologies[(turn + round as usize) % layouts].to_string();
            for place in found.iter_mut().filter(|place| place.cell.layout == layout) {
                let work = async {
                    rig.assign(&place.cell, &mut running).await?;
                    match &running {
                        Some(running) => rig.measure(&place.cell, running, round).await,
                        None => Err(anyhow::anyhow!("nothing runs").into()),
                    }
                };
                let measured = interrupts.end(work).await?;
                if let Some(reason) = measured.skipped {
                    return Err(Failure::State {
                        message: format!("{}: {reason}", place.cell),
                        next: "raise --context, or shorten --input and --output",
                    });
                }
                place.repeats.extend(measured.repeats);
                let now = interrupts.end(rig.hops()).await?;
                hops.entry(layout.clone()).or_default().extend(now);
            }
        }
        if !options.json {
            output::note(&format!("round {} of {}", round + 1, options.rounds));
        }
    }
    let verdicts = verdicts(&found);
    if options.json {
        let verdicts: Vec<Value> = verdicts
            .iter()
            .map(|(layout, line, winner)| json!({"layout": layout, "verdict": line, "better": winner}))
            .collect();
        let times: Vec<Value> = found.iter().map(|measured| times_object(measured, &hops)).collect();
        output::line(&json!({"cells": found, "times": times, "verdicts": verdicts}).to_string());
    } else {
        found.iter().for_each(|measured| output::line(&output::clean(&told(measured))));
        found.iter().filter_map(|measured| times(measured, &hops)).for_each(|line| output::line(&output::clean(&line)));
        verdicts.iter().for_each(|(_, line, _)| output::line(&output::clean(line)));
    }
    Ok(u8::from(found.iter().any(|measured| measured.failed() > 0)))
}

/// Median stages of the time to the first token, in milliseconds.
fn stages(measured: &Measured) -> Option<Stages> {
    Stages::median(&measured.repeats.iter().filter_map(|repeat| repeat.stages).collect::<Vec<_>>())
}

/// A cell's TTFT by stage, with the median hop latency and the network fraction; `None` if no request reported stages.
fn times(measured: &Measured, hops: &BTreeMap<String, Vec<f64>>) -> Option<String> {
    let stages = stages(measured)?;
    let named: Vec<String> = stages.named().iter().map(|(name, time)| format!("{name} {}", number(*time))).collect();
    let hop = hops.get(&measured.cell.layout).and_then(|all| median(all));
    let hop = hop.map_or_else(String::new, |hop| format!(", hop {} ms", number(hop)));
    let line = format!("{:<44} TTFT in ms: {}", measured.cell.to_string(), named.join(", "));
    let exchange = number(stages.wait + stages.wire);
    Some(format!("{line}; exchange {exchange} ms{hop}, network {:.0} %", 100.0 * stages.network_fraction()))
}

fn times_object(measured: &Measured, hops: &BTreeMap<String, Vec<f64>>) -> Value {
    let stages = stages(measured);
    json!({"cell": measured.cell.to_string(), "stages": stages, "exchange_ms": stages.map(|it| it.wait + it.wire),
        "hop_ms": hops.get(&measured.cell.layout).and_then(|all| median(all)), "bubble_ms": stages.map(|it| it.bubble),
        "network_fraction": stages.map(Stages::network_fraction)})
}

/// Advice to end the experiment, if TTFT p95 exceeds [`TTFT_MOST`] times that of the first layout.
fn ends(metric: Metric, before: f64, after: f64) -> Option<String> {
    let factor = ratio(after, before);
    let is_end = metric == Metric::Ttft && factor > TTFT_MOST;
    is_end.then(|| format!("; end the experiment: TTFT p95 is {factor:.2} times the first, the limit is {TTFT_MOST}"))
}

/// What each layout does beside the first: its name, a line, whether it is better (`None`: beyond the noise neither).
fn verdicts(found: &[Measured]) -> Vec<(String, String, Option<bool>)> {
    let Some(first) = found.first().map(|measured| measured.cell.layout.clone()) else { return Vec::new() };
    let mut verdicts = Vec::new();
    for measured in found.iter().filter(|measured| measured.cell.layout != first) {
        let same = |cell: &Cell| {
            cell.layout == first && cell.phase == measured.cell.phase && cell.experiment == Experiment::Layouts
        };
        let Some(base) = found.iter().find(|base| same(&base.cell)) else { continue };
        for metric in Metric::of(measured.cell.phase) {
            let layout = measured.cell.layout.clone();
            let change = judge(&base.values(metric), &measured.values(metric), metric, FLOOR);
            let Some(mut change) = change else {
                verdicts.push((
                    layout.clone(),
                    format!("{layout} against {first}: no whole {} to compare", metric.name()),
                    None,
                ));
                continue;
            };
            change.cell = Some(measured.cell.clone());
            let better = (change.is_regression() || change.is_improvement()).then(|| change.is_improvement());
            let line = match better {
                Some(_) => told_change(&change),
                None => format!(
                    "same    {}: {} {} -> {} (noise {:.1} %)",
                    measured.cell,
                    metric.name(),
                    number(change.before),
                    number(change.after),
                    100.0 * change.noise
                ),
            };
            let end = ends(metric, change.before, change.after).unwrap_or_default();
            verdicts.push((layout, format!("{line}, against {first}{end}"), better));
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{sample::Summary, stats::Percentiles};

    fn measured(layout: &str, ttft: f64) -> Measured {
        let plan = Plan {
            tp: Vec::new(),
            replicas: Vec::new(),
            replica_ranks: 1,
            layouts: vec![layout.parse().expect("a layout")],
            inputs: vec![64],
            outputs: vec![1],
            concurrencies: vec![1],
        };
        let percentiles = Percentiles { p50: ttft, p95: ttft, p99: ttft };
        let stages = Some(Stages { compute: 6.0, wait: 1.0, wire: 3.0, flush: 0.5, ..Stages::default() });
        let summary = Summary { requests: 1, completed: 1, ttft_ms: percentiles, stages, ..Summary::default() };
        let cell = plan.cells().remove(0);
        Measured { cell, skipped: None, repeats: vec![summary; 3] }
    }

    #[test]
    fn ttft_beyond_limit_ends_experiment() {
        for (ttft, ends) in [(12.0, false), (13.0, false), (14.0, true)] {
            let verdicts = verdicts(&[measured("tp4", 10.0), measured("pp2-tp2", ttft)]);
            let said = verdicts.iter().any(|(_, line, _)| line.contains("end the experiment"));
            assert_eq!(said, ends, "{verdicts:?}");
        }
    }

    #[test]
    fn every_cell_says_where_its_time_went() {
        let hops = BTreeMap::from([("pp2-tp2".to_owned(), vec![0.25, 0.5, 0.75])]);
        let line = times(&measured("pp2-tp2", 10.0), &hops).expect("its stages are known");
        for part in ["wait 1", "wire 3", "bubble 0", "flush 0.5", "hop 0.5", "network 40 %"] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
        let alone = times(&measured("tp4", 10.0), &hops).expect("its stages are known");
        assert!(!alone.contains("hop"), "{alone}");
        assert_eq!(times_object(&measured("pp2-tp2", 10.0), &hops)["network_fraction"], 0.4);
    }

    #[test]
    fn a_cell_that_is_left_out_names_the_option_that_fills_it() {
        let left = Measured {
            skipped: Some("-- (context 4096; --context 8193)".into()),
            repeats: Vec::new(),
            ..measured("tp4", 1.0)
        };
        assert!(told(&left).ends_with("-- (context 4096; --context 8193)"));
    }
}
