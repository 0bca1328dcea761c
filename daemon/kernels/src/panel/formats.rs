//! How each format is unpacked from a panel: the blocks of ggml-quants.h, with each field stored row next to row.
//! Offsets are those of a block of one row, multiplied by the number of rows.
use super::{FloatFormat, Format, Lanes, Part};
use crate::values::{E2M1, IQ4};

/// The most rows of a panel.
const ROWS_MAX: usize = 16;

macro_rules! formats {
    ($($(#[$about:meta])* $name:ident)*) => {
        $($(#[$about])* #[derive(Clone, Copy, Debug)] pub(in crate) struct $name;)*
    };
}

formats! {
    /// 32-bit floats.
    F32
    /// Half floats.
    F16
    /// Upper halves of floats.
    BF16
    /// Scale and 32 signed bytes.
    Q8_0
    /// Scale and 32 nibbles.
    Q4_0
    /// Scale, minimum and 32 nibbles.
    Q4_1
    /// Scale, 32 fifth bits and 32 nibbles.
    Q5_0
    /// Scale, minimum, 32 fifth bits and 32 nibbles.
    Q5_1
    /// 16 scales and minimums of 4 bits, 256 levels of 2 bits, scale and minimum of these.
    Q2K
    /// 256 third bits, 256 levels of 2 bits, 16 scales of 6 bits, their scale.
    Q3K
    /// Scale and minimum of 8 scales and minimums of 6 bits, 256 nibbles.
    Q4K
    /// As Q4K with 256 fifth bits.
    Q5K
    /// 256 nibbles, 256 times two more bits, 16 scales of 8 bits, their scale.
    Q6K
    /// Scale and 32 indices into a table.
    Iq4Nl
    /// Scale of 8 scales of 6 bits, 256 indices into a table.
    Iq4Xs
    /// An exponent and 32 indices of 4-bit floats.
    Mxfp4
}

macro_rules! float_format {
    ($name:ident, $bytes:literal, $load:ident) => {
        impl<L: Lanes> FloatFormat<L> for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            fn column(lanes: L, bytes: &[u8]) -> L::Floats {
                lanes.$load(bytes)
            }
        }
    };
}

float_format!(F32, 4, floats);
float_format!(F16, 2, halves);
float_format!(BF16, 2, upper_halves);

/// Loads register `index` of a field of levels at offset `at` (of one row).
#[inline(always)]
fn quad<L: Lanes>(lanes: L, block: &[u8], at: usize, index: usize) -> L::Levels {
    lanes.levels(&block[(at + 4 * index) * L::ROWS..])
}

/// Loads eight registers of a field from offset `at` on.
#[inline(always)]
fn eight<L: Lanes>(lanes: L, block: &[u8], at: usize) -> [L::Levels; 8] {
    let mut levels = [quad(lanes, block, at, 0); 8];
    for (index, level) in levels.iter_mut().enumerate().skip(1) {
        *level = quad(lanes, block, at, index);
    }
    levels
}

/// Unpacks 16 bytes of nibbles a row: the low ones are the first 16 columns.
#[inline(always)]
fn nibbles<L: Lanes>(lanes: L, block: &[u8], at: usize) -> [L::Levels; 8] {
    let mut levels = [quad(lanes, block, at, 0); 8];
    for index in 0..4 {
        let both = quad(lanes, block, at, index);
        levels[index] = lanes.and(both, 15);
        levels[4 + index] = lanes.and(lanes.right(both, 4), 15);
    }
    levels
}

/// Unpacks 32 bytes of nibbles a row, of which this part is the low or the high ones.
#[inline(always)]
fn nibbles_of_pair<L: Lanes>(lanes: L, block: &[u8], at: usize, is_high: bool) -> [L::Levels; 8] {
    let mut levels = eight(lanes, block, at);
    for level in &mut levels {
        *level = lanes.and(lanes.right(*level, 4 * u32::from(is_high)), 15);
    }
    levels
}

#[inline(always)]
fn of_scale<L: Lanes>(levels: [L::Levels; 8], scale: L::Floats) -> Part<L> {
    Part { levels, scale: [scale; 2], minimum: [scale; 2] }
}

/// A format in blocks of 32 columns.
macro_rules! of_blocks {
    ($name:ident, $bytes:literal, $bits:literal, $bias:expr, minimum $minimum:literal, |$lanes:ident, $block:ident| $part:expr) => {
        impl<L: Lanes> Format<L> for $name {
            const BYTES: usize = $bytes;
            const PARTS: usize = 1;
            const BITS: u32 = $bits;
            const BIAS: Option<u32> = $bias;
            const MINIMUM: bool = $minimum;
            type Scales = ();
            #[inline(always)]
            fn scales(_: L, _: &[u8]) {}
            #[inline(always)]
            fn part($lanes: L, $block: &[u8], (): &(), _: usize) -> Part<L> {
                $part
            }
        }
    };
}

of_blocks!(Q8_0, 34, 8, if L::SIGNED { None } else { Some(4) }, minimum false, |lanes, block| {
    let mut levels = eight(lanes, block, 2);
    if !L::SIGNED {
        for level in &mut levels {
            *level = lanes.xor(*level, 0x80);
        }
    }
    of_scale(levels, lanes.halves(block))
});

of_blocks!(Q4_0, 18, 4, Some(0), minimum false, |lanes, block| {
    of_scale(nibbles(lanes, block, 2), lanes.halves(block))
});

/// Negates a minimum, because it is subtracted.
#[inline(always)]
fn negated<L: Lanes>(lanes: L, value: L::Floats) -> L::Floats {
    lanes.multiply(value, lanes.splat(-1.0))
}

of_blocks!(Q4_1, 20, 4, None, minimum true, |lanes, block| {
    let minimum = negated(lanes, lanes.halves(&block[2 * L::ROWS..]));
    Part { levels: nibbles(lanes, block, 4), scale: [lanes.halves(block); 2], minimum: [minimum; 2] }
});

/// Unpacks nibbles from offset `at` on with fifth bits from offset `bits` on.
#[inline(always)]
fn five_bits<L: Lanes>(lanes: L, block: &[u8], bits: usize, at: usize) -> [L::Levels; 8] {
    let mut levels = nibbles(lanes, block, at);
    let fifth = quad(lanes, block, bits, 0);
    for (index, level) in levels.iter_mut().enumerate() {
        *level = lanes.or(*level, lanes.left(lanes.spread(fifth, 4 * index as u32), 4));
    }
    levels
}

of_blocks!(Q5_0, 22, 5, Some(1), minimum false, |lanes, block| {
    of_scale(five_bits(lanes, block, 2, 6), lanes.halves(block))
});

of_blocks!(Q5_1, 24, 5, None, minimum true, |lanes, block| {
    let minimum = negated(lanes, lanes.halves(&block[2 * L::ROWS..]));
    Part { levels: five_bits(lanes, block, 4, 8), scale: [lanes.halves(block); 2], minimum: [minimum; 2] }
});

/// Looks levels up in a table; adds `bias` to the entries.
#[inline(always)]
fn looked_up<L: Lanes>(lanes: L, mut levels: [L::Levels; 8], entries: &[i8; 16], bias: u8) -> [L::Levels; 8] {
    let mut table = [0; 16];
    for (entry, value) in table.iter_mut().zip(entries) {
        *entry = value.cast_unsigned().wrapping_add(bias);
    }
    for level in &mut levels {
        *level = lanes.lookup(&table, *level);
    }
    levels
}

of_blocks!(Iq4Nl, 18, 8, if L::SIGNED { None } else { Some(4) }, minimum false, |lanes, block| {
    of_scale(looked_up(lanes, nibbles(lanes, block, 2), &IQ4, if L::SIGNED { 0 } else { 128 }), lanes.halves(block))
});

of_blocks!(Mxfp4, 17, 5, if L::SIGNED_SMALL { None } else { Some(1) }, minimum false, |lanes, block| {
    let levels = looked_up(lanes, nibbles(lanes, block, 1), &E2M1, if L::SIGNED_SMALL { 0 } else { 16 });
    of_scale(levels, lanes.half_powers(block))
});

/// Scales and minimums of Q4_K and Q5_K, `[8 scales, 8 minimums]`, each `[ROWS]`, and their factors. They are bytes,
/// not levels: a field of single bytes stores all rows of a byte next to each other, which is not half of a register.
#[derive(Clone, Copy)]
pub(crate) struct SixBits<L: Lanes> {
    bytes: [u8; 16 * ROWS_MAX],
    scale: L::Floats,
    minimum: L::Floats,
}

/// Twelve bytes hold 8 scales and 8 minimums of 6 bits: bytes 0 to 3 and 4 to 7 hold the first four of each; for the
/// others, bytes 8 to 11 hold the low nibbles, and the top bits of the first eight bytes the rest.
#[inline(always)]
fn six_bits<L: Lanes>(lanes: L, block: &[u8]) -> SixBits<L> {
    let four = 4 * L::ROWS;
    let (a, b, c) = (&block[four..2 * four], &block[2 * four..3 * four], &block[3 * four..4 * four]);
    let mut bytes = [0; 16 * ROWS_MAX];
    for index in 0..four {
        bytes[index] = a[index] & 63;
        bytes[four + index] = c[index] & 15 | a[index] >> 2 & 0x30;
        bytes[2 * four + index] = b[index] & 63;
        bytes[3 * four + index] = c[index] >> 4 | b[index] >> 2 & 0x30;
    }
    SixBits { bytes, scale: lanes.halves(block), minimum: lanes.halves(&block[2 * L::ROWS..]) }
}

impl<L: Lanes> SixBits<L> {
    #[inline(always)]
    fn part(&self, lanes: L, index: usize, levels: [L::Levels; 8]) -> Part<L> {
        let scale = lanes.multiply(lanes.unsigned(&self.bytes[index * L::ROWS..]), self.scale);
        let minimum = lanes.multiply(lanes.unsigned(&self.bytes[(8 + index) * L::ROWS..]), self.minimum);
        Part { levels, scale: [scale; 2], minimum: [minimum; 2] }
    }
}

impl<L: Lanes> Format<L> for Q4K {
    const BYTES: usize = 144;
    const BITS: u32 = 4;
    const MINIMUM: bool = true;
    type Scales = SixBits<L>;

    #[inline(always)]
    fn scales(lanes: L, block: &[u8]) -> SixBits<L> {
        six_bits(lanes, block)
    }

    #[inline(always)]
    fn part(lanes: L, block: &[u8], scales: &SixBits<L>, index: usize) -> Part<L> {
        scales.part(lanes, index, nibbles_of_pair(lanes, block, 16 + index / 2 * 32, index % 2 == 1))
    }
}

impl<L: Lanes> Format<L> for Q5K {
    const BYTES: usize = 176;
    const BITS: u32 = 5;
    const MINIMUM: bool = true;
    type Scales = SixBits<L>;

    #[inline(always)]
    fn scales(lanes: L, block: &[u8]) -> SixBits<L> {
        six_bits(lanes, block)
    }

    #[inline(always)]
    fn part(lanes: L, block: &[u8], scales: &SixBits<L>, index: usize) -> Part<L> {
        let mut levels = eight(lanes, block, 48 + index / 2 * 32);
        for (column, level) in levels.iter_mut().enumerate() {
            let fifth = lanes.right(quad(lanes, block, 16, column), index as u32);
            let nibble = lanes.right(*level, 4 * (index as u32 % 2));
            *level = lanes.extend_nibbles(nibble, fifth, 1);
        }
        scales.part(lanes, index, levels)
    }
}

impl<L: Lanes> Format<L> for Q6K {
    const BYTES: usize = 210;
    const BITS: u32 = 6;
    const BIAS: Option<u32> = Some(2);
    const HALVES: bool = true;
    type Scales = L::Floats;

    #[inline(always)]
    fn scales(lanes: L, block: &[u8]) -> L::Floats {
        lanes.halves(&block[208 * L::ROWS..])
    }

    #[inline(always)]
    fn part(lanes: L, block: &[u8], scales: &L::Floats, index: usize) -> Part<L> {
        let (half, quarter) = (index / 4, index % 4);
        let mut levels = eight(lanes, block, 64 * half + quarter % 2 * 32);
        for (column, level) in levels.iter_mut().enumerate() {
            let bits = lanes.right(quad(lanes, block, 128 + 32 * half, column), 2 * quarter as u32);
            let nibble = lanes.right(*level, 4 * (quarter as u32 / 2));
            *level = lanes.extend_nibbles(nibble, bits, 3);
        }
        let bytes = &block[(192 + 2 * index) * L::ROWS..];
        let scale =
            [lanes.multiply(lanes.signed(bytes), *scales), lanes.multiply(lanes.signed(&bytes[L::ROWS..]), *scales)];
        Part { levels, scale, minimum: scale }
    }
}

/// Unpacks the two-bit columns of part `index`: 128 columns share 32 bytes a row.
#[inline(always)]
fn two_bits<L: Lanes>(lanes: L, block: &[u8], at: usize, index: usize) -> [L::Levels; 8] {
    let mut levels = eight(lanes, block, at + 32 * (index / 4));
    for level in &mut levels {
        *level = lanes.and(lanes.right(*level, 2 * (index % 4) as u32), 3);
    }
    levels
}

impl<L: Lanes> Format<L> for Q2K {
    const BYTES: usize = 84;
    const BITS: u32 = 2;
    const HALVES: bool = true;
    const MINIMUM: bool = true;
    type Scales = SixBits<L>;

    #[inline(always)]
    fn scales(lanes: L, block: &[u8]) -> SixBits<L> {
        let mut bytes = [0; 16 * ROWS_MAX];
        bytes[..16 * L::ROWS].copy_from_slice(&block[..16 * L::ROWS]);
        SixBits {
            bytes,
            scale: lanes.halves(&block[80 * L::ROWS..]),
            minimum: lanes.multiply(lanes.halves(&block[82 * L::ROWS..]), lanes.splat(0.0625)),
        }
    }

    #[inline(always)]
    fn part(lanes: L, block: &[u8], scales: &SixBits<L>, index: usize) -> Part<L> {
        let mut both = [0; 2 * ROWS_MAX];
        let bytes = &scales.bytes[2 * index * L::ROWS..][..2 * L::ROWS];
        for (low, byte) in both.iter_mut().zip(bytes) {
            *low = byte & 15;
        }
        let scale = [
            lanes.multiply(lanes.unsigned(&both), scales.scale),
            lanes.multiply(lanes.unsigned(&both[L::ROWS..]), scales.scale),
        ];
        for (high, byte) in both.iter_mut().zip(bytes) {
            *high = byte & 0xf0;
        }
        let minimum = [
            lanes.multiply(lanes.unsigned(&both), scales.minimum),
            lanes.multiply(lanes.unsigned(&both[L::ROWS..]), scales.minimum),
        ];
        Part { levels: two_bits(lanes, block, 16, index), scale, minimum }
    }
}

impl<L: Lanes> Format<L> for Q3K {
    const BYTES: usize = 110;
    const BITS: u32 = 4;
    // Levels are doubled: eight above twice the value.
    const BIAS: Option<u32> = Some(0);
    const HALVES: bool = true;
    type Scales = SixBits<L>;

    /// Twelve bytes hold 16 scales of 6 bits, stored 32 above their value: bytes 0 to 7 hold the low bits of scales 0
    /// to 7 in their low nibbles and of scales 8 to 15 in their high nibbles; bytes 8 to 11 hold two bits each for
    /// scales 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
    #[inline(always)]
    fn scales(lanes: L, block: &[u8]) -> SixBits<L> {
        let mut bytes = [0; 16 * ROWS_MAX];
        let four = 4 * L::ROWS;
        let packed = &block[96 * L::ROWS..][..3 * four];
        for index in 0..four {
            let high = packed[2 * four + index];
            bytes[index] = packed[index] & 15 | (high & 3) << 4;
            bytes[four + index] = packed[four + index] & 15 | (high >> 2 & 3) << 4;
            bytes[2 * four + index] = packed[index] >> 4 | (high >> 4 & 3) << 4;
            bytes[3 * four + index] = packed[four + index] >> 4 | (high >> 6) << 4;
        }
        let half = lanes.multiply(lanes.halves(&block[108 * L::ROWS..]), lanes.splat(0.5));
        SixBits { bytes, scale: half, minimum: lanes.multiply(half, lanes.splat(-32.0)) }
    }

    #[inline(always)]
    fn part(lanes: L, block: &[u8], scales: &SixBits<L>, index: usize) -> Part<L> {
        let mut levels = two_bits(lanes, block, 32, index);
        for (column, level) in levels.iter_mut().enumerate() {
            let third = lanes.and(lanes.right(quad(lanes, block, 0, column), index as u32), 1);
            *level = lanes.or(lanes.left(*level, 1), lanes.left(third, 3));
        }
        let bytes = &scales.bytes[2 * index * L::ROWS..];
        let scale = [
            lanes.multiply_add(lanes.unsigned(bytes), scales.scale, scales.minimum),
            lanes.multiply_add(lanes.unsigned(&bytes[L::ROWS..]), scales.scale, scales.minimum),
        ];
        Part { levels, scale, minimum: scale }
    }
}

impl<L: Lanes> Format<L> for Iq4Xs {
    const BYTES: usize = 136;
    const BITS: u32 = 8;
    const BIAS: Option<u32> = if L::SIGNED { None } else { Some(4) };
    type Scales = L::Floats;

    #[inline(always)]
    fn scales(lanes: L, block: &[u8]) -> L::Floats {
        lanes.halves(block)
    }

    #[inline(always)]
    fn part(lanes: L, block: &[u8], scales: &L::Floats, index: usize) -> Part<L> {
        let mut six = [0; ROWS_MAX];
        for (row, six) in six[..L::ROWS].iter_mut().enumerate() {
            let high = block[(2 + index / 4) * L::ROWS + row] >> (index % 4 * 2) & 3;
            let low = block[4 * L::ROWS + index / 2 * L::ROWS + row] >> (index % 2 * 4) & 15;
            *six = (low | high << 4).wrapping_sub(32);
        }
        let levels = nibbles(lanes, block, 8 + 16 * index);
        of_scale(
            looked_up(lanes, levels, &IQ4, if L::SIGNED { 0 } else { 128 }),
            lanes.multiply(lanes.signed(&six), *scales),
        )
    }
}
