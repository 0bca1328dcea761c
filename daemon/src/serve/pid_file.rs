//! The PID file, which exists while the daemon runs.
use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

/// Removes its file when dropped. After kill -9 the file stays, and the next start overwrites it.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes this process's id atomically: a reader never sees part of it.
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
        // If it cannot be removed, it disappears with the service's runtime folder.
        let _ = fs::remove_file(&self.0);
    }
}
