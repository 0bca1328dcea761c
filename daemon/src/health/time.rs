//! Whether the clock is synchronised over the network: from the mark that systemd-timesyncd leaves after it has set the
//! clock.
use super::root::Root;

/// `None` if another service may set the clock.
pub(super) fn read(root: &Root) -> Option<bool> {
    let folder = "run/systemd/timesync";
    root.has(folder).then(|| root.has(&format!("{folder}/synchronized")))
}
