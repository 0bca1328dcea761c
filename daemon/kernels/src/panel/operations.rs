//! Macros for the instruction sets' files: methods of `Lanes` that are an expression of intrinsics, and the table of
//! kernels.

/// Defines methods whose bodies need the instructions that the token proves.
macro_rules! operations {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(
            #[inline(always)]
            fn $name(self, $($argument: $kind),*) $(-> $result)? {
                // SAFETY: a token exists only if the machine has the instructions; loads and stores access slices whose
                // length was checked.
                unsafe { $body }
            }
        )*
    };
}

/// Defines a safe table entry, compiled for the features of its instruction set.
macro_rules! entry {
    ($features:literal, |$($argument:ident: $kind:ty),*| $(-> $result:ty)? $body:block) => {{
        #[target_feature(enable = $features)]
        fn compiled($($argument: $kind),*) $(-> $result)? $body
        fn entry($($argument: $kind),*) $(-> $result)? {
            // SAFETY: tables are given out only after the machine was found to have these features.
            unsafe { compiled($($argument),*) }
        }
        entry
    }};
}

/// Defines the kernel table of some lanes.
macro_rules! table {
    ($name:literal, $features:literal, $lanes:expr, $kind:ty) => {{
        use common::precision::Exchange;
        use $crate::{
            Attention, Block, DeltaRun, Kernels, KvBlock, Panel, Payload, ScanRun, panel, panel::entry, payload,
            scalar, scan,
        };

        macro_rules! quantised {
            ($format:ident) => {
                Panel::Quantised(entry!($features, |weights: &[u8], tokens: usize, x: &[Block], out: &mut [f32]| {
                    panel::panel::<$kind, panel::$format>($lanes, weights, tokens, x, out)
                }))
            };
        }
        macro_rules! floats {
            ($format:ident) => {
                Panel::Floats(entry!($features, |weights: &[u8], tokens: usize, x: &[f32], out: &mut [f32]| {
                    panel::float_panel::<$kind, panel::$format>($lanes, weights, tokens, x, out)
                }))
            };
        }
        Kernels {
            name: $name,
            panel_rows: <$kind as panel::Lanes>::ROWS,
            tiles: <$kind as panel::Lanes>::TILES,
            float_tiles: panel::FLOAT_TILES,
            panels: [
                floats!(F32),
                floats!(F16),
                floats!(BF16),
                quantised!(Q8_0),
                quantised!(Q4_0),
                quantised!(Q4_1),
                quantised!(Q5_0),
                quantised!(Q5_1),
                quantised!(Q2K),
                quantised!(Q3K),
                quantised!(Q4K),
                quantised!(Q5K),
                quantised!(Q6K),
                quantised!(Iq4Nl),
                quantised!(Iq4Xs),
                quantised!(Mxfp4),
                quantised!(Iq3Xxs),
                quantised!(Iq2Xxs),
                quantised!(Iq3S),
                quantised!(Iq2S),
                quantised!(Iq2Xs),
            ],
            quantise: entry!($features, |values: &[f32], out: &mut Block| { panel::quantise($lanes, values, out) }),
            attend: entry!($features, |block: KvBlock<'_>, state: &mut Attention<'_>| {
                panel::attend($lanes, block, state)
            }),
            rms_norm: entry!($features, |x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]| {
                panel::rms_norm($lanes, x, weight, epsilon, out)
            }),
            layer_norm: entry!($features, |x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]| {
                panel::layer_norm($lanes, x, weight, epsilon, out)
            }),
            silu_multiply: entry!($features, |gate: &mut [f32], up: &[f32]| { panel::silu_multiply($lanes, gate, up) }),
            gelu_multiply: entry!($features, |gate: &mut [f32], up: &[f32]| { panel::gelu_multiply($lanes, gate, up) }),
            clamped_swiglu: entry!($features, |gate: &mut [f32], up: &[f32]| {
                panel::clamped_swiglu($lanes, gate, up)
            }),
            sigmoid_multiply: entry!($features, |gate: &mut [f32], up: &[f32]| {
                panel::sigmoid_multiply($lanes, gate, up)
            }),
            delta: entry!($features, |state: &mut [f32], run: DeltaRun<'_>, out: &mut [f32]| {
                panel::delta($lanes, state, run, out)
            }),
            scan: entry!($features, |state: &mut [f32], run: ScanRun<'_>, out: &mut [f32]| {
                scan::scan(state, run, out)
            }),
            squared_relu: entry!($features, |out: &mut [f32], x: &[f32]| { panel::squared_relu($lanes, out, x) }),
            read: entry!($features, |bytes: &[u8], streams: usize, ahead: usize| -> u8 {
                panel::read($lanes, bytes, streams, ahead)
            }),
            peak: entry!($features, |rounds: usize| -> (usize, f32) { panel::peak($lanes, rounds) }),
            add: entry!($features, |out: &mut [f32], x: &[f32]| { scalar::add(out, x) }),
            payload: Payload {
                encode: entry!($features, |exchange: Exchange, values: &[f32], out: &mut [u8]| {
                    payload::encode(exchange, values, out)
                }),
                add: entry!($features, |exchange: Exchange, bytes: &[u8], out: &mut [f32]| {
                    payload::add(exchange, bytes, out)
                }),
                load: entry!($features, |exchange: Exchange, bytes: &[u8], out: &mut [f32]| {
                    payload::load(exchange, bytes, out)
                }),
            },
        }
    }};
}

pub(crate) use {entry, operations, table};
