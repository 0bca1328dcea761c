//! The reference kernels: plain Rust that says what every other table must compute.
mod unpack;

use half::{bf16, f16};
use shared::gguf::BlockFormat;

use unpack::{Unpack, q4_0, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0};

use super::{ActivationRow, GROUP, Kernels, LEVELS};

pub(super) const TABLE: Kernels = Kernels {
    name: "scalar",
    dots: [
        dot_row_f32,
        dot_row_f16,
        dot_row_bf16,
        |row, skip, x| dot(BlockFormat::Q8_0, q8_0, row, skip, x),
        |row, skip, x| dot(BlockFormat::Q4_0, q4_0, row, skip, x),
        |row, skip, x| dot(BlockFormat::Q5_0, q5_0, row, skip, x),
        |row, skip, x| dot(BlockFormat::Q5_1, q5_1, row, skip, x),
        |row, skip, x| dot(BlockFormat::Q4K, q4_k, row, skip, x),
        |row, skip, x| dot(BlockFormat::Q5K, q5_k, row, skip, x),
        |row, skip, x| dot(BlockFormat::Q6K, q6_k, row, skip, x),
    ],
    tiles: [None; BlockFormat::ALL.len()],
    quantize,
    dot_f32,
    dot_f16,
    accumulate_f32,
    accumulate_f16,
    to_f16,
    rms_norm,
    silu_multiply,
    read,
    add,
};

/// Sums in 8 lanes, so that a vector unit may do the same.
const LANES: usize = 8;

/// The product of a quantised row: integer sums of 16 columns, weighted in f32, in the order of columns.
#[inline(always)]
fn dot(format: BlockFormat, unpack: Unpack, row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
    let per_block = format.block_length() / 32;
    let mut sum = 0.0;
    for block in 0..x.scales.len() / 2 {
        let place = skip + block;
        let bytes = &row[place / per_block * format.block_bytes()..][..format.block_bytes()];
        let weights = unpack(bytes, place % per_block);
        for group in 0..2 {
            let index = 2 * block + group;
            let quants = &x.quants[index * GROUP..][..GROUP];
            let products = quants.iter().zip(&weights.quants[group * GROUP..][..GROUP]);
            let product: i32 = products.map(|(x, w)| i32::from(*x) * i32::from(*w)).sum();
            let weighted = weights.scales[group] * product as f32 - weights.min * f32::from(x.sums[index]);
            sum += x.scales[index] * weighted;
        }
    }
    sum
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
        BlockFormat::Q5_0 => q5_0,
        BlockFormat::Q5_1 => q5_1,
        BlockFormat::Q4K => q4_k,
        BlockFormat::Q5K => q5_k,
        BlockFormat::Q6K => q6_k,
    };
    let blocks = row.chunks_exact(format.block_bytes()).zip(out.chunks_exact_mut(format.block_length()));
    for (block, out) in blocks {
        for (part, out) in out.chunks_exact_mut(32).enumerate() {
            let weights = unpack(block, part);
            for (index, (out, quant)) in out.iter_mut().zip(weights.quants).enumerate() {
                *out = weights.scales[index / GROUP] * f32::from(quant) - weights.min;
            }
        }
    }
}

fn halves(row: &[u8], out: &mut [f32], read: fn([u8; 2]) -> f32) {
    out.iter_mut().zip(row.as_chunks::<2>().0).for_each(|(out, bytes)| *out = read(*bytes));
}

/// Sum of `count` products in 8 lanes, lanes added pairwise.
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

fn dot_row_f32(row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
    let weights = &row.as_chunks::<4>().0[skip * 32..];
    lanes(x.values.len(), |index| (f32::from_le_bytes(weights[index]), x.values[index]))
}

fn dot_row_f16(row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
    let weights = &row.as_chunks::<2>().0[skip * 32..];
    lanes(x.values.len(), |index| (f16::from_le_bytes(weights[index]).to_f32(), x.values[index]))
}

fn dot_row_bf16(row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
    let weights = &row.as_chunks::<2>().0[skip * 32..];
    lanes(x.values.len(), |index| (bf16::from_le_bytes(weights[index]).to_f32(), x.values[index]))
}

/// Added to a number below 2^22, it rounds that to an integer, ties to even, which stands in the low bits of the sum: this
/// is vector code also where the instruction set has no rounding.
const ROUND: f32 = 12_582_912.0;

/// Inlined, so that each table compiles it for its own instructions.
#[inline(always)]
pub(super) fn quantize(values: &[f32], quants: &mut [i8], scales: &mut [f32], sums: &mut [i16]) {
    assert!(quants.len() >= values.len() && quants.len() == scales.len() * GROUP && sums.len() == scales.len());
    for (index, quants) in quants.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
        let given = values.get(index * GROUP..).unwrap_or_default();
        let mut group = [0.0; GROUP];
        match given.first_chunk::<GROUP>() {
            Some(given) => group = *given,
            None => group[..given.len()].copy_from_slice(given),
        }
        (scales[index], sums[index]) = quantize_group(&group, quants);
    }
}

/// Scale and sum of a group.
#[inline(always)]
fn quantize_group(values: &[f32; GROUP], quants: &mut [i8; GROUP]) -> (f32, i16) {
    // As integers, bits of magnitudes are ordered as the magnitudes are, with infinity and NaN above all numbers.
    let largest = values.iter().fold(0, |largest, value| value.abs().to_bits().max(largest));
    let largest = f32::from_bits(largest);
    if !largest.is_finite() || largest < LEVELS * f32::MIN_POSITIVE {
        quants.fill(0);
        // Smaller ones are zeros: neither scale nor inverse would be a normal number.
        return (if largest.is_finite() { 0.0 } else { f32::NAN }, 0);
    }
    let inverse = LEVELS / largest;
    let rounded = values.map(|value| (value * inverse + ROUND).to_bits() as i32 - ROUND.to_bits() as i32);
    *quants = rounded.map(|quant| quant as i8);
    (largest / LEVELS, rounded.iter().sum::<i32>() as i16)
}

fn dot_f32(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    lanes(a.len(), |index| (a[index], b[index]))
}

fn dot_f16(a: &[f32], b: &[u16]) -> f32 {
    assert_eq!(a.len(), b.len());
    lanes(a.len(), |index| (a[index], f16::from_bits(b[index]).to_f32()))
}

fn accumulate_f32(out: &mut [f32], a: f32, x: &[f32]) {
    assert_eq!(out.len(), x.len());
    out.iter_mut().zip(x).for_each(|(out, x)| *out += a * x);
}

fn accumulate_f16(out: &mut [f32], a: f32, x: &[u16]) {
    assert_eq!(out.len(), x.len());
    out.iter_mut().zip(x).for_each(|(out, x)| *out += a * f16::from_bits(*x).to_f32());
}

fn to_f16(values: &[f32], out: &mut [u16]) {
    assert_eq!(out.len(), values.len());
    out.iter_mut().zip(values).for_each(|(out, value)| *out = f16::from_f32(*value).to_bits());
}

fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len());
    let mean = lanes(x.len(), |index| (x[index], x[index])) / x.len() as f32;
    let inverse = 1.0 / (mean + epsilon).sqrt();
    out.iter_mut().zip(x).zip(weight).for_each(|((out, x), weight)| *out = x * inverse * weight);
}

pub(super) fn silu_multiply(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    gate.iter_mut().zip(up).for_each(|(gate, up)| *gate = *gate / (1.0 + (-*gate).exp()) * up);
}

#[inline]
pub(super) fn read(words: &[u64]) -> u64 {
    words.iter().fold(0, |all, word| all ^ word)
}

pub(super) fn add(out: &mut [f32], x: &[f32]) {
    assert_eq!(out.len(), x.len());
    out.iter_mut().zip(x).for_each(|(out, x)| *out += x);
}
