//! What a model holds, as one hash: SHA-256 of each piece of a tensor, of these hashes for each tensor, and of the tensors' hashes with the
//! header for the model. Pieces can be hashed in any order, on any number of threads. Reads no clock and starts no thread.
use std::{fs::Metadata, os::unix::fs::MetadataExt};

use ring::digest;

use super::GgufFile;
use crate::ids::ContentRoot;

/// Bytes of a piece; the last one of a tensor may be shorter.
pub const PIECE_BYTES: usize = 1 << 20;
/// Changes when pieces or the order of hashes change.
const DOMAIN: &[u8] = b"bramble content 1";

/// What the file system says of a file. Every write to the file changes one of these: programs can set the time of modification back,
/// but not the time of change. (FAT keeps no time of change.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The file system.
    pub device: u64,
    /// The file's number there.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Time of modification: seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Time of change: seconds and nanoseconds.
    pub changed: (i64, i64),
}

impl Stamp {
    /// Of a file.
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// All of it, for a hash.
    pub fn bytes(&self) -> [u8; 56] {
        let mut bytes = [0; 56];
        let numbers = [self.device, self.inode, self.size].into_iter().map(u64::to_le_bytes);
        let times =
            [self.modified.0, self.modified.1, self.changed.0, self.changed.1].into_iter().map(i64::to_le_bytes);
        for (place, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(numbers.chain(times)) {
            *place = number;
        }
        bytes
    }
}

/// The content of a model file, and what the file system said of its splits when it was hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The root of the hashes.
    pub root: ContentRoot,
    /// One for each split; none of a model in memory.
    pub stamps: Vec<Stamp>,
}

impl Content {
    /// Whether the open file still is what was hashed.
    pub fn is_of(&self, file: &GgufFile) -> bool {
        file.stamps().is_ok_and(|stamps| stamps == self.stamps)
    }
}

/// Bytes of one tensor that are hashed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentPiece {
    /// Which split's file holds it.
    pub split: usize,
    /// Its first byte there.
    pub offset: usize,
    /// At most [`PIECE_BYTES`].
    pub length: usize,
}

/// The pieces of all tensors, in the order of the files.
pub fn pieces(file: &GgufFile) -> impl Iterator<Item = ContentPiece> {
    file.tensors().flat_map(|tensor| {
        (0..tensor.byte_length).step_by(PIECE_BYTES).map(move |begin| ContentPiece {
            split: tensor.split,
            offset: tensor.offset + begin,
            length: (tensor.byte_length - begin).min(PIECE_BYTES),
        })
    })
}

/// Bytes of all tensors.
pub fn total_bytes(file: &GgufFile) -> u64 {
    file.tensors().map(|tensor| tensor.byte_length as u64).sum()
}

/// SHA-256, with the processor's instructions for it where there are any.
pub fn hash(bytes: &[u8]) -> [u8; 32] {
    finish(digest::digest(&digest::SHA256, bytes))
}

/// The root, from the hashes of all pieces in the order of [`pieces`].
pub fn root(file: &GgufFile, hashes: &[[u8; 32]]) -> ContentRoot {
    let mut model = digest::Context::new(&digest::SHA256);
    model.update(DOMAIN);
    model.update(&file.identity());
    let mut rest = hashes;
    for tensor in file.tensors() {
        let (own, behind) = rest.split_at(tensor.byte_length.div_ceil(PIECE_BYTES).min(rest.len()));
        rest = behind;
        model.update(&hash(own.as_flattened()));
    }
    ContentRoot(finish(model.finish()))
}

fn finish(digest: digest::Digest) -> [u8; 32] {
    digest.as_ref().try_into().expect("a SHA-256 has 32 bytes")
}
