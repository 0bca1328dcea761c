//! Packed shards under the state directory: a restart reads only its own slices, sequentially and already packed. A
//! file is named by the content of the model and the slices, verified when it is read, written in the background while
//! the shard is used, and pruned by age.
use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::SystemTime,
};

use common::ids::ContentRoot;
use gguf::Content;
use kernels::Kernels;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use topology::ShardPlan;

use super::{LoadError, region::Region};

/// To be increased when the layout of panels or regions changes.
const VERSION: u32 = 4;
const MAGIC: [u8; 8] = *b"bramblep";
/// Bytes covered by one checksum.
const CHUNK: usize = 4 << 20;
/// Packed shards kept in addition to the one in use.
const KEPT: usize = 2;
/// Disk space that is left free.
const SPARE: u64 = 1 << 30;

/// Identifies a packed shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// Hash of everything that a shard's bytes depend on: the content of the model, the slices and the panels.
    pub fn of(content: &ContentRoot, plan: &ShardPlan, kernels: &Kernels, bytes: usize) -> Self {
        let mut hash = Sha256::new();
        hash.update(VERSION.to_le_bytes());
        hash.update(content.0);
        let cuts = plan.cuts.iter().flat_map(|cut| [&cut.heads, &cut.heads_kv, &cut.columns, &cut.shared]);
        for range in [&plan.layers, &plan.vocabulary].into_iter().chain(cuts) {
            hash.update((range.start as u64).to_le_bytes());
            hash.update((range.end as u64).to_le_bytes());
        }
        for part in plan.cuts.iter().filter_map(|cut| cut.experts.as_ref()).flatten() {
            hash.update((part.expert as u64).to_le_bytes());
            hash.update((part.first as u64).to_le_bytes());
        }
        hash.update((kernels.panel_rows as u64).to_le_bytes());
        hash.update((bytes as u64).to_le_bytes());
        Self(hash.finalize().into())
    }
}

/// The content of a model, and the cache for its packed shards.
#[derive(Clone, Copy, Debug)]
pub struct Cached<'a> {
    /// The cache; `None`: packed shards are not kept.
    pub cache: Option<&'a PackedCache>,
    /// The model's content: a shard of other content is never read, and none is kept if the file changed meanwhile.
    pub content: &'a Content,
}

/// Allows one writer at a time, so that `prune` never removes another writer's unfinished file.
static WRITING: Mutex<()> = Mutex::new(());

/// The directory of packed shards.
#[derive(Clone, Debug)]
pub struct PackedCache {
    folder: PathBuf,
}

impl PackedCache {
    /// Creates a cache below a state directory; no directory is created before something is written.
    pub fn new(state: &Path) -> Self {
        Self { folder: state.join("packed") }
    }

    fn path(&self, key: &Key) -> PathBuf {
        let name: String = key.0[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(name + ".shard")
    }

    /// Fills `out` from the cache; false if the cache has no such shard or a broken one, which is then removed.
    ///
    /// # Errors
    /// `progress` returned false.
    pub fn read(&self, key: &Key, out: &mut [u8], progress: &(dyn Fn(u64) -> bool + Sync)) -> Result<bool, LoadError> {
        let path = self.path(key);
        let Ok(file) = File::open(&path) else { return Ok(false) };
        match read_file(&file, key, out, progress) {
            Ok(()) => {
                // Its age counts from its last use.
                if let Err(error) = file.set_modified(SystemTime::now()) {
                    tracing::debug!("{}: {error}", path.display());
                }
                Ok(true)
            }
            Err(Broken::Cancelled) => Err(LoadError::Cancelled),
            Err(Broken::Io(error)) => {
                tracing::warn!("ignoring packed shard {}: {error}; packing it again", path.display());
                remove(&path);
                Ok(false)
            }
        }
    }

    /// Writes a shard in the background; stops when the shard is dropped. Errors are logged: the next start then packs
    /// again.
    pub fn write(&self, key: Key, region: &Arc<Region>) {
        let (cache, shard) = (self.clone(), Unwritten::of(region));
        let started = std::thread::Builder::new().name("packed-shard".into()).spawn(move || {
            if let Err(error) = cache.write_now(&key, &shard) {
                tracing::warn!("cannot write the packed shard: {error}; the next start packs it again");
            }
        });
        if let Err(error) = started {
            tracing::warn!("cannot write the packed shard: {error}; the next start packs it again");
        }
    }

    fn write_now(&self, key: &Key, shard: &Unwritten) -> io::Result<()> {
        let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        // For a shard that was dropped during the wait, no other one is pruned.
        drop(shard.region()?);
        fs::create_dir_all(&self.folder)?;
        self.prune(key)?;
        let place = nix::sys::statvfs::statvfs(&self.folder)?;
        let free = place.blocks_available().saturating_mul(place.fragment_size());
        let needed = shard.bytes as u64 + SPARE;
        if free < needed {
            let (needed, folder) = (needed >> 20, self.folder.display());
            return Err(io::Error::other(format!(
                "{folder} has {} MiB free, {needed} MiB are needed; free space, or set packed_shards = false",
                free >> 20
            )));
        }
        let path = self.path(key);
        let part = path.with_extension(format!("{}.part", std::process::id()));
        let written = write_file(&part, key, shard).and_then(|()| fs::rename(&part, &path));
        if written.is_err() {
            remove(&part);
        }
        written
    }

    /// Removes the oldest shards, and unfinished files of an earlier process.
    fn prune(&self, key: &Key) -> io::Result<()> {
        let own = self.path(key);
        let mut shards = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let (path, metadata) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("part") => remove(&path),
                Some("shard") if path != own => shards.push((metadata.modified()?, path)),
                _ => {}
            }
        }
        shards.sort();
        shards.iter().rev().skip(KEPT).for_each(|(_, path)| remove(path));
        Ok(())
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!("cannot remove {}: {error}", path.display());
    }
}

/// A shard to be written. Its writer keeps none of its memory while it waits for the disk or for another writer: the
/// shard may be dropped meanwhile, and the next one needs the memory.
struct Unwritten {
    region: Weak<Region>,
    bytes: usize,
}

impl Unwritten {
    fn of(region: &Arc<Region>) -> Self {
        Self { region: Arc::downgrade(region), bytes: region.bytes().len() }
    }

    fn region(&self) -> io::Result<Arc<Region>> {
        self.region.upgrade().ok_or_else(|| io::Error::other("the shard is no longer used"))
    }

    /// Replaces `out` by the chunk with this number.
    ///
    /// # Errors
    /// The shard is no longer used.
    fn copy(&self, index: usize, out: &mut Vec<u8>) -> io::Result<()> {
        let region = self.region()?;
        out.clear();
        out.extend_from_slice(&region.bytes()[index * CHUNK..self.bytes.min((index + 1) * CHUNK)]);
        Ok(())
    }
}

/// Why a file cannot be used.
enum Broken {
    Io(io::Error),
    Cancelled,
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Magic, key, size of the shard and the checksum of each chunk, padded to whole pages.
fn header(key: &Key, bytes: usize, checksums: &[u64]) -> Vec<u8> {
    let mut header = [&MAGIC[..], &key.0, &(bytes as u64).to_le_bytes()].concat();
    checksums.iter().for_each(|sum| header.extend(sum.to_le_bytes()));
    header.resize(header.len().next_multiple_of(4096), 0);
    header
}

fn read_file(file: &File, key: &Key, out: &mut [u8], progress: &(dyn Fn(u64) -> bool + Sync)) -> Result<(), Broken> {
    let chunks = out.len().div_ceil(CHUNK);
    let mut found = header(key, out.len(), &vec![0; chunks]);
    if file.metadata()?.len() != (found.len() + out.len()) as u64 {
        return Err(io::Error::other("it is truncated").into());
    }
    file.read_exact_at(&mut found, 0)?;
    let begin = MAGIC.len() + key.0.len() + 8;
    let sums: Vec<u64> =
        found[begin..begin + 8 * chunks].as_chunks::<8>().0.iter().map(|sum| u64::from_le_bytes(*sum)).collect();
    if found != header(key, out.len(), &sums) {
        return Err(io::Error::other("it contains another shard").into());
    }
    let parts = out.par_chunks_mut(CHUNK).zip(&sums).enumerate();
    parts.try_for_each(|(index, (out, sum))| {
        file.read_exact_at(out, (found.len() + index * CHUNK) as u64)?;
        if checksum(out) != *sum {
            return Err(io::Error::other("its checksum does not match").into());
        }
        if progress(out.len() as u64) { Ok(()) } else { Err(Broken::Cancelled) }
    })
}

fn write_file(path: &Path, key: &Key, shard: &Unwritten) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut sums = vec![0_u64; shard.bytes.div_ceil(CHUNK)];
    // The checksums follow when all chunks were copied: each is copied once.
    file.write_all(&header(key, shard.bytes, &sums))?;
    let mut chunk = Vec::new();
    for (index, sum) in sums.iter_mut().enumerate() {
        shard.copy(index, &mut chunk)?;
        *sum = checksum(&chunk);
        file.write_all(&chunk)?;
    }
    file.write_all_at(&header(key, shard.bytes, &sums), 0)?;
    file.sync_all()
}

/// Detects disk errors, not tampering: four sums of words times an odd number, each rotated.
fn checksum(bytes: &[u8]) -> u64 {
    let mut sums = [bytes.len() as u64; 4];
    let (words, rest) = bytes.as_chunks::<32>();
    for words in words {
        for (sum, word) in sums.iter_mut().zip(words.as_chunks::<8>().0) {
            *sum = (*sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
    let fold = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let sum = sums.into_iter().fold(0, fold);
    rest.iter().fold(sum, |sum, byte| fold(sum, u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        io::{Read, pipe},
        os::fd::AsRawFd,
        process, thread,
    };

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    const KEY: Key = Key([7; 32]);

    fn filled(bytes: usize) -> Arc<Region> {
        let mut region = Region::new(bytes).expect("there is memory");
        for (index, part) in region.bytes_mut().chunks_mut(1000).enumerate() {
            part.fill(index as u8);
        }
        Arc::new(region)
    }

    /// A path that opens the file of this descriptor.
    fn path_of(file: &impl AsRawFd) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }

    #[test]
    fn shard_of_several_chunks_is_read_as_it_was_written() {
        let file = File::from(memfd_create("packed", MFdFlags::empty()).expect("there is memory"));
        let region = filled(2 * CHUNK + 5);
        write_file(&path_of(&file), &KEY, &Unwritten::of(&region)).expect("it can be written");
        let sums: Vec<u64> = region.bytes().chunks(CHUNK).map(checksum).collect();
        let expected = [&header(&KEY, region.bytes().len(), &sums)[..], region.bytes()].concat();
        assert!(fs::read(path_of(&file)).expect("it can be read") == expected, "the layout of version {VERSION}");
        let mut read = vec![0; region.bytes().len()];
        assert!(read_file(&file, &KEY, &mut read, &|_| true).is_ok());
        assert!(read == region.bytes());
    }

    #[test]
    fn dropped_shard_is_freed_while_its_writer_waits_for_another() {
        let state = env::temp_dir().join(format!("bramble-packed-{}", process::id()));
        let (cache, region) = (PackedCache::new(&state), filled(5));
        let (shard, memory) = (Unwritten::of(&region), Arc::downgrade(&region));
        let other = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = thread::spawn(move || cache.write_now(&KEY, &shard));
        drop(region);
        assert!(memory.upgrade().is_none());
        drop(other);
        let error = writer.join().expect("no panic").expect_err("there is nothing to write");
        assert!(error.to_string().contains("no longer used"), "{error}");
        assert!(!state.exists(), "no shard is pruned");
    }

    #[test]
    fn dropped_shard_is_freed_while_the_disk_blocks_its_writer() {
        let (mut disk, end) = pipe().expect("there are descriptors");
        let (path, region) = (path_of(&end), filled(3 * CHUNK));
        let (shard, memory) = (Unwritten::of(&region), Arc::downgrade(&region));
        let writer = thread::spawn(move || write_file(&path, &KEY, &shard));
        // A pipe has no room for a chunk: behind its first byte, the writer waits.
        let mut begin = vec![0; header(&KEY, 3 * CHUNK, &[0; 3]).len() + 1];
        disk.read_exact(&mut begin).expect("the writer begins");
        drop(region);
        assert!(memory.upgrade().is_none());
        drop(end);
        io::copy(&mut disk, &mut io::sink()).expect("the first chunk can be read");
        let error = writer.join().expect("no panic").expect_err("the other chunks are gone");
        assert!(error.to_string().contains("no longer used"), "{error}");
    }
}
