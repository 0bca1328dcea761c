//! SHA-256 of whole files, stored together with the file's metadata, so that a file is read only once.
use std::{
    fs::{self, File, Metadata},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use common::{digest::Sha256, fault::FaultKind};
use gguf::{Stamp, content};
use protocol::models::Step;
use serde::{Deserialize, Serialize};
use sha2::Digest;

use super::{Pace, disk};

/// Bytes per read.
const BLOCK: usize = 1 << 20;

/// The stored hash of a file. Records of release 0.1 are ignored, because it did not detect overwritten files.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct HashRecord {
    /// SHA-256 of the file's metadata.
    stamp: String,
    sha256: String,
}

fn stamp(metadata: &Metadata) -> String {
    Sha256(content::hash(&Stamp::of(metadata).bytes())).to_string()
}

/// Reads the whole open file from its beginning; its path is only for errors.
pub(super) fn compute(file: &File, path: &Path, pace: &mut Pace<'_, '_>) -> Result<Sha256, FaultKind> {
    let failed = |error: std::io::Error| disk("read", path, &error);
    let total = file.metadata().map_err(failed)?.len();
    let mut hasher = sha2::Sha256::new();
    let mut block = vec![0; BLOCK];
    let mut done = 0;
    loop {
        let count = file.read_at(&mut block, done).map_err(failed)?;
        if count == 0 {
            return Ok(Sha256(hasher.finalize().into()));
        }
        hasher.update(&block[..count]);
        done += count as u64;
        pace.at(Step::Hashing, done, Some(total))?;
    }
}

fn place(folder: &Path, model: &str) -> PathBuf {
    folder.join(format!("{model}.toml"))
}

/// The hash of a file that has not changed since it was computed.
pub(super) fn known(folder: &Path, model: &str, metadata: &Metadata) -> Option<Sha256> {
    let known: HashRecord = toml::from_str(&fs::read_to_string(place(folder, model)).ok()?).ok()?;
    if known.stamp == stamp(metadata) { known.sha256.parse().ok() } else { None }
}

/// Stores a hash. If that fails, the file is read again next time.
pub(super) fn keep(folder: &Path, model: &str, metadata: &Metadata, hash: Sha256) {
    let known = HashRecord { stamp: stamp(metadata), sha256: hash.to_string() };
    let text = toml::to_string(&known).expect("texts are TOML");
    let kept = fs::create_dir_all(folder).and_then(|()| fs::write(place(folder, model), text));
    if let Err(error) = kept {
        tracing::info!("cannot store the hash of {model}: {error}");
    }
}

/// Removes the stored hash of a file.
pub(super) fn forget(folder: &Path, model: &str) {
    // The file may not exist.
    let _ = fs::remove_file(place(folder, model));
}
