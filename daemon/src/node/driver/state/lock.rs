//! Exclusive lock on a state folder: two daemons that write the same epoch and votes would break the promises on the
//! disk. The kernel holds the lock and releases it when the process ends for any reason.
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{Read, Write},
    path::Path,
};

use anyhow::{Context, bail};

const LOCK_FILE: &str = "lock";

/// Held while the daemon runs.
#[derive(Debug)]
pub struct StateLock {
    /// `None` on a file system that cannot be written, where no other daemon can write either.
    _file: Option<File>,
}

impl StateLock {
    /// Locks the folder, creating it if needed.
    ///
    /// # Errors
    /// Another process holds the lock, or the folder cannot be created; the message gives the remedy.
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
                // A process that has just taken the lock may not have written its id yet.
                let _ = file.read_to_string(&mut holder);
                let holder = Some(holder.trim()).filter(|pid| !pid.is_empty()).unwrap_or("unknown");
                let folder = folder.display();
                bail!(
                    "state folder {folder} is in use by another brambled (process {holder}); stop that one (kill \
                     {holder}), or give this one a different folder with --state DIR"
                );
            }
            // The file system does not support locks.
            Err(TryLockError::Error(_)) => return Ok(Self { _file: None }),
        }
        // Used only for the message above; on a full disk the file stays empty.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { _file: Some(file) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_folder_is_refused_with_the_process_id() {
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
