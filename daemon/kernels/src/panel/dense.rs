//! Kernels for floats of all lengths: norm, gates and exponential, written once for all instruction sets.
use super::Lanes;
use crate::{BLOCK, Block, LEVELS, scalar};

/// Tile sizes in tokens for floats, ascending.
pub(crate) const FLOAT_TILES: &[usize] = &[1, 2, 4];

/// `e^x` (Cephes, expf): relative error below 2e-7; NaN stays NaN, results below 2^-126 are approximate.
#[inline(always)]
pub(super) fn exponential<L: Lanes>(lanes: L, x: L::Floats) -> L::Floats {
    // Added to a number below 2^22, this leaves the nearest integer in the low bits.
    let round = lanes.splat(12_582_912.0);
    let x = lanes.max(lanes.splat(-87.0), x);
    let n = lanes.multiply_add(x, lanes.splat(std::f32::consts::LOG2_E), round);
    let whole = lanes.add(n, lanes.splat(-12_582_912.0));
    let rest = lanes.multiply_add(whole, lanes.splat(-0.693_359_4), x);
    let rest = lanes.multiply_add(whole, lanes.splat(2.121_944_4e-4), rest);
    let mut sum = lanes.splat(1.987_569_1e-4);
    for factor in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5, 1.0, 1.0] {
        sum = lanes.multiply_add(sum, rest, lanes.splat(factor));
    }
    lanes.power(sum, n)
}

/// How a network combines a pair of its products. Types instead of closures: a closure that is not inlined calls every
/// instruction as a function, because it lacks the features of its table.
trait Combination {
    /// Combines registers of both.
    fn of<L: Lanes>(lanes: L, gate: L::Floats, up: L::Floats) -> L::Floats;
}

/// `gate / (1 + e^-gate) * up`
struct Silu;
/// `gelu(gate) * up`: the approximation by tanh, which is `x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))`.
struct Gelu;
/// `g sigmoid(1.702 g) (u + 1)` with `g = min(gate, 7)` and `u = clamp(up, -7, 7)`.
struct ClampedSwiglu;
/// `up / (1 + e^-gate)`
struct Sigmoid;
/// `max(up, 0)^2`
struct SquaredRelu;

impl Combination for Silu {
    #[inline(always)]
    fn of<L: Lanes>(lanes: L, gate: L::Floats, up: L::Floats) -> L::Floats {
        lanes.multiply(sigmoid_times(lanes, gate, gate), up)
    }
}

impl Combination for Gelu {
    #[inline(always)]
    fn of<L: Lanes>(lanes: L, gate: L::Floats, up: L::Floats) -> L::Floats {
        let square = lanes.multiply(gate, gate);
        let factor = lanes.multiply_add(square, lanes.splat(scalar::GELU[1]), lanes.splat(scalar::GELU[0]));
        lanes.multiply(sigmoid_times(lanes, gate, lanes.multiply(gate, factor)), up)
    }
}

impl Combination for ClampedSwiglu {
    #[inline(always)]
    fn of<L: Lanes>(lanes: L, gate: L::Floats, up: L::Floats) -> L::Floats {
        let (minus, low) = (lanes.splat(-1.0), lanes.splat(-scalar::SWIGLU_LIMIT));
        let gate = lanes.multiply(lanes.max(low, lanes.multiply(gate, minus)), minus);
        let up = lanes.max(low, lanes.multiply(lanes.max(low, lanes.multiply(up, minus)), minus));
        let slope = lanes.multiply(gate, lanes.splat(scalar::SWIGLU_SLOPE));
        lanes.multiply(sigmoid_times(lanes, gate, slope), lanes.add(up, lanes.splat(1.0)))
    }
}

impl Combination for Sigmoid {
    #[inline(always)]
    fn of<L: Lanes>(lanes: L, gate: L::Floats, up: L::Floats) -> L::Floats {
        sigmoid_times(lanes, up, gate)
    }
}

impl Combination for SquaredRelu {
    #[inline(always)]
    fn of<L: Lanes>(lanes: L, _: L::Floats, up: L::Floats) -> L::Floats {
        let positive = lanes.max(lanes.splat(0.0), up);
        lanes.multiply(positive, positive)
    }
}

/// `gate = gate / (1 + e^-gate) * up`
#[inline(always)]
pub(crate) fn silu_multiply<L: Lanes>(lanes: L, gate: &mut [f32], up: &[f32]) {
    combine::<L, Silu>(lanes, gate, up);
}

/// `gate = gelu(gate) * up`
#[inline(always)]
pub(crate) fn gelu_multiply<L: Lanes>(lanes: L, gate: &mut [f32], up: &[f32]) {
    combine::<L, Gelu>(lanes, gate, up);
}

/// `gate = clamped_swiglu(gate, up)`
#[inline(always)]
pub(crate) fn clamped_swiglu<L: Lanes>(lanes: L, gate: &mut [f32], up: &[f32]) {
    combine::<L, ClampedSwiglu>(lanes, gate, up);
}

/// `gate = up / (1 + e^-gate)`
#[inline(always)]
pub(crate) fn sigmoid_multiply<L: Lanes>(lanes: L, gate: &mut [f32], up: &[f32]) {
    combine::<L, Sigmoid>(lanes, gate, up);
}

/// `out = max(x, 0)^2`
#[inline(always)]
pub(crate) fn squared_relu<L: Lanes>(lanes: L, out: &mut [f32], x: &[f32]) {
    combine::<L, SquaredRelu>(lanes, out, x);
}

/// `x / (1 + e^-of)`
#[inline(always)]
fn sigmoid_times<L: Lanes>(lanes: L, x: L::Floats, of: L::Floats) -> L::Floats {
    // Clamped at -87: below that, the exponential would overflow.
    let exponent = lanes.multiply(lanes.max(lanes.splat(-87.0), of), lanes.splat(-1.0));
    lanes.divide(x, lanes.add(lanes.splat(1.0), exponential(lanes, exponent)))
}

/// Combines each pair into `gate`.
#[inline(always)]
fn combine<L: Lanes, C: Combination>(lanes: L, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    let mut chunks = gate.chunks_exact_mut(L::ROWS);
    let mut ups = up.chunks_exact(L::ROWS);
    for (gate, up) in (&mut chunks).zip(&mut ups) {
        lanes.store(C::of(lanes, lanes.load(gate), lanes.load(up)), gate);
    }
    let (rest, ups) = (chunks.into_remainder(), ups.remainder());
    if !rest.is_empty() {
        let (mut gates, mut last, count) = ([0.0; 16], [0.0; 16], rest.len());
        gates[..count].copy_from_slice(rest);
        last[..count].copy_from_slice(ups);
        lanes.store(C::of(lanes, lanes.load(&gates), lanes.load(&last)), &mut gates);
        rest.copy_from_slice(&gates[..count]);
    }
}

/// Quantises a block of up to 32 values, bit for bit like `scalar::quantise`.
#[inline(always)]
pub(crate) fn quantise<L: Lanes>(lanes: L, values: &[f32], out: &mut Block) {
    let mut whole = [0.0; BLOCK];
    let values = match values.first_chunk::<BLOCK>() {
        Some(values) => values,
        None => {
            whole[..values.len()].copy_from_slice(values);
            &whole
        }
    };
    let registers = BLOCK / L::ROWS;
    let (minus, zero) = (lanes.splat(-1.0), lanes.splat(0.0));
    let (mut largest, mut zeros) = (zero, zero);
    for register in 0..registers {
        let x = lanes.load(&values[register * L::ROWS..]);
        largest = lanes.max(largest, lanes.max(x, lanes.multiply(x, minus)));
        // Infinity and NaN become NaN here and stay NaN.
        zeros = lanes.multiply_add(x, zero, zeros);
    }
    let largest = lanes.largest(largest);
    if lanes.total(zeros).is_nan() || largest < LEVELS * f32::MIN_POSITIVE {
        return scalar::quantise(values, out);
    }
    let (inverse, round) = (lanes.splat(LEVELS / largest), lanes.splat(scalar::ROUND));
    let mut rounded = [0.0; BLOCK];
    let mut sums = [0.0; 2];
    for register in 0..registers {
        let x = lanes.load(&values[register * L::ROWS..]);
        let x = lanes.add(lanes.multiply(x, inverse), round);
        lanes.store(x, &mut rounded[register * L::ROWS..]);
        // Integers below 2^12: exact in any order.
        sums[2 * register / registers] += lanes.total(lanes.add(x, lanes.splat(-scalar::ROUND)));
    }
    for (quant, rounded) in out.quants.iter_mut().zip(rounded) {
        *quant = rounded.to_bits() as i8;
    }
    let (first, all) = (sums[0] as i32, (sums[0] + sums[1]) as i32);
    out.scale = scalar::as_half(largest / LEVELS);
    out.minus_sums = -out.scale * all as f32;
    out.minus_8_sums = -8 * all;
    out.minus_8_first = -8 * first;
}

/// `out = x / sqrt(mean(x^2) + epsilon) * weight`
#[inline(always)]
pub(crate) fn rms_norm<L: Lanes>(lanes: L, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len());
    let mut sums = [lanes.splat(0.0); 2];
    let chunks = x.chunks_exact(2 * L::ROWS);
    let rest: f32 = chunks.remainder().iter().map(|x| x * x).sum();
    for x in chunks {
        for (index, sum) in sums.iter_mut().enumerate() {
            let x = lanes.load(&x[index * L::ROWS..]);
            *sum = lanes.multiply_add(x, x, *sum);
        }
    }
    let mean = (lanes.total(lanes.add(sums[0], sums[1])) + rest) / x.len() as f32;
    let inverse = 1.0 / (mean + epsilon).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * inverse * weight;
    }
}

/// `out = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight`
#[inline(always)]
pub(crate) fn layer_norm<L: Lanes>(lanes: L, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len());
    let mut sum = lanes.splat(0.0);
    let chunks = x.chunks_exact(L::ROWS);
    let rest: f32 = chunks.remainder().iter().sum();
    for x in chunks.clone() {
        sum = lanes.add(sum, lanes.load(x));
    }
    let mean = (lanes.total(sum) + rest) / x.len() as f32;
    let rest: f32 = chunks.remainder().iter().map(|x| (x - mean) * (x - mean)).sum();
    let (mut squares, minus) = (lanes.splat(0.0), lanes.splat(-mean));
    for x in chunks {
        let x = lanes.add(lanes.load(x), minus);
        squares = lanes.multiply_add(x, x, squares);
    }
    let variance = (lanes.total(squares) + rest) / x.len() as f32;
    let inverse = 1.0 / (variance + epsilon).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = (x - mean) * inverse * weight;
    }
}

/// Reads bytes as `streams` parallel streams and does nothing else; returns a value that depends on all of them.
#[inline(always)]
pub(crate) fn read<L: Lanes>(lanes: L, bytes: &[u8], streams: usize, ahead: usize) -> u8 {
    let register = 4 * L::ROWS;
    let length = bytes.len() / streams.max(1) / 256 * 256;
    let mut all = [lanes.levels(&[0; 64]); 4];
    for at in (0..length).step_by(256) {
        for stream in 0..streams {
            let part = &bytes[stream * length + at..][..256];
            for line in (0..256).step_by(64) {
                if ahead > 0 {
                    lanes.prefetch(part.as_ptr().wrapping_add(ahead + line));
                }
                for index in (0..64).step_by(register) {
                    let place = (line + index) / register % 4;
                    all[place] = lanes.or(all[place], lanes.levels(&part[line + index..]));
                }
            }
        }
    }
    let mut sum = all[0];
    for register in &all[1..] {
        sum = lanes.or(sum, *register);
    }
    let mut out = [0; 64];
    lanes.store_levels(sum, &mut out);
    out[0]
}

/// Independent sums in `peak`: enough to hide the latency of a product.
const PEAK_CHAINS: usize = 12;

/// Computes byte dot products of registers with themselves.
#[inline(always)]
pub(crate) fn peak<L: Lanes>(lanes: L, rounds: usize) -> (usize, f32) {
    if !L::HAS_DOT {
        return (0, 0.0);
    }
    let levels = [lanes.levels(&[3; 64]); 4];
    let x = [1; 16];
    let mut sums = [lanes.ints(0); PEAK_CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = lanes.dot::<4>(4, 1, *sum, &levels, &x);
        }
    }
    let mut all = 0.0;
    for sum in sums {
        all += lanes.total(lanes.convert(sum));
    }
    (PEAK_CHAINS * 16 * L::ROWS, all)
}
