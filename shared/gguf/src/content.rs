//! The content of a model as one hash: SHA-256 of each piece of a tensor, of these hashes for each tensor, and of the
//! tensor hashes with the header for the model. Pieces can be hashed in any order, on any number of threads. Reads no
//! clock and starts no thread.
use common::ids::ContentRoot;
use ring::digest;

use super::GgufFile;
use crate::stamp::Stamp;

/// Bytes of a piece; the last piece of a tensor may be shorter.
pub const PIECE_BYTES: usize = 1 << 20;
/// Changes whenever the pieces or the order of hashes change.
const DOMAIN: &[u8] = b"bramble content 1";

/// The content hash of a model file, and the stamps of its splits at the time of hashing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The root of the tensor hashes.
    pub root: ContentRoot,
    /// One for each split; empty for a model in memory.
    pub stamps: Vec<Stamp>,
}

impl Content {
    /// Whether the open file is unchanged since it was hashed.
    pub fn is_of(&self, file: &GgufFile) -> bool {
        file.stamps().is_ok_and(|stamps| stamps == self.stamps)
    }
}

/// Bytes of one tensor that are hashed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentPiece {
    /// Index of the split whose file holds it.
    pub split: usize,
    /// Offset of its first byte in that file.
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

/// SHA-256, using the processor's SHA instructions if it has them.
pub fn hash(bytes: &[u8]) -> [u8; 32] {
    finish(digest::digest(&digest::SHA256, bytes))
}

/// The content root, from the hashes of all pieces in the order of [`pieces`].
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
