//! Tables of compute kernels, one per instruction set, chosen once at start. Entries are safe functions of slices; the
//! summation order of every result depends only on its lengths, never on batch size or threads.
mod activations;
mod attention;
// The fuzz targets compute next to nothing, and instrumented vector kernels take a quarter of an hour to compile.
#[cfg(all(target_arch = "x86_64", not(fuzzing)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(fuzzing)))]
mod avx512;
#[cfg(test)]
mod check;
#[cfg(test)]
mod check_attention;
#[cfg(test)]
mod check_delta;
#[cfg(test)]
mod check_scan;
mod clock;
mod compute;
mod delta;
#[cfg_attr(fuzzing, expect(dead_code, reason = "for vector kernels"))]
mod grids;
mod grouped;
mod matmul;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
#[cfg_attr(fuzzing, allow(unused, reason = "for vector kernels"))]
mod panel;
mod payload;
mod pool;
mod scalar;
mod scan;
#[cfg_attr(fuzzing, expect(dead_code, reason = "for vector kernels"))]
pub mod values;

use gguf::BlockFormat;

pub use activations::{Activations, BLOCK, Block, LEVELS, Wanted};
pub use attention::{Attention, KvBlock, KvValues, attend};
pub use clock::PoolClock;
pub use compute::Compute;
pub use delta::DeltaRun;
pub use grouped::{
    Choice, Gating, GroupedActivations, Groups, MatrixStack, RowsOf, gated, make_room, separate_products, weighted_sums,
};
pub use matmul::{MatrixPanels, matmul, matmuls};
pub use pack::{pack_panel, packed_bytes, unpack_row};
pub use payload::Payload;
pub use pool::{Pool, PoolOptions, PoolProgress};
pub use scan::ScanRun;

/// Products of a panel with a tile of tokens. Arguments: weights, tokens of the tile, `[block or column, token]`,
/// output `[token, row]`.
#[derive(Clone, Copy, Debug)]
pub enum Panel {
    /// With int8 activations.
    Quantised(fn(&[u8], usize, &[Block], &mut [f32])),
    /// With floats.
    Floats(fn(&[u8], usize, &[f32], &mut [f32])),
}

/// A table of kernels.
#[derive(Debug)]
pub struct Kernels {
    /// Name, as accepted by `BRAMBLE_KERNELS`.
    pub name: &'static str,
    /// Rows in a panel.
    pub panel_rows: usize,
    /// Tile sizes in tokens for quantised formats, ascending.
    pub tiles: &'static [usize],
    /// Tile sizes in tokens for floats, ascending.
    pub float_tiles: &'static [usize],
    panels: [Panel; BlockFormat::ALL.len()],
    /// Quantises a block of up to 32 values, the rest zeros. A block with an infinity or a NaN gets scale NaN, so that
    /// products with it are NaN and not plausible numbers.
    pub quantise: fn(&[f32], &mut Block),
    /// Merges a block of the KV cache into the state of the heads that read it.
    pub attend: fn(KvBlock<'_>, &mut Attention<'_>),
    /// `out = x / sqrt(mean(x^2) + epsilon) * weight`
    pub rms_norm: fn(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]),
    /// `out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * weight`
    pub layer_norm: fn(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]),
    /// `gate = silu(gate) * up`
    pub silu_multiply: fn(gate: &mut [f32], up: &[f32]),
    /// `gate = gelu(gate) * up`, with the approximation by tanh.
    pub gelu_multiply: fn(gate: &mut [f32], up: &[f32]),
    /// `gate = g sigmoid(1.702 g) (u + 1)` with `g = min(gate, 7)` and `u = clamp(up, -7, 7)`.
    pub clamped_swiglu: fn(gate: &mut [f32], up: &[f32]),
    /// `gate = sigmoid(gate) * up`
    pub sigmoid_multiply: fn(gate: &mut [f32], up: &[f32]),
    /// Passes the tokens of a sequence through a value head of a gated delta net: for each, `S *= decay; S += key (value -
    /// key S) rate; out = query S`, with the state `S` `[key, value]` and `out` `[token, value]`.
    pub delta: fn(state: &mut [f32], run: DeltaRun<'_>, out: &mut [f32]),
    /// Passes the tokens of a sequence through a head of a state space: for each, `S = decay S + key (rate value); out =
    /// query S + skip value`, with the state `S` `[key, value]` and `out` `[token, value]`.
    pub scan: fn(state: &mut [f32], run: ScanRun<'_>, out: &mut [f32]),
    /// `out = max(x, 0)^2`
    pub squared_relu: fn(out: &mut [f32], x: &[f32]),
    /// Reads bytes as `streams` parallel streams, prefetching `ahead` bytes, and does nothing else; for measuring
    /// memory bandwidth.
    pub read: fn(bytes: &[u8], streams: usize, ahead: usize) -> u8,
    /// Multiplies registers `rounds` times and does nothing else, to measure the machine's peak. Returns the products
    /// of one round (0: the instruction set has no such instruction) and a value that depends on all of them.
    pub peak: fn(rounds: usize) -> (usize, f32),
    /// `out += x`
    pub add: fn(out: &mut [f32], x: &[f32]),
    /// Wire format of partial sums.
    pub payload: Payload,
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

    /// Tables that this machine can run, the fastest last.
    pub fn available() -> Vec<&'static Self> {
        static SCALAR: Kernels = Kernels::SCALAR;
        let mut tables = vec![&SCALAR];
        tables.extend(detected());
        tables
    }

    /// The table with this name, or the fastest of this machine.
    ///
    /// # Errors
    /// There is no such table, or the machine cannot run it.
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

    /// Dequantises whole blocks to f32; `out` has as many elements as the row has weights.
    pub fn dequantise_row(&self, format: BlockFormat, row: &[u8], out: &mut [f32]) {
        assert_eq!(format.row_bytes(out.len()), Some(row.len()), "the row has as many weights as `out`");
        scalar::dequantise(format, row, out);
    }
}

#[cfg(all(target_arch = "x86_64", not(fuzzing)))]
fn detected() -> impl Iterator<Item = &'static Kernels> {
    avx2::detect().into_iter().chain(avx512::detect())
}

#[cfg(target_arch = "aarch64")]
fn detected() -> impl Iterator<Item = &'static Kernels> {
    neon::detect()
}

#[cfg(any(all(target_arch = "x86_64", fuzzing), not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn detected() -> impl Iterator<Item = &'static Kernels> {
    std::iter::empty()
}
