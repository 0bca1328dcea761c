//! The stored form of a matrix: configuration, machines, and the cells measured so far. Saved as JSON, from which a run
//! resumes, and as CSV. Pure.
use serde::{Deserialize, Serialize};

use super::{
    cell::{Cell, Phase, Plan},
    sample::Summary,
    stats::{median, spread},
};

/// Version of the file format.
pub const VERSION: u32 = 1;
/// Maximum size of a file to read, in bytes.
pub const FILE_BYTES_MAX: u64 = 256 << 20;
/// A cell is unstable if the spread of the p95 TTFT of its repeats is at least this.
pub const UNSTABLE: f64 = 0.1;

/// The machine on which the console ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Host name.
    pub host: String,
    /// Processor, as reported by the kernel.
    pub cpu: String,
    /// Number of cores.
    pub cores: usize,
}

/// A measured node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Name of the node.
    pub name: String,
    /// `ADDRESS:PORT`.
    pub address: String,
    /// Release of its brambled.
    pub build: String,
    /// Its kernel table.
    pub kernels: String,
}

/// The configuration, which must be equal to resume a matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// File name of the model.
    pub model: String,
    /// The dimensions of the matrix.
    pub plan: Plan,
    /// Repeats of each cell.
    pub repeats: u32,
    /// Requests of a prefill cell; at least its concurrency.
    pub requests: u32,
    /// Warm-up requests before each repeat, not measured.
    pub warmup: u32,
    /// Seed of the prompts.
    pub seed: u64,
    /// Destination of the requests: `9999` for the heads, or a URL.
    pub door: String,
    /// Requested KV cache format, exchange format, all-reduce algorithm and context length.
    pub settings: String,
}

/// A run of a matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`VERSION`].
    pub version: u32,
    /// Release of the console.
    pub build: String,
    /// The commit that was measured, as given by the operator.
    pub commit: Option<String>,
    /// Start time in seconds since 1970.
    pub begun: u64,
    /// The machine of the console.
    pub machine: Machine,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The configuration.
    pub configuration: Configuration,
    /// The cells measured so far.
    pub cells: Vec<Measured>,
}

/// The result of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The cell.
    pub cell: Cell,
    /// Why it was skipped.
    pub skipped: Option<ContextShort>,
    /// The results of its repeats.
    pub repeats: Vec<Summary>,
}

/// The reason to skip a cell: it needs more context than its topology has. Serialized in its displayed form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ContextShort {
    /// Context length that the cell needs, in tokens.
    pub needed: u32,
    /// Context length of the topology, in tokens.
    pub context: u32,
}

impl ContextShort {
    /// `None` if the cell fits.
    pub fn of(cell: &Cell, context: u32) -> Option<Self> {
        let needed = cell.input.saturating_add(cell.output);
        (needed > context).then_some(Self { needed, context })
    }

    /// The reason in an error message.
    pub fn reason(&self) -> String {
        format!("needs a context of {} tokens, the topology has {}", self.needed, self.context)
    }
}

impl std::fmt::Display for ContextShort {
    /// Replaces the figures in a table.
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
        let (context, needed) = numbers.ok_or_else(|| format!("{text:?} is not a valid reason to skip a cell"))?;
        Ok(Self { needed, context })
    }
}

/// A metric of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// p95 of the time to first token in ms (prefill).
    Ttft,
    /// p95 of the time per output token in ms (decode).
    Tpot,
    /// Prompt tokens per second (prefill), or output tokens per second including the time of their prompts (decode).
    Throughput,
}

impl Metric {
    /// The metrics of a phase.
    pub fn of(phase: Phase) -> [Self; 2] {
        match phase {
            Phase::Prefill => [Self::Ttft, Self::Throughput],
            Phase::Decode => [Self::Tpot, Self::Throughput],
        }
    }

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ttft => "TTFT p95",
            Self::Tpot => "TPOT p95",
            Self::Throughput => "tokens/s",
        }
    }

    /// Whether higher values are better.
    pub fn is_more_better(self) -> bool {
        self == Self::Throughput
    }

    fn read(self, phase: Phase, summary: &Summary) -> f64 {
        match (self, phase) {
            (Self::Ttft, _) => summary.ttft_ms.p95,
            (Self::Tpot, _) => summary.tpot_ms.p95,
            (Self::Throughput, Phase::Prefill) => summary.prompt_tokens_per_second,
            // Not the steady rate: it is missing in repeats in which the requests never all decoded at the same time.
            (Self::Throughput, Phase::Decode) => summary.tokens_per_second,
        }
    }
}

impl Measured {
    /// The values of a metric in the repeats in which every request was completed, without zeros.
    pub fn values(&self, metric: Metric) -> Vec<f64> {
        let whole = self.repeats.iter().filter(|summary| summary.completed == summary.requests);
        whole.map(|summary| metric.read(self.cell.phase, summary)).filter(|value| *value > 0.0).collect()
    }

    /// The median of a metric.
    pub fn median(&self, metric: Metric) -> Option<f64> {
        median(&self.values(metric))
    }

    /// The relative spread of the p95 TTFT of the repeats.
    pub fn ttft_spread(&self) -> f64 {
        spread(&self.values(Metric::Ttft))
    }

    /// Whether the spread is at least [`UNSTABLE`].
    pub fn is_unstable(&self) -> bool {
        self.ttft_spread() >= UNSTABLE
    }

    /// Number of requests without a complete answer.
    pub fn failed(&self) -> u64 {
        self.repeats.iter().map(|summary| summary.requests - summary.completed.min(summary.requests)).sum()
    }
}

impl Run {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// The text is not a run, or has another version.
    pub fn parse(text: &str) -> Result<Self, String> {
        let run: Self =
            serde_json::from_str(text).map_err(|error| format!("not a result of bramble-bench matrix: {error}"))?;
        if run.version != VERSION {
            return Err(format!("the file has format version {}, this console reads version {VERSION}", run.version));
        }
        Ok(run)
    }

    /// The result of a cell.
    pub fn of(&self, cell: &Cell) -> Option<&Measured> {
        self.cells.iter().find(|measured| measured.cell == *cell)
    }

    /// The cells with repeats that are not measured yet.
    pub fn remaining(&self) -> Vec<Cell> {
        let last = self.configuration.repeats.saturating_sub(1);
        self.configuration.plan.cells().into_iter().filter(|cell| self.is_left(cell, last)).collect()
    }

    fn is_left(&self, cell: &Cell, repeat: u32) -> bool {
        self.of(cell).is_none_or(|known| known.skipped.is_none() && known.repeats.len() <= repeat as usize)
    }

    /// The outstanding measurements in order: cells with the index of the repeat. The cells of a layout alternate, so
    /// that a temporary disturbance of the machine increases the spread of repeats instead of slowing down one cell.
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

    /// Adds a measurement of a cell and returns the combined result of that cell.
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

    /// The first property that differs from `other`, which prevents adding its cells; `None` if they are compatible.
    pub fn differs(&self, other: &Self) -> Option<&'static str> {
        let (one, two) = (&self.configuration, &other.configuration);
        let same = [
            (one.model == two.model, "the model"),
            (one.plan == two.plan, "the cells"),
            (one.repeats == two.repeats, "the repeats"),
            (one.requests == two.requests && one.warmup == two.warmup, "the requests of a cell"),
            (one.seed == two.seed, "the seed"),
            (one.door == two.door, "the destination of the requests"),
            (one.settings == two.settings, "the settings of the topology"),
            (self.nodes == other.nodes, "the nodes or their builds"),
            (self.machine == other.machine, "the machine"),
            (self.commit == other.commit && self.build == other.build, "the commit or build"),
        ];
        same.into_iter().find_map(|(is_same, what)| (!is_same).then_some(what))
    }

    /// A CSV table with one line per repeat.
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
    use crate::measurement::{cell::Experiment, stats::Percentiles};

    /// A run of tp1 and tp2 with the value of `figure` for each cell and repeat.
    pub(in crate::measurement) fn run(figure: impl Fn(&Cell, u32) -> f64) -> Run {
        run_of(vec![64], figure)
    }

    /// A repeat in which every figure follows from one time in milliseconds.
    fn summary_of(value: f64) -> Summary {
        let percentiles = Percentiles { p50: value, p95: value, p99: value };
        Summary {
            requests: 4,
            completed: 4,
            ttft_ms: percentiles,
            tpot_ms: percentiles,
            tokens_per_second: 1e3 / value,
            prompt_tokens_per_second: 1e4 / value,
            stages: Some(crate::measurement::sample::Stages {
                compute: 0.7 * value,
                wire: 0.3 * value,
                ..Default::default()
            }),
            ..Summary::default()
        }
    }

    /// The same with these prompt lengths.
    pub(in crate::measurement) fn run_of(inputs: Vec<u32>, figure: impl Fn(&Cell, u32) -> f64) -> Run {
        let plan = Plan {
            tp: vec![1, 2],
            replicas: vec![1, 2],
            replica_ranks: 1,
            layouts: Vec::new(),
            inputs,
            outputs: vec![1, 16],
            concurrencies: vec![1, 4],
        };
        let measured = plan.cells().into_iter().map(|cell| {
            let repeats = (0..3).map(|repeat| summary_of(figure(&cell, repeat)));
            Measured { repeats: repeats.collect(), cell, skipped: None }
        });
        Run {
            version: VERSION,
            build: "0.1.0".into(),
            commit: None,
            begun: 0,
            machine: Machine { host: "bench, \"1\"".into(), ..Machine::default() },
            nodes: Vec::new(),
            cells: measured.collect(),
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
    fn run_resumes_with_missing_repeats_of_equal_configuration() {
        let mut half = run(|_, _| 10.0);
        let whole = half.clone();
        half.cells.truncate(5);
        let again = Run::parse(&serde_json::to_string(&half).expect("it is data")).expect("it is a run");
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
                .is_err_and(|error| error.contains("version 2"))
        );
    }

    #[test]
    fn cell_with_spread_of_a_tenth_is_unstable() {
        let measured = run(|_, repeat| 10.0 + f64::from(repeat) * 0.6).cells.remove(0);
        assert!(measured.is_unstable(), "{}", measured.ttft_spread());
        let measured = run(|_, repeat| 10.0 + f64::from(repeat) * 0.4).cells.remove(0);
        assert!(!measured.is_unstable(), "{}", measured.ttft_spread());
    }

    #[test]
    fn every_csv_line_has_as_many_fields_as_the_head() {
        let mut run = run(|_, _| 10.0);
        run.cells[0].repeats.clear();
        run.cells[0].skipped = Some(ContextShort { needed: 8193, context: 4096 });
        let text = serde_json::to_string(&run).expect("it is data");
        assert!(text.contains(r#""skipped":"-- (context 4096; --context 8193)""#), "{text}");
        assert_eq!(Run::parse(&text), Ok(run.clone()));
        let csv = run.csv();
        // The host name has a comma and quotes.
        let fields = |line: &str| line.replace("\"bench, \"\"1\"\"\"", "bench").matches(',').count();
        let mut lines = csv.lines();
        let count = fields(lines.next().expect("a head"));
        assert_eq!(csv.lines().count(), 1 + 1 + 3 * (run.cells.len() - 1));
        lines.for_each(|line| assert_eq!(fields(line), count, "{line}"));
        assert_eq!(run.cells[2].cell.experiment, Experiment::Tp);
    }
}
