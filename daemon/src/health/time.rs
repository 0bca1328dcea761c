//! Whether the clock is set over the network: the mark that systemd-timesyncd leaves once it has done so.
use super::source::Root;

/// `None` where something else may keep the clock.
pub(super) fn read(root: &Root) -> Option<bool> {
    let folder = "run/systemd/timesync";
    root.has(folder).then(|| root.has(&format!("{folder}/synchronized")))
}
