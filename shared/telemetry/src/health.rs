//! The health of a node's machine at the last reading. Values that cannot be read are `None`.
use common::units::{Bytes, Celsius, Megahertz, Milliwatts};
use serde::{Deserialize, Serialize};

/// One reading of all sources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Temperature of the processor.
    pub temperature: Option<Celsius>,
    /// Frequency scaling of the fastest cores.
    pub clock: Option<Clock>,
    /// Throttle bits of a Raspberry Pi's firmware.
    pub firmware: Option<ThrottleBits>,
    /// Whether the kernel reported a low supply voltage in the last seconds (a Raspberry Pi's `rpi_volt`).
    pub is_voltage_low: Option<bool>,
    /// Memory and swap.
    pub memory: Option<MemoryUse>,
    /// The file system of the first model folder, or of the state if its problem is worse: then without the kind of
    /// storage and the read rate, unless it holds models, too.
    pub disk: Option<DiskUse>,
    /// The network interface on which the node listens.
    pub link: Option<NetworkLink>,
    /// Segments sent by TCP.
    pub tcp: Option<Traffic>,
    /// Cores kept busy by other processes than this daemon.
    pub load: Option<LoadByOthers>,
    /// How long the engine's threads were runnable but not running.
    pub run_queue: Option<RunQueue>,
    /// Whether the clock is synchronised over the network.
    pub is_time_synchronized: Option<bool>,
    /// Page size of the kernel: 4 KiB, or 16 KiB on a Raspberry Pi 5.
    pub page: Option<Bytes>,
    /// Power of the rails that a Raspberry Pi 5's PMIC measures, at most a few seconds old.
    #[serde(default, with = "common::version::since_15")]
    pub power: Option<Milliwatts>,
    /// The machine.
    #[serde(default, with = "common::version::since_15")]
    pub hardware: Option<Hardware>,
}

/// What does not change while the daemon runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardware {
    /// Its model, e.g. `Raspberry Pi 5 Model B Rev 1.0`; `None` if the firmware names none.
    pub model: Option<String>,
    /// Release of its kernel, e.g. `6.12.34+rpt-rpi-2712`.
    pub kernel: Option<String>,
}

impl Health {
    /// The readings, one line for each source with a value.
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
            self.firmware.map(|bits| format!("bits {:#x} (now: bits 0 to 3; since boot: bits 16 to 19)", bits.0)),
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
        line("tcp", self.tcp.map(|tcp| format!("{} of {} segments retransmitted", tcp.failed, tcp.count)));
        line("load", self.load.map(|load| format!("other processes use {:.1} of {} cores", load.others, load.cores)));
        line(
            "time",
            self.is_time_synchronized.map(|is| if is { "synchronised".into() } else { "not synchronised".into() }),
        );
        line("page", self.page.map(|page| page.to_string()));
        line("power", self.power.map(|power| power.to_string()));
        let hardware = self.hardware.as_ref();
        line("machine", hardware.and_then(|hardware| hardware.model.clone()));
        line("kernel", hardware.and_then(|hardware| hardware.kernel.clone()));
        lines
    }

    /// The sources that could not be read, in words. Not every machine has all of them: only a Raspberry Pi has its
    /// firmware.
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
            ("load by other processes", self.load.is_some()),
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
    /// Current frequency.
    pub current: Megahertz,
    /// The highest frequency that the settings allow.
    pub limit: Megahertz,
    /// The highest frequency of the hardware.
    pub hardware: Megahertz,
}

impl Clock {
    /// Whether the governor keeps the clock at its lowest frequency. Drivers that scale by themselves use the same name
    /// with another meaning.
    pub fn is_held_low(&self) -> bool {
        self.governor == "powersave" && !self.is_driven()
    }

    /// Whether the governor adapts the clock to the load.
    pub fn scales(&self) -> bool {
        matches!(self.governor.as_str(), "ondemand" | "conservative" | "schedutil") && !self.is_driven()
    }

    /// Whether the hardware chooses the frequency by itself.
    fn is_driven(&self) -> bool {
        matches!(self.driver.as_str(), "intel_pstate" | "amd-pstate-epp")
    }
}

/// The response to `get_throttled`: bits 0 to 3 for the current state, bits 16 to 19 for any time since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThrottleBits(pub u32);

/// One of the firmware's four causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Throttle {
    /// Bit 0: the supply voltage is too low.
    UnderVoltage,
    /// Bit 1: the clock is capped.
    Capped,
    /// Bit 2: the clock is lowered.
    Throttled,
    /// Bit 3: the soft temperature limit is reached.
    SoftLimit,
}

impl Throttle {
    /// All causes, by bit.
    pub const ALL: [Self; 4] = [Self::UnderVoltage, Self::Capped, Self::Throttled, Self::SoftLimit];

    /// The name in a few words.
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
    /// Whether the cause applies now.
    pub fn is(self, throttle: Throttle) -> bool {
        self.0 >> throttle as u32 & 1 == 1
    }

    /// Whether the cause has applied at any time since boot.
    pub fn has_been(self, throttle: Throttle) -> bool {
        self.0 >> (throttle as u32 + 16) & 1 == 1
    }
}

/// Memory and swap of the machine and of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Total memory of the machine.
    pub total: Bytes,
    /// Memory available without swapping.
    pub available: Bytes,
    /// Total swap space.
    pub swap_total: Bytes,
    /// Swap space in use.
    pub swap_used: Bytes,
    /// Bytes swapped in and out per second since the previous reading.
    pub swap_rate: Bytes,
}

/// The storage below a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// An SD card.
    Sd,
    /// Soldered flash.
    Emmc,
    /// A solid-state disk over SATA or USB.
    Ssd,
    /// A solid-state disk over PCIe.
    Nvme,
    /// A rotating disk.
    Hdd,
    /// A network file system.
    Network,
    /// A file system in memory.
    Memory,
    /// Another or unknown kind of storage.
    #[default]
    Other,
}

impl Storage {
    /// The name in a word or two.
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

/// Space on a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Total.
    pub total: Bytes,
    /// Available to unprivileged users.
    pub available: Bytes,
}

/// A file system and its storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUse {
    /// The device, e.g. `mmcblk0`, or the mounted source if there is no device.
    pub device: String,
    /// Its mount point.
    pub mount: String,
    /// Kind of storage.
    pub storage: Storage,
    /// Whether it is mounted read-only.
    pub is_read_only: bool,
    /// Space on it.
    pub space: Option<Space>,
    /// Bytes per second while a large file was read; the best since the daemon started, `None` before the first such
    /// read.
    pub read_rate: Option<Bytes>,
}

impl DiskUse {
    fn line(&self) -> String {
        let space = self.space.map(|space| format!(", {} of {} free", space.available, space.total));
        let rate = self.read_rate.map(|rate| format!(", read at {rate}/s"));
        let writable = if self.is_read_only { "read-only" } else { "writable" };
        let (space, rate) = (space.unwrap_or_default(), rate.unwrap_or_default());
        format!("{} on {} ({}), {writable}{space}{rate}", self.mount, self.device, self.storage.name())
    }
}

/// Traffic in a period, and the part of it that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Frames or segments.
    pub count: u64,
    /// Those with errors, or retransmitted.
    pub failed: u64,
}

impl Traffic {
    /// Share of failed frames or segments.
    pub fn share(self) -> f64 {
        common::latency::ratio(self.failed as f64, self.count as f64)
    }
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkLink {
    /// Its name, e.g. `eth0`.
    pub interface: String,
    /// Its speed in Mbit/s; `None` for loopback and virtual interfaces.
    pub mbit: Option<u32>,
    /// Whether it is wireless.
    pub is_wireless: bool,
    /// Whether it is full duplex.
    pub is_full_duplex: Option<bool>,
    /// Whether energy-efficient Ethernet (IEEE 802.3az) is on: each frame after a pause then waits until the link wakes
    /// up.
    pub is_energy_efficient: Option<bool>,
    /// MTU in bytes.
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
        let frames = self.frames.map(|frames| format!(", {} of {} frames with errors", frames.failed, frames.count));
        let wireless = if self.is_wireless { " (wireless)" } else { "" };
        let words =
            [speed.as_deref(), duplex, sleeps, mtu.as_deref(), frames.as_deref()].map(Option::unwrap_or_default);
        format!("{}{wireless}{}", self.interface, words.concat())
    }
}

/// Processor time of other processes than this daemon.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadByOthers {
    /// Cores that they kept busy since the previous reading, e.g. 0.7.
    pub others: f32,
    /// Cores of the machine.
    pub cores: u16,
}

/// Scheduler statistics of the engine thread that waited longest for a core. A stopped process does not wait for a
/// core: this distinguishes shared cores from all other causes of a slow rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunQueue {
    /// Share of the time since the previous reading in which it was runnable but not running.
    pub waited: f32,
    /// Share of that time in which it was running.
    pub ran: f32,
}
