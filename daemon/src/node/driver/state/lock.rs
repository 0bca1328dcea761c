//! One process per state folder: two daemons that write the same epoch and votes break every promise that is on the disk. The lock is the
//! kernel's and ends with its process, however that ends.
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{Read, Write},
    path::Path,
};

use anyhow::{Context, bail};

const LOCK_FILE: &str = "lock";

/// Held for as long as the daemon runs.
#[derive(Debug)]
pub struct StateLock {
    /// `None` on a disk that cannot be written: no other daemon can write to it either.
    _file: Option<File>,
}

impl StateLock {
    /// Locks the folder (and if needed makes it).
    ///
    /// # Errors
    /// Another process holds it, or the folder cannot be made: the message says what to do.
    pub fn take(folder: &Path) -> anyhow::Result<Self> {
        if !folder.is_dir() {
            fs::create_dir_all(folder).with_context(|| super::unusable(folder))?;
        }
        let path = folder.join(LOCK_FILE);
        let writable = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let Ok(mut file) = writable.or_else(|_| File::open(&path)) else { return Ok(Self { _file: None }) };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // A process that has just locked it may not have said who it is.
                let _ = file.read_to_string(&mut holder);
                let holder = Some(holder.trim()).filter(|pid| !pid.is_empty()).unwrap_or("unknown");
                let folder = folder.display();
                bail!(
                    "state folder {folder} is in use by another brambled (process {holder}); stop that one (kill {holder}), or give this one a folder of its own with --state DIR"
                );
            }
            // A file system without locks.
            Err(TryLockError::Error(_)) => return Ok(Self { _file: None }),
        }
        // Only for the message above; on a full disk it stays empty.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { _file: Some(file) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_in_use_is_refused_with_the_process() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let state = folder.path().join("state");
        let held = StateLock::take(&state).expect("the folder is free");
        let refused = StateLock::take(&state).expect_err("it is in use").to_string();
        let process = format!("process {}", std::process::id());
        assert!(refused.contains(&process) && refused.contains("--state DIR"), "{refused}");
        drop(held);
        StateLock::take(&state).expect("the lock ends with its holder");
    }
}
