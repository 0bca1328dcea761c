//! Content hashes of models: every tensor is hashed once per version of its file. The root is stored in the state
//! folder, under a key made of the file's metadata. Any write to the file, even one that resets the modification
//! time, causes a new hash.
use std::{
    fs, io,
    iter::Enumerate,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use common::{digest::Sha256, fault::FaultKind, ids::ContentRoot};
use gguf::{
    Content, GgufFile, Stamp,
    content::{self, ContentPiece},
};
use serde::{Deserialize, Serialize};

/// Interval of progress messages.
const WORD: Duration = Duration::from_millis(50);
/// Resolution of the kernel's clock for change times, even at 100 ticks a second.
const CLOCK: Duration = Duration::from_millis(20);
/// Maximum of stored roots.
const KEPT: usize = 64;

/// Called at intervals with the progress (bytes done, total bytes), even if there is none; returns whether to continue.
pub type Progress<'a> = dyn FnMut(u64, u64) -> bool + 'a;

/// The roots that a node has computed.
#[derive(Clone, Debug)]
pub struct Contents {
    folder: PathBuf,
    /// Weights are not read: see [`Self::hollow`].
    is_hollow: bool,
}

/// The record of one version of a file.
#[derive(Debug, Serialize, Deserialize)]
struct ContentRecord {
    content: String,
    /// Checksum of key and root, so that a disk error does not make a good file look wrong.
    sum: String,
}

/// One file is hashed at a time: concurrent reads only make a disk seek, and a second request for the same file finds
/// its root.
static COMPUTING: Mutex<()> = Mutex::new(());
/// Bytes that this process has hashed. While a disk does not answer, there is no progress: the nodes that wait for it
/// notice that, because they bound the silence.
static HASHED: AtomicU64 = AtomicU64::new(0);
/// Keys of files of which a part could not be read: their stored hashes do not count, even if they cannot be removed.
static DISTRUSTED: Mutex<Vec<Sha256>> = Mutex::new(Vec::new());

/// Whether the disk answers while a request hashes a file, loads it, or waits until another one was hashed.
#[derive(Debug, Default)]
pub struct DiskProgress(AtomicU64);

impl DiskProgress {
    /// Whether bytes were read since the last call, by the caller, which has read `done`, or for another request.
    pub fn moves(&self, done: u64) -> bool {
        // Not 0, with which it begins.
        let now = HASHED.load(Ordering::Relaxed) + done + 1;
        self.0.swap(now, Ordering::Relaxed) != now
    }
}

fn distrusted() -> MutexGuard<'static, Vec<Sha256>> {
    DISTRUSTED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Contents {
    /// Below a daemon's state folder, which is created only when a root is stored.
    pub fn new(state: &Path) -> Self {
        Self { folder: state.join("contents"), is_hollow: false }
    }

    /// For a paced node: roots of the header only. They differ from those of nodes that compute, so that the two never
    /// share a topology.
    pub fn hollow(self, is_hollow: bool) -> Self {
        Self { is_hollow, ..self }
    }

    /// The stored content hash of the file, if the file has not changed since. Reads no weights.
    pub fn known(&self, file: &GgufFile) -> Option<Content> {
        let stamps = file.stamps().ok().filter(|stamps| !stamps.is_empty())?;
        if self.is_hollow {
            return Some(Content { root: content::root(file, &[]), stamps });
        }
        let key = key(file, &stamps);
        if distrusted().contains(&key) {
            return None;
        }
        let text = fs::read_to_string(self.path(&key)).ok()?;
        let known: ContentRecord = toml::from_str(&text).ok()?;
        let root: Sha256 = known.content.parse().ok()?;
        (known.sum == sum(&key, &root)).then_some(Content { root: ContentRoot(root.0), stamps })
    }

    /// Forgets the stored content hash of the file: a part of it could not be read.
    pub fn forget(&self, file: &GgufFile) {
        let Ok(stamps) = file.stamps() else { return };
        let key = key(file, &stamps);
        let path = self.path(&key);
        {
            let mut keys = distrusted();
            keys.truncate(KEPT);
            keys.insert(0, key);
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("cannot forget a model's hash in {}: {error}", self.folder.display());
            }
            _ => {}
        }
    }

    /// The content hash of the file, computed if it is not stored.
    ///
    /// # Errors
    /// As [`Self::compute`].
    pub fn of(&self, file: &GgufFile, progress: &mut Progress<'_>) -> Result<Content, FaultKind> {
        if let Some(content) = self.known(file) {
            return Ok(content);
        }
        let _computing = loop {
            match COMPUTING.try_lock() {
                Ok(guard) => break guard,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => thread::park_timeout(WORD),
            }
            if !progress(0, content::total_bytes(file)) {
                return Err(FaultKind::StoreCancelled);
            }
        };
        match self.known(file) {
            Some(content) => Ok(content),
            None => self.compute(file, progress),
        }
    }

    /// Reads and hashes all tensors on half of the cores, which is as fast as the disk of a Raspberry Pi.
    ///
    /// # Errors
    /// The file cannot be read, was changed meanwhile, or `progress` returned false.
    pub fn compute(&self, file: &GgufFile, progress: &mut Progress<'_>) -> Result<Content, FaultKind> {
        let failed = |error: io::Error| FaultKind::StoreFailed { reason: format!("cannot hash the model: {error}") };
        let begun = Instant::now();
        let stamps = file.stamps().map_err(failed)?;
        settle(&stamps);
        let hashes = hash_all(file, progress)?.map_err(failed)?;
        let content = Content { root: content::root(file, &hashes), stamps };
        if !content.is_of(file) {
            return Err(failed(io::Error::other(
                "the file was changed while it was read; do not write to it, and try again",
            )));
        }
        let (bytes, ms) = (content::total_bytes(file), begun.elapsed().as_millis() as u64);
        tracing::info!(content = %content.root, "hashed {} MB of weights in {ms} ms", bytes / 1_000_000);
        distrusted().retain(|one| *one != key(file, &content.stamps));
        if let Err(error) = self.keep(file, &content) {
            let folder = self.folder.display();
            tracing::warn!(
                "cannot store the model's hash in {folder}: {error}; it is computed again at the next \
             start"
            );
        }
        Ok(content)
    }

    fn path(&self, key: &Sha256) -> PathBuf {
        self.folder.join(format!("{}.toml", &key.to_string()[..32]))
    }

    fn keep(&self, file: &GgufFile, content: &Content) -> io::Result<()> {
        if content.stamps.is_empty() {
            return Ok(());
        }
        let key = key(file, &content.stamps);
        let root = Sha256(content.root.0);
        let known = ContentRecord { content: root.to_string(), sum: sum(&key, &root) };
        fs::create_dir_all(&self.folder)?;
        self.prune()?;
        let (path, text) = (self.path(&key), toml::to_string(&known).map_err(io::Error::other)?);
        // A file that a power failure truncates is not used, because its checksum is missing.
        let fresh = path.with_extension("new");
        fs::write(&fresh, text)?;
        fs::rename(fresh, path)
    }

    /// Removes the oldest roots.
    fn prune(&self) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            kept.push((entry.metadata()?.modified()?, entry.path()));
        }
        kept.sort();
        kept.iter().rev().skip(KEPT - 1).try_for_each(|(_, path)| fs::remove_file(path))
    }
}

/// Key of a version of a file: a hash of its header and the metadata of each split.
fn key(file: &GgufFile, stamps: &[Stamp]) -> Sha256 {
    let stamps = stamps.iter().flat_map(Stamp::bytes);
    Sha256(content::hash(&file.identity().into_iter().chain(stamps).collect::<Vec<u8>>()))
}

fn sum(key: &Sha256, root: &Sha256) -> String {
    Sha256(content::hash(&[key.0, root.0].concat())).to_string()
}

/// Time since a change, given in seconds and nanoseconds since 1970; `None` if it lies in the future: the clock was set
/// back.
fn age(changed: (i64, i64)) -> Option<Duration> {
    let since = Duration::new(u64::try_from(changed.0).ok()?, u32::try_from(changed.1).ok()?);
    SystemTime::now().duration_since(UNIX_EPOCH + since).ok()
}

/// Waits until a further write would give the file a different change time. Only needed for files that were changed
/// just now.
fn settle(stamps: &[Stamp]) {
    let changed = stamps.iter().map(|stamp| stamp.changed).max().unwrap_or_default();
    let deadline = Instant::now() + age(changed).map_or(Duration::ZERO, |age| CLOCK.saturating_sub(age));
    while let Some(rest) = deadline.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
        thread::park_timeout(rest);
    }
}

/// State shared by the threads.
struct HashingWork<'a, Pieces> {
    file: &'a GgufFile,
    /// In file order, for the disk's read-ahead.
    pieces: Mutex<Enumerate<Pieces>>,
    done: AtomicU64,
    is_over: AtomicBool,
    caller: thread::Thread,
}

/// The hashes of all pieces; the outer error means that the request was cancelled.
fn hash_all(file: &GgufFile, progress: &mut Progress<'_>) -> Result<io::Result<Vec<[u8; 32]>>, FaultKind> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let work = HashingWork {
        file,
        pieces: Mutex::new(content::pieces(file).enumerate()),
        done: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        caller: thread::current(),
    };
    let total = content::total_bytes(file);
    let parts = thread::scope(|scope| {
        let threads: io::Result<Vec<_>> = (0..cores.div_ceil(2))
            .map(|_| thread::Builder::new().name("hash".into()).spawn_scoped(scope, || run(&work)))
            .collect();
        let threads = match threads {
            Ok(threads) => threads,
            Err(error) => {
                work.is_over.store(true, Ordering::Relaxed);
                return Ok(Err(error));
            }
        };
        while threads.iter().any(|thread| !thread.is_finished()) {
            if !progress(work.done.load(Ordering::Relaxed), total) {
                work.is_over.store(true, Ordering::Relaxed);
                return Err(FaultKind::StoreCancelled);
            }
            thread::park_timeout(WORD);
        }
        Ok(threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a hashing thread panicked"))))
            .collect::<io::Result<Vec<Vec<_>>>>())
    })?;
    Ok(parts.map(|parts| {
        let mut hashes: Vec<(usize, [u8; 32])> = parts.into_iter().flatten().collect();
        hashes.sort_unstable_by_key(|(index, _)| *index);
        hashes.into_iter().map(|(_, hash)| hash).collect()
    }))
}

/// One thread: processes pieces until none are left.
fn run(work: &HashingWork<'_, impl Iterator<Item = ContentPiece>>) -> io::Result<Vec<(usize, [u8; 32])>> {
    let mut buffer = vec![0; content::PIECE_BYTES];
    let mut hashes = Vec::new();
    let result = loop {
        let next = work.pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((index, piece)) = next.filter(|_| !work.is_over.load(Ordering::Relaxed)) else { break Ok(hashes) };
        let bytes = &mut buffer[..piece.length];
        if let Err(error) = work.file.read(piece.split, piece.offset, bytes) {
            work.is_over.store(true, Ordering::Relaxed);
            break Err(error);
        }
        hashes.push((index, content::hash(bytes)));
        work.done.fetch_add(piece.length as u64, Ordering::Relaxed);
        HASHED.fetch_add(piece.length as u64, Ordering::Relaxed);
    };
    work.caller.unpark();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The demo model under another name in a folder, where tests may change it.
    fn model(folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/demo/bard-q8_0.gguf");
        fs::copy(demo, &path).expect("the demo model is there");
        path
    }

    fn open(path: &Path) -> GgufFile {
        GgufFile::open(path).expect("the model is good")
    }

    /// Changes a weight and restores the modification time, like `rsync -t` and `cp -p`.
    fn overwrite(path: &Path) {
        use std::os::unix::fs::FileExt;
        let file = fs::File::options().read(true).write(true).open(path).expect("it opens");
        let before = file.metadata().expect("it is there");
        let last = before.len() - 1;
        let mut byte = [0];
        file.read_exact_at(&mut byte, last).expect("it is read");
        file.write_all_at(&[byte[0] ^ 1], last).expect("it is written");
        file.set_modified(before.modified().expect("it has one")).expect("it can be set back");
    }

    #[test]
    fn file_is_hashed_once_and_again_when_it_changes() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = model(folder.path(), "a.gguf");
        let contents = Contents::new(folder.path());
        let file = open(&path);
        assert_eq!(contents.known(&file), None);
        let mut told = Vec::new();
        let first = contents.of(&file, &mut |done, total| {
            told.push((done, total));
            true
        });
        let first = first.expect("it can be read");
        assert!(told.iter().all(|(done, total)| done <= total && *total == content::total_bytes(&file)), "{told:?}");
        let refuse: &mut Progress<'_> = &mut |_, _| panic!("nothing is read");
        assert_eq!(contents.of(&open(&path), refuse).as_ref(), Ok(&first), "it is known");
        let modified = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).expect("it is there");
        let before = modified(&path);
        overwrite(&path);
        assert_eq!(modified(&path), before, "the modification time does not show the change");
        assert!(!first.is_of(&file), "the open file is not the one that was hashed");
        assert_eq!(contents.known(&file), None);
        let second = contents.of(&open(&path), &mut |_, _| true).expect("it can be read");
        assert!(second.root != first.root);
        // A part of the file could not be read.
        contents.forget(&open(&path));
        assert_eq!(contents.known(&open(&path)), None);
        // A copy with the same bytes has the same root.
        let copy = model(folder.path(), "b.gguf");
        assert_eq!(contents.of(&open(&copy), &mut |_, _| true).expect("it can be read").root, first.root);
    }

    #[test]
    fn damaged_record_is_ignored() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = open(&model(folder.path(), "a.gguf"));
        let contents = Contents::new(folder.path());
        let content = contents.of(&file, &mut |_, _| true).expect("it can be read");
        let kept = fs::read_dir(&contents.folder).expect("it was stored").flatten().next().expect("one").path();
        let good = fs::read_to_string(&kept).expect("it is text");
        let begin = good.find('"').expect("a hash") + 1;
        let digit = if good.as_bytes()[begin] == b'0' { "1" } else { "0" };
        let flipped = format!("{}{digit}{}", &good[..begin], &good[begin + 1..]);
        for broken in [&good[..good.len() / 2], &flipped, ""] {
            fs::write(&kept, broken).expect("it is written");
            assert_eq!(contents.known(&file), None, "{broken}");
        }
        fs::write(&kept, good).expect("it is written");
        assert_eq!(contents.known(&file), Some(content));
    }

    #[test]
    fn hashing_ends_when_it_is_cancelled() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = open(&model(folder.path(), "a.gguf"));
        let contents = Contents::new(folder.path());
        assert_eq!(contents.of(&file, &mut |_, _| false), Err(FaultKind::StoreCancelled));
        assert_eq!(contents.known(&file), None);
    }

    #[test]
    fn only_the_latest_roots_are_kept() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = model(folder.path(), "a.gguf");
        let contents = Contents::new(folder.path());
        for _ in 0..KEPT + 3 {
            overwrite(&path);
            contents.of(&open(&path), &mut |_, _| true).expect("it can be read");
        }
        assert_eq!(fs::read_dir(&contents.folder).expect("it is there").count(), KEPT);
        assert!(contents.known(&open(&path)).is_some());
    }
}
