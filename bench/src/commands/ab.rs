//! `bramble-bench ab`: layouts measured one after another in rounds, each compared with the first.
use std::collections::BTreeMap;

use clap::Args;
use common::latency::ratio;
use console::cli::toolkit::{Failure, Interrupts, output};
use serde_json::{Value, json};
use topology::Layout;

use super::{
    matrix::{On, layouts, told},
    pages::told_change,
};
use crate::measurement::{
    cell::{Experiment, Plan},
    compare::{Change, judge},
    run::{Measured, Metric},
    sample::Stages,
    stats::median,
    svg::number,
};

/// Relative differences below this count as equal.
const FLOOR: f64 = 0.03;
/// Above this ratio of TTFT p95 to that of the first layout, the verdict advises ending the experiment.
const TTFT_MOST: f64 = 1.3;

/// Options of `bramble-bench ab`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Ab {
    #[command(flatten)]
    on: On,
    /// Layouts to compare, each on the first of the nodes; the first layout is the baseline
    #[arg(long, value_delimiter = ',', required = true, value_name = "L,L,..",
        value_parser = |text: &str| text.parse::<Layout>().map_err(|error| error.to_string()))]
    topologies: Vec<Layout>,
    /// Prompt length in tokens
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=131_072))]
    input: u32,
    /// Output length in tokens
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=131_072))]
    output: u32,
    /// Number of concurrent requests
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Number of rounds; each round measures every layout once
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `bramble-bench ab`.
pub(crate) async fn run(options: Ab, nodes: Vec<String>) -> Result<u8, Failure> {
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
    let rig = options.on.rig(&nodes, options.concurrency, &names, plan.node_count());
    let Some(rig) = interrupts.end(rig).await? else { return Ok(0) };
    let cells = plan.cells();
    let mut found: Vec<Measured> =
        cells.iter().map(|cell| Measured { cell: cell.clone(), skipped: None, repeats: Vec::new() }).collect();
    let (mut running, layouts, mut hops) = (None, options.topologies.len(), BTreeMap::<String, Vec<f64>>::new());
    for round in 0..options.rounds {
        for turn in 0..layouts {
            // Each round starts with another layout, so that warming up or cooling down affects all of them.
            let layout = options.topologies[(turn + round as usize) % layouts].to_string();
            for place in found.iter_mut().filter(|place| place.cell.layout == layout) {
                let work = async {
                    rig.assign(&place.cell, &mut running).await?;
                    match &running {
                        Some(running) => rig.measure(&place.cell, running, round).await,
                        None => Err(anyhow::anyhow!("no topology is running").into()),
                    }
                };
                let measured = interrupts.end(work).await?;
                if let Some(short) = measured.skipped {
                    return Err(Failure::State {
                        message: format!("{}: {}", place.cell, short.reason()),
                        next: "increase --context, or reduce --input or --output",
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
        let verdicts: Vec<Value> = verdicts.iter().map(Verdict::object).collect();
        let times: Vec<Value> = found.iter().map(|measured| times_object(measured, &hops)).collect();
        output::line(&json!({"cells": found, "times": times, "verdicts": verdicts}).to_string());
    } else {
        found.iter().for_each(|measured| output::line(&output::clean(&told(measured))));
        found.iter().filter_map(|measured| times(measured, &hops)).for_each(|line| output::line(&output::clean(&line)));
        verdicts.iter().for_each(|verdict| output::line(&output::clean(&verdict.line)));
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

/// How a layout compares with the first in one figure.
#[derive(Debug)]
struct Verdict {
    layout: String,
    line: String,
    /// `None`: the difference is within the noise, or cannot be judged.
    is_better: Option<bool>,
    /// Whether the experiment should end.
    is_end: bool,
}

impl Verdict {
    fn of(change: &Change, measured: &Measured, first: &str) -> Self {
        let is_beyond_noise = change.is_regression() || change.is_improvement();
        let line = if is_beyond_noise {
            told_change(change)
        } else {
            format!(
                "same    {}: {} {} -> {} (noise {:.1} %)",
                measured.cell,
                change.metric.name(),
                number(change.before),
                number(change.after),
                100.0 * change.noise
            )
        };
        let factor = ratio(change.after, change.before);
        // A difference within the noise is no reason to end the experiment.
        let is_end = change.is_regression() && change.metric == Metric::Ttft && factor > TTFT_MOST;
        let advice = format!("; end the experiment: TTFT p95 is {factor:.2} times the first, the limit is {TTFT_MOST}");
        Self {
            layout: measured.cell.layout.clone(),
            line: format!("{line}, against {first}{}", if is_end { advice.as_str() } else { "" }),
            is_better: is_beyond_noise.then(|| change.is_improvement()),
            is_end,
        }
    }

    fn object(&self) -> Value {
        json!({"layout": self.layout, "verdict": self.line, "better": self.is_better, "end": self.is_end})
    }
}

/// Compares each layout with the first.
fn verdicts(found: &[Measured]) -> Vec<Verdict> {
    let Some(first) = found.first().map(|measured| measured.cell.layout.clone()) else { return Vec::new() };
    let mut verdicts = Vec::new();
    for measured in found.iter().filter(|measured| measured.cell.layout != first) {
        let Some(base) = found.iter().find(|Measured { cell, .. }| {
            cell.layout == first && cell.phase == measured.cell.phase && cell.experiment == Experiment::Layouts
        }) else {
            continue;
        };
        for metric in Metric::of(measured.cell.phase) {
            let layout = measured.cell.layout.clone();
            match judge(&base.values(metric), &measured.values(metric), metric, FLOOR) {
                Some(change) => {
                    let change = Change { cell: Some(measured.cell.clone()), ..change };
                    verdicts.push(Verdict::of(&change, measured, &first));
                }
                None => {
                    let line = format!("{layout} against {first}: no complete {} to compare", metric.name());
                    verdicts.push(Verdict { layout, line, is_better: None, is_end: false });
                }
            }
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::{sample::Summary, stats::Percentiles};

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
            let said = verdicts.iter().find(|verdict| verdict.line.contains("end the experiment"));
            assert_eq!(said.is_some(), ends, "{verdicts:?}");
            assert_eq!(verdicts.iter().any(|verdict| verdict.object()["end"] == true), ends);
        }
    }

    #[test]
    fn ttft_within_noise_does_not_end_experiment() {
        let cell = measured("pp2-tp2", 20.0);
        let (before, after, worse_by) = (10.0, 20.0, 1.0);
        let change = |noise| Change { cell: None, metric: Metric::Ttft, before, after, worse_by, noise };
        let (loud, quiet) = (Verdict::of(&change(1.5), &cell, "tp4"), Verdict::of(&change(0.1), &cell, "tp4"));
        assert!(loud.line.starts_with("same") && !loud.is_end && !loud.line.contains("end the"), "{}", loud.line);
        assert!(quiet.is_end && quiet.is_better == Some(false));
    }

    #[test]
    fn times_line_has_stages_hop_and_network_fraction() {
        let hops = BTreeMap::from([("pp2-tp2".to_owned(), vec![0.25, 0.5, 0.75])]);
        let line = times(&measured("pp2-tp2", 10.0), &hops).expect("stages were measured");
        for part in ["wait 1", "wire 3", "bubble 0", "flush 0.5", "hop 0.5", "network 40 %"] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
        let alone = times(&measured("tp4", 10.0), &hops).expect("stages were measured");
        assert!(!alone.contains("hop"), "{alone}");
        assert_eq!(times_object(&measured("pp2-tp2", 10.0), &hops)["network_fraction"], 0.4);
    }
}
