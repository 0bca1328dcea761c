//! Encodes f32 rows in every weight format: plain rounding in place of llama.cpp's search, but its exact layouts. The
//! inverse is `dequantise`, which is written element by element and shares nothing but grids with this.

mod few_bits;
mod grids;

use gguf::BlockFormat;
use half::{bf16, f16};

/// Encodes rows of whole blocks.
///
/// # Panics
/// If the rows are not whole blocks.
pub fn quantise(format: BlockFormat, weights: &[f32]) -> Vec<u8> {
    let length = format.block_length();
    assert!(weights.len().is_multiple_of(length), "rows must be whole blocks of {length}");
    let mut out = Vec::with_capacity(weights.len() / length * format.block_bytes());
    for block in weights.chunks_exact(length) {
        let before = out.len();
        match format {
            BlockFormat::F32 => out.extend(block[0].to_le_bytes()),
            BlockFormat::F16 => out.extend(f16::from_f32(block[0]).to_le_bytes()),
            BlockFormat::BF16 => out.extend(bf16::from_f32(block[0]).to_le_bytes()),
            BlockFormat::Q8_0 => q8_0(&mut out, block),
            BlockFormat::Q4_0 => symmetric(&mut out, block, 4),
            BlockFormat::Q5_0 => symmetric(&mut out, block, 5),
            BlockFormat::Q4_1 => with_minimum(&mut out, block, 4),
            BlockFormat::Q5_1 => with_minimum(&mut out, block, 5),
            BlockFormat::Q2K => few_bits::q2_k(&mut out, block),
            BlockFormat::Q3K => few_bits::q3_k(&mut out, block),
            BlockFormat::Iq4Nl => few_bits::iq4_nl(&mut out, block),
            BlockFormat::Iq4Xs => few_bits::iq4_xs(&mut out, block),
            BlockFormat::Mxfp4 => few_bits::mxfp4(&mut out, block),
            BlockFormat::Iq3Xxs | BlockFormat::Iq3S => grids::encode(format, &mut out, block),
            BlockFormat::Iq2Xxs | BlockFormat::Iq2Xs | BlockFormat::Iq2S => grids::encode(format, &mut out, block),
            BlockFormat::Q4K => q45_k(&mut out, block, 4),
            BlockFormat::Q5K => q45_k(&mut out, block, 5),
            BlockFormat::Q6K => q6_k(&mut out, block),
        }
        assert_eq!(out.len() - before, format.block_bytes(), "size of a block of {format:?}");
    }
    out
}

/// Writes a scale as f16 and returns the rounded value that a reader sees.
fn write_scale(out: &mut Vec<u8>, scale: f32) -> f32 {
    let stored = f16::from_f32(scale);
    out.extend(stored.to_le_bytes());
    stored.to_f32()
}

/// `weight / scale`, rounded and clamped to `low..=high`; 0 if the scale is 0.
fn level(weight: f32, scale: f32, low: i32, high: i32) -> i32 {
    if scale == 0.0 {
        return 0i32.clamp(low, high);
    }
    ((weight / scale).round() as i32).clamp(low, high)
}

/// The weight with the largest magnitude, with its sign.
fn extreme(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |most: f32, &w| if w.abs() > most.abs() { w } else { most })
}

/// Nibbles of 32 levels: the first 16 low, the last 16 high. Fifth bits, if any, precede them as a u32.
fn write_levels(out: &mut Vec<u8>, levels: &[u8], bits: u32) {
    if bits == 5 {
        let fifth = (0..32).fold(0u32, |all, i| all | u32::from(levels[i] >> 4) << i);
        out.extend(fifth.to_le_bytes());
    }
    let (low, high) = levels.split_at(16);
    out.extend(low.iter().zip(high).map(|(l, h)| l & 15 | h << 4));
}

fn q8_0(out: &mut Vec<u8>, block: &[f32]) {
    let scale = write_scale(out, extreme(block).abs() / 127.0);
    out.extend(block.iter().map(|&w| level(w, scale, -127, 127) as u8));
}

/// Q4_0 and Q5_0: the extreme becomes the lowest level, which has no positive counterpart.
fn symmetric(out: &mut Vec<u8>, block: &[f32], bits: u32) {
    let middle = 1 << (bits - 1);
    let scale = write_scale(out, extreme(block) / -(middle as f32));
    let levels: Vec<u8> = block.iter().map(|&w| (level(w, scale, -middle, middle - 1) + middle) as u8).collect();
    write_levels(out, &levels, bits);
}

/// Q4_1 and Q5_1.
fn with_minimum(out: &mut Vec<u8>, block: &[f32], bits: u32) {
    let top = (1 << bits) - 1;
    let low = block.iter().copied().fold(f32::INFINITY, f32::min);
    let high = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = write_scale(out, (high - low) / top as f32);
    let low = write_scale(out, low);
    let levels: Vec<u8> = block.iter().map(|&w| level(w - low, scale, 0, top) as u8).collect();
    write_levels(out, &levels, bits);
}

/// Q4_K and Q5_K: 8 sub-blocks of 32; weight = scale * level - minimum, both quantised to 6 bits with a common scale.
fn q45_k(out: &mut Vec<u8>, block: &[f32], bits: u32) {
    let top = (1 << bits) - 1;
    let mut scales = [0.0f32; 8];
    let mut minima = [0.0f32; 8];
    for (sub, weights) in block.chunks_exact(32).enumerate() {
        // A minimum is stored as the number to subtract, so it cannot be above 0.
        let low = weights.iter().copied().fold(0.0, f32::min);
        let high = weights.iter().copied().fold(low, f32::max);
        scales[sub] = (high - low) / top as f32;
        minima[sub] = -low;
    }
    let d = write_scale(out, extreme(&scales) / 63.0);
    let d_min = write_scale(out, extreme(&minima) / 63.0);
    let scales = scales.map(|scale| level(scale, d, 0, 63) as u8);
    let minima = minima.map(|minimum| level(minimum, d_min, 0, 63) as u8);
    out.extend(pack_6_bits(&scales, &minima));

    let mut levels = [0u8; 256];
    for (i, &weight) in block.iter().enumerate() {
        let (scale, minimum) = (d * f32::from(scales[i / 32]), d_min * f32::from(minima[i / 32]));
        levels[i] = level(weight + minimum, scale, 0, top) as u8;
    }
    if bits == 5 {
        // Byte l holds the fifth bits of element l of all 8 sub-blocks.
        out.extend((0..32).map(|l| (0..8).fold(0, |all, sub| all | (levels[sub * 32 + l] >> 4) << sub)));
    }
    // Two sub-blocks share 32 bytes; the first has the low nibbles.
    for pair in levels.chunks_exact(64) {
        out.extend((0..32).map(|l| pair[l] & 15 | pair[l + 32] << 4));
    }
}

/// Packs 8 scales and 8 minima of 6 bits into 12 bytes: four scales and four minima in the low 6 bits of bytes 0 to 7,
/// the low nibbles of the other four in bytes 8 to 11, and their upper two bits on top of bytes 0 to 7.
fn pack_6_bits(scales: &[u8; 8], minima: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for i in 0..4 {
        packed[i] = scales[i] | (scales[i + 4] >> 4) << 6;
        packed[i + 4] = minima[i] | (minima[i + 4] >> 4) << 6;
        packed[i + 8] = scales[i + 4] & 15 | (minima[i + 4] & 15) << 4;
    }
    packed
}

/// Q6_K: 16 sub-blocks of 16 with an int8 scale, levels from -32 to 31.
fn q6_k(out: &mut Vec<u8>, block: &[f32]) {
    let mut scales = [0.0f32; 16];
    for (sub, weights) in block.chunks_exact(16).enumerate() {
        scales[sub] = extreme(weights) / -32.0;
    }
    let d = f16::from_f32(extreme(&scales).abs() / 127.0);
    let scales = scales.map(|scale| level(scale, d.to_f32(), -127, 127) as i8);
    let mut levels = [0u8; 256];
    for (i, &weight) in block.iter().enumerate() {
        let scale = d.to_f32() * f32::from(scales[i / 16]);
        levels[i] = (level(weight, scale, -32, 31) + 32) as u8;
    }
    // Each half of 128 has four quarters of 32: the low nibbles of quarters 0 and 2 share bytes, as do those of 1 and
    // 3.
    for half in levels.chunks_exact(128) {
        out.extend((0..64).map(|l| half[l] & 15 | half[l + 64] << 4));
    }
    for half in levels.chunks_exact(128) {
        out.extend(
            (0..32).map(|l| (0..4).fold(0, |all, quarter| all | (half[quarter * 32 + l] >> 4) << (2 * quarter))),
        );
    }
    out.extend(scales.map(|scale| scale as u8));
    out.extend(d.to_le_bytes());
}
