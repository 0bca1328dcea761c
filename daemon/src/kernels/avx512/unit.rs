//! 64 columns of a weight row as unsigned bytes with their scales: what a tile multiplies. The value of a weight is
//! `scale * (level - bias) - minimum`. Macros, because functions of this size are not inlined into a tile, and a call would put
//! all of its sums into memory. Each takes a pointer behind which the tile has checked that the bytes are.
use std::arch::x86_64::*;

/// 64 weights.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    /// 64 unsigned bytes.
    pub(super) levels: __m512i,
    /// Of each 4 columns.
    pub(super) scale: __m512,
    /// Of each 4 columns; unused where the format has none.
    pub(super) minimum: __m512,
}

/// Two halves in the lower bits, each in the lanes of its 32 columns.
macro_rules! two_scales {
    ($halves:expr) => {{
        let floats = _mm_cvtph_ps(_mm_cvtsi32_si128($halves));
        let spread = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(floats))
    }};
}

/// Two blocks of Q8_0. Bias 128.
macro_rules! q8_0 {
    ($blocks:expr) => {{
        let blocks: *const u8 = $blocks;
        // SAFETY: two blocks of 34 bytes are readable.
        let (first, second, halves) = unsafe {
            let halves = i32::from(blocks.cast::<u16>().read_unaligned())
                | i32::from(blocks.add(34).cast::<u16>().read_unaligned()) << 16;
            (_mm256_loadu_si256(blocks.add(2).cast()), _mm256_loadu_si256(blocks.add(36).cast()), halves)
        };
        let signed = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
        let levels = _mm512_xor_si512(signed, _mm512_set1_epi8(-128));
        Unit { levels, scale: two_scales!(halves), minimum: _mm512_setzero_ps() }
    }};
}

/// Two blocks of Q4_0. Bias 8.
macro_rules! q4_0 {
    ($blocks:expr) => {{
        let blocks: *const u8 = $blocks;
        // SAFETY: two blocks of 18 bytes are readable.
        let (first, second, halves) = unsafe {
            let halves = i32::from(blocks.cast::<u16>().read_unaligned())
                | i32::from(blocks.add(18).cast::<u16>().read_unaligned()) << 16;
            (_mm_loadu_si128(blocks.add(2).cast()), _mm_loadu_si128(blocks.add(20).cast()), halves)
        };
        let packed = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(first), second);
        // Low nibbles of a block are its first 16 columns, high ones the others.
        let twice = _mm512_permutexvar_epi64(_mm512_set_epi64(3, 2, 3, 2, 1, 0, 1, 0), _mm512_castsi256_si512(packed));
        let shifted = _mm512_srlv_epi64(twice, _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0));
        let levels = _mm512_and_si512(shifted, _mm512_set1_epi8(15));
        Unit { levels, scale: two_scales!(halves), minimum: _mm512_setzero_ps() }
    }};
}

/// Scales and minimums of a Q4_K super-block: 8 of each, in one register.
macro_rules! q4_k_scales {
    ($block:expr) => {{
        let block: *const u8 = $block;
        // SAFETY: a super-block of 144 bytes is readable.
        let [halves, a, b, c]: [u32; 4] = unsafe { block.cast::<[u32; 4]>().read_unaligned() };
        // Six bits each (llama.cpp, ggml-quants.c, get_scale_min_k4).
        let six = 0x3f3f_3f3f;
        let scales = [a & six, (c & 0x0f0f_0f0f) | (a >> 6 & 0x0303_0303) << 4];
        let minimums = [b & six, (c >> 4 & 0x0f0f_0f0f) | (b >> 6 & 0x0303_0303) << 4];
        let words = _mm_set_epi32(
            minimums[1].cast_signed(),
            minimums[0].cast_signed(),
            scales[1].cast_signed(),
            scales[0].cast_signed(),
        );
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(words)), two_scales!(halves.cast_signed()))
    }};
}

/// Columns `64 * index` and on of a Q4_K super-block. No bias.
macro_rules! q4_k {
    ($block:expr, $scales:expr, $index:expr) => {{
        let (block, index): (*const u8, usize) = ($block, $index);
        // SAFETY: a super-block of 144 bytes is readable, index is below 4.
        let nibbles = unsafe { _mm256_loadu_si256(block.add(16 + 32 * index).cast()) };
        let twice = _mm512_broadcast_i64x4(nibbles);
        let shifted = _mm512_srlv_epi64(twice, _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0));
        let levels = _mm512_and_si512(shifted, _mm512_set1_epi8(15));
        let halves = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
        let of_scale = _mm512_add_epi32(halves, _mm512_set1_epi32(2 * index as i32));
        let of_minimum = _mm512_add_epi32(of_scale, _mm512_set1_epi32(8));
        let (scale, minimum) = (_mm512_permutexvar_ps(of_scale, $scales), _mm512_permutexvar_ps(of_minimum, $scales));
        Unit { levels, scale, minimum }
    }};
}

/// Scales of the 16 groups of a Q6_K super-block.
macro_rules! q6_k_scales {
    ($block:expr) => {{
        let block: *const u8 = $block;
        // SAFETY: a super-block of 210 bytes is readable.
        let scales = unsafe { _mm_loadu_si128(block.add(192).cast()) };
        // SAFETY: as above.
        let half = unsafe { block.add(208).cast::<u16>().read_unaligned() };
        let factor = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(half)));
        _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales)), _mm512_broadcastss_ps(factor))
    }};
}

/// Columns `64 * index` and on of a Q6_K super-block. Bias 32.
macro_rules! q6_k {
    ($block:expr, $scales:expr, $index:expr) => {{
        let (block, index): (*const u8, usize) = ($block, $index);
        // 128 columns share 64 bytes of low bits and 32 bytes of high ones; the first 64 columns have the low nibbles.
        let (half, is_high) = (index / 2, (index % 2) as i64);
        // SAFETY: a super-block of 210 bytes is readable, index is below 4.
        let (low, high) = unsafe {
            let low = _mm512_loadu_si512(block.add(64 * half).cast());
            (low, _mm256_loadu_si256(block.add(128 + 32 * half).cast()))
        };
        let nibbles = _mm512_and_si512(_mm512_srlv_epi64(low, _mm512_set1_epi64(4 * is_high)), _mm512_set1_epi8(15));
        let by = _mm512_add_epi64(_mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0), _mm512_set1_epi64(4 * is_high));
        let two_bits = _mm512_and_si512(_mm512_srlv_epi64(_mm512_broadcast_i64x4(high), by), _mm512_set1_epi8(3));
        let levels = _mm512_or_si512(nibbles, _mm512_slli_epi16::<4>(two_bits));
        let groups = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
        let of_groups = _mm512_add_epi32(groups, _mm512_set1_epi32(4 * index as i32));
        Unit { levels, scale: _mm512_permutexvar_ps(of_groups, $scales), minimum: _mm512_setzero_ps() }
    }};
}

pub(super) use {q4_0, q4_k, q4_k_scales, q6_k, q6_k_scales, q8_0, two_scales};
