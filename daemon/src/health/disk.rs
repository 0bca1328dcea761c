//! The file system with the models: what it lies on, its room, and how fast something large was read from it.
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use shared::{
    telemetry::health::{DiskUse, Space, Storage},
    units::Bytes,
};

use super::source::Root;

/// Fewer bytes read between two readings say nothing about the disk's speed.
const READ_MIN: u64 = 16 << 20;
/// Bytes of a sector in /proc/diskstats, whatever the disk's are.
const SECTOR: u64 = 512;

/// Counters of the reading before, and the best rate so far.
#[derive(Debug, Default)]
pub(super) struct Reads {
    before: Option<Counters>,
    best: Option<Bytes>,
}

#[derive(Clone, Copy, Debug)]
struct Counters {
    bytes: u64,
    busy_ms: u64,
}

/// A line of mountinfo (proc_pid_mountinfo(5)).
struct Mount {
    number: String,
    point: String,
    kind: String,
    source: String,
    is_read_only: bool,
}

/// Reads the file system that `folder` lies on; it need not exist yet.
pub(super) fn read(root: &Root, folder: &Path, reads: &mut Reads) -> Option<DiskUse> {
    let folder = existing(root, folder);
    let mount = mount(root, &folder)?;
    let device = device(root, &mount);
    let storage = storage(root, &mount, device.as_deref());
    let counters = device.as_deref().and_then(|device| counters(root, device));
    Some(DiskUse {
        device: device.unwrap_or(mount.source),
        storage,
        is_read_only: mount.is_read_only,
        space: space(root, &folder),
        read_rate: reads.rate(counters),
        mount: mount.point,
    })
}

/// The folder, or what of it exists. A fixture has one file system.
fn existing(root: &Root, folder: &Path) -> PathBuf {
    let found = folder.ancestors().find_map(|folder| folder.canonicalize().ok());
    if root.is_machine() { found.unwrap_or_else(|| "/".into()) } else { "/".into() }
}

/// The mount with the longest point above the folder; of several on one point the last hides the others.
fn mount(root: &Root, folder: &Path) -> Option<Mount> {
    let table = root.text("proc/self/mountinfo")?;
    let mounts = table.lines().filter_map(parse).filter(|mount| folder.starts_with(&mount.point));
    mounts.max_by_key(|mount| mount.point.len())
}

fn parse(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let before: Vec<&str> = before.split(' ').collect();
    let after: Vec<&str> = after.split(' ').collect();
    let is_ro = |options: Option<&&str>| options.is_some_and(|options| options.split(',').any(|option| option == "ro"));
    Some(Mount {
        number: (*before.get(2)?).into(),
        point: before.get(4)?.replace("\\040", " "),
        kind: (*after.first()?).into(),
        source: (*after.get(1)?).into(),
        is_read_only: is_ro(before.get(5)) || is_ro(after.get(2)),
    })
}

/// The whole disk, e.g. `mmcblk0`; by the mount's number, for its source may be called `/dev/root`.
fn device(root: &Root, mount: &Mount) -> Option<String> {
    let event = root.text(&format!("sys/dev/block/{}/uevent", mount.number));
    let name = event.as_deref().and_then(|event| event.lines().find_map(|line| line.strip_prefix("DEVNAME=")));
    let name = name.or_else(|| mount.source.strip_prefix("/dev/"))?;
    // Partitions are `sda2`, but `nvme0n1p2` and `mmcblk0p2`.
    let without = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let numbered = without.strip_suffix('p').filter(|disk| disk.ends_with(|c: char| c.is_ascii_digit()));
    let is_whole = |name: &&str| root.has(&format!("sys/block/{name}"));
    let candidates = [Some(name), numbered, Some(without)];
    let found = candidates.into_iter().flatten().filter(|name| !name.is_empty() && !name.contains('/')).find(is_whole);
    found.map(str::to_owned)
}

fn storage(root: &Root, mount: &Mount, device: Option<&str>) -> Storage {
    match mount.kind.as_str() {
        "nfs" | "nfs4" | "cifs" | "9p" => return Storage::Network,
        "tmpfs" | "ramfs" => return Storage::Memory,
        _ => {}
    }
    let Some(device) = device else { return Storage::Other };
    let value = |name: &str| root.value::<String>(&format!("sys/block/{device}/{name}"));
    if device.starts_with("mmcblk") {
        return if value("device/type").as_deref() == Some("MMC") { Storage::Emmc } else { Storage::Sd };
    }
    if device.starts_with("nvme") {
        return Storage::Nvme;
    }
    match value("queue/rotational").as_deref() {
        Some("0") => Storage::Ssd,
        Some("1") => Storage::Hdd,
        _ => Storage::Other,
    }
}

/// What statvfs(3) says; no file of /proc has it, so a fixture has one of its own: `statvfs` with both numbers of bytes.
fn space(root: &Root, folder: &Path) -> Option<Space> {
    if root.is_machine() {
        let found = statvfs(folder).ok()?;
        let block = found.fragment_size() as u64;
        let bytes = |blocks: u64| Bytes(blocks.saturating_mul(block));
        let (total, available) = (found.blocks() as u64, found.blocks_available() as u64);
        return Some(Space { total: bytes(total), available: bytes(available) });
    }
    let text = root.text("statvfs")?;
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok().map(Bytes));
    Some(Space { total: numbers.next()??, available: numbers.next()?? })
}

fn counters(root: &Root, device: &str) -> Option<Counters> {
    let table = root.text("proc/diskstats")?;
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let fields = fields.into_iter().find(|fields| fields.get(2) == Some(&device))?;
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Counters { bytes: number(5)?.saturating_mul(SECTOR), busy_ms: number(12)? })
}

impl Reads {
    /// The best rate so far: bytes read by the time in which the disk was busy, between two readings with much to read.
    fn rate(&mut self, counters: Option<Counters>) -> Option<Bytes> {
        let before = std::mem::replace(&mut self.before, counters);
        if let Some((now, before)) = counters.zip(before) {
            let bytes = now.bytes.saturating_sub(before.bytes);
            let busy_ms = now.busy_ms.saturating_sub(before.busy_ms).max(1);
            if bytes >= READ_MIN {
                self.best = self.best.max(Some(Bytes(bytes.saturating_mul(1000) / busy_ms)));
            }
        }
        self.best
    }
}
