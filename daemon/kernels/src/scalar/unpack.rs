//! Unpacks 32 weights of each format: int8, a scale for each 16 and a minimum (ggml-quants, block layouts).
use half::f16;

use crate::{
    grids::{self, IQ2_MAGNITUDES, IQ3_S_MAGNITUDES, IQ3_XXS_MAGNITUDES},
    values::{E2M1, IQ4},
};

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

/// The magnitude of column `i`, negated if its bit of `signs` is set.
fn signed(magnitude: u8, signs: u8, i: usize) -> i8 {
    let level = magnitude.cast_signed();
    if signs >> (i % 8) & 1 == 1 { -level } else { level }
}

/// The signs of 8 columns, of which 7 are stored: an even number is set.
fn even_signs(signs: u32) -> u8 {
    let seven = (signs & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Magnitude of column `i` in an entry of 4 columns.
fn of_four(entry: u32, magnitudes: &[u8; 8], i: usize) -> u8 {
    magnitudes[(entry >> (8 * (i % 4)) & 7) as usize]
}

/// Magnitude of column `i` in an entry of 8 columns.
fn of_eight(entry: u32, i: usize) -> u8 {
    IQ2_MAGNITUDES[(entry >> (8 * (i % 4) + i % 8 / 4 * 4) & 3) as usize]
}

/// Four bytes of a block as a number.
fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// A scale of 4 bits: `unit` times an odd number.
fn odd(block: &[u8], unit: f32, scale: u32) -> f32 {
    half(block, 0) * unit * (2 * scale + 1) as f32
}

/// Scales of the halves of a part in the nibbles of a byte.
fn odd_pair(block: &[u8], byte: u8) -> [f32; 2] {
    [odd(block, 0.125, u32::from(byte & 15)), odd(block, 0.125, u32::from(byte >> 4))]
}

pub(super) fn iq3_xxs(block: &[u8], part: usize) -> Unpacked {
    let word = word(block, 66 + 4 * part);
    let quants = std::array::from_fn(|i| {
        let entry = grids::IQ3_XXS.entries[usize::from(block[2 + 8 * part + i / 4])];
        signed(of_four(entry, &IQ3_XXS_MAGNITUDES, i), even_signs(word >> (i / 8 * 7)), i)
    });
    even(quants, odd(block, 0.25, word >> 28), 0.0)
}

pub(super) fn iq2_xxs(block: &[u8], part: usize) -> Unpacked {
    let word = word(block, 6 + 8 * part);
    let quants = std::array::from_fn(|i| {
        let entry = grids::IQ2_XXS.entries[usize::from(block[2 + 8 * part + i / 8])];
        signed(of_eight(entry, i), even_signs(word >> (i / 8 * 7)), i)
    });
    even(quants, odd(block, 0.125, word >> 28), 0.0)
}

pub(super) fn iq3_s(block: &[u8], part: usize) -> Unpacked {
    let quants = std::array::from_fn(|i| {
        let ninth = usize::from(block[66 + part] >> (i / 4) & 1);
        let entry = grids::IQ3_S.entries[usize::from(block[2 + 8 * part + i / 4]) | ninth << 8];
        signed(of_four(entry, &IQ3_S_MAGNITUDES, i), block[74 + 4 * part + i / 8], i)
    });
    let scale = block[106 + part / 2] >> (part % 2 * 4) & 15;
    even(quants, odd(block, 1.0, u32::from(scale)), 0.0)
}

pub(super) fn iq2_s(block: &[u8], part: usize) -> Unpacked {
    let quants = std::array::from_fn(|i| {
        let high = usize::from(block[66 + part] >> (i / 8 * 2) & 3);
        let entry = grids::IQ2_S.entries[usize::from(block[2 + 4 * part + i / 8]) | high << 8];
        signed(of_eight(entry, i), block[34 + 4 * part + i / 8], i)
    });
    Unpacked { quants, scales: odd_pair(block, block[74 + part]), mins: [0.0; 2] }
}

pub(super) fn iq2_xs(block: &[u8], part: usize) -> Unpacked {
    let quants = std::array::from_fn(|i| {
        let at = 2 + 2 * (4 * part + i / 8);
        let word = u16::from_le_bytes([block[at], block[at + 1]]);
        signed(of_eight(grids::IQ2_XS.entries[usize::from(word & 511)], i), even_signs(u32::from(word >> 9)), i)
    });
    Unpacked { quants, scales: odd_pair(block, block[66 + part]), mins: [0.0; 2] }
}
