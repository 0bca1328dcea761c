//! The health of a node's machine as it was read last. What cannot be read is `None`.
use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Celsius, Megahertz};

/// One reading of all sources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Of the processor.
    pub temperature: Option<Celsius>,
    /// Frequency scaling of the fastest cores.
    pub clock: Option<Clock>,
    /// Throttle bits of a Raspberry Pi's firmware.
    pub firmware: Option<ThrottleBits>,
    /// Whether the kernel saw the supply's voltage too low in the last seconds (a Raspberry Pi's `rpi_volt`).
    pub is_voltage_low: Option<bool>,
    /// Memory and swap.
    pub memory: Option<MemoryUse>,
    /// The file system with the models.
    pub disk: Option<DiskUse>,
    /// The network interface that the node listens on.
    pub link: Option<NetworkLink>,
    /// Segments that TCP sent.
    pub tcp: Option<Traffic>,
    /// Cores kept busy by everything but this daemon.
    pub load: Option<LoadByOthers>,
    /// How long the engine's threads were ready and did not run.
    pub run_queue: Option<RunQueue>,
    /// Whether something keeps the clock right over the network.
    pub is_time_synchronized: Option<bool>,
    /// A page of the kernel's memory: 4 KiB, or 16 KiB on a Raspberry Pi 5.
    pub page: Option<Bytes>,
}

impl Health {
    /// What was read, a line for each source that says something.
    pub fn readings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut line = |what: &str, text: Option<String>| lines.extend(text.map(|text| format!("{what:<12} {text}")));
        line("temperature", self.temperature.map(|celsius| celsius.to_string()));
        line(
            "clock",
            self.clock.as_ref().map(|clock| {
                format!(
                    "{} now, limit {}, hardware {}, governor {}",
                    clock.current, clock.limit, clock.hardware, clock.governor
                )
            }),
        );
        line(
            "throttle",
            self.firmware.map(|bits| format!("bits {:#x} (now: low 4 bits; since boot: 16 higher)", bits.0)),
        );
        line(
            "memory",
            self.memory.map(|memory| {
                format!(
                    "{} of {} available, swap {} of {} used",
                    memory.available, memory.total, memory.swap_used, memory.swap_total
                )
            }),
        );
        line("disk", self.disk.as_ref().map(DiskUse::line));
        line("link", self.link.as_ref().map(NetworkLink::line));
        line("tcp", self.tcp.map(|tcp| format!("{} of {} segments sent again", tcp.failed, tcp.count)));
        line("load", self.load.map(|load| format!("others use {:.1} of {} cores", load.others, load.cores)));
        line(
            "time",
            self.is_time_synchronized.map(|is| if is { "synchronised".into() } else { "not synchronised".into() }),
        );
        line("page", self.page.map(|page| page.to_string()));
        lines
    }

    /// What could not be read, in words. A machine with a fine clock and no firmware of a Raspberry Pi has some.
    pub fn unread(&self) -> Vec<&'static str> {
        let link = self.link.as_ref();
        let has = [
            ("temperature", self.temperature.is_some()),
            ("clock and governor", self.clock.is_some()),
            ("throttle bits of the firmware", self.firmware.is_some()),
            ("supply voltage", self.is_voltage_low.is_some() || self.firmware.is_some()),
            ("memory", self.memory.is_some()),
            ("disk", self.disk.is_some()),
            ("free space", self.disk.as_ref().is_some_and(|disk| disk.space.is_some())),
            ("read rate of the disk", self.disk.as_ref().is_some_and(|disk| disk.read_rate.is_some())),
            ("network link", link.is_some()),
            ("speed of the link", link.is_some_and(|link| link.mbit.is_some())),
            ("duplex of the link", link.is_some_and(|link| link.is_full_duplex.is_some())),
            ("energy-efficient Ethernet", link.is_some_and(|link| link.is_energy_efficient.is_some())),
            ("errors of the link", link.is_some_and(|link| link.frames.is_some())),
            ("TCP retransmits", self.tcp.is_some()),
            ("load by others", self.load.is_some()),
            ("time synchronisation", self.is_time_synchronized.is_some()),
            ("page size", self.page.is_some()),
        ];
        has.into_iter().filter(|(_, is_read)| !is_read).map(|(what, _)| what).collect()
    }
}

/// Frequency scaling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clock {
    /// The governor, e.g. `ondemand`.
    pub governor: String,
    /// The kernel's scaling driver, e.g. `cpufreq-dt`.
    pub driver: String,
    /// Now.
    pub current: Megahertz,
    /// The most that the settings allow.
    pub limit: Megahertz,
    /// The most that the hardware can.
    pub hardware: Megahertz,
}

impl Clock {
    /// Whether the governor holds the clock at its lowest. Drivers that scale by themselves use the same word otherwise.
    pub fn is_held_low(&self) -> bool {
        self.governor == "powersave" && !self.is_driven()
    }

    /// Whether the governor lowers the clock by how busy the cores are.
    pub fn scales(&self) -> bool {
        matches!(self.governor.as_str(), "ondemand" | "conservative" | "schedutil") && !self.is_driven()
    }

    /// Whether the hardware chooses the clock by itself.
    fn is_driven(&self) -> bool {
        matches!(self.driver.as_str(), "intel_pstate" | "amd-pstate-epp")
    }
}

/// The answer to `get_throttled`: bits 0 to 3 now, the same 16 higher since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThrottleBits(pub u32);

/// One of the firmware's four reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Throttle {
    /// Bit 0: the supply's voltage is too low.
    UnderVoltage,
    /// Bit 1: the clock is capped.
    Capped,
    /// Bit 2: the clock is lowered.
    Throttled,
    /// Bit 3: the soft temperature limit is reached.
    SoftLimit,
}

impl Throttle {
    /// All, by bit.
    pub const ALL: [Self; 4] = [Self::UnderVoltage, Self::Capped, Self::Throttled, Self::SoftLimit];

    /// In two words.
    pub fn name(self) -> &'static str {
        match self {
            Self::UnderVoltage => "under-voltage",
            Self::Capped => "clock capped",
            Self::Throttled => "throttled",
            Self::SoftLimit => "soft temperature limit",
        }
    }
}

impl ThrottleBits {
    /// Whether it is so now.
    pub fn is(self, throttle: Throttle) -> bool {
        self.0 >> throttle as u32 & 1 == 1
    }

    /// Whether it was so at any time since boot.
    pub fn has_been(self, throttle: Throttle) -> bool {
        self.0 >> (throttle as u32 + 16) & 1 == 1
    }
}

/// Memory and swap of the machine and of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Of the machine.
    pub total: Bytes,
    /// What the machine could still give without swapping.
    pub available: Bytes,
    /// Swap space.
    pub swap_total: Bytes,
    /// Swap space in use.
    pub swap_used: Bytes,
    /// Bytes swapped in and out per second since the reading before.
    pub swap_rate: Bytes,
}

/// What a file system lies on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// An SD card.
    Sd,
    /// Flash that is soldered on.
    Emmc,
    /// A solid-state disk over SATA or USB.
    Ssd,
    /// A solid-state disk over PCIe.
    Nvme,
    /// A disk that turns.
    Hdd,
    /// Another machine's disk.
    Network,
    /// Memory.
    Memory,
    /// Something else, or it cannot be told.
    #[default]
    Other,
}

impl Storage {
    /// In a word or two.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sd => "SD card",
            Self::Emmc => "eMMC",
            Self::Ssd => "SSD",
            Self::Nvme => "NVMe",
            Self::Hdd => "hard disk",
            Self::Network => "network",
            Self::Memory => "memory",
            Self::Other => "unknown",
        }
    }
}

/// Room on a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// In all.
    pub total: Bytes,
    /// For whoever is not root.
    pub available: Bytes,
}

/// A file system and what it lies on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUse {
    /// The device, e.g. `mmcblk0`, or what is mounted where there is none.
    pub device: String,
    /// Where it is mounted.
    pub mount: String,
    /// What it is.
    pub storage: Storage,
    /// Whether it is mounted read-only.
    pub is_read_only: bool,
    /// Room on it.
    pub space: Option<Space>,
    /// Bytes per second while something large was read from it; the best since the daemon began, `None` before that.
    pub read_rate: Option<Bytes>,
}

impl DiskUse {
    fn line(&self) -> String {
        let space = self.space.map(|space| format!(", {} of {} free", space.available, space.total));
        let rate = self.read_rate.map(|rate| format!(", read with {rate}/s"));
        let writable = if self.is_read_only { "read-only" } else { "writable" };
        let (space, rate) = (space.unwrap_or_default(), rate.unwrap_or_default());
        format!("{} on {} ({}), {writable}{space}{rate}", self.mount, self.device, self.storage.name())
    }
}

/// What went over a wire since some time ago, and what of it went wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Frames or segments.
    pub count: u64,
    /// Those with errors, or sent again.
    pub failed: u64,
}

impl Traffic {
    /// Share of what went wrong.
    pub fn share(self) -> f64 {
        crate::latency::ratio(self.failed as f64, self.count as f64)
    }
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkLink {
    /// Its name, e.g. `eth0`.
    pub interface: String,
    /// Its speed in Mbit/s; loopback and virtual interfaces have none.
    pub mbit: Option<u32>,
    /// Whether it is a wireless one.
    pub is_wireless: bool,
    /// Whether it sends and receives at the same time.
    pub is_full_duplex: Option<bool>,
    /// Whether it sleeps between frames (IEEE 802.3az): each frame after a pause then waits for it to wake.
    pub is_energy_efficient: Option<bool>,
    /// Longest packet in bytes.
    pub mtu: Option<u32>,
    /// Bytes in both directions since boot.
    pub bytes: Option<u64>,
    /// Frames in both directions within the last minute (since boot in the first reading).
    pub frames: Option<Traffic>,
}

impl NetworkLink {
    fn line(&self) -> String {
        let speed = self.mbit.map(|mbit| format!(", {mbit} Mbit/s"));
        let duplex = self.is_full_duplex.map(|is_full| if is_full { ", full duplex" } else { ", half duplex" });
        let sleeps = self.is_energy_efficient.map(|is| if is { ", EEE on" } else { ", EEE off" });
        let mtu = self.mtu.map(|mtu| format!(", MTU {mtu}"));
        let frames = self.frames.map(|frames| format!(", {} of {} frames broken", frames.failed, frames.count));
        let wireless = if self.is_wireless { " (wireless)" } else { "" };
        let words =
            [speed.as_deref(), duplex, sleeps, mtu.as_deref(), frames.as_deref()].map(Option::unwrap_or_default);
        format!("{}{wireless}{}", self.interface, words.concat())
    }
}

/// Processor time of everything but this daemon.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadByOthers {
    /// Cores that others kept busy since the reading before, e.g. 0.7.
    pub others: f32,
    /// Cores of the machine.
    pub cores: u16,
}

/// What the kernel's scheduler says of the engine's threads, of the one that waited longest for a core. A stopped process waits
/// for none: this tells cores that are shared from everything else that holds a rank up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunQueue {
    /// Share of the time since the reading before in which it was ready and did not run.
    pub waited: f32,
    /// Share in which it ran.
    pub ran: f32,
}
