//! AVX-512 with byte dot products (F, BW, VL, VNNI): 16 rows per panel. A second table has byte permutations (VBMI).
#![expect(unsafe_code, reason = "vector instructions; a token is made only after the machine was asked for them")]
use std::{
    arch::{asm, x86_64::*},
    sync::OnceLock,
};

use gguf::BlockFormat;

use super::{
    Block, Kernels, Panel,
    grids::Grid,
    panel::{self, Lanes, entry, operations, table},
    values::{PARITIES, SIGN_BITS, SIGN_CARRIES},
};

/// The table of machines without byte permutations.
const PLAIN: Kernels =
    table!("avx512", "avx512f,avx512bw,avx512vl,avx512vnni,f16c,fma,avx2", Avx512::<false>(()), Avx512<false>);

/// The kernels of a format with byte permutations.
macro_rules! with_bytes {
    ($format:ident) => {
        Panel::Quantised(entry!(
            "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,f16c,fma,avx2",
            |weights: &[u8], tokens: usize, x: &[Block], out: &mut [f32]| {
                panel::panel::<Avx512<true>, panel::$format>(Avx512(()), weights, tokens, x, out)
            }
        ))
    };
}

/// The table of machines with byte permutations, which only the formats with grids use.
const WITH_BYTES: Kernels = {
    let mut panels = PLAIN.panels;
    panels[BlockFormat::Iq3Xxs as usize] = with_bytes!(Iq3Xxs);
    panels[BlockFormat::Iq2Xxs as usize] = with_bytes!(Iq2Xxs);
    panels[BlockFormat::Iq3S as usize] = with_bytes!(Iq3S);
    panels[BlockFormat::Iq2S as usize] = with_bytes!(Iq2S);
    panels[BlockFormat::Iq2Xs as usize] = with_bytes!(Iq2Xs);
    Kernels { name: "avx512-vbmi", panels, ..PLAIN }
};

/// The tables that this machine can run, the fastest last.
pub(super) fn detect() -> impl Iterator<Item = &'static Kernels> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    static TABLES: [Kernels; 2] = [PLAIN, WITH_BYTES];
    let found = FOUND.get_or_init(|| {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma")
    });
    let count = if *found { 1 + usize::from(is_x86_feature_detected!("avx512vbmi")) } else { 0 };
    TABLES[..count].iter()
}

/// Proof that the machine has the instructions, with byte permutations if `VBMI`; created only in entries of the tables.
#[derive(Clone, Copy)]
struct Avx512<const VBMI: bool>(());

impl<const VBMI: bool> Lanes for Avx512<VBMI> {
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
        fn prefetch_far(line: *const u8) { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
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
        fn sevens(words: __m512i) -> __m512i {
            if VBMI {
                let firsts = _mm512_set1_epi64(0x352e_2720_150e_0700);
                return _mm512_and_si512(_mm512_multishift_epi64_epi8(firsts, words), _mm512_set1_epi8(0x7f));
            }
            // Two groups of 14 bits, then four of 7.
            let high = _mm512_slli_epi32::<2>(_mm512_and_si512(words, _mm512_set1_epi32(0x0fff_c000)));
            let pairs = _mm512_or_si512(_mm512_and_si512(words, _mm512_set1_epi32(0x3fff)), high);
            _mm512_add_epi32(pairs, _mm512_and_si512(pairs, _mm512_set1_epi32(0x3f80_3f80)))
        }
        fn even_signs(a: __m512i) -> __m512i {
            let folded = _mm512_and_si512(_mm512_xor_si512(a, _mm512_srli_epi16::<4>(a)), _mm512_set1_epi8(15));
            let parities = _mm512_broadcast_i32x4(_mm_loadu_si128(PARITIES.as_ptr().cast()));
            _mm512_or_si512(a, _mm512_shuffle_epi8(parities, folded))
        }
        fn replace_signs(nibbles: __m512i, signs: __m512i, group: usize) -> __m512i {
            let mask = _mm512_set1_epi32(0x8888_8888_u32.cast_signed());
            if VBMI {
                // Eight bits from the third before bit `j` on, so that it becomes bit 3.
                let of_group = _mm512_set1_epi8(8 * group as i8);
                let firsts = _mm512_add_epi8(_mm512_set1_epi64(0x201f_1e1d_00ff_fefd), of_group);
                // mask ? shifted : nibbles
                return _mm512_ternarylogic_epi32::<0xca>(mask, _mm512_multishift_epi64_epi8(firsts, signs), nibbles);
            }
            let first = _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c_0c0c, 0x0808_0808, 0x0404_0404, 0));
            let bits = _mm512_and_si512(
                _mm512_shuffle_epi8(signs, _mm512_add_epi8(first, _mm512_set1_epi8(group as i8))),
                _mm512_set1_epi32(SIGN_BITS),
            );
            // Adding carries each bit to the top of its nibble.
            let tops = _mm512_add_epi8(bits, _mm512_set1_epi32(SIGN_CARRIES));
            // mask ? tops : nibbles
            _mm512_ternarylogic_epi32::<0xca>(mask, tops, nibbles)
        }
        fn top_nibbles(words: __m512i) -> __m512 { _mm512_cvtepi32_ps(_mm512_srli_epi32::<28>(words)) }
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
    fn pick_bytes(self, grid: &Grid<256>, indices: &[u8]) -> [__m512i; 4] {
        let indices = &indices[..64];
        // SAFETY: the token proves the instructions; 64 bytes are readable.
        unsafe {
            if VBMI {
                return permuted_bytes(grid, _mm512_loadu_si512(indices.as_ptr().cast()));
            }
            let first = permuted(grid, _mm512_cvtepu8_epi16(_mm256_loadu_si256(indices.as_ptr().cast())));
            let second = permuted(grid, _mm512_cvtepu8_epi16(_mm256_loadu_si256(indices[32..].as_ptr().cast())));
            [first[0], first[1], second[0], second[1]]
        }
    }

    #[inline(always)]
    fn pick_words(self, grid: &Grid<512>, indices: &[u8]) -> [__m512i; 2] {
        // SAFETY: the token proves the instructions; 64 bytes are readable.
        unsafe { permuted(grid, _mm512_loadu_si512(indices[..64].as_ptr().cast())) }
    }

    #[inline(always)]
    fn pick_split<const N: usize>(self, grid: &Grid<N>, low: &[u8], high: &[u8], shifts: [u32; 2]) -> [__m512i; 2] {
        let (low, high) = (&low[..32], &high[..16]);
        // SAFETY: the token proves the instructions; the bytes are readable.
        unsafe {
            let low = _mm512_cvtepu8_epi16(_mm256_loadu_si256(low.as_ptr().cast()));
            let high = _mm512_cvtepu8_epi16(_mm256_broadcastsi128_si256(_mm_loadu_si128(high.as_ptr().cast())));
            let [first, second] = shifts.map(|shift| shift as i16);
            let shifts = _mm512_inserti64x4::<1>(_mm512_set1_epi16(first), _mm256_set1_epi16(second));
            permuted(grid, _mm512_or_si512(low, _mm512_slli_epi16::<8>(_mm512_srlv_epi16(high, shifts))))
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

/// The entries of a grid for two groups of 16 indices, which are taken modulo `N`: a permutation finds one of 64 words,
/// the other bits of an index choose between the results. (Gathers take one load for each index.)
#[inline(always)]
unsafe fn permuted<const N: usize>(grid: &Grid<N>, indices: __m512i) -> [__m512i; 2] {
    let words = grid.halves.as_chunks::<32>().0;
    // SAFETY: the caller has the instructions; each chunk has 64 bytes.
    unsafe {
        let mut found = [_mm512_setzero_si512(); 16];
        for part in 0..N / 64 {
            let (low, high) = (words[2 * part].as_ptr().cast(), words[2 * part + 1].as_ptr().cast());
            found[part] = _mm512_permutex2var_epi16(_mm512_loadu_si512(low), indices, _mm512_loadu_si512(high));
        }
        for bit in 0..(N / 64).ilog2() {
            let is_high = _mm512_test_epi16_mask(indices, _mm512_set1_epi16(64 << bit));
            for pair in 0..(N / 128) >> bit {
                found[pair] = _mm512_mask_blend_epi16(is_high, found[2 * pair], found[2 * pair + 1]);
            }
        }
        // Each word twice; the second time shifted.
        let row = _mm512_loadu_si512(EACH_TWICE.as_ptr().cast());
        let shifts = _mm512_set1_epi32((grid.shift << 16).cast_signed());
        [
            _mm512_srlv_epi16(_mm512_permutexvar_epi16(row, found[0]), shifts),
            _mm512_srlv_epi16(_mm512_permutexvar_epi16(_mm512_add_epi16(row, _mm512_set1_epi16(16)), found[0]), shifts),
        ]
    }
}

/// The entries of a grid for four groups of 16 indices, which need not be extended to words.
#[inline(always)]
unsafe fn permuted_bytes(grid: &Grid<256>, indices: __m512i) -> [__m512i; 4] {
    // SAFETY: the caller has the instructions; each chunk has 64 bytes.
    unsafe {
        let is_high = _mm512_movepi8_mask(indices);
        let mut halves = [indices; 2];
        for (half, bytes) in halves.iter_mut().zip(&grid.bytes) {
            let (first, second) = bytes.split_at(128);
            let (a, b) = (first.as_ptr().cast(), first[64..].as_ptr().cast());
            let first = _mm512_permutex2var_epi8(_mm512_loadu_si512(a), indices, _mm512_loadu_si512(b));
            let (a, b) = (second.as_ptr().cast(), second[64..].as_ptr().cast());
            let second = _mm512_permutex2var_epi8(_mm512_loadu_si512(a), indices, _mm512_loadu_si512(b));
            *half = _mm512_mask_blend_epi8(is_high, first, second);
        }
        let row = _mm512_loadu_si512(EACH_TWICE.as_ptr().cast());
        let both = _mm512_or_si512(_mm512_or_si512(row, _mm512_slli_epi16::<8>(row)), _mm512_set1_epi16(0x4000));
        let shifts = _mm512_set1_epi32((grid.shift << 16).cast_signed());
        let mut groups = [indices; 4];
        for (index, group) in groups.iter_mut().enumerate() {
            let own = _mm512_add_epi8(both, _mm512_set1_epi8(16 * index as i8));
            *group = _mm512_srlv_epi16(_mm512_permutex2var_epi8(halves[0], own, halves[1]), shifts);
        }
        groups
    }
}

/// Numbers from 0 to 15, each twice.
const EACH_TWICE: [i16; 32] =
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15];
