//! Runs one kernel between calls of `trace_begin` and `trace_end`, for `bench/scripts/kernels/cycles.py`. Arguments:
//! `FORMAT TOKENS COLUMNS`. FORMAT is a weight format (8 rows), `f16-HEADS-LENGTH` (attention over COLUMNS positions),
//! `clamped_swiglu` or `gelu_multiply` (of COLUMNS values).
#![expect(unsafe_code, reason = "functions with unmangled names mark the traced part")]
use gguf::BlockFormat;
use kernels::{
    Activations, Attention, Compute, Kernels, KvBlock, KvValues, MatrixPanels, Pool, PoolOptions, Wanted, matmul,
    pack_panel,
};

/// Rows of the matrix.
const ROWS: usize = 8;
/// Positions of a KV block.
const POSITIONS: usize = 32;

/// Marks the begin of the traced part. Its body differs from that of `trace_end`, so that they are not merged.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn trace_begin() {
    std::hint::black_box(1);
}

/// Marks its end.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn trace_end() {
    std::hint::black_box(2);
}

fn multiply(compute: &Compute, format: BlockFormat, tokens: usize, columns: usize) {
    let height = compute.kernels.panel_rows;
    let row_bytes = format.row_bytes(columns).expect("columns are whole blocks");
    let row: Vec<u8> = (0..row_bytes).map(|at| (at % 47) as u8).collect();
    let mut bytes = vec![0; ROWS.next_multiple_of(height) * row_bytes];
    for panel in bytes.chunks_exact_mut(height * row_bytes) {
        pack_panel(format, height, 0..columns / format.block_length(), |_| Some(&row), panel);
    }
    let matrix = MatrixPanels { format, bytes: &bytes, rows: ROWS, columns };
    let x: Vec<f32> = (0..tokens * columns).map(|at| (at as f32 * 0.37).sin()).collect();
    let mut activations = Activations::default();
    let is_quantised = format.is_quantised();
    activations.load(compute, &x, columns, Wanted { skip: 0, quantised: is_quantised, floats: !is_quantised });
    let mut out = vec![0.0; tokens * ROWS];
    // The first call resolves the functions of shared libraries.
    matmul(compute, matrix, &activations, &mut out);
    trace_begin();
    matmul(compute, matrix, &activations, &mut out);
    trace_end();
}

fn attend(kernels: &Kernels, heads: usize, length: usize, positions: usize) {
    let half = vec![0x2c00_u16; POSITIONS * length];
    let queries = vec![0.1; heads * length];
    let (mut largest, mut sum, mut out) = (vec![100.0; heads], vec![0.0; heads], vec![0.0; heads * length]);
    let (key_length, value_length) = (length, length);
    let mut state =
        Attention { key_length, value_length, queries: &queries, largest: &mut largest, sum: &mut sum, out: &mut out };
    let block = KvBlock {
        keys: Some(KvValues::F16(&half)),
        values: KvValues::F16(&half),
        first: 0,
        count: POSITIONS,
        score_cap: None,
        next: [&[]; 2],
    };
    (kernels.attend)(block, &mut state);
    trace_begin();
    for _ in 0..positions / POSITIONS {
        (kernels.attend)(block, &mut state);
    }
    trace_end();
}

fn gate(combine: fn(&mut [f32], &[f32]), columns: usize) {
    let (mut gate, up) = (vec![0.5; columns], vec![0.25; columns]);
    combine(&mut gate, &up);
    trace_begin();
    combine(&mut gate, &up);
    trace_end();
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, tokens, columns] = &arguments[..] else { return Err("expected FORMAT TOKENS COLUMNS".into()) };
    let (tokens, columns) = (tokens.parse()?, columns.parse()?);
    let kernels = Kernels::choose(None)?;
    let compute = Compute::new(kernels, Pool::new(PoolOptions { threads: 1, cores: Vec::new(), spin: false })?);
    match name.as_str() {
        "clamped_swiglu" => gate(kernels.clamped_swiglu, columns),
        "gelu_multiply" => gate(kernels.gelu_multiply, columns),
        _ => match name.strip_prefix("f16-").and_then(|shape| shape.split_once('-')) {
            Some((heads, length)) => attend(kernels, heads.parse()?, length.parse()?, columns),
            None => {
                let format = BlockFormat::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name));
                multiply(&compute, format.ok_or_else(|| format!("{name} is no format"))?, tokens, columns);
            }
        },
    }
    Ok(())
}
