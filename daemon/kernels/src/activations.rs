//! Activations of a step in the layout of the kernels: tiles of a few tokens with the same columns of all tokens next
//! to each other.
use super::{Compute, Kernels};

/// Columns that share a scale, as in Q8_0.
pub const BLOCK: usize = 32;
/// Quantised magnitude of the largest value in a block.
pub const LEVELS: f32 = 127.0;
/// Columns are padded to whole super-blocks with zeros.
pub(super) const SUPER_BLOCK: usize = 256;

/// 32 columns of a token as in Q8_0: int8 times a scale that is representable as a half (llama.cpp's rule, so that
/// results differ from llama.cpp only in the rounding of sums and not in the quants).
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::NoUninit)]
#[repr(C)]
pub struct Block {
    /// Values divided by the scale.
    pub quants: [i8; BLOCK],
    /// The scale.
    pub scale: f32,
    /// Minus the scale times the sum of all quants.
    pub minus_sums: f32,
    /// Minus 8 times the sum of all quants.
    pub minus_8_sums: i32,
    /// Minus 8 times the sum of the first 16 quants.
    pub minus_8_first: i32,
}

/// Form of the activations that a product reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Blocks of 32 columns of the matrix before the first given column: they count as zeros.
    pub skip: usize,
    /// Whether they are needed as int8.
    pub quantised: bool,
    /// Whether they are needed as f32.
    pub floats: bool,
}

/// Activations of a step; the buffers are reused from step to step.
#[derive(Debug, Default)]
pub struct Activations {
    tokens: usize,
    columns: usize,
    /// `[tile, block, token of the tile]`; empty if not needed.
    blocks: Vec<Block>,
    /// `[tile, column, token of the tile]`; empty if not needed.
    floats: Vec<f32>,
}

/// Tokens `first..first + tokens` of a step in a tile for `shape` tokens; the rest are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    /// First token.
    pub first: usize,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of tokens in the tile's layout.
    pub shape: usize,
}

/// Splits tokens into the largest tiles, and the rest into the smallest tile that holds it.
pub(super) fn tiles(shapes: &'static [usize], tokens: usize) -> impl Iterator<Item = Tile> {
    let largest = shapes.last().copied().unwrap_or(1);
    (0..tokens).step_by(largest).map(move |first| {
        let tokens = largest.min(tokens - first);
        let shape = shapes.iter().copied().find(|shape| *shape >= tokens).unwrap_or(largest);
        Tile { first, tokens, shape }
    })
}

/// Tokens of all tiles, including the padding of the last one.
fn padded(shapes: &'static [usize], tokens: usize) -> usize {
    tiles(shapes, tokens).map(|tile| tile.shape).sum()
}

impl Activations {
    /// Loads values `[token, columns]`.
    pub fn load(&mut self, compute: &Compute, values: &[f32], columns: usize, wanted: Wanted) {
        assert!(columns > 0 && values.len().is_multiple_of(columns), "whole tokens");
        let kernels = compute.kernels;
        self.tokens = values.len() / columns;
        let all = wanted.skip * BLOCK + columns;
        self.columns = all;
        let blocks = if wanted.quantised { all.next_multiple_of(SUPER_BLOCK) / BLOCK } else { 0 };
        self.blocks.resize(blocks * padded(kernels.tiles, self.tokens), Block::default());
        let largest = kernels.tiles.last().copied().unwrap_or(1);
        compute.pool.chunks(&mut self.blocks, largest * blocks, |index, blocks| {
            quantise_tile(kernels, values, columns, wanted.skip, index, blocks);
        });
        let floats = if wanted.floats { all } else { 0 };
        self.floats.resize(floats * padded(kernels.float_tiles, self.tokens), 0.0);
        let largest = kernels.float_tiles.last().copied().unwrap_or(1);
        compute.pool.chunks(&mut self.floats, largest * floats, |index, floats| {
            let shape = floats.len() / all;
            floats.fill(0.0);
            let rows = values.chunks_exact(columns).skip(index * largest).take(shape);
            for (token, row) in rows.enumerate() {
                let places = floats[wanted.skip * BLOCK * shape..].iter_mut().skip(token).step_by(shape);
                places.zip(row).for_each(|(out, value)| *out = *value);
            }
        });
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Columns of a token, including those before the given ones.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// `[block, token]` of a tile.
    pub(super) fn blocks(&self, kernels: &Kernels, tile: Tile) -> &[Block] {
        let blocks = self.blocks.len() / padded(kernels.tiles, self.tokens).max(1);
        assert!(blocks > 0, "the activations were quantised");
        &self.blocks[tile.first * blocks..][..tile.shape * blocks]
    }

    /// `[column, token]` of a tile.
    pub(super) fn floats(&self, kernels: &Kernels, tile: Tile) -> &[f32] {
        let columns = self.floats.len() / padded(kernels.float_tiles, self.tokens).max(1);
        assert!(columns > 0, "the activations were loaded as floats");
        &self.floats[tile.first * columns..][..tile.shape * columns]
    }
}

/// Quantises tile `index` into blocks `[block, token]`.
fn quantise_tile(kernels: &Kernels, values: &[f32], columns: usize, skip: usize, index: usize, blocks: &mut [Block]) {
    let tile = tiles(kernels.tiles, values.len() / columns).nth(index).expect("there is a tile for each chunk");
    blocks.fill(Block::default());
    for (block, tokens) in blocks.chunks_exact_mut(tile.shape).skip(skip).enumerate() {
        for (out, row) in tokens.iter_mut().zip(values.chunks_exact(columns).skip(tile.first).take(tile.tokens)) {
            if let Some(values) = row.chunks(BLOCK).nth(block) {
                (kernels.quantise)(values, out);
            }
        }
    }
}
