//! The parser: one file's bytes to an index of offsets. No unsafe, no panic, no copy of what the file holds, and no
//! allocation by a number read from it: the index takes 8 bytes an entry, of which the smallest takes 14 in the file.

use super::error::{GgufError, shown};
use super::metadata::{self, Metadata, ValueType};
use super::tensor::{self, TensorEntry};

/// Most bytes of metadata and tensor table together (1 GiB; offsets in it are 32 bits).
pub const HEADER_MAX: usize = 1 << 30;
/// Most metadata entries.
pub const METADATA_COUNT_MAX: u64 = 1 << 16;
/// Most tensors of one split.
pub const TENSOR_COUNT_MAX: u64 = 1 << 16;
/// Longest metadata key in bytes (GGUF specification).
pub const KEY_LENGTH_MAX: u64 = (1 << 16) - 1;
/// Deepest nesting of arrays.
pub const ARRAY_DEPTH_MAX: usize = 4;
/// Largest `general.alignment`.
pub const ALIGNMENT_MAX: u64 = 1 << 20;
/// Smallest `general.alignment` (GGUF specification), so that every float is aligned in memory.
pub const ALIGNMENT_MIN: u64 = 8;
/// Alignment where the file names none.
pub const ALIGNMENT_DEFAULT: u64 = 32;

/// Fewest bytes of a metadata entry: length and byte of the key, type, a one-byte value.
const METADATA_BYTES_MIN: usize = 8 + 1 + 4 + 1;

/// Where things are in a file that [`parse`] has checked.
#[derive(Debug)]
pub struct Index {
    /// Offset of each metadata entry, sorted by key.
    pub(super) metadata: Vec<u32>,
    /// Offset of each tensor entry, in file order.
    pub(super) tensors: Vec<u32>,
    /// Bytes of metadata and tensor table from the start of the file.
    pub(super) header_length: usize,
    /// Where the tensor data start: `header_length` rounded up to the alignment.
    pub(super) data_start: usize,
}

impl Index {
    /// Bytes of metadata and tensor table from the start of the file.
    pub fn header_length(&self) -> usize {
        self.header_length
    }

    /// Number of tensors.
    pub fn tensor_count(&self) -> usize {
        self.tensors.len()
    }
}

/// Checks one file's bytes and says where everything is. Every error of [`GgufError`] that concerns one file alone.
pub fn parse(bytes: &[u8]) -> Result<Index, GgufError> {
    parse_header(bytes, bytes.len())
}

/// As [`parse`] of a file of `file_length` bytes of which `header` holds at least metadata and tensor table.
pub(super) fn parse_header(header: &[u8], file_length: usize) -> Result<Index, GgufError> {
    check_magic(header)?;
    let mut reader = Reader::new(header);
    reader.at = 4;
    check_version(reader.u32("the version")?)?;
    let tensor_count = reader.u64_within("the number of tensors", 0, TENSOR_COUNT_MAX)?;
    let metadata_count = reader.u64_within("the number of metadata entries", 0, METADATA_COUNT_MAX)?;

    let mut metadata = Vec::with_capacity(reader.fits(metadata_count, METADATA_BYTES_MIN));
    for _ in 0..metadata_count {
        metadata.push(reader.offset()?);
        skip_metadata(&mut reader)?;
    }
    sort_by_name(header, &mut metadata, |name| GgufError::DuplicateKey { key: shown(name) })?;

    let mut tensors = Vec::with_capacity(reader.fits(tensor_count, tensor::ENTRY_BYTES_MIN));
    for _ in 0..tensor_count {
        tensors.push(reader.offset()?);
        TensorEntry::read(&mut reader)?;
    }
    let header_length = reader.at;
    if header_length > HEADER_MAX {
        return Err(reader.too_long());
    }
    let mut by_name = tensors.clone();
    sort_by_name(header, &mut by_name, |name| GgufError::DuplicateTensor { tensor: shown(name) })?;
    drop(by_name);

    let mut index = Index { metadata, tensors, header_length, data_start: header_length };
    let alignment = alignment(Metadata::new(header, &index))?;
    // Cannot overflow: the header ends below 1 GiB and the alignment is at most 1 MiB.
    index.data_start = header_length.next_multiple_of(alignment as usize);
    for &at in &index.tensors {
        TensorEntry::read(&mut Reader::from(header, at))?.place(alignment, index.data_start, file_length)?;
    }
    Ok(index)
}

/// Refuses what is no GGUF file, saying what it looks like.
fn check_magic(bytes: &[u8]) -> Result<(), GgufError> {
    const CONVERT: &str = "convert it to GGUF";
    const DOWNLOAD: &str = "download the model itself";
    if bytes.is_empty() {
        return Err(GgufError::Empty);
    }
    if bytes.starts_with(b"GGUF") || b"GGUF".starts_with(bytes) {
        return Ok(());
    }
    let (found, next) = if bytes.len() > 9 && &bytes[8..10] == b"{\"" {
        ("a safetensors file", CONVERT)
    } else if bytes.starts_with(b"PK\x03\x04") {
        ("a zip archive or PyTorch checkpoint", CONVERT)
    } else if [b"lmgg", b"fmgg", b"tjgg"].iter().any(|magic| bytes.starts_with(*magic)) {
        ("a GGML file from before GGUF", CONVERT)
    } else if bytes.starts_with(b"version https://git-lfs") {
        ("a Git LFS pointer", "run git lfs pull")
    } else if bytes.starts_with(b"<!") || bytes.starts_with(b"<html") {
        ("a web page", DOWNLOAD)
    } else if bytes.iter().take(64).all(|b| (b' '..0x7f).contains(b) || b"\t\r\n".contains(b)) {
        ("a text file", DOWNLOAD)
    } else {
        ("something else (it does not start with GGUF)", "name a .gguf file")
    };
    Err(GgufError::NotGguf { found, next })
}

/// Versions 2 and 3 differ only in that 3 may be big-endian.
fn check_version(version: u32) -> Result<(), GgufError> {
    match version {
        2 | 3 => Ok(()),
        _ if version & 0xffff == 0 && version != 0 => Err(GgufError::BigEndian),
        _ => Err(GgufError::Version { version }),
    }
}

/// Moves past one metadata entry, checking all of it.
fn skip_metadata(reader: &mut Reader) -> Result<(), GgufError> {
    let key = reader.name("a metadata key", KEY_LENGTH_MAX)?;
    let number = reader.u32("the type of a metadata value")?;
    let kind =
        ValueType::from_number(number).ok_or_else(|| GgufError::ValueType { key: shown(key.as_bytes()), number })?;
    metadata::skip_value(reader, key, kind, 0)
}

/// `general.alignment`, or its default.
fn alignment(metadata: Metadata) -> Result<u64, GgufError> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.unsigned(KEY)?.unwrap_or(ALIGNMENT_DEFAULT);
    if !alignment.is_power_of_two() || !(ALIGNMENT_MIN..=ALIGNMENT_MAX).contains(&alignment) {
        return Err(GgufError::Parameter {
            key: KEY.into(),
            value: alignment.to_string(),
            reason: format!("allowed are powers of two from {ALIGNMENT_MIN} to {ALIGNMENT_MAX}"),
        });
    }
    Ok(alignment)
}

/// Sorts offsets of entries that start with a name by that name; the error is for a name that is there twice.
fn sort_by_name(bytes: &[u8], entries: &mut [u32], twice: impl Fn(&[u8]) -> GgufError) -> Result<(), GgufError> {
    entries.sort_unstable_by(|&a, &b| name_at(bytes, a).cmp(name_at(bytes, b)));
    for pair in entries.windows(2) {
        let name = name_at(bytes, pair[0]);
        if name == name_at(bytes, pair[1]) {
            return Err(twice(name));
        }
    }
    Ok(())
}

/// The name with which a checked entry starts.
pub(super) fn name_at(bytes: &[u8], at: u32) -> &[u8] {
    Reader::from(bytes, at).text("a name", u64::MAX).unwrap_or_default()
}

/// A cursor that ends where the bytes do.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// At the start of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// At offset `at` of an index.
    pub(super) fn from(bytes: &'a [u8], at: u32) -> Self {
        Self { bytes, at: at as usize }
    }

    /// Where it stands.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// How many of `count` entries of at least `smallest` bytes the bytes left can hold.
    fn fits(&self, count: u64, smallest: usize) -> usize {
        let most = self.bytes.len().saturating_sub(self.at) / smallest;
        usize::try_from(count).unwrap_or(usize::MAX).min(most)
    }

    /// Where it stands, as an index keeps it.
    fn offset(&self) -> Result<u32, GgufError> {
        if self.at > HEADER_MAX {
            return Err(self.too_long());
        }
        Ok(self.at as u32)
    }

    fn too_long(&self) -> GgufError {
        GgufError::Bound {
            what: "the length of metadata and tensor table",
            value: self.at as u64,
            min: 0,
            max: HEADER_MAX as u64,
            at: self.at,
        }
    }

    /// The next `length` bytes.
    pub(super) fn take(&mut self, length: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let taken = usize::try_from(length)
            .ok()
            .and_then(|length| self.at.checked_add(length))
            .and_then(|end| Some((end, self.bytes.get(self.at..end)?)));
        let Some((end, bytes)) = taken else {
            return Err(GgufError::Truncated { what, at: self.at, length: self.bytes.len() });
        };
        self.at = end;
        Ok(bytes)
    }

    /// The next bytes as an array.
    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    /// The next 4 bytes as a number.
    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// The next 8 bytes as a number.
    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// As `u64`, refused outside `min..=max`.
    pub(super) fn u64_within(&mut self, what: &'static str, min: u64, max: u64) -> Result<u64, GgufError> {
        let at = self.at;
        let value = self.u64(what)?;
        if !(min..=max).contains(&value) {
            return Err(GgufError::Bound { what, value, min, max, at });
        }
        Ok(value)
    }

    /// A length and as many bytes.
    pub(super) fn text(&mut self, what: &'static str, max: u64) -> Result<&'a [u8], GgufError> {
        let length = self.u64_within(what, 0, max)?;
        self.take(length, what)
    }

    /// A text that is UTF-8 and not empty.
    pub(super) fn name(&mut self, what: &'static str, max: u64) -> Result<&'a str, GgufError> {
        let at = self.at;
        match std::str::from_utf8(self.text(what, max)?) {
            Ok(name) if !name.is_empty() => Ok(name),
            _ => Err(GgufError::Name { what, at }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file worked out by hand: `k` = u32 7, a Q8_0 tensor `t` of 32 x 1 at byte 96.
    fn file() -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(b"\x01\0\0\0\0\0\0\0k\x04\0\0\0\x07\0\0\0");
        bytes.extend(b"\x01\0\0\0\0\0\0\0t\x01\0\0\0\x20\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(bytes.len(), 74);
        bytes.resize(96 + 34, 0);
        bytes
    }

    #[test]
    fn a_file_made_by_hand_is_indexed() -> Result<(), GgufError> {
        let bytes = file();
        let index = parse(&bytes)?;
        assert_eq!(index.metadata, [24]);
        assert_eq!(index.tensors, [41]);
        assert_eq!((index.header_length, index.data_start), (74, 96));
        assert_eq!(Metadata::new(&bytes, &index).unsigned("k")?, Some(7));
        Ok(())
    }

    #[test]
    fn a_truncated_file_is_refused_at_every_byte() {
        let bytes = file();
        for length in 0..bytes.len() {
            assert!(parse(&bytes[..length]).is_err(), "cut at byte {length}");
        }
    }

    #[test]
    fn a_huge_count_reserves_no_more_than_the_bytes_left_justify() {
        let bytes = [0; 100];
        let reader = Reader { bytes: &bytes, at: 30 };
        assert_eq!(reader.fits(u64::MAX, METADATA_BYTES_MIN), 5);
        assert_eq!(reader.fits(2, METADATA_BYTES_MIN), 2);
        assert_eq!(Reader { bytes: &bytes, at: 100 }.fits(9, 1), 0);
    }

    #[test]
    fn a_reader_stays_where_it_is_when_bytes_are_missing() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert!(reader.u32("four bytes").is_err());
        assert!(reader.take(u64::MAX, "all bytes there are").is_err());
        assert_eq!(reader.take(3, "three bytes").ok(), Some(&[1, 2, 3][..]));
    }
}
