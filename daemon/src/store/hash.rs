//! SHA-256 of whole files, and what is remembered of it: with what the file system says of the file, so that a file is read once.
use std::{
    fs::{self, File, Metadata},
    io::Read,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::Digest;
use shared::{
    gguf::{Stamp, content},
    protocol::{
        error::FaultKind,
        models::{Sha256, Step},
    },
};

use super::{Pace, disk};

/// Bytes that are read at a time.
const BLOCK: usize = 1 << 20;

/// What is remembered of a file. What release 0.1 remembered is not taken: it did not notice an overwritten file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Known {
    /// SHA-256 of the file's stamp.
    stamp: String,
    sha256: String,
}

fn stamp(metadata: &Metadata) -> String {
    Sha256(content::hash(&Stamp::of(metadata).bytes())).to_string()
}

/// Reads the whole file.
pub(super) fn compute(path: &Path, pace: &mut Pace<'_, '_>) -> Result<Sha256, FaultKind> {
    let failed = |error: std::io::Error| disk("read", path, &error);
    let mut file = File::open(path).map_err(failed)?;
    let total = file.metadata().map_err(failed)?.len();
    let mut hasher = sha2::Sha256::new();
    let mut block = vec![0; BLOCK];
    let mut done = 0;
    loop {
        let count = file.read(&mut block).map_err(failed)?;
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
    let known: Known = toml::from_str(&fs::read_to_string(place(folder, model)).ok()?).ok()?;
    if known.stamp == stamp(metadata) { known.sha256.parse().ok() } else { None }
}

/// Remembers a hash. Where that fails, the file is read again next time.
pub(super) fn keep(folder: &Path, model: &str, metadata: &Metadata, hash: Sha256) {
    let known = Known { stamp: stamp(metadata), sha256: hash.to_string() };
    let text = toml::to_string(&known).expect("texts are TOML");
    let kept = fs::create_dir_all(folder).and_then(|()| fs::write(place(folder, model), text));
    if let Err(error) = kept {
        tracing::info!("the hash of {model} is not remembered: {error}");
    }
}

/// Forgets a file.
pub(super) fn forget(folder: &Path, model: &str) {
    // There may be nothing to forget.
    let _ = fs::remove_file(place(folder, model));
}
