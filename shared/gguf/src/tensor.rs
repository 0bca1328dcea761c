//! One entry of the tensor table: name, format, dimensions and the location of its bytes. Holds no weights.

use super::block::BlockFormat;
use super::error::{GgufError, shown};
use super::reader::Reader;

/// Most dimensions of a tensor.
pub const DIMENSION_COUNT_MAX: u32 = 4;
/// Longest name of a tensor in bytes (GGUF specification).
pub const TENSOR_NAME_MAX: u64 = 64;

/// Fewest bytes of an entry: length and byte of the name, number of dimensions, one dimension, type, offset.
pub(super) const ENTRY_BYTES_MIN: usize = 8 + 1 + 4 + 8 + 4 + 8;

/// A tensor of a model, located inside the file as [`crate::read::parse`] has checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor<'a> {
    /// As ggml names it.
    pub name: &'a str,
    /// Storage format of its weights.
    pub format: BlockFormat,
    /// In ggml order: `[0]` is the length of a row; missing dimensions are 1.
    pub dimensions: [u64; 4],
    /// Index of the split that holds it.
    pub split: usize,
    /// Its first byte in that split's file.
    pub offset: usize,
    /// All its bytes.
    pub byte_length: usize,
}

impl Tensor<'_> {
    /// Elements of a row.
    pub fn columns(&self) -> usize {
        self.dimensions[0] as usize
    }

    /// Product of all dimensions but the first.
    pub fn rows(&self) -> usize {
        self.dimensions[1..].iter().product::<u64>() as usize
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.columns()).expect("rows end with a block: checked when the file was read")
    }
}

/// An entry as stored in the file; only its own numbers are checked.
pub(super) struct TensorEntry<'a> {
    name: &'a str,
    format: BlockFormat,
    dimensions: [u64; 4],
    byte_length: usize,
    /// Offset within the tensor data.
    offset: u64,
}

impl<'a> TensorEntry<'a> {
    /// Reads and checks one entry.
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, GgufError> {
        let name = reader.name("the name of a tensor", TENSOR_NAME_MAX)?;
        let dimensions = read_dimensions(reader, name)?;
        let number = reader.u32("the type of a tensor")?;
        let format = BlockFormat::from_ggml_type(number).ok_or_else(|| GgufError::TensorType {
            tensor: shown(name.as_bytes()),
            number,
            name: unsupported_name(number),
        })?;
        let offset = reader.u64("the offset of a tensor")?;
        let byte_length = byte_length(name, format, &dimensions)?;
        Ok(Self { name, format, dimensions, byte_length, offset })
    }

    /// Checks that the bytes lie inside a file of `file_length`, of which earlier tensors have taken `taken`. Tensors that share
    /// bytes could have any number of bytes to be hashed.
    pub(super) fn place(
        self,
        alignment: u64,
        data_start: usize,
        file_length: usize,
        taken: &mut u64,
    ) -> Result<(), GgufError> {
        if !self.offset.is_multiple_of(alignment) {
            return Err(GgufError::Misaligned { tensor: shown(self.name.as_bytes()), offset: self.offset, alignment });
        }
        let start = (data_start as u64).saturating_add(self.offset);
        let end = start.saturating_add(self.byte_length as u64);
        if end > file_length as u64 {
            return Err(GgufError::OutsideFile {
                tensor: shown(self.name.as_bytes()),
                bytes: self.byte_length as u64,
                start,
                length: file_length as u64,
            });
        }
        *taken += self.byte_length as u64;
        if *taken > (file_length - data_start) as u64 {
            return Err(GgufError::Overlapping { tensor: shown(self.name.as_bytes()) });
        }
        Ok(())
    }

    /// The tensor of a checked entry.
    pub(super) fn into_tensor(self, split: usize, data_start: usize) -> Tensor<'a> {
        Tensor {
            name: self.name,
            format: self.format,
            dimensions: self.dimensions,
            split,
            // Lies within the file and therefore fits usize: `place` has checked it.
            offset: data_start + self.offset as usize,
            byte_length: self.byte_length,
        }
    }
}

fn read_dimensions(reader: &mut Reader, name: &str) -> Result<[u64; 4], GgufError> {
    let refuse = |reason| GgufError::Dimensions { tensor: shown(name.as_bytes()), reason };
    let count = reader.u32("the number of dimensions of a tensor")?;
    match count {
        0 => return Err(refuse("no dimension")),
        1..=DIMENSION_COUNT_MAX => {}
        _ => return Err(refuse("more than 4 dimensions")),
    }
    let mut dimensions = [1; 4];
    for dimension in &mut dimensions[..count as usize] {
        *dimension = reader.u64("a dimension of a tensor")?;
        if *dimension == 0 {
            return Err(refuse("a dimension of 0"));
        }
    }
    Ok(dimensions)
}

/// Bytes of the whole tensor.
fn byte_length(name: &str, format: BlockFormat, dimensions: &[u64; 4]) -> Result<usize, GgufError> {
    let tensor = || shown(name.as_bytes());
    let too_large = || GgufError::Dimensions { tensor: tensor(), reason: "dimensions whose product is too large" };
    let columns = usize::try_from(dimensions[0]).map_err(|_| too_large())?;
    if !columns.is_multiple_of(format.block_length()) {
        return Err(GgufError::RowBlocks {
            tensor: tensor(),
            columns: dimensions[0],
            format: format.name(),
            block: format.block_length(),
        });
    }
    let row_bytes = format.row_bytes(columns).ok_or_else(too_large)?;
    dimensions[1..]
        .iter()
        .try_fold(1usize, |rows, &d| rows.checked_mul(usize::try_from(d).ok()?))
        .and_then(|rows| rows.checked_mul(row_bytes))
        .ok_or_else(too_large)
}

/// The name of a type that Bramble does not support: ggml's or, from 97 on, that of ik_llama.cpp (their ggml.h, enum
/// ggml_type).
fn unsupported_name(number: u32) -> &'static str {
    match number {
        4 | 5 => "Q4_2 or Q4_3, withdrawn",
        9 => "Q8_1",
        15 => "Q8_K",
        19 => "IQ1_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31..=33 => "Q4_0 repacked, withdrawn",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36..=38 => "IQ4_NL repacked, withdrawn",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        97..=99 => "Q8 interleaved, of ik_llama.cpp only",
        133 => "Q6_0, of ik_llama.cpp only",
        134 => "IQ1_BN, of ik_llama.cpp only",
        135 => "IQ2_BN, of ik_llama.cpp only",
        137 => "IQ2_K, of ik_llama.cpp only",
        138 => "IQ3_K, of ik_llama.cpp only",
        139 => "IQ4_K, of ik_llama.cpp only",
        140 => "IQ5_K, of ik_llama.cpp only",
        141 => "IQ6_K, of ik_llama.cpp only",
        142 => "IQ2_TN, of ik_llama.cpp only",
        143 => "IQ1_TN, of ik_llama.cpp only",
        144 => "IQ4_KS, of ik_llama.cpp only",
        145 => "IQ2_KS, of ik_llama.cpp only",
        146 => "IQ4_KSS, of ik_llama.cpp only",
        136 | 147..=151 => "Q8_K variant, of ik_llama.cpp only",
        152 => "IQ5_KS, of ik_llama.cpp only",
        153 => "IQ2_KT, of ik_llama.cpp only",
        154 => "IQ3_KT, of ik_llama.cpp only",
        155 => "IQ4_KT, of ik_llama.cpp only",
        156 => "IQ3_KS, of ik_llama.cpp only",
        157 => "IQ2_KL, of ik_llama.cpp only",
        158 => "IQ1_KT, of ik_llama.cpp only",
        202..=399 => "rows interleaved, of ik_llama.cpp only",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ggml_type_is_supported_or_named() {
        for number in 0..=42 {
            let format = BlockFormat::from_ggml_type(number);
            assert_eq!(format.is_none(), unsupported_name(number) != "unknown", "type {number}");
            assert!(format.is_none_or(|format| format.ggml_type() == number));
        }
        assert_eq!(unsupported_name(43), "unknown");
    }

    #[test]
    fn types_of_ik_llama_cpp_are_refused_by_name() {
        for number in (97..=99).chain(133..=158).chain(202..=399) {
            assert_eq!(BlockFormat::from_ggml_type(number), None);
            assert!(unsupported_name(number).ends_with(", of ik_llama.cpp only"), "type {number}");
        }
        let (tensor, number) = ("blk.0.ffn_up.weight".to_owned(), 139);
        let message = GgufError::TensorType { tensor, number, name: unsupported_name(number) }.to_string();
        for part in ["blk.0.ffn_up.weight", "139 (IQ4_K, of ik_llama.cpp only)", "use a file in", "IQ3_XXS"] {
            assert!(message.contains(part), "{message}");
        }
    }
}
