//! An unfinished file `NAME.part`, with a second file that describes its origin. Locked while a request writes it; it
//! gets its final name only when it is complete, has the expected SHA-256, and is on the disk.
use std::{
    fs::{self, File, Metadata, OpenOptions, TryLockError},
    io::{Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use common::{digest::Sha256, fault::FaultKind};
use gguf::GgufFile;
use nix::fcntl::OFlag;
use protocol::models::{PART, files_of};
use serde::{Deserialize, Serialize};

use super::{Pace, check_hash, check_room, disk, hash};

/// Source and expected properties of the bytes. Bytes of different origins are never mixed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Size of the complete file, if known.
    pub size: Option<u64>,
    /// SHA-256 of the complete file in hexadecimal, if known.
    pub sha256: Option<String>,
    /// The server's entity tag of this version of the file.
    pub etag: Option<String>,
}

/// An unfinished file.
#[derive(Debug)]
pub struct PartialFile {
    pub(super) folder: PathBuf,
    pub(super) model: String,
    origin: Origin,
    path: PathBuf,
    file: File,
    /// Bytes received so far.
    length: u64,
}

/// The file next to an unfinished one that describes its origin.
pub(super) fn origin_path(part: &Path) -> PathBuf {
    let mut name = part.as_os_str().to_owned();
    name.push(".from");
    name.into()
}

/// Opens or creates a file to write. It follows no link: the model folder may belong to others, who could let the daemon
/// overwrite its key or its state.
fn own_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    // It is read to compute its hash.
    options.read(true).write(true).create(true).custom_flags(OFlag::O_NOFOLLOW.bits());
    options
}

/// Whether an open file is still the one with this path.
fn is_at(file: &File, path: &Path) -> bool {
    let place = |found: Metadata| (found.dev(), found.ino());
    let own = file.metadata().map(place).ok();
    own.is_some() && fs::symlink_metadata(path).map(place).ok() == own
}

/// Locks an unfinished file that is about to be deleted. `None` if it cannot be opened: then no request writes it.
///
/// # Errors
/// A request is writing it, or has just finished it.
pub(super) fn lock_to_remove(path: &Path, model: &str) -> Result<Option<File>, FaultKind> {
    let mut options = OpenOptions::new();
    // NFS locks only files that may be written.
    options.read(true).write(true).custom_flags(OFlag::O_NOFOLLOW.bits());
    let Ok(file) = options.open(path) else { return Ok(None) };
    let is_busy = match file.try_lock() {
        Ok(()) => !is_at(&file, path),
        Err(TryLockError::WouldBlock) => true,
        // A file system without locks protects no download either.
        Err(TryLockError::Error(_)) => false,
    };
    if is_busy { Err(FaultKind::StoreBusy { model: model.into() }) } else { Ok(Some(file)) }
}

impl PartialFile {
    /// Opens or creates it. Existing bytes are continued only if they have the same origin and the origin contains more
    /// than a size.
    pub(super) fn open(folder: &Path, model: &str, origin: Origin) -> Result<Self, FaultKind> {
        fs::create_dir_all(folder).map_err(|error| disk("create", folder, &error))?;
        let path = folder.join(format!("{model}{PART}"));
        let failed = |error: std::io::Error| disk("write", &path, &error);
        let mut file = own_file().truncate(false).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FaultKind::StoreBusy { model: model.into() }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // Another request may have finished or discarded it between the two steps.
        if !is_at(&file, &path) {
            return Err(FaultKind::StoreBusy { model: model.into() });
        }
        let before = fs::read_to_string(origin_path(&path)).ok().and_then(|text| toml::from_str(&text).ok());
        let is_named = origin.sha256.is_some() || origin.etag.is_some();
        let mut length = file.metadata().map_err(failed)?.len();
        if before.as_ref() != Some(&origin) || !is_named || origin.size.is_some_and(|size| length > size) {
            file.set_len(0).map_err(failed)?;
            length = 0;
            let text = toml::to_string(&origin).expect("numbers and texts are TOML");
            let described = own_file().truncate(true).open(origin_path(&path));
            described.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed)?;
        }
        if let Some(size) = origin.size {
            check_room(folder, size - length)?;
        }
        file.seek(SeekFrom::Start(length)).map_err(failed)?;
        Ok(Self { folder: folder.into(), model: model.into(), origin, path, file, length })
    }

    /// Bytes received so far.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Size of the complete file, if known.
    pub fn size(&self) -> Option<u64> {
        self.origin.size
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// There are more bytes than announced, the disk has no room for the missing ones, or it accepts no more.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), FaultKind> {
        let length = self.length + bytes.len() as u64;
        match self.origin.size {
            Some(size) if length > size => {
                let reason = format!("{} has more than the announced {size} bytes", self.model);
                return Err(FaultKind::DownloadFailed { reason });
            }
            // Others may have filled the disk since the last check, for example another transfer: check every 16 MiB.
            size if self.length >> 24 != length >> 24 => {
                check_room(&self.folder, size.map_or(0, |size| size - self.length))?;
            }
            _ => {}
        }
        self.file.write_all(bytes).map_err(|error| disk("write", &self.path, &error))?;
        self.length = length;
        Ok(())
    }

    /// Starts from the beginning, because the server cannot resume.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn restart(&mut self) -> Result<(), FaultKind> {
        let done = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        done.map_err(|error| disk("write", &self.path, &error))?;
        self.length = 0;
        Ok(())
    }

    /// Deletes it: its content is wrong, so resuming would not help.
    fn discard(&self) {
        // Without its origin file, a part that cannot be deleted is not resumed.
        let _ = fs::remove_file(origin_path(&self.path));
        let _ = fs::remove_file(&self.path);
    }

    /// Verifies it and gives it its final name; returns its SHA-256 and its metadata.
    pub(super) fn finish(self, pace: &mut Pace<'_, '_>) -> Result<(Sha256, Metadata), FaultKind> {
        if let Some(size) = self.origin.size.filter(|size| *size != self.length) {
            let reason = format!("received {} of {size} bytes of {}", self.length, self.model);
            return Err(FaultKind::DownloadFailed { reason });
        }
        let failed = |error: std::io::Error| disk("write", &self.path, &error);
        self.file.sync_all().map_err(failed)?;
        let actual = hash::compute(&self.file, &self.path, pace)?;
        let expected = self.origin.sha256.as_deref().and_then(|hash| hash.parse().ok());
        let whole = check_hash(&self.model, expected, actual).and_then(|()| self.check_model());
        // Another file at this path was not verified: neither rename nor delete it.
        if !is_at(&self.file, &self.path) {
            let reason = format!("{} was deleted or replaced during the transfer", self.path.display());
            return Err(FaultKind::DownloadFailed { reason });
        }
        if let Err(kind) = whole {
            self.discard();
            return Err(kind);
        }
        let named = self.folder.join(&self.model);
        fs::rename(&self.path, &named).map_err(failed)?;
        // The new name must survive a power failure, too.
        File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        let _ = fs::remove_file(origin_path(&self.path));
        let metadata = self.file.metadata().map_err(failed)?;
        Ok((actual, metadata))
    }

    /// Whether it is a model with all bytes that its tables list. Of a split model, this is only known for all files
    /// together.
    fn check_model(&self) -> Result<(), FaultKind> {
        if files_of(&self.model).len() > 1 {
            return Ok(());
        }
        let checked = GgufFile::open(&self.path).map(drop);
        checked.map_err(|error| FaultKind::ModelInvalid { model: self.model.clone(), reason: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_renamed_is_not_the_one_at_its_path() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let [path, named] = ["a.part", "a"].map(|name| folder.path().join(name));
        let file = own_file().open(&path).expect("it can be made");
        assert!(is_at(&file, &path));
        fs::rename(&path, &named).expect("it can be renamed");
        assert!(!is_at(&file, &path) && is_at(&file, &named));
        fs::write(&path, "of another request").expect("it can be written");
        assert!(!is_at(&file, &path));
    }

    #[test]
    fn disk_that_others_filled_ends_a_transfer_of_known_size() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let origin = Origin { size: Some(1 << 25), ..Origin::default() };
        let mut part = PartialFile::open(folder.path(), "a.gguf", origin).expect("it fits");
        part.append(b"begin").expect("it fits");
        // The check when it was opened no longer holds: no disk has room for the rest.
        part.origin.size = Some(1 << 50);
        part.append(b"more").expect("the disk is not looked at for every piece");
        part.length = (1 << 24) - 1;
        let error = part.append(b"xx").expect_err("the rest does not fit");
        assert!(matches!(error, FaultKind::DiskShort { .. }), "{error}");
    }
}
