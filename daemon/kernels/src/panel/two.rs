//! Lanes of two registers: each operation runs on the low rows and on the high rows.
use super::{GridColumns, Lanes};
use crate::{Block, grids::Grid};

/// The low and the high rows of a panel, or a value for each.
#[derive(Clone, Copy)]
pub(crate) struct Two<A, B>(pub(crate) A, pub(crate) B);

/// Defines methods that do the same with both.
macro_rules! both {
    ($(fn $name:ident($($both:ident: $kind:ty),*; $($same:ident: $of:ty),*) -> $result:ident;)*) => {
        $(
            #[inline(always)]
            fn $name(self, $($both: $kind,)* $($same: $of),*) -> Self::$result {
                Two(self.0.$name($($both.0,)* $($same),*), self.1.$name($($both.1,)* $($same),*))
            }
        )*
    };
}

impl<A, B> Lanes for Two<A, B>
where
    A: Lanes,
    B: Lanes,
{
    const ROWS: usize = A::ROWS;
    const TILES: &'static [usize] = A::TILES;
    const SIGNED: bool = A::SIGNED;
    const SIGNED_SMALL: bool = A::SIGNED_SMALL;
    const PREFETCHES: bool = A::PREFETCHES;
    const UNROLLED: [usize; 2] = A::UNROLLED;
    const SUMS: usize = A::SUMS / 2;
    const HAS_DOT: bool = A::HAS_DOT;
    type Levels = Two<A::Levels, B::Levels>;
    type Ints = Two<A::Ints, B::Ints>;
    type Floats = Two<A::Floats, B::Floats>;
    type Low = A;
    type High = B;

    #[inline(always)]
    fn split(self) -> Option<(A, B)> {
        // Without byte dot products, values spread over the lanes serve both registers.
        A::HAS_DOT.then_some((self.0, self.1))
    }

    #[inline(always)]
    fn prefetch(self, line: *const u8) {
        self.0.prefetch(line);
    }

    #[inline(always)]
    fn prefetch_far(self, line: *const u8) {
        self.0.prefetch_far(line);
    }

    #[inline(always)]
    fn store_levels(self, levels: Self::Levels, out: &mut [u8]) {
        self.0.store_levels(levels.0, out);
        self.1.store_levels(levels.1, out);
    }

    #[inline(always)]
    fn store(self, a: Self::Floats, out: &mut [f32]) {
        self.0.store(a.0, out);
        self.1.store(a.1, out);
    }

    #[inline(always)]
    fn dot<const QUADS: usize>(
        self,
        bits: u32,
        tokens: usize,
        begin: Self::Ints,
        levels: &[Self::Levels],
        x: &[i8],
    ) -> Self::Ints {
        let (mut low, mut high) = ([levels[0].0; QUADS], [levels[0].1; QUADS]);
        for index in 0..QUADS {
            (low[index], high[index]) = (levels[index].0, levels[index].1);
        }
        Two(self.0.dot::<QUADS>(bits, tokens, begin.0, &low, x), self.1.dot::<QUADS>(bits, tokens, begin.1, &high, x))
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], a: Self::Levels) -> Self::Levels {
        Two(self.0.lookup(table, a.0), self.1.lookup(table, a.1))
    }

    #[inline(always)]
    fn pick_bytes(self, grid: &Grid<256>, indices: &[u8]) -> [Self::Levels; 4] {
        let (low, high) = (self.0.pick_bytes(grid, indices), self.1.pick_bytes(grid, indices));
        [Two(low[0], high[0]), Two(low[1], high[1]), Two(low[2], high[2]), Two(low[3], high[3])]
    }

    #[inline(always)]
    fn columns<C: GridColumns>(self, columns: &C, signs: Self::Levels) -> [Self::Levels; 8] {
        let (low, high) = (columns.levels(self.0, signs.0), columns.levels(self.1, signs.1));
        let mut levels = [signs; 8];
        for (level, (low, high)) in levels.iter_mut().zip(low.into_iter().zip(high)) {
            *level = Two(low, high);
        }
        levels
    }

    #[inline(always)]
    fn pick_words(self, grid: &Grid<512>, indices: &[u8]) -> [Self::Levels; 2] {
        let (low, high) = (self.0.pick_words(grid, indices), self.1.pick_words(grid, indices));
        [Two(low[0], high[0]), Two(low[1], high[1])]
    }

    #[inline(always)]
    fn pick_split<const N: usize>(
        self,
        grid: &Grid<N>,
        low: &[u8],
        high: &[u8],
        shifts: [u32; 2],
    ) -> [Self::Levels; 2] {
        let a = self.0.pick_split(grid, low, high, shifts);
        let b = self.1.pick_split(grid, low, high, shifts);
        [Two(a[0], b[0]), Two(a[1], b[1])]
    }

    #[inline(always)]
    fn extend_nibbles(self, a: Self::Levels, b: Self::Levels, mask: u8) -> Self::Levels {
        Two(self.0.extend_nibbles(a.0, b.0, mask), self.1.extend_nibbles(a.1, b.1, mask))
    }

    #[inline(always)]
    fn total(self, a: Self::Floats) -> f32 {
        self.0.total(a.0) + self.1.total(a.1)
    }

    #[inline(always)]
    fn largest(self, a: Self::Floats) -> f32 {
        self.0.largest(a.0).max(self.1.largest(a.1))
    }

    #[inline(always)]
    fn times_scale(self, a: Self::Floats, x: &Block) -> Self::Floats {
        Two(self.0.times_scale(a.0, x), self.1.times_scale(a.1, x))
    }

    #[inline(always)]
    fn add_times_scale(self, a: Self::Floats, x: &Block, sum: Self::Floats) -> Self::Floats {
        Two(self.0.add_times_scale(a.0, x, sum.0), self.1.add_times_scale(a.1, x, sum.1))
    }

    #[inline(always)]
    fn subtract_minimum(self, minimum: Self::Floats, x: &Block, sum: Self::Floats) -> Self::Floats {
        Two(self.0.subtract_minimum(minimum.0, x, sum.0), self.1.subtract_minimum(minimum.1, x, sum.1))
    }

    both! {
        fn levels(; bytes: &[u8]) -> Levels;
        fn and(a: Self::Levels; mask: u8) -> Levels;
        fn or(a: Self::Levels, b: Self::Levels;) -> Levels;
        fn xor(a: Self::Levels; mask: u8) -> Levels;
        fn right(a: Self::Levels; bits: u32) -> Levels;
        fn left(a: Self::Levels; bits: u32) -> Levels;
        fn spread(a: Self::Levels; first: u32) -> Levels;
        fn sevens(words: Self::Levels;) -> Levels;
        fn even_signs(a: Self::Levels;) -> Levels;
        fn replace_signs(nibbles: Self::Levels, signs: Self::Levels; group: usize) -> Levels;
        fn top_nibbles(words: Self::Levels;) -> Floats;
        fn begin(; x: &Block, is_first: bool, shift: u32) -> Ints;
        fn subtract_ints(a: Self::Ints, b: Self::Ints;) -> Ints;
        fn ints(; value: i32) -> Ints;
        fn convert(a: Self::Ints;) -> Floats;
        fn halves(; bytes: &[u8]) -> Floats;
        fn upper_halves(; bytes: &[u8]) -> Floats;
        fn half_powers(; bytes: &[u8]) -> Floats;
        fn unsigned(; bytes: &[u8]) -> Floats;
        fn signed(; bytes: &[u8]) -> Floats;
        fn floats(; bytes: &[u8]) -> Floats;
        fn load(; values: &[f32]) -> Floats;
        fn splat(; value: f32) -> Floats;
        fn separate(a: Self::Floats;) -> Floats;
        fn add(a: Self::Floats, b: Self::Floats;) -> Floats;
        fn multiply(a: Self::Floats, b: Self::Floats;) -> Floats;
        fn divide(a: Self::Floats, b: Self::Floats;) -> Floats;
        fn multiply_add(a: Self::Floats, b: Self::Floats, c: Self::Floats;) -> Floats;
        fn max(a: Self::Floats, b: Self::Floats;) -> Floats;
        fn power(a: Self::Floats, n: Self::Floats;) -> Floats;
    }
}
