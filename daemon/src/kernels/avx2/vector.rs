//! Dense f32 and f16 vectors, and what products of all formats are made of.
use std::arch::x86_64::*;

use half::f16;

use super::super::{GROUP, scalar};

/// Sum of 8 lanes, pairwise.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn sum(lanes: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps::<1>(lanes));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn read(words: &[u64]) -> u64 {
    scalar::read(words)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load(values: &[f32; 8]) -> __m256 {
    // SAFETY: 8 floats are readable; the load needs no alignment.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

/// The value of the half float at `at`, in all lanes. Not as one lane: the compiler would insert the half into the register of
/// the caller's running sum, and each block would wait for the one before (measured: a third of the speed).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn half(block: &[u8], at: usize) -> __m256 {
    let bits = u16::from_le_bytes([block[at], block[at + 1]]);
    _mm256_cvtph_ps(_mm_set1_epi16(bits.cast_signed()))
}

/// A type of one byte, any value of which is a lane.
pub(super) trait Byte: Copy {}
impl Byte for u8 {}
impl Byte for i8 {}

/// The first 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load_32<B: Byte>(bytes: &[B]) -> __m256i {
    let bytes: &[B; 32] = bytes.first_chunk().expect("a part has 32 bytes");
    // SAFETY: 32 bytes are readable; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Integer products of 32 weights and 32 activations: 8 sums of 4 neighbours.
///
/// |weight| <= 128 and |activation| <= 127: two products are at most 32 512, which 16 bits hold.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn products(weights: __m256i, x: __m256i) -> __m256i {
    unsigned_products(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights))
}

/// As `products`, of weights that are at least 0.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unsigned_products(weights: __m256i, x: __m256i) -> __m256i {
    _mm256_madd_epi16(_mm256_maddubs_epi16(weights, x), _mm256_set1_epi16(1))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store(values: &mut [f32; 8], lanes: __m256) {
    // SAFETY: 8 floats are writable; the store needs no alignment.
    unsafe { _mm256_storeu_ps(values.as_mut_ptr(), lanes) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_halves(values: &[u16; 8]) -> __m256 {
    // SAFETY: 8 halves are 16 readable bytes; the load needs no alignment.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(values.as_ptr().cast()) })
}

/// Sum of products of chunks of 8, in four chains: one alone would wait for each addition.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn chains<W>(weights: &[W], values: &[[f32; 8]], load_weights: impl Fn(&W) -> __m256) -> f32 {
    let ((weights, weights_rest), (values, values_rest)) = (weights.as_chunks::<4>(), values.as_chunks::<4>());
    let mut lanes = [_mm256_setzero_ps(); 4];
    for (weights, values) in weights.iter().zip(values) {
        for chain in 0..4 {
            lanes[chain] = _mm256_fmadd_ps(load_weights(&weights[chain]), load(&values[chain]), lanes[chain]);
        }
    }
    for (weights, values) in weights_rest.iter().zip(values_rest) {
        lanes[0] = _mm256_fmadd_ps(load_weights(weights), load(values), lanes[0]);
    }
    sum(_mm256_add_ps(_mm256_add_ps(lanes[0], lanes[2]), _mm256_add_ps(lanes[1], lanes[3])))
}

/// The last elements one by one; returned as a sum.
fn tail(a: &[f32], b: impl Iterator<Item = f32>) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_f32(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    chains(b, a, |b| load(b)) + tail(a_rest, b_rest.iter().copied())
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_f16(a: &[f32], b: &[u16]) -> f32 {
    assert_eq!(a.len(), b.len());
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    chains(b, a, |b| load_halves(b)) + tail(a_rest, b_rest.iter().map(|bits| f16::from_bits(*bits).to_f32()))
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn accumulate_f32(out: &mut [f32], a: f32, x: &[f32]) {
    assert_eq!(out.len(), x.len());
    let ((out, out_rest), (x, x_rest)) = (out.as_chunks_mut::<8>(), x.as_chunks::<8>());
    for (out, x) in out.iter_mut().zip(x) {
        let lanes = _mm256_fmadd_ps(_mm256_set1_ps(a), load(x), load(out));
        store(out, lanes);
    }
    out_rest.iter_mut().zip(x_rest).for_each(|(out, x)| *out += a * x);
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn accumulate_f16(out: &mut [f32], a: f32, x: &[u16]) {
    assert_eq!(out.len(), x.len());
    let ((out, out_rest), (x, x_rest)) = (out.as_chunks_mut::<8>(), x.as_chunks::<8>());
    for (out, x) in out.iter_mut().zip(x) {
        let lanes = _mm256_fmadd_ps(_mm256_set1_ps(a), load_halves(x), load(out));
        store(out, lanes);
    }
    out_rest.iter_mut().zip(x_rest).for_each(|(out, x)| *out += a * f16::from_bits(*x).to_f32());
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn to_f16(values: &[f32], out: &mut [u16]) {
    assert_eq!(out.len(), values.len());
    let ((values, values_rest), (out, out_rest)) = (values.as_chunks::<8>(), out.as_chunks_mut::<8>());
    for (value, out) in values.iter().zip(out) {
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(load(value));
        // SAFETY: 8 halves are 16 writable bytes; the store needs no alignment.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), halves) };
    }
    out_rest.iter_mut().zip(values_rest).for_each(|(out, value)| *out = f16::from_f32(*value).to_bits());
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len());
    let inverse = 1.0 / (dot_f32(x, x) / x.len() as f32 + epsilon).sqrt();
    out.iter_mut().zip(x).zip(weight).for_each(|((out, x), weight)| *out = x * inverse * weight);
}

/// As the scalar one, byte for byte: the same text, compiled for these instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quantize(values: &[f32], quants: &mut [i8], scales: &mut [f32], sums: &mut [i16]) {
    const { assert!(GROUP == 16) };
    scalar::quantize(values, quants, scales, sums);
}
