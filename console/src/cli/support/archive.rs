//! A tar.gz that has its name only when it is whole, readable for its owner alone: it tells much of a cluster.
use std::path::{Path, PathBuf};

use anyhow::Context;
use flate2::{Compression, write::GzEncoder};
use shared::units::Bytes;
use tar::{Builder, Header};
use tempfile::NamedTempFile;

use crate::cli::Failure;

/// An archive that is being written.
pub(super) struct Archive {
    path: PathBuf,
    builder: Builder<GzEncoder<NamedTempFile>>,
}

impl Archive {
    /// Begins one beside its place.
    pub(super) fn begin(path: &Path) -> Result<Self, Failure> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = NamedTempFile::new_in(folder).with_context(|| format!("cannot write to {}", folder.display()))?;
        Ok(Self { path: path.into(), builder: Builder::new(GzEncoder::new(file, Compression::default())) })
    }

    /// Adds a file.
    pub(super) fn add(&mut self, name: &str, content: &[u8]) -> Result<(), Failure> {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        header.set_mtime(since.as_secs());
        let added = self.builder.append_data(&mut header, name, content);
        Ok(added.with_context(|| format!("cannot write {name} to {}", self.path.display()))?)
    }

    /// Ends it and gives it its name; the size of the file.
    pub(super) fn finish(self) -> Result<Bytes, Failure> {
        let Self { path, builder } = self;
        let written = || -> std::io::Result<u64> {
            let file = builder.into_inner()?.finish()?;
            file.as_file().sync_all()?;
            let size = file.as_file().metadata()?.len();
            file.persist(&path)?;
            Ok(size)
        };
        Ok(written().map(Bytes).with_context(|| format!("cannot write {}", path.display()))?)
    }
}
