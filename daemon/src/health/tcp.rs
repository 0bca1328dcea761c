//! Share of TCP segments that are retransmitted: the machine's counters in /proc/net/snmp.
use std::time::Instant;

use telemetry::health::Traffic;

use super::{root::Root, window::Window};

pub(super) fn read(root: &Root, window: &mut Window, now: Instant) -> Option<Traffic> {
    let table = root.text("proc/net/snmp")?;
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |name: &str| -> Option<u64> {
        let place = names.split_whitespace().position(|word| word == name)?;
        values.split_whitespace().nth(place)?.parse().ok()
    };
    Some(window.since(now, Traffic { count: value("OutSegs")?, failed: value("RetransSegs")? }))
}
