//! Matrix products: panels of weight rows are split over the threads; a panel in the cache is multiplied with all
//! tokens of a step.
use std::ops::Range;

use gguf::BlockFormat;

use super::{
    Activations, Block, Kernels, Panel,
    activations::{Tile, tiles},
    pool::Columns,
};
use crate::compute::Compute;

/// Approximate number of weight bytes that a thread takes at a time: short pieces taken alternately by several threads
/// defeat the prefetchers (measured on two cores with a 1.1B Q4_0 model: pieces of 16 kB 23.5 tokens/s, 128 kB 41).
pub(super) const PIECE_BYTES: usize = 128 << 10;
/// Pieces for each thread, so that a slow core does not delay the rest.
pub(super) const PIECES: usize = 4;
/// Rows of the largest panel and tokens of the largest tile.
const PRODUCTS_MAX: usize = 16 * 16;

/// Weights in panels of the kernels' number of rows (`pack.rs`).
#[derive(Clone, Copy, Debug)]
pub struct MatrixPanels<'a> {
    /// Format of the blocks.
    pub format: BlockFormat,
    /// All panels; the last one is padded with zeros.
    pub bytes: &'a [u8],
    /// Rows.
    pub rows: usize,
    /// Columns, in whole blocks.
    pub columns: usize,
}

/// `out[token, row] = matrix[row] . x[token]`. Each product equals that of a single token, bit for bit.
pub fn matmul(compute: &Compute, matrix: MatrixPanels<'_>, x: &Activations, out: &mut [f32]) {
    matmuls(compute, [matrix], x, [out]);
}

/// Multiplies several matrices with the same activations in one run of the threads.
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
        products(
            kernels,
            matrices[index],
            rows,
            x.tokens(),
            |tile, is_quantised| match is_quantised {
                true => Values::Blocks(x.blocks(kernels, tile)),
                false => Values::Floats(x.floats(kernels, tile)),
            },
            |token, rows, products| {
                out.row_mut(token, rows).copy_from_slice(products);
            },
        );
    });
}

impl MatrixPanels<'_> {
    pub(super) fn panel_bytes(&self, height: usize) -> usize {
        self.columns / self.format.block_length() * self.format.block_bytes() * height
    }
}

/// A tile of tokens as a kernel argument.
pub(super) enum Values<'a> {
    /// `[block, token]`
    Blocks(&'a [Block]),
    /// `[column, token]`
    Floats(&'a [f32]),
}

/// Multiplies some panels with all tokens, one tile of tokens after another. `values(tile, is_quantised)` returns a
/// tile's values; `each` receives a token, rows and their products.
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
                _ => unreachable!("a table's kernels match its formats"),
            }
            let last = (first + height).min(rows.end);
            for (token, products) in products.chunks_exact(height).take(tile.tokens).enumerate() {
                each(tile.first + token, first..last, &products[..last - first]);
            }
        }
    }
}
