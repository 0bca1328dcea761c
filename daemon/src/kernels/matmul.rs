//! Matrix products: rows of weights over the threads, all tokens of a step while a row is in the cache.
use std::ops::Range;

use shared::gguf::BlockFormat;

use super::{ActivationRow, Activations, Kernels, Pool, TILE_ROWS, TILE_TOKENS, pool::ColumnsMut};

/// Fewest rows that a thread takes at a time, and about how many bytes: short pieces that threads take in turn defeat the
/// prefetchers (measured on two cores with a 1.1B Q4_0 model: 16 rows of 1 kB 23.5 tokens/s, 128 rows 41).
const ROWS_MIN: usize = 16;
const PIECE_BYTES: usize = 128 << 10;
/// Pieces for each thread, so that a slow core does not hold up the rest.
const PIECES: usize = 4;

/// What a rank computes with.
#[derive(Debug)]
pub struct Compute {
    /// The kernels.
    pub kernels: &'static Kernels,
    /// The threads.
    pub pool: Pool,
}

/// Weight rows, or the columns of them that a rank holds.
#[derive(Clone, Copy, Debug)]
pub struct MatrixRows<'a> {
    /// Format of the blocks.
    pub format: BlockFormat,
    /// All rows.
    pub bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub row_stride: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Blocks of 32 columns at a row's start that belong to the rank before.
    pub skip: usize,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
}

/// `out[token, row] = matrix[row] . x[token]`. Each product is the one of a single token, bit for bit.
pub fn matmul(compute: &Compute, matrix: MatrixRows<'_>, x: &Activations, out: &mut [f32]) {
    assert_eq!(matrix.columns, x.columns(), "the activations have the matrix's columns");
    assert_eq!(out.len(), x.tokens() * matrix.rows, "out is [token, rows]");
    let MatrixRows { format, bytes, row_stride, row_bytes, skip, .. } = matrix;
    let kernels = compute.kernels;
    let fair = matrix.rows.div_ceil(PIECES * compute.pool.threads());
    let rows_at_once = (PIECE_BYTES / row_bytes.max(1)).min(fair).max(ROWS_MIN);
    let tile = kernels.tile(format, skip, matrix.columns);
    // Where tiles are, whole blocks are ours.
    let ours = skip * 32 / format.block_length() * format.block_bytes();
    compute.pool.columns(out, matrix.rows, rows_at_once, |rows, out| match tile {
        Some(tile) => tiles(tile, rows, |row| &bytes[row * row_stride + ours..(row + 1) * row_stride], x, out),
        None => {
            for row in rows {
                let weights = &bytes[row * row_stride..][..row_bytes];
                for token in 0..x.tokens() {
                    out.set(token, row, kernels.dot(format, weights, skip, x.row(token)));
                }
            }
        }
    });
}

/// Some rows with all tokens, a tile at a time. Four tokens stay in the nearest cache for all rows; the rows of a piece stay
/// in the second one for all tokens.
fn tiles<'a>(
    tile: super::Tile,
    rows: Range<usize>,
    weights: impl Fn(usize) -> &'a [u8],
    x: &Activations,
    out: &mut ColumnsMut<'_>,
) {
    let mut products = [0.0; TILE_ROWS * TILE_TOKENS];
    for token in (0..x.tokens()).step_by(TILE_TOKENS) {
        let tokens = TILE_TOKENS.min(x.tokens() - token);
        let tile_tokens: [ActivationRow<'_>; TILE_TOKENS] =
            std::array::from_fn(|index| x.row(token + index.min(tokens - 1)));
        for first in rows.clone().step_by(TILE_ROWS) {
            let count = TILE_ROWS.min(rows.end - first);
            let tile_rows: [&[u8]; TILE_ROWS] = std::array::from_fn(|row| weights(first + row.min(count - 1)));
            let products = &mut products[..count * tokens];
            tile(&tile_rows[..count], &tile_tokens[..tokens], products);
            for (row, products) in products.chunks_exact(tokens).enumerate() {
                products.iter().enumerate().for_each(|(index, sum)| out.set(token + index, first + row, *sum));
            }
        }
    }
}
