//! Attention over a block of the KV cache, written once for all instruction sets.
use super::{
    Lanes,
    dense::exponential,
    stored::{Stored, StoredBlock},
};
use crate::{Attention, KvBlock, KvValues};

/// Positions of a KV block.
const POSITIONS: usize = 32;
/// Most registers of positions.
const REGISTERS: usize = 4;

/// Merges one block of the KV cache, not of 4 bits, into the state of all query heads that read it.
#[inline(always)]
pub(crate) fn attend<L: Lanes>(lanes: L, block: KvBlock<'_>, state: &mut Attention<'_>) {
    assert!(block.first < block.count.max(1) && block.count <= POSITIONS && L::ROWS * REGISTERS >= POSITIONS);
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
    let (length, width) = (state.key_length, state.value_length);
    // Rows of 4 bits were padded.
    let stride = block.values.count() / POSITIONS;
    let mut queries: [&[f32]; H] = [&[]; H];
    for (head, query) in queries.iter_mut().enumerate() {
        *query = &state.queries[(first + head) * length..(first + head + 1) * length];
    }
    let mut weights = [[0.0; POSITIONS]; H];
    // The first group of heads prefetches the next block for all.
    let [next_keys, next_values] = if first == 0 { block.next } else { [&[][..]; 2] };
    scores(lanes, block, next_keys, &queries, &mut weights);
    for (head, weights) in weights.iter_mut().enumerate() {
        mask(lanes, block, weights);
        let out = &mut state.out[(first + head) * width..(first + head + 1) * width];
        online_softmax(lanes, weights, &mut state.largest[first + head], &mut state.sum[first + head], out);
        // The exponential of minus infinity is tiny, not 0.
        weights[..block.first].fill(0.0);
    }
    let out = &mut state.out[first * width..(first + H) * width];
    match block.values {
        KvValues::F32(values) => accumulate::<L, f32, H>(
            lanes,
            StoredBlock { values, scales: &[], next: next_values },
            &weights,
            block.count,
            [width, stride],
            out,
        ),
        KvValues::F16(values) => accumulate::<L, u16, H>(
            lanes,
            StoredBlock { values, scales: &[], next: next_values },
            &weights,
            block.count,
            [width, stride],
            out,
        ),
        KvValues::Q8(values, scales) => {
            accumulate::<L, i8, H>(
                lanes,
                StoredBlock { values, scales, next: next_values },
                &weights,
                block.count,
                [width, stride],
                out,
            );
        }
        KvValues::Q4(..) => unreachable!("values of 4 bits are unpacked before"),
    }
    H
}

/// Products of queries `[H, key_length]` with the keys of a block; `next` are those of the next one.
#[inline(always)]
fn scores<L: Lanes, const H: usize>(
    lanes: L,
    block: KvBlock<'_>,
    next: &[u8],
    queries: &[&[f32]; H],
    out: &mut [[f32; POSITIONS]; H],
) {
    match (block.keys, block.values) {
        (Some(KvValues::F32(keys)), _) => {
            score::<L, f32, H>(lanes, StoredBlock { values: keys, scales: &[], next }, queries, queries[0].len(), out)
        }
        (Some(KvValues::F16(keys)), _) => {
            score::<L, u16, H>(lanes, StoredBlock { values: keys, scales: &[], next }, queries, queries[0].len(), out)
        }
        (Some(KvValues::Q8(keys, scales)), _) => {
            score::<L, i8, H>(lanes, StoredBlock { values: keys, scales, next }, queries, queries[0].len(), out);
        }
        (None, KvValues::F32(rows)) => score_rows::<L, f32, H>(lanes, rows, &[], queries, block.count, out),
        (None, KvValues::F16(rows)) => score_rows::<L, u16, H>(lanes, rows, &[], queries, block.count, out),
        (None, KvValues::Q8(rows, scales)) => {
            score_rows::<L, i8, H>(lanes, rows, scales, queries, block.count, out);
        }
        (Some(KvValues::Q4(..)), _) | (None, KvValues::Q4(..)) => unreachable!("keys of 4 bits are unpacked before"),
    }
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

/// Most groups of columns of a key with a shared scale.
const KEY_GROUPS: usize = 32;

/// Products of queries `[H, length]` with the first `count` of keys `[32, length]`; scales are `[length / 32, 32]`.
#[inline(always)]
fn score_rows<L: Lanes, S: Stored, const H: usize>(
    lanes: L,
    rows: &[S],
    scales: &[u16],
    queries: &[&[f32]; H],
    count: usize,
    out: &mut [[f32; POSITIONS]; H],
) {
    let mut factors = [[1.0; POSITIONS]; KEY_GROUPS];
    for (factors, scales) in factors.iter_mut().zip(scales.chunks_exact(POSITIONS)) {
        for (out, scales) in factors.chunks_exact_mut(L::ROWS).zip(scales.chunks_exact(L::ROWS)) {
            lanes.store(u16::load(lanes, scales), out);
        }
    }
    // As many positions at once as have their sums in registers.
    let mut first = 0;
    while first < count {
        first += match H {
            1 | 2 => score_few_rows::<L, S, H, 4>(lanes, rows, &factors, queries, first, out),
            _ => score_few_rows::<L, S, H, 2>(lanes, rows, &factors, queries, first, out),
        };
    }
}

/// Products with `P` keys from the first on; returns `P`.
#[inline(always)]
fn score_few_rows<L: Lanes, S: Stored, const H: usize, const P: usize>(
    lanes: L,
    rows: &[S],
    factors: &[[f32; POSITIONS]; KEY_GROUPS],
    queries: &[&[f32]; H],
    first: usize,
    out: &mut [[f32; POSITIONS]; H],
) -> usize {
    // Rows of 4 bits were padded.
    let (length, stride) = (queries[0].len(), rows.len() / POSITIONS);
    let rows = &rows[first * stride..(first + P) * stride];
    let mut sums = [[lanes.splat(0.0); P]; H];
    let mut rests = [[0.0; P]; H];
    let together = if S::SCALED { SCALED } else { length };
    for (group, begin) in (0..length).step_by(together).enumerate() {
        let end = (begin + together).min(length);
        let mut part = [[lanes.splat(0.0); P]; H];
        let mut column = begin;
        while column + L::ROWS <= end {
            let mut keys = [lanes.splat(0.0); P];
            for (position, keys) in keys.iter_mut().enumerate() {
                *keys = S::load(lanes, &rows[position * stride + column..][..L::ROWS]);
            }
            for head in 0..H {
                let query = lanes.load(&queries[head][column..column + L::ROWS]);
                for (position, keys) in keys.iter().enumerate() {
                    part[head][position] = lanes.multiply_add(*keys, query, part[head][position]);
                }
            }
            column += L::ROWS;
        }
        for position in 0..P {
            let factor = factors[group % KEY_GROUPS][(first + position) % POSITIONS];
            for head in 0..H {
                let factors = lanes.splat(factor);
                sums[head][position] = lanes.multiply_add(part[head][position], factors, sums[head][position]);
                for column in column..end {
                    rests[head][position] += rows[position * stride + column].value() * queries[head][column] * factor;
                }
            }
        }
    }
    for head in 0..H {
        for position in 0..P {
            out[head][first + position] = lanes.total(sums[head][position]) + rests[head][position];
        }
    }
    P
}

/// Limits scores, and hides positions outside the block's range.
#[inline(always)]
fn mask<L: Lanes>(lanes: L, block: KvBlock<'_>, scores: &mut [f32; POSITIONS]) {
    if let Some(cap) = block.score_cap {
        limit(lanes, scores, cap);
    }
    scores[..block.first].fill(f32::NEG_INFINITY);
    scores[block.count..].fill(f32::NEG_INFINITY);
}

/// Limits scores: `cap tanh(score / cap)`, with `tanh(x) = 1 - 2 / (1 + e^2x)`.
#[inline(always)]
fn limit<L: Lanes>(lanes: L, scores: &mut [f32; POSITIONS], cap: f32) {
    let (one, low) = (lanes.splat(1.0), lanes.splat(-80.0));
    for scores in scores.chunks_exact_mut(L::ROWS) {
        let twice = lanes.multiply(lanes.load(scores), lanes.splat(2.0 / cap));
        // Clamped on both sides: the exponential would overflow.
        let minus = lanes.multiply(lanes.max(low, twice), lanes.splat(-1.0));
        let clamped = lanes.multiply(lanes.max(low, minus), lanes.splat(-1.0));
        let part = lanes.divide(lanes.splat(-2.0), lanes.add(one, exponential(lanes, clamped)));
        lanes.store(lanes.multiply(lanes.add(one, part), lanes.splat(cap)), scores);
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

/// Adds the first `length` columns of values `[32, stride]` times weights to `out` `[H, length]`; scales are
/// `[stride / 32, 32]`.
#[inline(always)]
fn accumulate<L: Lanes, S: Stored, const H: usize>(
    lanes: L,
    block: StoredBlock<'_, S>,
    weights: &[[f32; POSITIONS]; H],
    count: usize,
    [length, stride]: [usize; 2],
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
        let columns = ColumnSums { weights: &of_groups, count, length, stride, column };
        match registers {
            8 if H * 8 <= L::SUMS => accumulate_columns::<L, S, H, 8>(lanes, block, columns, out),
            4 if H * 4 <= L::SUMS => accumulate_columns::<L, S, H, 4>(lanes, block, columns, out),
            2 => accumulate_columns::<L, S, H, 2>(lanes, block, columns, out),
            1 => accumulate_columns::<L, S, H, 1>(lanes, block, columns, out),
            _ => break,
        }
        column += registers * L::ROWS;
    }
    for (position, values) in values.chunks_exact(stride).take(count).enumerate() {
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
    /// Distance of two positions.
    stride: usize,
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
    let ColumnSums { weights, count, length, stride, column } = columns;
    let mut sums = [[lanes.splat(0.0); N]; H];
    for head in 0..H {
        for register in 0..N {
            sums[head][register] = lanes.load(&out[head * length + column + register * L::ROWS..]);
        }
    }
    let count = count.min(POSITIONS);
    let asked_for = if next.is_empty() { 0 } else { N * L::ROWS * size_of::<S>() };
    for (position, values) in values.chunks_exact(stride).enumerate().take(count) {
        for line in (0..asked_for).step_by(64) {
            lanes.prefetch(next.as_ptr().wrapping_add((position * stride + column) * size_of::<S>() + line));
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
