//! Formats of 2, 3 and 4 bits: super-blocks with short scales, and lookup tables.
use half::f16;

use super::{extreme, level, write_levels, write_scale};

/// Low two bits of 256 levels; 128 levels share 32 bytes.
fn write_two_bits(out: &mut Vec<u8>, levels: &[u8]) {
    for half in levels.chunks_exact(128) {
        out.extend((0..32).map(|l| (0..4).fold(0, |all, quarter| all | (half[quarter * 32 + l] & 3) << (2 * quarter))));
    }
}

/// Q2_K: 16 sub-blocks of 16 with a 4-bit scale and minimum, levels from 0 to 3.
pub(super) fn q2_k(out: &mut Vec<u8>, block: &[f32]) {
    let lows: Vec<f32> = block.chunks_exact(16).map(|sub| sub.iter().copied().fold(0.0, f32::min)).collect();
    let scales: Vec<f32> = block
        .chunks_exact(16)
        .zip(&lows)
        .map(|(sub, low)| (sub.iter().copied().fold(*low, f32::max) - low) / 3.0)
        .collect();
    let d = f16::from_f32(extreme(&scales) / 15.0);
    let d_min = f16::from_f32(extreme(&lows).abs() / 15.0);
    let scales: Vec<u8> = scales.iter().map(|scale| level(*scale, d.to_f32(), 0, 15) as u8).collect();
    let minima: Vec<u8> = lows.iter().map(|low| level(-low, d_min.to_f32(), 0, 15) as u8).collect();
    out.extend(scales.iter().zip(&minima).map(|(scale, minimum)| scale | minimum << 4));
    write_two_bits(
        out,
        &(0..256)
            .map(|i| {
                let minimum = d_min.to_f32() * f32::from(minima[i / 16]);
                level(block[i] + minimum, d.to_f32() * f32::from(scales[i / 16]), 0, 3) as u8
            })
            .collect::<Vec<u8>>(),
    );
    out.extend(d.to_le_bytes());
    out.extend(d_min.to_le_bytes());
}

/// Q3_K: 16 sub-blocks of 16 with a 6-bit scale, levels from -4 to 3.
pub(super) fn q3_k(out: &mut Vec<u8>, block: &[f32]) {
    let scales: Vec<f32> = block.chunks_exact(16).map(|sub| extreme(sub) / -4.0).collect();
    let d = f16::from_f32(extreme(&scales).abs() / 31.0);
    let scales: Vec<i32> = scales.iter().map(|scale| level(*scale, d.to_f32(), -31, 31)).collect();
    let levels: Vec<u8> =
        (0..256).map(|i| (level(block[i], d.to_f32() * scales[i / 16] as f32, -4, 3) + 4) as u8).collect();
    // Byte l holds the third bits of element l of all 8 parts of 32.
    out.extend((0..32).map(|l| (0..8).fold(0, |all, part| all | (levels[part * 32 + l] >> 2) << part)));
    write_two_bits(out, &levels);
    let six: Vec<u8> = scales.iter().map(|scale| (scale + 32) as u8).collect();
    out.extend((0..8).map(|i| six[i] & 15 | (six[i + 8] & 15) << 4));
    out.extend((0..4).map(|i| (0..4).fold(0, |all, row| all | (six[4 * row + i] >> 4) << (2 * row))));
    out.extend(d.to_le_bytes());
}

const IQ4: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Index of the entry nearest to `weight / scale`.
fn nearest(entries: &[f32; 16], weight: f32, scale: f32) -> u8 {
    let wanted = if scale == 0.0 { 0.0 } else { weight / scale };
    let distance = |entry: usize| (entries[entry] - wanted).abs();
    (0..16).fold(0, |best, entry| if distance(entry) < distance(best) { entry } else { best }) as u8
}

pub(super) fn iq4_nl(out: &mut Vec<u8>, block: &[f32]) {
    let scale = write_scale(out, extreme(block) / -127.0);
    let numbers: Vec<u8> = block.iter().map(|weight| nearest(&IQ4, *weight, scale)).collect();
    write_levels(out, &numbers, 4);
}

/// IQ4_XS: 8 sub-blocks of 32 with a 6-bit scale.
pub(super) fn iq4_xs(out: &mut Vec<u8>, block: &[f32]) {
    let scales: Vec<f32> = block.chunks_exact(32).map(|sub| extreme(sub) / -127.0).collect();
    let d = write_scale(out, extreme(&scales).abs() / 31.0);
    let scales: Vec<i32> = scales.iter().map(|scale| level(*scale, d, -31, 31)).collect();
    let six: Vec<u16> = scales.iter().map(|scale| (scale + 32) as u16).collect();
    let high = six.iter().enumerate().fold(0u16, |all, (i, six)| all | (six >> 4) << (2 * i));
    out.extend(high.to_le_bytes());
    out.extend(six.chunks_exact(2).map(|pair| (pair[0] & 15 | (pair[1] & 15) << 4) as u8));
    for (sub, scale) in block.chunks_exact(32).zip(&scales) {
        let numbers: Vec<u8> = sub.iter().map(|weight| nearest(&IQ4, *weight, d * *scale as f32)).collect();
        write_levels(out, &numbers, 4);
    }
}

pub(super) fn mxfp4(out: &mut Vec<u8>, block: &[f32]) {
    let largest = extreme(block).abs();
    // The largest entry is 1.5 * 2^2.
    let exponent = if largest == 0.0 { 0 } else { (largest.log2().floor() as i32 - 2 + 127).clamp(0, 254) };
    out.push(exponent as u8);
    let scale = ((exponent - 127) as f32).exp2();
    let numbers: Vec<u8> = block.iter().map(|weight| nearest(&E2M1, *weight, scale)).collect();
    write_levels(out, &numbers, 4);
}
