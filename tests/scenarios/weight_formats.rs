//! The weight formats: round trips, and comparison with bytes worked out by hand.

use gguf::BlockFormat;
use half::f16;
use harness::dequantise::dequantise;
use harness::quantise::quantise;
use harness::random::Random;
use kernels::Kernels;

/// Largest error that plain rounding may leave, relative to the largest weight of the block.
fn tolerance(format: BlockFormat) -> f32 {
    match format {
        BlockFormat::F32 => 0.0,
        BlockFormat::F16 => 1.0 / 2048.0,
        BlockFormat::BF16 => 1.0 / 256.0,
        // Half a step, and half an ulp of the f16 scale.
        BlockFormat::Q8_0 => 0.5 / 127.0 + 0.001,
        BlockFormat::Q4_0 => 1.0 / 8.0 + 0.001,
        BlockFormat::Q5_0 => 1.0 / 16.0 + 0.001,
        BlockFormat::Q4_1 => 1.0 / 15.0 + 0.002,
        BlockFormat::Q5_1 => 1.0 / 31.0 + 0.002,
        // Half a step of a range of twice the largest weight; the scale is off by half of its step three times, the
        // minimum once.
        BlockFormat::Q2K => 1.0 / 3.0 + 1.0 / 15.0 + 0.5 / 15.0,
        BlockFormat::Q3K => 1.0 / 4.0 + 0.5 / 31.0,
        // Half of the widest step, plus the end that is nearer to 0.
        BlockFormat::Iq4Nl => 14.0 / 127.0 + 0.001,
        BlockFormat::Iq4Xs => 14.0 / 127.0 + 1.0 / 31.0,
        BlockFormat::Mxfp4 => 1.0 / 4.0,
        // Like the previous one, with scale and minimum rounded to 63 levels.
        BlockFormat::Q4K => 1.0 / 15.0 + 3.0 / 63.0,
        BlockFormat::Q5K => 1.0 / 31.0 + 3.0 / 63.0,
        BlockFormat::Q6K => 1.0 / 32.0 + 1.0 / 127.0,
        // Only some combinations of magnitudes exist.
        BlockFormat::Iq3S => 0.5,
        BlockFormat::Iq2S => 0.9,
        // One of 8 signs may be wrong.
        BlockFormat::Iq3Xxs | BlockFormat::Iq2Xxs | BlockFormat::Iq2Xs => 1.25,
    }
}

#[track_caller]
fn check(format: BlockFormat, weights: &[f32]) {
    let bytes = quantise(format, weights);
    let back = dequantise(format, &bytes);
    assert_eq!(back.len(), weights.len(), "{format:?}");
    for (block, (wanted, found)) in
        weights.chunks(format.block_length()).zip(back.chunks(format.block_length())).enumerate()
    {
        let largest = wanted.iter().fold(0f32, |most, w| most.max(w.abs()));
        for (i, (w, f)) in wanted.iter().zip(found).enumerate() {
            let within = (w - f).abs() <= largest * tolerance(format) + 1e-7;
            assert!(within, "{format:?} block {block} weight {i}: {w} came back as {f}, largest {largest}");
        }
    }
}

#[test]
fn every_format_gives_weights_back_within_its_rounding() {
    for format in BlockFormat::ALL {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            check(format, &random.normals(1024, 0.05));
            // One-sided blocks: the minimum of Q4_K and Q5_K must not be above 0.
            let shifted: Vec<f32> = random.normals(512, 0.1).iter().map(|w| w + 1.0).collect();
            check(format, &shifted);
            let negated: Vec<f32> = shifted.iter().map(|w| -w).collect();
            check(format, &negated);
        }
        check(format, &[0.0; 256]);
    }
}

/// Bound of the error of a single weight of 1 and of zeros next to it: a grid has no zeros.
fn smallest(format: BlockFormat) -> f32 {
    match format {
        BlockFormat::Iq3Xxs | BlockFormat::Iq3S => 13.0 / 62.0,
        BlockFormat::Iq2Xxs | BlockFormat::Iq2Xs | BlockFormat::Iq2S => 9.0 / 43.0,
        _ => 0.02,
    }
}

/// Distinguishes every element: a single non-zero weight comes back in its place and nowhere else.
#[test]
fn a_single_weight_comes_back_at_its_place() {
    for format in BlockFormat::ALL {
        for place in 0..256 {
            for sign in [1.0, -1.0] {
                let mut weights = [0.0; 256];
                weights[place] = sign;
                let back = dequantise(format, &quantise(format, &weights));
                for (i, found) in back.iter().enumerate() {
                    let wanted = if i == place { sign } else { 0.0 };
                    assert!((found - wanted).abs() < smallest(format), "{format:?} {place}: weight {i} is {found}");
                }
            }
        }
    }
}

/// The daemon's reference on any bytes, not only those that `quantise` writes.
#[test]
fn reference_kernels_read_any_block_as_described() {
    for format in BlockFormat::ALL {
        let mut random = Random::named(5, format.name());
        let blocks = 400 * 256 / format.block_length();
        let mut bytes: Vec<u8> = (0..blocks * format.block_bytes()).map(|_| random.next_u64() as u8).collect();
        if format == BlockFormat::Mxfp4 {
            // The largest exponent is no number.
            bytes.chunks_exact_mut(17).for_each(|block| block[0] = block[0].min(254));
        }
        let wanted = dequantise(format, &bytes);
        let mut found = vec![0.0; wanted.len()];
        Kernels::SCALAR.dequantise_row(format, &bytes, &mut found);
        for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
            let within = (found - wanted).abs() <= 1e-6 * wanted.abs().max(1e-30);
            let holds = if wanted.is_finite() { within } else { !found.is_finite() };
            assert!(holds, "{format:?} weight {i}: {found} instead of {wanted}");
        }
    }
}

fn half(value: f32) -> [u8; 2] {
    f16::from_f32(value).to_le_bytes()
}

#[test]
fn a_q4_0_block_is_read_as_described() {
    let mut block = half(0.5).to_vec();
    block.extend((0..16).map(|i| i | (15 - i) << 4));
    let weights = dequantise(BlockFormat::Q4_0, &block);
    let first = (0..16).map(|i| 0.5 * (i as f32 - 8.0));
    let last = (0..16).map(|i| 0.5 * (7.0 - i as f32));
    assert_eq!(weights, first.chain(last).collect::<Vec<f32>>());
}

#[test]
fn a_q5_1_block_is_read_as_described() {
    let mut block = [half(0.25), half(-3.0)].concat();
    // Fifth bits of weights 1 and 31.
    block.extend(0x8000_0002u32.to_le_bytes());
    block.extend([0x21; 16]);
    let weights = dequantise(BlockFormat::Q5_1, &block);
    for (i, weight) in weights.iter().enumerate() {
        let level = if i < 16 { 1.0 } else { 2.0 } + if i == 1 || i == 31 { 16.0 } else { 0.0 };
        assert_eq!(*weight, 0.25 * level - 3.0, "weight {i}");
    }
}

#[test]
fn a_q5_k_block_is_read_as_described() {
    let mut block = [half(0.5), half(0.25)].concat();
    // Scales 1 to 8 and minima 40 to 47: the last four of each are split in two.
    block.extend([1, 2, 3, 4, 40 | 2 << 6, 41 | 2 << 6, 42 | 2 << 6, 43 | 2 << 6]);
    block.extend([5 | 12 << 4, 6 | 13 << 4, 7 | 14 << 4, 8 | 15 << 4]);
    // Fifth bits of sub-blocks 0 and 7.
    block.extend([0x81; 32]);
    block.extend([0x93; 128]);
    let weights = dequantise(BlockFormat::Q5K, &block);
    for (i, weight) in weights.iter().enumerate() {
        let sub = i / 32;
        let level = if sub % 2 == 0 { 3.0 } else { 9.0 } + if sub == 0 || sub == 7 { 16.0 } else { 0.0 };
        let wanted = 0.5 * (sub + 1) as f32 * level - 0.25 * (40 + sub) as f32;
        assert_eq!(*weight, wanted, "weight {i}");
    }
}

#[test]
fn a_q6_k_block_is_read_as_described() {
    let mut block = vec![0xa5; 128];
    // Upper bits 0, 1, 2, 3 for the quarters of each half.
    block.extend([0b11_10_01_00; 64]);
    block.extend((0..16i8).map(|i| (i - 8) as u8));
    block.extend(half(0.5));
    let weights = dequantise(BlockFormat::Q6K, &block);
    for (i, weight) in weights.iter().enumerate() {
        let quarter = i % 128 / 32;
        let low = if quarter < 2 { 5.0 } else { 10.0 };
        let wanted = 0.5 * (i as f32 / 16.0).floor().mul_add(1.0, -8.0) * (low + 16.0 * quarter as f32 - 32.0);
        assert_eq!(*weight, wanted, "weight {i}");
    }
}
