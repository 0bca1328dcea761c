//! Requests between nodes about keys and values that they keep for each other. A file is one block or state of one rank's
//! part of the model; its header repeats everything it depends on, and its receiver checks it.
use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of a file's name.
pub const KV_NAME_BYTES: usize = 16;
/// Most bytes of a piece of a file.
pub const KV_PIECE_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a file that is sent to another node: several times the largest block of known models. States can be larger.
pub const KV_FILE_BYTES_MAX: usize = 64 << 20;
/// Most files that a node lists, the most recently used ones: a quarter of a million tokens.
pub const KV_FILES_MAX: usize = 1 << 13;

/// Name of a file.
pub type KvName = [u8; KV_NAME_BYTES];

/// A request of another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvRequest {
    /// List the files. Answered by `Listed`.
    List,
    /// Read a piece of a file. Answered by `Piece`.
    Read {
        /// Its name.
        name: KvName,
        /// Its part of the model.
        part: String,
        /// Offset of the piece.
        offset: u32,
    },
    /// Write a piece of a file; a session writes one file at a time, in order. Answered by `Written`.
    Write(KvPiece),
}

/// A piece of a file.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvPiece {
    /// Part of the model.
    pub part: String,
    /// Size of the whole file.
    pub size: u32,
    /// Offset of the piece; 0 begins a file.
    pub offset: u32,
    /// At most [`KV_PIECE_BYTES_MAX`].
    pub bytes: Vec<u8>,
}

impl fmt::Debug for KvPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KvPiece({} bytes at {} of {})", self.bytes.len(), self.offset, self.size)
    }
}

/// A node's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvResponse {
    /// The files, at most [`KV_FILES_MAX`].
    Listed(KvList),
    /// A piece, at most [`KV_PIECE_BYTES_MAX`].
    Piece {
        /// Size of the whole file; 0 if there is none.
        size: u32,
        /// Its bytes; empty beyond the end.
        bytes: Vec<u8>,
    },
    /// The piece arrived; the last one completes the file.
    Written,
}

/// The files of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvList {
    /// The parts of models that there are files of.
    pub parts: Vec<String>,
    /// Names, each with the index of its part.
    pub files: Vec<(KvName, u16)>,
}
