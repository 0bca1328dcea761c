//! Products of up to 4 rows with up to 4 tokens: weights are unpacked once for all tokens, activations loaded once for all
//! rows. The operations for one row and one token and their order are the same in every shape of tile.
use std::arch::x86_64::*;

use shared::gguf::BlockFormat;

use super::{
    super::{ActivationRow, TILE_ROWS, TILE_TOKENS},
    unit::{Unit, q4_0, q4_k, q4_k_scales, q6_k, q6_k_scales, q8_0, two_scales},
};

/// Adds the products of 64 columns to `sums`. `$bias` is the power of two below every level, or 0; `$minimum` whether one is
/// subtracted.
macro_rules! add {
    ($sums:ident, $weights:ident, $tokens:ident, $unit:expr, $bias:literal, $minimum:literal) => {
        for token in 0..T {
            let (quants, scales, minus_sums) = $tokens[token];
            // SAFETY: the tile has checked that each holds all units.
            let (quants, scales, minus_sums) = unsafe {
                (
                    _mm512_loadu_si512(quants.add(64 * $unit).cast()),
                    _mm512_loadu_ps(scales.add(16 * $unit)),
                    _mm512_loadu_si512(minus_sums.add(16 * $unit).cast()),
                )
            };
            let begin = if $bias == 0 { _mm512_setzero_si512() } else { _mm512_slli_epi32::<$bias>(minus_sums) };
            for row in 0..R {
                let products = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(begin, $weights[row].levels, quants));
                let scale = _mm512_mul_ps($weights[row].scale, scales);
                $sums[row][token] = _mm512_fmadd_ps(products, scale, $sums[row][token]);
            }
            if $minimum {
                let minus = _mm512_mul_ps(_mm512_cvtepi32_ps(minus_sums), scales);
                for row in 0..R {
                    $sums[row][token] = _mm512_fmadd_ps($weights[row].minimum, minus, $sums[row][token]);
                }
            }
        }
    };
}

/// Bytes that are asked for ahead of their use: the prefetchers of the machine do not see through four short streams (measured
/// with one thread and a 1.1B Q4_0 model: 12 tokens/s without, 43 with 8 to 9 kB, 38 with half or twice as much).
const AHEAD: usize = 9 << 10;

/// Asks for the lines of a unit `AHEAD`; beyond the end of a matrix that does nothing.
#[inline]
fn prefetch(place: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(AHEAD + line).cast()) };
    }
}

/// Lanes are added in one order for every shape.
macro_rules! store {
    ($sums:ident, $out:ident) => {
        for row in 0..R {
            for token in 0..T {
                $out[row * T + token] = _mm512_reduce_add_ps($sums[row][token]);
            }
        }
    };
}

/// Checks that rows have `$bytes` and tokens `$units` units, and gives the pointers to them.
macro_rules! pointers {
    ($rows:ident, $tokens:ident, $bytes:expr, $units:expr) => {{
        let mut rows = [std::ptr::null::<u8>(); R];
        for row in 0..R {
            assert!($rows[row].len() >= $bytes, "a row holds all columns");
            rows[row] = $rows[row].as_ptr();
        }
        let mut tokens = [(std::ptr::null::<i8>(), std::ptr::null::<f32>(), std::ptr::null::<i32>()); T];
        for token in 0..T {
            let x = &$tokens[token];
            let units = (x.quants.len() / 64).min(x.lane_scales.len() / 16).min(x.lane_sums.len() / 16);
            assert!(units >= $units, "activations are padded to 64 columns");
            tokens[token] = (x.quants.as_ptr(), x.lane_scales.as_ptr(), x.lane_sums.as_ptr());
        }
        (rows, tokens)
    }};
}

/// Calls the tile of the right shape: whole ones, single tokens, single rows.
macro_rules! shapes {
    ($tile:ident, $rows:ident, $tokens:ident, $out:ident) => {{
        assert_eq!($out.len(), $rows.len() * $tokens.len(), "out is [row, token]");
        match (<&[&[u8]; TILE_ROWS]>::try_from($rows), <&[ActivationRow<'_>; TILE_TOKENS]>::try_from($tokens)) {
            (Ok(rows), Ok(tokens)) => $tile(rows, tokens, $out),
            (Ok(rows), Err(_)) => {
                for (index, token) in $tokens.iter().enumerate() {
                    let mut column = [0.0; TILE_ROWS];
                    $tile(rows, std::array::from_ref(token), &mut column);
                    column.iter().enumerate().for_each(|(row, sum)| $out[row * $tokens.len() + index] = *sum);
                }
            }
            (Err(_), _) => {
                for (row, out) in $rows.iter().zip($out.chunks_exact_mut($tokens.len().max(1))) {
                    for (token, out) in $tokens.iter().zip(out) {
                        $tile(std::array::from_ref(row), std::array::from_ref(token), std::slice::from_mut(out));
                    }
                }
            }
        }
    }};
}

/// A tile of a format in blocks of 32 columns, two of them a unit.
macro_rules! of_blocks {
    ($name:ident, $format:expr, $unit:ident, $bias:literal) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
        pub(super) fn $name(rows: &[&[u8]], tokens: &[ActivationRow<'_>], out: &mut [f32]) {
            const BYTES: usize = $format.block_bytes();

            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
            fn tile<const R: usize, const T: usize>(
                rows: &[&[u8]; R],
                tokens: &[ActivationRow<'_>; T],
                out: &mut [f32],
            ) {
                let blocks = tokens[0].values.len() / 32;
                let (pointers, columns) = pointers!(rows, tokens, blocks * BYTES, blocks.div_ceil(2));
                let mut sums = [[_mm512_setzero_ps(); T]; R];
                let zero =
                    Unit { levels: _mm512_setzero_si512(), scale: _mm512_setzero_ps(), minimum: _mm512_setzero_ps() };
                let mut weights = [zero; R];
                for unit in 0..blocks / 2 {
                    for row in 0..R {
                        // SAFETY: the row holds `blocks` blocks.
                        let place = unsafe { pointers[row].add(2 * unit * BYTES) };
                        prefetch(place, 2 * BYTES);
                        weights[row] = $unit!(place);
                    }
                    add!(sums, weights, columns, unit, $bias, false);
                }
                if blocks % 2 == 1 {
                    // The last block alone; the one behind it has scale 0.
                    for row in 0..R {
                        let mut two = [0; 2 * BYTES];
                        two[..BYTES].copy_from_slice(&rows[row][(blocks - 1) * BYTES..blocks * BYTES]);
                        weights[row] = $unit!(two.as_ptr());
                    }
                    add!(sums, weights, columns, blocks / 2, $bias, false);
                }
                store!(sums, out);
            }
            shapes!(tile, rows, tokens, out)
        }
    };
}

/// A tile of a format in super-blocks of 256 columns, four units each.
macro_rules! of_super_blocks {
    ($name:ident, $format:expr, $scales:ident, $unit:ident, $bias:literal, $minimum:literal) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
        pub(super) fn $name(rows: &[&[u8]], tokens: &[ActivationRow<'_>], out: &mut [f32]) {
            const BYTES: usize = $format.block_bytes();

            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,f16c")]
            fn tile<const R: usize, const T: usize>(
                rows: &[&[u8]; R],
                tokens: &[ActivationRow<'_>; T],
                out: &mut [f32],
            ) {
                let blocks = tokens[0].values.len() / 256;
                let (pointers, columns) = pointers!(rows, tokens, blocks * BYTES, 4 * blocks);
                let mut sums = [[_mm512_setzero_ps(); T]; R];
                let zero =
                    Unit { levels: _mm512_setzero_si512(), scale: _mm512_setzero_ps(), minimum: _mm512_setzero_ps() };
                let (mut weights, mut scales) = ([zero; R], [_mm512_setzero_ps(); R]);
                for block in 0..blocks {
                    for row in 0..R {
                        // SAFETY: the row holds `blocks` super-blocks.
                        let place = unsafe { pointers[row].add(block * BYTES) };
                        prefetch(place, BYTES);
                        scales[row] = $scales!(place);
                    }
                    for index in 0..4 {
                        for row in 0..R {
                            // SAFETY: as above.
                            weights[row] = $unit!(unsafe { pointers[row].add(block * BYTES) }, scales[row], index);
                        }
                        add!(sums, weights, columns, 4 * block + index, $bias, $minimum);
                    }
                }
                store!(sums, out);
            }
            shapes!(tile, rows, tokens, out)
        }
    };
}

of_blocks!(q8_0, BlockFormat::Q8_0, q8_0, 7);
of_blocks!(q4_0, BlockFormat::Q4_0, q4_0, 3);
of_super_blocks!(q4_k, BlockFormat::Q4K, q4_k_scales, q4_k, 0, true);
of_super_blocks!(q6_k, BlockFormat::Q6K, q6_k_scales, q6_k, 5, false);
