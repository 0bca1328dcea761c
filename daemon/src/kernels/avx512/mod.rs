//! Kernels for AVX-512 with byte dot products (F, BW, VL, VNNI): tiles of rows and tokens; what has no tile is AVX2's.
#![expect(unsafe_code, reason = "vector instructions; chosen only after the machine was asked for them")]
mod tile;
mod unit;

use std::sync::OnceLock;

use shared::gguf::BlockFormat;

use super::{ActivationRow, Kernels, Tile, avx2};

/// The table, if this machine has the instructions.
pub(super) fn detect() -> Option<&'static Kernels> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    static TABLE: Kernels = table();
    let found = FOUND.get_or_init(|| {
        avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
    });
    found.then_some(&TABLE)
}

/// A safe entry for a tile that needs the instructions.
macro_rules! tile {
    ($name:path) => {{
        fn entry(rows: &[&[u8]], tokens: &[ActivationRow<'_>], out: &mut [f32]) {
            // SAFETY: only `detect` gives this table out, after it found the instructions.
            unsafe { $name(rows, tokens, out) }
        }
        Some(entry as Tile)
    }};
}

const fn table() -> Kernels {
    let mut table = avx2::table();
    table.name = "avx512";
    table.tiles[BlockFormat::Q8_0 as usize] = tile!(tile::q8_0);
    table.tiles[BlockFormat::Q4_0 as usize] = tile!(tile::q4_0);
    table.tiles[BlockFormat::Q4K as usize] = tile!(tile::q4_k);
    table.tiles[BlockFormat::Q6K as usize] = tile!(tile::q6_k);
    table
}
