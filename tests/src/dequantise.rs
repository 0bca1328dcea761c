//! Dequantises every weight format, element by element from the format's description: slow, and the oracle for the
//! kernels. Shares no code with the daemon, and only the grids with `quantise`.

use gguf::BlockFormat;
use half::{bf16, f16};

use crate::grids::Grid;

/// Dequantises whole blocks.
///
/// # Panics
/// If the bytes do not end at a block boundary.
pub fn dequantise(format: BlockFormat, bytes: &[u8]) -> Vec<f32> {
    let size = format.block_bytes();
    assert!(bytes.len().is_multiple_of(size), "the bytes must be whole blocks of {size}");
    let blocks = bytes.chunks_exact(size);
    blocks.flat_map(|block| (0..format.block_length()).map(move |i| weight(format, block, i))).collect()
}

/// Value of weight `i` of a block.
fn weight(format: BlockFormat, block: &[u8], i: usize) -> f32 {
    match format {
        BlockFormat::F32 => f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
        BlockFormat::F16 => half_at(block, 0),
        BlockFormat::BF16 => bf16::from_le_bytes([block[0], block[1]]).to_f32(),
        BlockFormat::Q8_0 => half_at(block, 0) * f32::from(block[2 + i] as i8),
        BlockFormat::Q4_0 => half_at(block, 0) * (f32::from(nibble_of_32(&block[2..], i)) - 8.0),
        BlockFormat::Q5_0 => half_at(block, 0) * (f32::from(five_bits(&block[2..], i)) - 16.0),
        BlockFormat::Q4_1 => half_at(block, 0) * f32::from(nibble_of_32(&block[4..], i)) + half_at(block, 2),
        BlockFormat::Q5_1 => half_at(block, 0) * f32::from(five_bits(&block[4..], i)) + half_at(block, 2),
        BlockFormat::Q2K => {
            let packed = block[i / 16];
            let level = f32::from(two_bits(&block[16..], i));
            half_at(block, 80) * f32::from(packed & 15) * level - half_at(block, 82) * f32::from(packed >> 4)
        }
        BlockFormat::Q3K => {
            let third = block[i % 32] >> (i / 32) & 1;
            let sub = i / 16;
            let low = if sub < 8 { block[96 + sub] & 15 } else { block[96 + sub - 8] >> 4 };
            let high = block[104 + sub % 4] >> (sub / 4 * 2) & 3;
            let scale = half_at(block, 108) * (f32::from(low + 16 * high) - 32.0);
            scale * (f32::from(two_bits(&block[32..], i) + 4 * third) - 4.0)
        }
        BlockFormat::Iq4Nl => half_at(block, 0) * IQ4[usize::from(nibble_of_32(&block[2..], i))],
        BlockFormat::Iq4Xs => {
            let sub = i / 32;
            let high = u16::from_le_bytes([block[2], block[3]]) >> (2 * sub) & 3;
            let low = u16::from(block[4 + sub / 2] >> (sub % 2 * 4) & 15);
            let scale = half_at(block, 0) * (f32::from(low + 16 * high) - 32.0);
            scale * IQ4[usize::from(nibble_of_32(&block[8 + 16 * sub..], i % 32))]
        }
        BlockFormat::Mxfp4 => {
            let scale = f32::powi(2.0, i32::from(block[0]) - 127);
            scale * four_bit_float(nibble_of_32(&block[1..], i))
        }
        BlockFormat::Iq3Xxs | BlockFormat::Iq3S => of_grid(format, block, i),
        BlockFormat::Iq2Xxs | BlockFormat::Iq2Xs | BlockFormat::Iq2S => of_grid(format, block, i),
        BlockFormat::Q4K => {
            let level = nibble_of_64(&block[16..], i);
            super_block(block, i, level)
        }
        BlockFormat::Q5K => {
            let fifth = (block[16 + i % 32] >> (i / 32)) & 1;
            super_block(block, i, nibble_of_64(&block[48..], i) + 16 * fifth)
        }
        BlockFormat::Q6K => {
            let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
            let low = block[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
            let high = block[128 + half * 32 + l] >> (quarter * 2) & 3;
            let scale = half_at(block, 208) * f32::from(block[192 + i / 16] as i8);
            scale * (f32::from(low + 16 * high) - 32.0)
        }
    }
}

/// Value of weight `i` of a block in a format with a grid.
fn of_grid(format: BlockFormat, block: &[u8], i: usize) -> f32 {
    match format {
        BlockFormat::Iq3Xxs => {
            let word = word(block, 66 + i / 32 * 4);
            let sign = even_sign(word >> (i % 32 / 8 * 7), i);
            let scale = half_at(block, 0) * (0.5 + (word >> 28) as f32) * 0.5;
            scale * sign * Grid::of(format).magnitude(block[2 + i / 4].into(), i % 4)
        }
        BlockFormat::Iq2Xxs => {
            let part = &block[2 + i / 32 * 8..];
            let word = word(part, 4);
            let sign = even_sign(word >> (i % 32 / 8 * 7), i);
            let scale = half_at(block, 0) * (0.5 + (word >> 28) as f32) * 0.25;
            scale * sign * Grid::of(format).magnitude(part[i % 32 / 8].into(), i % 8)
        }
        BlockFormat::Iq2Xs => {
            let word = u32::from(block[2 + i / 8 * 2]) + 256 * u32::from(block[3 + i / 8 * 2]);
            let sign = even_sign(word / 512, i);
            let scale = half_at(block, 0) * (0.5 + f32::from(nibble_of_pairs(&block[66..], i / 16))) * 0.25;
            scale * sign * Grid::of(format).magnitude(word as usize % 512, i % 8)
        }
        BlockFormat::Iq3S => {
            let ninth = usize::from(bit(&block[66..], i / 4));
            let sign = if bit(&block[74..], i) { -1.0 } else { 1.0 };
            let scale = half_at(block, 0) * (1.0 + 2.0 * f32::from(nibble_of_pairs(&block[106..], i / 32)));
            scale * sign * Grid::of(format).magnitude(usize::from(block[2 + i / 4]) + 256 * ninth, i % 4)
        }
        BlockFormat::Iq2S => {
            let high = usize::from(block[66 + i / 32] >> (i % 32 / 8 * 2) & 3);
            let sign = if bit(&block[34..], i) { -1.0 } else { 1.0 };
            let scale = half_at(block, 0) * (0.5 + f32::from(nibble_of_pairs(&block[74..], i / 16))) * 0.25;
            scale * sign * Grid::of(format).magnitude(usize::from(block[2 + i / 8]) + 256 * high, i % 8)
        }
        other => panic!("{} has no grid", other.name()),
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Bit `i` of a field.
fn bit(bytes: &[u8], i: usize) -> bool {
    bytes[i / 8] >> (i % 8) & 1 == 1
}

/// Nibble `i` of a field; each byte holds two adjacent ones, the first one low.
fn nibble_of_pairs(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 2] >> (i % 2 * 4) & 15
}

/// Sign of weight `i`: of each 8, the low 7 bits hold 7, and the last one makes the number of negative ones even.
fn even_sign(bits: u32, i: usize) -> f32 {
    let is_negative = match i % 8 {
        7 => (bits & 127).count_ones() % 2 == 1,
        place => bits >> place & 1 == 1,
    };
    if is_negative { -1.0 } else { 1.0 }
}

/// Level `i` of 32 in 16 bytes: the first 16 levels are the low nibbles.
fn nibble_of_32(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 16] >> (i / 16 * 4) & 15
}

/// Values of IQ4_NL (ggml-common.h, kvalues_iq4nl).
const IQ4: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// FP4 E2M1: sign, two exponent bits, one mantissa bit (OCP Microscaling Formats v1.0).
fn four_bit_float(bits: u8) -> f32 {
    let (exponent, mantissa) = (bits >> 1 & 3, f32::from(bits & 1));
    let size = if exponent == 0 { 0.5 * mantissa } else { (1.0 + 0.5 * mantissa) * f32::from(1_u8 << (exponent - 1)) };
    if bits & 8 == 0 { size } else { -size }
}

/// Level `i`: 32 bytes per 128 levels; each quarter of the levels occupies two bits of every byte.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// Level `i` of 32: 32 fifth bits, then 16 bytes of nibbles.
fn five_bits(bytes: &[u8], i: usize) -> u8 {
    let fifth = bytes[i / 8] >> (i % 8) & 1;
    nibble_of_32(&bytes[4..], i) + 16 * fifth
}

/// Level `i`: 32 bytes per 64 levels; the first 32 levels are the low nibbles.
fn nibble_of_64(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15
}

/// Q4_K and Q5_K: scale * level - minimum; both factors are a 6-bit number times an f16 at the start of the block.
fn super_block(block: &[u8], i: usize, level: u8) -> f32 {
    let packed = &block[4..16];
    let sub = i / 32;
    let (scale, minimum) = if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        (packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4, packed[sub + 4] >> 4 | packed[sub] >> 6 << 4)
    };
    half_at(block, 0) * f32::from(scale) * f32::from(level) - half_at(block, 2) * f32::from(minimum)
}
