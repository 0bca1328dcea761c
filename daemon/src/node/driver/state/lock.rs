//! Exclusive lock on a state folder: two daemons that write the same epoch and votes would break the promises on the
//! disk. The kernel holds the lock and releases it when the process ends for any reason.
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{Read, Write},
    net::SocketAddr,
    path::Path,
};

use anyhow::{Context, bail};
use common::planted::{Planted, is_planted};

const LOCK_FILE: &str = "lock";

/// Longest text of the lock file in bytes.
const HOLDER_BYTES_MAX: u64 = 1024;

/// The daemon that runs with a state folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process id.
    pub process: u32,
    /// The address on which it listens.
    pub listen: SocketAddr,
    /// Its name.
    pub name: String,
}

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
    pub fn take(folder: &Path, name: &str, listen: SocketAddr) -> anyhow::Result<Self> {
        if !folder.is_dir() {
            fs::create_dir_all(folder).with_context(|| super::unusable(folder))?;
        }
        let path = folder.join(LOCK_FILE);
        let writable = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let Ok(mut file) = writable.or_else(|_| File::open(&path)) else { return Ok(Self { _file: None }) };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) if is_planted(Planted::UnlockedState) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // A process that has just taken the lock may not have written its id yet.
                let _ = file.read_to_string(&mut holder);
                let holder = holder.split_whitespace().next().unwrap_or("unknown");
                let folder = folder.display();
                bail!(
                    "state folder {folder} is in use by another brambled (process {holder}); stop that one (kill \
                     {holder}), or give this one a different folder with --state DIR"
                );
            }
            // The file system does not support locks.
            Err(TryLockError::Error(_)) => return Ok(Self { _file: None }),
        }
        // Used only for messages; on a full disk the file stays empty.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{} {listen} {name}", std::process::id()));
        Ok(Self { _file: Some(file) })
    }

    /// The daemon that holds the lock; `None` if none does, or if it is a release that does not write its name.
    pub fn holder(folder: &Path) -> Option<Holder> {
        let file = File::open(folder.join(LOCK_FILE)).ok()?;
        // A successful lock ends with the file.
        if !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
            return None;
        }
        let mut text = String::new();
        (&file).take(HOLDER_BYTES_MAX).read_to_string(&mut text).ok()?;
        let mut words = text.trim_end().splitn(3, ' ');
        let (process, listen, name) = (words.next()?, words.next()?, words.next()?);
        Some(Holder { process: process.parse().ok()?, listen: listen.parse().ok()?, name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_folder_is_refused_with_the_process_id() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let state = folder.path().join("state");
        assert_eq!(StateLock::holder(&state), None);
        let listen: SocketAddr = "127.0.0.1:9999".parse().expect("an address");
        let take = || StateLock::take(&state, "pi 1", listen);
        let held = take().expect("the folder is free");
        let holder = Holder { process: std::process::id(), listen, name: "pi 1".into() };
        assert_eq!(StateLock::holder(&state), Some(holder));
        let refused = take().expect_err("it is in use").to_string();
        let process = format!("process {}", std::process::id());
        assert!(refused.contains(&process) && refused.contains("--state DIR"), "{refused}");
        drop(held);
        assert_eq!(StateLock::holder(&state), None);
        take().expect("the lock ends with its holder");
    }
}
