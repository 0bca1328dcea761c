//! TEMPORARY scalar kernels: replaced by the kernels branch.
#![allow(missing_docs, reason = "temporary")]
use half::{bf16, f16};
use shared::gguf::BlockFormat;

#[derive(Clone, Copy, Debug)]
pub struct ActivationRow<'a> {
    pub values: &'a [f32],
    pub quants: &'a [i8],
    pub scales: &'a [f32],
    pub sums: &'a [i16],
}
#[derive(Debug, Default)]
pub struct Activations {
    columns: usize,
    padded: usize,
    values: Vec<f32>,
    quants: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i16>,
}
impl Activations {
    pub fn load(&mut self, kernels: &Kernels, values: &[f32], columns: usize, quantise: bool) {
        let tokens = values.len() / columns;
        self.columns = columns;
        self.padded = columns.next_multiple_of(32);
        self.values.clear();
        self.values.extend_from_slice(values);
        self.quants.resize(tokens * self.padded, 0);
        self.scales.resize(tokens * self.padded / 16, 0.0);
        self.sums.resize(tokens * self.padded / 16, 0);
        if quantise {
            for t in 0..tokens {
                (kernels.quantize)(
                    &values[t * columns..(t + 1) * columns],
                    &mut self.quants[t * self.padded..(t + 1) * self.padded],
                    &mut self.scales[t * self.padded / 16..(t + 1) * self.padded / 16],
                    &mut self.sums[t * self.padded / 16..(t + 1) * self.padded / 16],
                );
            }
        }
    }
    pub fn tokens(&self) -> usize {
        self.values.len() / self.columns
    }
    pub fn columns(&self) -> usize {
        self.columns
    }
    pub fn row(&self, t: usize) -> ActivationRow<'_> {
        let (c, p) = (self.columns, self.padded);
        ActivationRow {
            values: &self.values[t * c..(t + 1) * c],
            quants: &self.quants[t * p..(t + 1) * p],
            scales: &self.scales[t * p / 16..(t + 1) * p / 16],
            sums: &self.sums[t * p / 16..(t + 1) * p / 16],
        }
    }
}
#[derive(Debug)]
pub struct Kernels {
    pub name: &'static str,
    pub quantize: fn(&[f32], &mut [i8], &mut [f32], &mut [i16]),
    pub dot_f32: fn(&[f32], &[f32]) -> f32,
    pub dot_f16: fn(&[f32], &[u16]) -> f32,
    pub accumulate_f32: fn(&mut [f32], f32, &[f32]),
    pub accumulate_f16: fn(&mut [f32], f32, &[u16]),
    pub to_f16: fn(&[f32], &mut [u16]),
    pub rms_norm: fn(&[f32], &[f32], f32, &mut [f32]),
    pub silu_multiply: fn(&mut [f32], &[f32]),
    pub add: fn(&mut [f32], &[f32]),
}
#[derive(Debug, thiserror::Error)]
#[error("kernel table {0}")]
pub struct KernelError(String);
static TABLE: Kernels = Kernels::SCALAR;
impl Kernels {
    pub const SCALAR: Kernels = Kernels {
        name: "scalar",
        quantize,
        dot_f32,
        dot_f16,
        accumulate_f32,
        accumulate_f16,
        to_f16,
        rms_norm,
        silu_multiply,
        add,
    };
    pub fn choose(_forced: Option<&str>) -> Result<&'static Kernels, KernelError> {
        Ok(&TABLE)
    }
    pub fn dot(&self, format: BlockFormat, row: &[u8], skip: usize, x: ActivationRow<'_>) -> f32 {
        let w = dequantise(format, row);
        let w = &w[skip * 32..];
        if format.is_quantised() {
            x.quants
                .chunks(16)
                .zip(x.scales)
                .zip(w.chunks(16))
                .map(|((q, s), w)| s * q.iter().zip(w).map(|(q, w)| f32::from(*q) * w).sum::<f32>())
                .sum()
        } else {
            x.values.iter().zip(w).map(|(a, b)| a * b).sum()
        }
    }
    pub fn dequantise_row(&self, format: BlockFormat, row: &[u8], out: &mut [f32]) {
        out.copy_from_slice(&dequantise(format, row));
    }
}
fn quantize(v: &[f32], q: &mut [i8], s: &mut [f32], _sums: &mut [i16]) {
    q.fill(0);
    for ((v, q), s) in v.chunks(16).zip(q.chunks_mut(16)).zip(s) {
        let m = v.iter().fold(0.0_f32, |a, b| a.max(b.abs()));
        *s = m / 127.0;
        let i = if m > 0.0 { 127.0 / m } else { 0.0 };
        for (v, q) in v.iter().zip(q) {
            *q = (v * i).round_ties_even() as i8;
        }
    }
}
fn dot_f32(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
fn dot_f16(a: &[f32], b: &[u16]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * f16::from_bits(*b).to_f32()).sum()
}
fn accumulate_f32(o: &mut [f32], a: f32, x: &[f32]) {
    o.iter_mut().zip(x).for_each(|(o, x)| *o += a * x);
}
fn accumulate_f16(o: &mut [f32], a: f32, x: &[u16]) {
    o.iter_mut().zip(x).for_each(|(o, x)| *o += a * f16::from_bits(*x).to_f32());
}
fn to_f16(a: &[f32], o: &mut [u16]) {
    o.iter_mut().zip(a).for_each(|(o, a)| *o = f16::from_f32(*a).to_bits());
}
fn rms_norm(x: &[f32], w: &[f32], e: f32, o: &mut [f32]) {
    let m = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    let i = 1.0 / (m + e).sqrt();
    for ((o, x), w) in o.iter_mut().zip(x).zip(w) {
        *o = x * i * w;
    }
}
fn silu_multiply(g: &mut [f32], u: &[f32]) {
    g.iter_mut().zip(u).for_each(|(g, u)| *g = *g / (1.0 + (-*g).exp()) * u);
}
fn add(o: &mut [f32], x: &[f32]) {
    o.iter_mut().zip(x).for_each(|(o, x)| *o += x);
}
#[derive(Clone, Copy, Debug)]
pub struct MatrixRows<'a> {
    pub format: BlockFormat,
    pub bytes: &'a [u8],
    pub row_stride: usize,
    pub row_bytes: usize,
    pub skip: usize,
    pub rows: usize,
    pub columns: usize,
}
#[derive(Debug)]
pub struct Compute {
    pub kernels: &'static Kernels,
    pub pool: Pool,
}
#[derive(Clone, Debug)]
pub struct PoolOptions {
    pub threads: usize,
    pub cores: Vec<usize>,
    pub spin: bool,
}
#[derive(Debug)]
pub struct Pool;
impl Pool {
    pub fn new(_o: PoolOptions) -> Self {
        Pool
    }
    pub fn pin_caller(&self) {}
    pub fn chunks(&self, out: &mut [f32], n: usize, f: impl Fn(usize, &mut [f32])) {
        out.chunks_mut(n).enumerate().for_each(|(i, o)| f(i, o));
    }
}
pub fn matmul(compute: &Compute, m: MatrixRows<'_>, x: &Activations, out: &mut [f32]) {
    for t in 0..x.tokens() {
        for r in 0..m.rows {
            out[t * m.rows + r] =
                compute.kernels.dot(m.format, &m.bytes[r * m.row_stride..][..m.row_bytes], m.skip, x.row(t));
        }
    }
}

/// All weights of whole blocks.
///
/// # Panics
/// If the bytes do not end with a block.
pub fn dequantise(format: BlockFormat, bytes: &[u8]) -> Vec<f32> {
    let size = format.block_bytes();
    assert!(bytes.len().is_multiple_of(size), "bytes end with a block of {size}");
    let blocks = bytes.chunks_exact(size);
    blocks.flat_map(|block| (0..format.block_length()).map(move |i| weight(format, block, i))).collect()
}

/// Weight `i` of a block.
fn weight(format: BlockFormat, block: &[u8], i: usize) -> f32 {
    match format {
        BlockFormat::F32 => f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
        BlockFormat::F16 => half_at(block, 0),
        BlockFormat::BF16 => bf16::from_le_bytes([block[0], block[1]]).to_f32(),
        BlockFormat::Q8_0 => half_at(block, 0) * f32::from(block[2 + i] as i8),
        BlockFormat::Q4_0 => half_at(block, 0) * (f32::from(nibble_of_32(&block[2..], i)) - 8.0),
        BlockFormat::Q5_0 => half_at(block, 0) * (f32::from(five_bits(&block[2..], i)) - 16.0),
        BlockFormat::Q5_1 => half_at(block, 0) * f32::from(five_bits(&block[4..], i)) + half_at(block, 2),
        BlockFormat::Q4K => {
            let level = nibble_of_64(&block[16..], i);
            super_block(block, i, level)
        }
        BlockFormat::Q5K => {
            let fifth = (block[16 + i % 32] >> (i / 32)) & 1;
            super_block(block, i, nibble_of_64(&block[48..], i) + 16 * fifth)
        }
        BlockFormat::Q6K => {
            let (half, quarter, l) = (i / 128, i % 128 / 32, i % 32);
            let low = block[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
            let high = block[128 + half * 32 + l] >> (quarter * 2) & 3;
            let scale = half_at(block, 208) * f32::from(block[192 + i / 16] as i8);
            scale * (f32::from(low + 16 * high) - 32.0)
        }
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Of 16 bytes for 32 levels: the first 16 levels are the low nibbles.
fn nibble_of_32(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 16] >> (i / 16 * 4) & 15
}

/// Of 32 fifth bits and then 16 bytes of nibbles.
fn five_bits(bytes: &[u8], i: usize) -> u8 {
    let fifth = bytes[i / 8] >> (i % 8) & 1;
    nibble_of_32(&bytes[4..], i) + 16 * fifth
}

/// Of 32 bytes for every 64 levels: the first 32 levels are the low nibbles.
fn nibble_of_64(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15
}

/// Q4_K and Q5_K: scale * level - minimum, each a 6-bit number times an f16 at the start of the block.
fn super_block(block: &[u8], i: usize, level: u8) -> f32 {
    let packed = &block[4..16];
    let sub = i / 32;
    let (scale, minimum) = if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        (packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4, packed[sub + 4] >> 4 | packed[sub] >> 6 << 4)
    };
    half_at(block, 0) * f32::from(scale) * f32::from(level) - half_at(block, 2) * f32::from(minimum)
}
