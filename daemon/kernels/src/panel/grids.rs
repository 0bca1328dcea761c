//! How the formats are unpacked whose indices select the magnitudes of 4 or 8 columns from a grid, with a separate sign
//! for each. Offsets are as in `formats.rs`.
use super::{Format, GridColumns, Lanes, Part};
use crate::grids::{self, IQ2_MAGNITUDES, IQ3_S_MAGNITUDES, IQ3_XXS_MAGNITUDES, signed_levels};

/// The most rows of a panel.
const ROWS_MAX: usize = 16;

/// For each 32 columns, indices of 8 columns, and a word of 7 bits of signs for each 8 and a scale of 4 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Iq2Xxs;
/// Indices of 9 bits of 8 columns with 7 bits of signs, 16 scales of 4 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Iq2Xs;
/// Indices of 10 bits of 8 columns in two fields, signs, 16 scales of 4 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Iq2S;
/// Indices of 4 columns; words of signs and scale as in IQ2_XXS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Iq3Xxs;
/// Indices of 9 bits of 4 columns in two fields, signs, 8 scales of 4 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Iq3S;

/// Levels of 8 columns: `magnitudes` are indices as in `grids.rs`, `signs` has a byte of each 8 columns.
#[inline(always)]
fn signed<L: Lanes>(
    lanes: L,
    magnitudes: L::Levels,
    signs: L::Levels,
    group: usize,
    table: &[u8; 16],
) -> [L::Levels; 2] {
    let indices = lanes.replace_signs(magnitudes, signs, group);
    [lanes.lookup(table, lanes.and(indices, 15)), lanes.lookup(table, lanes.and(lanes.right(indices, 4), 15))]
}

/// Levels of 16 columns, groups `group` and `group + 1`, from two entries of 4 columns for each.
#[inline(always)]
fn of_fours<L: Lanes>(
    lanes: L,
    entries: [L::Levels; 4],
    signs: L::Levels,
    group: usize,
    table: &[u8; 16],
) -> [L::Levels; 4] {
    let [a, b] = signed(lanes, lanes.extend_nibbles(entries[0], entries[1], 15), signs, group, table);
    let [c, d] = signed(lanes, lanes.extend_nibbles(entries[2], entries[3], 15), signs, group + 1, table);
    [a, b, c, d]
}

/// Levels of 16 columns, groups `group` and `group + 1`, from an entry of 8 columns for each.
#[inline(always)]
fn of_eights<L: Lanes>(
    lanes: L,
    entries: [L::Levels; 2],
    signs: L::Levels,
    group: usize,
    table: &[u8; 16],
) -> [L::Levels; 4] {
    let [a, b] = signed(lanes, entries[0], signs, group, table);
    let [c, d] = signed(lanes, entries[1], signs, group + 1, table);
    [a, b, c, d]
}

/// Both halves of 32 columns.
#[inline(always)]
fn joined<T: Copy>(first: [T; 4], second: [T; 4]) -> [T; 8] {
    let ([a, b, c, d], [e, f, g, h]) = (first, second);
    [a, b, c, d, e, f, g, h]
}

/// The columns of IQ3_XXS: `[8, ROWS]` indices.
struct Iq3XxsColumns<'a>(&'a [u8]);

impl GridColumns for Iq3XxsColumns<'_> {
    #[inline(always)]
    fn levels<L: Lanes>(&self, lanes: L, signs: L::Levels) -> [L::Levels; 8] {
        let table = const { signed_levels(&IQ3_XXS_MAGNITUDES, bias::<L>(64)) };
        let first = of_fours(lanes, lanes.pick_bytes(&grids::IQ3_XXS, self.0), signs, 0, &table);
        let second = lanes.pick_bytes(&grids::IQ3_XXS, &self.0[4 * L::ROWS..]);
        joined(first, of_fours(lanes, second, signs, 2, &table))
    }
}

/// The columns of IQ2_XXS: `[4, ROWS]` indices.
struct Iq2XxsColumns<'a>(&'a [u8]);

impl GridColumns for Iq2XxsColumns<'_> {
    #[inline(always)]
    fn levels<L: Lanes>(&self, lanes: L, signs: L::Levels) -> [L::Levels; 8] {
        let table = const { signed_levels(&IQ2_MAGNITUDES, bias::<L>(64)) };
        let [a, b, c, d] = lanes.pick_bytes(&grids::IQ2_XXS, self.0);
        joined(of_eights(lanes, [a, b], signs, 0, &table), of_eights(lanes, [c, d], signs, 2, &table))
    }
}

/// The columns of IQ3_S: `[8, ROWS]` low bytes of indices, `[ROWS]` of their ninth bits.
struct Iq3SColumns<'a>(&'a [u8], &'a [u8]);

impl GridColumns for Iq3SColumns<'_> {
    #[inline(always)]
    fn levels<L: Lanes>(&self, lanes: L, signs: L::Levels) -> [L::Levels; 8] {
        let table = const { signed_levels(&IQ3_S_MAGNITUDES, bias::<L>(16)) };
        let Self(low, high) = self;
        let [a, b] = lanes.pick_split(&grids::IQ3_S, low, high, [0, 1]);
        let [c, d] = lanes.pick_split(&grids::IQ3_S, &low[2 * L::ROWS..], high, [2, 3]);
        let first = of_fours(lanes, [a, b, c, d], signs, 0, &table);
        let [a, b] = lanes.pick_split(&grids::IQ3_S, &low[4 * L::ROWS..], high, [4, 5]);
        let [c, d] = lanes.pick_split(&grids::IQ3_S, &low[6 * L::ROWS..], high, [6, 7]);
        joined(first, of_fours(lanes, [a, b, c, d], signs, 2, &table))
    }
}

/// The columns of IQ2_S: `[4, ROWS]` low bytes of indices, `[ROWS]` of their two high bits.
struct Iq2SColumns<'a>(&'a [u8], &'a [u8]);

impl GridColumns for Iq2SColumns<'_> {
    #[inline(always)]
    fn levels<L: Lanes>(&self, lanes: L, signs: L::Levels) -> [L::Levels; 8] {
        let table = const { signed_levels(&IQ2_MAGNITUDES, bias::<L>(64)) };
        let Self(low, high) = self;
        let first = of_eights(lanes, lanes.pick_split(&grids::IQ2_S, low, high, [0, 2]), signs, 0, &table);
        let second = lanes.pick_split(&grids::IQ2_S, &low[2 * L::ROWS..], high, [4, 6]);
        joined(first, of_eights(lanes, second, signs, 2, &table))
    }
}

/// The columns of IQ2_XS: `[4, ROWS]` words.
struct Iq2XsColumns<'a>(&'a [u8]);

impl GridColumns for Iq2XsColumns<'_> {
    #[inline(always)]
    fn levels<L: Lanes>(&self, lanes: L, signs: L::Levels) -> [L::Levels; 8] {
        let table = const { signed_levels(&IQ2_MAGNITUDES, bias::<L>(64)) };
        let first = of_eights(lanes, lanes.pick_words(&grids::IQ2_XS, self.0), signs, 0, &table);
        let second = lanes.pick_words(&grids::IQ2_XS, &self.0[4 * L::ROWS..]);
        joined(first, of_eights(lanes, second, signs, 2, &table))
    }
}

/// Factor and addend of scales: a scale of 4 bits is `(2 * s + 1) * unit`.
#[inline(always)]
fn odd_scales<L: Lanes>(lanes: L, block: &[u8], unit: f32) -> [L::Floats; 2] {
    let half = lanes.halves(block);
    [lanes.multiply(half, lanes.splat(2.0 * unit)), lanes.multiply(half, lanes.splat(unit))]
}

/// Scales of the first and the last 16 columns, the low and the high nibbles of bytes.
#[inline(always)]
fn nibble_scales<L: Lanes>(lanes: L, bytes: &[u8], scales: &[L::Floats; 2]) -> [L::Floats; 2] {
    let mut both = [0; 2 * ROWS_MAX];
    for (row, byte) in bytes[..L::ROWS].iter().enumerate() {
        both[row] = byte & 15;
        both[ROWS_MAX + row] = byte >> 4;
    }
    [
        lanes.multiply_add(lanes.unsigned(&both), scales[0], scales[1]),
        lanes.multiply_add(lanes.unsigned(&both[ROWS_MAX..]), scales[0], scales[1]),
    ]
}

/// A part whose words have four groups of 7 bits of signs and, at the top, the scale.
#[inline(always)]
fn of_words<L: Lanes>(lanes: L, words: &[u8], scales: &[L::Floats; 2], columns: &impl GridColumns) -> Part<L> {
    let words = lanes.levels(words);
    let levels = lanes.columns(columns, lanes.even_signs(lanes.sevens(words)));
    let scale = lanes.multiply_add(lanes.top_nibbles(words), scales[0], scales[1]);
    Part { levels, scale: [scale; 2], minimum: [scale; 2] }
}

/// Constants that the formats with magnitudes below 64 share.
macro_rules! below_64 {
    () => {
        const BITS: u32 = if L::SIGNED_SMALL { 6 } else { 7 };
        const BIAS: Option<u32> = if L::SIGNED_SMALL { None } else { Some(3) };
        type Scales = [L::Floats; 2];
    };
}

/// Offset of levels above their value, if levels are unsigned.
const fn bias<L: Lanes>(of_unsigned: u8) -> u8 {
    if L::SIGNED_SMALL { 0 } else { of_unsigned }
}

impl<L: Lanes> Format<L> for Iq3Xxs {
    const BYTES: usize = 98;
    below_64!();

    #[inline(always)]
    fn scales(lanes: L, block: &[u8]) -> Self::Scales {
        odd_scales(lanes, block, 0.25)
    }

    #[inline(always)]
    fn part(lanes: L, block: &[u8], scales: &Self::Scales, index: usize) -> Part<L> {
        let words = &block[(66 + 4 * index) * L::ROWS..];
        let indices = &block[(2 + 8 * index) * L::ROWS..][..8 * L::ROWS];
        of_words(lanes, words, scales, &Iq3XxsColumns(indices))
    }
}

impl<L: Lanes> Format<L> for Iq2Xxs {
    const BYTES: usize = 66;
    below_64!();

    #[inline(always)]
    fn scales(lanes: L, block: &[u8]) -> Self::Scales {
        odd_scales(lanes, block, 0.125)
    }

    #[inline(always)]
    fn part(lanes: L, block: &[u8], scales: &Self::Scales, index: usize) -> Part<L> {
        let (indices, words) = block[(2 + 8 * index) * L::ROWS..][..8 * L::ROWS].split_at(4 * L::ROWS);
        of_words(lanes, words, scales, &Iq2XxsColumns(indices))
    }
}

impl<L: Lanes> Format<L> for Iq3S {
    const BYTES: usize = 110;
    const BITS: u32 = if L::SIGNED_SMALL { 4 } else { 5 };
    const BIAS: Option<u32> = if L::SIGNED_SMALL { None } else { Some(1) };
    type Scales = [L::Floats; 2];

    #[inline(always)]
    fn scales(lanes: L, block: &[u8]) -> Self::Scales {
        odd_scales(lanes, block, 1.0)
    }

    #[inline(always)]
    fn part(lanes: L, block: &[u8], scales: &Self::Scales, index: usize) -> Part<L> {
        let signs = lanes.levels(&block[(74 + 4 * index) * L::ROWS..]);
        let low = &block[(2 + 8 * index) * L::ROWS..][..8 * L::ROWS];
        let high = &block[(66 + index) * L::ROWS..][..L::ROWS];
        let levels = lanes.columns(&Iq3SColumns(low, high), signs);
        let scale = nibble_scales(lanes, &block[(106 + index / 2) * L::ROWS..], scales)[index % 2];
        Part { levels, scale: [scale; 2], minimum: [scale; 2] }
    }
}

impl<L: Lanes> Format<L> for Iq2S {
    const BYTES: usize = 82;
    const HALVES: bool = true;
    below_64!();

    #[inline(always)]
    fn scales(lanes: L, block: &[u8]) -> Self::Scales {
        odd_scales(lanes, block, 0.125)
    }

    #[inline(always)]
    fn part(lanes: L, block: &[u8], scales: &Self::Scales, index: usize) -> Part<L> {
        let signs = lanes.levels(&block[(34 + 4 * index) * L::ROWS..]);
        let low = &block[(2 + 4 * index) * L::ROWS..][..4 * L::ROWS];
        let high = &block[(66 + index) * L::ROWS..][..L::ROWS];
        let levels = lanes.columns(&Iq2SColumns(low, high), signs);
        let scale = nibble_scales(lanes, &block[(74 + index) * L::ROWS..], scales);
        Part { levels, scale, minimum: scale }
    }
}

impl<L: Lanes> Format<L> for Iq2Xs {
    const BYTES: usize = 74;
    const HALVES: bool = true;
    below_64!();

    #[inline(always)]
    fn scales(lanes: L, block: &[u8]) -> Self::Scales {
        odd_scales(lanes, block, 0.125)
    }

    #[inline(always)]
    fn part(lanes: L, block: &[u8], scales: &Self::Scales, index: usize) -> Part<L> {
        let indices = &block[(2 + 8 * index) * L::ROWS..][..8 * L::ROWS];
        let words = indices.as_chunks::<2>().0;
        let mut sevens = [0_u32; ROWS_MAX];
        for (row, sevens) in sevens[..L::ROWS].iter_mut().enumerate() {
            let seven = |group: usize| u32::from(u16::from_le_bytes(words[group * L::ROWS + row]) >> 9);
            *sevens = (seven(0) | seven(1) << 8 | seven(2) << 16 | seven(3) << 24).to_le();
        }
        let signs = lanes.even_signs(lanes.levels(bytemuck::must_cast_slice(&sevens)));
        let levels = lanes.columns(&Iq2XsColumns(indices), signs);
        let scale = nibble_scales(lanes, &block[(66 + index) * L::ROWS..], scales);
        Part { levels, scale, minimum: scale }
    }
}
