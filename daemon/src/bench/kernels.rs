//! Matrix products of every format and kernel table: multiply-adds and bytes of weights a second, beside the most that
//! registers alone can do.
use std::{path::Path, time::Instant};

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use shared::gguf::{BlockFormat, GgufFile};

use super::{KernelArguments, median};
use crate::{
    health::machine::allowed_cores,
    kernels::{
        Activations, Compute, Kernels, MatrixPanels, Pool, PoolOptions, Wanted, matmul, pack_panel, packed_bytes,
    },
};

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Found {
    threads: u16,
    tables: Vec<Table>,
}

#[derive(Clone, Debug, Serialize)]
struct Table {
    kernels: String,
    /// Multiply-adds a second of registers alone, with one thread, in thousands of millions; none where no instruction
    /// multiplies and adds.
    peak_gmacs: Option<f64>,
    products: Vec<Product>,
}

#[derive(Clone, Debug, Serialize)]
struct Product {
    format: String,
    rows: usize,
    columns: usize,
    tokens: u32,
    microseconds: f64,
    /// Thousands of millions of multiply-adds a second.
    gmacs: f64,
    /// Bytes of weights a second, in thousands of millions: once for all tokens.
    gigabytes: f64,
}

/// Most weights of a made-up matrix.
const WEIGHTS_MAX: usize = 1 << 28;

/// Rows of a format as a file has them.
struct Weights {
    format: BlockFormat,
    rows: usize,
    columns: usize,
    bytes: Vec<u8>,
}

pub(super) fn run(arguments: &KernelArguments, chosen: &'static Kernels) -> anyhow::Result<Found> {
    let weights = match &arguments.model {
        Some(path) => of_file(path, arguments)?,
        None => made_up(arguments)?,
    };
    let tables = match arguments.tables.as_slice() {
        [] => vec![chosen],
        [all] if all == "all" => Kernels::available(),
        names => names.iter().map(|name| Kernels::choose(Some(name))).collect::<Result<_, _>>()?,
    };
    let measure = |kernels: &'static Kernels| {
        let cores = allowed_cores().into_iter().map(usize::from).collect::<Vec<_>>();
        let threads = usize::from(arguments.threads);
        let pool = Pool::new(PoolOptions { threads, spin: threads <= cores.len(), cores });
        pool.pin_caller();
        let compute = Compute { kernels, pool };
        let products = weights.iter().flat_map(|weights| products(&compute, weights, arguments)).collect();
        Table { kernels: kernels.name.into(), peak_gmacs: peak(kernels), products }
    };
    Ok(Found { threads: arguments.threads, tables: tables.into_iter().map(measure).collect() })
}

/// Formats that were asked for, or all.
fn formats(arguments: &KernelArguments) -> anyhow::Result<Vec<BlockFormat>> {
    let of_name = |name: &String| {
        let found = BlockFormat::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name));
        let known = || BlockFormat::ALL.map(BlockFormat::name).join(", ");
        found.with_context(|| format!("{name:?} is no format; take of {}", known()))
    };
    if arguments.formats.is_empty() {
        return Ok(BlockFormat::ALL.to_vec());
    }
    arguments.formats.iter().map(of_name).collect()
}

fn made_up(arguments: &KernelArguments) -> anyhow::Result<Vec<Weights>> {
    let (rows, columns) = (arguments.rows as usize, arguments.columns as usize);
    ensure!(columns.is_multiple_of(256), "--columns {columns} is no multiple of 256, a super-block");
    ensure!(
        rows * columns <= WEIGHTS_MAX,
        "{rows} x {columns} are more than {WEIGHTS_MAX} weights; give fewer --rows or --columns"
    );
    let of_format = |format: BlockFormat| {
        let row_bytes = format.row_bytes(columns).expect("columns are whole super-blocks");
        // Any bytes are weights; halves of this pattern are small numbers.
        let bytes = (0..rows * row_bytes).map(|at| (at % 47) as u8).collect();
        Weights { format, rows, columns, bytes }
    };
    Ok(formats(arguments)?.into_iter().map(of_format).collect())
}

/// The largest matrix of each format, up to so many rows.
fn of_file(path: &Path, arguments: &KernelArguments) -> anyhow::Result<Vec<Weights>> {
    let file = GgufFile::open(path).with_context(|| format!("cannot use {}", path.display()))?;
    let mut found = Vec::new();
    for format in formats(arguments)? {
        let of_format = file.tensors().filter(|tensor| tensor.format == format && tensor.rows() > 1);
        let Some(tensor) = of_format.max_by_key(|tensor| tensor.byte_length) else { continue };
        let rows = tensor.rows().min(arguments.rows as usize);
        let mut bytes = vec![0; rows * tensor.row_bytes()];
        file.read(tensor.split, tensor.offset, &mut bytes)?;
        found.push(Weights { format, rows, columns: tensor.columns(), bytes });
    }
    if found.is_empty() {
        bail!("{} has no matrix of these formats", path.display());
    }
    Ok(found)
}

fn products(compute: &Compute, weights: &Weights, arguments: &KernelArguments) -> Vec<Product> {
    let (format, height) = (weights.format, compute.kernels.panel_rows);
    let row_bytes = weights.bytes.len() / weights.rows;
    let mut bytes = vec![0; packed_bytes(weights.rows, row_bytes, height)];
    for (panel, out) in bytes.chunks_exact_mut(row_bytes * height).enumerate() {
        let row = |lane: usize| weights.bytes.get((panel * height + lane) * row_bytes..)?.get(..row_bytes);
        pack_panel(format, height, 0..row_bytes / format.block_bytes(), row, out);
    }
    let matrix = MatrixPanels { format, bytes: &bytes, rows: weights.rows, columns: weights.columns };
    let mut activations = Activations::default();
    let wanted = Wanted { skip: 0, quantised: format.is_quantised(), floats: !format.is_quantised() };
    let of_tokens = |tokens: &u32| {
        let count = *tokens as usize;
        let x: Vec<f32> = (0..count * weights.columns).map(|at| (at as f32 * 0.37).sin()).collect();
        activations.load(compute, &x, weights.columns, wanted);
        let mut out = vec![0.0; count * weights.rows];
        let mut product = || {
            let begin = Instant::now();
            matmul(compute, matrix, &activations, &mut out);
            begin.elapsed().as_secs_f64()
        };
        let seconds = median((0..arguments.repeats).map(|_| product()).collect());
        Product {
            format: format.name().into(),
            rows: weights.rows,
            columns: weights.columns,
            tokens: *tokens,
            microseconds: seconds * 1e6,
            gmacs: (count * weights.rows * weights.columns) as f64 / seconds / 1e9,
            gigabytes: weights.bytes.len() as f64 / seconds / 1e9,
        }
    };
    arguments.tokens.iter().map(of_tokens).collect()
}

/// Products of registers alone.
fn peak(kernels: &Kernels) -> Option<f64> {
    const ROUNDS: usize = 200_000;
    let rate = || {
        let begin = Instant::now();
        let (products, sum) = (kernels.peak)(std::hint::black_box(ROUNDS));
        std::hint::black_box(sum);
        (ROUNDS * products) as f64 / begin.elapsed().as_secs_f64() / 1e9
    };
    let rate = median((0..5).map(|_| rate()).collect());
    (rate > 0.0).then_some(rate)
}

/// The lines of the table.
pub(super) fn table(found: &Found) -> Vec<String> {
    let mut lines = Vec::new();
    for table in &found.tables {
        let (name, threads) = (&table.kernels, found.threads);
        let peak =
            table.peak_gmacs.map_or(String::new(), |peak| format!("; registers alone {peak:.0} GMAC/s a thread"));
        lines.push(format!("{name}, {threads} threads{peak}"));
        lines.push("format    rows x columns  tokens          us    GMAC/s  of peak      GB/s".into());
        for one in &table.products {
            let Product { format, rows, columns, tokens, microseconds, gmacs, gigabytes } = one;
            let share = |peak: f64| format!("{:.0} %", gmacs / (peak * f64::from(threads)) * 100.0);
            let share = table.peak_gmacs.map_or("-".into(), share);
            lines.push(format!(
                "{format:<7} {rows:>7} x {columns:<6} {tokens:>6} {microseconds:>11.1} {gmacs:>9.1} {share:>8} {gigabytes:>9.1}"
            ));
        }
    }
    lines
}
