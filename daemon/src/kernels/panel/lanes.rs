//! What the panel kernels need of an instruction set: registers whose lanes are rows of weights. A value of such a type is the
//! proof that the machine has the instructions, so that its methods are safe; all are inlined into functions compiled for them.

use crate::kernels::Block;

/// An instruction set. `ROWS` lanes side by side; levels are 4 bytes a lane, for 4 columns.
pub(in crate::kernels) trait Lanes: Copy {
    /// Rows of a panel.
    const ROWS: usize;
    /// Tokens that a tile of a quantised format may have, ascending: sums and weights of the largest fit the registers.
    const TILES: &'static [usize];
    /// Whether `dot` takes levels as signed bytes; if not, they are unsigned ones.
    const SIGNED: bool;
    /// Sums of floats that fit the registers beside what is added to them.
    const SUMS: usize;
    /// Whether one instruction multiplies four columns and adds them to a sum.
    const HAS_DOT: bool;
    /// Up to how many tokens of a tile are written out, their sums in registers: of formats with one scale in 32 columns, and of
    /// those with two or a minimum, which need more registers. In a loop the sums are in memory.
    const UNROLLED: [usize; 2];
    /// Whether weights are asked for ahead of their use: where the machine's own prefetchers follow one stream, that costs more
    /// instructions than it saves.
    const PREFETCHES: bool;
    /// `[ROWS, 4]` bytes.
    type Levels: Copy;
    /// `[ROWS]` i32.
    type Ints: Copy;
    /// `[ROWS]` f32.
    type Floats: Copy;
    /// The low rows alone, where the lanes are two registers.
    type Low: Lanes;
    /// The high rows alone.
    type High: Lanes;

    /// Both, if the lanes are two registers: many tokens are multiplied with one after the other.
    fn split(self) -> Option<(Self::Low, Self::High)>;

    /// Asks for the cache line at an address, which need not be readable.
    fn prefetch(self, line: *const u8);
    /// The first `4 * ROWS` bytes.
    fn levels(self, bytes: &[u8]) -> Self::Levels;
    /// Writes the bytes to the start of `out`.
    fn store_levels(self, levels: Self::Levels, out: &mut [u8]);
    /// Each byte and a mask.
    fn and(self, a: Self::Levels, mask: u8) -> Self::Levels;
    /// Bits of either.
    fn or(self, a: Self::Levels, b: Self::Levels) -> Self::Levels;
    /// Each byte exclusive-or a mask.
    fn xor(self, a: Self::Levels, mask: u8) -> Self::Levels;
    /// Each byte shifted right; what comes in from above is undefined and to be masked.
    fn right(self, a: Self::Levels, bits: u32) -> Self::Levels;
    /// Each byte shifted left; what comes in from below is undefined where bits were set above.
    fn left(self, a: Self::Levels, bits: u32) -> Self::Levels;
    /// Of each lane as a 32-bit number the bits from `first` on, one in each of its 4 bytes.
    fn spread(self, a: Self::Levels, first: u32) -> Self::Levels;
    /// Each byte, below 16, replaced by its entry.
    fn lookup(self, table: &[u8; 16], a: Self::Levels) -> Self::Levels;

    /// Minus the sum of a block's quants, or of its first 16, times `8 << shift`, in all lanes.
    #[inline(always)]
    fn begin(self, x: &Block, is_first: bool, shift: u32) -> Self::Ints {
        self.ints(if is_first { x.minus_8_first } else { x.minus_8_sums } << shift)
    }
    /// Times a block's scale.
    #[inline(always)]
    fn times_scale(self, a: Self::Floats, x: &Block) -> Self::Floats {
        self.multiply(a, self.splat(x.scale))
    }
    /// `sum`, and `a` times a block's scale.
    #[inline(always)]
    fn add_times_scale(self, a: Self::Floats, x: &Block, sum: Self::Floats) -> Self::Floats {
        self.multiply_add(a, self.splat(x.scale), sum)
    }
    /// `sum`, less `minimum` times the sum of a block's values.
    #[inline(always)]
    fn subtract_minimum(self, minimum: Self::Floats, x: &Block, sum: Self::Floats) -> Self::Floats {
        self.multiply_add(minimum, self.splat(x.minus_sums), sum)
    }

    /// Difference.
    fn subtract_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// The same number in all lanes.
    fn ints(self, value: i32) -> Self::Ints;
    /// `begin` and the sums of products of `4 * QUADS` columns; levels are below two to the power of the bits, signed if that
    /// is 8 and the instruction set takes them so. The second number are the tokens of the tile.
    fn dot<const QUADS: usize>(
        self,
        kind: (u32, usize),
        begin: Self::Ints,
        levels: &[Self::Levels],
        x: &[i8],
    ) -> Self::Ints;

    /// As floats.
    fn convert(self, a: Self::Ints) -> Self::Floats;
    /// The first `ROWS` halves.
    fn halves(self, bytes: &[u8]) -> Self::Floats;
    /// The first `ROWS` upper halves of floats.
    fn upper_halves(self, bytes: &[u8]) -> Self::Floats;
    /// The first `ROWS` bytes.
    fn unsigned(self, bytes: &[u8]) -> Self::Floats;
    /// The first `ROWS` bytes as signed ones.
    fn signed(self, bytes: &[u8]) -> Self::Floats;
    /// The first `ROWS` floats as bytes.
    fn floats(self, bytes: &[u8]) -> Self::Floats;
    /// The first `ROWS` floats.
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
    /// The same: what is written after it is computed after it, where the compiler would mix up the tokens of a tile until their
    /// intermediate values do not fit the registers.
    #[inline(always)]
    fn settle(self, a: Self::Floats) -> Self::Floats {
        a
    }
    /// `a * b + c`, rounded once.
    fn multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The larger one; NaN where `b` is NaN.
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// Sum of all lanes.
    fn total(self, a: Self::Floats) -> f32;
    /// The largest lane; anything where one is NaN.
    fn largest(self, a: Self::Floats) -> f32;
    /// `a` times two to the power of the low bits of `n`.
    fn power(self, a: Self::Floats, n: Self::Floats) -> Self::Floats;
}
