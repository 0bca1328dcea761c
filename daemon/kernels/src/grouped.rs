//! Products of tokens with some of many matrices (the experts of a mixture): a step's tokens are grouped by matrix, and
//! each chosen matrix is read once. All groups share the threads in one run. A token's products are summed in the order
//! of the matrices' indices, regardless of the other tokens in the step.
use std::ops::Range;

use gguf::BlockFormat;

use super::{
    Block, Compute, MatrixPanels, Wanted,
    activations::{BLOCK, SUPER_BLOCK, Tile, tiles},
    matmul::{PIECE_BYTES, PIECES, Values, products},
    pool::Columns,
};

/// Most rows in a panel.
const PANEL_ROWS_MAX: usize = 16;

/// Consecutive matrices of one shape and format.
#[derive(Clone, Copy, Debug)]
pub struct MatrixStack<'a> {
    /// Format of the blocks.
    pub format: BlockFormat,
    /// The panels of each matrix, laid out as in `MatrixPanels`.
    pub bytes: &'a [u8],
    /// Rows of a matrix.
    pub rows: usize,
    /// Columns of a matrix, in whole blocks.
    pub columns: usize,
    /// Number of matrices.
    pub count: usize,
}

impl<'a> MatrixStack<'a> {
    fn matrix_bytes(&self) -> usize {
        self.bytes.len() / self.count.max(1)
    }

    fn get(&self, index: usize) -> MatrixPanels<'a> {
        let length = self.matrix_bytes();
        let bytes = &self.bytes[index * length..][..length];
        MatrixPanels { format: self.format, bytes, rows: self.rows, columns: self.columns }
    }

    /// Bytes of a panel, after checking the size of the stack.
    fn panel_bytes(&self, groups: &Groups, height: usize) -> usize {
        let panel =
            MatrixPanels { format: self.format, bytes: &[], rows: 0, columns: self.columns }.panel_bytes(height);
        assert_eq!(self.bytes.len(), self.count * self.rows.div_ceil(height) * panel, "panels hold all matrices");
        assert!(groups.matrices.last().is_none_or(|last| *last < self.count), "matrices of the stack are chosen");
        panel
    }
}

/// A matrix chosen for a token, and the weight of its product in the token's sum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Choice {
    /// The matrix's index.
    pub matrix: usize,
    /// Its weight.
    pub weight: f32,
}

/// A step's choices as rows, one for each pair of token and matrix: sorted by matrix, then by token. The buffers are
/// reused.
#[derive(Debug, Default)]
pub struct Groups {
    /// Matrix of each group, ascending.
    matrices: Vec<usize>,
    /// End row of each group.
    ends: Vec<usize>,
    /// Token of each row.
    tokens: Vec<usize>,
    /// Weight of each row.
    weights: Vec<f32>,
    /// For each matrix, the next row to fill.
    next: Vec<usize>,
}

impl Groups {
    /// Loads the choices `[token, per_token]` of matrices below `count`; others are left out.
    pub fn load(&mut self, choices: &[Choice], per_token: usize, count: usize) {
        let Self { matrices, ends, tokens, weights, next } = self;
        next.clear();
        next.resize(count, 0);
        choices.iter().filter(|choice| choice.matrix < count).for_each(|choice| next[choice.matrix] += 1);
        matrices.clear();
        ends.clear();
        let mut end = 0;
        for (matrix, next) in next.iter_mut().enumerate().filter(|(_, rows)| **rows > 0) {
            let first = end;
            end += *next;
            *next = first;
            matrices.push(matrix);
            ends.push(end);
        }
        tokens.resize(end, 0);
        weights.resize(end, 0.0);
        for (index, choice) in choices.iter().enumerate().filter(|(_, choice)| choice.matrix < count) {
            let row = &mut next[choice.matrix];
            (tokens[*row], weights[*row]) = (index / per_token, choice.weight);
            *row += 1;
        }
    }

    /// Number of rows in all groups.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    fn first(&self, group: usize) -> usize {
        if group == 0 { 0 } else { self.ends[group - 1] }
    }

    fn rows_of(&self, group: usize) -> usize {
        self.ends[group] - self.first(group)
    }
}

/// Meaning of the rows of given activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowsOf {
    /// One row for each token of the step.
    #[default]
    Tokens,
    /// One row for each row of the groups.
    Groups,
}

/// Activations of the rows of all groups, in tiles that end with their group. The buffers are reused from step to step.
#[derive(Debug, Default)]
pub struct GroupedActivations {
    columns: usize,
    given: RowsOf,
    /// `[given row, block]`: read by tiles of one token.
    rows: Vec<Block>,
    /// `[tile, block, token of the tile]` of all tiles; those of one token stay unset.
    blocks: Vec<Block>,
    /// `[tile, column, token of the tile]`
    floats: Vec<f32>,
    /// For each group, the token capacity of all tiles before it: for blocks and for floats.
    places: [Vec<usize>; 2],
}

impl GroupedActivations {
    /// Loads the values `[row, columns]`, given for tokens or for the rows of the groups.
    pub fn load(
        &mut self,
        compute: &Compute,
        groups: &Groups,
        values: &[f32],
        columns: usize,
        given: RowsOf,
        wanted: Wanted,
    ) {
        assert!(columns > 0 && values.len().is_multiple_of(columns), "whole rows");
        let kernels = compute.kernels;
        self.columns = wanted.skip * BLOCK + columns;
        self.given = given;
        let per_row = if wanted.quantised { self.columns.next_multiple_of(SUPER_BLOCK) / BLOCK } else { 0 };
        self.rows.resize(values.len() / columns * per_row, Block::default());
        compute.pool.chunks(&mut self.rows, per_row, |row, blocks| {
            blocks.fill(Block::default());
            let values = values[row * columns..][..columns].chunks(BLOCK);
            values.zip(&mut blocks[wanted.skip..]).for_each(|(values, block)| (kernels.quantise)(values, block));
        });
        let [of_blocks, of_floats] = &mut self.places;
        let room = place(groups, kernels.tiles, of_blocks);
        self.blocks.resize(room * per_row, Block::default());
        // If every group has one row, no interleaving is needed.
        if groups.rows() > groups.ends.len() {
            let rows = &self.rows;
            compute.pool.chunks(&mut self.blocks, per_row, |room, out| {
                let part = TilePart::of(groups, kernels.tiles, of_blocks, room, per_row);
                if part.shape > 1 {
                    part.gather(groups, given, out, |row, block| rows[row * per_row + block]);
                }
            });
        }
        let all = if wanted.floats { self.columns } else { 0 };
        let room = place(groups, kernels.float_tiles, of_floats);
        self.floats.resize(room * all, 0.0);
        compute.pool.chunks(&mut self.floats, all, |room, out| {
            let part = TilePart::of(groups, kernels.float_tiles, of_floats, room, all);
            part.gather(groups, given, out, |row, column| match column.checked_sub(wanted.skip * BLOCK) {
                Some(column) => values[row * columns + column],
                None => 0.0,
            });
        });
    }

    /// The values of a group's tile.
    fn tile(&self, groups: &Groups, group: usize, tile: Tile, is_quantised: bool) -> Values<'_> {
        if !is_quantised {
            assert!(!self.floats.is_empty(), "the activations were loaded as floats");
            let at = (self.places[1][group] + tile.first) * self.columns;
            return Values::Floats(&self.floats[at..][..tile.shape * self.columns]);
        }
        assert!(!self.rows.is_empty(), "the activations were quantised");
        let per_row = self.columns.next_multiple_of(SUPER_BLOCK) / BLOCK;
        if tile.shape == 1 {
            let row = given_row(groups, self.given, groups.first(group) + tile.first);
            return Values::Blocks(&self.rows[row * per_row..][..per_row]);
        }
        let at = (self.places[0][group] + tile.first) * per_row;
        Values::Blocks(&self.blocks[at..][..tile.shape * per_row])
    }
}

/// Index of the given row that corresponds to a row of the groups.
fn given_row(groups: &Groups, given: RowsOf, row: usize) -> usize {
    match given {
        RowsOf::Tokens => groups.tokens[row],
        RowsOf::Groups => row,
    }
}

/// Sets the places of all groups for tiles of these shapes; returns the total capacity.
fn place(groups: &Groups, shapes: &'static [usize], places: &mut Vec<usize>) -> usize {
    places.clear();
    let mut room = 0;
    for group in 0..groups.ends.len() {
        places.push(room);
        room += tiles(shapes, groups.rows_of(group)).map(|tile| tile.shape).sum::<usize>();
    }
    room
}

/// A part of a tile's values, as long as those of one token.
struct TilePart {
    /// The group's row at which the tile begins, and the number of its rows.
    first: usize,
    tokens: usize,
    shape: usize,
    /// Number of the tile's values before the part.
    begin: usize,
}

impl TilePart {
    /// Part number `room` of all tiles; `length` is the number of values per token.
    fn of(groups: &Groups, shapes: &'static [usize], places: &[usize], room: usize, length: usize) -> Self {
        let group = places.partition_point(|place| *place <= room) - 1;
        let within = room - places[group];
        let mut tiles = tiles(shapes, groups.rows_of(group));
        let tile = tiles.find(|tile| within < tile.first + tile.shape).expect("a group has room for its tiles");
        let Tile { first, tokens, shape } = tile;
        Self { first: groups.first(group) + first, tokens, shape, begin: (within - first) * length }
    }

    /// Fills the values `[value, token]`; `value(row, index)` is one value of a given row.
    fn gather<T: Default>(&self, groups: &Groups, given: RowsOf, out: &mut [T], value: impl Fn(usize, usize) -> T) {
        for (index, out) in out.iter_mut().enumerate() {
            let (index, token) = ((self.begin + index) / self.shape, (self.begin + index) % self.shape);
            let is_there = token < self.tokens;
            *out = if is_there { value(given_row(groups, given, self.first + token), index) } else { T::default() };
        }
    }
}

/// How the two products of a gated network are combined.
#[derive(Clone, Copy, Debug)]
pub struct Gating<'a> {
    /// `gate = combined(gate, up)`
    pub combine: fn(gate: &mut [f32], up: &[f32]),
    /// `[matrix]`: factors of gate and up before; empty: 1.
    pub scales: [&'a [f32]; 2],
    /// `[matrix, rows of a matrix]` added to gate and up before; empty without biases.
    pub biases: [&'a [f32]; 2],
}

impl Gating<'_> {
    /// Scales some rows of a matrix and adds their biases; `of` selects gate or up.
    fn complete(&self, of: usize, matrix: usize, height: usize, rows: Range<usize>, values: &mut [f32]) {
        if let Some(scale) = self.scales[of].get(matrix) {
            values.iter_mut().for_each(|value| *value *= scale);
        }
        if let Some(bias) = self.biases[of].get(matrix * height..).filter(|bias| !bias.is_empty()) {
            values.iter_mut().zip(&bias[rows]).for_each(|(value, bias)| *value += bias);
        }
    }
}

/// `out[row] = combined(gate . x, up . x)` with the matrices of each row's group; `out` is
/// `[row of the groups, rows of a matrix]`. Without a gate, whose stack then has no rows, `combine` overwrites it.
pub fn gated(
    compute: &Compute,
    [gate, up]: [MatrixStack<'_>; 2],
    gating: Gating<'_>,
    groups: &Groups,
    x: &GroupedActivations,
    out: &mut [f32],
) {
    let Compute { kernels, pool } = compute;
    let height = kernels.panel_rows;
    let gate = Some(gate).filter(|gate| gate.rows > 0);
    let alike = gate.is_none_or(|gate| gate.rows == up.rows && x.columns <= gate.columns);
    assert!(alike && x.columns <= up.columns, "both have the activations' columns");
    assert_eq!(out.len(), groups.rows() * up.rows, "out is [row, rows]");
    let [of_gate, of_up] = [gate, Some(up)].map(|stack| stack.map_or(0, |stack| stack.panel_bytes(groups, height)));
    let all = groups.ends.len() * (gate.map_or(0, |gate| gate.matrix_bytes()) + up.matrix_bytes());
    let at_once = (PIECE_BYTES.min(all / (PIECES * pool.threads())) / of_gate.max(of_up).max(1)).max(1);
    let output = Columns { out, width: up.rows, unit: at_once * height };
    pool.grouped(output, &groups.ends, |group, rows, out| {
        let (matrix, tokens) = (groups.matrices[group], groups.rows_of(group));
        let tile = |tile, is_quantised| x.tile(groups, group, tile, is_quantised);
        if let Some(gate) = gate {
            products(kernels, gate.get(matrix), rows.clone(), tokens, tile, |token, rows, gates| {
                let out = out.row_mut(token, rows.clone());
                out.copy_from_slice(gates);
                gating.complete(0, matrix, gate.rows, rows, out);
            });
        }
        // One panel at a time, regardless of thread boundaries: remainders and full registers may round differently.
        products(kernels, up.get(matrix), rows, tokens, tile, |token, rows, ups| {
            let mut copy = [0.0; PANEL_ROWS_MAX];
            let copy = &mut copy[..ups.len()];
            copy.copy_from_slice(ups);
            gating.complete(1, matrix, up.rows, rows.clone(), copy);
            (gating.combine)(out.row_mut(token, rows), copy);
        });
    });
}

/// `out[token] += weight * (matrix . x)` for every row of the groups, in their order; `out` is
/// `[token, rows of a matrix]`.
pub fn weighted_sums(
    compute: &Compute,
    matrices: MatrixStack<'_>,
    groups: &Groups,
    x: &GroupedActivations,
    out: &mut [f32],
) {
    let Compute { kernels, pool } = compute;
    let height = kernels.panel_rows;
    assert!(x.columns <= matrices.columns, "the matrices have the activations' columns");
    let panel_bytes = matrices.panel_bytes(groups, height).max(1);
    // A piece reads its rows of every matrix: short runs of each would defeat the prefetchers.
    let fair = matrices.matrix_bytes() / (PIECES * pool.threads());
    let at_once = (PIECE_BYTES.min(fair) / panel_bytes).max(1);
    let output = Columns { out, width: matrices.rows, unit: at_once * height };
    pool.columns(&mut [output], |_, rows, out| {
        for (group, matrix) in groups.matrices.iter().enumerate() {
            let first = groups.first(group);
            products(
                kernels,
                matrices.get(*matrix),
                rows.clone(),
                groups.rows_of(group),
                |tile, is_quantised| x.tile(groups, group, tile, is_quantised),
                |token, rows, products| {
                    let (token, weight) = (groups.tokens[first + token], groups.weights[first + token]);
                    let sums = out.row_mut(token, rows).iter_mut();
                    sums.zip(products).for_each(|(sum, product)| *sum += weight * product);
                },
            );
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activations, Kernels, Pool, PoolOptions, matmul, pack_panel};

    const COUNT: usize = 5;
    const ROWS: usize = 37;
    const COLUMNS: usize = 512;

    /// Bytes below 0x40: scales and floats are small numbers in every format.
    fn noise(length: usize, seed: usize) -> Vec<u8> {
        (0..length).map(|at| (((at + 1) * (seed + 3) * 2_654_435) >> 9) as u8 & 0x3f).collect()
    }

    fn packed(format: BlockFormat, height: usize, seed: usize, columns: usize) -> Vec<u8> {
        let row_bytes = format.row_bytes(columns).expect("whole blocks");
        (0..COUNT)
            .flat_map(|matrix| {
                let rows: Vec<Vec<u8>> = (0..ROWS).map(|row| noise(row_bytes, seed + row + 100 * matrix)).collect();
                let mut bytes = vec![0; ROWS.next_multiple_of(height) * row_bytes];
                for (panel, out) in bytes.chunks_exact_mut(height * row_bytes).enumerate() {
                    pack_panel(
                        format,
                        height,
                        0..columns / format.block_length(),
                        |lane| rows.get(panel * height + lane).map(Vec::as_slice),
                        out,
                    );
                }
                bytes
            })
            .collect()
    }

    /// Choices where the first matrix is chosen by all tokens and the last by none.
    fn choices(tokens: usize) -> Vec<Choice> {
        (0..2 * tokens)
            .map(|index| Choice {
                matrix: [0, 1 + index / 2 % (COUNT - 2)][index % 2],
                weight: 0.25 + index as f32 / 64.0,
            })
            .collect()
    }

    /// Computes each token alone, with one matrix after another in index order.
    fn one_by_one(compute: &Compute, stacks: [MatrixStack<'_>; 3], x: &[f32], wanted: Wanted) -> Vec<f32> {
        let product = |stack: MatrixStack<'_>, matrix, x: &[f32], skip| {
            let (mut activations, mut out) = (Activations::default(), vec![0.0; ROWS]);
            activations.load(compute, x, x.len(), Wanted { skip, ..wanted });
            matmul(compute, stack.get(matrix), &activations, &mut out);
            out
        };
        x.chunks(COLUMNS)
            .enumerate()
            .flat_map(|(token, x)| {
                let mut sums = vec![0.0; ROWS];
                let choices = choices(token + 1).split_off(2 * token);
                for Choice { matrix, weight } in choices {
                    let mut gates = product(stacks[0], matrix, x, 0);
                    (compute.kernels.silu_multiply)(&mut gates, &product(stacks[1], matrix, x, 0));
                    let out = product(stacks[2], matrix, &gates[..32], wanted.skip);
                    sums.iter_mut().zip(out).for_each(|(sum, out)| *sum += weight * out);
                }
                sums
            })
            .collect()
    }

    #[test]
    fn groups_match_single_tokens_bit_for_bit() {
        for format in [BlockFormat::Q4K, BlockFormat::Q8_0, BlockFormat::F16] {
            for kernels in Kernels::available() {
                let columns = [COLUMNS, COLUMNS, if format.is_quantised() { 256 } else { 32 }];
                let bytes = [0, 1, 2].map(|index| packed(format, kernels.panel_rows, index, columns[index]));
                let stacks = [0, 1, 2].map(|index| MatrixStack {
                    format,
                    bytes: &bytes[index],
                    rows: ROWS,
                    columns: columns[index],
                    count: COUNT,
                });
                // The last product begins in the middle of a super-block.
                let skip = if format.is_quantised() { 3 } else { 0 };
                let wanted = Wanted { skip, quantised: format.is_quantised(), floats: !format.is_quantised() };
                for (tokens, threads) in [(1, 1), (1, 3), (2, 2), (7, 1), (23, 2), (70, 4)] {
                    let pool = Pool::new(PoolOptions { threads, cores: Vec::new(), spin: false });
                    let compute = Compute { kernels, pool };
                    let x: Vec<f32> = (0..tokens * COLUMNS).map(|at| (at * 37 % 101) as f32 / 300.0 - 0.1).collect();
                    let (mut groups, mut activations) = (Groups::default(), GroupedActivations::default());
                    groups.load(&choices(tokens), 2, COUNT);
                    activations.load(&compute, &groups, &x, COLUMNS, RowsOf::Tokens, Wanted { skip: 0, ..wanted });
                    let mut inner = vec![f32::NAN; groups.rows() * ROWS];
                    let gating = Gating { combine: kernels.silu_multiply, scales: [&[]; 2], biases: [&[]; 2] };
                    gated(&compute, [stacks[0], stacks[1]], gating, &groups, &activations, &mut inner);
                    let first: Vec<f32> = inner.chunks(ROWS).flat_map(|row| row[..32].to_vec()).collect();
                    activations.load(&compute, &groups, &first, 32, RowsOf::Groups, wanted);
                    let mut out = vec![0.0; tokens * ROWS];
                    weighted_sums(&compute, stacks[2], &groups, &activations, &mut out);
                    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                    let expected = one_by_one(&compute, stacks, &x, wanted);
                    assert!(expected.iter().all(|value| value.is_finite() && *value != 0.0));
                    let what = format!("{} {} {tokens} tokens {threads} threads", kernels.name, format.name());
                    assert_eq!(bits(out), bits(expected), "{what}");
                }
            }
        }
    }
}
