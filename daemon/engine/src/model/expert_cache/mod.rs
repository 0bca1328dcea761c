//! Experts that stay on the disk: a cache of the latest used ones. Each has a slot with its gate, up and down matrices,
//! packed in panels; what a step needs and no slot holds is read from the model's file, several matrices at a time.
mod latest;

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use gguf::{GgufFile, Stamp};
use models::TensorRole;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use rayon::prelude::*;

use self::latest::{Latest, Missing};
use super::{
    error::{ExpertError, LoadError},
    region::Region,
    slices::{Slices, TensorSlice},
};
use crate::collective::WorkCounter;

/// Matrices that are read at a time: disks are fast only with several requests.
pub const READERS: usize = 8;

/// Reads of each layer in a measurement.
const ROUNDS: usize = 2;

/// The slots, as kernels read them.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'a> {
    /// All slots.
    pub bytes: &'a [u8],
    /// For each expert of a layer the byte at which its slot begins; arbitrary if it was not asked for.
    pub places: &'a [usize],
}

/// The experts of a layer.
#[derive(Debug)]
struct LayerExperts {
    /// Number of its first expert among those of all layers.
    first: usize,
    /// Number of its experts of which the rank holds a part.
    count: usize,
    /// Gate, up and down.
    slices: Vec<TensorSlice>,
}

/// A cache of the experts of all layers of a rank.
#[derive(Debug)]
pub struct ExpertCache {
    reading: Reading,
    /// For each layer of the stage; `None`: it has no experts.
    layers: Vec<Option<LayerExperts>>,
    region: Region,
    slot_bytes: usize,
    latest: Latest,
    /// For each expert of the current layer the byte at which its slot begins.
    places: Vec<usize>,
    missing: Vec<Missing>,
}

impl ExpertCache {
    /// An empty cache for the experts of these layers, with slots for as many as fit into `bytes`, at least one; `None`
    /// if no layer has experts outside the region.
    ///
    /// # Errors
    /// The system has no memory or no threads for it.
    pub fn new(
        file: &Arc<GgufFile>,
        slices: &Slices,
        layers: impl Iterator<Item = usize>,
        bytes: usize,
    ) -> Result<Option<Self>, LoadError> {
        let mut total = 0;
        let layers = layers.map(|layer| {
            let roles = [TensorRole::Gate, TensorRole::Up, TensorRole::Down];
            let slices = roles.into_iter().filter_map(|role| slices.find((Some(layer), role)));
            let slices: Vec<_> = slices.filter(|slice| slice.is_on_disk).cloned().collect();
            let (first, count) = (total, slices.first()?.count);
            total += count;
            Some(LayerExperts { first, count, slices })
        });
        let layers: Vec<Option<LayerExperts>> = layers.collect();
        let slot_bytes = slices.slot_bytes;
        if total == 0 || slot_bytes == 0 {
            return Ok(None);
        }
        let slots = (bytes / slot_bytes).clamp(1, total);
        let short = |source| LoadError::Memory { bytes: slots * slot_bytes, source };
        let region = Region::new(slots * slot_bytes).map_err(short)?;
        let latest = Latest::new(total, slots);
        let reading = Reading::new(file).map_err(short)?;
        Ok(Some(Self { reading, layers, region, slot_bytes, latest, places: Vec::new(), missing: Vec::new() }))
    }

    /// Sets the stamps of the file's splits when it was hashed.
    pub(super) fn stamp_with(&mut self, stamps: &[Stamp]) {
        self.reading.source.stamps = stamps.to_vec();
    }

    /// Counts reads as work of an engine.
    pub(super) fn report_to(&mut self, work: &WorkCounter) {
        self.reading.source.work = work.clone();
    }

    /// For how many experts it has room, and how many there are.
    pub fn counts(&self) -> [usize; 2] {
        self.latest.counts()
    }

    /// How many of the experts used so far were in memory, and how many were read.
    pub fn uses(&self) -> [u64; 2] {
        self.latest.uses()
    }

    /// Seconds that reading an expert takes if `at_once` of a layer are read together, at most as many as there are
    /// slots: the mean over layers and over experts from everywhere in the file, none of them from the page cache. Stops
    /// after about `limit`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read_seconds(&mut self, at_once: usize, limit: Duration) -> Result<f64, ExpertError> {
        let (mut time, mut read) = (Duration::ZERO, 0);
        let mut experts = Vec::with_capacity(at_once);
        for round in 0..ROUNDS * self.layers.len() {
            let Some(mut cached) = self.of_layer(round % self.layers.len()) else { continue };
            let count = cached.layer.count;
            experts.clear();
            experts.extend((0..at_once.min(count)).map(|index| (index * count / at_once + round) % count));
            experts.sort_unstable();
            experts.dedup();
            cached.forget(&experts);
            let begin = Instant::now();
            cached.load(&experts)?;
            time += begin.elapsed();
            read += experts.len();
            if time >= limit {
                break;
            }
        }
        Ok(time.as_secs_f64() / read.max(1) as f64)
    }

    /// The experts of a layer, numbered in the stage, if they stay on the disk.
    pub(super) fn of_layer(&mut self, layer: usize) -> Option<CachedExperts<'_>> {
        let Self { reading, layers, region, slot_bytes, latest, places, missing } = self;
        let layer = layers.get(layer)?.as_ref()?;
        Some(CachedExperts { layer, reading, region, slot_bytes: *slot_bytes, latest, places, missing })
    }
}

impl Drop for ExpertCache {
    fn drop(&mut self) {
        let [hits, misses] = self.uses();
        if hits > 0 {
            tracing::info!("of the experts used, {hits} were in memory and {misses} were read from the disk");
        }
    }
}

/// The experts of one layer in the cache.
#[derive(Debug)]
pub(super) struct CachedExperts<'a> {
    layer: &'a LayerExperts,
    reading: &'a mut Reading,
    region: &'a mut Region,
    slot_bytes: usize,
    latest: &'a mut Latest,
    places: &'a mut Vec<usize>,
    missing: &'a mut Vec<Missing>,
}

impl CachedExperts<'_> {
    /// Most experts that can be used at a time.
    pub(super) fn slot_count(&self) -> usize {
        self.latest.counts()[0]
    }

    /// Reads those of these experts that are not in memory.
    ///
    /// # Errors
    /// The file cannot be read any more, or was written to since it was hashed.
    pub(super) fn load(&mut self, experts: &[usize]) -> Result<(), ExpertError> {
        let Self { layer, reading, region, slot_bytes, latest, places, missing } = self;
        latest.choose(layer.first, experts, missing);
        places.resize(layer.count, 0);
        for expert in experts {
            places[*expert] = latest.slot(layer.first + expert).unwrap_or(0) * *slot_bytes;
        }
        if missing.is_empty() {
            return Ok(());
        }
        let read = reading.read(layer, missing, region.bytes_mut(), *slot_bytes);
        if read.is_err() {
            missing.iter().for_each(|missing| latest.forget(missing.slot));
        }
        read
    }

    /// Forgets experts, also in the page cache.
    fn forget(&mut self, experts: &[usize]) {
        for expert in experts {
            if let Some(slot) = self.latest.slot(self.layer.first + expert) {
                self.latest.forget(slot);
            }
            self.layer.slices.iter().for_each(|slice| self.reading.source.leave_pages(slice, *expert));
        }
    }

    /// The slots, in which those experts are that were loaded last.
    pub(super) fn slots(&self) -> Slots<'_> {
        Slots { bytes: self.region.bytes(), places: self.places }
    }
}

/// A matrix to read.
struct MatrixRead<'a> {
    slice: &'a TensorSlice,
    /// Its number in the slice.
    matrix: usize,
    /// Its place in the slot.
    out: &'a mut [u8],
}

/// Reads experts on threads of its own, which mostly wait for the disk.
#[derive(Debug)]
struct Reading {
    source: ExpertSource,
    threads: rayon::ThreadPool,
    /// Rows of the file, for each thread.
    buffers: Vec<Vec<u8>>,
}

impl Reading {
    fn new(file: &Arc<GgufFile>) -> io::Result<Self> {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(READERS).thread_name(|_| "expert-reader".into());
        let threads = threads.build().map_err(io::Error::other)?;
        Ok(Self { source: ExpertSource::new(file), threads, buffers: vec![Vec::new(); READERS] })
    }

    /// Reads missing experts of a layer, sorted by slot, into their slots.
    fn read(
        &mut self,
        layer: &LayerExperts,
        missing: &[Missing],
        slots: &mut [u8],
        slot_bytes: usize,
    ) -> Result<(), ExpertError> {
        let mut reads = Vec::with_capacity(missing.len() * layer.slices.len());
        let (mut rest, mut at) = (slots, 0);
        for Missing { slot, expert } in missing {
            let (_, from) = std::mem::take(&mut rest).split_at_mut(slot * slot_bytes - at);
            let (mut own, behind) = from.split_at_mut(slot_bytes);
            (rest, at) = (behind, (slot + 1) * slot_bytes);
            let mut begin = 0;
            for slice in &layer.slices {
                let (out, further) = own[slice.place.start - begin..].split_at_mut(slice.place.len());
                reads.push(MatrixRead { slice, matrix: *expert, out });
                (own, begin) = (further, slice.place.end);
            }
        }
        let Self { source, threads, buffers } = self;
        let of_each = reads.len().div_ceil(READERS).max(1);
        threads.install(|| {
            let parts = reads.par_chunks_mut(of_each).zip(buffers).with_max_len(1);
            parts.try_for_each(|(reads, rows)| reads.iter_mut().try_for_each(|read| source.fill(read, rows)))
        })
    }
}

/// The file that has the experts.
#[derive(Debug)]
struct ExpertSource {
    file: Arc<GgufFile>,
    /// Stamps of the file's splits when it was hashed: experts of a changed file are never used.
    stamps: Vec<Stamp>,
    /// Counts each piece that was read.
    work: WorkCounter,
}

impl ExpertSource {
    fn new(file: &Arc<GgufFile>) -> Self {
        for split in file.files() {
            // Experts lie anywhere: what the system would read ahead behind one is wasted. What the load left in the page
            // cache would displace other pages.
            advise(posix_fadvise(split, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM));
            advise(posix_fadvise(split, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED));
        }
        Self { file: Arc::clone(file), stamps: Vec::new(), work: WorkCounter::default() }
    }

    fn fill(&self, read: &mut MatrixRead<'_>, rows: &mut Vec<u8>) -> Result<(), ExpertError> {
        let MatrixRead { slice, matrix, out } = read;
        let filled = self.fill_pieces(slice, *matrix, rows, out).and_then(|()| self.check(slice));
        self.leave_pages(slice, *matrix);
        filled.map_err(|source| ExpertError { tensor: slice.name().to_owned(), source })
    }

    /// Reads a matrix in pieces that are counted one by one: on a slow disk, all readers together may take longer for
    /// their matrices than the engine's watchers wait.
    fn fill_pieces(&self, slice: &TensorSlice, matrix: usize, rows: &mut Vec<u8>, out: &mut [u8]) -> io::Result<()> {
        for (first, piece) in slice.pieces(out) {
            slice.fill(&self.file, matrix, first, rows, piece)?;
            self.work.advance();
        }
        Ok(())
    }

    /// Checked after a read: a write changes the file's times before its bytes.
    fn check(&self, slice: &TensorSlice) -> io::Result<()> {
        let stamp = self.stamps.get(slice.split()).copied();
        if stamp.is_some() && self.file.stamp(slice.split())? != stamp {
            return Err(io::Error::other(
                "the model file changed while in use; it is hashed again before it is used again",
            ));
        }
        Ok(())
    }

    /// Leaves no copy of the bytes in the page cache, where it would displace other pages.
    fn leave_pages(&self, slice: &TensorSlice, matrix: usize) {
        let Some(split) = self.file.files().nth(slice.split()) else { return };
        for place in slice.file_places(matrix) {
            let (begin, length) = (place.start as i64, place.len() as i64);
            advise(posix_fadvise(split, begin, length, PosixFadviseAdvice::POSIX_FADV_DONTNEED));
        }
    }
}

impl Drop for ExpertSource {
    fn drop(&mut self) {
        // The file may be read from its beginning to its end next.
        for split in self.file.files() {
            advise(posix_fadvise(split, 0, 0, PosixFadviseAdvice::POSIX_FADV_NORMAL));
        }
    }
}

/// Advice is optional: a file system may not support it.
fn advise(done: nix::Result<()>) {
    if let Err(error) = done {
        tracing::debug!("the file system takes no advice: {error}");
    }
}

#[cfg(test)]
mod tests;
