//! Dense f32 and f16 vectors.
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

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load(values: &[f32; 8]) -> __m256 {
    // SAFETY: 8 floats are readable; the load needs no alignment.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
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

/// The last elements one by one; returned as a sum.
fn tail(a: &[f32], b: impl Iterator<Item = f32>) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_f32(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut lanes = _mm256_setzero_ps();
    for (a, b) in a.iter().zip(b) {
        lanes = _mm256_fmadd_ps(load(a), load(b), lanes);
    }
    sum(lanes) + tail(a_rest, b_rest.iter().copied())
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn dot_f16(a: &[f32], b: &[u16]) -> f32 {
    assert_eq!(a.len(), b.len());
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut lanes = _mm256_setzero_ps();
    for (a, b) in a.iter().zip(b) {
        lanes = _mm256_fmadd_ps(load(a), load_halves(b), lanes);
    }
    sum(lanes) + tail(a_rest, b_rest.iter().map(|bits| f16::from_bits(*bits).to_f32()))
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
