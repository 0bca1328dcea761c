//! What a console asks a node to measure, with its bounds, and the command line of brambled that does it. Pure.
use std::{ffi::OsString, path::Path};

use serde::{Deserialize, Serialize};

use super::network::BenchNetwork;
use crate::{schedule::Algorithm, topology::KvFormat};

/// Longest file name of a model in bytes.
pub const BENCH_MODEL_BYTES_MAX: usize = 1024;
/// Most compute threads.
pub const BENCH_THREADS_MAX: u16 = 256;
/// Most entries of a list.
pub const BENCH_LIST_MAX: usize = 32;
/// Longest prompt and longest context in tokens.
pub const BENCH_POSITIONS_MAX: u32 = 1 << 20;
/// Most tokens that are decoded at each context.
pub const BENCH_TOKENS_MAX: u32 = 4096;
/// Most repeats.
pub const BENCH_REPEATS_MAX: u32 = 99;
/// Least memory that is read for the bandwidth, in MiB.
pub const BENCH_READ_MIB_MIN: u32 = 1;
/// Most memory that is read for the bandwidth, in MiB.
pub const BENCH_READ_MIB_MAX: u32 = 1 << 14;
/// Longest name of a format or a kernel table in bytes.
pub const BENCH_NAME_BYTES_MAX: usize = 32;
/// Most tokens of a matrix product.
pub const BENCH_PRODUCT_TOKENS_MAX: u32 = 512;
/// Most rows of a matrix.
pub const BENCH_ROWS_MAX: u32 = 1 << 18;
/// Least columns of a matrix: a super-block.
pub const BENCH_COLUMNS_MIN: u32 = 256;
/// Most columns of a matrix.
pub const BENCH_COLUMNS_MAX: u32 = 1 << 16;
/// A bench ends after this, done or not.
pub const BENCH_SECONDS_MAX: u32 = 3600;
/// Least and most ranks of a bench of all-reduces on one machine.
pub const BENCH_RANKS: std::ops::RangeInclusive<i64> = 2..=64;
/// Most all-reduces of each kind.
pub const BENCH_REDUCES_MAX: u32 = 100_000;
/// All-reduces of each kind where nothing is said.
pub const REDUCES_DEFAULT: u32 = 200;
/// Most values of one tensor.
pub const BENCH_VALUES_MAX: usize = 1 << 24;
/// Most tokens of an all-reduce on the links of a topology: those of a step.
pub const LINK_TOKENS_MAX: u32 = 128;
/// Tokens where none are given: one sequence, a small batch, the longest chunk of a prompt.
pub const LINK_TOKENS_DEFAULT: [u32; 3] = [1, 16, 128];
/// Most sizes that are timed on links.
pub const LINK_SIZES_MAX: usize = 8;
/// Most all-reduces of each kind on links.
pub const LINK_REDUCES_MAX: u32 = 1000;
/// No all-reduce on links begins after so many seconds.
pub const LINK_SECONDS_MAX: u32 = 10;
/// Most bytes that a bench prints.
pub const BENCH_OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Lengths of prompts where none are given.
pub const PREFILL_DEFAULT: [u32; 3] = [32, 128, 512];
/// Contexts where none are given.
pub const CONTEXT_DEFAULT: [u32; 3] = [0, 1000, 5000];
/// Tokens of matrix products where none are given.
pub const PRODUCT_TOKENS_DEFAULT: [u32; 4] = [1, 4, 8, 128];
/// Rows and columns of a matrix where none are given.
pub const MATRIX_DEFAULT: u32 = 4096;

/// What is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Bench {
    /// A whole model on one machine.
    Node(BenchNode),
    /// Matrix products.
    Kernels(BenchKernels),
    /// Links to other nodes, measured by the daemon itself; allowed with a topology loaded while no request runs. Since wire version 5.
    Network(BenchNetwork),
}

/// A whole model: load, prefill, decode, memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchNode {
    /// File name below the node's model folders.
    pub model: String,
    /// Compute threads; none: all allowed cores.
    pub threads: Option<u16>,
    /// Lengths of prompts; empty: [`PREFILL_DEFAULT`], as far as the model's context goes.
    pub prefill: Vec<u32>,
    /// Contexts to decode at; empty: [`CONTEXT_DEFAULT`], as far as the model's context goes.
    pub context: Vec<u32>,
    /// Tokens to decode at each context.
    pub tokens: u32,
    /// Repeats; the median counts.
    pub repeats: u32,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Memory that is read for the bandwidth in MiB; none: a quarter of what is free, at most 1024.
    pub read_mib: Option<u32>,
}

/// Products of matrices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchKernels {
    /// File name below the node's model folders; none: made-up matrices.
    pub model: Option<String>,
    /// Compute threads.
    pub threads: u16,
    /// Formats; empty: all, or those of the model.
    pub formats: Vec<String>,
    /// Kernel tables; empty: the one that is used; `all`: every one that the machine can run.
    pub tables: Vec<String>,
    /// Tokens of a product; empty: [`PRODUCT_TOKENS_DEFAULT`].
    pub tokens: Vec<u32>,
    /// Rows of a matrix.
    pub rows: u32,
    /// Columns of a matrix.
    pub columns: u32,
    /// Repeats; the median counts.
    pub repeats: u32,
}

/// All-reduces of the head's stage on the links of the running topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchLinks {
    /// Tokens of the tensors, whose columns are those of the model.
    pub tokens: Vec<u32>,
    /// How they are summed.
    pub algorithms: Vec<Algorithm>,
    /// All-reduces of each kind; fewer where time is short.
    pub repeats: u32,
}

impl BenchLinks {
    /// Checks every bound.
    ///
    /// # Errors
    /// What is out of bounds, and what the bounds are.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=LINK_SIZES_MAX).contains(&self.tokens.len()) {
            return Err(format!("sizes: {} are given; give 1 to {LINK_SIZES_MAX}", self.tokens.len()));
        }
        list("sizes", &self.tokens, 1, LINK_TOKENS_MAX)?;
        if !are_distinct(&self.algorithms) {
            return Err("algorithms: name at least one, and each once".into());
        }
        within("repeats", Some(self.repeats), 1, LINK_REDUCES_MAX)
    }
}

/// Whether there is at least one and none comes twice.
pub fn are_distinct(algorithms: &[Algorithm]) -> bool {
    let is_new = |(index, one): (usize, &Algorithm)| !algorithms[..index].contains(one);
    !algorithms.is_empty() && algorithms.len() <= Algorithm::ALL.len() && algorithms.iter().enumerate().all(is_new)
}

impl Bench {
    /// The model that it needs.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Node(node) => Some(&node.model),
            Self::Kernels(kernels) => kernels.model.as_deref(),
            Self::Network(_) => None,
        }
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// What is out of bounds, and what the bounds are.
    pub fn check(&self) -> Result<(), String> {
        if self.model().is_some_and(|model| model.is_empty() || model.len() > BENCH_MODEL_BYTES_MAX) {
            return Err(format!("a model is named by 1 to {BENCH_MODEL_BYTES_MAX} bytes"));
        }
        match self {
            Self::Node(node) => node.check(),
            Self::Kernels(kernels) => kernels.check(),
            Self::Network(network) => network.check(),
        }
    }

    /// The command line of brambled that does it and prints JSON; `model` is the file on that machine. The program ends
    /// when its standard input closes. `None`: the daemon does it, no process.
    pub fn arguments(&self, model: Option<&Path>) -> Option<Vec<OsString>> {
        let (what, pairs) = match self {
            Self::Node(node) => ("node", node.options()),
            Self::Kernels(kernels) => ("kernels", kernels.options()),
            Self::Network(_) => return None,
        };
        let mut list: Vec<OsString> = vec!["--exit-with-parent".into(), "bench".into(), what.into()];
        list.extend(["--json".into(), "--progress".into()]);
        if let Some(path) = model {
            // One word, so that a name with a dash in front is none of an option.
            let mut option = OsString::from("--model=");
            option.push(path);
            list.push(option);
        }
        let given = pairs.into_iter().filter(|(_, value)| !value.is_empty());
        list.extend(given.map(|(name, value)| format!("--{name}={value}").into()));
        Some(list)
    }
}

impl BenchNode {
    fn check(&self) -> Result<(), String> {
        within("threads", self.threads.map(u32::from), 1, u32::from(BENCH_THREADS_MAX))?;
        list("prefill", &self.prefill, 1, BENCH_POSITIONS_MAX)?;
        list("context", &self.context, 0, BENCH_POSITIONS_MAX)?;
        within("tokens", Some(self.tokens), 1, BENCH_TOKENS_MAX)?;
        within("repeats", Some(self.repeats), 1, BENCH_REPEATS_MAX)?;
        within("read-mib", self.read_mib, BENCH_READ_MIB_MIN, BENCH_READ_MIB_MAX)
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let number = |value: Option<u32>| value.map_or(String::new(), |value| value.to_string());
        vec![
            ("threads", number(self.threads.map(u32::from))),
            ("prefill", joined(&self.prefill)),
            ("context", joined(&self.context)),
            ("tokens", self.tokens.to_string()),
            ("repeats", self.repeats.to_string()),
            ("kv", self.kv.to_string()),
            ("read-mib", number(self.read_mib)),
        ]
    }
}

impl BenchKernels {
    fn check(&self) -> Result<(), String> {
        within("threads", Some(u32::from(self.threads)), 1, u32::from(BENCH_THREADS_MAX))?;
        names("formats", &self.formats)?;
        names("tables", &self.tables)?;
        list("tokens", &self.tokens, 1, BENCH_PRODUCT_TOKENS_MAX)?;
        within("rows", Some(self.rows), 1, BENCH_ROWS_MAX)?;
        within("columns", Some(self.columns), BENCH_COLUMNS_MIN, BENCH_COLUMNS_MAX)?;
        within("repeats", Some(self.repeats), 1, BENCH_REPEATS_MAX)
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        vec![
            ("threads", self.threads.to_string()),
            ("formats", self.formats.join(",")),
            ("tables", self.tables.join(",")),
            ("tokens", joined(&self.tokens)),
            ("rows", self.rows.to_string()),
            ("columns", self.columns.to_string()),
            ("repeats", self.repeats.to_string()),
        ]
    }
}

fn joined(list: &[u32]) -> String {
    list.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn within(what: &str, value: Option<u32>, least: u32, most: u32) -> Result<(), String> {
    match value.filter(|value| !(least..=most).contains(value)) {
        Some(value) => Err(format!("{what} is {value}; give {least} to {most}")),
        None => Ok(()),
    }
}

fn list(what: &str, values: &[u32], least: u32, most: u32) -> Result<(), String> {
    if values.len() > BENCH_LIST_MAX {
        return Err(format!("{what} has {} entries; give at most {BENCH_LIST_MAX}", values.len()));
    }
    values.iter().try_for_each(|value| within(what, Some(*value), least, most))
}

/// Names go on a command line: nothing but what names of formats and tables are made of.
fn names(what: &str, names: &[String]) -> Result<(), String> {
    let is_name = |name: &String| {
        let fits = (1..=BENCH_NAME_BYTES_MAX).contains(&name.len());
        fits && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    if names.len() > BENCH_LIST_MAX || !names.iter().all(is_name) {
        return Err(format!("{what} are at most {BENCH_LIST_MAX} names of letters, digits, _ and -"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> BenchNode {
        BenchNode {
            model: "m.gguf".into(),
            threads: Some(2),
            prefill: vec![32, 64],
            context: Vec::new(),
            tokens: 16,
            repeats: 3,
            kv: KvFormat::F16,
            read_mib: None,
        }
    }

    fn kernels() -> BenchKernels {
        BenchKernels {
            model: None,
            threads: 1,
            formats: vec!["Q4_0".into()],
            tables: vec!["neon-dotprod".into()],
            tokens: vec![1],
            rows: 16,
            columns: 256,
            repeats: 1,
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_by_name() {
        let refused = |change: fn(&mut BenchNode), named: &str| {
            let mut bench = node();
            change(&mut bench);
            let error = Bench::Node(bench).check().expect_err(named);
            assert!(error.contains(named), "{error}");
        };
        assert_eq!(Bench::Node(node()).check(), Ok(()));
        refused(|bench| bench.model.clear(), "model");
        refused(|bench| bench.model = "x".repeat(BENCH_MODEL_BYTES_MAX + 1), "model");
        refused(|bench| bench.threads = Some(BENCH_THREADS_MAX + 1), "threads");
        refused(|bench| bench.prefill = vec![0], "prefill");
        refused(|bench| bench.prefill = vec![1; BENCH_LIST_MAX + 1], "prefill");
        refused(|bench| bench.context = vec![BENCH_POSITIONS_MAX + 1], "context");
        refused(|bench| bench.tokens = BENCH_TOKENS_MAX + 1, "tokens");
        refused(|bench| bench.repeats = 0, "repeats");
        refused(|bench| bench.read_mib = Some(BENCH_READ_MIB_MAX + 1), "read-mib");
        let refused = |change: fn(&mut BenchKernels), named: &str| {
            let mut bench = kernels();
            change(&mut bench);
            let error = Bench::Kernels(bench).check().expect_err(named);
            assert!(error.contains(named), "{error}");
        };
        assert_eq!(Bench::Kernels(kernels()).check(), Ok(()));
        refused(|bench| bench.formats = vec!["Q4_0 --json".into()], "formats");
        refused(|bench| bench.tables = vec!["x".repeat(BENCH_NAME_BYTES_MAX + 1)], "tables");
        refused(|bench| bench.tokens = vec![BENCH_PRODUCT_TOKENS_MAX + 1], "tokens");
        refused(|bench| bench.rows = 0, "rows");
        refused(|bench| bench.columns = BENCH_COLUMNS_MIN - 1, "columns");
    }

    #[test]
    fn a_bench_of_links_is_bounded() {
        let good = BenchLinks { tokens: vec![1, 128], algorithms: Algorithm::ALL.to_vec(), repeats: 200 };
        assert_eq!(good.check(), Ok(()));
        for (named, change) in [
            ("sizes", (|bench| bench.tokens.clear()) as fn(&mut BenchLinks)),
            ("sizes", |bench| bench.tokens = vec![1; LINK_SIZES_MAX + 1]),
            ("sizes", |bench| bench.tokens = vec![LINK_TOKENS_MAX + 1]),
            ("sizes", |bench| bench.tokens = vec![0]),
            ("algorithms", |bench| bench.algorithms.clear()),
            ("algorithms", |bench| bench.algorithms = vec![Algorithm::Ring; 2]),
            ("repeats", |bench| bench.repeats = LINK_REDUCES_MAX + 1),
            ("repeats", |bench| bench.repeats = 0),
        ] {
            let mut bench = good.clone();
            change(&mut bench);
            let error = bench.check().expect_err(named);
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn the_command_line_holds_what_was_asked_for_and_leaves_defaults_to_brambled() {
        let arguments = Bench::Node(node()).arguments(Some(Path::new("/models/-m.gguf"))).expect("a process");
        let wanted = "--exit-with-parent bench node --json --progress --model=/models/-m.gguf --threads=2 \
            --prefill=32,64 --tokens=16 --repeats=3 --kv=f16";
        assert_eq!(arguments, wanted.split_whitespace().collect::<Vec<_>>());
        let arguments = Bench::Kernels(kernels()).arguments(None).expect("a process");
        let wanted = "--exit-with-parent bench kernels --json --progress --threads=1 --formats=Q4_0 \
            --tables=neon-dotprod --tokens=1 --rows=16 --columns=256 --repeats=1";
        assert_eq!(arguments, wanted.split_whitespace().collect::<Vec<_>>());
    }
}
