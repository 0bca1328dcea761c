//! The PID file: there while the daemon runs.
use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Removes its file at the end; kill -9 leaves it, and the next start writes it anew.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes this process's id, whole at once: a reader never sees half of it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(path: &Path) -> anyhow::Result<Self> {
        let fresh = path.with_extension("new");
        let help = || format!("cannot write the PID file {}; name a writable one with --pid-file", path.display());
        fs::write(&fresh, format!("{}\n", std::process::id())).with_context(help)?;
        fs::rename(&fresh, path).with_context(help)?;
        Ok(Self(path.into()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Where it cannot be removed, the folder goes with the service.
        let _ = fs::remove_file(&self.0);
    }
}
