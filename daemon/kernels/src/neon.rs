//! NEON: 8 rows per panel, in two registers of 4, processed together or, for many tokens, one after the other. Two
//! tables: with byte dot products (Cortex-A76) and without (Cortex-A72), where products are summed in 16 bits.
#![expect(unsafe_code, reason = "vector instructions; a token is made only after the machine was asked for them")]
use std::{
    arch::{aarch64::*, asm},
    sync::OnceLock,
};

use super::{
    Block, Kernels,
    grids::Grid,
    panel::{Lanes, Two, operations, table},
};

/// The tables that this machine can run, the fastest last.
pub(super) fn detect() -> impl Iterator<Item = &'static Kernels> {
    static HAS_DOTPROD: OnceLock<bool> = OnceLock::new();
    static NEON: Kernels = table!("neon", "neon", Whole::<false>::NEW, Whole<false>);
    static DOTPROD: Kernels = table!("neon-dotprod", "neon,dotprod", Whole::<true>::NEW, Whole<true>);
    let has_dotprod = HAS_DOTPROD.get_or_init(|| std::arch::is_aarch64_feature_detected!("dotprod"));
    std::iter::once(&NEON).chain(has_dotprod.then_some(&DOTPROD))
}

/// A whole panel.
type Whole<const DOTPROD: bool> = Two<Half<DOTPROD, false>, Half<DOTPROD, true>>;

impl<const DOTPROD: bool> Whole<DOTPROD> {
    const NEW: Self = Two(Half(()), Half(()));
}

/// Proof that the machine has NEON and, if `DOTPROD`, byte dot products; created only in entries of the tables. Rows 0
/// to 3 of a panel or, if `HIGH`, rows 4 to 7: sums of 8 tokens and weights of 32 columns fit the registers.
#[derive(Clone, Copy)]
struct Half<const DOTPROD: bool, const HIGH: bool>(());

impl<const DOTPROD: bool, const HIGH: bool> Half<DOTPROD, HIGH> {
    /// This half's part of 8 rows of `of_row` bytes each.
    #[inline(always)]
    fn own(bytes: &[u8], of_row: usize) -> *const u8 {
        let bytes = &bytes[..8 * of_row];
        bytes[if HIGH { 4 * of_row } else { 0 }..].as_ptr()
    }

    /// Scale and sums of a block in one register, so that multiplying by one of its lanes needs no additional register.
    #[inline(always)]
    fn words(x: &Block) -> int32x4_t {
        let words: &[i32; 12] = bytemuck::must_cast_ref(x);
        // SAFETY: the last four words are readable; NEON is part of every aarch64 machine.
        unsafe { vld1q_s32(words[8..].as_ptr()) }
    }

    /// Like `words`, reinterpreted as floats.
    #[inline(always)]
    fn float_words(x: &Block) -> float32x4_t {
        // SAFETY: NEON is part of every aarch64 machine.
        unsafe { vreinterpretq_f32_s32(Self::words(x)) }
    }
}

impl<const DOTPROD: bool, const HIGH: bool> Lanes for Half<DOTPROD, HIGH> {
    const ROWS: usize = 8;
    const TILES: &'static [usize] = if DOTPROD { &[1, 2, 4, 8, 16] } else { &[1, 2, 4, 8] };
    const SIGNED: bool = true;
    const SIGNED_SMALL: bool = true;
    const PREFETCHES: bool = false;
    const UNROLLED: [usize; 2] = if DOTPROD { [16, 16] } else { [0, 0] };
    const SUMS: usize = 16;
    const HAS_DOT: bool = DOTPROD;
    type Levels = uint8x16_t;
    type Ints = int32x4_t;
    type Floats = float32x4_t;
    type Low = Self;
    type High = Self;

    fn split(self) -> Option<(Self, Self)> {
        None
    }

    operations! {
        fn prefetch(line: *const u8) {
            asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly))
        }
        fn prefetch_far(line: *const u8) {
            asm!("prfm pldl2keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly))
        }
        fn levels(bytes: &[u8]) -> uint8x16_t { vld1q_u8(Self::own(bytes, 4)) }
        fn store_levels(levels: uint8x16_t, out: &mut [u8]) {
            vst1q_u8(out[..32][if HIGH { 16 } else { 0 }..].as_mut_ptr(), levels)
        }
        fn and(a: uint8x16_t, mask: u8) -> uint8x16_t { vandq_u8(a, vdupq_n_u8(mask)) }
        fn or(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t { vorrq_u8(a, b) }
        fn xor(a: uint8x16_t, mask: u8) -> uint8x16_t { veorq_u8(a, vdupq_n_u8(mask)) }
        fn right(a: uint8x16_t, bits: u32) -> uint8x16_t { vshlq_u8(a, vdupq_n_s8(-(bits as i8))) }
        fn left(a: uint8x16_t, bits: u32) -> uint8x16_t { vshlq_u8(a, vdupq_n_s8(bits as i8)) }
        fn extend_nibbles(a: uint8x16_t, b: uint8x16_t, mask: u8) -> uint8x16_t {
            vandq_u8(vsliq_n_u8::<4>(a, b), vdupq_n_u8(mask << 4 | 15))
        }
        fn spread(a: uint8x16_t, first: u32) -> uint8x16_t {
            let four = vshlq_u32(vreinterpretq_u32_u8(a), vdupq_n_s32(-first.cast_signed()));
            let four = vandq_u32(four, vdupq_n_u32(15));
            vandq_u8(vreinterpretq_u8_u32(vmulq_u32(four, vdupq_n_u32(0x0020_4081))), vdupq_n_u8(1))
        }
        fn lookup(table: &[u8; 16], a: uint8x16_t) -> uint8x16_t { vqtbl1q_u8(vld1q_u8(table.as_ptr()), a) }
        fn sevens(words: uint8x16_t) -> uint8x16_t {
            let words = vreinterpretq_u32_u8(words);
            // Two groups of 14 bits, then four of 7; the bits between them are not zero until the last instruction.
            let pairs = vbslq_u32(vdupq_n_u32(0x3fff), words, vshlq_n_u32::<2>(words));
            let bytes = vbslq_u32(vdupq_n_u32(0x7f_007f), pairs, vshlq_n_u32::<1>(pairs));
            vandq_u8(vreinterpretq_u8_u32(bytes), vdupq_n_u8(0x7f))
        }
        fn even_signs(a: uint8x16_t) -> uint8x16_t { vsliq_n_u8::<7>(a, vcntq_u8(a)) }
        fn replace_signs(nibbles: uint8x16_t, signs: uint8x16_t, group: usize) -> uint8x16_t {
            let firsts = vcombine_u64(vcreate_u64(0x0404_0404_0000_0000), vcreate_u64(0x0c0c_0c0c_0808_0808));
            let bytes = vaddq_u8(vdupq_n_u8(group as u8), vreinterpretq_u8_u64(firsts));
            let of_lane = vqtbl1q_u8(signs, bytes);
            let shifts = vreinterpretq_s8_u32(vdupq_n_u32(0x0001_0203));
            vbslq_u8(vdupq_n_u8(0x88), vshlq_u8(of_lane, shifts), nibbles)
        }
        fn top_nibbles(words: uint8x16_t) -> float32x4_t {
            vcvtq_f32_u32(vshrq_n_u32::<28>(vreinterpretq_u32_u8(words)))
        }
        fn begin(x: &Block, is_first: bool, shift: u32) -> int32x4_t {
            let words = Self::words(x);
            let sums = if is_first { vdupq_laneq_s32::<3>(words) } else { vdupq_laneq_s32::<2>(words) };
            if shift == 0 { sums } else { vshlq_s32(sums, vdupq_n_s32(shift.cast_signed())) }
        }
        fn times_scale(a: float32x4_t, x: &Block) -> float32x4_t { vmulq_laneq_f32::<0>(a, Self::float_words(x)) }
        fn add_times_scale(a: float32x4_t, x: &Block, sum: float32x4_t) -> float32x4_t {
            vfmaq_laneq_f32::<0>(sum, a, Self::float_words(x))
        }
        fn subtract_minimum(minimum: float32x4_t, x: &Block, sum: float32x4_t) -> float32x4_t {
            vfmaq_laneq_f32::<1>(sum, minimum, Self::float_words(x))
        }
        fn subtract_ints(a: int32x4_t, b: int32x4_t) -> int32x4_t { vsubq_s32(a, b) }
        fn ints(value: i32) -> int32x4_t { vdupq_n_s32(value) }
        fn convert(a: int32x4_t) -> float32x4_t { vcvtq_f32_s32(a) }
        fn halves(bytes: &[u8]) -> float32x4_t {
            let halves = vld1_u8(Self::own(bytes, 2));
            let floats: float32x4_t;
            asm!(
                "fcvtl {floats:v}.4s, {halves:v}.4h",
                floats = out(vreg) floats,
                halves = in(vreg) halves,
                options(pure, nomem, nostack, preserves_flags)
            );
            floats
        }
        fn upper_halves(bytes: &[u8]) -> float32x4_t {
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(Self::own(bytes, 2)))))
        }
        fn half_powers(bytes: &[u8]) -> float32x4_t {
            // Upper halves of floats: normal ones, and larger for 0 and 1 the bits of 2^-128 and 2^-127.
            let bytes = vld1_u8(bytes[..8].as_ptr());
            let normal = vaddq_s16(vreinterpretq_s16_u16(vshll_n_u8::<7>(bytes)), vdupq_n_s16(-128));
            let small = vaddq_s16(vreinterpretq_s16_u16(vshll_n_u8::<5>(bytes)), vdupq_n_s16(32));
            let halves = vreinterpretq_u16_s16(vmaxq_s16(normal, small));
            vreinterpretq_f32_u32(if HIGH { vshll_high_n_u16::<16>(halves) } else { vshll_n_u16::<16>(vget_low_u16(halves)) })
        }
        fn unsigned(bytes: &[u8]) -> float32x4_t {
            let words = vmovl_u8(vld1_u8(bytes[..8].as_ptr()));
            vcvtq_f32_u32(if HIGH { vmovl_high_u16(words) } else { vmovl_u16(vget_low_u16(words)) })
        }
        fn signed(bytes: &[u8]) -> float32x4_t {
            let words = vmovl_s8(vreinterpret_s8_u8(vld1_u8(bytes[..8].as_ptr())));
            vcvtq_f32_s32(if HIGH { vmovl_high_s16(words) } else { vmovl_s16(vget_low_s16(words)) })
        }
        fn floats(bytes: &[u8]) -> float32x4_t { vreinterpretq_f32_u8(vld1q_u8(Self::own(bytes, 4))) }
        fn load(values: &[f32]) -> float32x4_t { vld1q_f32(values[..8][if HIGH { 4 } else { 0 }..].as_ptr()) }
        fn store(a: float32x4_t, out: &mut [f32]) { vst1q_f32(out[..8][if HIGH { 4 } else { 0 }..].as_mut_ptr(), a) }
        fn splat(value: f32) -> float32x4_t { vdupq_n_f32(value) }
        fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t { vaddq_f32(a, b) }
        fn multiply(a: float32x4_t, b: float32x4_t) -> float32x4_t { vmulq_f32(a, b) }
        fn divide(a: float32x4_t, b: float32x4_t) -> float32x4_t { vdivq_f32(a, b) }
        fn settle(a: float32x4_t) -> float32x4_t {
            let mut a = a;
            asm!("/* {0:v} */", inout(vreg) a, options(nomem, nostack, preserves_flags));
            a
        }
        fn separate(a: float32x4_t) -> float32x4_t {
            let mut a = a;
            asm!("/* {0:v} */", inout(vreg) a, options(nostack, preserves_flags));
            a
        }
        fn multiply_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t { vfmaq_f32(c, a, b) }
        fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t { vmaxq_f32(a, b) }
        fn total(a: float32x4_t) -> f32 { vaddvq_f32(a) }
        fn largest(a: float32x4_t) -> f32 { vmaxvq_f32(a) }
        fn power(a: float32x4_t, n: float32x4_t) -> float32x4_t {
            let exponent = vshlq_n_s32::<23>(vreinterpretq_s32_f32(n));
            vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a), exponent))
        }
    }

    #[inline(always)]
    fn pick_bytes(self, grid: &Grid<256>, indices: &[u8]) -> [uint8x16_t; 4] {
        let fours = &indices.as_chunks::<4>().0[..8];
        [
            entries::<256, 8>(grid, u32::from_le_bytes(fours[usize::from(HIGH)]).into()),
            entries::<256, 8>(grid, u32::from_le_bytes(fours[2 + usize::from(HIGH)]).into()),
            entries::<256, 8>(grid, u32::from_le_bytes(fours[4 + usize::from(HIGH)]).into()),
            entries::<256, 8>(grid, u32::from_le_bytes(fours[6 + usize::from(HIGH)]).into()),
        ]
    }

    #[inline(always)]
    fn pick_words(self, grid: &Grid<512>, indices: &[u8]) -> [uint8x16_t; 2] {
        let fours = &indices.as_chunks::<8>().0[..4];
        let first = u64::from_le_bytes(fours[usize::from(HIGH)]);
        let second = u64::from_le_bytes(fours[2 + usize::from(HIGH)]);
        [entries::<512, 16>(grid, first), entries::<512, 16>(grid, second)]
    }

    #[inline(always)]
    fn pick_split<const N: usize>(self, grid: &Grid<N>, low: &[u8], high: &[u8], shifts: [u32; 2]) -> [uint8x16_t; 2] {
        let (low, high) = (&low[..16], &high[..8]);
        // SAFETY: the bytes are readable; NEON is part of every aarch64 machine.
        let words = unsafe {
            let high = vmovl_u8(vld1_u8(high.as_ptr()));
            let low = [vmovl_u8(vld1_u8(low.as_ptr())), vmovl_u8(vld1_u8(low[8..].as_ptr()))];
            let first = vsliq_n_u16::<8>(low[0], vshlq_u16(high, vdupq_n_s16(-(shifts[0] as i16))));
            let second = vsliq_n_u16::<8>(low[1], vshlq_u16(high, vdupq_n_s16(-(shifts[1] as i16))));
            let (first, second) = (vreinterpretq_u64_u16(first), vreinterpretq_u64_u16(second));
            match HIGH {
                false => [vgetq_lane_u64::<0>(first), vgetq_lane_u64::<0>(second)],
                true => [vgetq_lane_u64::<1>(first), vgetq_lane_u64::<1>(second)],
            }
        };
        [entries::<N, 16>(grid, words[0]), entries::<N, 16>(grid, words[1])]
    }

    #[inline(always)]
    fn dot<const QUADS: usize>(
        self,
        bits: u32,
        _: usize,
        begin: int32x4_t,
        levels: &[uint8x16_t],
        x: &[i8],
    ) -> int32x4_t {
        let x = &x[..4 * QUADS];
        // SAFETY: the token proves the instructions; 4 * QUADS activations are readable.
        unsafe {
            if DOTPROD { with_dotprod::<QUADS>(begin, levels, x) } else { in_16_bits::<QUADS>(bits, begin, levels, x) }
        }
    }
}

/// The entries of a grid for four indices of `BITS` bits, which are taken modulo `N`. One load of all indices and
/// instructions that extract them, because a kernel waits for its loads. One piece of assembly: the compiler would load
/// the entries of all columns first, and run out of registers.
#[inline(always)]
fn entries<const N: usize, const BITS: u32>(grid: &Grid<N>, indices: u64) -> uint8x16_t {
    let entries;
    // SAFETY: all indices lie inside the grid; NEON is part of every aarch64 machine.
    unsafe {
        asm!(
            "ldr {a:s}, [{grid}, {first}, lsl #2]",
            "ldr {b:s}, [{grid}, {second}, lsl #2]",
            "ldr {c:s}, [{grid}, {third}, lsl #2]",
            "ldr {d:s}, [{grid}, {fourth}, lsl #2]",
            "zip1 {a:v}.4s, {a:v}.4s, {b:v}.4s",
            "zip1 {c:v}.4s, {c:v}.4s, {d:v}.4s",
            "zip1 {a:v}.2d, {a:v}.2d, {c:v}.2d",
            a = out(vreg) entries,
            b = out(vreg) _,
            c = out(vreg) _,
            d = out(vreg) _,
            grid = in(reg) grid.entries.as_ptr(),
            first = in(reg) indices as usize % N,
            second = in(reg) (indices >> BITS) as usize % N,
            third = in(reg) (indices >> (2 * BITS)) as usize % N,
            fourth = in(reg) (indices >> (3 * BITS)) as usize % N,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    entries
}

/// Byte dot products by element: four activations in each lane of `x`. The intrinsics are not stable.
macro_rules! sdot {
    ($sum:ident, $levels:expr, $x:expr, $lane:literal) => {
        asm!(
            concat!("sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[", $lane, "]"),
            inout(vreg) $sum,
            in(vreg) $levels,
            in(vreg) $x,
            options(pure, nomem, nostack, preserves_flags)
        )
    };
}

#[inline(always)]
unsafe fn with_dotprod<const QUADS: usize>(mut sum: int32x4_t, levels: &[uint8x16_t], x: &[i8]) -> int32x4_t {
    for group in 0..QUADS / 4 {
        // SAFETY: the caller has the instructions and 4 * QUADS activations.
        unsafe {
            let x = vld1q_s8(x[16 * group..][..16].as_ptr());
            sdot!(sum, levels[4 * group], x, 0);
            sdot!(sum, levels[4 * group + 1], x, 1);
            sdot!(sum, levels[4 * group + 2], x, 2);
            sdot!(sum, levels[4 * group + 3], x, 3);
        }
    }
    sum
}

/// Sums products in 16 bits, one product of each quad per lane: two for 8-bit levels (|level| <= 128, |x| <= 127: 32
/// 512), four for 6-bit ones, eight for 5-bit ones (31 * 127 * 8 = 31 496) or smaller; signed ones likewise.
#[inline(always)]
unsafe fn in_16_bits<const QUADS: usize>(bits: u32, begin: int32x4_t, levels: &[uint8x16_t], x: &[i8]) -> int32x4_t {
    let quads = x.as_chunks::<4>().0;
    let together = match bits {
        7 | 8 => 2,
        6 => 4,
        _ => 8,
    };
    // SAFETY: the caller has the instructions.
    unsafe {
        // Rows 0 and 1, rows 2 and 3: each row has two lanes of 32 bits.
        let mut sums = [vdupq_n_s32(0); 2];
        let mut words = [vdupq_n_s16(0); 2];
        for index in 0..QUADS {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(i32::from_le_bytes(quads[index].map(i8::cast_unsigned))));
            let level = vreinterpretq_s8_u8(levels[index]);
            words = if index % together == 0 {
                [vmull_s8(vget_low_s8(level), vget_low_s8(x)), vmull_high_s8(level, x)]
            } else {
                [vmlal_s8(words[0], vget_low_s8(level), vget_low_s8(x)), vmlal_high_s8(words[1], level, x)]
            };
            if index % together == together - 1 || index + 1 == QUADS {
                for pair in 0..2 {
                    sums[pair] =
                        if index < together { vpaddlq_s16(words[pair]) } else { vpadalq_s16(sums[pair], words[pair]) };
                }
            }
        }
        vaddq_s32(begin, vpaddq_s32(sums[0], sums[1]))
    }
}
