//! Memory and swap of the machine; resident memory of this process.
use std::time::Instant;

use common::units::Bytes;
use nix::unistd::{SysconfVar, sysconf};
use sysinfo::{MemoryRefreshKind, Pid, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System};
use telemetry::health::MemoryUse;

use super::root::Root;

/// Counts pages swapped in and out since the previous reading.
#[derive(Debug, Default)]
pub(super) struct Swap {
    before: Option<(Instant, u64)>,
}

/// Reads memory and swap.
pub(super) fn read(root: &Root, swap: &mut Swap, now: Instant) -> Option<MemoryUse> {
    let table = root.text("proc/meminfo")?;
    let bytes = |name: &str| {
        let line = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(Bytes(kibibytes.saturating_mul(1024)))
    };
    let swap_total = bytes("SwapTotal").unwrap_or_default();
    Some(MemoryUse {
        total: bytes("MemTotal")?,
        available: bytes("MemAvailable")?,
        swap_total,
        swap_used: Bytes(swap_total.0.saturating_sub(bytes("SwapFree").unwrap_or_default().0)),
        swap_rate: swap.rate(root, now),
    })
}

impl Swap {
    fn rate(&mut self, root: &Root, now: Instant) -> Bytes {
        let table = root.text("proc/vmstat").unwrap_or_default();
        let count =
            |name: &str| -> Option<u64> { table.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()) };
        let pages = count("pswpin ").zip(count("pswpout ")).map(|(into, out)| into.saturating_add(out));
        // After a reading without counters, the next one would count all pages since boot.
        let before = std::mem::replace(&mut self.before, pages.map(|pages| (now, pages)));
        let Some(((then, before), pages)) = before.zip(pages) else { return Bytes(0) };
        let seconds = now.duration_since(then).as_secs_f64();
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096) as f64;
        Bytes(common::latency::ratio(pages.saturating_sub(before) as f64 * page, seconds) as u64)
    }
}

/// Memory available for a shard without swapping; 0 if it cannot be read.
pub fn available() -> Bytes {
    let refresh = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    Bytes(System::new_with_specifics(refresh).map_or(0, |system| system.available_memory()))
}

/// Upper bound of this process's memory: the machine's memory, or the lowest limit of its control groups; 0 if it cannot
/// be read.
pub fn total() -> Bytes {
    let refresh = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let Ok(mut system) = System::new_with_specifics(refresh) else { return Bytes(0) };
    let group = own_process(&mut system).and_then(sysinfo::Process::cgroup_limits);
    Bytes(system.total_memory().min(group.map_or(u64::MAX, |limits| limits.total_memory)))
}

/// Resident memory of this process, including file pages; 0 if it cannot be read.
pub fn resident() -> Bytes {
    let Ok(mut system) = System::new_with_specifics(RefreshKind::nothing()) else { return Bytes(0) };
    Bytes(own_process(&mut system).map_or(0, sysinfo::Process::memory))
}

fn own_process(system: &mut System) -> Option<&sysinfo::Process> {
    let own = Pid::from_u32(std::process::id());
    let kind = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own]), true, kind);
    system.process(own)
}
