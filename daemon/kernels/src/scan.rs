//! A state space (Mamba-2, Dao and Gu 2024): the interface of its kernels, and the only definition of a step. Plain loops
//! over columns that do not depend on each other, compiled for each table's instructions: the same bits in every table.

/// Columns that pass through all tokens together, while they are in the nearest cache.
const TILE: usize = 32;

/// The tokens of a sequence, in order, for one head of a state space.
#[derive(Clone, Copy, Debug)]
pub struct ScanRun<'a> {
    /// `[token, value_width]`
    pub values: &'a [f32],
    /// Floats of a token's values, and where those of the head begin.
    pub value_place: [usize; 2],
    /// Elements of the head's value.
    pub length: usize,
    /// `[token, key_width]`
    pub keys: &'a [f32],
    /// Floats of a token's keys and queries, and where the key and the query of the head begin.
    pub key_place: [usize; 3],
    /// Elements of a key and a query.
    pub key_length: usize,
    /// `[token, heads, 2]`: factors of the states, and of the values.
    pub gates: &'a [f32],
    /// Number of heads.
    pub heads: usize,
    /// The head.
    pub head: usize,
    /// Factor of a value in its own result.
    pub skip: f32,
}

/// A token of a run.
struct Token<'a> {
    value: &'a [f32],
    key: &'a [f32],
    query: &'a [f32],
    decay: f32,
    rate: f32,
}

impl<'a> ScanRun<'a> {
    #[inline(always)]
    fn token(&self, token: usize) -> Token<'a> {
        let [width, place] = self.value_place;
        let value = &self.values[token * width..][..width][place..][..self.length];
        let [width, key, query] = self.key_place;
        let row = &self.keys[token * width..][..width];
        let [key, query] = [key, query].map(|place| &row[place..][..self.key_length]);
        let gates = &self.gates[2 * (token * self.heads + self.head)..][..2];
        Token { value, key, query, decay: gates[0], rate: gates[1] }
    }
}

/// For each token: `S = decay S + key (rate value); out = query S + skip value`, where `state` is `S` `[key, value]` and
/// `out` is `[token, value]`.
#[inline(always)]
pub(crate) fn scan(state: &mut [f32], run: ScanRun<'_>, out: &mut [f32]) {
    assert_eq!(state.len(), run.key_length * run.length, "the state has a row for each element of a key");
    let whole = run.length - run.length % TILE;
    for tile in (0..whole).step_by(TILE) {
        for (token, out) in out.chunks_exact_mut(run.length).enumerate() {
            if let Some(out) = out[tile..].first_chunk_mut::<TILE>() {
                step(state, run, token, tile, out);
            }
        }
    }
    for tile in whole..run.length {
        for (token, out) in out.chunks_exact_mut(run.length).enumerate() {
            if let Some(out) = out[tile..].first_chunk_mut::<1>() {
                step(state, run, token, tile, out);
            }
        }
    }
}

/// One token, for the columns from `tile` on.
#[inline(always)]
fn step<const COLUMNS: usize>(
    state: &mut [f32],
    run: ScanRun<'_>,
    token: usize,
    tile: usize,
    out: &mut [f32; COLUMNS],
) {
    let x = run.token(token);
    let (mut changes, mut sums) = ([0.0; COLUMNS], [0.0; COLUMNS]);
    changes.iter_mut().zip(&x.value[tile..]).for_each(|(change, value)| *change = value * x.rate);
    for ((row, key), query) in state.chunks_exact_mut(run.length).zip(x.key).zip(x.query) {
        let Some(row) = row[tile..].first_chunk_mut::<COLUMNS>() else { return };
        for column in 0..COLUMNS {
            row[column] = row[column] * x.decay + key * changes[column];
            sums[column] += query * row[column];
        }
    }
    for column in 0..COLUMNS {
        out[column] = sums[column] + run.skip * x.value[tile + column];
    }
}
