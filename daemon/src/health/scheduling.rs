//! How long the engine's threads were runnable but not running: the second number of a thread's `schedstat`.
use std::{collections::BTreeMap, time::Instant};

use common::latency::ratio;
use telemetry::health::RunQueue;

use super::root::Root;

/// Prefixes of the names of the threads that a step waits for. `/proc/self/schedstat` covers only the main thread,
/// which computes nothing.
const THREADS: [&str; 2] = ["engine", "compute-"];

/// Counters of the previous reading.
#[derive(Debug, Default)]
pub(super) struct Scheduling {
    before: Option<(Instant, BTreeMap<String, ThreadTimes>)>,
}

/// Nanoseconds since the thread's start.
#[derive(Clone, Copy, Debug)]
struct ThreadTimes {
    ran: u64,
    waited: u64,
}

impl Scheduling {
    /// The thread that waited longest since the previous reading. `None` without an engine, in the reading in which one
    /// appears, and if the kernel does not count (built without CONFIG_SCHED_INFO).
    pub(super) fn read(&mut self, root: &Root, now: Instant) -> Option<RunQueue> {
        let threads = threads(root);
        let (then, before) = self.before.replace((now, threads.clone()))?;
        let time = now.saturating_duration_since(then).as_nanos() as f64;
        let share = |now: u64, before: u64| ratio(now.saturating_sub(before) as f64, time).min(1.0) as f32;
        threads
            .iter()
            .filter_map(|(thread, now)| {
                let before = before.get(thread)?;
                Some(RunQueue { waited: share(now.waited, before.waited), ran: share(now.ran, before.ran) })
            })
            .max_by(|one, two| one.waited.total_cmp(&two.waited))
    }
}

/// The engine's threads by thread folder. A thread that ends meanwhile is skipped.
fn threads(root: &Root) -> BTreeMap<String, ThreadTimes> {
    let folders = root.entries("proc/self/task", "").into_iter().filter(|folder| {
        let name = root.text(&format!("{folder}/comm")).unwrap_or_default();
        THREADS.iter().any(|thread| name.starts_with(thread))
    });
    folders.filter_map(|folder| times(root, &folder).map(|times| (folder, times))).collect()
}

fn times(root: &Root, folder: &str) -> Option<ThreadTimes> {
    let text = root.text(&format!("{folder}/schedstat"))?;
    let mut words = text.split_whitespace().map(|word| word.parse().ok());
    let times = ThreadTimes { ran: words.next()??, waited: words.next()?? };
    // Without counting, all values are zero.
    (times.ran > 0).then_some(times)
}
