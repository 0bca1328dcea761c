//! The parser: from one file's bytes to an index of offsets. No unsafe, no panic, no copy of the file's content, and no
//! allocation sized by a number from the file: the index takes 8 bytes per entry, and the smallest entry takes 14 bytes
//! in the file.
use super::error::{GgufError, shown};
use super::metadata::{self, Metadata, ValueType};
use super::tensor::{self, TensorEntry};
use crate::index::Index;
use crate::reader::{HEADER_MAX, Reader, header_too_long, name_at};

/// Most metadata entries.
pub const METADATA_COUNT_MAX: u64 = 1 << 16;
/// Most tensors of one split.
pub const TENSOR_COUNT_MAX: u64 = 1 << 16;
/// Longest metadata key in bytes (GGUF specification).
pub const KEY_LENGTH_MAX: u64 = (1 << 16) - 1;
/// Largest `general.alignment`.
pub const ALIGNMENT_MAX: u64 = 1 << 20;
/// Smallest `general.alignment` (GGUF specification), so that every float is aligned in memory.
pub const ALIGNMENT_MIN: u64 = 8;
/// Alignment if the file specifies none.
pub const ALIGNMENT_DEFAULT: u64 = 32;

/// Fewest bytes of a metadata entry: length and byte of the key, type, a one-byte value.
const METADATA_BYTES_MIN: usize = 8 + 1 + 4 + 1;

/// Checks one file's bytes and builds the index. Returns every error of [`GgufError`] that concerns a single file.
pub fn parse(bytes: &[u8]) -> Result<Index, GgufError> {
    parse_header(bytes, bytes.len())
}

/// As [`parse`], for a file of `file_length` bytes that begins with `header`. Without all of metadata and tensor table there, the error is
/// [`GgufError::Truncated`].
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
        return Err(header_too_long(header_length));
    }
    let mut by_name = tensors.clone();
    sort_by_name(header, &mut by_name, |name| GgufError::DuplicateTensor { tensor: shown(name) })?;
    drop(by_name);

    let mut index = Index { metadata, tensors, header_length, data_start: header_length };
    let alignment = alignment(Metadata::new(header, &index))?;
    // Cannot overflow: the header ends below 128 MiB and the alignment is at most 1 MiB.
    index.data_start = header_length.next_multiple_of(alignment as usize);
    let mut taken = 0;
    for &at in &index.tensors {
        let entry = TensorEntry::read(&mut Reader::from(header, at))?;
        entry.place(alignment, index.data_start, file_length, &mut taken)?;
    }
    Ok(index)
}

/// Rejects a file that is not GGUF and names what it looks like.
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

/// Versions 2 and 3 differ only in that version 3 files may be big-endian.
fn check_version(version: u32) -> Result<(), GgufError> {
    match version {
        2 | 3 => Ok(()),
        _ if version & 0xffff == 0 && version != 0 => Err(GgufError::BigEndian),
        _ => Err(GgufError::Version { version }),
    }
}

/// Skips one metadata entry and checks all of it.
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
            reason: format!("it must be a power of two from {ALIGNMENT_MIN} to {ALIGNMENT_MAX}"),
        });
    }
    Ok(alignment)
}

/// Sorts offsets of entries that begin with a name by that name; `twice` makes the error for a duplicate name.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A file written by hand: `k` = u32 7, a Q8_0 tensor `t` of 32 x 1 at byte 96.
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
    fn huge_count_does_not_allocate_beyond_the_remaining_bytes() {
        let bytes = [0; 100];
        let reader = Reader { bytes: &bytes, at: 30 };
        assert_eq!(reader.fits(u64::MAX, METADATA_BYTES_MIN), 5);
        assert_eq!(reader.fits(2, METADATA_BYTES_MIN), 2);
        assert_eq!(Reader { bytes: &bytes, at: 100 }.fits(9, 1), 0);
    }

    #[test]
    fn reader_does_not_move_when_bytes_are_missing() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert!(reader.u32("four bytes").is_err());
        assert!(reader.take(u64::MAX, "all bytes there are").is_err());
        assert_eq!(reader.take(3, "three bytes").ok(), Some(&[1, 2, 3][..]));
    }
}
