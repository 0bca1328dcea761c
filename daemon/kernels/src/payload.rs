//! Wire format of partial sums, and the only definition of its rounding: f32 unchanged, f16 to nearest even, q80 in
//! blocks of 32. Plain loops over chunks, compiled for each table's instructions; the same bytes on every machine.
use collectives::{EXCHANGE_BLOCK, Q80_BLOCK_BYTES, payload_bytes};
use common::precision::Exchange;
use half::f16;

const _: () = assert!(cfg!(target_endian = "little"), "f32 travels as it lies in memory");

/// Bits of f32's infinity; larger magnitudes are NaN.
const INFINITY_BITS: u32 = 0x7f80_0000;
/// Added to a value below 2^22, it rounds to an integer, ties to even, in the low bits.
const TO_INTEGER: f32 = 12_582_912.0;

/// Conversions between values and their wire format, for all of one token's columns.
#[derive(Clone, Copy, Debug)]
pub struct Payload {
    /// Encodes values in the exchange format; the buffer must have exactly the encoded length.
    pub encode: fn(Exchange, &[f32], &mut [u8]),
    /// Adds the values of a payload of exactly `payload_bytes(exchange, 1, out.len())` bytes to `out`.
    pub add: fn(Exchange, &[u8], &mut [f32]),
    /// Writes the values of such a payload to `out`.
    pub load: fn(Exchange, &[u8], &mut [f32]),
}

#[inline(always)]
pub(super) fn encode(exchange: Exchange, values: &[f32], out: &mut [u8]) {
    assert_eq!(out.len(), payload_bytes(exchange, 1, values.len()), "the buffer has the encoded length");
    match exchange {
        Exchange::F32 => out.copy_from_slice(bytemuck::must_cast_slice(values)),
        Exchange::F16 => {
            for (bytes, value) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                *bytes = to_half(*value).to_le_bytes();
            }
        }
        Exchange::Q80 => {
            let (blocks, rest) = values.as_chunks::<EXCHANGE_BLOCK>();
            let out = out.as_chunks_mut::<Q80_BLOCK_BYTES>().0;
            blocks.iter().zip(out.iter_mut()).for_each(|(block, out)| encode_q80(block, out));
            if let Some(last) = out.last_mut().filter(|_| !rest.is_empty()) {
                let mut block = [0.0; EXCHANGE_BLOCK];
                block[..rest.len()].copy_from_slice(rest);
                encode_q80(&block, last);
            }
        }
    }
}

#[inline(always)]
pub(super) fn add(exchange: Exchange, payload: &[u8], out: &mut [f32]) {
    decode(exchange, payload, out, |out, value| *out += value);
}

#[inline(always)]
pub(super) fn load(exchange: Exchange, payload: &[u8], out: &mut [f32]) {
    decode(exchange, payload, out, |out, value| *out = value);
}

#[inline(always)]
fn decode(exchange: Exchange, payload: &[u8], out: &mut [f32], take: impl Fn(&mut f32, f32) + Copy) {
    assert_eq!(payload.len(), payload_bytes(exchange, 1, out.len()), "the receiver checked the length");
    match exchange {
        Exchange::F32 => {
            let values = payload.as_chunks::<4>().0;
            out.iter_mut().zip(values).for_each(|(out, bytes)| take(out, f32::from_le_bytes(*bytes)));
        }
        Exchange::F16 => {
            let values = payload.as_chunks::<2>().0;
            out.iter_mut().zip(values).for_each(|(out, bytes)| take(out, from_half(u16::from_le_bytes(*bytes))));
        }
        Exchange::Q80 => {
            let blocks = payload.as_chunks::<Q80_BLOCK_BYTES>().0;
            for (values, block) in out.chunks_mut(EXCHANGE_BLOCK).zip(blocks) {
                let scale = from_half(u16::from_le_bytes([block[0], block[1]]));
                let levels = values.iter_mut().zip(&block[2..]);
                levels.for_each(|(out, byte)| take(out, scale * f32::from(byte.cast_signed())));
            }
        }
    }
}

/// Rounds to nearest, ties to even. Finite values stay finite: beyond the range of f16 they saturate.
#[inline(always)]
fn to_half(value: f32) -> u16 {
    let bits = value.to_bits();
    let (sign, magnitude) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
    let clamped = magnitude.min(65504.0_f32.to_bits());
    // Exponents are rebased from 127 to 15; the odd bit makes ties go to even.
    let normal = clamped.wrapping_sub(112 << 23).wrapping_add(0xfff + (clamped >> 13 & 1)) >> 13;
    // Below the smallest normal half, the last place of 0.5 is that of a half: the addition rounds.
    let subnormal = (f32::from_bits(clamped) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let finite = if clamped < 113 << 23 { subnormal } else { normal };
    let special = if magnitude > INFINITY_BITS { 0x7e00 } else { 0x7c00 };
    (sign | if magnitude >= INFINITY_BITS { special } else { finite }) as u16
}

#[inline(always)]
fn from_half(half: u16) -> f32 {
    let bits = u32::from(half);
    let magnitude = (bits & 0x7fff) << 13;
    // 2^112 rebases the exponent, also for values below the smallest normal half.
    let finite = (f32::from_bits(magnitude) * f32::from_bits((112 + 127) << 23)).to_bits();
    let special = magnitude | INFINITY_BITS;
    f32::from_bits((bits & 0x8000) << 16 | if magnitude >= 0x7c00 << 13 { special } else { finite })
}

/// A block with an infinity or a NaN gets scale NaN, so that it never decodes to plausible numbers.
#[inline(always)]
fn encode_q80(block: &[f32; EXCHANGE_BLOCK], out: &mut [u8; Q80_BLOCK_BYTES]) {
    // As integers, magnitudes are ordered like their floats, and no comparison is unordered.
    let magnitude = |value: &f32| (value.to_bits() & 0x7fff_ffff).cast_signed();
    let largest =
        block.iter().map(magnitude).fold(0, |largest, magnitude| if magnitude > largest { magnitude } else { largest });
    let largest = f32::from_bits(largest.cast_unsigned());
    let bits = if largest.is_finite() { to_half(largest / 127.0) } else { f16::NAN.to_bits() };
    let scale = from_half(bits);
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    out[..2].copy_from_slice(&bits.to_le_bytes());
    for (byte, value) in out[2..].iter_mut().zip(block) {
        let level = value * inverse;
        // Written so that it compiles to vector minimum and maximum; a NaN becomes a bound, but its scale is NaN
        // already.
        let level = if level < 127.0 { level } else { 127.0 };
        let level = if level > -127.0 { level } else { -127.0 };
        *byte = (level + TO_INTEGER).to_bits() as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(exchange: Exchange, values: &[f32]) -> Vec<f32> {
        let mut bytes = vec![0; payload_bytes(exchange, 1, values.len())];
        encode(exchange, values, &mut bytes);
        let mut rounded = vec![f32::NAN; values.len()];
        load(exchange, &bytes, &mut rounded);
        rounded
    }

    #[test]
    fn q80_error_is_below_half_a_step_and_rounding_is_idempotent() {
        let values: Vec<f32> = (0..80).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.173).collect();
        let rounded = round(Exchange::Q80, &values);
        for (block, before) in rounded.chunks(32).zip(values.chunks(32)) {
            let largest = before.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
            for (a, b) in block.iter().zip(before) {
                assert!((a - b).abs() <= largest / 127.0 * 0.51, "{a} for {b}");
            }
        }
        assert_eq!(round(Exchange::Q80, &rounded), rounded);
        for tiny in [3e-8_f32, 4.6e-6, 1e-30] {
            let values: Vec<f32> = (0..32).map(|i| tiny * i as f32).collect();
            let rounded = round(Exchange::Q80, &values);
            assert_eq!(round(Exchange::Q80, &rounded), rounded);
        }
    }

    #[test]
    fn levels_are_rounded_to_nearest_with_ties_to_even() {
        // A largest value of 127 makes the scale 1.
        let mut values: Vec<f32> = (0..32).map(|i| i as f32 * 0.5 - 8.0).collect();
        values[31] = -127.0;
        let expected: Vec<f32> = values.iter().map(|value| value.round_ties_even()).collect();
        assert_eq!(round(Exchange::Q80, &values), expected);
    }

    #[test]
    fn finite_stays_finite_and_non_finite_stays_visible() {
        for exchange in [Exchange::F32, Exchange::F16, Exchange::Q80] {
            assert!(round(exchange, &[f32::MAX, -f32::MAX, 0.0, 1e-30]).iter().all(|value| value.is_finite()));
            for broken in [f32::NAN, f32::INFINITY, -f32::INFINITY] {
                let rounded = round(exchange, &[1.0, broken, -2.0]);
                assert!(!rounded[1].is_finite(), "{exchange}: {broken} became {}", rounded[1]);
            }
        }
    }

    #[test]
    fn half_conversion_matches_the_standard() {
        for half in 0..=u16::MAX {
            let value = f16::from_bits(half);
            assert!(from_half(half) == value.to_f32() || value.is_nan() && from_half(half).is_nan(), "{half:04x}");
            if value.is_nan() {
                continue;
            }
            assert_eq!(to_half(value.to_f32()), half, "{half:04x}");
            // Between this one and the next: a little below the middle, the middle, a little above.
            let next = f16::from_bits(half + 1);
            if next.is_finite() && value.is_finite() {
                let middle = (value.to_f32() + next.to_f32()) / 2.0;
                for between in [middle.next_down(), middle, middle.next_up()] {
                    assert_eq!(to_half(between), f16::from_f32(between).to_bits(), "{between}");
                }
            }
        }
    }

    #[test]
    fn f32_travels_unchanged_and_is_added() {
        let values = [1.0e-40_f32, -3.5, f32::MAX];
        assert_eq!(round(Exchange::F32, &values), values);
        let mut sum = [1.0, 1.0];
        add(Exchange::F16, &[0, 0x3c, 0, 0xc0], &mut sum);
        assert_eq!(sum, [2.0, -1.0]);
    }

    #[test]
    fn every_table_matches_the_scalar_payload_bytes() {
        use crate::Kernels;

        let special = [0.0, -0.0, 1e-40, -3e-8, 6.1e-5, 65504.0, 65519.9, -7e4, f32::MAX, f32::MIN_POSITIVE, 0.5, 1.5];
        let value = |index: usize| match index % 7 {
            0 => special[index / 7 % special.len()],
            _ => ((index * 7919 % 1009) as f32 - 500.0) * 0.0137,
        };
        let mut compared = 0;
        for kernels in Kernels::available() {
            for exchange in [Exchange::F32, Exchange::F16, Exchange::Q80] {
                for (length, broken) in
                    [(1, None), (77, None), (2048, None), (160, Some(f32::NAN)), (64, Some(f32::INFINITY))]
                {
                    let mut values: Vec<f32> = (0..length).map(value).collect();
                    values[length / 2] = broken.unwrap_or(values[length / 2]);
                    let mut plain = vec![0; payload_bytes(exchange, 1, length)];
                    let mut bytes = plain.clone();
                    encode(exchange, &values, &mut plain);
                    (kernels.payload.encode)(exchange, &values, &mut bytes);
                    assert_eq!(bytes, plain, "{} {exchange}, {length} values", kernels.name);
                    let (mut expected, mut sum) = (values.clone(), values.clone());
                    add(exchange, &plain, &mut expected);
                    (kernels.payload.add)(exchange, &plain, &mut sum);
                    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&sum), bits(&expected), "{} {exchange}, {length} values", kernels.name);
                    load(exchange, &plain, &mut expected);
                    (kernels.payload.load)(exchange, &plain, &mut sum);
                    assert_eq!(bits(&sum), bits(&expected), "{} {exchange}, {length} values", kernels.name);
                    compared += 1;
                }
            }
        }
        assert!(compared >= 15);
    }
}
