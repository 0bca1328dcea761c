//! What 32 weights of each format are: int8, a scale for each 16 and a minimum (ggml-quants, block layouts).
use half::f16;

/// 32 weights: `scales[i / 16] * quants[i] - min`.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Unpacked {
    pub(in crate::kernels) quants: [i8; 32],
    pub(in crate::kernels) scales: [f32; 2],
    pub(in crate::kernels) min: f32,
}

/// Unpacks part `part` (of 32 weights) of a block.
pub(super) type Unpack = fn(block: &[u8], part: usize) -> Unpacked;

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn even(quants: [i8; 32], scale: f32, min: f32) -> Unpacked {
    Unpacked { quants, scales: [scale; 2], min }
}

pub(super) fn q8_0(block: &[u8], _: usize) -> Unpacked {
    even(std::array::from_fn(|i| block[2 + i].cast_signed()), half(block, 0), 0.0)
}

/// Low nibbles are the first 16 weights, high nibbles the others.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 16] >> (i / 16 * 4) & 15
}

pub(super) fn q4_0(block: &[u8], _: usize) -> Unpacked {
    even(std::array::from_fn(|i| nibble(&block[2..18], i).cast_signed() - 8), half(block, 0), 0.0)
}

/// A nibble and its fifth bit from 32 bits.
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
pub(in crate::kernels) fn scale_min(packed: &[u8], part: usize) -> (u8, u8) {
    if part < 4 {
        return (packed[part] & 63, packed[part + 4] & 63);
    }
    let scale = packed[part + 4] & 15 | packed[part - 4] >> 6 << 4;
    let min = packed[part + 4] >> 4 | packed[part] >> 6 << 4;
    (scale, min)
}

/// Scale and minimum of a part of a Q4_K or Q5_K block as floats.
pub(in crate::kernels) fn min_of(block: &[u8], part: usize) -> (f32, f32) {
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
    let quant = |i: usize| (nibbles[i] >> shift & 15 | (bits[i] >> part & 1) << 4).cast_signed();
    even(std::array::from_fn(quant), scale, min)
}

pub(super) fn q6_k(block: &[u8], part: usize) -> Unpacked {
    let (half_of, quarter) = (part / 4, part % 4);
    let low = &block[half_of * 64 + quarter % 2 * 32..][..32];
    let high = &block[128 + half_of * 32..][..32];
    let quant = |i: usize| (low[i] >> (quarter / 2 * 4) & 15 | (high[i] >> (quarter * 2) & 3) << 4).cast_signed() - 32;
    let scale = |group: usize| half(block, 208) * f32::from(block[192 + part * 2 + group].cast_signed());
    Unpacked { quants: std::array::from_fn(quant), scales: [scale(0), scale(1)], min: 0.0 }
}
