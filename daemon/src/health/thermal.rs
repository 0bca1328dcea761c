//! Temperature of the processor: its thermal zone, else its hardware monitor, else whatever zone says something.
use shared::units::Celsius;

use super::source::Root;

/// Kinds of thermal zones that are the processor's, the better first (Raspberry Pi, Intel).
const ZONES: [&str; 3] = ["cpu-thermal", "x86_pkg_temp", "soc"];
/// Hardware monitors that are the processor's; their numbers change from boot to boot.
const MONITORS: [&str; 4] = ["cpu_thermal", "coretemp", "k10temp", "zenpower"];

pub(super) fn read(root: &Root) -> Option<Celsius> {
    let zones = root.entries("sys/class/thermal", "thermal_zone");
    let kind = |zone: &String| root.value::<String>(&format!("{zone}/type")).unwrap_or_default();
    let reading = |zone: &String| degrees(root, &format!("{zone}/temp"));
    let of_kind = |wanted: &&str| zones.iter().filter(|zone| kind(zone).starts_with(wanted)).find_map(reading);
    let monitor = || {
        let monitors = root.entries("sys/class/hwmon", "hwmon");
        let name = |monitor: &&String| root.value::<String>(&format!("{monitor}/name")).unwrap_or_default();
        let found = monitors.iter().find(|monitor| MONITORS.contains(&name(monitor).as_str()))?;
        degrees(root, &format!("{found}/temp1_input"))
    };
    // Zones of other kinds (`acpitz`) may stand still on a mainboard's default: better than nothing, but last.
    ZONES.iter().find_map(of_kind).or_else(monitor).or_else(|| zones.iter().find_map(reading))
}

/// A file in thousandths of a degree; what no processor has is no reading.
fn degrees(root: &Root, path: &str) -> Option<Celsius> {
    let thousandths: i32 = root.value(path)?;
    (-50_000..=150_000).contains(&thousandths).then_some(Celsius(thousandths as f32 / 1e3))
}
