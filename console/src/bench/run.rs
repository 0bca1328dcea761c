//! A matrix as it is kept: who measured what on which machines, and the cells done so far. JSON to go on from, CSV to look at. Pure.
use serde::{Deserialize, Serialize};

use super::{
    cell::{Cell, Phase, Plan},
    sample::Summary,
    stats::{median, spread},
};

/// The form of the file.
pub const VERSION: u32 = 1;
/// Largest file that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 256 << 20;
/// From here on the p95 TTFT of a cell's repeats lies too far apart to be relied on.
pub const UNSTABLE: f64 = 0.1;

/// The machine that measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// Its processor, as the kernel names it.
    pub cpu: String,
    /// Its cores.
    pub cores: usize,
}

/// A node that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// `ADDRESS:PORT`.
    pub address: String,
    /// Version of its brambled.
    pub build: String,
    /// Its kernel table.
    pub kernels: String,
}

/// What must be the same to go on with a matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The model's file name.
    pub model: String,
    /// The cells.
    pub plan: Plan,
    /// Repeats of each.
    pub repeats: u32,
    /// Requests of a prefill cell, at least as many as run at once.
    pub requests: u32,
    /// Requests before each, not counted.
    pub warmup: u32,
    /// Seed of prompts.
    pub seed: u64,
    /// How requests go: `9999` or a URL.
    pub door: String,
    /// KV cache, exchange and collective, as they were asked for.
    pub settings: String,
}

/// A whole matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`VERSION`].
    pub version: u32,
    /// Version of the console.
    pub build: String,
    /// The commit that was measured, as it was told.
    pub commit: Option<String>,
    /// When it began, in seconds since 1970.
    pub begun: u64,
    /// Where the console ran.
    pub machine: Machine,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// What was to be measured.
    pub configuration: Configuration,
    /// What was measured so far.
    pub cells: Vec<Measured>,
}

/// A cell that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Which.
    pub cell: Cell,
    /// Why it was left out.
    pub skipped: Option<ContextShort>,
    /// Its repeats.
    pub repeats: Vec<Summary>,
}

/// A cell that needs more context than its topology has. Files hold it as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ContextShort {
    /// Tokens of its prompts and answers.
    pub needed: u32,
    /// Tokens that the topology has room for.
    pub context: u32,
}

impl ContextShort {
    /// `None` if the cell fits.
    pub fn of(cell: &Cell, context: u32) -> Option<Self> {
        let needed = cell.input.saturating_add(cell.output);
        (needed > context).then_some(Self { needed, context })
    }

    /// As an error's reason.
    pub fn reason(&self) -> String {
        format!("needs a context of {} tokens, the topology has {}", self.needed, self.context)
    }
}

impl std::fmt::Display for ContextShort {
    /// In place of a table cell's figures.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "-- (context {}; --context {})", self.context, self.needed)
    }
}

impl From<ContextShort> for String {
    fn from(short: ContextShort) -> Self {
        short.to_string()
    }
}

impl TryFrom<String> for ContextShort {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parts = text.strip_prefix("-- (context ").and_then(|rest| rest.strip_suffix(')'));
        let parsed = parts.and_then(|parts| parts.split_once("; --context "));
        let numbers = parsed.and_then(|(context, needed)| Some((context.parse().ok()?, needed.parse().ok()?)));
        let (context, needed) = numbers.ok_or_else(|| format!("{text:?} is no reason to leave out a cell"))?;
        Ok(Self { needed, context })
    }
}

/// A figure of a cell that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// p95 of the time to first token (prefill), in ms.
    Ttft,
    /// p95 of the time per token (decode), in ms.
    Tpot,
    /// Tokens of prompts a second (prefill), or of answers (decode, their prompts' time included).
    Throughput,
}

impl Metric {
    /// The figures that a phase has.
    pub fn of(phase: Phase) -> [Self; 2] {
        match phase {
            Phase::Prefill => [Self::Ttft, Self::Throughput],
            Phase::Decode => [Self::Tpot, Self::Throughput],
        }
    }

    /// As tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ttft => "TTFT p95",
            Self::Tpot => "TPOT p95",
            Self::Throughput => "tokens/s",
        }
    }

    /// Whether more of it is better.
    pub fn is_more_better(self) -> bool {
        self == Self::Throughput
    }

    fn read(self, phase: Phase, summary: &Summary) -> f64 {
        match (self, phase) {
            (Self::Ttft, _) => summary.ttft_ms.p95,
            (Self::Tpot, _) => summary.tpot_ms.p95,
            (Self::Throughput, Phase::Prefill) => summary.prompt_tokens_per_second,
            // Not the steady rate: a repeat in which never all decoded has none, and unlike figures would be compared.
            (Self::Throughput, Phase::Decode) => summary.tokens_per_second,
        }
    }
}

impl Measured {
    /// A figure in each repeat in which every request came to its end; a figure of 0 is none.
    pub fn values(&self, metric: Metric) -> Vec<f64> {
        let whole = self.repeats.iter().filter(|summary| summary.completed == summary.requests);
        whole.map(|summary| metric.read(self.cell.phase, summary)).filter(|value| *value > 0.0).collect()
    }

    /// The median of a figure.
    pub fn median(&self, metric: Metric) -> Option<f64> {
        median(&self.values(metric))
    }

    /// How far the repeats lie apart in the p95 TTFT.
    pub fn ttft_spread(&self) -> f64 {
        spread(&self.values(Metric::Ttft))
    }

    /// Whether they lie too far apart.
    pub fn is_unstable(&self) -> bool {
        self.ttft_spread() >= UNSTABLE
    }

    /// Requests that have no whole answer.
    pub fn failed(&self) -> u64 {
        self.repeats.iter().map(|summary| summary.requests - summary.completed.min(summary.requests)).sum()
    }
}

impl Run {
    /// Reads a file's text.
    ///
    /// # Errors
    /// It is none of ours, or of another version.
    pub fn parse(text: &str) -> Result<Self, String> {
        let run: Self =
            serde_json::from_str(text).map_err(|error| format!("no result of console bench matrix: {error}"))?;
        if run.version != VERSION {
            return Err(format!("written in form {}, this console reads {VERSION}", run.version));
        }
        Ok(run)
    }

    /// A cell's result.
    pub fn of(&self, cell: &Cell) -> Option<&Measured> {
        self.cells.iter().find(|measured| measured.cell == *cell)
    }

    /// The cells of which a repeat is still to be measured.
    pub fn remaining(&self) -> Vec<Cell> {
        let last = self.configuration.repeats.saturating_sub(1);
        self.configuration.plan.cells().into_iter().filter(|cell| self.is_left(cell, last)).collect()
    }

    fn is_left(&self, cell: &Cell, repeat: u32) -> bool {
        self.of(cell).is_none_or(|known| known.skipped.is_none() && known.repeats.len() <= repeat as usize)
    }

    /// What is to be measured one after the other: cells and which repeat of each. All cells of a layout take turns, so that what
    /// disturbs the machine for a while shows as a spread of repeats, not as a slower cell.
    pub fn turns(&self) -> Vec<(Cell, u32)> {
        let mut turns = Vec::new();
        for cells in self.configuration.plan.cells().chunk_by(|one, other| one.layout == other.layout) {
            for round in 0..self.configuration.repeats {
                let left = cells.iter().filter(|cell| self.is_left(cell, round));
                turns.extend(left.map(|cell| (cell.clone(), round)));
            }
        }
        turns
    }

    /// Adds what was measured of a cell; all that is known of it now.
    pub fn add(&mut self, measured: Measured) -> &Measured {
        let place = self.cells.iter().position(|known| known.cell == measured.cell).unwrap_or(self.cells.len());
        match self.cells.get_mut(place) {
            Some(known) => {
                known.repeats.extend(measured.repeats);
                known.skipped = measured.skipped;
            }
            None => self.cells.push(measured),
        }
        &self.cells[place]
    }

    /// Why another run's cells cannot be added to these: the first thing that differs.
    pub fn differs(&self, other: &Self) -> Option<&'static str> {
        let (one, two) = (&self.configuration, &other.configuration);
        let same = [
            (one.model == two.model, "the model"),
            (one.plan == two.plan, "the cells"),
            (one.repeats == two.repeats, "the repeats"),
            (one.requests == two.requests && one.warmup == two.warmup, "the requests of a cell"),
            (one.seed == two.seed, "the seed"),
            (one.door == two.door, "the way of the requests"),
            (one.settings == two.settings, "the settings of the topology"),
            (self.nodes == other.nodes, "the nodes or their builds"),
            (self.machine == other.machine, "the machine"),
            (self.commit == other.commit && self.build == other.build, "the commit or build"),
        ];
        same.into_iter().find_map(|(is_same, what)| (!is_same).then_some(what))
    }

    /// A table of all repeats, a line each.
    pub fn csv(&self) -> String {
        let mut csv = String::from(
            "experiment,layout,phase,input,output,concurrency,repeat,requests,completed,seconds,ttft_p50_ms,ttft_p95_ms,\
             ttft_p99_ms,tpot_p50_ms,tpot_p95_ms,tpot_p99_ms,e2e_p95_ms,prompt_tokens_per_second,tokens_per_second,\
             steady_tokens_per_second,ttft_spread,unstable,skipped,host,build,commit,model\n",
        );
        for measured in &self.cells {
            let of_cell = measured.cell_columns();
            let of_run = [
                &self.machine.host,
                &self.build,
                self.commit.as_deref().unwrap_or_default(),
                &self.configuration.model,
            ];
            let of_run = of_run.map(quoted).join(",");
            if let Some(reason) = &measured.skipped {
                csv.push_str(&format!("{of_cell},{}{},{of_run}\n", ",".repeat(16), quoted(&reason.to_string())));
            }
            for (repeat, it) in measured.repeats.iter().enumerate() {
                let steady = it.steady_tokens_per_second.map_or(String::new(), |rate| format!("{rate:.3}"));
                let (ttft, tpot) = (it.ttft_ms, it.tpot_ms);
                csv.push_str(&format!(
                    "{of_cell},{repeat},{},{},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{steady},{:.4},{},,{of_run}\n",
                    it.requests, it.completed, it.seconds, ttft.p50, ttft.p95, ttft.p99, tpot.p50, tpot.p95, tpot.p99,
                    it.e2e_ms.p95, it.prompt_tokens_per_second, it.tokens_per_second, measured.ttft_spread(),
                    measured.is_unstable(),
                ));
            }
        }
        csv
    }
}

impl Measured {
    fn cell_columns(&self) -> String {
        let Cell { layout, input, output, concurrency, .. } = &self.cell;
        let word = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let (experiment, phase) =
            (word(serde_json::json!(self.cell.experiment)), word(serde_json::json!(self.cell.phase)));
        format!("{experiment},{layout},{phase},{input},{output},{concurrency}")
    }
}

/// A field of a CSV file (RFC 4180).
pub fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::{cell::Experiment, stats::Percentiles};

    /// A run of tp1 and tp2, whose figures are those of `figure` for each cell and repeat.
    pub(in crate::bench) fn run(figure: impl Fn(&Cell, u32) -> f64) -> Run {
        run_of(vec![64], figure)
    }

    /// The same with prompts of these lengths.
    pub(in crate::bench) fn run_of(inputs: Vec<u32>, figure: impl Fn(&Cell, u32) -> f64) -> Run {
        let plan = Plan {
            tp: vec![1, 2],
            replicas: vec![1, 2],
            replica_ranks: 1,
            layouts: Vec::new(),
            inputs,
            outputs: vec![1, 16],
            concurrencies: vec![1, 4],
        };
        let measured = |cell: Cell| {
            let repeat = |repeat| {
                let value = figure(&cell, repeat);
                let percentiles = Percentiles { p50: value, p95: value, p99: value };
                Summary {
                    requests: 4,
                    completed: 4,
                    ttft_ms: percentiles,
                    tpot_ms: percentiles,
                    tokens_per_second: 1e3 / value,
                    prompt_tokens_per_second: 1e4 / value,
                    stages: Some(crate::bench::sample::Stages {
                        compute: 0.7 * value,
                        wire: 0.3 * value,
                        ..Default::default()
                    }),
                    ..Summary::default()
                }
            };
            Measured { repeats: (0..3).map(repeat).collect(), cell, skipped: None }
        };
        Run {
            version: VERSION,
            build: "0.1.0".into(),
            commit: None,
            begun: 0,
            machine: Machine { host: "bench, \"1\"".into(), ..Machine::default() },
            nodes: Vec::new(),
            cells: plan.cells().into_iter().map(measured).collect(),
            configuration: Configuration {
                model: "m.gguf".into(),
                plan,
                repeats: 3,
                requests: 4,
                warmup: 1,
                seed: 1,
                door: "9999".into(),
                settings: String::new(),
            },
        }
    }

    #[test]
    fn a_run_goes_on_with_what_is_missing_and_only_with_the_same() {
        let mut half = run(|_, _| 10.0);
        let whole = half.clone();
        half.cells.truncate(5);
        let again = Run::parse(&serde_json::to_string(&half).expect("it is data")).expect("it was written by us");
        assert_eq!(again, half);
        let left: Vec<&Cell> = whole.cells[5..].iter().map(|measured| &measured.cell).collect();
        assert_eq!(again.remaining().iter().collect::<Vec<_>>(), left);
        assert_eq!(half.differs(&whole), None);
        let (mut begun, cell) = (half.clone(), half.cells[4].cell.clone());
        begun.cells[4].repeats.truncate(1);
        assert_eq!(begun.remaining()[0], cell);
        assert_eq!(
            begun.turns().iter().filter(|(of, _)| *of == cell).map(|(_, round)| *round).collect::<Vec<_>>(),
            [1, 2]
        );
        while let Some((cell, round)) = begun.turns().first().cloned() {
            let repeat = whole.of(&cell).expect("all are in it").repeats[round as usize].clone();
            begun.add(Measured { cell, skipped: None, repeats: vec![repeat] });
        }
        assert_eq!((begun.turns(), begun.cells), (Vec::new(), whole.cells.clone()));
        let other = Run { commit: Some("abc".into()), ..whole.clone() };
        assert_eq!(half.differs(&other), Some("the commit or build"));
        assert!(Run::parse("{}").is_err() && Run::parse("").is_err());
        let later = Run { version: 2, ..whole };
        assert!(
            Run::parse(&serde_json::to_string(&later).expect("it is data"))
                .is_err_and(|error| error.contains("form 2"))
        );
    }

    #[test]
    fn a_cell_whose_repeats_lie_a_tenth_apart_is_unstable() {
        let measured = run(|_, repeat| 10.0 + f64::from(repeat) * 0.6).cells.remove(0);
        assert!(measured.is_unstable(), "{}", measured.ttft_spread());
        let measured = run(|_, repeat| 10.0 + f64::from(repeat) * 0.4).cells.remove(0);
        assert!(!measured.is_unstable(), "{}", measured.ttft_spread());
    }

    #[test]
    fn every_line_of_the_table_has_as_many_fields_as_its_head() {
        let mut run = run(|_, _| 10.0);
        run.cells[0].repeats.clear();
        run.cells[0].skipped = Some(ContextShort { needed: 8193, context: 4096 });
        let text = serde_json::to_string(&run).expect("it is data");
        assert!(text.contains(r#""skipped":"-- (context 4096; --context 8193)""#), "{text}");
        assert_eq!(Run::parse(&text), Ok(run.clone()));
        let csv = run.csv();
        // The machine's name has a comma and quotes.
        let fields = |line: &str| line.replace("\"bench, \"\"1\"\"\"", "bench").matches(',').count();
        let mut lines = csv.lines();
        let count = fields(lines.next().expect("a head"));
        assert_eq!(csv.lines().count(), 1 + 1 + 3 * (run.cells.len() - 1));
        lines.for_each(|line| assert_eq!(fields(line), count, "{line}"));
        assert_eq!(run.cells[2].cell.experiment, Experiment::Tp);
    }
}
