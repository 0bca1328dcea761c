//! One model on disk: a single file or several splits. Metadata and tensor table are copied before they are checked, so a
//! concurrent write cannot invalidate the checks. Nothing is mapped: a disk that cannot be read, or a file that becomes
//! shorter, is an error and not a signal that ends the process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::error::{GgufError, shown};
use super::metadata::Metadata;
use super::stamp::Stamp;
use super::tensor::{Tensor, TensorEntry};
use super::{
    index::Index,
    read,
    reader::{HEADER_MAX, Reader, header_too_long, name_at},
};

/// Most parts of a split model.
pub const SPLIT_COUNT_MAX: u64 = 1024;

/// Bytes that are read first: the header of a model with a small vocabulary.
const READ_FIRST: usize = 1 << 20;

const SPLIT_NO: &str = "split.no";
const SPLIT_COUNT: &str = "split.count";
const SPLIT_TENSORS: &str = "split.tensors.count";

/// An open model. All its tensors lie inside their files.
#[derive(Debug)]
pub struct GgufFile {
    splits: Vec<Split>,
    /// The tensor entries, sorted by tensor name.
    by_name: Vec<Entry>,
}

/// Where the entry of a tensor is: number of the split, and offset in its header.
#[derive(Clone, Copy, Debug)]
struct Entry {
    split: u16,
    at: u32,
}

#[derive(Debug)]
struct Split {
    bytes: Bytes,
    /// Metadata and tensor table.
    header: Box<[u8]>,
    index: Index,
}

#[derive(Debug)]
enum Bytes {
    OnDisk(File, usize),
    Owned(Vec<u8>),
}

impl GgufFile {
    /// Opens a model by its only file or its first split; looks for the other splits in the same folder.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let in_file = |source| GgufError::InFile { path: path.to_path_buf(), source: Box::new(source) };
        let first = Split::open(path)?;
        let (part, count) = first.place().map_err(in_file)?;
        let names = SplitNames::of(path);
        if part > 0 {
            return Err(in_file(GgufError::LaterSplit {
                part: part + 1,
                count,
                first: names.map(|names| names.path(0, count)),
            }));
        }
        let mut splits = vec![first];
        if count > 1 {
            let names = names
                .filter(|names| names.path(0, count) == path)
                .ok_or_else(|| in_file(GgufError::SplitName { count }))?;
            for part in 1..count {
                let path = names.path(part, count);
                if !path.exists() {
                    return Err(in_file(GgufError::MissingSplit { part: part + 1, count, path }));
                }
                splits.push(Split::open(&path)?);
            }
        }
        Self::of_splits(splits).map_err(in_file)
    }

    /// As `open`, for bytes in memory.
    pub fn from_bytes(splits: Vec<Vec<u8>>) -> Result<Self, GgufError> {
        let mut parts = Vec::new();
        for bytes in splits {
            let (header, index) = Split::parse(&bytes)?;
            parts.push(Split { bytes: Bytes::Owned(bytes), header, index });
        }
        Self::of_splits(parts)
    }

    /// Checks that the splits are the parts of one model.
    fn of_splits(splits: Vec<Split>) -> Result<Self, GgufError> {
        let first = splits.first().ok_or(GgufError::Empty)?;
        let (_, count) = first.place()?;
        expect_equal(SPLIT_COUNT, count, splits.len() as u64)?;
        for (number, split) in splits.iter().enumerate() {
            let (part, of) = split.place()?;
            expect_equal(SPLIT_NO, part, number as u64)?;
            expect_equal(SPLIT_COUNT, of, count)?;
        }
        let tensor_count: usize = splits.iter().map(|split| split.index.tensors.len()).sum();
        if count > 1 {
            let announced = first.metadata().unsigned(SPLIT_TENSORS)?;
            let announced = announced.ok_or_else(|| GgufError::MissingKey { key: SPLIT_TENSORS.into() })?;
            expect_equal(SPLIT_TENSORS, tensor_count as u64, announced)?;
        }
        let mut by_name = Vec::with_capacity(tensor_count);
        for (number, split) in splits.iter().enumerate() {
            // There are at most SPLIT_COUNT_MAX.
            by_name.extend(split.index.tensors.iter().map(|&at| Entry { split: number as u16, at }));
        }
        let file = Self { splits, by_name };
        file.sorted()
    }

    /// Sorts the tensors and rejects one that occurs in two splits.
    fn sorted(mut self) -> Result<Self, GgufError> {
        let mut by_name = std::mem::take(&mut self.by_name);
        by_name.sort_unstable_by(|&a, &b| self.name(a).cmp(self.name(b)));
        for pair in by_name.windows(2) {
            if self.name(pair[0]) == self.name(pair[1]) {
                return Err(GgufError::DuplicateTensor { tensor: shown(self.name(pair[0])) });
            }
        }
        self.by_name = by_name;
        Ok(self)
    }

    fn name(&self, entry: Entry) -> &[u8] {
        name_at(&self.splits[usize::from(entry.split)].header, entry.at)
    }

    /// The metadata of the first split, which holds the metadata of the model.
    pub fn metadata(&self) -> Metadata<'_> {
        self.splits[0].metadata()
    }

    /// Every tensor, in file order.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.splits
            .iter()
            .enumerate()
            .flat_map(|(number, split)| split.index.tensors.iter().map(move |&at| split.tensor(number, at)))
    }

    /// A tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let position = self.by_name.binary_search_by(|&entry| self.name(entry).cmp(name.as_bytes())).ok()?;
        let entry = self.by_name[position];
        let number = usize::from(entry.split);
        Some(self.splits[number].tensor(number, entry.at))
    }

    /// Reads bytes of one split's file, starting at `offset`.
    ///
    /// # Errors
    /// The file cannot be read, or has become shorter.
    pub fn read(&self, split: usize, offset: usize, out: &mut [u8]) -> io::Result<()> {
        match &self.splits[split].bytes {
            Bytes::OnDisk(file, _) => file.read_exact_at(out, offset as u64),
            Bytes::Owned(bytes) => {
                let bytes = bytes.get(offset..).and_then(|bytes| bytes.get(..out.len()));
                out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }

    /// Reads all bytes of a tensor of this file.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn tensor_bytes(&self, tensor: &Tensor) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; tensor.byte_length];
        self.read(tensor.split, tensor.offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Identity of the header: SHA-256 over metadata and tensor table of each split and the size of each split. Files
    /// with different weights may have the same identity; [`super::content`] distinguishes them.
    pub fn identity(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for split in &self.splits {
            hash.update((split.header.len() as u64).to_le_bytes());
            hash.update(&split.header);
            hash.update((split.bytes.length() as u64).to_le_bytes());
        }
        hash.finalize().into()
    }

    /// The stamp of each split's open file; empty for a model in memory.
    ///
    /// # Errors
    /// The file system returns an error.
    pub fn stamps(&self) -> io::Result<Vec<Stamp>> {
        self.files().map(|file| file.metadata().map(|metadata| Stamp::of(&metadata))).collect()
    }

    /// The stamp of one split's open file; `None` for a model in memory. Allocates nothing.
    ///
    /// # Errors
    /// The file system returns an error.
    pub fn stamp(&self, split: usize) -> io::Result<Option<Stamp>> {
        match &self.splits[split].bytes {
            Bytes::OnDisk(file, _) => file.metadata().map(|metadata| Some(Stamp::of(&metadata))),
            Bytes::Owned(_) => Ok(None),
        }
    }

    /// The files of all splits; empty for a model in memory.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.splits.iter().filter_map(|split| match &split.bytes {
            Bytes::OnDisk(file, _) => Some(file),
            Bytes::Owned(_) => None,
        })
    }

    /// Total size of all splits.
    pub fn file_bytes(&self) -> u64 {
        self.splits.iter().map(|split| split.bytes.length() as u64).sum()
    }
}

impl Split {
    /// Opens a file and reads its header; every error names it.
    fn open(path: &Path) -> Result<Self, GgufError> {
        let failed = |source| GgufError::Open { path: path.to_path_buf(), source };
        // Before opening: opening a pipe would block until its other end opens.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(GgufError::NotAFile { path: path.to_path_buf() });
        }
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len() as usize;
        let (header, index) = read_header(length, |out, offset| file.read_exact_at(out, offset as u64))
            .map_err(|source| GgufError::InFile { path: path.to_path_buf(), source: Box::new(source) })?;
        Ok(Self { bytes: Bytes::OnDisk(file, length), header, index })
    }

    fn parse(all: &[u8]) -> Result<(Box<[u8]>, Index), GgufError> {
        let header_length = read::parse(all)?.header_length();
        let header: Box<[u8]> = all[..header_length].into();
        // Parse again, on the copy that no other process can change.
        let index = read::parse_header(&header, all.len())?;
        Ok((header, index))
    }

    fn metadata(&self) -> Metadata<'_> {
        Metadata::new(&self.header, &self.index)
    }

    /// Index of this part, from 0, and the number of parts. A merged file stores 0 parts.
    fn place(&self) -> Result<(u64, u64), GgufError> {
        let metadata = self.metadata();
        let part = metadata.unsigned(SPLIT_NO)?.unwrap_or(0);
        let count = metadata.unsigned(SPLIT_COUNT)?.unwrap_or(0).max(1);
        if count > SPLIT_COUNT_MAX || part >= count {
            let (key, value, max) = if count > SPLIT_COUNT_MAX {
                (SPLIT_COUNT, count, SPLIT_COUNT_MAX)
            } else {
                (SPLIT_NO, part, count - 1)
            };
            return Err(GgufError::Parameter {
                key: key.into(),
                value: value.to_string(),
                reason: format!("at most {max} is allowed"),
            });
        }
        Ok((part, count))
    }

    fn tensor(&self, number: usize, at: u32) -> Tensor<'_> {
        TensorEntry::read(&mut Reader::from(&self.header, at))
            .expect("the header is our own copy and every entry of it was checked")
            .into_tensor(number, self.index.data_start)
    }
}

impl Bytes {
    fn length(&self) -> usize {
        match self {
            Self::OnDisk(_, length) => *length,
            Self::Owned(bytes) => bytes.len(),
        }
    }
}

/// Reads and checks the header of a file of `length` bytes; `read` reads bytes from an offset on. Reads more as long as the
/// header is incomplete, up to the bytes that the part read so far announces.
fn read_header(
    length: usize,
    read: impl Fn(&mut [u8], usize) -> io::Result<()>,
) -> Result<(Box<[u8]>, Index), GgufError> {
    let mut header = Vec::new();
    let mut wanted = READ_FIRST;
    loop {
        let done = header.len();
        header.resize(wanted.min(length), 0);
        read(&mut header[done..], done).map_err(|source| GgufError::Read { at: done, source })?;
        let (what, at, end) = match read::parse_header(&header, length) {
            Ok(index) => {
                header.truncate(index.header_length);
                return Ok((header.into(), index));
            }
            Err(GgufError::Truncated { what, at, end, .. }) => (what, at, end),
            Err(error) => return Err(error),
        };
        if end > length {
            return Err(GgufError::Truncated { what, at, end, length });
        }
        if end > HEADER_MAX {
            return Err(header_too_long(end));
        }
        wanted = end.max(2 * header.len()).min(HEADER_MAX);
    }
}

fn expect_equal(key: &'static str, found: u64, expected: u64) -> Result<(), GgufError> {
    if found == expected {
        return Ok(());
    }
    Err(GgufError::SplitMismatch { key, found, expected })
}

/// The names of the parts of a model: `NAME-00001-of-00003.gguf`.
struct SplitNames {
    /// Folder and NAME.
    stem: PathBuf,
}

impl SplitNames {
    /// Derives the names from the path of any part; `None` if the path does not have this form.
    fn of(path: &Path) -> Option<Self> {
        const PATTERN: &str = "-00001-of-00001";
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (stem, part) = name.split_at_checked(name.len().checked_sub(PATTERN.len())?)?;
        let matches = part.bytes().zip(PATTERN.bytes()).all(|(byte, pattern)| match pattern {
            b'0' | b'1' => byte.is_ascii_digit(),
            _ => byte == pattern,
        });
        matches.then(|| Self { stem: path.with_file_name(stem) })
    }

    /// Path of part `part` (from 0) of `count`.
    fn path(&self, part: u64, count: u64) -> PathBuf {
        let mut path = self.stem.clone().into_os_string();
        path.push(format!("-{:05}-of-{count:05}.gguf", part + 1));
        path.into()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A file with a metadata text of this length and no tensor.
    fn with_text(length: u64, bytes: usize) -> Vec<u8> {
        let mut file = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
        file.extend(b"\x01\0\0\0\0\0\0\0k\x08\0\0\0");
        file.extend(length.to_le_bytes());
        file.resize(bytes, b'x');
        file
    }

    /// Reads the header of a file that occupies `length` bytes, of which only the first ones are at hand. Also returns how
    /// many bytes were read.
    fn header_of(file: &[u8], length: usize) -> (Result<usize, GgufError>, usize) {
        let count = Cell::new(0);
        let result = read_header(length, |out, offset| {
            count.set(count.get() + out.len());
            let bytes = file.get(offset..offset + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(bytes);
            Ok(())
        });
        (result.map(|(header, _)| header.len()), count.get())
    }

    #[test]
    fn header_of_any_length_is_read_once() {
        for text in [3, READ_FIRST, 5 * READ_FIRST, 9 * READ_FIRST + 7] {
            let file = with_text(text as u64, text + 2000);
            let (header, count) = header_of(&file, file.len());
            assert_eq!(header.expect("it is valid"), 45 + text);
            assert!(count <= file.len(), "{count} of {}", file.len());
        }
    }

    #[test]
    fn disk_that_cannot_be_read_is_an_error() {
        let file = with_text(READ_FIRST as u64, 2 * READ_FIRST);
        let (header, _) = header_of(&file[..READ_FIRST], file.len());
        assert!(matches!(header, Err(GgufError::Read { at: READ_FIRST, .. })), "{header:?}");
        let (header, _) = header_of(&[], 100);
        assert!(matches!(header, Err(GgufError::Read { at: 0, .. })), "{header:?}");
    }

    #[test]
    fn no_more_is_read_than_a_header_may_have() {
        let file = with_text(u64::MAX, READ_FIRST);
        let (header, count) = header_of(&file, 1 << 40);
        let is_truncated = matches!(header, Err(GgufError::Truncated { length, at: 45, .. }) if length == 1 << 40);
        assert!(is_truncated && count == READ_FIRST, "{header:?} after {count} bytes");
        let file = with_text(HEADER_MAX as u64, READ_FIRST);
        let (header, count) = header_of(&file, 1 << 40);
        let is_too_long = matches!(header, Err(GgufError::Bound { max, .. }) if max == HEADER_MAX as u64);
        assert!(is_too_long && count == READ_FIRST, "{header:?} after {count} bytes");
    }
}
