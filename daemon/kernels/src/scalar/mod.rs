//! The reference kernels: plain Rust that defines what every other table must compute. One row per panel, one token per
//! tile.
mod unpack;

use gguf::BlockFormat;
use half::{bf16, f16};
use unpack::{
    Unpack, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl, iq4_xs, mxfp4, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1,
    q5_k, q6_k, q8_0,
};

use super::{
    Attention, BLOCK, Block, DeltaRun, Kernels, KvBlock, KvValues, LEVELS, Panel, Payload, payload, scan,
    values::CHAINS,
};

macro_rules! quantised {
    ($format:ident, $unpack:ident) => {
        Panel::Quantised(|row, _, x, out| out[0] = dot(BlockFormat::$format, $unpack, row, x))
    };
}

pub(super) const TABLE: Kernels = Kernels {
    name: "scalar",
    panel_rows: 1,
    tiles: &[1],
    float_tiles: &[1],
    panels: [
        Panel::Floats(|row, _, x, out| out[0] = dot_row::<4>(row, x, f32::from_le_bytes)),
        Panel::Floats(|row, _, x, out| out[0] = dot_row::<2>(row, x, |bytes| f16::from_le_bytes(bytes).to_f32())),
        Panel::Floats(|row, _, x, out| out[0] = dot_row::<2>(row, x, |bytes| bf16::from_le_bytes(bytes).to_f32())),
        quantised!(Q8_0, q8_0),
        quantised!(Q4_0, q4_0),
        quantised!(Q4_1, q4_1),
        quantised!(Q5_0, q5_0),
        quantised!(Q5_1, q5_1),
        quantised!(Q2K, q2_k),
        quantised!(Q3K, q3_k),
        quantised!(Q4K, q4_k),
        quantised!(Q5K, q5_k),
        quantised!(Q6K, q6_k),
        quantised!(Iq4Nl, iq4_nl),
        quantised!(Iq4Xs, iq4_xs),
        quantised!(Mxfp4, mxfp4),
        quantised!(Iq3Xxs, iq3_xxs),
        quantised!(Iq2Xxs, iq2_xxs),
        quantised!(Iq3S, iq3_s),
        quantised!(Iq2S, iq2_s),
        quantised!(Iq2Xs, iq2_xs),
    ],
    quantise,
    attend,
    rms_norm,
    layer_norm,
    silu_multiply,
    gelu_multiply,
    clamped_swiglu,
    sigmoid_multiply,
    delta,
    scan: scan::scan,
    squared_relu,
    read,
    peak: |_| (0, 0.0),
    add,
    payload: Payload { encode: payload::encode, add: payload::add, load: payload::load },
};

/// The product of a quantised row: integer sums of 16 columns, scaled in f32, in the order of the columns.
#[inline(always)]
fn dot(format: BlockFormat, unpack: Unpack, row: &[u8], x: &[Block]) -> f32 {
    let per_block = format.block_length() / BLOCK;
    let mut sum = 0.0;
    for (block, x) in row.chunks_exact(format.block_bytes()).zip(x.chunks_exact(per_block)) {
        for (part, x) in x.iter().enumerate() {
            let weights = unpack(block, part);
            let mut of_part = 0.0;
            for (group, quants) in x.quants.chunks_exact(16).enumerate() {
                let products = quants.iter().zip(&weights.quants[group * 16..][..16]);
                let product: i32 = products.map(|(x, w)| i32::from(*x) * i32::from(*w)).sum();
                let total: i32 = quants.iter().map(|quant| i32::from(*quant)).sum();
                of_part += weights.scales[group] * product as f32 - weights.mins[group] * total as f32;
            }
            sum += x.scale * of_part;
        }
    }
    sum
}

/// The product of a row of floats of `N` bytes, bit for bit like `panel::float_panel`: ranks choose a token's experts
/// by such products, and must agree regardless of their kernels.
#[inline(always)]
fn dot_row<const N: usize>(row: &[u8], x: &[f32], read: fn([u8; N]) -> f32) -> f32 {
    let weights = row.as_chunks::<N>().0;
    let whole = weights.len() / CHAINS * CHAINS;
    let mut sums = [0.0_f32; CHAINS];
    for (index, weight) in weights.iter().enumerate() {
        let sum = &mut sums[if index < whole { index % CHAINS } else { 0 }];
        *sum = read(*weight).mul_add(x[index], *sum);
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// Weights of whole blocks.
pub(super) fn dequantise(format: BlockFormat, row: &[u8], out: &mut [f32]) {
    let unpack: Unpack = match format {
        BlockFormat::F32 => {
            return out
                .iter_mut()
                .zip(row.as_chunks::<4>().0)
                .for_each(|(out, bytes)| *out = f32::from_le_bytes(*bytes));
        }
        BlockFormat::F16 => return halves(row, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
        BlockFormat::BF16 => return halves(row, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        BlockFormat::Q8_0 => q8_0,
        BlockFormat::Q4_0 => q4_0,
        BlockFormat::Q4_1 => q4_1,
        BlockFormat::Q5_0 => q5_0,
        BlockFormat::Q5_1 => q5_1,
        BlockFormat::Q2K => q2_k,
        BlockFormat::Q3K => q3_k,
        BlockFormat::Q4K => q4_k,
        BlockFormat::Q5K => q5_k,
        BlockFormat::Q6K => q6_k,
        BlockFormat::Iq4Nl => iq4_nl,
        BlockFormat::Iq4Xs => iq4_xs,
        BlockFormat::Mxfp4 => mxfp4,
        BlockFormat::Iq3Xxs => iq3_xxs,
        BlockFormat::Iq2Xxs => iq2_xxs,
        BlockFormat::Iq3S => iq3_s,
        BlockFormat::Iq2S => iq2_s,
        BlockFormat::Iq2Xs => iq2_xs,
    };
    let blocks = row.chunks_exact(format.block_bytes()).zip(out.chunks_exact_mut(format.block_length()));
    for (block, out) in blocks {
        for (part, out) in out.chunks_exact_mut(32).enumerate() {
            let weights = unpack(block, part);
            for (index, (out, quant)) in out.iter_mut().zip(weights.quants).enumerate() {
                *out = weights.scales[index / 16] * f32::from(quant) - weights.mins[index / 16];
            }
        }
    }
}

fn halves(row: &[u8], out: &mut [f32], read: fn([u8; 2]) -> f32) {
    out.iter_mut().zip(row.as_chunks::<2>().0).for_each(|(out, bytes)| *out = read(*bytes));
}

/// Number of lanes in a sum, so that a vector unit can compute the same.
const LANES: usize = 8;

/// Sums `count` products in 8 lanes, which are then added pairwise.
#[inline(always)]
fn lanes(count: usize, product: impl Fn(usize) -> (f32, f32)) -> f32 {
    let mut sums = [0.0_f32; LANES];
    for index in 0..count {
        let (a, b) = product(index);
        sums[index % LANES] += a * b;
    }
    let pairs = [sums[0] + sums[4], sums[1] + sums[5], sums[2] + sums[6], sums[3] + sums[7]];
    (pairs[0] + pairs[2]) + (pairs[1] + pairs[3])
}

/// Added to a number below 2^22, it rounds that to an integer, ties to even, in the low bits of the sum.
pub(super) const ROUND: f32 = 12_582_912.0;

pub(super) fn quantise(values: &[f32], out: &mut Block) {
    let mut block = [0.0; BLOCK];
    match values.first_chunk::<BLOCK>() {
        Some(values) => block = *values,
        None => block[..values.len()].copy_from_slice(values),
    }
    // As integers, bits of magnitudes are ordered like the magnitudes, with infinity and NaN above all numbers.
    let mut largest = 0;
    for value in &block {
        largest = largest.max(value.abs().to_bits());
    }
    let largest = f32::from_bits(largest);
    *out = Block::default();
    if !largest.is_finite() || largest < LEVELS * f32::MIN_POSITIVE {
        // Smaller values become zeros: neither scale nor inverse would be a normal number.
        out.scale = if largest.is_finite() { 0.0 } else { f32::NAN };
        out.minus_sums = out.scale;
        return;
    }
    let inverse = LEVELS / largest;
    let (mut first, mut second) = (0, 0);
    for (index, (quant, value)) in out.quants.iter_mut().zip(block).enumerate() {
        let rounded = (value * inverse + ROUND).to_bits().cast_signed() - ROUND.to_bits().cast_signed();
        *quant = rounded as i8;
        *(if index < BLOCK / 2 { &mut first } else { &mut second }) += rounded;
    }
    out.scale = as_half(largest / LEVELS);
    out.minus_sums = -out.scale * (first + second) as f32;
    out.minus_8_sums = -8 * (first + second);
    out.minus_8_first = -8 * first;
}

/// Rounds to a value that a half can represent, if that is a normal number.
pub(super) fn as_half(scale: f32) -> f32 {
    let half = f16::from_f32(scale);
    if half.is_normal() { half.to_f32() } else { scale }
}

/// Computes every score, weight and value directly by the formula.
fn attend(block: KvBlock<'_>, state: &mut Attention<'_>) {
    let (length, width) = (state.key_length, state.value_length);
    let stride = if block.keys.is_some() { width } else { length };
    for head in 0..state.largest.len() {
        let query = &state.queries[head * length..][..length];
        let out = &mut state.out[head * width..][..width];
        for position in block.first..block.count {
            let keys = (0..length).map(|column| match block.keys {
                Some(keys) => key(keys, column, position),
                None => value(block.values, column, position, stride),
            });
            let score: f32 = query.iter().zip(keys).map(|(query, key)| query * key).sum();
            let score = block.score_cap.map_or(score, |cap| cap * (score / cap).tanh());
            let largest = state.largest[head].max(score);
            let (shrink, weight) = ((state.largest[head] - largest).exp(), (score - largest).exp());
            state.largest[head] = largest;
            state.sum[head] = state.sum[head] * shrink + weight;
            for (column, out) in out.iter_mut().enumerate() {
                *out = *out * shrink + weight * value(block.values, column, position, stride);
            }
        }
    }
}

fn key(keys: KvValues<'_>, column: usize, position: usize) -> f32 {
    match keys {
        KvValues::F32(keys) => keys[column * BLOCK + position],
        KvValues::F16(keys) => f16::from_bits(keys[column * BLOCK + position]).to_f32(),
        KvValues::Q8(keys, scales) => {
            f32::from(keys[column * BLOCK + position])
                * f16::from_bits(scales[column / BLOCK * BLOCK + position]).to_f32()
        }
        KvValues::Q4(keys, scales) => {
            nibble(keys, column * BLOCK + position) * f16::from_bits(scales[column / BLOCK * BLOCK + position]).to_f32()
        }
    }
}

/// A value of 4 bits without its scale.
fn nibble(packed: &[u8], number: usize) -> f32 {
    let byte = packed[number / BLOCK * (BLOCK / 2) + number % (BLOCK / 2)];
    let level = if number % BLOCK < BLOCK / 2 { byte & 15 } else { byte >> 4 };
    f32::from(level) - 8.0
}

fn value(values: KvValues<'_>, column: usize, position: usize, length: usize) -> f32 {
    match values {
        KvValues::F32(values) => values[position * length + column],
        KvValues::F16(values) => f16::from_bits(values[position * length + column]).to_f32(),
        KvValues::Q8(values, scales) => {
            f32::from(values[position * length + column])
                * f16::from_bits(scales[column / BLOCK * BLOCK + position]).to_f32()
        }
        KvValues::Q4(values, scales) => {
            nibble(values, position * length.next_multiple_of(BLOCK) + column)
                * f16::from_bits(scales[column / BLOCK * BLOCK + position]).to_f32()
        }
    }
}

fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len());
    let mean = lanes(x.len(), |index| (x[index], x[index])) / x.len() as f32;
    let inverse = 1.0 / (mean + epsilon).sqrt();
    out.iter_mut().zip(x).zip(weight).for_each(|((out, x), weight)| *out = x * inverse * weight);
}

fn layer_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len());
    let mean = lanes(x.len(), |index| (x[index], 1.0)) / x.len() as f32;
    let variance = lanes(x.len(), |index| (x[index] - mean, x[index] - mean)) / x.len() as f32;
    let inverse = 1.0 / (variance + epsilon).sqrt();
    out.iter_mut().zip(x).zip(weight).for_each(|((out, x), weight)| *out = (x - mean) * inverse * weight);
}

fn silu_multiply(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    gate.iter_mut().zip(up).for_each(|(gate, up)| *gate = *gate / (1.0 + (-*gate).exp()) * up);
}

/// Twice the square root of 2 / pi, and that times 0.044715: the factors of `x` and `x^3` in the approximation of GELU.
pub(super) const GELU: [f32; 2] = [1.595_769_2, 0.071_354_82];
/// Bound of the inputs of the clamped SwiGLU.
pub(super) const SWIGLU_LIMIT: f32 = 7.0;
/// Factor of the gate in the sigmoid of the clamped SwiGLU.
pub(super) const SWIGLU_SLOPE: f32 = 1.702;

fn gelu_multiply(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    gate.iter_mut().zip(up).for_each(|(gate, up)| {
        let of = *gate * (GELU[0] + GELU[1] * *gate * *gate);
        *gate = *gate / (1.0 + (-of).exp()) * up;
    });
}

fn clamped_swiglu(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    gate.iter_mut().zip(up).for_each(|(gate, up)| {
        let limited = if *gate > SWIGLU_LIMIT { SWIGLU_LIMIT } else { *gate };
        *gate = limited / (1.0 + (-SWIGLU_SLOPE * limited).exp()) * (up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT) + 1.0);
    });
}

fn sigmoid_multiply(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    gate.iter_mut().zip(up).for_each(|(gate, up)| *gate = *up / (1.0 + (-*gate).exp()));
}

fn delta(state: &mut [f32], run: DeltaRun<'_>, out: &mut [f32]) {
    let length = run.length;
    for (token, out) in out.chunks_exact_mut(length).enumerate() {
        let x = run.token(token);
        for (column, out) in out.iter_mut().enumerate() {
            let rows = state.iter_mut().skip(column).step_by(length);
            let held: f32 = rows.zip(x.key).map(|(held, key)| *held * key).sum();
            let change = (x.value[column] - x.decay * held) * x.rate;
            let rows = state.iter_mut().skip(column).step_by(length);
            *out = 0.0;
            for ((held, key), query) in rows.zip(x.key).zip(x.query) {
                *held = *held * x.decay + key * change;
                *out += query * *held;
            }
        }
    }
}

fn squared_relu(out: &mut [f32], x: &[f32]) {
    assert_eq!(out.len(), x.len());
    out.iter_mut().zip(x).for_each(|(out, x)| {
        // NaN stays NaN.
        let positive = if *x < 0.0 { 0.0 } else { *x };
        *out = positive * positive;
    });
}

fn read(bytes: &[u8], _: usize, _: usize) -> u8 {
    bytes.iter().fold(0, |all, byte| all | byte)
}

pub(super) fn add(out: &mut [f32], x: &[f32]) {
    assert_eq!(out.len(), x.len());
    out.iter_mut().zip(x).for_each(|(out, x)| *out += x);
}
