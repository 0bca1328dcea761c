//! Matrix products: rows of weights over the threads, all tokens of a step while a row is in the cache.
use shared::gguf::BlockFormat;

use super::{Activations, Kernels, Pool};

/// Rows that a thread takes at a time.
const ROWS_AT_ONCE: usize = 16;

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
    compute.pool.columns(out, matrix.rows, ROWS_AT_ONCE, |rows, out| {
        for row in rows {
            let weights = &bytes[row * row_stride..][..row_bytes];
            for token in 0..x.tokens() {
                out.set(token, row, kernels.dot(format, weights, skip, x.row(token)));
            }
        }
    });
}
