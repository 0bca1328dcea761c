//! Tables and constants that the reference and the vector kernels share.

/// Entries of IQ4_NL and IQ4_XS (ggml-common.h, kvalues_iq4nl).
pub(crate) const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of 4-bit floats (OCP Microscaling Formats v1.0, E2M1).
pub(crate) const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Independent sums of columns, so that an addition need not wait for the previous one.
pub(crate) const CHAINS: usize = 4;

/// Whether the number of bits in a nibble is odd, as a sign bit.
#[cfg(target_arch = "x86_64")]
pub(crate) const PARITIES: [u8; 16] = [0, 0x80, 0x80, 0, 0x80, 0, 0, 0x80, 0x80, 0, 0, 0x80, 0, 0x80, 0x80, 0];
/// In byte `j`, bits `j` and `4 + j`.
#[cfg(target_arch = "x86_64")]
pub(crate) const SIGN_BITS: i32 = 0x8844_2211_u32.cast_signed();
/// Carries each of these bits to bit 3 or bit 7 of its byte, by addition.
#[cfg(target_arch = "x86_64")]
pub(crate) const SIGN_CARRIES: i32 = 0x0044_6677;
