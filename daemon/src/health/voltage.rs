//! The supply's undervoltage alarm from the kernel's hardware monitor `rpi_volt`; an alarm lasts about two seconds.
use super::root::Root;

/// Whether the voltage was too low at the last check.
pub(super) fn read(root: &Root) -> Option<bool> {
    let monitors = root.entries("sys/class/hwmon", "hwmon");
    let alarm: u8 = root.value(&format!(
        "{}/in0_lcrit_alarm",
        monitors
            .iter()
            .find(|monitor| root.value::<String>(&format!("{monitor}/name")).as_deref() == Some("rpi_volt"))?
    ))?;
    Some(alarm != 0)
}
