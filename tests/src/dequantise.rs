//! What a weight in each format is worth, element by element from the description of the format: slow, and the oracle
//! for kernels. Shares no code with `quantise` or the daemon.

use half::{bf16, f16};
use shared::gguf::BlockFormat;

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
