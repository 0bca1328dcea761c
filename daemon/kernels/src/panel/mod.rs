//! Products of weights in panels: as many adjacent rows as the instruction set has lanes, so that a product needs no
//! sum over lanes and one unpacked weight serves all tokens of a tile. Written once for all instruction sets; every sum
//! is in the order of the columns, regardless of the tile.
use crate::values::CHAINS;
mod attend;
mod delta;
mod dense;
mod formats;
mod grids;
mod lanes;
mod operations;
mod stored;
#[cfg(target_arch = "aarch64")]
mod two;

pub(crate) use attend::attend;
pub(crate) use delta::delta;
pub(crate) use dense::{
    FLOAT_TILES, clamped_swiglu, gelu_multiply, layer_norm, peak, quantise, read, rms_norm, sigmoid_multiply,
    silu_multiply, squared_relu,
};
pub(crate) use formats::*;
pub(crate) use grids::*;
pub(crate) use lanes::{GridColumns, Lanes};
pub(crate) use operations::{entry, operations, table};
#[cfg(target_arch = "aarch64")]
pub(crate) use two::Two;

use super::activations::Block;

/// A quantised format in panel layout: fields of a block of `ROWS` rows, each transposed (`pack.rs`).
pub(crate) trait Format<L: Lanes> {
    /// Bytes of a block of one row.
    const BYTES: usize;
    /// Number of 32-column parts in a block.
    const PARTS: usize = 8;
    /// Levels are below two to the power of this.
    const BITS: u32;
    /// Offset of a level above its value, as `8 << n`; `None`: no offset.
    const BIAS: Option<u32> = None;
    /// Whether each 16 columns have a separate scale (and minimum).
    const HALVES: bool = false;
    /// Whether a minimum is subtracted.
    const MINIMUM: bool = false;
    /// Values that are computed once per block.
    type Scales: Copy;

    /// Computes the scales of a block.
    fn scales(lanes: L, block: &[u8]) -> Self::Scales;
    /// Unpacks 32 columns.
    fn part(lanes: L, block: &[u8], scales: &Self::Scales, index: usize) -> Part<L>;
}

/// 32 columns of a panel: a weight is `scale * (level - bias) - minimum`.
#[derive(Clone, Copy)]
pub(crate) struct Part<L: Lanes> {
    levels: [L::Levels; 8],
    scale: [L::Floats; 2],
    minimum: [L::Floats; 2],
}

/// Prefetch distance in bytes for weights that one token reads in order: the machine's own prefetchers stop at pages and
/// see only part of the reads (measured with one thread of a Zen 5, tokens/s of a 1.1B model without, at 2 kB, 4 kB, 8 kB
/// and 16 kB: Q4_0 48, 51, 58, 60, 56).
pub(crate) const AHEAD: usize = 8192;
/// Distances to the first and second level for all other weights. Few lines can be on their way to the first level, so
/// it should not wait for memory itself, and it has to hold the activations of several tokens (measured with one thread
/// of a Zen 4, GB/s with the above and with these: one token Q4_K 18.0 and 20.5, Q5_K 20.4 and 24.7, Q6_K 12.1 and 19.2;
/// four tokens Q4_0 15.9 and 21.2, Q4_K 13.7 and 19.1).
const LEVELS_AHEAD: [usize; 2] = [1024, 8192];
/// Bytes of a cache line.
const LINE: usize = 64;

/// Number of tokens from which on the sums and weights of two registers do not fit the register file.
const SPLIT: usize = 4;

/// Calls `product` for the tile's shape.
macro_rules! shapes {
    ($tokens:expr, $product:ident::<$($generic:ty),*>($($argument:expr),*)) => {
        match $tokens {
            1 => $product::<$($generic,)* 1>($($argument),*),
            2 => $product::<$($generic,)* 2>($($argument),*),
            4 => $product::<$($generic,)* 4>($($argument),*),
            8 => $product::<$($generic,)* 8>($($argument),*),
            16 => $product::<$($generic,)* 16>($($argument),*),
            tokens => panic!("no tile has {tokens} tokens"),
        }
    };
}

/// Multiplies all rows of a panel with a tile of tokens: `x` is `[block of 32, token]`, `out` becomes `[token, row]`.
#[inline(always)]
pub(crate) fn panel<L: Lanes, F: Format<L> + Format<L::Low> + Format<L::High>>(
    lanes: L,
    panel: &[u8],
    tokens: usize,
    x: &[Block],
    out: &mut [f32],
) {
    match lanes.split() {
        Some((low, high)) if tokens >= SPLIT => {
            shapes!(tokens, product::<L::Low, F>(low, panel, x, out));
            shapes!(tokens, product::<L::High, F>(high, panel, x, out));
        }
        _ => shapes!(tokens, product::<L, F>(lanes, panel, x, out)),
    }
}

#[inline(always)]
fn product<L: Lanes, F: Format<L>, const T: usize>(lanes: L, panel: &[u8], x: &[Block], out: &mut [f32]) {
    if T > const { L::TILES[L::TILES.len() - 1] } {
        // Evaluated at compile time: such a tile generates no code.
        panic!("these lanes have no tile of {T} tokens");
    }
    let mut sums = [lanes.splat(0.0); T];
    let bytes = F::BYTES * L::ROWS;
    let tokens = x.as_chunks::<T>().0;
    assert!(tokens.len() >= panel.len() / bytes * F::PARTS, "the activations have all columns");
    for (block, tokens) in panel.chunks_exact(bytes).zip(tokens.chunks_exact(F::PARTS)) {
        let scales = F::scales(lanes, block);
        if F::PARTS == 1 {
            add_tokens::<L, F, T>(lanes, block, &scales, 0, &tokens[0], &mut sums);
        }
        // Four at a time, so that shift counts are constants.
        for (four, tokens) in tokens.as_chunks::<4>().0.iter().enumerate() {
            add_tokens::<L, F, T>(lanes, block, &scales, 4 * four, &tokens[0], &mut sums);
            add_tokens::<L, F, T>(lanes, block, &scales, 4 * four + 1, &tokens[1], &mut sums);
            add_tokens::<L, F, T>(lanes, block, &scales, 4 * four + 2, &tokens[2], &mut sums);
            add_tokens::<L, F, T>(lanes, block, &scales, 4 * four + 3, &tokens[3], &mut sums);
        }
    }
    for (sum, out) in sums.iter().zip(out.chunks_exact_mut(L::ROWS)) {
        lanes.store(*sum, out);
    }
}

/// Repeats a statement for each of up to 16 tokens without a loop.
macro_rules! unrolled {
    ($count:expr, |$token:ident| $body:expr) => {
        unrolled!($count, $token, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($count:expr, $token:ident, $body:expr, $($index:literal)*) => {
        assert!($count <= 16, "at most 16 tokens are unrolled");
        $(
            if $index < $count {
                let $token = $index;
                $body;
            }
        )*
    };
}

/// Adds the products of part `index` with all tokens to `sums`.
#[inline(always)]
fn add_tokens<L: Lanes, F: Format<L>, const T: usize>(
    lanes: L,
    block: &[u8],
    scales: &F::Scales,
    index: usize,
    tokens: &[Block; T],
    sums: &mut [L::Floats; T],
) {
    if L::PREFETCHES {
        let bytes = F::BYTES * L::ROWS / F::PARTS;
        for line in (0..bytes).step_by(LINE) {
            let line = block.as_ptr().wrapping_add(index * bytes + line);
            if T == 1 && F::PARTS == 1 {
                lanes.prefetch(line.wrapping_add(AHEAD));
            } else {
                lanes.prefetch(line.wrapping_add(LEVELS_AHEAD[0]));
                lanes.prefetch_far(line.wrapping_add(LEVELS_AHEAD[1]));
            }
        }
    }
    let part = F::part(lanes, block, scales, index);
    if T > 1 && T <= L::UNROLLED[usize::from(F::HALVES || F::MINIMUM)] {
        unrolled!(T, |token| sums[token] =
            lanes.settle(add_part::<L, F, T>(lanes, &part, &tokens[token], sums[token])));
    } else {
        for token in 0..T {
            sums[token] = add_part::<L, F, T>(lanes, &part, &tokens[token], sums[token]);
            if T == 1 {
                sums[token] = lanes.separate(sums[token]);
            }
        }
    }
}

/// Adds the products of 32 columns to `sum`.
#[inline(always)]
fn add_part<L: Lanes, F: Format<L>, const T: usize>(lanes: L, part: &Part<L>, x: &Block, sum: L::Floats) -> L::Floats {
    let levels = &part.levels;
    let (begin, first) = match F::BIAS {
        None => (lanes.ints(0), lanes.ints(0)),
        Some(shift) if F::HALVES => (lanes.begin(x, false, shift), lanes.begin(x, true, shift)),
        Some(shift) => (lanes.begin(x, false, shift), lanes.ints(0)),
    };
    let sum = if F::HALVES {
        let second = if F::BIAS.is_some() { lanes.subtract_ints(begin, first) } else { begin };
        let first = lanes.dot::<4>(F::BITS, T, first, &levels[..4], &x.quants[..16]);
        let second = lanes.dot::<4>(F::BITS, T, second, &levels[4..], &x.quants[16..]);
        let products = lanes.multiply(lanes.convert(first), part.scale[0]);
        let products = lanes.multiply_add(lanes.convert(second), part.scale[1], products);
        lanes.add_times_scale(products, x, sum)
    } else {
        let products = lanes.dot::<8>(F::BITS, T, begin, levels, &x.quants);
        lanes.multiply_add(lanes.times_scale(lanes.convert(products), x), part.scale[0], sum)
    };
    if !F::MINIMUM {
        return sum;
    }
    if !F::HALVES {
        return lanes.subtract_minimum(part.minimum[0], x, sum);
    }
    let eighth = lanes.splat(0.125);
    let all = lanes.multiply(lanes.convert(lanes.begin(x, false, 0)), eighth);
    let first = lanes.multiply(lanes.convert(lanes.begin(x, true, 0)), eighth);
    let second = lanes.add(all, lanes.multiply(first, lanes.splat(-1.0)));
    let minimums = lanes.multiply_add(second, part.minimum[1], lanes.multiply(first, part.minimum[0]));
    lanes.add_times_scale(minimums, x, sum)
}

/// An unquantised format.
pub(crate) trait FloatFormat<L: Lanes> {
    /// Bytes of a weight.
    const BYTES: usize;
    /// Loads one column.
    fn column(lanes: L, bytes: &[u8]) -> L::Floats;
}

/// Like `panel`, for floats: `x` is `[column, token]`.
#[inline(always)]
pub(crate) fn float_panel<L: Lanes, F: FloatFormat<L>>(
    lanes: L,
    panel: &[u8],
    tokens: usize,
    x: &[f32],
    out: &mut [f32],
) {
    match tokens {
        1 => float_product::<L, F, 1>(lanes, panel, x, out),
        2 => float_product::<L, F, 2>(lanes, panel, x, out),
        4 => float_product::<L, F, 4>(lanes, panel, x, out),
        tokens => panic!("no tile of floats has {tokens} tokens"),
    }
}

#[inline(always)]
fn float_product<L: Lanes, F: FloatFormat<L>, const T: usize>(lanes: L, panel: &[u8], x: &[f32], out: &mut [f32]) {
    let bytes = F::BYTES * L::ROWS;
    let mut sums = [[lanes.splat(0.0); CHAINS]; T];
    let tokens = x.as_chunks::<T>().0;
    assert!(tokens.len() >= panel.len() / bytes, "the activations have all columns");
    let whole = panel.len() / bytes / CHAINS * CHAINS;
    for (weights, x) in panel.chunks_exact(bytes * CHAINS).zip(tokens.as_chunks::<CHAINS>().0) {
        for chain in 0..CHAINS {
            let weights = F::column(lanes, &weights[chain * bytes..]);
            for token in 0..T {
                sums[token][chain] = lanes.multiply_add(weights, lanes.splat(x[chain][token]), sums[token][chain]);
            }
        }
    }
    for (weights, x) in panel.chunks_exact(bytes).zip(tokens).skip(whole) {
        let weights = F::column(lanes, weights);
        for token in 0..T {
            sums[token][0] = lanes.multiply_add(weights, lanes.splat(x[token]), sums[token][0]);
        }
    }
    for (sums, out) in sums.iter().zip(out.chunks_exact_mut(L::ROWS)) {
        lanes.store(lanes.add(lanes.add(sums[0], sums[1]), lanes.add(sums[2], sums[3])), out);
    }
}
