//! Frequency scaling of the fastest cores: governor, clock now, limit by settings, limit of the hardware.
use common::units::Megahertz;
use telemetry::health::Clock;

use super::root::Root;

pub(super) fn read(root: &Root) -> Option<Clock> {
    let policies = root.entries("sys/devices/system/cpu/cpufreq", "policy");
    let places = if policies.is_empty() {
        let cores = root.entries("sys/devices/system/cpu", "cpu");
        cores.into_iter().map(|core| format!("{core}/cpufreq")).filter(|path| root.has(path)).collect()
    } else {
        policies
    };
    // The first of several that are equally fast.
    let fastest = places.iter().rev().max_by_key(|place| root.value::<u32>(&format!("{place}/cpuinfo_max_freq")))?;
    let megahertz = |name: &str| {
        let kilohertz: u32 = root.value(&format!("{fastest}/{name}"))?;
        Some(Megahertz(kilohertz / 1000))
    };
    let word = |name: &str| root.value::<String>(&format!("{fastest}/{name}"));
    Some(Clock {
        governor: word("scaling_governor")?,
        driver: word("scaling_driver").unwrap_or_default(),
        current: megahertz("scaling_cur_freq")?,
        limit: megahertz("scaling_max_freq")?,
        hardware: megahertz("cpuinfo_max_freq")?,
    })
}
