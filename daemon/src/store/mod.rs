//! The files in a node's model folders: listing, removing, adding. A file under its final name is complete and
//! verified; incomplete files are named `.part`. Blocking; independent of nodes and sessions.
mod content;
mod hash;
mod offer;
mod part;
mod pull;
mod reach;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use common::{
    digest::Sha256,
    fault::FaultKind,
    ids::{ContentRoot, ModelIdentity},
    units::Bytes,
};
use gguf::GgufFile;
use nix::sys::statvfs::statvfs;
use protocol::models::{FILES_MAX, FileState, ModelFile, PART, PIECE_BYTES_MAX, Step, check_name, files_of};

pub use content::{Contents, DiskProgress, Progress};
pub use offer::Inquiry;
pub use part::{Origin, PartialFile};
pub use pull::pull;

/// Space that stays free on the disk: for state, packed shards, the journal.
pub const ROOM: Bytes = Bytes(64 << 20);
/// Interval of progress messages.
const WORD: Duration = Duration::from_millis(200);

/// Receives progress (step, bytes done, total bytes); returns whether to continue.
pub type Tell<'a> = dyn FnMut(Step, u64, Option<u64>) -> bool + 'a;

/// The model folders of a node.
#[derive(Clone, Debug)]
pub struct Store {
    folders: Vec<PathBuf>,
    /// Folder of stored hashes.
    hashes: PathBuf,
    contents: Contents,
}

/// Reports progress periodically, and checks for cancellation at every call.
pub(super) struct Pace<'a, 'b> {
    tell: &'a mut Tell<'b>,
    next: Instant,
}

impl<'a, 'b> Pace<'a, 'b> {
    pub(super) fn new(tell: &'a mut Tell<'b>) -> Self {
        Self { tell, next: Instant::now() }
    }

    /// # Errors
    /// The request was cancelled.
    pub(super) fn at(&mut self, step: Step, done: u64, total: Option<u64>) -> Result<(), FaultKind> {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + WORD;
        if (self.tell)(step, done, total) { Ok(()) } else { Err(FaultKind::StoreCancelled) }
    }
}

/// A disk failure, with the operation and the path.
pub(super) fn disk(what: &str, path: &Path, error: &io::Error) -> FaultKind {
    FaultKind::StoreFailed { reason: format!("cannot {what} {}: {error}", path.display()) }
}

impl Store {
    /// The store of these folders, in search order; `state` is the daemon's state folder.
    pub fn new(folders: &[PathBuf], state: &Path) -> Self {
        Self { folders: folders.to_vec(), hashes: state.join("hashes"), contents: Contents::new(state) }
    }

    /// For a node that computes nothing: weights are not read, see [`Contents::hollow`].
    pub fn hollow(self, is_hollow: bool) -> Self {
        Self { contents: self.contents.hollow(is_hollow), ..self }
    }

    /// All model files and unfinished ones, by name. Opens each file but reads no weights.
    pub fn list(&self) -> Vec<ModelFile> {
        let mut files: Vec<ModelFile> = Vec::new();
        for folder in &self.folders {
            let Ok(entries) = fs::read_dir(folder) else { continue };
            let mut names: Vec<String> =
                entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
            names.sort();
            for name in names {
                let (model, is_part) = name.strip_suffix(PART).map_or((name.as_str(), false), |model| (model, true));
                let is_hidden =
                    files.iter().any(|file| file.model == model && (file.state == FileState::Partial) == is_part);
                if check_name(model).is_err() || is_hidden || files.len() >= FILES_MAX {
                    continue;
                }
                files.extend(self.describe(folder, model, is_part));
            }
        }
        files.sort_by(|one, two| one.model.cmp(&two.model));
        files
    }

    /// The properties of a file that need no reading of weights; `None` if it is not a file.
    fn describe(&self, folder: &Path, model: &str, is_part: bool) -> Option<ModelFile> {
        let path = folder.join(if is_part { format!("{model}{PART}") } else { model.to_owned() });
        let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let (state, identity, content) = match is_part {
            true => (FileState::Partial, None, None),
            false => self.inspect(&path),
        };
        let sha256 = if is_part { None } else { hash::known(&self.hashes, model, &metadata) };
        let (model, folder) = (model.to_owned(), folder.display().to_string());
        Some(ModelFile { model, folder, size: Bytes(metadata.len()), state, identity, sha256, content })
    }

    /// The state of a complete file. For a model in several files, only the first one has an identity.
    fn inspect(&self, path: &Path) -> (FileState, Option<ModelIdentity>, Option<ContentRoot>) {
        match GgufFile::open(path) {
            Ok(file) => match models::read(&file) {
                Ok(_) => {
                    let content = self.contents.known(&file).map(|content| content.root);
                    (FileState::Complete, Some(ModelIdentity(file.identity())), content)
                }
                Err(error) => (FileState::Broken(error.to_string()), None, None),
            },
            Err(_) if is_later_split(path) => (FileState::Complete, None, None),
            Err(error) => (FileState::Broken(error.to_string()), None, None),
        }
    }

    /// The content root of a model; computed if it is not stored.
    ///
    /// # Errors
    /// The file cannot be read, is changed meanwhile, or the request is cancelled.
    pub fn content(&self, file: &GgufFile, tell: &mut Tell<'_>) -> Result<ContentRoot, FaultKind> {
        let mut pace = Pace::new(tell);
        self.contents
            .of(file, &mut |done, total| pace.at(Step::Hashing, done, Some(total)).is_ok())
            .map(|content| content.root)
    }

    /// Path of the complete file with this name.
    ///
    /// # Errors
    /// There is no such file.
    pub fn find(&self, model: &str) -> Result<PathBuf, FaultKind> {
        check_name(model).map_err(|reason| FaultKind::ParameterInvalid { reason })?;
        let found = self.folders.iter().map(|folder| folder.join(model)).find(|path| path.is_file());
        found.ok_or_else(|| {
            let names: Vec<String> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
            FaultKind::ModelMissing { model: model.into(), folders: names.join(", ") }
        })
    }

    /// Reads a file and computes its SHA-256; uses the stored one if `is_known_enough`.
    ///
    /// # Errors
    /// There is no such file, it cannot be read, or the request is cancelled.
    pub fn verify(&self, model: &str, is_known_enough: bool, tell: &mut Tell<'_>) -> Result<ModelFile, FaultKind> {
        let path = self.find(model)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let metadata = fs::metadata(&path).map_err(|error| disk("read", &path, &error))?;
        let known = hash::known(&self.hashes, model, &metadata);
        if !is_known_enough || known.is_none() {
            let mut pace = Pace::new(tell);
            let opened = fs::File::open(&path).map_err(|error| disk("read", &path, &error))?;
            let hash = hash::compute(&opened, &path, &mut pace)?;
            hash::keep(&self.hashes, model, &metadata, hash);
            // With `is_known_enough`, the content hash is left to the assignment that needs it.
            if !is_known_enough && let Ok(file) = GgufFile::open(&path) {
                let is_sure = known == Some(hash) && self.contents.known(&file).is_some();
                if !is_sure {
                    self.contents
                        .compute(&file, &mut |done, total| pace.at(Step::Hashing, done, Some(total)).is_ok())?;
                }
            }
        }
        let file = self.describe(folder, model, false);
        file.ok_or_else(|| FaultKind::ModelMissing { model: model.into(), folders: folder.display().to_string() })
    }

    /// The properties of a complete file without reading it; `None` if its SHA-256 was not computed since its last
    /// change.
    ///
    /// # Errors
    /// There is no such file.
    pub fn known(&self, model: &str) -> Result<Option<ModelFile>, FaultKind> {
        let path = self.find(model)?;
        let file = self.describe(path.parent().unwrap_or(Path::new("/")), model, false);
        Ok(file.filter(|file| file.sha256.is_some()))
    }

    /// Deletes a file and its unfinished part.
    ///
    /// # Errors
    /// There is neither, a request is writing the part, or the disk refuses.
    pub fn remove(&self, model: &str) -> Result<(), FaultKind> {
        check_name(model).map_err(|reason| FaultKind::ParameterInvalid { reason })?;
        let parts = self.folders.iter().map(|folder| folder.join(format!("{model}{PART}")));
        let parts: Vec<PathBuf> = parts.filter(|path| path.is_file()).collect();
        if parts.is_empty() {
            self.find(model)?;
        }
        // All locks before the first deletion; while they are held, no request can continue a part that is deleted.
        let locks: Result<Vec<_>, FaultKind> = parts.iter().map(|path| part::lock_to_remove(path, model)).collect();
        let _locks = locks?;
        let whole = self.folders.iter().map(|folder| folder.join(model)).filter(|path| path.is_file());
        for path in parts.iter().cloned().chain(whole) {
            fs::remove_file(&path).map_err(|error| disk("remove", &path, &error))?;
            // Records of the file are useless without it.
            let _ = fs::remove_file(part::origin_path(&path));
        }
        hash::forget(&self.hashes, model);
        Ok(())
    }

    /// A piece of a complete file, and the file's size. Only GGUF files leave the node: a link of that name may lead to
    /// a key.
    ///
    /// # Errors
    /// There is no such file, it is not a GGUF file, or it cannot be read.
    pub fn read(&self, model: &str, offset: u64) -> Result<(Bytes, Vec<u8>), FaultKind> {
        use std::os::unix::fs::FileExt;
        let path = self.find(model)?;
        let failed = |error: io::Error| disk("read", &path, &error);
        let file = fs::File::open(&path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let mut begin = [0; 4];
        if file.read_exact_at(&mut begin, 0).is_err() || begin != *b"GGUF" {
            return Err(FaultKind::ModelInvalid { model: model.into(), reason: "it is not a GGUF file".into() });
        }
        let length = size.saturating_sub(offset).min(PIECE_BYTES_MAX as u64) as usize;
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset).map_err(failed)?;
        Ok((Bytes(size), bytes))
    }

    /// Refuses an invalid name, or one that exists.
    fn check_new(&self, model: &str) -> Result<(), FaultKind> {
        check_name(model).map_err(|reason| FaultKind::ParameterInvalid { reason })?;
        match self.find(model) {
            Ok(_) => Err(FaultKind::ModelExists { model: model.into() }),
            Err(_) => Ok(()),
        }
    }

    /// The unfinished file of this name in the first writable folder; existing bytes of the same origin are kept.
    ///
    /// # Errors
    /// A file of this name exists, another request writes it, or no folder can be written.
    pub fn begin(&self, model: &str, origin: Origin) -> Result<PartialFile, FaultKind> {
        self.check_new(model)?;
        let mut refused = FaultKind::StoreFailed { reason: "there is no model folder".into() };
        for folder in &self.folders {
            match PartialFile::open(folder, model, origin.clone()) {
                Ok(part) => return Ok(part),
                Err(kind @ FaultKind::StoreBusy { .. }) => return Err(kind),
                Err(kind) => refused = kind,
            }
        }
        Err(refused)
    }

    /// Verifies the unfinished file and gives it its final name; deletes it if it is wrong.
    ///
    /// # Errors
    /// Its SHA-256 differs from the expected one, it is not a model, or the disk refuses.
    pub fn finish(&self, part: PartialFile, tell: &mut Tell<'_>) -> Result<ModelFile, FaultKind> {
        let (folder, model) = (part.folder.clone(), part.model.clone());
        let (hash, metadata) = part.finish(&mut Pace::new(tell))?;
        hash::keep(&self.hashes, &model, &metadata, hash);
        let file = self.describe(&folder, &model, false);
        file.ok_or(FaultKind::ModelMissing { model, folders: folder.display().to_string() })
    }
}

/// Whether it is the second or a later file of a split model.
fn is_later_split(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    files_of(name).iter().skip(1).any(|other| other == name)
}

/// Refuses a file that would fill the disk.
pub(super) fn check_room(folder: &Path, needed: u64) -> Result<(), FaultKind> {
    let found = statvfs(folder).map_err(|error| disk("look at", folder, &error.into()))?;
    let available = (found.blocks_available() as u64).saturating_mul(found.fragment_size() as u64);
    if needed.saturating_add(ROOM.0) > available {
        return Err(FaultKind::DiskShort { needed: Bytes(needed.saturating_add(ROOM.0)), available: Bytes(available) });
    }
    Ok(())
}

/// Compares the hash of a file with the expected one, if there is one.
pub(super) fn check_hash(model: &str, expected: Option<Sha256>, actual: Sha256) -> Result<(), FaultKind> {
    match expected {
        Some(expected) if expected != actual => Err(FaultKind::HashDiffers {
            model: model.into(),
            expected: expected.to_string(),
            actual: actual.to_string(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
