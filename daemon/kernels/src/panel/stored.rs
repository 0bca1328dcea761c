//! Keys and values as the KV cache stores them: floats, half precision, or 8 bits with scales.
use super::Lanes;

/// Storage type of a value in the KV cache.
pub(super) trait Stored: Copy {
    /// Whether 32 values share a scale.
    const SCALED: bool;
    /// Loads `ROWS` of them as floats.
    fn load<L: Lanes>(lanes: L, values: &[Self]) -> L::Floats;
    /// Converts one to a float.
    fn value(self) -> f32;
}

impl Stored for f32 {
    const SCALED: bool = false;
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, values: &[Self]) -> L::Floats {
        lanes.load(values)
    }
    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
}

impl Stored for u16 {
    const SCALED: bool = false;
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, values: &[Self]) -> L::Floats {
        lanes.halves(bytemuck::must_cast_slice(values))
    }
    #[inline(always)]
    fn value(self) -> f32 {
        half::f16::from_bits(self).to_f32()
    }
}

impl Stored for i8 {
    const SCALED: bool = true;
    #[inline(always)]
    fn load<L: Lanes>(lanes: L, values: &[Self]) -> L::Floats {
        lanes.signed(bytemuck::must_cast_slice(values))
    }
    #[inline(always)]
    fn value(self) -> f32 {
        f32::from(self)
    }
}

/// The keys or values of a block of positions.
#[derive(Clone, Copy)]
pub(super) struct StoredBlock<'a, S> {
    pub(super) values: &'a [S],
    /// Scales `[length / 32, 32]`; empty if the format has none.
    pub(super) scales: &'a [u16],
    /// The block that is read next, to prefetch it; may be empty.
    pub(super) next: &'a [u8],
}
