//! The health of a node's machine as it was read last, and what in it deserves a warning. What cannot be read is `None`.
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, Celsius, Megahertz};

/// From here on a Raspberry Pi's firmware lowers the clock.
pub const HOT: Celsius = Celsius(80.0);
/// A link slower than this holds every all-reduce up.
pub const LINK_MBIT_MIN: u32 = 1000;
/// Cores that other programs may use before it is said.
pub const OTHERS_CORES_MAX: f32 = 0.5;
/// Share of its time that a thread of the engine may be ready and not run: half of what makes a rank a straggler.
pub const CORE_WAIT_MAX: f32 = 0.05;
/// Swap traffic that is worth a word, in bytes per second.
pub const SWAP_RATE_MAX: Bytes = Bytes(1 << 20);
/// Memory is short when less than this part of it is available.
pub const MEMORY_PART_MIN: u64 = 20;

/// One reading of all sources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Of the processor.
    pub temperature: Option<Celsius>,
    /// Frequency scaling of the fastest cores.
    pub clock: Option<Clock>,
    /// Throttle bits of a Raspberry Pi's firmware.
    pub firmware: Option<ThrottleBits>,
    /// Memory and swap.
    pub memory: Option<MemoryUse>,
    /// The network interface that the node listens on.
    pub link: Option<NetworkLink>,
    /// Cores kept busy by everything but this daemon.
    pub load: Option<LoadByOthers>,
    /// How long the engine's threads were ready and did not run.
    pub run_queue: Option<RunQueue>,
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
        self.governor == "powersave" && !matches!(self.driver.as_str(), "intel_pstate" | "amd-pstate-epp")
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

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkLink {
    /// Its name, e.g. `eth0`.
    pub interface: String,
    /// Its speed in Mbit/s; loopback and virtual interfaces have none.
    pub mbit: Option<u32>,
    /// Whether it is a wireless one.
    pub is_wireless: bool,
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

/// Something that an operator should know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Warning {
    /// The firmware slows the machine down now.
    Throttle(Throttle),
    /// It did since boot.
    HasThrottled(Throttle),
    /// The processor is hot.
    Hot(Celsius),
    /// The governor holds the clock low.
    HeldLow(String),
    /// The settings cap the clock below what the hardware can.
    Limited(Megahertz, Megahertz),
    /// Little memory is left.
    MemoryShort(Bytes),
    /// The machine swaps.
    Swapping(Bytes),
    /// The link is slow.
    SlowLink(u32),
    /// The link is wireless.
    Wireless,
    /// Others use the cores.
    Busy(LoadByOthers),
    /// The engine's threads share their cores.
    CoresShared(RunQueue),
}

impl Warning {
    /// A word for a table.
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
            Self::HeldLow(governor) => governor.clone(),
            Self::Limited(limit, _) => format!("limit {limit}"),
            Self::MemoryShort(_) => "low memory".into(),
            Self::Swapping(_) => "SWAPS".into(),
            Self::SlowLink(mbit) => format!("{mbit} Mb/s"),
            Self::Wireless => "wireless".into(),
            Self::Busy(load) => format!("others {:.1}", load.others),
            Self::CoresShared(run_queue) => format!("cores shared {:.0} %", 100.0 * run_queue.waited),
        }
    }

    /// Whether the node is slower for it at this moment.
    pub fn is_acute(&self) -> bool {
        matches!(self, Self::Throttle(_) | Self::Hot(_) | Self::Swapping(_))
    }

    /// Whether it can be why others wait for the node now; what was once, or is only short, is no cause.
    pub fn can_slow(&self) -> bool {
        !matches!(self, Self::HasThrottled(_) | Self::MemoryShort(_))
    }

    /// Equal for two readings that say the same of a value that moves.
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
            Self::Throttle(throttle) => write!(f, "{} by the firmware now: cool it", throttle.name()),
            Self::HasThrottled(throttle) => write!(f, "{} at some time since boot", throttle.name()),
            Self::Hot(celsius) => write!(f, "{celsius}: from {HOT} on the firmware lowers the clock"),
            Self::HeldLow(governor) => write!(f, "governor {governor} holds the clock low: choose performance"),
            Self::Limited(limit, hardware) => write!(f, "clock limited to {limit} of {hardware} by scaling_max_freq"),
            Self::MemoryShort(available) => write!(f, "only {available} of memory are available"),
            Self::Swapping(rate) => write!(f, "swaps {rate} per second: the shard does not fit with what else runs"),
            Self::SlowLink(mbit) => write!(f, "the link has only {mbit} Mbit/s: check cable and switch"),
            Self::Wireless => write!(f, "the link is wireless: use a cable"),
            Self::Busy(load) => write!(f, "other programs use {:.1} of {} cores", load.others, load.cores),
            Self::CoresShared(run_queue) => write!(
                f,
                "cores shared: a thread of the engine was ready and did not run {:.0} % of the time; stop what else runs there",
                100.0 * run_queue.waited
            ),
        }
    }
}

impl Health {
    /// What an operator should know, the acute first.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if let Some(bits) = self.firmware {
            warnings.extend(Throttle::ALL.into_iter().filter(|one| bits.is(*one)).map(Warning::Throttle));
        }
        warnings.extend(self.temperature.filter(|celsius| celsius.0 >= HOT.0).map(Warning::Hot));
        warnings.extend(self.run_queue.filter(|threads| threads.waited > CORE_WAIT_MAX).map(Warning::CoresShared));
        if let Some(memory) = self.memory {
            if memory.swap_rate >= SWAP_RATE_MAX {
                warnings.push(Warning::Swapping(memory.swap_rate));
            }
            if memory.available.0 < memory.total.0 / MEMORY_PART_MIN {
                warnings.push(Warning::MemoryShort(memory.available));
            }
        }
        if let Some(clock) = &self.clock {
            if clock.is_held_low() {
                warnings.push(Warning::HeldLow(clock.governor.clone()));
            } else if clock.limit < clock.hardware {
                warnings.push(Warning::Limited(clock.limit, clock.hardware));
            }
        }
        if let Some(link) = &self.link {
            if link.is_wireless {
                warnings.push(Warning::Wireless);
            }
            let slow = link.mbit.filter(|mbit| *mbit < LINK_MBIT_MIN && !link.is_wireless);
            warnings.extend(slow.map(Warning::SlowLink));
        }
        warnings.extend(self.load.filter(|load| load.others > OTHERS_CORES_MAX).map(Warning::Busy));
        if let Some(bits) = self.firmware {
            let past = Throttle::ALL.into_iter().filter(|one| bits.has_been(*one) && !bits.is(*one));
            warnings.extend(past.map(Warning::HasThrottled));
        }
        warnings
    }

    /// Why others may wait for this node, as far as its machine says: the most acute warning that can slow it down. Other programs
    /// are no cause where the engine is known to have had its cores.
    pub fn cause(&self) -> Option<Warning> {
        let is_cause = |warning: &Warning| match warning {
            Warning::Busy(_) => self.run_queue.is_none(),
            other => other.can_slow(),
        };
        self.warnings().into_iter().find(is_cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_bits_are_told_apart_now_and_since_boot() {
        let words = |bits| -> Vec<String> {
            let health = Health { firmware: Some(ThrottleBits(bits)), ..Health::default() };
            health.warnings().iter().map(Warning::short).collect()
        };
        assert_eq!(words(0), [""; 0]);
        assert_eq!(words(0x5_0005), ["UNDERVOLT", "THROTTLED"]);
        assert_eq!(words(0x5_0000), ["was undervolt", "was throttled"]);
        assert_eq!(words(0xE_0008), ["SOFT LIMIT", "was capped", "was throttled"]);
        // Bits that no firmware defines mean nothing.
        assert_eq!(words(0xFFF0_FFF0), [""; 0]);
    }

    #[test]
    fn each_bound_has_two_sides() {
        let warned = |health: Health| health.warnings().len();
        let hot = |celsius| Health { temperature: Some(Celsius(celsius)), ..Health::default() };
        assert_eq!((warned(hot(79.9)), warned(hot(80.0))), (0, 1));
        let link = |mbit, is_wireless| {
            let interface = "eth0".to_owned();
            Health { link: Some(NetworkLink { interface, mbit, is_wireless }), ..Health::default() }
        };
        assert_eq!(
            (warned(link(Some(1000), false)), warned(link(Some(100), false)), warned(link(None, false))),
            (0, 1, 0)
        );
        assert_eq!(warned(link(Some(100), true)), 1);
        let busy = |others| Health { load: Some(LoadByOthers { others, cores: 4 }), ..Health::default() };
        assert_eq!((warned(busy(0.5)), warned(busy(0.6))), (0, 1));
        let memory = |available, rate| {
            let memory = MemoryUse {
                total: Bytes(4 << 30),
                available: Bytes(available),
                swap_rate: Bytes(rate),
                ..MemoryUse::default()
            };
            Health { memory: Some(memory), ..Health::default() }
        };
        assert_eq!(
            (warned(memory(1 << 30, 0)), warned(memory(1 << 20, 0)), warned(memory(1 << 30, 1 << 20))),
            (0, 1, 1)
        );
        let waits = |waited| Health { run_queue: Some(RunQueue { waited, ran: 0.9 }), ..Health::default() };
        assert_eq!((warned(waits(0.05)), warned(waits(0.06))), (0, 1));
        let clock = |governor: &str, driver: &str, limit| {
            let clock = Clock {
                governor: governor.into(),
                driver: driver.into(),
                current: Megahertz(600),
                limit: Megahertz(limit),
                hardware: Megahertz(1800),
            };
            Health { clock: Some(clock), ..Health::default() }
        };
        assert_eq!(warned(clock("ondemand", "cpufreq-dt", 1800)), 0);
        assert_eq!(warned(clock("powersave", "cpufreq-dt", 1800)), 1);
        assert_eq!(warned(clock("powersave", "intel_pstate", 1800)), 0);
        assert_eq!(warned(clock("ondemand", "cpufreq-dt", 1500)), 1);
    }

    #[test]
    fn a_cause_is_what_slows_a_node_now() {
        let past = Health { firmware: Some(ThrottleBits(0x4_0000)), ..Health::default() };
        assert_eq!((past.warnings().len(), past.cause()), (1, None));
        let load = Some(LoadByOthers { others: 1.5, cores: 4 });
        let run_queue = Some(RunQueue { waited: 0.4, ran: 0.6 });
        let busy = Health { load, ..past.clone() };
        assert_eq!(busy.cause().map(|cause| cause.short()), Some("others 1.5".into()));
        // That others run is a guess, that the engine did not is known, and so is that it did.
        let undisturbed = Health { run_queue: Some(RunQueue { waited: 0.01, ran: 0.9 }), ..busy.clone() };
        assert_eq!((undisturbed.warnings().len(), undisturbed.cause()), (2, None));
        let shared = Health { run_queue, ..busy };
        assert_eq!(shared.cause().map(|cause| cause.short()), Some("cores shared 40 %".into()));
    }
}
