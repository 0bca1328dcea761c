//! Temperature of the processor: its thermal zone, otherwise its hardware monitor, otherwise any zone with a reading.
use common::units::Celsius;

use super::root::Root;

/// Types of thermal zones of processors, the better ones first (Raspberry Pi, Intel).
const ZONES: [&str; 3] = ["cpu-thermal", "x86_pkg_temp", "soc"];
/// Hardware monitors of processors; their numbers change from boot to boot.
const MONITORS: [&str; 4] = ["cpu_thermal", "coretemp", "k10temp", "zenpower"];

pub(super) fn read(root: &Root) -> Option<Celsius> {
    let zones = root.entries("sys/class/thermal", "thermal_zone");
    let reading = |zone: &String| degrees(root, &format!("{zone}/temp"));
    // Zones of other types (`acpitz`) may be stuck at a mainboard's default: the last resort.
    ZONES
        .iter()
        .find_map(|wanted| {
            zones
                .iter()
                .filter(|zone| root.value::<String>(&format!("{zone}/type")).unwrap_or_default().starts_with(wanted))
                .find_map(reading)
        })
        .or_else(|| {
            let monitors = root.entries("sys/class/hwmon", "hwmon");
            let found = monitors.iter().find(|monitor| {
                MONITORS.contains(&root.value::<String>(&format!("{monitor}/name")).unwrap_or_default().as_str())
            })?;
            degrees(root, &format!("{found}/temp1_input"))
        })
        .or_else(|| zones.iter().find_map(reading))
}

/// A file in thousandths of a degree; values impossible for a processor are ignored.
fn degrees(root: &Root, path: &str) -> Option<Celsius> {
    let thousandths: i32 = root.value(path)?;
    (-50_000..=150_000).contains(&thousandths).then_some(Celsius(thousandths as f32 / 1e3))
}
