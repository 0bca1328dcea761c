//! Weight formats of GGUF tensors: elements and bytes of a block. No arithmetic on weights.

use serde::{Deserialize, Serialize};

/// A weight format (ggml type) that Bramble can compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BlockFormat {
    /// 32-bit floats, little-endian.
    F32,
    /// IEEE half floats.
    F16,
    /// The upper 16 bits of an f32.
    BF16,
    /// f16 scale and 32 int8.
    Q8_0,
    /// f16 scale and 32 4-bit values minus 8.
    Q4_0,
    /// f16 scale and minimum, 32 nibbles.
    Q4_1,
    /// f16 scale, 32 fifth bits, 32 nibbles; values minus 16.
    Q5_0,
    /// f16 scale and minimum, 32 fifth bits, 32 nibbles.
    Q5_1,
    /// Super-block of 256: 16 sub-blocks of 16 with 4-bit scale and minimum, 2-bit values.
    Q2K,
    /// Super-block of 256: 16 sub-blocks of 16 with 6-bit scale, 3-bit values minus 4.
    Q3K,
    /// Super-block of 256: 8 sub-blocks of 32 with 6-bit scale and minimum, 4-bit values.
    Q4K,
    /// As `Q4K` with 5-bit values.
    Q5K,
    /// Super-block of 256: 16 sub-blocks of 16 with int8 scale, 6-bit values minus 32.
    Q6K,
    /// f16 scale and 32 4-bit indices into a table of 16 values.
    Iq4Nl,
    /// Super-block of 256: 16 sub-blocks with 6-bit scales, 4-bit indices into the same table.
    Iq4Xs,
    /// Power of two and 32 4-bit floats.
    Mxfp4,
    /// Super-block of 256: 8 sub-blocks of 32 with 4-bit scales, 8-bit indices of 4 magnitudes, 7 bits for 8 signs.
    Iq3Xxs,
    /// Super-block of 256: 8 sub-blocks of 32 with 4-bit scales, 8-bit indices of 8 magnitudes, 7 bits for 8 signs.
    Iq2Xxs,
    /// Super-block of 256: 8 sub-blocks of 32 with 4-bit scales, 9-bit indices of 4 magnitudes, signs.
    Iq3S,
    /// Super-block of 256: 16 sub-blocks of 16 with 4-bit scales, 10-bit indices of 8 magnitudes, signs.
    Iq2S,
    /// Super-block of 256: 16 sub-blocks of 16 with 4-bit scales, 9-bit indices of 8 magnitudes, 7 bits for 8 signs.
    Iq2Xs,
}

impl BlockFormat {
    /// Every format, in the order of the enum.
    pub const ALL: [Self; 21] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
        Self::Iq3Xxs,
        Self::Iq2Xxs,
        Self::Iq3S,
        Self::Iq2S,
        Self::Iq2Xs,
    ];

    /// The format of a ggml type number; `None` if Bramble cannot compute with it (ggml.h, enum ggml_type).
    pub const fn from_ggml_type(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            16 => Self::Iq2Xxs,
            17 => Self::Iq2Xs,
            18 => Self::Iq3Xxs,
            20 => Self::Iq4Nl,
            21 => Self::Iq3S,
            22 => Self::Iq2S,
            23 => Self::Iq4Xs,
            30 => Self::BF16,
            39 => Self::Mxfp4,
            _ => return None,
        })
    }

    /// The ggml type number.
    pub const fn ggml_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Iq2Xxs => 16,
            Self::Iq2Xs => 17,
            Self::Iq3Xxs => 18,
            Self::Iq4Nl => 20,
            Self::Iq3S => 21,
            Self::Iq2S => 22,
            Self::Iq4Xs => 23,
            Self::BF16 => 30,
            Self::Mxfp4 => 39,
        }
    }

    /// The name as llama.cpp prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
            Self::Mxfp4 => "MXFP4",
            Self::Iq3Xxs => "IQ3_XXS",
            Self::Iq2Xxs => "IQ2_XXS",
            Self::Iq3S => "IQ3_S",
            Self::Iq2S => "IQ2_S",
            Self::Iq2Xs => "IQ2_XS",
        }
    }

    /// Elements in a block.
    pub const fn block_length(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Iq4Nl | Self::Mxfp4 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs => 256,
            Self::Iq3Xxs | Self::Iq2Xxs | Self::Iq3S | Self::Iq2S | Self::Iq2Xs => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q2K => 84,
            Self::Q3K | Self::Iq3S => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq4Xs => 136,
            Self::Mxfp4 => 17,
            Self::Iq3Xxs => 98,
            Self::Iq2Xxs => 66,
            Self::Iq2S => 82,
            Self::Iq2Xs => 74,
        }
    }

    /// Whether the kernels multiply it with int8 activations (otherwise with f32 activations).
    pub const fn is_quantised(self) -> bool {
        self.block_length() > 1
    }

    /// Bytes of a row of `columns` elements; `None` if `columns` is not a multiple of the block or the result
    /// overflows.
    pub const fn row_bytes(self, columns: usize) -> Option<usize> {
        if !columns.is_multiple_of(self.block_length()) {
            return None;
        }
        (columns / self.block_length()).checked_mul(self.block_bytes())
    }
}
