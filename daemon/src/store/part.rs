//! An unfinished file: `NAME.part`, with what it is going to be beside it. Locked while somebody is at it; gets its name only when it
//! is whole, has the SHA-256 that was promised, and is on the disk.
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use shared::{
    gguf::GgufFile,
    protocol::{
        error::FaultKind,
        models::{PART, Sha256, files_of},
    },
};

use super::{Pace, check_hash, check_room, disk, hash};

/// Where the bytes come from and what they must be. Bytes of another origin are never mixed in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Bytes of the whole file, where that is known.
    pub size: Option<u64>,
    /// SHA-256 of the whole file in hexadecimal, where that is known.
    pub sha256: Option<String>,
    /// The server's name for this version of the file.
    pub etag: Option<String>,
}

/// A file that is not yet whole.
#[derive(Debug)]
pub struct Part {
    pub(super) folder: PathBuf,
    pub(super) model: String,
    origin: Origin,
    path: PathBuf,
    file: File,
    /// Bytes that are there.
    length: u64,
}

/// The file beside an unfinished one that says where it comes from.
pub(super) fn origin_path(part: &Path) -> PathBuf {
    let mut name = part.as_os_str().to_owned();
    name.push(".from");
    name.into()
}

impl Part {
    /// Opens or begins it; what is there goes on only if it is of the same origin and has one that says more than a size.
    pub(super) fn open(folder: &Path, model: &str, origin: Origin) -> Result<Self, FaultKind> {
        fs::create_dir_all(folder).map_err(|error| disk("create", folder, &error))?;
        let path = folder.join(format!("{model}{PART}"));
        let failed = |error: std::io::Error| disk("write", &path, &error);
        let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FaultKind::StoreBusy { model: model.into() }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let before = fs::read_to_string(origin_path(&path)).ok().and_then(|text| toml::from_str(&text).ok());
        let is_named = origin.sha256.is_some() || origin.etag.is_some();
        let mut length = file.metadata().map_err(failed)?.len();
        if before.as_ref() != Some(&origin) || !is_named || origin.size.is_some_and(|size| length > size) {
            file.set_len(0).map_err(failed)?;
            length = 0;
            let text = toml::to_string(&origin).expect("numbers and texts are TOML");
            fs::write(origin_path(&path), text).map_err(failed)?;
        }
        if let Some(size) = origin.size {
            check_room(folder, size - length)?;
        }
        file.seek(SeekFrom::Start(length)).map_err(failed)?;
        Ok(Self { folder: folder.into(), model: model.into(), origin, path, file, length })
    }

    /// Bytes that are there.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of the whole file, where that is known.
    pub fn size(&self) -> Option<u64> {
        self.origin.size
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// There are more than the file was said to have, or the disk takes no more.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), FaultKind> {
        let length = self.length + bytes.len() as u64;
        match self.origin.size {
            Some(size) if length > size => {
                let reason = format!("{} has more than the {size} bytes that were announced", self.model);
                return Err(FaultKind::DownloadFailed { reason });
            }
            // Nobody said how much comes: look again now and then.
            None if self.length >> 24 != length >> 24 => check_room(&self.folder, 0)?,
            _ => {}
        }
        self.file.write_all(bytes).map_err(|error| disk("write", &self.path, &error))?;
        self.length = length;
        Ok(())
    }

    /// Begins from nothing: the server would not go on where we were.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn restart(&mut self) -> Result<(), FaultKind> {
        let done = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        done.map_err(|error| disk("write", &self.path, &error))?;
        self.length = 0;
        Ok(())
    }

    /// Deletes it: it is not what it should be, and going on would not help.
    fn discard(&self) {
        // What cannot be deleted is begun anew by its origin.
        let _ = fs::remove_file(origin_path(&self.path));
        let _ = fs::remove_file(&self.path);
    }

    /// Checks it and gives it its name; returns its SHA-256.
    pub(super) fn finish(self, pace: &mut Pace<'_, '_>) -> Result<Sha256, FaultKind> {
        if let Some(size) = self.origin.size.filter(|size| *size != self.length) {
            let reason = format!("{} of {size} bytes of {} came", self.length, self.model);
            return Err(FaultKind::DownloadFailed { reason });
        }
        let failed = |error: std::io::Error| disk("write", &self.path, &error);
        self.file.sync_all().map_err(failed)?;
        let actual = hash::compute(&self.path, pace)?;
        let expected = self.origin.sha256.as_deref().and_then(|hash| hash.parse().ok());
        let whole = check_hash(&self.model, expected, actual).and_then(|()| self.check_model());
        if let Err(kind) = whole {
            self.discard();
            return Err(kind);
        }
        let named = self.folder.join(&self.model);
        fs::rename(&self.path, &named).map_err(failed)?;
        // The name, too, must survive the power's loss.
        File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        let _ = fs::remove_file(origin_path(&self.path));
        Ok(actual)
    }

    /// Whether it is a model at all, with all bytes that its tables name. One of several files says so only together.
    fn check_model(&self) -> Result<(), FaultKind> {
        if files_of(&self.model).len() > 1 {
            return Ok(());
        }
        let checked = GgufFile::open(&self.path).map(drop);
        checked.map_err(|error| FaultKind::ModelInvalid { model: self.model.clone(), reason: error.to_string() })
    }
}
