//! A tar.gz archive that appears under its name only when it is complete. Only its owner can read it, because it
//! describes a cluster in detail.
use std::path::{Path, PathBuf};

use anyhow::Context;
use common::units::Bytes;
use flate2::{Compression, write::GzEncoder};
use tar::{Builder, Header};
use tempfile::NamedTempFile;

use crate::cli::Failure;

/// An archive that is being written.
pub(crate) struct Archive {
    path: PathBuf,
    builder: Builder<GzEncoder<NamedTempFile>>,
}

impl Archive {
    /// Starts an archive in a temporary file in the target folder.
    pub(crate) fn begin(path: &Path) -> Result<Self, Failure> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = NamedTempFile::new_in(folder).with_context(|| format!("cannot write to {}", folder.display()))?;
        Ok(Self { path: path.into(), builder: Builder::new(GzEncoder::new(file, Compression::default())) })
    }

    /// Adds a file.
    pub(crate) fn add(&mut self, name: &str, content: &[u8]) -> Result<(), Failure> {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        header.set_mtime(since.as_secs());
        let added = self.builder.append_data(&mut header, name, content);
        Ok(added.with_context(|| format!("cannot write {name} to {}", self.path.display()))?)
    }

    /// Completes the archive and renames it to its final name. Returns the size of the file.
    pub(crate) fn finish(self) -> Result<Bytes, Failure> {
        let Self { path, builder } = self;
        let size = store(builder, &path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Bytes(size))
    }
}

/// Writes the rest of an archive and gives it its final name. Returns the size of the file.
fn store(builder: Builder<GzEncoder<NamedTempFile>>, path: &Path) -> std::io::Result<u64> {
    let file = builder.into_inner()?.finish()?;
    file.as_file().sync_all()?;
    let size = file.as_file().metadata()?.len();
    file.persist(path)?;
    Ok(size)
}
