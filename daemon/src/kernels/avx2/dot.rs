//! Products of weight rows. 32 weights become int8 lanes; `maddubs` and `madd` leave 8 sums, lanes 0-3 of the first 16
//! columns and 4-7 of the others, so that a scale for each 16 columns costs nothing.
use std::arch::x86_64::*;

use half::{bf16, f16};
use shared::gguf::BlockFormat;

use super::{
    super::{ActivationRow, scalar::min_of},
    vector::{load, sum},
};

/// 32 weights in lanes: `scales * quants - min`, scales for lanes 0-3 and 4-7 of the sums.
struct Part {
    quants: __m256i,
    scales: __m256,
    min: f32,
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn half(block: &[u8], at: usize) -> f32 {
    let bits = i32::from(u16::from_le_bytes([block[at], block[at + 1]]));
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_32(bytes: &[u8]) -> __m256i {
    let bytes: &[u8; 32] = bytes.first_chunk().expect("a part has 32 bytes");
    // SAFETY: 32 bytes are readable; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// 16 bytes to 32 nibbles: low ones first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles(bytes: &[u8]) -> __m256i {
    let bytes: &[u8; 16] = bytes.first_chunk().expect("32 nibbles are 16 bytes");
    // SAFETY: 16 bytes are readable; the load needs no alignment.
    let packed = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
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

/// `bytes >> shift & mask` in each byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shifted(bytes: __m256i, shift: usize, mask: i8) -> __m256i {
    let moved = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(shift as i32));
    _mm256_and_si256(moved, _mm256_set1_epi8(mask))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn part_q8_0(block: &[u8], _: usize) -> Part {
    Part { quants: load_32(&block[2..]), scales: _mm256_set1_ps(half(block, 0)), min: 0.0 }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn part_q4_0(block: &[u8], _: usize) -> Part {
    let quants = _mm256_sub_epi8(nibbles(&block[2..]), _mm256_set1_epi8(8));
    Part { quants, scales: _mm256_set1_ps(half(block, 0)), min: 0.0 }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn part_q5_0(block: &[u8], _: usize) -> Part {
    let levels = _mm256_or_si256(nibbles(&block[6..]), fifth_bits(&block[2..]));
    let quants = _mm256_sub_epi8(levels, _mm256_set1_epi8(16));
    Part { quants, scales: _mm256_set1_ps(half(block, 0)), min: 0.0 }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn part_q5_1(block: &[u8], _: usize) -> Part {
    let quants = _mm256_or_si256(nibbles(&block[8..]), fifth_bits(&block[4..]));
    Part { quants, scales: _mm256_set1_ps(half(block, 0)), min: -half(block, 2) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn part_q4_k(block: &[u8], part: usize) -> Part {
    let (scale, min) = min_of(block, part);
    let quants = shifted(load_32(&block[16 + part / 2 * 32..]), part % 2 * 4, 15);
    Part { quants, scales: _mm256_set1_ps(scale), min }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn part_q5_k(block: &[u8], part: usize) -> Part {
    let (scale, min) = min_of(block, part);
    let low = shifted(load_32(&block[48 + part / 2 * 32..]), part % 2 * 4, 15);
    let fifth = _mm256_slli_epi16::<4>(shifted(load_32(&block[16..]), part, 1));
    Part { quants: _mm256_or_si256(low, fifth), scales: _mm256_set1_ps(scale), min }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn part_q6_k(block: &[u8], part: usize) -> Part {
    let (half_of, quarter) = (part / 4, part % 4);
    let low = shifted(load_32(&block[half_of * 64 + quarter % 2 * 32..]), quarter / 2 * 4, 15);
    let high = _mm256_slli_epi16::<4>(shifted(load_32(&block[128 + half_of * 32..]), quarter * 2, 3));
    let quants = _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(32));
    let whole = half(block, 208);
    let scale = |group: usize| whole * f32::from(block[192 + part * 2 + group].cast_signed());
    Part { quants, scales: _mm256_set_m128(_mm_set1_ps(scale(1)), _mm_set1_ps(scale(0))), min: 0.0 }
}

/// Integer products of 32 weights and 32 activations: 8 sums of 4 neighbours.
///
/// |weight| <= 128 and |activation| <= 127: two products are at most 32 512, which 16 bits hold.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn products(weights: __m256i, x: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

macro_rules! dot {
    ($name:ident, $format:expr, $part:ident) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) fn $name(row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
            const FORMAT: BlockFormat = $format;
            let per_block = FORMAT.block_length() / 32;
            let mut lanes = _mm256_setzero_ps();
            let mut mins = 0.0;
            let groups = x.scales.as_chunks::<2>().0.iter().zip(x.sums.as_chunks::<2>().0);
            for (block, (quants, (scales, sums))) in x.quants.as_chunks::<32>().0.iter().zip(groups).enumerate() {
                let place = skip + block;
                let bytes = &row[place / per_block * FORMAT.block_bytes()..][..FORMAT.block_bytes()];
                let part = $part(bytes, place % per_block);
                // SAFETY: 32 bytes are readable; the load needs no alignment.
                let quants = unsafe { _mm256_loadu_si256(quants.as_ptr().cast()) };
                let scale = _mm256_set_m128(_mm_set1_ps(scales[1]), _mm_set1_ps(scales[0]));
                let sums_of = _mm256_cvtepi32_ps(products(part.quants, quants));
                lanes = _mm256_fmadd_ps(_mm256_mul_ps(scale, part.scales), sums_of, lanes);
                mins += part.min * (scales[0] * f32::from(sums[0]) + scales[1] * f32::from(sums[1]));
            }
            sum(lanes) - mins
        }
    };
}

dot!(q8_0, BlockFormat::Q8_0, part_q8_0);
dot!(q4_0, BlockFormat::Q4_0, part_q4_0);
dot!(q5_0, BlockFormat::Q5_0, part_q5_0);
dot!(q5_1, BlockFormat::Q5_1, part_q5_1);
dot!(q4_k, BlockFormat::Q4K, part_q4_k);
dot!(q5_k, BlockFormat::Q5K, part_q5_k);
dot!(q6_k, BlockFormat::Q6K, part_q6_k);

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn row_f32(row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
    let weights = &row[skip * 32 * 4..];
    let (values, rest) = x.values.as_chunks::<8>();
    let mut lanes = _mm256_setzero_ps();
    for (weights, values) in weights.as_chunks::<32>().0.iter().zip(values) {
        // SAFETY: 8 floats are 32 readable bytes; the load needs no alignment.
        let weights = unsafe { _mm256_loadu_ps(weights.as_ptr().cast()) };
        lanes = _mm256_fmadd_ps(weights, load(values), lanes);
    }
    let last = weights[values.len() * 32..].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    sum(lanes) + rest.iter().zip(last).map(|(a, b)| a * b).sum::<f32>()
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn row_f16(row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
    let weights = &row[skip * 32 * 2..];
    let (values, rest) = x.values.as_chunks::<8>();
    let mut lanes = _mm256_setzero_ps();
    for (weights, values) in weights.as_chunks::<16>().0.iter().zip(values) {
        // SAFETY: 8 halves are 16 readable bytes; the load needs no alignment.
        let weights = _mm256_cvtph_ps(unsafe { _mm_loadu_si128(weights.as_ptr().cast()) });
        lanes = _mm256_fmadd_ps(weights, load(values), lanes);
    }
    let last = weights[values.len() * 16..].as_chunks::<2>().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32());
    sum(lanes) + rest.iter().zip(last).map(|(a, b)| a * b).sum::<f32>()
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn row_bf16(row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
    let weights = &row[skip * 32 * 2..];
    let (values, rest) = x.values.as_chunks::<8>();
    let mut lanes = _mm256_setzero_ps();
    for (weights, values) in weights.as_chunks::<16>().0.iter().zip(values) {
        // SAFETY: 8 bfloats are 16 readable bytes; the load needs no alignment.
        let bits = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(weights.as_ptr().cast()) });
        let weights = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits));
        lanes = _mm256_fmadd_ps(weights, load(values), lanes);
    }
    let last = weights[values.len() * 16..].as_chunks::<2>().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32());
    sum(lanes) + rest.iter().zip(last).map(|(a, b)| a * b).sum::<f32>()
}
