//! The instruction-set interface of the panel kernels: registers whose lanes are rows of weights. A value of an
//! implementing type is the proof that the machine has the instructions, so its methods are safe; all are inlined into
//! functions compiled for them.

use crate::{Block, grids::Grid};

/// 32 columns of a format with a grid. Types instead of closures: a closure that is not inlined calls every instruction
/// as a function, because it lacks the features of its table.
pub(crate) trait GridColumns {
    /// Their levels; `signs` has a byte of each 8 columns.
    fn levels<L: Lanes>(&self, lanes: L, signs: L::Levels) -> [L::Levels; 8];
}

/// An instruction set with `ROWS` lanes; levels are 4 bytes a lane, for 4 columns.
pub(crate) trait Lanes: Copy {
    /// Rows in a panel.
    const ROWS: usize;
    /// Tile sizes in tokens for quantised formats, ascending: sums and weights of the largest fit the registers.
    const TILES: &'static [usize];
    /// Whether `dot` takes levels as signed bytes instead of unsigned ones.
    const SIGNED: bool;
    /// Whether `dot` takes levels of fewer than 8 bits as signed bytes, too.
    const SIGNED_SMALL: bool;
    /// Number of float sums that fit the registers together with their addends.
    const SUMS: usize;
    /// Whether one instruction multiplies four columns and adds them to a sum.
    const HAS_DOT: bool;
    /// Up to how many tokens of a tile are unrolled with their sums in registers: for formats with one scale per 32
    /// columns, and for those with two or a minimum, which need more registers. In a loop, the sums are in memory.
    const UNROLLED: [usize; 2];
    /// Whether weights are prefetched: if the machine's own prefetchers follow one stream, it costs more instructions
    /// than it saves.
    const PREFETCHES: bool;
    /// `[ROWS, 4]` bytes.
    type Levels: Copy;
    /// `[ROWS]` i32.
    type Ints: Copy;
    /// `[ROWS]` f32.
    type Floats: Copy;
    /// The low rows alone, if the lanes are two registers.
    type Low: Lanes;
    /// The high rows alone.
    type High: Lanes;

    /// Both halves, if the lanes are two registers: many tokens are multiplied with one half after the other.
    fn split(self) -> Option<(Self::Low, Self::High)>;

    /// Prefetches the cache line at an address, which need not be readable.
    fn prefetch(self, line: *const u8);
    /// Prefetches it to the second-level cache.
    fn prefetch_far(self, line: *const u8);
    /// Loads the first `4 * ROWS` bytes.
    fn levels(self, bytes: &[u8]) -> Self::Levels;
    /// Writes the bytes to the start of `out`.
    fn store_levels(self, levels: Self::Levels, out: &mut [u8]);
    /// ANDs each byte with a mask.
    fn and(self, a: Self::Levels, mask: u8) -> Self::Levels;
    /// ORs the bytes.
    fn or(self, a: Self::Levels, b: Self::Levels) -> Self::Levels;
    /// XORs each byte with a mask.
    fn xor(self, a: Self::Levels, mask: u8) -> Self::Levels;
    /// Shifts each byte right; the vacated high bits are undefined and must be masked.
    fn right(self, a: Self::Levels, bits: u32) -> Self::Levels;
    /// Shifts each byte left; the vacated low bits are undefined if high bits were set.
    fn left(self, a: Self::Levels, bits: u32) -> Self::Levels;
    /// The low nibble of each byte of `a` with the bits `mask` of `b`, at most the low four, above it.
    #[inline(always)]
    fn extend_nibbles(self, a: Self::Levels, b: Self::Levels, mask: u8) -> Self::Levels {
        self.or(self.and(a, 15), self.left(self.and(b, mask), 4))
    }
    /// Takes the bits from `first` on of each lane as a 32-bit number, and spreads them to its 4 bytes, one bit each.
    fn spread(self, a: Self::Levels, first: u32) -> Self::Levels;
    /// Replaces each byte, below 16, with its table entry.
    fn lookup(self, table: &[u8; 16], a: Self::Levels) -> Self::Levels;

    /// The entries of a grid for each of the first `4 * ROWS` indices. Bits above the index of a magnitude are
    /// undefined.
    fn pick_bytes(self, grid: &Grid<256>, indices: &[u8]) -> [Self::Levels; 4];
    /// Like `pick_bytes`, for `2 * ROWS` indices of two bytes, of which the low 9 bits count.
    fn pick_words(self, grid: &Grid<512>, indices: &[u8]) -> [Self::Levels; 2];
    /// Like `pick_bytes`, for `2 * ROWS` indices modulo `N` whose bits above the eighth are in the first `ROWS` bytes of
    /// `high`, from a bit on: the first of `shifts` for the first `ROWS` indices, the second for the others.
    fn pick_split<const N: usize>(self, grid: &Grid<N>, low: &[u8], high: &[u8], shifts: [u32; 2])
    -> [Self::Levels; 2];
    /// Spreads four groups of 7 bits of each lane as a 32-bit number to its bytes.
    fn sevens(self, words: Self::Levels) -> Self::Levels;
    /// Sets the top bit of each byte, which is 0, so that an even number of bits is set.
    fn even_signs(self, a: Self::Levels) -> Self::Levels;
    /// Takes byte `group` of each lane of `signs`: replaces bit 3 of byte `j` of `nibbles` by its bit `j`, and bit 7 by
    /// its bit `4 + j`.
    fn replace_signs(self, nibbles: Self::Levels, signs: Self::Levels, group: usize) -> Self::Levels;
    /// Unpacks 32 columns, of one register after the other, so that few values have to be in registers.
    #[inline(always)]
    fn columns<C: GridColumns>(self, columns: &C, signs: Self::Levels) -> [Self::Levels; 8] {
        columns.levels(self, signs)
    }
    /// The top 4 bits of each lane as a 32-bit number.
    fn top_nibbles(self, words: Self::Levels) -> Self::Floats;

    /// Minus the sum of a block's quants, or of its first 16, times `8 << shift`, in all lanes.
    #[inline(always)]
    fn begin(self, x: &Block, is_first: bool, shift: u32) -> Self::Ints {
        self.ints(if is_first { x.minus_8_first } else { x.minus_8_sums } << shift)
    }
    /// Multiplies by a block's scale.
    #[inline(always)]
    fn times_scale(self, a: Self::Floats, x: &Block) -> Self::Floats {
        self.multiply(a, self.splat(x.scale))
    }
    /// `sum`, plus `a` times a block's scale.
    #[inline(always)]
    fn add_times_scale(self, a: Self::Floats, x: &Block, sum: Self::Floats) -> Self::Floats {
        self.multiply_add(a, self.splat(x.scale), sum)
    }
    /// `sum`, minus `minimum` times the sum of a block's values.
    #[inline(always)]
    fn subtract_minimum(self, minimum: Self::Floats, x: &Block, sum: Self::Floats) -> Self::Floats {
        self.multiply_add(minimum, self.splat(x.minus_sums), sum)
    }

    /// Difference.
    fn subtract_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// The same number in all lanes.
    fn ints(self, value: i32) -> Self::Ints;
    /// `begin` plus the sums of products of `4 * QUADS` columns; levels are below two to the power of `bits`, or signed
    /// with such absolute values (`SIGNED` if that is 8, otherwise `SIGNED_SMALL`). `tokens` is the number of tokens in the tile.
    fn dot<const QUADS: usize>(
        self,
        bits: u32,
        tokens: usize,
        begin: Self::Ints,
        levels: &[Self::Levels],
        x: &[i8],
    ) -> Self::Ints;

    /// Converts to floats.
    fn convert(self, a: Self::Ints) -> Self::Floats;
    /// Loads the first `ROWS` halves.
    fn halves(self, bytes: &[u8]) -> Self::Floats;
    /// Loads the first `ROWS` bfloat16 values (upper halves of floats).
    fn upper_halves(self, bytes: &[u8]) -> Self::Floats;
    /// Two to the power of each of the first `ROWS` bytes minus 128: half the value of an E8M0 exponent. Results below
    /// 2^-126 are exact, too.
    fn half_powers(self, bytes: &[u8]) -> Self::Floats;
    /// Loads the first `ROWS` bytes.
    fn unsigned(self, bytes: &[u8]) -> Self::Floats;
    /// Loads the first `ROWS` bytes as signed ones.
    fn signed(self, bytes: &[u8]) -> Self::Floats;
    /// Loads the first `ROWS` floats from bytes.
    fn floats(self, bytes: &[u8]) -> Self::Floats;
    /// Loads the first `ROWS` floats.
    fn load(self, values: &[f32]) -> Self::Floats;
    /// Writes `ROWS` floats.
    fn store(self, a: Self::Floats, out: &mut [f32]);
    /// The same number in all lanes.
    fn splat(self, value: f32) -> Self::Floats;
    /// Sum.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Product.
    fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Quotient.
    fn divide(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Returns `a` as an ordering barrier: later computations stay after it. Otherwise the compiler would interleave
    /// the tokens of a tile until their intermediate values no longer fit the registers.
    #[inline(always)]
    fn settle(self, a: Self::Floats) -> Self::Floats {
        a
    }
    /// Like `settle`, for one token, and memory is read again: otherwise the compiler would keep bytes that several
    /// parts of a block share until they no longer fit the registers.
    #[inline(always)]
    fn separate(self, a: Self::Floats) -> Self::Floats {
        a
    }
    /// `a * b + c`, rounded once.
    fn multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The larger one; NaN if `b` is NaN.
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Sum of all lanes.
    fn total(self, a: Self::Floats) -> f32;
    /// The largest lane; unspecified if one is NaN.
    fn largest(self, a: Self::Floats) -> f32;
    /// `a` times two to the power of the low bits of `n`.
    fn power(self, a: Self::Floats, n: Self::Floats) -> Self::Floats;
}
