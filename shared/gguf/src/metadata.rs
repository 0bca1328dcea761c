//! Typed views of a file's metadata. Only lists of numbers and flags are copied.

use super::error::{GgufError, shown};
use super::{
    index::Index,
    reader::{ARRAY_DEPTH_MAX, Reader, name_at},
};

/// The type of a metadata value (GGUF specification).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Flag,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// The type with this number in the file.
    pub(super) fn from_number(number: u32) -> Option<Self> {
        use ValueType::*;
        const ALL: [ValueType; 13] = [U8, I8, U16, I16, U32, I32, F32, Flag, Text, Array, U64, I64, F64];
        ALL.get(number as usize).copied()
    }

    /// Bytes of a value; `None` if they vary.
    fn bytes(self) -> Option<u64> {
        use ValueType::*;
        match self {
            U8 | I8 | Flag => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            Text | Array => None,
        }
    }

    fn name(self) -> &'static str {
        use ValueType::*;
        match self {
            U8 => "a u8",
            I8 => "an i8",
            U16 => "a u16",
            I16 => "an i16",
            U32 => "a u32",
            I32 => "an i32",
            F32 => "an f32",
            Flag => "a flag",
            Text => "a text",
            Array => "an array",
            U64 => "a u64",
            I64 => "an i64",
            F64 => "an f64",
        }
    }

    fn array_name(self) -> &'static str {
        use ValueType::*;
        match self {
            U8 | I8 => "an array of 8-bit integers",
            U16 | I16 => "an array of 16-bit integers",
            U32 | I32 | U64 | I64 => "an array of integers",
            F32 | F64 => "an array of floats",
            Flag => "an array of flags",
            Text => "an array of texts",
            Array => "an array of arrays",
        }
    }
}

/// Skips and checks a value. Every element takes at least one byte, so the loop is bounded by the bytes.
pub(super) fn skip_value(reader: &mut Reader, key: &str, kind: ValueType, depth: usize) -> Result<(), GgufError> {
    const WHAT: &str = "a metadata value";
    match kind {
        ValueType::Flag => match reader.array::<1>(WHAT)? {
            [0 | 1] => Ok(()),
            _ => Err(GgufError::Value { key: shown(key.as_bytes()), what: "flag" }),
        },
        ValueType::Text => reader.text("a metadata text", u64::MAX).map(drop),
        ValueType::Array => skip_array(reader, key, depth + 1),
        _ => reader.take(kind.bytes().unwrap_or(0), WHAT).map(drop),
    }
}

fn skip_array(reader: &mut Reader, key: &str, depth: usize) -> Result<(), GgufError> {
    const WHAT: &str = "a metadata array";
    if depth > ARRAY_DEPTH_MAX {
        return Err(GgufError::Bound {
            what: "the depth of nested arrays",
            value: depth as u64,
            min: 0,
            max: ARRAY_DEPTH_MAX as u64,
            at: reader.at(),
        });
    }
    let at = reader.at();
    let number = reader.u32("the type of a metadata array")?;
    let kind =
        ValueType::from_number(number).ok_or_else(|| GgufError::ValueType { key: shown(key.as_bytes()), number })?;
    let count = reader.u64("the length of a metadata array")?;
    let Some(bytes) = kind.bytes() else {
        for _ in 0..count {
            skip_value(reader, key, kind, depth)?;
        }
        return Ok(());
    };
    let length = count.checked_mul(bytes).ok_or(GgufError::Bound {
        what: WHAT,
        value: count,
        min: 0,
        max: u64::MAX / bytes,
        at,
    })?;
    reader.take(length, WHAT).map(drop)
}

/// The metadata of one file. Each getter returns `None` if the key is missing and `WrongType` if its type differs.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    bytes: &'a [u8],
    index: &'a Index,
}

impl<'a> Metadata<'a> {
    /// The metadata in the bytes from which `parse` built `index`.
    pub fn new(bytes: &'a [u8], index: &'a Index) -> Self {
        Self { bytes, index }
    }

    /// All keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let bytes = self.bytes;
        self.index.metadata.iter().map(move |&at| std::str::from_utf8(name_at(bytes, at)).unwrap_or_default())
    }

    /// The type of a value, and a reader positioned at it.
    fn find(&self, key: &str) -> Result<Option<(ValueType, Reader<'a>)>, GgufError> {
        let entries = &self.index.metadata;
        let Ok(position) = entries.binary_search_by(|&at| name_at(self.bytes, at).cmp(key.as_bytes())) else {
            return Ok(None);
        };
        let mut reader = Reader::from(self.bytes, entries[position]);
        reader.text("a metadata key", u64::MAX)?;
        let kind = read_type(&mut reader, key)?;
        Ok(Some((kind, reader)))
    }

    /// The element type and length of an array, and a reader positioned at its first element.
    fn find_array(
        &self,
        key: &str,
        expected: &'static str,
        allowed: &[ValueType],
    ) -> Result<Option<(ValueType, usize, Reader<'a>)>, GgufError> {
        let Some((kind, mut reader)) = self.find(key)? else {
            return Ok(None);
        };
        if kind != ValueType::Array {
            return Err(wrong(key, expected, kind.name()));
        }
        let element = read_type(&mut reader, key)?;
        let count = reader.u64("the length of a metadata array")?;
        // An empty list often carries an unrelated element type.
        if !allowed.contains(&element) && count > 0 {
            return Err(wrong(key, expected, element.array_name()));
        }
        // Cannot truncate: each element takes at least one byte of the file.
        Ok(Some((element, count as usize, reader)))
    }

    /// A text.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        let Some((kind, mut reader)) = self.find(key)? else {
            return Ok(None);
        };
        if kind != ValueType::Text {
            return Err(wrong(key, "a text", kind.name()));
        }
        let text = reader.text("a metadata text", u64::MAX)?;
        match std::str::from_utf8(text) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(GgufError::Value { key: shown(key.as_bytes()), what: "UTF-8 text" }),
        }
    }

    /// A non-negative number of any integer type.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        const EXPECTED: &str = "an integer";
        let Some((kind, mut reader)) = self.find(key)? else {
            return Ok(None);
        };
        if kind == ValueType::U64 {
            return reader.u64(EXPECTED).map(Some);
        }
        let value = read_integer(&mut reader, kind)?.ok_or_else(|| wrong(key, EXPECTED, kind.name()))?;
        match u64::try_from(value) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(GgufError::Parameter {
                key: shown(key.as_bytes()),
                value: value.to_string(),
                reason: "it must not be negative".into(),
            }),
        }
    }

    /// A number of type f32 or f64.
    pub fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        const EXPECTED: &str = "a float";
        let Some((kind, mut reader)) = self.find(key)? else {
            return Ok(None);
        };
        match kind {
            ValueType::F32 => Ok(Some(f32::from_le_bytes(reader.array(EXPECTED)?).into())),
            ValueType::F64 => Ok(Some(f64::from_le_bytes(reader.array(EXPECTED)?))),
            _ => Err(wrong(key, EXPECTED, kind.name())),
        }
    }

    /// A boolean.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        let Some((kind, mut reader)) = self.find(key)? else {
            return Ok(None);
        };
        if kind != ValueType::Flag {
            return Err(wrong(key, "a flag", kind.name()));
        }
        Ok(Some(reader.array::<1>("a flag")? == [1]))
    }

    /// A list of flags.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        const EXPECTED: &str = "an array of flags";
        let Some((_, count, mut reader)) = self.find_array(key, EXPECTED, &[ValueType::Flag])? else {
            return Ok(None);
        };
        let flags = (0..count).map(|_| Ok(reader.array::<1>(EXPECTED)? == [1]));
        flags.collect::<Result<Vec<bool>, GgufError>>().map(Some)
    }

    /// A list of texts as bytes: tokens need not be UTF-8.
    pub fn texts(&self, key: &str) -> Result<Option<Texts<'a>>, GgufError> {
        let found = self.find_array(key, "an array of texts", &[ValueType::Text])?;
        Ok(found.map(|(_, left, reader)| Texts { reader, left }))
    }

    /// A list of f32.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        let found = self.find_array(key, "an array of f32", &[ValueType::F32])?;
        let Some((_, count, mut reader)) = found else {
            return Ok(None);
        };
        let bytes = reader.take(count as u64 * 4, "an array of f32")?;
        let (floats, _) = bytes.as_chunks::<4>();
        Ok(Some(floats.iter().map(|&b| f32::from_le_bytes(b)).collect()))
    }

    /// A list of integers of 32 or 64 bits. No known file has lists of narrower integers, and widening them to 64 bits
    /// would take up to eight times the bytes of the file. A u64 beyond `i64::MAX` is rejected.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        use ValueType::{I32, I64, U32, U64};
        const EXPECTED: &str = "an array of 32-bit or 64-bit integers";
        let Some((kind, count, mut reader)) = self.find_array(key, EXPECTED, &[I32, U32, I64, U64])? else {
            return Ok(None);
        };
        let mut integers = Vec::with_capacity(count);
        for _ in 0..count {
            let value =
                if kind == U64 { i64::try_from(reader.u64(EXPECTED)?).ok() } else { read_integer(&mut reader, kind)? };
            integers.push(value.ok_or_else(|| wrong(key, EXPECTED, "an array with a number above 2^63"))?);
        }
        Ok(Some(integers))
    }
}

/// The value as i64, for all integer types but u64; `None` for another type.
fn read_integer(reader: &mut Reader, kind: ValueType) -> Result<Option<i64>, GgufError> {
    const WHAT: &str = "an integer";
    Ok(Some(match kind {
        ValueType::U8 => u8::from_le_bytes(reader.array(WHAT)?).into(),
        ValueType::I8 => i8::from_le_bytes(reader.array(WHAT)?).into(),
        ValueType::U16 => u16::from_le_bytes(reader.array(WHAT)?).into(),
        ValueType::I16 => i16::from_le_bytes(reader.array(WHAT)?).into(),
        ValueType::U32 => u32::from_le_bytes(reader.array(WHAT)?).into(),
        ValueType::I32 => i32::from_le_bytes(reader.array(WHAT)?).into(),
        ValueType::I64 => i64::from_le_bytes(reader.array(WHAT)?),
        _ => return Ok(None),
    }))
}

fn read_type(reader: &mut Reader, key: &str) -> Result<ValueType, GgufError> {
    let number = reader.u32("the type of a metadata value")?;
    ValueType::from_number(number).ok_or_else(|| GgufError::ValueType { key: shown(key.as_bytes()), number })
}

fn wrong(key: &str, expected: &'static str, found: &'static str) -> GgufError {
    GgufError::WrongType { key: shown(key.as_bytes()), expected, found }
}

/// The texts of a list, in order.
#[derive(Clone)]
pub struct Texts<'a> {
    reader: Reader<'a>,
    left: usize,
}

impl<'a> Iterator for Texts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        // `parse` has already read every element once.
        Some(self.reader.text("a metadata text", u64::MAX).unwrap_or_default())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Texts<'_> {}
