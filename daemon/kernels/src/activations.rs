//! Activations of a step in the layout of the kernels: tiles of a few tokens with the same columns of all tokens next
//! to each other.
use std::ops::Range;

use super::{Compute, Kernels};

/// Columns that share a scale, as in Q8_0.
pub const BLOCK: usize = 32;
/// Quantised magnitude of the largest value in a block.
pub const LEVELS: f32 = 127.0;
/// Up to this many tokens, padding costs less than another tile: the weights' bytes limit the speed.
const SMALL_TILE: usize = 4;
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

/// Splits tokens into the largest tiles. The rest goes to the smallest tile that holds it, or, if more than an eighth of
/// that would be padding, to tiles that it fills: reading the weights again from the cache costs less than padding.
pub(super) fn tiles(shapes: &'static [usize], tokens: usize) -> impl Iterator<Item = Tile> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let left = tokens - first;
        let holding = shapes.iter().copied().find(|shape| *shape >= left);
        let shape = match holding {
            _ if left == 0 => return None,
            Some(shape) if shape <= SMALL_TILE || 8 * (shape - left) <= shape => shape,
            _ => shapes.iter().copied().rev().find(|shape| *shape <= left).unwrap_or(1),
        };
        let tile = Tile { first, tokens: left.min(shape), shape };
        first += tile.tokens;
        Some(tile)
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
            let tokens = index * largest..(index + 1) * largest;
            quantise_tiles(kernels, values, columns, wanted.skip, tokens, blocks);
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

/// Quantises the tiles of a range of tokens into blocks `[tile, block, token of the tile]`.
fn quantise_tiles(
    kernels: &Kernels,
    values: &[f32],
    columns: usize,
    skip: usize,
    range: Range<usize>,
    mut blocks: &mut [Block],
) {
    let tokens = values.len() / columns;
    let per_token = blocks.len() / padded(kernels.tiles, tokens.min(range.end) - range.start);
    blocks.fill(Block::default());
    for tile in tiles(kernels.tiles, tokens).filter(|tile| range.contains(&tile.first)) {
        let (of_tile, rest) = blocks.split_at_mut(tile.shape * per_token);
        blocks = rest;
        for (block, tokens) in of_tile.chunks_exact_mut(tile.shape).skip(skip).enumerate() {
            for (out, row) in tokens.iter_mut().zip(values.chunks_exact(columns).skip(tile.first).take(tile.tokens)) {
                if let Some(values) = row.chunks(BLOCK).nth(block) {
                    (kernels.quantise)(values, out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_the_tokens_with_little_padding() {
        const SHAPES: &[usize] = &[1, 2, 4, 8, 16];
        let of = |tokens| tiles(SHAPES, tokens).map(|tile| tile.shape).collect::<Vec<_>>();
        assert_eq!([3, 5, 7, 9].map(of), [vec![4], vec![4, 1], vec![8], vec![8, 1]]);
        assert_eq!([11, 13, 15, 45].map(of), [vec![8, 4], vec![8, 4, 1], vec![16], vec![16, 16, 8, 4, 1]]);
        for shapes in [&SHAPES[..1], &SHAPES[..3], &SHAPES[..4], SHAPES] {
            for tokens in 0..70 {
                let mut first = 0;
                for tile in tiles(shapes, tokens) {
                    assert_eq!(tile.first, first, "{tokens} tokens: tiles are in order");
                    assert!((1..=tile.shape).contains(&tile.tokens) && shapes.contains(&tile.shape));
                    first += tile.tokens;
                    assert!(
                        tile.tokens == tile.shape || first == tokens,
                        "{tokens} tokens: only the last one is padded"
                    );
                }
                assert_eq!(first, tokens);
                let padding = padded(shapes, tokens) - tokens;
                assert!(padding <= 1.max(padded(shapes, tokens) / 8), "{tokens} tokens: {padding} of padding");
            }
        }
    }
}
