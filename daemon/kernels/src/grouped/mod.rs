//! Products of tokens with some of many matrices (the experts of a mixture): a step's tokens are grouped by matrix, and
//! each chosen matrix is read once. All groups share the threads in one run. A token's products are summed in the order
//! of the matrices' indices, regardless of the other tokens in the step.
#[cfg(test)]
mod tests;

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

/// Matrices of one shape and format.
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
    /// For each matrix the byte at which it begins, for those that are chosen; `None`: one follows the other.
    pub places: Option<&'a [usize]>,
}

impl<'a> MatrixStack<'a> {
    fn matrix_bytes(&self, height: usize) -> usize {
        self.rows.div_ceil(height) * self.panel_bytes(height)
    }

    fn get(&self, index: usize, height: usize) -> MatrixPanels<'a> {
        let length = self.matrix_bytes(height);
        let begin = self.places.map_or(index * length, |places| places[index]);
        MatrixPanels {
            format: self.format,
            bytes: &self.bytes[begin..][..length],
            rows: self.rows,
            columns: self.columns,
        }
    }

    fn panel_bytes(&self, height: usize) -> usize {
        MatrixPanels { format: self.format, bytes: &[], rows: 0, columns: self.columns }.panel_bytes(height)
    }

    /// Bytes of a panel, after checking the size of the stack.
    fn checked_panel_bytes(&self, groups: &Groups, height: usize) -> usize {
        match self.places {
            Some(places) => assert_eq!(places.len(), self.count, "every matrix has a place"),
            None => assert_eq!(self.bytes.len(), self.count * self.matrix_bytes(height), "panels hold all matrices"),
        }
        assert!(groups.matrices.last().is_none_or(|last| *last < self.count), "matrices of the stack are chosen");
        self.panel_bytes(height)
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
    /// Most rows that so many choices can have. Buffers have room for them: how many of a token's choices are here
    /// differs from token to token.
    most: usize,
}

impl Groups {
    /// Loads the choices `[token, per_token]` of matrices in a range; others are left out.
    pub fn load(&mut self, choices: &[Choice], per_token: usize, range: Range<usize>) {
        let Self { matrices, ends, tokens, weights, next, most } = self;
        *most = choices.len();
        make_room(matrices, *most);
        make_room(ends, *most);
        make_room(tokens, *most);
        make_room(weights, *most);
        next.clear();
        next.resize(range.len(), 0);
        let own = choices.iter().filter(|choice| range.contains(&choice.matrix));
        own.for_each(|choice| next[choice.matrix - range.start] += 1);
        matrices.clear();
        ends.clear();
        let mut end = 0;
        for (index, next) in next.iter_mut().enumerate().filter(|(_, rows)| **rows > 0) {
            let first = end;
            end += *next;
            *next = first;
            matrices.push(range.start + index);
            ends.push(end);
        }
        tokens.resize(end, 0);
        weights.resize(end, 0.0);
        for (index, choice) in choices.iter().enumerate().filter(|(_, choice)| range.contains(&choice.matrix)) {
            let row = &mut next[choice.matrix - range.start];
            (tokens[*row], weights[*row]) = (index / per_token, choice.weight);
            *row += 1;
        }
    }

    /// Loads every one of `count` matrices for each of so many tokens.
    pub fn load_all(&mut self, tokens: usize, count: usize) {
        let Self { matrices, ends, tokens: of_rows, weights, most, .. } = self;
        *most = count * tokens;
        matrices.clear();
        matrices.extend(0..count);
        ends.clear();
        ends.extend((1..=count).map(|matrix| matrix * tokens));
        of_rows.clear();
        of_rows.extend((0..count).flat_map(|_| 0..tokens));
        weights.clear();
        weights.resize(count * tokens, 1.0);
    }

    /// The chosen matrices, ascending.
    pub fn matrices(&self) -> &[usize] {
        &self.matrices
    }

    /// Most rows that the groups of as many choices can have.
    pub fn most_rows(&self) -> usize {
        self.most
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
        make_room(&mut self.rows, groups.most * per_row);
        self.rows.resize(values.len() / columns * per_row, Block::default());
        compute.pool.chunks(&mut self.rows, per_row, |row, blocks| {
            blocks.fill(Block::default());
            let values = values[row * columns..][..columns].chunks(BLOCK);
            values.zip(&mut blocks[wanted.skip..]).for_each(|(values, block)| (kernels.quantise)(values, block));
        });
        let [of_blocks, of_floats] = &mut self.places;
        let room = place(groups, kernels.tiles, of_blocks);
        make_room(&mut self.blocks, groups.most * per_row);
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
        make_room(&mut self.floats, groups.most * all);
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

/// Lets a buffer grow to this length without an allocation.
pub fn make_room<T>(buffer: &mut Vec<T>, length: usize) {
    buffer.reserve(length.saturating_sub(buffer.len()));
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
    make_room(places, groups.most);
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
    let [of_gate, of_up] =
        [gate, Some(up)].map(|stack| stack.map_or(0, |stack| stack.checked_panel_bytes(groups, height)));
    let all = groups.ends.len() * (gate.map_or(0, |gate| gate.matrix_bytes(height)) + up.matrix_bytes(height));
    let at_once = panels_at_once(all, of_gate.max(of_up), pool.threads());
    let output = Columns { out, width: up.rows, unit: at_once * height };
    pool.grouped(output, &groups.ends, |group, rows, out| {
        let (matrix, tokens) = (groups.matrices[group], groups.rows_of(group));
        let tile = |tile, is_quantised| x.tile(groups, group, tile, is_quantised);
        if let Some(gate) = gate {
            products(kernels, gate.get(matrix, height), rows.clone(), tokens, tile, |token, rows, gates| {
                let out = out.row_mut(token, rows.clone());
                out.copy_from_slice(gates);
                gating.complete(0, matrix, gate.rows, rows, out);
            });
        }
        // One panel at a time, regardless of thread boundaries: remainders and full registers may round differently.
        products(kernels, up.get(matrix, height), rows, tokens, tile, |token, rows, ups| {
            let mut copy = [0.0; PANEL_ROWS_MAX];
            let copy = &mut copy[..ups.len()];
            copy.copy_from_slice(ups);
            gating.complete(1, matrix, up.rows, rows.clone(), copy);
            (gating.combine)(out.row_mut(token, rows), copy);
        });
    });
}

/// Panels of a piece of the work: a fair part of all bytes, or fewer.
fn panels_at_once(all_bytes: usize, panel_bytes: usize, threads: usize) -> usize {
    (PIECE_BYTES.min(all_bytes / (PIECES * threads)) / panel_bytes.max(1)).max(1)
}

/// `out[row] = matrix . x` with the matrix of each row's group; `out` is `[row of the groups, rows of a matrix]`.
pub fn separate_products(
    compute: &Compute,
    matrices: MatrixStack<'_>,
    groups: &Groups,
    x: &GroupedActivations,
    out: &mut [f32],
) {
    let Compute { kernels, pool } = compute;
    let height = kernels.panel_rows;
    assert!(x.columns <= matrices.columns, "the matrices have the activations' columns");
    assert_eq!(out.len(), groups.rows() * matrices.rows, "out is [row, rows]");
    let all = groups.ends.len() * matrices.matrix_bytes(height);
    let at_once = panels_at_once(all, matrices.checked_panel_bytes(groups, height), pool.threads());
    let output = Columns { out, width: matrices.rows, unit: at_once * height };
    pool.grouped(output, &groups.ends, |group, rows, out| {
        let (matrix, tokens) = (matrices.get(groups.matrices[group], height), groups.rows_of(group));
        products(
            kernels,
            matrix,
            rows,
            tokens,
            |tile, is_quantised| x.tile(groups, group, tile, is_quantised),
            |token, rows, products| out.row_mut(token, rows).copy_from_slice(products),
        );
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
    // A piece reads its rows of every matrix: short runs of each would defeat the prefetchers.
    let panel_bytes = matrices.checked_panel_bytes(groups, height);
    let at_once = panels_at_once(matrices.matrix_bytes(height), panel_bytes, pool.threads());
    let output = Columns { out, width: matrices.rows, unit: at_once * height };
    pool.columns(&mut [output], |_, rows, out| {
        for (group, matrix) in groups.matrices.iter().enumerate() {
            let first = groups.first(group);
            products(
                kernels,
                matrices.get(*matrix, height),
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
