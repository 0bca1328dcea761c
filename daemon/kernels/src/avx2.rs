//! AVX2 with FMA and F16C: 8 rows per panel.
#![expect(unsafe_code, reason = "vector instructions; a token is made only after the machine was asked for them")]
use std::{arch::x86_64::*, sync::OnceLock};

use super::{
    Kernels,
    grids::Grid,
    panel::{Lanes, operations, table},
    values::{PARITIES, SIGN_BITS, SIGN_CARRIES},
};

/// The kernel table, if this machine has the instructions.
pub(super) fn detect() -> Option<&'static Kernels> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    static TABLE: Kernels = table!("avx2", "avx2,fma,f16c", Avx2(()), Avx2);
    let found = FOUND.get_or_init(|| {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
    });
    found.then_some(&TABLE)
}

/// Proof that the machine has the instructions; created only in entries of the table.
#[derive(Clone, Copy)]
struct Avx2(());

impl Lanes for Avx2 {
    const ROWS: usize = 8;
    const TILES: &'static [usize] = &[1, 2, 4, 8, 16];
    // 8-bit levels are signed, because products of unsigned ones would not fit into 16 bits.
    const SIGNED: bool = true;
    const SIGNED_SMALL: bool = false;
    const PREFETCHES: bool = true;
    const UNROLLED: [usize; 2] = [0, 0];
    const SUMS: usize = 8;
    const HAS_DOT: bool = false;
    type Levels = __m256i;
    type Ints = __m256i;
    type Floats = __m256;
    type Low = Self;
    type High = Self;

    fn split(self) -> Option<(Self, Self)> {
        None
    }

    operations! {
        fn prefetch(line: *const u8) { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
        fn prefetch_far(line: *const u8) { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
        fn levels(bytes: &[u8]) -> __m256i { _mm256_loadu_si256(bytes[..32].as_ptr().cast()) }
        fn store_levels(levels: __m256i, out: &mut [u8]) { _mm256_storeu_si256(out[..32].as_mut_ptr().cast(), levels) }
        fn and(a: __m256i, mask: u8) -> __m256i { _mm256_and_si256(a, _mm256_set1_epi8(mask.cast_signed())) }
        fn or(a: __m256i, b: __m256i) -> __m256i { _mm256_or_si256(a, b) }
        fn xor(a: __m256i, mask: u8) -> __m256i { _mm256_xor_si256(a, _mm256_set1_epi8(mask.cast_signed())) }
        fn right(a: __m256i, bits: u32) -> __m256i { _mm256_srl_epi16(a, _mm_cvtsi32_si128(bits.cast_signed())) }
        fn left(a: __m256i, bits: u32) -> __m256i { _mm256_sll_epi16(a, _mm_cvtsi32_si128(bits.cast_signed())) }
        fn spread(a: __m256i, first: u32) -> __m256i {
            let four = _mm256_and_si256(_mm256_srl_epi32(a, _mm_cvtsi32_si128(first.cast_signed())), _mm256_set1_epi32(15));
            _mm256_and_si256(_mm256_mullo_epi32(four, _mm256_set1_epi32(0x0020_4081)), _mm256_set1_epi8(1))
        }
        fn lookup(table: &[u8; 16], a: __m256i) -> __m256i {
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), a)
        }
        fn sevens(words: __m256i) -> __m256i {
            // Two groups of 14 bits, then four of 7.
            let high = _mm256_slli_epi32::<2>(_mm256_and_si256(words, _mm256_set1_epi32(0x0fff_c000)));
            let pairs = _mm256_or_si256(_mm256_and_si256(words, _mm256_set1_epi32(0x3fff)), high);
            _mm256_add_epi32(pairs, _mm256_and_si256(pairs, _mm256_set1_epi32(0x3f80_3f80)))
        }
        fn even_signs(a: __m256i) -> __m256i {
            let folded = _mm256_and_si256(_mm256_xor_si256(a, _mm256_srli_epi16::<4>(a)), _mm256_set1_epi8(15));
            let parities = _mm256_broadcastsi128_si256(_mm_loadu_si128(PARITIES.as_ptr().cast()));
            _mm256_or_si256(a, _mm256_shuffle_epi8(parities, folded))
        }
        fn replace_signs(nibbles: __m256i, signs: __m256i, group: usize) -> __m256i {
            let first = _mm256_broadcastsi128_si256(_mm_set_epi32(0x0c0c_0c0c, 0x0808_0808, 0x0404_0404, 0));
            let bits = _mm256_and_si256(
                _mm256_shuffle_epi8(signs, _mm256_add_epi8(first, _mm256_set1_epi8(group as i8))),
                _mm256_set1_epi32(SIGN_BITS),
            );
            // Adding carries each bit to the top of its nibble.
            let tops = _mm256_add_epi8(bits, _mm256_set1_epi32(SIGN_CARRIES));
            let mask = _mm256_set1_epi32(0x8888_8888_u32.cast_signed());
            _mm256_or_si256(_mm256_andnot_si256(mask, nibbles), _mm256_and_si256(mask, tops))
        }
        fn top_nibbles(words: __m256i) -> __m256 { _mm256_cvtepi32_ps(_mm256_srli_epi32::<28>(words)) }
        fn subtract_ints(a: __m256i, b: __m256i) -> __m256i { _mm256_sub_epi32(a, b) }
        fn ints(value: i32) -> __m256i { _mm256_set1_epi32(value) }
        fn convert(a: __m256i) -> __m256 { _mm256_cvtepi32_ps(a) }
        fn halves(bytes: &[u8]) -> __m256 { _mm256_cvtph_ps(_mm_loadu_si128(bytes[..16].as_ptr().cast())) }
        fn upper_halves(bytes: &[u8]) -> __m256 {
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes[..16].as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        }
        fn half_powers(bytes: &[u8]) -> __m256 {
            // Bits of floats: normal ones, and larger for 0 and 1 those of 2^-128 and 2^-127.
            let exponents = _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes[..8].as_ptr().cast()));
            let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)));
            let small = _mm256_slli_epi32::<21>(_mm256_add_epi32(exponents, _mm256_set1_epi32(1)));
            _mm256_castsi256_ps(_mm256_max_epi32(normal, small))
        }
        fn unsigned(bytes: &[u8]) -> __m256 {
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes[..8].as_ptr().cast())))
        }
        fn signed(bytes: &[u8]) -> __m256 {
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes[..8].as_ptr().cast())))
        }
        fn floats(bytes: &[u8]) -> __m256 { _mm256_loadu_ps(bytes[..32].as_ptr().cast()) }
        fn load(values: &[f32]) -> __m256 { _mm256_loadu_ps(values[..8].as_ptr()) }
        fn store(a: __m256, out: &mut [f32]) { _mm256_storeu_ps(out[..8].as_mut_ptr(), a) }
        fn splat(value: f32) -> __m256 { _mm256_set1_ps(value) }
        fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        fn multiply(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        fn divide(a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        fn multiply_add(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        fn max(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        fn total(a: __m256) -> f32 {
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
        fn largest(a: __m256) -> f32 {
            let four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
        fn power(a: __m256, n: __m256) -> __m256 {
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), exponent))
        }
    }

    #[inline(always)]
    fn pick_bytes(self, grid: &Grid<256>, indices: &[u8]) -> [__m256i; 4] {
        let rows = &indices.as_chunks::<8>().0[..4];
        [
            entries(grid, rows[0].map(usize::from)),
            entries(grid, rows[1].map(usize::from)),
            entries(grid, rows[2].map(usize::from)),
            entries(grid, rows[3].map(usize::from)),
        ]
    }

    #[inline(always)]
    fn pick_words(self, grid: &Grid<512>, indices: &[u8]) -> [__m256i; 2] {
        let rows = &indices.as_chunks::<2>().0.as_chunks::<8>().0[..2];
        [
            entries(grid, rows[0].map(|bytes| u16::from_le_bytes(bytes).into())),
            entries(grid, rows[1].map(|bytes| u16::from_le_bytes(bytes).into())),
        ]
    }

    #[inline(always)]
    fn pick_split<const N: usize>(self, grid: &Grid<N>, low: &[u8], high: &[u8], shifts: [u32; 2]) -> [__m256i; 2] {
        let (low, high) = (&low[..16], &high[..8]);
        let (mut a, mut b) = ([0; 8], [0; 8]);
        for row in 0..8 {
            a[row] = usize::from(low[row]) | usize::from(high[row]) >> shifts[0] << 8;
            b[row] = usize::from(low[8 + row]) | usize::from(high[row]) >> shifts[1] << 8;
        }
        [entries(grid, a), entries(grid, b)]
    }

    /// 16 bits hold the sum of two products of 8-bit levels (|level| <= 128, |x| <= 127: 32 512) or of smaller ones, of 8
    /// products of 5-bit levels (31 * 127 * 8 = 31 496) and of 16 products of 4-bit levels.
    #[inline(always)]
    fn dot<const QUADS: usize>(self, bits: u32, _: usize, begin: __m256i, levels: &[__m256i], x: &[i8]) -> __m256i {
        let quads = x[..4 * QUADS].as_chunks::<4>().0;
        let mut sum = begin;
        // SAFETY: the token proves the instructions.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut pairs = _mm256_setzero_si256();
            for index in 0..QUADS {
                let x = _mm256_set1_epi32(i32::from_le_bytes(quads[index].map(i8::cast_unsigned)));
                let level = levels[index];
                let products = if bits == 8 {
                    _mm256_maddubs_epi16(_mm256_abs_epi8(level), _mm256_sign_epi8(x, level))
                } else {
                    _mm256_maddubs_epi16(level, x)
                };
                pairs = if bits > 5 || index == 0 || (bits == 5 && index == 4) {
                    products
                } else {
                    _mm256_add_epi16(pairs, products)
                };
                if bits > 5 || index + 1 == QUADS || (bits == 5 && index == 3) {
                    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
                }
            }
        }
        sum
    }
}

/// The entries of a grid for indices, which are taken modulo `N`. (A gather takes longer than these loads.)
#[inline(always)]
fn entries<const N: usize>(grid: &Grid<N>, indices: [usize; 8]) -> __m256i {
    let [a, b, c, d, e, f, g, h] = indices.map(|index| grid.entries[index % N].cast_signed());
    // SAFETY: only the table calls this.
    unsafe { _mm256_setr_epi32(a, b, c, d, e, f, g, h) }
}
