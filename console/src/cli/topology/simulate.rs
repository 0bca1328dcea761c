//! `console topology simulate`: runs a model on hypothetical nodes in virtual time: its speed, where the time goes, and the
//! number of nodes beyond which more nodes do not help.
use std::{io::Read, path::PathBuf};

use anyhow::Context;
use clap::Args;
use common::{latency::ratio, limits::NODES_MAX, units::Nanoseconds};
use planner::simulate::{
    Drafted, Machine, Noise, Outcome, Replica, Request, Setup, SimulateError, Watched, answer, drafted, knee, watch,
};
use serde_json::{Value, json};
use telemetry::{PhaseTotals, WINDOW_STEPS};
use topology::{Layout, sizes::ModelSizes, split_model};

use crate::cli::{
    Failure,
    shared::{hypothetical_cluster::Hypothetical, output},
};

/// Largest size of a jitter file in bytes.
const JITTER_BYTES_MAX: u64 = 16 << 20;

/// Node counts: `8`, `1..8` or `1,2,4`.
#[derive(Clone, Debug, PartialEq)]
struct Counts(Vec<usize>);

fn counts(text: &str) -> Result<Counts, String> {
    let wrong = || format!("expected node counts from 1 to {NODES_MAX}: 8, 1..8 or 1,2,4");
    let number = |text: &str| {
        let number: usize = text.parse().map_err(|_| wrong())?;
        (1..=NODES_MAX).contains(&number).then_some(number).ok_or_else(wrong)
    };
    let found: Vec<usize> = match text.split_once("..") {
        Some((first, last)) => (number(first)?..=number(last)?).collect(),
        None => text.split(',').map(number).collect::<Result<_, _>>()?,
    };
    if found.is_empty() || !found.is_sorted_by(|one, two| one < two) { Err(wrong()) } else { Ok(Counts(found)) }
}

fn layout(text: &str) -> Result<Layout, String> {
    text.parse().map_err(|error: topology::SpecError| error.to_string())
}

/// A rank and its slowdown in percent: `2:20` is 20 %.
fn slow(text: &str) -> Result<(usize, u64), String> {
    let wrong = || "expected RANK:PERCENT, for example 2:20".to_owned();
    let (rank, percent) = text.split_once(':').ok_or_else(wrong)?;
    let percent: u64 = percent.parse().map_err(|_| wrong())?;
    Ok((rank.parse().map_err(|_| wrong())?, 1000 + 10 * percent.min(10_000)))
}

/// Options of `console topology simulate`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Simulate {
    #[command(flatten)]
    hypothetical: Hypothetical,
    /// Number of nodes that share every layer: 8, 1..8 or 1,2,4 [default: 1..8]
    // A string, because the global option of the same name is one.
    #[arg(long, value_name = "N,..", value_parser = |text: &str| counts(text).map(|_| text.to_owned()))]
    nodes: Option<String>,
    /// Simulate a single layout instead, ppS-tpN
    #[arg(long, value_parser = layout, conflicts_with = "nodes")]
    topology: Option<Layout>,
    /// Tokens to generate after the first one
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tokens: u32,
    /// Make one rank slower by this percentage
    #[arg(long, value_name = "RANK:PERCENT", value_parser = slow)]
    slow: Option<(usize, u64)>,
    /// Mean extra time of each computation and message, in millionths of its normal time
    #[arg(long, value_name = "PPM", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    jitter: u32,
    /// File with measured times to take the extra times from: nanoseconds of repeated identical work, one per line,
    /// in order
    #[arg(long, value_name = "FILE", conflicts_with = "jitter")]
    jitter_file: Option<PathBuf>,
    /// Seed of the jitter
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Decode this many tokens and report the ranks that the straggler rule names
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(i64::from(WINDOW_STEPS)..=100_000_000))]
    watch: Option<u32>,
    /// Also simulate answers with this draft model, a built-in model or a GGUF file
    #[arg(long, value_name = "MODEL")]
    draft: Option<String>,
    /// Share of the draft model's tokens that are accepted, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 70, requires = "draft", value_parser = clap::value_parser!(u8).range(0..=100))]
    agreement: u8,
}

/// The simulation of one layout.
struct Run {
    layout: Layout,
    outcome: Outcome,
    /// Algorithms for one token, and for a chunk of the prompt.
    collectives: [String; 2],
    watched: Option<Watched>,
    drafted: Option<Drafted>,
}

impl Simulate {
    fn layouts(&self) -> Result<Vec<Layout>, Failure> {
        Ok(match (self.topology, &self.nodes) {
            (Some(layout), _) => vec![layout],
            (None, Some(text)) => {
                let next = "pass a number of hypothetical nodes, for example console topology simulate --nodes 1..8";
                let counts = counts(text).map_err(|message| Failure::Usage { message, next })?;
                counts.0.iter().map(|n| Layout::tensor_parallel(*n as u16)).collect()
            }
            (None, None) => (1..=8).map(Layout::tensor_parallel).collect(),
        })
    }

    fn noise(&self) -> Result<Noise, Failure> {
        let Some(path) = &self.jitter_file else {
            return Ok(if self.jitter > 0 { Noise::Random { mean_ppm: self.jitter } } else { Noise::None });
        };
        let mut text = String::new();
        let file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let read = file.take(JITTER_BYTES_MAX).read_to_string(&mut text);
        read.with_context(|| format!("cannot read {}", path.display()))?;
        let times: Result<Vec<u64>, _> = text.lines().map(|line| line.trim().parse()).collect();
        let noise = times.ok().as_deref().and_then(Noise::recorded);
        noise.ok_or_else(|| Failure::Usage {
            message: format!(
                "{} does not contain at least {} times in nanoseconds, one per line",
                path.display(),
                Noise::RECORDED_MIN
            ),
            next: "write the times of repeated identical work, one per line, in order of measurement",
        })
    }

    /// Nodes and layers of a layout. Stages are balanced by the bytes that a token reads.
    fn setup(&self, sizes: &ModelSizes, layout: Layout) -> Result<Setup, Failure> {
        let usage = |message: String| Failure::Usage { message, next: "console topology simulate --help" };
        if layout.replicas > 1 {
            return Err(usage(format!(
                "{layout} has replicas, which do not wait for one another; simulate a single replica"
            )));
        }
        let Hypothetical { exchange, collective: choice, kv, .. } = self.hypothetical;
        let (count, stages, ranks) = (sizes.spec.block_count(), usize::from(layout.stages), usize::from(layout.ranks));
        let lone = Setup::equal(&self.hypothetical.profile, 1, count, self.hypothetical.link());
        let whole = Replica::new(sizes, &lone).map_err(|error| usage(error.to_string()))?;
        let holding = whole.holdings().next();
        let layers = 0..count;
        let reads: Vec<u64> = match &holding {
            Some(all) => layers.map(|layer| all.attention(layer).bytes + all.feed_forward(layer, 1).bytes).collect(),
            None => layers.map(|_| 1).collect(),
        };
        let output = holding.as_ref().map_or(0, |all| all.output().bytes);
        let split = split_model(&sizes.spec, &reads, output, &vec![1; stages]);
        let most = sizes.spec.stages_max();
        let split =
            split.ok_or_else(|| usage(format!("{layout} has more than the {most} stages that the model can have")))?;
        let stages = split.into_iter().enumerate().map(|(stage, layers)| {
            let nodes = (stage * ranks..(stage + 1) * ranks).map(|rank| (self.machine(rank), 1)).collect();
            (layers.start as usize..layers.end as usize, nodes)
        });
        Ok(Setup { stages: stages.collect(), exchange, choice, kv })
    }

    /// The machine of a rank, slower if `--slow` names the rank.
    fn machine(&self, rank: usize) -> Machine {
        let mut profile = self.hypothetical.profile.clone();
        if let Some((_, slowness)) = self.slow.filter(|(slow, _)| *slow == rank) {
            profile.slowness = slowness;
        }
        Machine { profile, link: self.hypothetical.link() }
    }

    fn run(&self, sizes: &ModelSizes, layout: Layout, noise: &Noise) -> Result<Result<Run, SimulateError>, Failure> {
        let setup = self.setup(sizes, layout)?;
        let (prompt, noise) = (self.hypothetical.prompt, noise.clone());
        let request = Request { prompt, tokens: self.tokens, noise, seed: self.seed };
        let run = self.simulate(sizes, layout, &setup, &request);
        let Some(draft) = self.draft.as_ref().filter(|_| layout.stages == 1) else { return Ok(run) };
        let draft = self.hypothetical.sizes_of(draft)?;
        let of_draft = self.setup(&draft, layout)?;
        Ok(run.and_then(|run| {
            let (target, draft) = (Replica::new(sizes, &setup)?, Replica::new(&draft, &of_draft)?);
            let agreement = f64::from(self.agreement) / 100.0;
            Ok(Run { drafted: Some(drafted(&target, &draft, request.prompt, agreement)?), ..run })
        }))
    }

    fn simulate(
        &self,
        sizes: &ModelSizes,
        layout: Layout,
        setup: &Setup,
        request: &Request,
    ) -> Result<Run, SimulateError> {
        let replica = Replica::new(sizes, setup)?;
        let outcome = answer(&replica, request)?;
        let name = |tokens: u32| match layout.ranks {
            1 => Ok("-".into()),
            _ => replica.algorithm(0, tokens).map(|algorithm| algorithm.to_string()),
        };
        let collectives = [name(1)?, name(self.hypothetical.prompt.min(replica.step_tokens()))?];
        let watched = self.watch.map(|tokens| watch(&replica, &Request { tokens, ..request.clone() })).transpose()?;
        Ok(Run { layout, outcome, collectives, watched, drafted: None })
    }
}

/// Simulates each layout. A layout that the model cannot be split for is reported and skipped.
pub(crate) fn run(options: &Simulate) -> Result<u8, Failure> {
    let sizes = options.hypothetical.sizes()?;
    let noise = options.noise()?;
    let mut runs = Vec::new();
    let mut left_out = Vec::new();
    for layout in options.layouts()? {
        match options.run(&sizes, layout, &noise)? {
            Ok(run) => runs.push(run),
            Err(error) => left_out.push((layout, error)),
        }
    }
    if let (true, Some((_, error))) = (runs.is_empty(), left_out.first()) {
        return Err(Failure::Usage { message: error.to_string(), next: "console topology simulate --help" });
    }
    let times: Vec<(usize, Nanoseconds)> = runs.iter().map(|run| (run.layout.node_count(), run.outcome.tpot)).collect();
    let knee = knee(&times).filter(|_| runs.len() > 1);
    if options.hypothetical.json {
        let mut object = options.hypothetical.object(&sizes, false);
        object["runs"] = runs.iter().map(Run::object).collect();
        object["knee"] = json!(knee);
        object["left_out"] = left_out
            .iter()
            .map(|(layout, error)| json!({"topology": layout.to_string(), "reason": error.to_string()}))
            .collect();
        output::line(&object.to_string());
        return Ok(0);
    }
    output::line(&options.hypothetical.line(&sizes, false));
    output::line(
        "topology   TTFT       TPOT       tok/s  times  network  in prompt  collective             kB/token  messages",
    );
    let first = runs.first().map_or(0.0, |run| run.outcome.tpot.0 as f64);
    runs.iter().for_each(|run| output::line(&run.line(first)));
    left_out.iter().for_each(|(layout, error)| output::line(&format!("{layout:<9}  {error}")));
    if let Some(knee) = knee {
        let is_last = times.last().is_some_and(|(nodes, _)| *nodes == knee);
        let text = if is_last { "up to" } else { "beyond" };
        let tail =
            if is_last { "nodes, each node makes decoding faster" } else { "nodes, decoding does not get faster" };
        output::line(&format!("{text} {knee} {tail}"));
    }
    runs.iter().filter_map(Run::drafted).for_each(|line| output::line(&line));
    runs.iter().filter_map(Run::watched).for_each(|line| output::line(&line));
    Ok(0)
}

impl Run {
    fn line(&self, first: f64) -> String {
        let Outcome { ttft, tpot, .. } = &self.outcome;
        let [prefill, decode] = self.outcome.network_fractions().map(|share| format!("{:.0} %", 100.0 * share));
        let [bytes, messages] = self.outcome.sent_per_token();
        let collectives = format!("{}, {} in prompt", self.collectives[0], self.collectives[1]);
        format!(
            "{:<9}  {ttft:<9}  {tpot:<9}  {:>6.2}  {:>5.2}  {decode:>7}  {prefill:>9}  {collectives:<21}  {:>8.1}  {messages:>8.0}",
            self.layout,
            self.outcome.tokens_per_second(),
            ratio(first, tpot.0 as f64),
            bytes / 1e3,
        )
    }

    fn drafted(&self) -> Option<String> {
        let Drafted { proposed, tokens_per_step, steps: [step, draft], tpot } = self.drafted.as_ref()?;
        let gain = self.drafted.as_ref().map_or(1.0, Drafted::gain);
        Some(format!(
            "{}: {gain:.2} times as fast with the draft model: {tpot} a token, {proposed} proposals and {tokens_per_step:.2} \
             tokens a step; a step takes {step}, a draft step {draft}",
            self.layout
        ))
    }

    fn watched(&self) -> Option<String> {
        let watched = self.watched.as_ref()?;
        let named = |(rank, windows): (usize, &u64)| format!("rank {rank} in {windows}");
        let named: Vec<String> =
            watched.named.iter().enumerate().filter(|(_, windows)| **windows > 0).map(named).collect();
        let named = if named.is_empty() { "no rank".into() } else { named.join(", ") };
        let share = 100.0 * watched.latest_share;
        Some(format!(
            "{}: {named} named in {} windows of {WINDOW_STEPS} tokens; one rank cost its peers at most {share:.1} % \
             of their time",
            self.layout, watched.windows
        ))
    }

    fn object(&self) -> Value {
        let phase = |totals: &PhaseTotals| {
            json!({"compute_ms": totals.compute.milliseconds(), "wait_ms": totals.wait.milliseconds(),
                "wire_ms": totals.wire.milliseconds(), "bubble_ms": totals.bubble.milliseconds(),
                "network_fraction": totals.network_fraction(), "bytes_sent": totals.bytes_sent,
                "messages_sent": totals.messages_sent})
        };
        let ranks: Vec<Value> = self
            .outcome
            .ranks
            .iter()
            .map(|rank| json!({"prefill": phase(&rank.prefill), "decode": phase(&rank.decode)}))
            .collect();
        let [prefill, decode] = self.outcome.network_fractions();
        let [bytes, messages] = self.outcome.sent_per_token();
        let watched = self.watched.as_ref().map(
            |watched| json!({"windows": watched.windows, "named": watched.named, "latest_share": watched.latest_share}),
        );
        json!({"topology": self.layout.to_string(), "nodes": self.layout.node_count(),
            "ttft_ms": self.outcome.ttft.milliseconds(), "tpot_ms": self.outcome.tpot.milliseconds(),
            "tokens_per_second": self.outcome.tokens_per_second(),
            "network_fraction": {"prefill": prefill, "decode": decode},
            "bytes_per_token": bytes, "messages_per_token": messages,
            "collective": {"decode": self.collectives[0], "prefill": self.collectives[1]},
            "ranks": ranks, "watched": watched, "drafted": self.drafted.as_ref().map(|drafted| json!({
                "gain": drafted.gain(), "tpot_ms": drafted.tpot.milliseconds(), "proposed": drafted.proposed,
                "tokens_per_step": drafted.tokens_per_step}))})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_counts_and_slow_ranks_are_parsed() {
        assert_eq!(counts("1..4"), Ok(Counts(vec![1, 2, 3, 4])));
        assert_eq!(counts("1,2,8"), Ok(Counts(vec![1, 2, 8])));
        assert_eq!(counts("64"), Ok(Counts(vec![64])));
        for text in ["", "0", "65", "4..2", "2,1", "1,1", "a", "1..", "1..9999999999"] {
            assert!(counts(text).is_err(), "{text}");
        }
        assert_eq!(slow("2:20"), Ok((2, 1200)));
        assert!(slow("2").is_err() && slow("x:1").is_err() && slow("1:-1").is_err());
    }
}
