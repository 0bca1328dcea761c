//! Benchmarks that a console can request from a node, with their bounds, and the brambled command line that runs them.
//! Pure.
use std::{ffi::OsString, path::Path};

use collectives::Algorithm;
use common::precision::KvFormat;
use serde::{Deserialize, Serialize};

use super::network::BenchNetwork;

/// Longest file name of a model in bytes.
pub const BENCH_MODEL_BYTES_MAX: usize = 1024;
/// Most compute threads.
pub const BENCH_THREADS_MAX: u16 = 256;
/// Most entries of a list.
pub const BENCH_LIST_MAX: usize = 32;
/// Longest prompt and longest context in tokens.
pub const BENCH_POSITIONS_MAX: u32 = 1 << 20;
/// Most tokens that are decoded at each context length.
pub const BENCH_TOKENS_MAX: u32 = 4096;
/// Most repeats.
pub const BENCH_REPEATS_MAX: u32 = 99;
/// Least memory read to measure the bandwidth, in MiB.
pub const BENCH_READ_MIB_MIN: u32 = 1;
/// Most memory read to measure the bandwidth, in MiB.
pub const BENCH_READ_MIB_MAX: u32 = 1 << 14;
/// Longest name of a format or a kernel table in bytes.
pub const BENCH_NAME_BYTES_MAX: usize = 32;
/// Most tokens in a matrix product.
pub const BENCH_PRODUCT_TOKENS_MAX: u32 = 512;
/// Most rows of a matrix.
pub const BENCH_ROWS_MAX: u32 = 1 << 18;
/// Least columns of a matrix: one super-block.
pub const BENCH_COLUMNS_MIN: u32 = 256;
/// Most columns of a matrix.
pub const BENCH_COLUMNS_MAX: u32 = 1 << 16;
/// A benchmark ends after this time, even if it is incomplete.
pub const BENCH_SECONDS_MAX: u32 = 3600;
/// Allowed numbers of ranks in a benchmark of all-reduces on one machine.
pub const BENCH_RANKS: std::ops::RangeInclusive<i64> = 2..=64;
/// Most all-reduces of each kind.
pub const BENCH_REDUCES_MAX: u32 = 100_000;
/// Default number of all-reduces of each kind.
pub const REDUCES_DEFAULT: u32 = 200;
/// Most values of one tensor.
pub const BENCH_VALUES_MAX: usize = 1 << 24;
/// Most tokens in an all-reduce on the links of a topology: the tokens of a step.
pub const LINK_TOKENS_MAX: u32 = 128;
/// Default token counts: one sequence, a small batch, the largest prompt chunk.
pub const LINK_TOKENS_DEFAULT: [u32; 3] = [1, 16, 128];
/// Most tensor sizes that are timed on links.
pub const LINK_SIZES_MAX: usize = 8;
/// Most all-reduces of each kind on links.
pub const LINK_REDUCES_MAX: u32 = 1000;
/// No all-reduce on links starts after this many seconds.
pub const LINK_SECONDS_MAX: u32 = 10;
/// Most bytes that a benchmark prints.
pub const BENCH_OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Default prompt lengths.
pub const PREFILL_DEFAULT: [u32; 3] = [32, 128, 512];
/// Default context lengths.
pub const CONTEXT_DEFAULT: [u32; 3] = [0, 1000, 5000];
/// Default token counts of matrix products.
pub const PRODUCT_TOKENS_DEFAULT: [u32; 4] = [1, 4, 8, 128];
/// Default rows and columns of a matrix.
pub const MATRIX_DEFAULT: u32 = 4096;

/// The benchmark to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Bench {
    /// A whole model on one machine.
    Node(BenchNode),
    /// Matrix products.
    Kernels(BenchKernels),
    /// Links to other nodes, measured by the daemon itself; allowed with a topology loaded while no request is running.
    /// Since wire version 5.
    Network(BenchNetwork),
}

/// A whole model: load, prefill, decode, memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchNode {
    /// File name below the node's model folders.
    pub model: String,
    /// Compute threads; `None` uses all allowed cores.
    pub threads: Option<u16>,
    /// Prompt lengths; empty means [`PREFILL_DEFAULT`], as far as the model's context allows.
    pub prefill: Vec<u32>,
    /// Context lengths at which to decode; empty means [`CONTEXT_DEFAULT`], as far as the model's context allows.
    pub context: Vec<u32>,
    /// Tokens to decode at each context.
    pub tokens: u32,
    /// Repeats, of which the median is reported.
    pub repeats: u32,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Memory read to measure the bandwidth, in MiB; `None` means a quarter of the free memory, at most 1024.
    pub read_mib: Option<u32>,
}

/// Matrix products.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchKernels {
    /// File name below the node's model folders; `None` uses synthetic matrices.
    pub model: Option<String>,
    /// Compute threads.
    pub threads: u16,
    /// Formats; empty means all, or those of the model.
    pub formats: Vec<String>,
    /// Kernel tables; empty means the default table, `all` means every table that the machine supports.
    pub tables: Vec<String>,
    /// Tokens of a product; empty means [`PRODUCT_TOKENS_DEFAULT`].
    pub tokens: Vec<u32>,
    /// Rows of a matrix.
    pub rows: u32,
    /// Columns of a matrix.
    pub columns: u32,
    /// Repeats, of which the median is reported.
    pub repeats: u32,
}

/// All-reduces of the head's stage on the links of the running topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchLinks {
    /// Token counts of the tensors; their columns are those of the model.
    pub tokens: Vec<u32>,
    /// The all-reduce algorithms to time.
    pub algorithms: Vec<Algorithm>,
    /// All-reduces of each kind; fewer if time runs out.
    pub repeats: u32,
}

impl BenchLinks {
    /// Checks all bounds.
    ///
    /// # Errors
    /// Names the value out of bounds, and the bounds.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=LINK_SIZES_MAX).contains(&self.tokens.len()) {
            return Err(format!("sizes: {} given; give 1 to {LINK_SIZES_MAX}", self.tokens.len()));
        }
        list("sizes", &self.tokens, 1, LINK_TOKENS_MAX)?;
        if !are_distinct(&self.algorithms) {
            return Err("algorithms: give at least one, each only once".into());
        }
        within("repeats", Some(self.repeats), 1, LINK_REDUCES_MAX)
    }
}

/// Whether the list is not empty and has no duplicates.
pub fn are_distinct(algorithms: &[Algorithm]) -> bool {
    !algorithms.is_empty()
        && algorithms.len() <= Algorithm::ALL.len()
        && algorithms.iter().enumerate().all(|(index, one)| !algorithms[..index].contains(one))
}

impl Bench {
    /// The model that the benchmark needs.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Node(node) => Some(&node.model),
            Self::Kernels(kernels) => kernels.model.as_deref(),
            Self::Network(_) => None,
        }
    }

    /// Checks all bounds.
    ///
    /// # Errors
    /// Names the value out of bounds, and the bounds.
    pub fn check(&self) -> Result<(), String> {
        if self.model().is_some_and(|model| model.is_empty() || model.len() > BENCH_MODEL_BYTES_MAX) {
            return Err(format!("the name of a model must have 1 to {BENCH_MODEL_BYTES_MAX} bytes"));
        }
        match self {
            Self::Node(node) => node.check(),
            Self::Kernels(kernels) => kernels.check(),
            Self::Network(network) => network.check(),
        }
    }

    /// The brambled command line that runs the benchmark and prints JSON; `model` is the path of the file on that
    /// machine. The program ends when its standard input closes. `None`: the daemon runs it without a process.
    pub fn arguments(&self, model: Option<&Path>) -> Option<Vec<OsString>> {
        let (what, pairs) = match self {
            Self::Node(node) => ("node", node.options()),
            Self::Kernels(kernels) => ("kernels", kernels.options()),
            Self::Network(_) => return None,
        };
        let mut list: Vec<OsString> = vec!["--exit-with-parent".into(), "bench".into(), what.into()];
        list.extend(["--json".into(), "--progress".into()]);
        if let Some(path) = model {
            // A single argument, so that a name with a leading dash is not parsed as an option.
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

/// Names become part of a command line: allow only the characters of format and table names.
fn names(what: &str, names: &[String]) -> Result<(), String> {
    if names.len() > BENCH_LIST_MAX
        || !names.iter().all(|name| {
            let fits = (1..=BENCH_NAME_BYTES_MAX).contains(&name.len());
            fits && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
        })
    {
        return Err(format!("{what} must be at most {BENCH_LIST_MAX} names made of letters, digits, _ and -"));
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
    fn command_line_contains_only_the_given_options() {
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
