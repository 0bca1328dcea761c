//! Products of weight rows in blocks of 32 columns and of floats. 32 weights become int8 lanes; `maddubs` and `madd` leave 8
//! sums, lanes 0-3 of the first 16 columns and 4-7 of the others, so that a scale for each 16 columns costs nothing.
use std::arch::x86_64::*;

use half::{bf16, f16};
use shared::gguf::BlockFormat;

use super::{
    super::ActivationRow,
    vector::{chains, half, load_32, products, sum, unsigned_products},
};

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes are readable; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// 16 bytes to 32 nibbles: low ones first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles(bytes: &[u8]) -> __m256i {
    let packed = load_16(bytes.first_chunk().expect("32 nibbles are 16 bytes"));
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

/// 32 bits to 32 bytes of 0 or 16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fifth_bits(bits: &[u8]) -> __m256i {
    let bits = i32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
    let spread = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread);
    let mask = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, mask), mask);
    _mm256_and_si256(is_set, _mm256_set1_epi8(16))
}

/// Two scales to the lanes of their sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn in_halves(scales: &[f32; 2]) -> __m256 {
    let both = u64::from(scales[1].to_bits()) << 32 | u64::from(scales[0].to_bits());
    let spread = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    _mm256_permutevar8x32_ps(_mm256_castsi256_ps(_mm256_set1_epi64x(both.cast_signed())), spread)
}

/// Weights times quants of the activations; what is left is to multiply with the scales of these.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn part_q8_0(block: &[u8; 34], x: __m256i) -> __m256 {
    scaled(half(block, 0), load_32(&block[2..]), x)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn part_q4_0(block: &[u8; 18], x: __m256i) -> __m256 {
    scaled(half(block, 0), _mm256_sub_epi8(nibbles(&block[2..]), _mm256_set1_epi8(8)), x)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn part_q5_0(block: &[u8; 22], x: __m256i) -> __m256 {
    let levels = _mm256_or_si256(nibbles(&block[6..]), fifth_bits(&block[2..]));
    scaled(half(block, 0), _mm256_sub_epi8(levels, _mm256_set1_epi8(16)), x)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn part_q5_1(block: &[u8; 24], x: __m256i) -> __m256 {
    let levels = _mm256_or_si256(nibbles(&block[8..]), fifth_bits(&block[4..]));
    let of_levels = _mm256_cvtepi32_ps(unsigned_products(levels, x));
    let of_ones = _mm256_cvtepi32_ps(unsigned_products(_mm256_set1_epi8(1), x));
    let minimum = _mm256_mul_ps(half(block, 2), of_ones);
    _mm256_fmadd_ps(half(block, 0), of_levels, minimum)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scaled(scale: __m256, weights: __m256i, x: __m256i) -> __m256 {
    _mm256_mul_ps(scale, _mm256_cvtepi32_ps(products(weights, x)))
}

macro_rules! dot {
    ($name:ident, $format:expr, $part:ident) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) fn $name(row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
            const BYTES: usize = $format.block_bytes();
            let blocks = &row.as_chunks::<BYTES>().0[skip..];
            let tokens = x.quants.as_chunks::<32>().0.iter().zip(x.scales.as_chunks::<2>().0);
            let mut lanes = _mm256_setzero_ps();
            for (block, (quants, scales)) in blocks.iter().zip(tokens) {
                let part = $part(block, load_32(quants));
                lanes = _mm256_fmadd_ps(in_halves(scales), part, lanes);
            }
            sum(lanes)
        }
    };
}

dot!(q8_0, BlockFormat::Q8_0, part_q8_0);
dot!(q4_0, BlockFormat::Q4_0, part_q4_0);
dot!(q5_0, BlockFormat::Q5_0, part_q5_0);
dot!(q5_1, BlockFormat::Q5_1, part_q5_1);

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn row_f32(row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
    let weights = &row[skip * 32 * 4..];
    let (values, rest) = x.values.as_chunks::<8>();
    let product =
        chains(&weights.as_chunks::<32>().0[..values.len()], values, |weights| _mm256_castsi256_ps(load_32(weights)));
    let last = weights[values.len() * 32..].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    product + rest.iter().zip(last).map(|(a, b)| a * b).sum::<f32>()
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn row_f16(row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
    let weights = &row[skip * 32 * 2..];
    let (values, rest) = x.values.as_chunks::<8>();
    let product =
        chains(&weights.as_chunks::<16>().0[..values.len()], values, |weights| _mm256_cvtph_ps(load_16(weights)));
    let last = weights[values.len() * 16..].as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32());
    product + rest.iter().zip(last).map(|(a, b)| a * b).sum::<f32>()
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn row_bf16(row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
    let weights = &row[skip * 32 * 2..];
    let (values, rest) = x.values.as_chunks::<8>();
    let product = chains(&weights.as_chunks::<16>().0[..values.len()], values, |weights| {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_16(weights))))
    });
    let last = weights[values.len() * 16..].as_chunks::<2>().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32());
    product + rest.iter().zip(last).map(|(a, b)| a * b).sum::<f32>()
}
