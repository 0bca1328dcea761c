//! AVX-512 with byte dot products (F, BW, VL, VNNI): 16 rows per panel.
#![expect(unsafe_code, reason = "vector instructions; a token is made only after the machine was asked for them")]
use std::{
    arch::{asm, x86_64::*},
    sync::OnceLock,
};

use super::{
    Kernels,
    panel::{Lanes, operations, table},
};

/// The kernel table, if this machine has the instructions.
pub(super) fn detect() -> Option<&'static Kernels> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    static TABLE: Kernels = table!("avx512", "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma,avx2", Avx512(()), Avx512);
    let found = FOUND.get_or_init(|| {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma")
    });
    found.then_some(&TABLE)
}

/// Proof that the machine has the instructions; created only in entries of the table.
#[derive(Clone, Copy)]
struct Avx512(());

impl Lanes for Avx512 {
    const ROWS: usize = 16;
    const TILES: &'static [usize] = &[1, 2, 4, 8, 16];
    const SIGNED: bool = false;
    const SIGNED_SMALL: bool = false;
    const PREFETCHES: bool = true;
    const UNROLLED: [usize; 2] = [16, 8];
    const SUMS: usize = 16;
    const HAS_DOT: bool = true;
    type Levels = __m512i;
    type Ints = __m512i;
    type Floats = __m512;
    type Low = Self;
    type High = Self;

    fn split(self) -> Option<(Self, Self)> {
        None
    }

    operations! {
        fn prefetch(line: *const u8) { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
        fn levels(bytes: &[u8]) -> __m512i { _mm512_loadu_si512(bytes[..64].as_ptr().cast()) }
        fn store_levels(levels: __m512i, out: &mut [u8]) { _mm512_storeu_si512(out[..64].as_mut_ptr().cast(), levels) }
        fn and(a: __m512i, mask: u8) -> __m512i { _mm512_and_si512(a, _mm512_set1_epi8(mask.cast_signed())) }
        fn or(a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn xor(a: __m512i, mask: u8) -> __m512i { _mm512_xor_si512(a, _mm512_set1_epi8(mask.cast_signed())) }
        fn right(a: __m512i, bits: u32) -> __m512i { _mm512_srl_epi16(a, _mm_cvtsi32_si128(bits.cast_signed())) }
        fn left(a: __m512i, bits: u32) -> __m512i { _mm512_sll_epi16(a, _mm_cvtsi32_si128(bits.cast_signed())) }
        fn spread(a: __m512i, first: u32) -> __m512i {
            let four = _mm512_and_si512(_mm512_srl_epi32(a, _mm_cvtsi32_si128(first.cast_signed())), _mm512_set1_epi32(15));
            _mm512_and_si512(_mm512_mullo_epi32(four, _mm512_set1_epi32(0x0020_4081)), _mm512_set1_epi8(1))
        }
        fn lookup(table: &[u8; 16], a: __m512i) -> __m512i {
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), a)
        }
        fn subtract_ints(a: __m512i, b: __m512i) -> __m512i { _mm512_sub_epi32(a, b) }
        fn ints(value: i32) -> __m512i { _mm512_set1_epi32(value) }
        fn convert(a: __m512i) -> __m512 { _mm512_cvtepi32_ps(a) }
        fn halves(bytes: &[u8]) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(bytes[..32].as_ptr().cast())) }
        fn upper_halves(bytes: &[u8]) -> __m512 {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bytes[..32].as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        }
        fn half_powers(bytes: &[u8]) -> __m512 {
            // Bits of floats: normal ones, and larger for 0 and 1 those of 2^-128 and 2^-127.
            let exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes[..16].as_ptr().cast()));
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)));
            let small = _mm512_slli_epi32::<21>(_mm512_add_epi32(exponents, _mm512_set1_epi32(1)));
            _mm512_castsi512_ps(_mm512_max_epi32(normal, small))
        }
        fn unsigned(bytes: &[u8]) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(bytes[..16].as_ptr().cast())))
        }
        fn signed(bytes: &[u8]) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes[..16].as_ptr().cast())))
        }
        fn floats(bytes: &[u8]) -> __m512 { _mm512_loadu_ps(bytes[..64].as_ptr().cast()) }
        fn load(values: &[f32]) -> __m512 { _mm512_loadu_ps(values[..16].as_ptr()) }
        fn store(a: __m512, out: &mut [f32]) { _mm512_storeu_ps(out[..16].as_mut_ptr(), a) }
        fn splat(value: f32) -> __m512 { _mm512_set1_ps(value) }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn multiply(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn divide(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn settle(a: __m512) -> __m512 {
            // Keeps memory reads after this point from moving before it.
            asm!("", options(nostack, preserves_flags));
            a
        }
        fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn total(a: __m512) -> f32 { _mm512_reduce_add_ps(a) }
        fn largest(a: __m512) -> f32 { _mm512_reduce_max_ps(a) }
        fn power(a: __m512, n: __m512) -> __m512 {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), exponent))
        }
    }

    #[inline(always)]
    fn dot<const QUADS: usize>(self, _: u32, tokens: usize, begin: __m512i, levels: &[__m512i], x: &[i8]) -> __m512i {
        let quads = x[..4 * QUADS].as_chunks::<4>().0;
        // Two sums if eight products of a token would wait for each other; otherwise too many tokens would have to be
        // in flight.
        let odd = usize::from(QUADS == 8 && tokens > 1);
        // SAFETY: the token proves the instructions; 16 activations are readable for each four quads.
        unsafe {
            let mut sums = [begin, _mm512_setzero_si512()];
            for four in 0..QUADS / 4 {
                let spread =
                    |quad: usize| _mm512_set1_epi32(i32::from_le_bytes(quads[4 * four + quad].map(i8::cast_unsigned)));
                // Half of the activations are broadcast by loads, half by shuffles, so that neither unit does all the
                // work.
                let all = _mm512_broadcast_i32x4(_mm_loadu_si128(quads[4 * four..4 * four + 4].as_ptr().cast()));
                let shuffled = tokens > 1;
                let second = if shuffled { _mm512_shuffle_epi32::<0x55>(all) } else { spread(1) };
                let fourth = if shuffled { _mm512_shuffle_epi32::<0xff>(all) } else { spread(3) };
                sums[0] = _mm512_dpbusd_epi32(sums[0], levels[4 * four], spread(0));
                sums[odd] = _mm512_dpbusd_epi32(sums[odd], levels[4 * four + 1], second);
                sums[0] = _mm512_dpbusd_epi32(sums[0], levels[4 * four + 2], spread(2));
                sums[odd] = _mm512_dpbusd_epi32(sums[odd], levels[4 * four + 3], fourth);
            }
            if odd == 1 { _mm512_add_epi32(sums[0], sums[1]) } else { sums[0] }
        }
    }
}
