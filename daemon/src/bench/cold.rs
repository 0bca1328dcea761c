//! Loads from the disk and from the page cache, and this process's counters: bytes read from the disk, peak memory.
use std::{fs, path::Path, sync::Arc, time::Instant};

use anyhow::Context;
use common::units::Bytes;
use engine::model::{Shard, Source};
use gguf::GgufFile;
use kernels::Kernels;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use topology::cut;

/// Minimum share of the weights that must come from the disk; with less, the pages had stayed in the cache. Read-ahead
/// can exceed 1.
const DISK_SHARE: f64 = 0.9;

/// A load after the file was dropped from the page cache.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cold {
    pub(super) seconds: Option<f64>,
    pub(super) disk_bytes: Option<u64>,
    pub(super) note: Option<String>,
}

/// Loads a whole model on one machine, without packed shards of earlier loads.
pub(super) fn load(path: &Path, kernels: &'static Kernels) -> anyhow::Result<Shard> {
    let file = Arc::new(open(path)?);
    let spec = models::read(&file)?;
    let plans = cut(&spec, &[1])?;
    let source = Source {
        file: &file,
        spec: &spec,
        plan: &plans[0],
        kernels,
        cache: None,
        expert_memory: None,
        is_hollow: false,
        progress: &|_| true,
    };
    Ok(Shard::load(source)?)
}

/// Like [`load`], from the disk.
pub(super) fn load_cold(path: &Path, kernels: &'static Kernels) -> anyhow::Result<(Shard, Cold)> {
    let dropped = forget_pages(&open(path)?);
    let before = disk_bytes();
    let begin = Instant::now();
    let shard = load(path, kernels)?;
    let seconds = begin.elapsed().as_secs_f64();
    let disk_bytes = before.zip(disk_bytes()).map(|(before, after)| after.saturating_sub(before));
    let cold = judge(dropped, seconds, disk_bytes, shard.byte_length());
    Ok((shard, cold))
}

/// Opens a model.
pub(super) fn open(path: &Path) -> anyhow::Result<GgufFile> {
    GgufFile::open(path).with_context(|| format!("cannot use {}", path.display()))
}

/// Drops a model's file from the page cache.
fn forget_pages(file: &GgufFile) -> Result<(), String> {
    for split in file.files() {
        // Pages that are not written yet stay; a read-only disk has none.
        let _ = split.sync_data();
        posix_fadvise(split, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Returns the seconds only if the bytes came from the disk, as far as the system reports.
fn judge(dropped: Result<(), String>, seconds: f64, disk_bytes: Option<u64>, weight_bytes: u64) -> Cold {
    let (seconds, note) = match (dropped, disk_bytes) {
        (Err(error), _) => (None, Some(format!("cannot drop the file from the page cache: {error}"))),
        (Ok(()), None) => {
            (Some(seconds), Some("it is unknown whether the file had left the page cache: no /proc/self/io".into()))
        }
        (Ok(()), Some(bytes)) if (bytes as f64) < weight_bytes as f64 * DISK_SHARE => {
            let (bytes, all) = (Bytes(bytes), Bytes(weight_bytes));
            let note = format!("only {bytes} of {all} came from the disk: the file did not leave the page cache");
            (None, Some(note))
        }
        (Ok(()), Some(_)) => (Some(seconds), None),
    };
    Cold { seconds, disk_bytes, note }
}

/// Bytes that this process has read from disks.
fn disk_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes:"))?.trim().parse().ok()
}

/// Resets VmHWM; false if the system does not allow it.
pub(super) fn forget_peak() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// VmHWM of this process.
pub(super) fn resident_peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_cold_only_if_its_bytes_came_from_the_disk() {
        let cold = judge(Ok(()), 2.0, Some(101), 100);
        assert_eq!(cold, Cold { seconds: Some(2.0), disk_bytes: Some(101), note: None });
        let cached = judge(Ok(()), 2.0, Some(50), 100);
        assert!(cached.seconds.is_none() && cached.note.is_some_and(|note| note.contains("50 B of 100 B")));
        let refused = judge(Err("EINVAL".into()), 2.0, Some(101), 100);
        assert!(refused.seconds.is_none() && refused.note.is_some_and(|note| note.contains("EINVAL")));
        let unknown = judge(Ok(()), 2.0, None, 100);
        assert!(unknown.seconds == Some(2.0) && unknown.note.is_some());
    }
}
