//! Matrix products of every format and kernel table: multiply-adds and bytes of weights per second, compared with the
//! peak of multiply-adds on registers.
use std::{path::Path, time::Instant};

use anyhow::{Context, bail, ensure};
use gguf::{BlockFormat, GgufFile};
use kernels::{
    Activations, Compute, Kernels, MatrixPanels, Pool, PoolOptions, Wanted, matmul, pack_panel, packed_bytes,
};
use telemetry::bench::{KernelBench, Product, Table};

use super::{KernelArguments, median, progress::Reporter};
use crate::health::machine::allowed_cores;

/// Maximum number of weights of a made-up matrix.
const WEIGHTS_MAX: usize = 1 << 28;

/// Rows in the file layout of a format.
struct Weights {
    format: BlockFormat,
    rows: usize,
    columns: usize,
    bytes: Vec<u8>,
}

pub(super) fn run(arguments: &KernelArguments, chosen: &'static Kernels) -> anyhow::Result<KernelBench> {
    let weights = match &arguments.model {
        Some(path) => of_file(path, arguments)?,
        None => made_up(arguments)?,
    };
    let tables = match arguments.tables.as_slice() {
        [] => vec![chosen],
        [all] if all == "all" => Kernels::available(),
        names => names.iter().map(|name| Kernels::choose(Some(name))).collect::<Result<_, _>>()?,
    };
    let mut reporter = Reporter::new(tables.len() * weights.len(), arguments.progress);
    let tables = tables.into_iter().map(|kernels| {
        let cores = allowed_cores().into_iter().map(usize::from).collect::<Vec<_>>();
        let threads = usize::from(arguments.threads);
        let pool = Pool::new(PoolOptions { threads, spin: threads <= cores.len(), cores })?;
        pool.pin_caller();
        let compute = Compute::new(kernels, pool);
        let mut measured = Vec::new();
        for weights in &weights {
            reporter.begin(format_args!("{} of {}", weights.format.name(), kernels.name));
            measured.extend(products(&compute, weights, arguments));
        }
        Ok(Table { kernels: kernels.name.into(), peak_gmacs: peak(kernels), products: measured })
    });
    Ok(KernelBench { threads: arguments.threads, tables: tables.collect::<anyhow::Result<_>>()? })
}

/// The requested formats, or all.
fn formats(arguments: &KernelArguments) -> anyhow::Result<Vec<BlockFormat>> {
    if arguments.formats.is_empty() {
        return Ok(BlockFormat::ALL.to_vec());
    }
    arguments.formats.iter().map(|name| format_of(name)).collect()
}

fn format_of(name: &str) -> anyhow::Result<BlockFormat> {
    let found = BlockFormat::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name));
    found.with_context(|| {
        let known = BlockFormat::ALL.map(BlockFormat::name);
        format!("{name:?} is not a format; choose from {}", known.join(", "))
    })
}

fn made_up(arguments: &KernelArguments) -> anyhow::Result<Vec<Weights>> {
    let (rows, columns) = (arguments.rows as usize, arguments.columns as usize);
    ensure!(columns.is_multiple_of(256), "--columns {columns} is not a multiple of 256, the size of a super-block");
    ensure!(
        rows * columns <= WEIGHTS_MAX,
        "{rows} x {columns} are more than {WEIGHTS_MAX} weights; reduce --rows or --columns"
    );
    let weights = formats(arguments)?.into_iter().map(|format| {
        let row_bytes = format.row_bytes(columns).expect("columns are whole super-blocks");
        // Any bytes are valid weights; as f16 scales, this pattern gives small numbers.
        let bytes = (0..rows * row_bytes).map(|at| (at % 47) as u8).collect();
        Weights { format, rows, columns, bytes }
    });
    Ok(weights.collect())
}

/// The largest matrix of each format, with at most the requested number of rows.
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
        bail!("{} has no matrix of the requested formats", path.display());
    }
    Ok(found)
}

fn products(compute: &Compute, weights: &Weights, arguments: &KernelArguments) -> Vec<Product> {
    let (format, height) = (weights.format, compute.kernels.panel_rows);
    let row_bytes = weights.bytes.len() / weights.rows;
    let mut bytes = vec![0; packed_bytes(weights.rows, row_bytes, height)];
    for (panel, out) in bytes.chunks_exact_mut(row_bytes * height).enumerate() {
        let blocks = 0..row_bytes / format.block_bytes();
        let rows = weights.bytes.chunks_exact(row_bytes);
        pack_panel(format, height, blocks, |lane| rows.clone().nth(panel * height + lane), out);
    }
    let matrix = MatrixPanels { format, bytes: &bytes, rows: weights.rows, columns: weights.columns };
    let mut activations = Activations::default();
    let wanted = Wanted { skip: 0, quantised: format.is_quantised(), floats: !format.is_quantised() };
    let products = arguments.tokens.iter().map(|tokens| {
        let count = *tokens as usize;
        let x: Vec<f32> = (0..count * weights.columns).map(|at| (at as f32 * 0.37).sin()).collect();
        activations.load(compute, &x, weights.columns, wanted);
        let mut out = vec![0.0; count * weights.rows];
        let times = (0..arguments.repeats).map(|_| {
            let begin = Instant::now();
            matmul(compute, matrix, &activations, &mut out);
            begin.elapsed().as_secs_f64()
        });
        let seconds = median(times.collect());
        Product {
            format: format.name().into(),
            rows: weights.rows as u64,
            columns: weights.columns as u64,
            tokens: *tokens,
            microseconds: seconds * 1e6,
            gmacs: (count * weights.rows * weights.columns) as f64 / seconds / 1e9,
            gigabytes: weights.bytes.len() as f64 / seconds / 1e9,
        }
    });
    products.collect()
}

/// Peak rate of multiply-adds on registers.
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
