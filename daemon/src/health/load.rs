//! Cores used by processes other than this daemon.
use common::latency::ratio;
use telemetry::health::LoadByOthers;

use super::root::Root;

/// Counters of the previous reading, in ticks.
#[derive(Debug, Default)]
pub(super) struct CpuCounters {
    before: Option<Ticks>,
}

#[derive(Clone, Copy, Debug)]
struct Ticks {
    busy: u64,
    all: u64,
    own: u64,
}

impl CpuCounters {
    /// Cores used by others since the previous reading; `None` at the first reading.
    pub(super) fn read(&mut self, root: &Root) -> Option<LoadByOthers> {
        let (now, cores) = ticks(root)?;
        let before = self.before.replace(now)?;
        let since = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let busy = since(now.busy, before.busy) - since(now.own, before.own);
        // The sum over all cores advances by one core's ticks times the number of cores.
        let others = ratio(busy.max(0.0) * f64::from(cores), since(now.all, before.all));
        Some(LoadByOthers { others: others as f32, cores })
    }
}

fn ticks(root: &Root) -> Option<(Ticks, u16)> {
    let table = root.text("proc/stat")?;
    let sum = table.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // user nice system idle iowait irq softirq steal; user already includes guest time (proc(5)).
    let values: Vec<u64> = sum.split_whitespace().take(8).map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let idle = values.get(3)?.saturating_add(*values.get(4)?);
    let all = values.iter().fold(0u64, |sum, value| sum.saturating_add(*value));
    let cores = u16::try_from(
        table
            .lines()
            .filter(|line| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())))
            .count(),
    )
    .ok()?;
    Some((Ticks { busy: all.saturating_sub(idle), all, own: own(root) }, cores))
}

/// Ticks of this process, user and system. The name before them may contain spaces and brackets.
fn own(root: &Root) -> u64 {
    let text = root.text("proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    ticks(11).saturating_add(ticks(12))
}
