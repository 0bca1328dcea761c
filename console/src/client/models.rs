//! The upload of a local model file to a node.
use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
};

pub use assignment::files::{ModelProgress, ask, list, stored};
use common::{
    digest::Sha256,
    fault::{Fault, FaultKind},
    units::Bytes,
};
use protocol::models::{ModelFile, ModelsRequest, ModelsResponse, PIECE_BYTES_MAX, Piece, Step};
use sha2::Digest;

use super::session::Session;
use assignment::files::odd;

/// SHA-256 and size in bytes of a local file.
///
/// # Errors
/// The file cannot be read.
pub fn digest(path: &Path) -> io::Result<(Sha256, u64)> {
    let mut file = File::open(path)?;
    let mut hasher = sha2::Sha256::new();
    let mut block = vec![0; PIECE_BYTES_MAX];
    let mut size = 0;
    loop {
        let count = file.read(&mut block)?;
        if count == 0 {
            return Ok((Sha256(hasher.finalize().into()), size));
        }
        hasher.update(&block[..count]);
        size += count as u64;
    }
}

/// A local file to upload.
#[derive(Clone, Copy, Debug)]
pub struct Upload<'a> {
    /// The file.
    pub path: &'a Path,
    /// Its name on the node.
    pub model: &'a str,
    /// Its hash.
    pub sha256: Sha256,
    /// Its size in bytes.
    pub size: u64,
}

/// Uploads a local file, resuming an interrupted upload.
///
/// # Errors
/// The node refuses or fails, or the file cannot be read.
pub async fn send(session: &Session, upload: Upload<'_>, told: &ModelProgress<'_>) -> Result<ModelFile, Fault> {
    let Upload { path, model, sha256, size } = upload;
    let local = |error: io::Error| {
        let reason = format!("cannot read {}: {error}", path.display());
        Fault::new("console", FaultKind::StoreFailed { reason })
    };
    let file = File::open(path).map_err(local)?;
    let mut offset = 0;
    let mut bytes = Vec::new();
    loop {
        let piece = Piece { model: model.into(), size: Bytes(size), sha256, offset, bytes };
        match ask(session, ModelsRequest::Write(piece), told).await? {
            ModelsResponse::Stored(file) => return Ok(file),
            ModelsResponse::Written { length } if length.0 < size && (length.0 > offset || offset == 0) => {
                offset = length.0
            }
            other => return Err(odd(session, &other)),
        }
        told(Step::Copying, Bytes(offset), Some(Bytes(size)));
        bytes = vec![0; (size - offset).min(PIECE_BYTES_MAX as u64) as usize];
        file.read_exact_at(&mut bytes, offset).map_err(local)?;
    }
}
