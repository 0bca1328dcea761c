//! Kernels for AVX2, FMA and F16C.
#![expect(unsafe_code, reason = "vector instructions; chosen only after the machine was asked for them")]
mod dot;
mod super_block;
mod vector;

use std::sync::OnceLock;

use shared::gguf::BlockFormat;

use super::{ActivationRow, Kernels, scalar};

/// The table, if this machine has the instructions.
pub(super) fn detect() -> Option<&'static Kernels> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    static TABLE: Kernels = table();
    let found = FOUND.get_or_init(|| {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
    });
    found.then_some(&TABLE)
}

/// A safe entry for a function that needs the instructions.
macro_rules! entry {
    ($name:path, |$($argument:ident: $kind:ty),*| $(-> $result:ty)?) => {{
        fn entry($($argument: $kind),*) $(-> $result)? {
            // SAFETY: only `detect` gives this table out, after it found AVX2, FMA and F16C.
            unsafe { $name($($argument),*) }
        }
        entry
    }};
}

pub(super) const fn table() -> Kernels {
    Kernels {
        name: "avx2",
        dots: [
            entry!(dot::row_f32, |row: &[u8], skip: usize, x: ActivationRow<'_>| -> f32),
            entry!(dot::row_f16, |row: &[u8], skip: usize, x: ActivationRow<'_>| -> f32),
            entry!(dot::row_bf16, |row: &[u8], skip: usize, x: ActivationRow<'_>| -> f32),
            entry!(dot::q8_0, |row: &[u8], skip: usize, x: ActivationRow<'_>| -> f32),
            entry!(dot::q4_0, |row: &[u8], skip: usize, x: ActivationRow<'_>| -> f32),
            entry!(dot::q5_0, |row: &[u8], skip: usize, x: ActivationRow<'_>| -> f32),
            entry!(dot::q5_1, |row: &[u8], skip: usize, x: ActivationRow<'_>| -> f32),
            entry!(super_block::q4_k, |row: &[u8], skip: usize, x: ActivationRow<'_>| -> f32),
            entry!(super_block::q5_k, |row: &[u8], skip: usize, x: ActivationRow<'_>| -> f32),
            entry!(super_block::q6_k, |row: &[u8], skip: usize, x: ActivationRow<'_>| -> f32),
        ],
        tiles: [None; BlockFormat::ALL.len()],
        // The scalar text of these, compiled for AVX2, is already vector code.
        quantize: entry!(vector::quantize, |v: &[f32], q: &mut [i8], s: &mut [f32], m: &mut [i16]|),
        dot_f32: entry!(vector::dot_f32, |a: &[f32], b: &[f32]| -> f32),
        dot_f16: entry!(vector::dot_f16, |a: &[f32], b: &[u16]| -> f32),
        accumulate_f32: entry!(vector::accumulate_f32, |out: &mut [f32], a: f32, x: &[f32]|),
        accumulate_f16: entry!(vector::accumulate_f16, |out: &mut [f32], a: f32, x: &[u16]|),
        to_f16: entry!(vector::to_f16, |values: &[f32], out: &mut [u16]|),
        rms_norm: entry!(vector::rms_norm, |x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]|),
        silu_multiply: scalar::silu_multiply,
        read: entry!(vector::read, |words: &[u64]| -> u64),
        add: scalar::add,
    }
}
