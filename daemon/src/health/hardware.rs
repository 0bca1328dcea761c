//! The machine's model, from the device tree or the firmware of a PC, and its kernel.
use telemetry::health::Hardware;

use super::root::Root;

/// Longest text in bytes.
const TEXT_BYTES_MAX: usize = 128;
/// Files with a model: the device tree of a Raspberry Pi, and the DMI table of a PC.
const MODELS: [&str; 2] = ["proc/device-tree/model", "sys/class/dmi/id/product_name"];

pub(super) fn read(root: &Root) -> Hardware {
    let text = |path: &str| line(&root.text(path)?);
    Hardware { model: MODELS.iter().find_map(|path| text(path)), kernel: text("proc/sys/kernel/osrelease") }
}

/// The first line without control characters; the device tree ends it with a zero.
fn line(text: &str) -> Option<String> {
    let line = text.split(['\0', '\n']).next().unwrap_or_default().trim();
    let fits = !line.is_empty() && line.len() <= TEXT_BYTES_MAX && !line.chars().any(common::text::is_unsafe);
    fits.then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_end_at_a_zero_and_odd_texts_are_ignored() {
        assert_eq!(line("Raspberry Pi 5 Model B Rev 1.0\0").as_deref(), Some("Raspberry Pi 5 Model B Rev 1.0"));
        assert_eq!(line("6.12.34+rpt-rpi-2712\n").as_deref(), Some("6.12.34+rpt-rpi-2712"));
        for odd in ["", "\0", "\n", "a\u{1b}[2J", &"x".repeat(200)] {
            assert_eq!(line(odd), None, "{odd:?}");
        }
    }
}
