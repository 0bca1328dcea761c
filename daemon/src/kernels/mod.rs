//! Tables of compute kernels, one per instruction set, chosen once at start. Entries are safe functions of slices; the
//! summing order of every result depends on its lengths alone, never on batch size or threads.
mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(test)]
mod check;
mod matmul;
mod pool;
mod scalar;

use shared::gguf::BlockFormat;

pub use activations::{ActivationRow, Activations, GROUP, LEVELS};
pub use matmul::{Compute, MatrixRows, matmul};
pub use pool::{Pool, PoolOptions};

/// Product of a weight row (bytes from a block's border, the first `skip` blocks of 32 columns not ours) with a token.
type Dot = fn(row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32;

/// Products of up to [`TILE_ROWS`] rows with up to [`TILE_TOKENS`] tokens: `out` is `[row, token]`. Rows begin with the
/// tokens' first column; each product is the one of a single row with a single token, bit for bit.
type Tile = fn(rows: &[&[u8]], tokens: &[ActivationRow<'_>], out: &mut [f32]);

/// Rows of a whole tile.
pub const TILE_ROWS: usize = 4;
/// Tokens of a whole tile.
pub const TILE_TOKENS: usize = 4;

/// Quantises one token: values, quants, scales, sums.
type Quantize = fn(values: &[f32], quants: &mut [i8], scales: &mut [f32], sums: &mut [i16]);

/// A table of kernels.
#[derive(Debug)]
pub struct Kernels {
    /// Name, as `BRAMBLE_KERNELS` takes it.
    pub name: &'static str,
    dots: [Dot; BlockFormat::ALL.len()],
    /// For formats that have one, where whole blocks of a row are ours.
    tiles: [Option<Tile>; BlockFormat::ALL.len()],
    /// int8 in groups of 16 with one scale each, and the sum of each group. `quants` is padded with zeros. A group with an
    /// infinity or a NaN gets scale NaN, so that products with it are NaN and not plausible numbers.
    pub quantize: Quantize,
    /// Sum of products.
    pub dot_f32: fn(&[f32], &[f32]) -> f32,
    /// Sum of products with halves, given as bits.
    pub dot_f16: fn(&[f32], &[u16]) -> f32,
    /// `out += a * x`
    pub accumulate_f32: fn(out: &mut [f32], a: f32, x: &[f32]),
    /// `out += a * x`, x halves as bits.
    pub accumulate_f16: fn(out: &mut [f32], a: f32, x: &[u16]),
    /// To halves, as bits, round to nearest even.
    pub to_f16: fn(&[f32], &mut [u16]),
    /// `out = x / sqrt(mean(x^2) + epsilon) * weight`
    pub rms_norm: fn(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]),
    /// `gate = silu(gate) * up`
    pub silu_multiply: fn(gate: &mut [f32], up: &[f32]),
    /// Exclusive or of all words: reads them and does nothing else.
    pub read: fn(&[u64]) -> u64,
    /// `out += x`
    pub add: fn(out: &mut [f32], x: &[f32]),
}

/// A table that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("BRAMBLE_KERNELS={name} is not available on this machine; available: {available}")]
pub struct KernelError {
    name: String,
    available: String,
}

impl Kernels {
    /// The reference: plain Rust, on every machine.
    pub const SCALAR: Self = scalar::TABLE;

    /// Tables that this machine can run, the best last.
    pub fn available() -> Vec<&'static Self> {
        static SCALAR: Kernels = Kernels::SCALAR;
        let mut tables = vec![&SCALAR];
        tables.extend(detected());
        tables
    }

    /// The table of this name, or the best of this machine.
    ///
    /// # Errors
    /// No such table, or the machine cannot run it.
    pub fn choose(forced: Option<&str>) -> Result<&'static Self, KernelError> {
        let tables = Self::available();
        let chosen = match forced {
            None => tables.last(),
            Some(name) => tables.iter().find(|table| table.name == name),
        };
        chosen.copied().ok_or_else(|| KernelError {
            name: forced.unwrap_or_default().into(),
            available: tables.iter().map(|table| table.name).collect::<Vec<_>>().join(", "),
        })
    }

    /// Product of a weight row with a token's activations. The row's bytes begin with a block; `skip` blocks of 32 columns
    /// of it belong to the rank before, and only the columns of `x` are multiplied.
    pub fn dot(&self, format: BlockFormat, row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
        let blocks = (skip * 32 + x.values.len()).div_ceil(format.block_length());
        assert!(row.len() >= blocks * format.block_bytes(), "the row holds all columns of the activations");
        assert!(!format.is_quantised() || x.quants.len() >= x.values.len(), "the activations were quantised");
        match self.tile(format, skip, x.values.len()) {
            Some(tile) => {
                let mut out = [0.0];
                tile(&[&row[skip * 32 / format.block_length() * format.block_bytes()..]], &[x], &mut out);
                out[0]
            }
            None => self.dots[format as usize](row, skip, x),
        }
    }

    /// The tile for rows of which `columns` columns are ours behind `skip` blocks of 32, if whole blocks are.
    fn tile(&self, format: BlockFormat, skip: usize, columns: usize) -> Option<Tile> {
        let length = format.block_length();
        let is_whole = (skip * 32).is_multiple_of(length) && columns.is_multiple_of(length);
        self.tiles[format as usize].filter(|_| is_whole)
    }

    /// Whether activations need sums and scales of each 4 columns.
    fn has_tiles(&self) -> bool {
        self.tiles.iter().any(Option::is_some)
    }

    /// Weights of whole blocks as f32; `out` has their number.
    pub fn dequantise_row(&self, format: BlockFormat, row: &[u8], out: &mut [f32]) {
        assert_eq!(format.row_bytes(out.len()), Some(row.len()), "the row has as many weights as `out`");
        scalar::dequantise(format, row, out);
    }
}

#[cfg(target_arch = "x86_64")]
fn detected() -> impl Iterator<Item = &'static Kernels> {
    avx2::detect().into_iter().chain(avx512::detect())
}

#[cfg(not(target_arch = "x86_64"))]
fn detected() -> impl Iterator<Item = &'static Kernels> {
    std::iter::empty()
}
