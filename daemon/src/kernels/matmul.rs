//! Matrix products: panels of weight rows over the threads, all tokens of a step while a panel is in the cache.
use std::ops::Range;

use shared::gguf::BlockFormat;

use super::{
    Activations, Block, Kernels, Panel, Pool,
    activations::{Tile, tiles},
    pool::Columns,
};

/// About how many bytes of weights a thread takes at a time: short pieces that threads take in turn defeat the prefetchers
/// (measured on two cores with a 1.1B Q4_0 model: pieces of 16 kB 23.5 tokens/s, 128 kB 41).
pub(super) const PIECE_BYTES: usize = 128 << 10;
/// Pieces for each thread, so that a slow core does not hold up the rest.
pub(super) const PIECES: usize = 4;
/// Rows of the largest panel and tokens of the largest tile.
const PRODUCTS_MAX: usize = 16 * 16;

/// What a rank computes with.
#[derive(Debug)]
pub struct Compute {
    /// The kernels.
    pub kernels: &'static Kernels,
    /// The threads.
    pub pool: Pool,
}

/// Weights in panels of the kernels' rows (`pack.rs`).
#[derive(Clone, Copy, Debug)]
pub struct MatrixPanels<'a> {
    /// Format of the blocks.
    pub format: BlockFormat,
    /// All panels; the last one is filled up with zeros.
    pub bytes: &'a [u8],
    /// Rows.
    pub rows: usize,
    /// Columns, whole blocks.
    pub columns: usize,
}

/// `out[token, row] = matrix[row] . x[token]`. Each product is the one of a single token, bit for bit.
pub fn matmul(compute: &Compute, matrix: MatrixPanels<'_>, x: &Activations, out: &mut [f32]) {
    matmuls(compute, [matrix], x, [out]);
}

/// Several matrices with the same activations in one run of the threads.
pub fn matmuls<const N: usize>(
    compute: &Compute,
    matrices: [MatrixPanels<'_>; N],
    x: &Activations,
    outs: [&mut [f32]; N],
) {
    let height = compute.kernels.panel_rows;
    let all_bytes: usize = matrices.iter().map(|matrix| matrix.bytes.len()).sum();
    let fair = (all_bytes / (PIECES * compute.pool.threads())).max(1);
    let mut outs = outs.into_iter();
    let mut outputs = matrices.map(|matrix| {
        let out = outs.next().expect("there is an output for each matrix");
        assert!(x.columns() <= matrix.columns, "the matrix has the activations' columns");
        assert_eq!(out.len(), x.tokens() * matrix.rows, "out is [token, rows]");
        let panels = matrix.rows.div_ceil(height);
        assert_eq!(matrix.bytes.len(), panels * matrix.panel_bytes(height), "panels hold all rows and columns");
        let at_once = (PIECE_BYTES.min(fair) / matrix.panel_bytes(height).max(1)).max(1);
        Columns { out, width: matrix.rows, unit: at_once * height }
    });
    compute.pool.columns(&mut outputs, |index, rows, out| {
        let kernels = compute.kernels;
        let tile = |tile, is_quantised| match is_quantised {
            true => Values::Blocks(x.blocks(kernels, tile)),
            false => Values::Floats(x.floats(kernels, tile)),
        };
        products(kernels, matrices[index], rows, x.tokens(), tile, |token, rows, products| {
            out.row_mut(token, rows).copy_from_slice(products);
        });
    });
}

impl MatrixPanels<'_> {
    pub(super) fn panel_bytes(&self, height: usize) -> usize {
        self.columns / self.format.block_length() * self.format.block_bytes() * height
    }
}

/// A tile of tokens as kernels read it.
pub(super) enum Values<'a> {
    /// `[block, token]`
    Blocks(&'a [Block]),
    /// `[column, token]`
    Floats(&'a [f32]),
}

/// Some panels with all tokens: a tile of tokens for all of them, then the next. `values(tile, is_quantised)` is a tile's; `each`
/// takes a token, rows and their products.
#[inline(always)]
pub(super) fn products<'a>(
    kernels: &Kernels,
    matrix: MatrixPanels<'_>,
    rows: Range<usize>,
    tokens: usize,
    values: impl Fn(Tile, bool) -> Values<'a>,
    mut each: impl FnMut(usize, Range<usize>, &[f32]),
) {
    let height = kernels.panel_rows;
    let panel_bytes = matrix.panel_bytes(height);
    let mut products = [0.0; PRODUCTS_MAX];
    let panel = kernels.panels[matrix.format as usize];
    let is_quantised = matrix.format.is_quantised();
    for tile in tiles(if is_quantised { kernels.tiles } else { kernels.float_tiles }, tokens) {
        let products = &mut products[..tile.shape * height];
        let values = values(tile, is_quantised);
        for first in rows.clone().step_by(height) {
            let weights = &matrix.bytes[first / height * panel_bytes..][..panel_bytes];
            match (panel, &values) {
                (Panel::Quantised(product), Values::Blocks(x)) => product(weights, tile.shape, x, products),
                (Panel::Floats(product), Values::Floats(x)) => product(weights, tile.shape, x, products),
                _ => unreachable!("a table's kernels are as its formats are"),
            }
            let last = (first + height).min(rows.end);
            for (token, products) in products.chunks_exact(height).take(tile.tokens).enumerate() {
                each(tile.first + token, first..last, &products[..last - first]);
            }
        }
    }
}
