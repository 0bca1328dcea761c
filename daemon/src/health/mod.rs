//! Health readings of this machine; one source per file. Reads only, never writes to the system.
mod clock;
mod disk;
mod eee;
mod firmware;
mod hardware;
mod link;
mod load;
pub mod machine;
pub mod memory;
mod page;
mod power;
mod root;
mod scheduling;
mod tcp;
#[cfg(test)]
mod tests;
mod thermal;
mod time;
mod voltage;
mod window;

use std::{net::SocketAddr, path::Path, time::Instant};

use telemetry::{
    Health,
    health::{Hardware, Storage},
};

pub use self::disk::WatchedFolders;
use self::{
    disk::Disks, eee::Ethtool, firmware::Firmware, load::CpuCounters, memory::Swap, power::Pmic, root::Root,
    scheduling::Scheduling, window::Window,
};

/// The kind of disk that holds a folder, which need not exist yet, and the size of its file system in bytes. `root` is
/// that of /proc and /sys.
pub fn disk_of(root: &Path, folder: &Path) -> (Option<Storage>, Option<u64>) {
    let found = disk::read(&Root::new(root), folder);
    (found.as_ref().map(|disk| disk.storage), found.and_then(|disk| Some(disk.space?.total.0)))
}

/// All sources, and the counters of the previous reading.
#[derive(Debug)]
pub struct Monitor {
    root: Root,
    listen: SocketAddr,
    disks: Disks,
    /// Detected by the first reading.
    firmware: Option<Firmware>,
    /// Detected by the first reading.
    pmic: Option<Pmic>,
    /// Read once.
    hardware: Option<Hardware>,
    /// Detected by the first reading.
    ethtool: Option<Ethtool>,
    frames: Window,
    segments: Window,
    swap: Swap,
    load: CpuCounters,
    scheduling: Scheduling,
}

impl Monitor {
    /// Sources below `root` (`/`: this machine) for a node that listens on `listen` and uses these folders. Opens
    /// nothing yet.
    pub fn new(root: &Path, listen: SocketAddr, folders: WatchedFolders) -> Self {
        Self {
            root: Root::new(root),
            listen,
            disks: Disks::new(folders),
            firmware: None,
            pmic: None,
            hardware: None,
            ethtool: None,
            frames: Window::default(),
            segments: Window::default(),
            swap: Swap::default(),
            load: CpuCounters::default(),
            scheduling: Scheduling::default(),
        }
    }

    /// Reads the disks of these folders from now on.
    pub fn watch_disks(&mut self, folders: WatchedFolders) {
        self.disks.watch(folders);
    }

    /// Reads all sources; a few milliseconds. Rates are relative to the previous reading.
    pub fn read(&mut self, now: Instant) -> Health {
        let root = &self.root;
        let interface = link::interface(root, self.listen);
        let hardware = self.hardware.get_or_insert_with(|| hardware::read(root)).clone();
        let ethtool = self.ethtool.get_or_insert_with(|| Ethtool::find(root));
        let frames = &mut self.frames;
        Health {
            temperature: thermal::read(root),
            clock: clock::read(root),
            firmware: self.firmware.get_or_insert_with(|| Firmware::find(root)).read(root),
            is_voltage_low: voltage::read(root),
            memory: memory::read(root, &mut self.swap, now),
            disk: self.disks.read(root),
            link: interface.and_then(|interface| link::read(root, &interface, ethtool, frames, now)),
            tcp: tcp::read(root, &mut self.segments, now),
            load: self.load.read(root),
            run_queue: self.scheduling.read(root, now),
            is_time_synchronized: time::read(root),
            page: page::read(root),
            power: self.pmic.get_or_insert_with(|| Pmic::find(root, hardware.model.as_deref())).read(now),
            hardware: Some(hardware).filter(|hardware| *hardware != Hardware::default()),
        }
    }
}
