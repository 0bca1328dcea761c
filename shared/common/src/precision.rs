//! Number formats of the KV cache and of all-reduce payloads.
use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Format of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvFormat {
    /// 4 bytes per value: for comparison with references.
    F32,
    /// 2 bytes per value.
    #[default]
    F16,
    /// int8 with an f16 scale for each 32 values of a head.
    Q8,
    /// 4 bits with an f16 scale for each 32 values of a head.
    Q4,
}

impl KvFormat {
    /// Bytes of the keys or values of one position and head.
    pub fn head_bytes(self, head_length: usize) -> usize {
        match self {
            Self::F32 => 4 * head_length,
            Self::F16 => 2 * head_length,
            Self::Q8 => head_length + 2 * head_length.div_ceil(32),
            Self::Q4 => 18 * head_length.div_ceil(32),
        }
    }
}

impl FromStr for KvFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let formats = [Self::F32, Self::F16, Self::Q8, Self::Q4];
        let found = formats.into_iter().find(|format| format.to_string() == text);
        found.ok_or_else(|| format!("unknown KV cache format {text:?}; use f16, q8_0, q4_0 or f32"))
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8_0",
            Self::Q4 => "q4_0",
        })
    }
}

/// Format of partial sums in an all-reduce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exchange {
    /// 4 bytes per value, no rounding.
    #[default]
    F32,
    /// Blocks of 32 int8 with an f16 scale: 34 bytes for 32 values.
    Q80,
    /// 2 bytes per value.
    F16,
}

impl Exchange {
    /// Format of hidden states between stages: f16 if partial sums may be rounded, never smaller, because their
    /// rounding errors propagate through all later layers. f32 if the values may exceed what f16 holds (`is_wide`).
    pub fn hand_over(self, is_wide: bool) -> Self {
        match self {
            Self::F16 | Self::Q80 if !is_wide => Self::F16,
            Self::F32 | Self::F16 | Self::Q80 => Self::F32,
        }
    }
}

impl FromStr for Exchange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let formats = [Self::F32, Self::F16, Self::Q80];
        let found = formats.into_iter().find(|format| format.to_string() == text);
        found.ok_or_else(|| format!("unknown exchange format {text:?}; use f32, f16 or q80"))
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q80 => "q80",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_states_between_stages_are_never_q80_and_wide_ones_f32() {
        let of =
            |is_wide: bool| [Exchange::F32, Exchange::F16, Exchange::Q80].map(|exchange| exchange.hand_over(is_wide));
        assert_eq!(of(false), [Exchange::F32, Exchange::F16, Exchange::F16]);
        assert_eq!(of(true), [Exchange::F32; 3]);
    }
}
