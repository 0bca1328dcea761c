//! How partial sums look on the wire, and the one definition of their rounding: f32 as it is, q80 in blocks of 32.
use half::f16;
use shared::{
    schedule::{EXCHANGE_BLOCK, Q80_BLOCK_BYTES, payload_bytes},
    topology::Exchange,
};

/// Appends `values` in the exchange format.
pub fn encode(exchange: Exchange, values: &[f32], out: &mut Vec<u8>) {
    out.reserve(payload_bytes(exchange, 1, values.len()));
    match exchange {
        Exchange::F32 => values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes())),
        Exchange::F16 => values.iter().for_each(|value| out.extend_from_slice(&to_f16(*value).to_le_bytes())),
        Exchange::Q80 => values.chunks(EXCHANGE_BLOCK).for_each(|block| encode_q80(block, out)),
    }
}

/// Adds the values of a payload of exactly `payload_bytes(exchange, 1, sum.len())` bytes to `sum`.
pub fn add(exchange: Exchange, payload: &[u8], sum: &mut [f32]) {
    assert_eq!(payload.len(), payload_bytes(exchange, 1, sum.len()), "the receiver checked the length");
    match exchange {
        Exchange::F32 => {
            for (value, bytes) in sum.iter_mut().zip(payload.as_chunks::<4>().0) {
                *value += f32::from_le_bytes(*bytes);
            }
        }
        Exchange::F16 => {
            for (value, bytes) in sum.iter_mut().zip(payload.as_chunks::<2>().0) {
                *value += f16::from_le_bytes(*bytes).to_f32();
            }
        }
        Exchange::Q80 => {
            for (values, block) in sum.chunks_mut(EXCHANGE_BLOCK).zip(payload.as_chunks::<Q80_BLOCK_BYTES>().0) {
                let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                for (value, byte) in values.iter_mut().zip(&block[2..]) {
                    *value += scale * f32::from(byte.cast_signed());
                }
            }
        }
    }
}

/// Rounds values as a trip over the wire would; nothing for f32.
pub fn round(exchange: Exchange, values: &mut [f32], scratch: &mut Vec<u8>) {
    if exchange == Exchange::F32 {
        return;
    }
    scratch.clear();
    encode(exchange, values, scratch);
    values.fill(0.0);
    add(exchange, scratch, values);
}

/// To nearest, ties to even; finite values stay finite.
fn to_f16(value: f32) -> f16 {
    f16::from_f32(value.clamp(-65504.0, 65504.0))
}

fn encode_q80(block: &[f32], out: &mut Vec<u8>) {
    let largest = block.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    // Beyond the range of f16 the scale saturates: finite values stay finite.
    let scale = f16::from_f32((largest / 127.0).min(65504.0));
    let inverse = if scale.to_f32() > 0.0 { 1.0 / scale.to_f32() } else { 0.0 };
    out.extend_from_slice(&scale.to_le_bytes());
    for index in 0..EXCHANGE_BLOCK {
        let value = block.get(index).copied().unwrap_or(0.0);
        let rounded = (value * inverse).round_ties_even().clamp(-127.0, 127.0);
        out.push((rounded as i8).cast_unsigned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q80_keeps_values_within_half_a_step_and_rounding_twice_changes_nothing() {
        let values: Vec<f32> = (0..80).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.173).collect();
        let mut rounded = values.clone();
        round(Exchange::Q80, &mut rounded, &mut Vec::new());
        for (block, before) in rounded.chunks(32).zip(values.chunks(32)) {
            let largest = before.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
            for (a, b) in block.iter().zip(before) {
                assert!((a - b).abs() <= largest / 127.0 * 0.51, "{a} for {b}");
            }
        }
        let mut extreme = vec![f32::MAX, -f32::MAX, 0.0, 1e-30];
        round(Exchange::Q80, &mut extreme, &mut Vec::new());
        assert!(extreme.iter().all(|value| value.is_finite()));
    }

    #[test]
    fn f32_travels_unchanged() {
        let values = [1.0e-40_f32, -3.5, f32::MAX];
        let mut bytes = Vec::new();
        encode(Exchange::F32, &values, &mut bytes);
        let mut sum = [0.0; 3];
        add(Exchange::F32, &bytes, &mut sum);
        assert_eq!(sum, values);
    }
}
