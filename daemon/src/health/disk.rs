//! The file systems that hold models and state: their disks, their free space, and the read rates of large reads.
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use common::units::Bytes;
use nix::sys::statvfs::statvfs;
use telemetry::{
    Health, Severity, Warning,
    health::{DiskUse, Space, Storage},
};

use super::root::Root;

/// Reads of fewer bytes between two readings do not show the disk's speed.
const READ_MIN: u64 = 16 << 20;
/// Bytes of a sector in /proc/diskstats, regardless of the disk's sector size.
const SECTOR: u64 = 512;

/// The folders whose disks are watched. They need not exist yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedFolders {
    /// Those of the models, in search order. Only the first one is written: the disks of the others may be full or
    /// read-only.
    pub models: Vec<PathBuf>,
    /// That of the state.
    pub state: PathBuf,
}

/// The watched disks.
#[derive(Debug)]
pub(super) struct Disks {
    folders: WatchedFolders,
    /// By mount point.
    reads: BTreeMap<String, Reads>,
}

impl Disks {
    pub(super) fn new(folders: WatchedFolders) -> Self {
        Self { folders, reads: BTreeMap::new() }
    }

    /// Watches the disks of other folders from now on.
    pub(super) fn watch(&mut self, folders: WatchedFolders) {
        if self.folders != folders {
            *self = Self::new(folders);
        }
    }

    /// Of the disks that are written, the one with the worst problem, because a report has room for one; without a
    /// problem, that of the first model folder.
    pub(super) fn read(&mut self, root: &Root) -> Option<DiskUse> {
        let WatchedFolders { models, state } = &self.folders;
        let of_models = models.iter().filter_map(|folder| mount(root, &existing(root, folder)));
        let of_models: Vec<String> = of_models.map(|mount| mount.point).collect();
        let mut worst: Option<(Option<Severity>, DiskUse)> = None;
        for folder in models.first().into_iter().chain([state]) {
            let folder = existing(root, folder);
            let Some(mount) = mount(root, &folder) else { continue };
            if worst.as_ref().is_some_and(|(_, disk)| disk.mount == mount.point) {
                continue;
            }
            let mut disk = of_mount(root, &folder, self.reads.entry(mount.point.clone()).or_default(), mount);
            if !of_models.contains(&disk.mount) {
                // Readers of a report take these for properties of the disk that holds the models.
                (disk.storage, disk.read_rate) = (Storage::Other, None);
            }
            let problem = problem(&disk);
            if worst.as_ref().is_none_or(|(before, _)| problem > *before) {
                worst = Some((problem, disk));
            }
        }
        worst.map(|(_, disk)| disk)
    }
}

/// The severity of the worst problem of a disk.
fn problem(disk: &DiskUse) -> Option<Severity> {
    let health = Health { disk: Some(disk.clone()), ..Health::default() };
    health.warnings().iter().map(Warning::severity).max()
}

/// Counters of the previous reading, and the best rate so far.
#[derive(Debug, Default)]
struct Reads {
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

/// Reads the file system that holds `folder`, which need not exist yet; its read rate stays unknown.
pub(super) fn read(root: &Root, folder: &Path) -> Option<DiskUse> {
    let folder = existing(root, folder);
    let mount = mount(root, &folder)?;
    Some(of_mount(root, &folder, &mut Reads::default(), mount))
}

fn of_mount(root: &Root, folder: &Path, reads: &mut Reads, mount: Mount) -> DiskUse {
    let device = device(root, &mount);
    let storage = storage(root, &mount, device.as_deref());
    let counters = device.as_deref().and_then(|device| counters(root, device));
    DiskUse {
        device: device.unwrap_or(mount.source),
        storage,
        is_read_only: mount.is_read_only,
        space: space(root, folder, &mount.point),
        read_rate: reads.rate(counters),
        mount: mount.point,
    }
}

/// The folder, or its nearest existing parent. Folders of a fixture are below its root.
fn existing(root: &Root, folder: &Path) -> PathBuf {
    let found = folder.ancestors().find_map(|folder| match root.is_machine() {
        true => folder.canonicalize().ok(),
        false => {
            let below = folder.strip_prefix("/").ok()?;
            root.has(&below.to_string_lossy()).then(|| folder.to_owned())
        }
    });
    found.unwrap_or_else(|| "/".into())
}

/// The mount whose mount point is the longest prefix of the folder; of several mounts on one point, the last one is
/// visible.
fn mount(root: &Root, folder: &Path) -> Option<Mount> {
    let table = root.text("proc/self/mountinfo")?;
    let mounts = table.lines().filter_map(parse).filter(|mount| folder.starts_with(&mount.point));
    mounts.max_by_key(|mount| mount.point.len())
}

fn parse(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let before: Vec<&str> = before.split(' ').collect();
    let after: Vec<&str> = after.split(' ').collect();
    Some(Mount {
        number: (*before.get(2)?).into(),
        point: before.get(4)?.replace("\\040", " "),
        kind: (*after.first()?).into(),
        source: (*after.get(1)?).into(),
        // Of the file system, not of the mount: in the service's own view every mount outside the writable folders is `ro`.
        is_read_only: after.get(2).is_some_and(|options| options.split(',').any(|option| option == "ro")),
    })
}

/// The whole disk, e.g. `mmcblk0`; by the mount's device number, because its source may be `/dev/root`.
fn device(root: &Root, mount: &Mount) -> Option<String> {
    let event = root.text(&format!("sys/dev/block/{}/uevent", mount.number));
    let name = event.as_deref().and_then(|event| event.lines().find_map(|line| line.strip_prefix("DEVNAME=")));
    let name = name.or_else(|| mount.source.strip_prefix("/dev/"))?;
    // Partitions are named `sda2`, but `nvme0n1p2` and `mmcblk0p2`.
    let without = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let numbered = without.strip_suffix('p').filter(|disk| disk.ends_with(|c: char| c.is_ascii_digit()));
    let candidates = [Some(name), numbered, Some(without)];
    let found = candidates
        .into_iter()
        .flatten()
        .filter(|name| !name.is_empty() && !name.contains('/'))
        .find(|name| root.has(&format!("sys/block/{name}")));
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

/// The result of statvfs(3). No file of /proc has it, so each mount point of a fixture has a file `statvfs` with both
/// numbers of bytes.
fn space(root: &Root, folder: &Path, point: &str) -> Option<Space> {
    if root.is_machine() {
        let found = statvfs(folder).ok()?;
        let block = found.fragment_size() as u64;
        let bytes = |blocks: u64| Bytes(blocks.saturating_mul(block));
        let (total, available) = (found.blocks() as u64, found.blocks_available() as u64);
        return Some(Space { total: bytes(total), available: bytes(available) });
    }
    let text = root.text(format!("{point}/statvfs").trim_start_matches('/'))?;
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
    /// The best rate so far: bytes read divided by the disk's busy time, between two readings with large reads.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_system_that_is_read_only_counts() {
        let is_read_only = |line| parse(line).map(|mount| mount.is_read_only);
        let in_the_unit = "31 25 8:1 / /mnt/ssd ro,noatime master:9 - ext4 /dev/sda1 rw,errors=remount-ro";
        assert_eq!(is_read_only(in_the_unit), Some(false));
        let after_an_error = "31 25 8:1 / /mnt/ssd rw,noatime shared:9 - ext4 /dev/sda1 ro,errors=remount-ro";
        assert_eq!(is_read_only(after_an_error), Some(true));
    }
}
