//! Warnings about a machine's health: severity, meaning and fix. The single place that decides; status, dashboard, log,
//! `brambled check` and `console doctor` show its result.
use std::fmt;

use common::units::{Bytes, Celsius, Megahertz};
use serde::{Deserialize, Serialize};

use super::{
    finding::{Finding, Severity},
    health::{Health, LoadByOthers, RunQueue, Throttle},
};

/// From this temperature on, a Raspberry Pi's firmware lowers the clock.
pub const HOT: Celsius = Celsius(80.0);
/// A slower link delays every all-reduce.
pub const LINK_MBIT_MIN: u32 = 1000;
/// Cores that other programs may use without a warning.
pub const OTHERS_CORES_MAX: f32 = 0.5;
/// Share of its time that an engine thread may be runnable but not running: half of the straggler threshold.
pub const CORE_WAIT_MAX: f32 = 0.05;
/// Swap traffic that causes a warning, in bytes per second.
pub const SWAP_RATE_MAX: Bytes = Bytes(1 << 20);
/// Memory is short if less than one such part of it is available.
pub const MEMORY_PART_MIN: u64 = 20;
/// A disk is full if less than this is free: state and a packed shard no longer fit.
pub const DISK_MIN: Bytes = Bytes(256 << 20);
/// A disk is nearly full if less than one such part of it is free.
pub const DISK_PART_MIN: u64 = 20;
/// Share of a link's frames that may have errors; a good cable has none.
pub const FRAME_ERRORS_MAX: f64 = 1e-5;
/// Share of TCP's segments that may be retransmitted: each delays a step by tens of milliseconds.
pub const RESENT_MAX: f64 = 1e-3;
/// With fewer frames or segments than this, the share is not judged.
pub const TRAFFIC_MIN: u64 = 1000;

/// A warning or note about a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Warning {
    /// The firmware is throttling the machine now.
    Throttle(Throttle),
    /// The firmware has throttled the machine since boot.
    HasThrottled(Throttle),
    /// The processor is hot.
    Hot(Celsius),
    /// The governor keeps the clock low.
    HeldLow(String),
    /// The governor lowers the clock under low load.
    Scales(String),
    /// The settings cap the clock below the hardware limit.
    Limited(Megahertz, Megahertz),
    /// Little memory is available.
    MemoryShort(Bytes),
    /// The machine is swapping.
    Swapping(Bytes),
    /// The file system is mounted read-only.
    ReadOnly(String),
    /// No space is left.
    DiskFull(Bytes),
    /// Little space is left.
    DiskShort(Bytes),
    /// The models are on an SD card.
    SdCard,
    /// The link is slow.
    SlowLink(u32),
    /// The link is wireless.
    Wireless,
    /// The link is half duplex.
    HalfDuplex,
    /// Frames arrive with errors: the share.
    FrameErrors(f64),
    /// Segments are retransmitted: the share.
    Resent(f64),
    /// The link sleeps between frames (EEE).
    EnergyEfficient,
    /// Other programs use the cores.
    Busy(LoadByOthers),
    /// The engine's threads share their cores.
    CoresShared(RunQueue),
    /// The machine's clock is not synchronised.
    TimeFree,
}

impl Warning {
    /// A constant name of its kind, for metric labels.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Throttle(_) => "throttled",
            Self::HasThrottled(_) => "was_throttled",
            Self::Hot(_) => "hot",
            Self::HeldLow(_) => "clock_held_low",
            Self::Scales(_) => "clock_scales",
            Self::Limited(..) => "clock_limited",
            Self::MemoryShort(_) => "memory_short",
            Self::Swapping(_) => "swapping",
            Self::ReadOnly(_) => "read_only",
            Self::DiskFull(_) => "disk_full",
            Self::DiskShort(_) => "disk_short",
            Self::SdCard => "sd_card",
            Self::SlowLink(_) => "slow_link",
            Self::Wireless => "wireless",
            Self::HalfDuplex => "half_duplex",
            Self::FrameErrors(_) => "frame_errors",
            Self::Resent(_) => "segments_resent",
            Self::EnergyEfficient => "energy_efficient_ethernet",
            Self::Busy(_) => "other_programs",
            Self::CoresShared(_) => "cores_shared",
            Self::TimeFree => "clock_not_set",
        }
    }

    /// A short label for a table.
    pub fn short(&self) -> String {
        match self {
            Self::Throttle(throttle) => match throttle {
                Throttle::UnderVoltage => "UNDERVOLT".into(),
                Throttle::Capped => "CAPPED".into(),
                Throttle::Throttled => "THROTTLED".into(),
                Throttle::SoftLimit => "SOFT LIMIT".into(),
            },
            Self::HasThrottled(throttle) => match throttle {
                Throttle::UnderVoltage => "was undervolt".into(),
                Throttle::Capped => "was capped".into(),
                Throttle::Throttled => "was throttled".into(),
                Throttle::SoftLimit => "was soft limit".into(),
            },
            Self::Hot(_) => "HOT".into(),
            Self::HeldLow(governor) | Self::Scales(governor) => governor.clone(),
            Self::Limited(limit, _) => format!("limit {limit}"),
            Self::MemoryShort(_) => "low memory".into(),
            Self::Swapping(_) => "SWAPS".into(),
            Self::ReadOnly(_) => "READ-ONLY".into(),
            Self::DiskFull(_) => "DISK FULL".into(),
            Self::DiskShort(_) => "low disk".into(),
            Self::SdCard => "SD card".into(),
            Self::SlowLink(mbit) => format!("{mbit} Mb/s"),
            Self::Wireless => "wireless".into(),
            Self::HalfDuplex => "half duplex".into(),
            Self::FrameErrors(_) => "link errors".into(),
            Self::Resent(share) => format!("resends {:.1} %", 100.0 * share),
            Self::EnergyEfficient => "EEE".into(),
            Self::Busy(load) => format!("other programs: {:.1} cores", load.others),
            Self::CoresShared(run_queue) => format!("CPU contention {:.0} %", 100.0 * run_queue.waited),
            Self::TimeFree => "no NTP".into(),
        }
    }

    /// Stable name for `--json` output.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Throttle(Throttle::UnderVoltage) => "under_voltage",
            Self::Throttle(Throttle::Capped) => "capped",
            Self::Throttle(Throttle::Throttled) => "throttled",
            Self::Throttle(Throttle::SoftLimit) => "soft_limit",
            Self::HasThrottled(Throttle::UnderVoltage) => "was_under_voltage",
            Self::HasThrottled(Throttle::Capped) => "was_capped",
            Self::HasThrottled(Throttle::Throttled) => "was_throttled",
            Self::HasThrottled(Throttle::SoftLimit) => "was_soft_limit",
            Self::Hot(_) => "hot",
            Self::HeldLow(_) => "governor_low",
            Self::Scales(_) => "governor_scales",
            Self::Limited(..) => "clock_limited",
            Self::MemoryShort(_) => "memory_short",
            Self::Swapping(_) => "swapping",
            Self::ReadOnly(_) => "disk_read_only",
            Self::DiskFull(_) => "disk_full",
            Self::DiskShort(_) => "disk_short",
            Self::SdCard => "sd_card",
            Self::SlowLink(_) => "link_slow",
            Self::Wireless => "link_wireless",
            Self::HalfDuplex => "link_half_duplex",
            Self::FrameErrors(_) => "link_errors",
            Self::Resent(_) => "tcp_resends",
            Self::EnergyEfficient => "link_energy_efficient",
            Self::Busy(_) => "busy",
            Self::CoresShared(_) => "cores_shared",
            Self::TimeFree => "time_free",
        }
    }

    /// Its severity.
    pub fn severity(&self) -> Severity {
        match self {
            Self::Throttle(Throttle::SoftLimit) => Severity::Warning,
            Self::Throttle(_) | Self::Swapping(_) | Self::ReadOnly(_) | Self::DiskFull(_) => Severity::Error,
            Self::Scales(_) | Self::SdCard | Self::EnergyEfficient => Severity::Note,
            _ => Severity::Warning,
        }
    }

    /// What to do on the affected machine, as a command if there is one.
    pub fn fix(&self, health: &Health) -> String {
        let link = health.link.as_ref().map_or("eth0", |link| link.interface.as_str());
        let mount = health.disk.as_ref().map_or("/", |disk| disk.mount.as_str());
        match self {
            Self::Throttle(Throttle::UnderVoltage) | Self::HasThrottled(Throttle::UnderVoltage) => {
                "use the official supply (5.1 V; 3 A for a Pi 4, 5 A for a Pi 5), a short cable, fewer USB devices".into()
            }
            Self::Throttle(_) | Self::HasThrottled(_) | Self::Hot(_) => {
                "add a heat sink and a fan; then: vcgencmd measure_temp".into()
            }
            Self::HeldLow(_) | Self::Scales(_) => "sudo systemctl enable --now bramble-governor".into(),
            Self::Limited(_, hardware) => {
                format!("echo {}000 | sudo tee /sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq", hardware.0)
            }
            Self::MemoryShort(_) | Self::Swapping(_) => {
                "ps -eo rss,comm --sort=-rss | head; stop programs that are not needed, or use a smaller model or more nodes"
                    .into()
            }
            Self::ReadOnly(_) => {
                // The unit's sandbox shows folders as mount points that the host does not have.
                format!(
                    "sudo dmesg | grep -i -e mmc -e ext4 -e nvme; replace the disk if it fails, else: \
                     sudo mount -o remount,rw \"$(findmnt -n -o TARGET -T {mount})\""
                )
            }
            Self::DiskFull(_) | Self::DiskShort(_) => {
                // Raspberry Pi OS keeps the journal in memory: on the card there is none to shorten.
                format!(
                    "df -h {mount}; console model list; console model remove MODEL; sudo apt-get clean; \
                     if the journal is stored on the disk: sudo journalctl --vacuum-size=100M"
                )
            }
            Self::SdCard => {
                // `models` replaces the default folders, so it repeats them.
                "set models = [\"/mnt/ssd/models\", \"/var/lib/bramble/models\", \"/usr/share/bramble\"] in \
                 /etc/bramble/bramble.toml, on an SSD over USB 3 or PCIe"
                    .into()
            }
            Self::SlowLink(_) => {
                format!("use another cable (Cat 5e) and a 1 Gb/s port; then: sudo ethtool {link} | grep Speed")
            }
            Self::Wireless => "use a cable, and set listen to its address in /etc/bramble/bramble.toml".into(),
            Self::HalfDuplex => format!("sudo ethtool -s {link} autoneg on, here and at the switch"),
            Self::FrameErrors(_) => format!("use another cable and port; then: sudo ethtool -S {link} | grep err"),
            Self::Resent(_) => {
                format!("use another cable, port or switch; then: nstat TcpRetransSegs; sudo ethtool -S {link}")
            }
            Self::EnergyEfficient => format!("sudo ethtool --set-eee {link} eee off"),
            Self::Busy(_) | Self::CoresShared(_) => "stop the other programs; top lists them".into(),
            Self::TimeFree => "sudo timedatectl set-ntp true".into(),
        }
    }

    /// Whether it slows down the node at this moment.
    pub fn is_acute(&self) -> bool {
        matches!(self, Self::Throttle(_) | Self::Hot(_) | Self::Swapping(_) | Self::ReadOnly(_) | Self::DiskFull(_))
    }

    /// Whether it can explain why peers wait for the node now; past or merely scarce resources cannot.
    pub fn can_slow(&self) -> bool {
        let is_about_disk = matches!(self, Self::ReadOnly(_) | Self::DiskFull(_) | Self::DiskShort(_) | Self::SdCard);
        !is_about_disk && !matches!(self, Self::HasThrottled(_) | Self::MemoryShort(_) | Self::TimeFree)
    }

    /// Whether a node with this warning has about as much of it as one with the other.
    fn is_as_bad_as(&self, other: &Self) -> bool {
        /// Two thirds of a share count as equal: readings vary.
        const ALIKE: f32 = 2.0 / 3.0;
        match (self, other) {
            (Self::CoresShared(one), Self::CoresShared(two)) => one.waited >= ALIKE * two.waited,
            (Self::Busy(one), Self::Busy(two)) => one.others >= ALIKE * two.others,
            (Self::Resent(one), Self::Resent(two)) | (Self::FrameErrors(one), Self::FrameErrors(two)) => {
                *one >= f64::from(ALIKE) * two
            }
            (Self::Throttle(one), Self::Throttle(two)) => one == two,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// Whether two readings carry the same warning, except for a value that fluctuates.
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Throttle(one), Self::Throttle(two)) | (Self::HasThrottled(one), Self::HasThrottled(two)) => {
                one == two
            }
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Throttle(Throttle::UnderVoltage) => {
                write!(f, "under-voltage now: use the official power supply and a short cable")
            }
            Self::Throttle(throttle) => write!(f, "{} by the firmware now: improve the cooling", throttle.name()),
            Self::HasThrottled(throttle) => write!(f, "{} at least once since boot", throttle.name()),
            Self::Hot(celsius) => write!(f, "{celsius}: at {HOT} and above the firmware lowers the clock"),
            Self::HeldLow(governor) => write!(f, "governor {governor} keeps the clock low: choose performance"),
            Self::Scales(governor) => {
                write!(f, "governor {governor} may lower the clock while the node waits for its peers")
            }
            Self::Limited(limit, hardware) => write!(f, "clock limited to {limit} of {hardware} by scaling_max_freq"),
            Self::MemoryShort(available) => write!(f, "only {available} of memory is available"),
            Self::Swapping(rate) => {
                write!(f, "swaps {rate} per second: memory does not hold the shard and the other programs")
            }
            Self::ReadOnly(mount) => write!(f, "{mount} is mounted read-only: neither state nor models can be stored"),
            Self::DiskFull(free) => write!(f, "the disk is full, {free} is left: state cannot be stored"),
            Self::DiskShort(free) => write!(f, "only {free} is left on the disk"),
            Self::SdCard => {
                write!(f, "models are stored on an SD card: loading takes long, answers are not slower")
            }
            Self::SlowLink(mbit) => write!(f, "the link has only {mbit} Mbit/s: check cable and switch"),
            Self::Wireless => write!(f, "the link is wireless: use a cable"),
            Self::HalfDuplex => write!(f, "the link cannot send and receive at once (half duplex)"),
            Self::FrameErrors(share) => write!(f, "{:.4} % of the link's frames have errors", 100.0 * share),
            Self::Resent(share) => {
                write!(
                    f,
                    "{:.2} % of this machine's TCP segments are retransmitted: frames are lost, or peers disappear",
                    100.0 * share
                )
            }
            Self::EnergyEfficient => write!(
                f,
                "the link sleeps between frames (energy-efficient Ethernet): small messages wait until it wakes up"
            ),
            Self::Busy(load) => write!(f, "other programs use {:.1} of {} cores", load.others, load.cores),
            Self::CoresShared(run_queue) => write!(
                f,
                "CPU contention: an engine thread waited for a core {:.0} % of the time; stop other programs on these cores",
                100.0 * run_queue.waited
            ),
            Self::TimeFree => {
                write!(f, "the clock is not synchronised: logs cannot be compared, and https fails if it is far off")
            }
        }
    }
}

impl Health {
    /// All warnings and notes, the acute ones first, notes last.
    fn remarks(&self) -> Vec<Warning> {
        let mut found = Vec::new();
        let is_now = |one: &Throttle| {
            (*one == Throttle::UnderVoltage && self.is_voltage_low == Some(true))
                || self.firmware.is_some_and(|bits| bits.is(*one))
        };
        found.extend(Throttle::ALL.into_iter().filter(is_now).map(Warning::Throttle));
        found.extend(self.temperature.filter(|celsius| celsius.0 >= HOT.0).map(Warning::Hot));
        found.extend(self.run_queue.filter(|threads| threads.waited > CORE_WAIT_MAX).map(Warning::CoresShared));
        self.of_disk(&mut found);
        if let Some(memory) = self.memory {
            if memory.swap_rate >= SWAP_RATE_MAX {
                found.push(Warning::Swapping(memory.swap_rate));
            }
            if memory.available.0 < memory.total.0 / MEMORY_PART_MIN {
                found.push(Warning::MemoryShort(memory.available));
            }
        }
        if let Some(clock) = &self.clock {
            if clock.is_held_low() {
                found.push(Warning::HeldLow(clock.governor.clone()));
            } else if clock.limit < clock.hardware {
                found.push(Warning::Limited(clock.limit, clock.hardware));
            }
        }
        self.of_link(&mut found);
        found.extend(self.load.filter(|load| load.others > OTHERS_CORES_MAX).map(Warning::Busy));
        if self.is_time_synchronized == Some(false) {
            found.push(Warning::TimeFree);
        }
        found.extend(
            Throttle::ALL
                .into_iter()
                .filter(|one| self.firmware.is_some_and(|bits| bits.has_been(*one)) && !is_now(one))
                .map(Warning::HasThrottled),
        );
        if self.disk.as_ref().is_some_and(|disk| disk.storage == super::health::Storage::Sd) {
            found.push(Warning::SdCard);
        }
        found.extend(
            self.clock.as_ref().filter(|clock| clock.scales()).map(|clock| Warning::Scales(clock.governor.clone())),
        );
        if self.link.as_ref().is_some_and(|link| link.is_energy_efficient == Some(true)) {
            found.push(Warning::EnergyEfficient);
        }
        found
    }

    fn of_disk(&self, found: &mut Vec<Warning>) {
        let Some(disk) = &self.disk else { return };
        if disk.is_read_only {
            found.push(Warning::ReadOnly(disk.mount.clone()));
        }
        match disk.space.filter(|space| space.total > Bytes(0)) {
            Some(space) if space.available < DISK_MIN => found.push(Warning::DiskFull(space.available)),
            Some(space) if space.available.0 < space.total.0 / DISK_PART_MIN => {
                found.push(Warning::DiskShort(space.available));
            }
            _ => {}
        }
    }

    fn of_link(&self, found: &mut Vec<Warning>) {
        let counted = |share: f64, count: u64, most: f64| (count >= TRAFFIC_MIN && share > most).then_some(share);
        if let Some(link) = &self.link {
            if link.is_wireless {
                found.push(Warning::Wireless);
            }
            let slow = link.mbit.filter(|mbit| *mbit < LINK_MBIT_MIN && !link.is_wireless);
            found.extend(slow.map(Warning::SlowLink));
            if link.is_full_duplex == Some(false) && !link.is_wireless {
                found.push(Warning::HalfDuplex);
            }
            let broken = link.frames.and_then(|frames| counted(frames.share(), frames.count, FRAME_ERRORS_MAX));
            found.extend(broken.map(Warning::FrameErrors));
        }
        // No frame is lost on loopback: segments are retransmitted there to a process that died or was stopped.
        let is_loopback = self.link.as_ref().is_some_and(|link| link.interface == "lo");
        let resent = self.tcp.filter(|_| !is_loopback).and_then(|tcp| counted(tcp.share(), tcp.count, RESENT_MAX));
        found.extend(resent.map(Warning::Resent));
    }

    /// The warnings, the acute ones first.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = self.remarks();
        warnings.retain(|warning| warning.severity() > Severity::Note);
        warnings
    }

    /// Warnings and notes with their fixes, the worst first.
    pub fn findings(&self) -> Vec<Finding> {
        let finding = |warning: Warning| Finding {
            code: warning.code(),
            severity: warning.severity(),
            meaning: warning.to_string(),
            fix: warning.fix(self),
        };
        let mut findings: Vec<Finding> = self.remarks().into_iter().map(finding).collect();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }

    /// Why peers may wait for this node, as far as its machine shows: the most acute warning that can slow it down.
    /// Other programs are excluded if the engine is known to have had its cores.
    pub fn cause(&self) -> Option<Warning> {
        self.cause_beside(&[])
    }

    /// As `cause`, compared with the waiting nodes: a warning that most of them have to the same degree does not
    /// explain the difference.
    pub fn cause_beside(&self, others: &[&Self]) -> Option<Warning> {
        let others: Vec<Vec<Warning>> = others.iter().map(|other| other.warnings()).collect();
        self.warnings().into_iter().find(|warning| {
            let alike = others.iter().filter(|list| list.iter().any(|other| other.is_as_bad_as(warning))).count();
            let can_slow = match warning {
                Warning::Busy(_) => self.run_queue.is_none(),
                other => other.can_slow(),
            };
            can_slow && 2 * alike <= others.len()
        })
    }
}

#[cfg(test)]
mod tests;
