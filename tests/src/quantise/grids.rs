//! Formats of 2 and 3 bits whose magnitudes come from a grid.
use gguf::BlockFormat;

use super::{extreme, level, write_scale};
use crate::grids::Grid;

/// A block before its fields are arranged: a scale for each 16 or 32 weights, an index for each 4 or 8, and the signs of
/// each 8.
struct Fields {
    scales: Vec<u8>,
    indices: Vec<usize>,
    signs: Vec<u8>,
}

/// Signs of 8 weights; if only 7 are stored, their number must be even, and the smallest weight gets a wrong one.
fn signs_of(weights: &[f32], must_be_even: bool) -> u8 {
    let signs = weights.iter().enumerate().fold(0, |all, (i, weight)| all | u8::from(*weight < 0.0) << i);
    if !must_be_even || signs.count_ones() % 2 == 0 {
        return signs;
    }
    let smallest = (0..8).fold(0, |best, i| if weights[i].abs() < weights[best].abs() { i } else { best });
    signs ^ 1 << smallest
}

/// Writes the common scale and returns the other fields. A scale is `d * unit * (2 s + 1)`.
fn fields(format: BlockFormat, out: &mut Vec<u8>, block: &[f32]) -> Fields {
    let (length, unit) = match format {
        BlockFormat::Iq3S => (32, 1.0),
        BlockFormat::Iq3Xxs => (32, 0.25),
        BlockFormat::Iq2Xxs => (32, 0.125),
        _ => (16, 0.125),
    };
    let must_be_even = !matches!(format, BlockFormat::Iq3S | BlockFormat::Iq2S);
    let grid = Grid::of(format);
    let top = grid.magnitudes.last().copied().map_or(0.0, f32::from);
    let scales: Vec<f32> = block.chunks_exact(length).map(|sub| extreme(sub).abs() / top).collect();
    let d = write_scale(out, extreme(&scales) / (31.0 * unit)) * unit;
    let scales: Vec<u8> = scales.iter().map(|scale| level(scale - d, 2.0 * d, 0, 15) as u8).collect();
    let mut found = Fields { scales, indices: Vec::new(), signs: Vec::new() };
    for (group, weights) in block.chunks_exact(8).enumerate() {
        let scale = d * f32::from(2 * found.scales[group * 8 / length] + 1);
        found.signs.push(signs_of(weights, must_be_even));
        for weights in weights.chunks_exact(grid.width) {
            let wanted: Vec<f32> = weights.iter().map(|w| if scale == 0.0 { 0.0 } else { w.abs() / scale }).collect();
            found.indices.push(grid.index(&wanted));
        }
    }
    found
}

/// The 7 stored signs of four groups, and a scale.
fn word(signs: &[u8], scale: u8) -> [u8; 4] {
    let signs = signs.iter().enumerate().fold(0, |all, (group, signs)| all | u32::from(signs & 127) << (7 * group));
    (signs | u32::from(scale) << 28).to_le_bytes()
}

/// Pairs of scales of 4 bits.
fn nibbles(scales: &[u8]) -> impl Iterator<Item = u8> {
    scales.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4)
}

/// The bits of indices above the eighth, `bits` each, the first lowest.
fn high_bits(indices: &[usize], bits: usize) -> impl Iterator<Item = u8> {
    indices
        .chunks_exact(8 / bits)
        .map(move |part| part.iter().enumerate().fold(0, |all, (at, index)| all | (index >> 8 << (bits * at)) as u8))
}

/// Appends a block of 256 weights.
pub(super) fn encode(format: BlockFormat, out: &mut Vec<u8>, block: &[f32]) {
    let Fields { scales, indices, signs } = fields(format, out, block);
    let low = indices.iter().map(|index| *index as u8);
    match format {
        BlockFormat::Iq3Xxs => {
            out.extend(low);
            (0..8).for_each(|part| out.extend(word(&signs[4 * part..][..4], scales[part])));
        }
        BlockFormat::Iq2Xxs => {
            for part in 0..8 {
                out.extend(low.clone().skip(4 * part).take(4));
                out.extend(word(&signs[4 * part..][..4], scales[part]));
            }
        }
        BlockFormat::Iq3S => {
            out.extend(low);
            out.extend(high_bits(&indices, 1));
            out.extend(&signs);
            out.extend(nibbles(&scales));
        }
        BlockFormat::Iq2S => {
            out.extend(low);
            out.extend(&signs);
            out.extend(high_bits(&indices, 2));
            out.extend(nibbles(&scales));
        }
        _ => {
            let words = indices.iter().zip(&signs).map(|(index, signs)| *index as u16 | u16::from(signs & 127) << 9);
            words.for_each(|word| out.extend(word.to_le_bytes()));
            out.extend(nibbles(&scales));
        }
    }
}
