//! Kernels for floats of all lengths: norm, gate, exponential and attention, written once for all instruction sets.
use super::{
    Lanes,
    stored::{Stored, StoredBlock},
};
use crate::{Attention, BLOCK, Block, KvBlock, KvValues, LEVELS, scalar};

/// Tile sizes in tokens for floats, ascending.
pub(crate) const FLOAT_TILES: &[usize] = &[1, 2, 4];

/// Positions of a KV block.
const POSITIONS: usize = 32;
/// Most registers of positions.
const REGISTERS: usize = 4;

/// `e^x` (Cephes, expf): relative error below 2e-7; NaN stays NaN, results below 2^-126 are approximate.
#[inline(always)]
fn exponential<L: Lanes>(lanes: L, x: L::Floats) -> L::Floats {
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

/// `gate = gate / (1 + e^-gate) * up`
#[inline(always)]
pub(crate) fn silu_multiply<L: Lanes>(lanes: L, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    let mut chunks = gate.chunks_exact_mut(L::ROWS);
    let mut ups = up.chunks_exact(L::ROWS);
    for (gate, up) in (&mut chunks).zip(&mut ups) {
        let product = silu_of(lanes, lanes.load(gate), lanes.load(up));
        lanes.store(product, gate);
    }
    let (rest, ups) = (chunks.into_remainder(), ups.remainder());
    if !rest.is_empty() {
        let (mut gates, mut last, count) = ([0.0; 16], [0.0; 16], rest.len());
        gates[..count].copy_from_slice(rest);
        last[..count].copy_from_slice(ups);
        let product = silu_of(lanes, lanes.load(&gates), lanes.load(&last));
        lanes.store(product, &mut gates);
        rest.copy_from_slice(&gates[..count]);
    }
}

#[inline(always)]
fn silu_of<L: Lanes>(lanes: L, gate: L::Floats, up: L::Floats) -> L::Floats {
    // Clamped at -87: below that, the exponential would overflow.
    let exponent = lanes.multiply(lanes.max(lanes.splat(-87.0), gate), lanes.splat(-1.0));
    let divisor = lanes.add(lanes.splat(1.0), exponential(lanes, exponent));
    lanes.multiply(lanes.divide(gate, divisor), up)
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

/// Merges one block of the KV cache into the state of all query heads that read it.
#[inline(always)]
pub(crate) fn attend<L: Lanes>(lanes: L, block: KvBlock<'_>, state: &mut Attention<'_>) {
    assert!(block.count <= POSITIONS && L::ROWS * REGISTERS >= POSITIONS);
    let heads = state.largest.len();
    let mut first = 0;
    while first < heads {
        first += match heads - first {
            8.. if L::ROWS == 16 => attend_heads::<L, 8>(lanes, block, state, first),
            4.. if L::ROWS == 16 => attend_heads::<L, 4>(lanes, block, state, first),
            2.. => attend_heads::<L, 2>(lanes, block, state, first),
            _ => attend_heads::<L, 1>(lanes, block, state, first),
        };
    }
}

/// Processes `H` heads from `first` on; returns `H`.
#[inline(always)]
fn attend_heads<L: Lanes, const H: usize>(
    lanes: L,
    block: KvBlock<'_>,
    state: &mut Attention<'_>,
    first: usize,
) -> usize {
    let length = state.head_length;
    let mut queries: [&[f32]; H] = [&[]; H];
    for (head, query) in queries.iter_mut().enumerate() {
        *query = &state.queries[(first + head) * length..(first + head + 1) * length];
    }
    let mut weights = [[0.0; POSITIONS]; H];
    // The first group of heads prefetches the next block for all.
    let [next_keys, next_values] = if first == 0 { block.next } else { [&[][..]; 2] };
    match block.keys {
        KvValues::F32(keys) => score::<L, f32, H>(
            lanes,
            StoredBlock { values: keys, scales: &[], next: next_keys },
            &queries,
            length,
            &mut weights,
        ),
        KvValues::F16(keys) => score::<L, u16, H>(
            lanes,
            StoredBlock { values: keys, scales: &[], next: next_keys },
            &queries,
            length,
            &mut weights,
        ),
        KvValues::Q8(keys, scales) => {
            score::<L, i8, H>(
                lanes,
                StoredBlock { values: keys, scales, next: next_keys },
                &queries,
                length,
                &mut weights,
            );
        }
    }
    for (head, weights) in weights.iter_mut().enumerate() {
        weights[block.count..].fill(f32::NEG_INFINITY);
        let out = &mut state.out[(first + head) * length..(first + head + 1) * length];
        online_softmax(lanes, weights, &mut state.largest[first + head], &mut state.sum[first + head], out);
    }
    let out = &mut state.out[first * length..(first + H) * length];
    match block.values {
        KvValues::F32(values) => accumulate::<L, f32, H>(
            lanes,
            StoredBlock { values, scales: &[], next: next_values },
            &weights,
            block.count,
            length,
            out,
        ),
        KvValues::F16(values) => accumulate::<L, u16, H>(
            lanes,
            StoredBlock { values, scales: &[], next: next_values },
            &weights,
            block.count,
            length,
            out,
        ),
        KvValues::Q8(values, scales) => {
            accumulate::<L, i8, H>(
                lanes,
                StoredBlock { values, scales, next: next_values },
                &weights,
                block.count,
                length,
                out,
            );
        }
    }
    H
}

/// Columns that share a scale in the KV cache.
const SCALED: usize = 32;

/// Prefetches a part of the next block that is as long as a column of keys.
#[inline(always)]
fn ask_for<L: Lanes, S: Stored>(lanes: L, next: &[u8], column: usize) {
    let bytes = POSITIONS * size_of::<S>();
    for line in (0..if next.is_empty() { 0 } else { bytes }).step_by(64) {
        lanes.prefetch(next.as_ptr().wrapping_add(column * bytes + line));
    }
}

/// Products of queries `[H, length]` with keys `[length, 32]`; scales are `[length / 32, 32]`.
#[inline(always)]
fn score<L: Lanes, S: Stored, const H: usize>(
    lanes: L,
    keys: StoredBlock<'_, S>,
    queries: &[&[f32]; H],
    length: usize,
    out: &mut [[f32; POSITIONS]; H],
) {
    let StoredBlock { values: keys, scales, next } = keys;
    let registers = POSITIONS / L::ROWS;
    let mut sums = [[lanes.splat(0.0); REGISTERS]; H];
    let keys = keys.as_chunks::<POSITIONS>().0;
    for (group, keys) in keys[..length].chunks(if S::SCALED { SCALED } else { length }).enumerate() {
        let mut part = [[lanes.splat(0.0); REGISTERS]; H];
        for (column, keys) in keys.iter().enumerate() {
            let column = group * SCALED + column;
            ask_for::<L, S>(lanes, next, column);
            for register in 0..registers {
                let keys = S::load(lanes, &keys[register * L::ROWS..(register + 1) * L::ROWS]);
                for head in 0..H {
                    let query = lanes.splat(queries[head][column]);
                    part[head][register] = lanes.multiply_add(keys, query, part[head][register]);
                }
            }
        }
        for register in 0..registers {
            for head in 0..H {
                sums[head][register] = if S::SCALED {
                    let scale = u16::load(lanes, &scales[group * POSITIONS + register * L::ROWS..][..L::ROWS]);
                    lanes.multiply_add(part[head][register], scale, sums[head][register])
                } else {
                    part[head][register]
                };
            }
        }
    }
    for (sums, out) in sums.iter().zip(out) {
        for register in 0..registers {
            lanes.store(sums[register], &mut out[register * L::ROWS..]);
        }
    }
}

/// Online softmax: exponentiates scores against the running maximum and rescales the accumulator when it grows (Milakov
/// and Gimelshein 2018, "Online normalizer calculation for softmax").
#[inline(always)]
fn online_softmax<L: Lanes>(
    lanes: L,
    weights: &mut [f32; POSITIONS],
    largest: &mut f32,
    sum: &mut f32,
    out: &mut [f32],
) {
    let registers = POSITIONS / L::ROWS;
    let mut most = lanes.load(weights);
    for register in 1..registers {
        most = lanes.max(most, lanes.load(&weights[register * L::ROWS..]));
    }
    let most = lanes.largest(most);
    if most > *largest {
        let shrink = (*largest - most).exp();
        out.iter_mut().for_each(|value| *value *= shrink);
        *sum *= shrink;
        *largest = most;
    }
    let mut sums = lanes.splat(0.0);
    for register in 0..registers {
        let score = lanes.load(&weights[register * L::ROWS..]);
        let weight = exponential(lanes, lanes.add(score, lanes.splat(-*largest)));
        lanes.store(weight, &mut weights[register * L::ROWS..]);
        sums = lanes.add(sums, weight);
    }
    *sum += lanes.total(sums);
}

/// Most groups of columns with a shared scale that are summed at once.
const GROUPS: usize = 4;

/// Adds values `[32, length]` times weights to `out` `[H, length]`; scales are `[length / 32, 32]`.
#[inline(always)]
fn accumulate<L: Lanes, S: Stored, const H: usize>(
    lanes: L,
    block: StoredBlock<'_, S>,
    weights: &[[f32; POSITIONS]; H],
    count: usize,
    length: usize,
    out: &mut [f32],
) {
    let StoredBlock { values, scales, .. } = block;
    let mut of_groups = [*weights; GROUPS];
    let mut column = 0;
    while column < length {
        // As many columns as have their sums in registers: the values are read once, in order.
        let left = (length - column) / L::ROWS;
        let registers = [8, 4, 2, 1].into_iter().find(|n| *n <= left && (*n <= 2 || n * H <= L::SUMS)).unwrap_or(0);
        if S::SCALED {
            let groups = (registers * L::ROWS).div_ceil(SCALED).max(1);
            let scales = scales.chunks_exact(POSITIONS).skip(column / SCALED).take(groups);
            of_groups.iter_mut().zip(scales).for_each(|(scaled, scales)| scale(lanes, weights, scales, scaled));
        }
        let columns = ColumnSums { weights: &of_groups, count, length, column };
        match registers {
            8 if H * 8 <= L::SUMS => accumulate_columns::<L, S, H, 8>(lanes, block, columns, out),
            4 if H * 4 <= L::SUMS => accumulate_columns::<L, S, H, 4>(lanes, block, columns, out),
            2 => accumulate_columns::<L, S, H, 2>(lanes, block, columns, out),
            1 => accumulate_columns::<L, S, H, 1>(lanes, block, columns, out),
            _ => break,
        }
        column += registers * L::ROWS;
    }
    for (position, values) in values.chunks_exact(length).take(count).enumerate() {
        for (head, weights) in of_groups[0].iter().enumerate() {
            for column in column..length {
                out[head * length + column] += weights[position] * values[column].value();
            }
        }
    }
}

/// Columns to accumulate.
#[derive(Clone, Copy)]
struct ColumnSums<'a, const H: usize> {
    /// Weights of the positions for each group of columns with a shared scale.
    weights: &'a [[[f32; POSITIONS]; H]; GROUPS],
    /// Number of positions.
    count: usize,
    /// Number of columns of a position.
    length: usize,
    /// The first column.
    column: usize,
}

/// Accumulates `N` registers of columns.
#[inline(always)]
fn accumulate_columns<L: Lanes, S: Stored, const H: usize, const N: usize>(
    lanes: L,
    block: StoredBlock<'_, S>,
    columns: ColumnSums<'_, H>,
    out: &mut [f32],
) {
    let StoredBlock { values, next, .. } = block;
    let ColumnSums { weights, count, length, column } = columns;
    let mut sums = [[lanes.splat(0.0); N]; H];
    for head in 0..H {
        for register in 0..N {
            sums[head][register] = lanes.load(&out[head * length + column + register * L::ROWS..]);
        }
    }
    let count = count.min(POSITIONS);
    let asked_for = if next.is_empty() { 0 } else { N * L::ROWS * size_of::<S>() };
    for (position, values) in values.chunks_exact(length).enumerate().take(count) {
        for line in (0..asked_for).step_by(64) {
            lanes.prefetch(next.as_ptr().wrapping_add((position * length + column) * size_of::<S>() + line));
        }
        let values = &values[column..column + N * L::ROWS];
        for register in 0..N {
            let values = S::load(lanes, &values[register * L::ROWS..(register + 1) * L::ROWS]);
            let group = if S::SCALED { register * L::ROWS / SCALED } else { 0 };
            for head in 0..H {
                let weight = lanes.splat(weights[group][head][position % POSITIONS]);
                sums[head][register] = lanes.multiply_add(values, weight, sums[head][register]);
            }
        }
    }
    for head in 0..H {
        for register in 0..N {
            lanes.store(sums[head][register], &mut out[head * length + column + register * L::ROWS..]);
        }
    }
}

/// Multiplies weights by the scales of the positions.
#[inline(always)]
fn scale<L: Lanes, const H: usize>(
    lanes: L,
    weights: &[[f32; POSITIONS]; H],
    scales: &[u16],
    out: &mut [[f32; POSITIONS]; H],
) {
    for register in 0..POSITIONS / L::ROWS {
        let at = register * L::ROWS;
        let scales = u16::load(lanes, &scales[at..at + L::ROWS]);
        for head in 0..H {
            lanes.store(lanes.multiply(lanes.load(&weights[head][at..]), scales), &mut out[head][at..]);
        }
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
