//! Unpacks 32 weights of each format: int8, a scale for each 16 and a minimum (ggml-quants, block layouts).
use half::f16;

use crate::values::{E2M1, IQ4};

/// 32 weights: `scales[i / 16] * quants[i] - mins[i / 16]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unpacked {
    pub(super) quants: [i8; 32],
    pub(super) scales: [f32; 2],
    pub(super) mins: [f32; 2],
}

/// Unpacks part `part` (of 32 weights) of a block.
pub(super) type Unpack = fn(block: &[u8], part: usize) -> Unpacked;

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn even(quants: [i8; 32], scale: f32, min: f32) -> Unpacked {
    Unpacked { quants, scales: [scale; 2], mins: [min; 2] }
}

pub(super) fn q8_0(block: &[u8], _: usize) -> Unpacked {
    even(std::array::from_fn(|i| block[2 + i].cast_signed()), half(block, 0), 0.0)
}

/// Nibble `i`: low nibbles are the first 16 weights, high nibbles the others.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 16] >> (i / 16 * 4) & 15
}

pub(super) fn q4_0(block: &[u8], _: usize) -> Unpacked {
    even(std::array::from_fn(|i| nibble(&block[2..18], i).cast_signed() - 8), half(block, 0), 0.0)
}

pub(super) fn q4_1(block: &[u8], _: usize) -> Unpacked {
    even(std::array::from_fn(|i| nibble(&block[4..20], i).cast_signed()), half(block, 0), -half(block, 2))
}

/// A nibble combined with its fifth bit from 32 bits.
fn five(bits: &[u8], nibbles: &[u8], i: usize) -> i8 {
    (nibble(nibbles, i) | (bits[i / 8] >> (i % 8) & 1) << 4).cast_signed()
}

pub(super) fn q5_0(block: &[u8], _: usize) -> Unpacked {
    even(std::array::from_fn(|i| five(&block[2..6], &block[6..22], i) - 16), half(block, 0), 0.0)
}

pub(super) fn q5_1(block: &[u8], _: usize) -> Unpacked {
    even(std::array::from_fn(|i| five(&block[4..8], &block[8..24], i)), half(block, 0), -half(block, 2))
}

/// Scale and minimum (6 bits each) of part 0 to 7 of a Q4_K or Q5_K block; `packed` are their 12 bytes.
fn scale_min(packed: &[u8], part: usize) -> (u8, u8) {
    if part < 4 {
        return (packed[part] & 63, packed[part + 4] & 63);
    }
    let scale = packed[part + 4] & 15 | packed[part - 4] >> 6 << 4;
    let min = packed[part + 4] >> 4 | packed[part] >> 6 << 4;
    (scale, min)
}

/// Scale and minimum of a part of a Q4_K or Q5_K block as floats.
fn min_of(block: &[u8], part: usize) -> (f32, f32) {
    let (scale, min) = scale_min(&block[4..16], part);
    (half(block, 0) * f32::from(scale), half(block, 2) * f32::from(min))
}

pub(super) fn q4_k(block: &[u8], part: usize) -> Unpacked {
    let (scale, min) = min_of(block, part);
    let nibbles = &block[16 + part / 2 * 32..][..32];
    let shift = part % 2 * 4;
    even(std::array::from_fn(|i| (nibbles[i] >> shift & 15).cast_signed()), scale, min)
}

pub(super) fn q5_k(block: &[u8], part: usize) -> Unpacked {
    let (scale, min) = min_of(block, part);
    let (bits, nibbles) = (&block[16..48], &block[48 + part / 2 * 32..][..32]);
    let shift = part % 2 * 4;
    even(std::array::from_fn(|i| (nibbles[i] >> shift & 15 | (bits[i] >> part & 1) << 4).cast_signed()), scale, min)
}

pub(super) fn q6_k(block: &[u8], part: usize) -> Unpacked {
    let (half_of, quarter) = (part / 4, part % 4);
    let low = &block[half_of * 64 + quarter % 2 * 32..][..32];
    let high = &block[128 + half_of * 32..][..32];
    let scale = |group: usize| half(block, 208) * f32::from(block[192 + part * 2 + group].cast_signed());
    Unpacked {
        quants: std::array::from_fn(|i| {
            (low[i] >> (quarter / 2 * 4) & 15 | (high[i] >> (quarter * 2) & 3) << 4).cast_signed() - 32
        }),
        scales: [scale(0), scale(1)],
        mins: [0.0; 2],
    }
}

/// The two bits of a weight in a part: 128 weights share 32 bytes.
fn two_bits(bytes: &[u8], part: usize, i: usize) -> u8 {
    bytes[part / 4 * 32 + i] >> (part % 4 * 2) & 3
}

pub(super) fn q2_k(block: &[u8], part: usize) -> Unpacked {
    let packed = |group: usize| block[2 * part + group];
    let scale = |group| half(block, 80) * f32::from(packed(group) & 15);
    let min = |group| half(block, 82) * f32::from(packed(group) >> 4);
    let quants = std::array::from_fn(|i| two_bits(&block[16..80], part, i).cast_signed());
    Unpacked { quants, scales: [scale(0), scale(1)], mins: [min(0), min(1)] }
}

pub(super) fn q3_k(block: &[u8], part: usize) -> Unpacked {
    let scale = |group: usize| {
        let index = 2 * part + group;
        let low = block[96 + index % 8] >> (index / 8 * 4) & 15;
        let high = block[104 + index % 4] >> (index / 4 * 2) & 3;
        half(block, 108) * f32::from((low | high << 4).cast_signed() - 32)
    };
    let quants =
        std::array::from_fn(|i| (two_bits(&block[32..96], part, i) | ((block[i] >> part & 1) << 2)).cast_signed() - 4);
    Unpacked { quants, scales: [scale(0), scale(1)], mins: [0.0; 2] }
}

pub(super) fn iq4_nl(block: &[u8], _: usize) -> Unpacked {
    even(std::array::from_fn(|i| IQ4[usize::from(nibble(&block[2..18], i))]), half(block, 0), 0.0)
}

pub(super) fn iq4_xs(block: &[u8], part: usize) -> Unpacked {
    let low = block[4 + part / 2] >> (part % 2 * 4) & 15;
    let high = block[2 + part / 4] >> (part % 4 * 2) & 3;
    let scale = half(block, 0) * f32::from((low | high << 4).cast_signed() - 32);
    even(std::array::from_fn(|i| IQ4[usize::from(nibble(&block[8 + 16 * part..][..16], i))]), scale, 0.0)
}

pub(super) fn mxfp4(block: &[u8], _: usize) -> Unpacked {
    // The table entries are doubled.
    let scale = (f64::from(block[0]) - 128.0).exp2() as f32;
    even(std::array::from_fn(|i| E2M1[usize::from(nibble(&block[1..17], i))]), scale, 0.0)
}
