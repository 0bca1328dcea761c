//! The record of the load in progress. A process that is killed while it loads its shard (no memory is left, a watchdog)
//! leaves it behind. It is back after its restart, so for the other members it is neither away nor failing: a node on
//! which this happens again and again refuses the shard for a while, which they count as failures.
use std::{
    fs,
    io::{self, ErrorKind},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use common::{fault::FaultKind, ids::TopologyHash};
use serde::{Deserialize, Serialize};

use super::{StateFolder, checksum, hash_of, text};

const FILE: &str = "loading.toml";
/// Ends in a row after which a shard is refused: fewer may be the effect of restarts.
const ENDS_MAX: u32 = 3;
/// How long after its start a process refuses the shard, at least.
const REFUSES: Duration = Duration::from_secs(300);

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedLoad {
    /// Identity of the running kernel: a loss of power is no fault of the shard.
    machine: String,
    /// Hash of the topology.
    topology: String,
    /// Loads of this shard that were begun in a row, with the current one.
    begun: u32,
}

/// The record of the loads of one process.
#[derive(Debug)]
pub struct LoadRecord {
    state: StateFolder,
    machine: String,
    refuses: Duration,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    /// Number of the latest load.
    attempt: u64,
    /// The shard in whose load earlier processes ended, and how many did.
    ended: Option<(TopologyHash, u32)>,
}

impl LoadRecord {
    /// Reads what earlier processes left behind on this machine. Members that fail for `exclude_after` are voted out: a
    /// shard is refused for longer than that.
    pub fn new(state: StateFolder, machine: String, exclude_after: Option<Duration>) -> Self {
        let saved: Option<SavedLoad> = state.read(FILE, &mut Vec::new(), |_| true).ok().flatten();
        let ended = saved
            .filter(|saved| saved.machine == machine)
            .and_then(|saved| Some((hash_of(&saved.topology)?, saved.begun)));
        if let Some((topology, count)) = ended {
            tracing::warn!(%topology, "brambled ended while it loaded its shard, {count} times in a row");
        }
        let refuses = exclude_after.map_or(REFUSES, |patience| REFUSES.max(3 * patience));
        Self { state, machine, refuses, current: Mutex::new(Current { attempt: 0, ended }) }
    }

    /// Records the begin of a load; `uptime` is the age of this process.
    ///
    /// # Errors
    /// Several processes in a row ended in this load, and this one is young.
    pub fn begin(&self, attempt: u64, topology: TopologyHash, uptime: Duration) -> Result<(), FaultKind> {
        let mut current = self.current();
        current.ended.take_if(|ended| ended.0 != topology);
        let ended = current.ended.map_or(0, |ended| ended.1);
        if ended >= ENDS_MAX && uptime < self.refuses {
            let reason = format!(
                "brambled ended {ended} times in a row while it loaded this shard (too little memory?); free memory, \
                 then restart brambled"
            );
            return Err(FaultKind::StoreFailed { reason });
        }
        current.attempt = attempt;
        self.save(topology, ended.saturating_add(1));
        Ok(())
    }

    /// Records the end of a load, unless a later one has begun. One that was abandoned proves nothing.
    pub fn end(&self, attempt: u64, was_abandoned: bool) {
        let mut current = self.current();
        if current.attempt != attempt {
            return;
        }
        if !was_abandoned {
            current.ended = None;
        }
        match current.ended {
            Some((topology, ended)) => self.save(topology, ended),
            None => self.remove(),
        }
    }

    /// Forgets earlier ends: an operator has repaired the node, or this process ends in an orderly way.
    pub fn forget(&self) {
        self.current().ended = None;
        self.remove();
    }

    /// Not synced: after a loss of power the record does not count.
    fn save(&self, topology: TopologyHash, begun: u32) {
        let saved = SavedLoad { machine: self.machine.clone(), topology: topology.to_string(), begun };
        let written = text(&saved).and_then(|text| {
            let fresh = self.state.path().join(format!("{FILE}.new"));
            fs::write(&fresh, format!("{text}{}", checksum(&text)))?;
            fs::rename(&fresh, self.state.path().join(FILE))
        });
        warn("begins", written);
    }

    fn remove(&self) {
        let removed = fs::remove_file(self.state.path().join(FILE));
        warn("ended", removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) }));
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn warn(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!("cannot record that a load {what}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SHARD: TopologyHash = TopologyHash(7);
    const YOUNG: Duration = Duration::from_secs(2);

    /// The record of a process that starts on a machine with this folder.
    fn start(folder: &Path) -> LoadRecord {
        let (state, _) = StateFolder::open(folder).expect("the folder can be made");
        LoadRecord::new(state, "boot 1".into(), None)
    }

    /// Lets processes end in a load of the shard.
    fn end_in_loads(folder: &Path, count: u32) {
        for number in 0..count {
            start(folder).begin(1, SHARD, YOUNG).unwrap_or_else(|fault| panic!("{number}: {fault}"));
        }
    }

    #[test]
    fn shard_in_whose_load_processes_end_is_refused_for_a_while() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        end_in_loads(folder.path(), ENDS_MAX);
        let record = start(folder.path());
        let fault = record.begin(1, SHARD, YOUNG).expect_err("it is refused");
        assert!(fault.to_string().contains("ended 3 times in a row"), "{fault}");
        assert!(start(folder.path()).begin(1, SHARD, YOUNG).is_err(), "a refusal is no end of a load");
        record.begin(2, SHARD, REFUSES).expect("it is tried again");
        let fault = start(folder.path()).begin(1, SHARD, YOUNG).expect_err("that process ended, too");
        assert!(fault.to_string().contains("ended 4 times in a row"), "{fault}");
    }

    #[test]
    fn ends_are_forgotten_after_another_outcome() {
        type LoadEnd = (&'static str, fn(&LoadRecord));
        let outcomes: [LoadEnd; 4] = [
            ("the load ends", |record| {
                record.begin(1, SHARD, YOUNG).expect("two ends are no reason");
                record.end(1, false);
            }),
            ("an orderly end of the process", |record| {
                record.begin(1, SHARD, YOUNG).expect("two ends are no reason");
                record.forget();
            }),
            ("another shard", |record| record.begin(1, TopologyHash(8), YOUNG).expect("another one")),
            ("an orderly end without a load", LoadRecord::forget),
        ];
        for (name, outcome) in outcomes {
            let folder = tempfile::tempdir().expect("a folder can be made");
            end_in_loads(folder.path(), ENDS_MAX - 1);
            outcome(&start(folder.path()));
            end_in_loads(folder.path(), ENDS_MAX);
            assert!(start(folder.path()).begin(1, SHARD, YOUNG).is_err(), "{name}");
        }
    }

    #[test]
    fn loss_of_power_is_no_failure_of_a_load() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        end_in_loads(folder.path(), ENDS_MAX);
        let (state, _) = StateFolder::open(folder.path()).expect("the folder is there");
        LoadRecord::new(state, "boot 2".into(), None).begin(1, SHARD, YOUNG).expect("nothing failed since the start");
    }

    #[test]
    fn end_of_an_abandoned_load_leaves_the_record_of_the_next_one() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        for _ in 0..ENDS_MAX {
            let record = start(folder.path());
            record.begin(1, SHARD, YOUNG).expect("it begins");
            record.begin(2, SHARD, YOUNG).expect("it begins again in the same epoch");
            record.end(1, true);
        }
        assert!(start(folder.path()).begin(1, SHARD, YOUNG).is_err());
    }

    #[test]
    fn abandoned_load_neither_counts_nor_clears_the_count() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        for _ in 0..ENDS_MAX {
            // Another member ended first, so the leader gave up.
            let record = start(folder.path());
            record.begin(1, SHARD, YOUNG).expect("nothing has failed here");
            record.end(1, true);
        }
        end_in_loads(folder.path(), ENDS_MAX - 1);
        let record = start(folder.path());
        record.begin(1, SHARD, YOUNG).expect("two ends are no reason");
        record.end(1, true);
        end_in_loads(folder.path(), 1);
        assert!(start(folder.path()).begin(1, SHARD, YOUNG).is_err());
    }

    #[test]
    fn shard_is_refused_for_longer_than_members_may_be_away_and_until_an_operator_includes_the_node() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        end_in_loads(folder.path(), ENDS_MAX);
        let (state, _) = StateFolder::open(folder.path()).expect("the folder is there");
        let record = LoadRecord::new(state, "boot 1".into(), Some(REFUSES));
        record.begin(1, SHARD, 2 * REFUSES).expect_err("the vote needs this time");
        record.forget();
        record.begin(1, SHARD, YOUNG).expect("it was repaired");
    }

    #[test]
    fn damaged_record_and_unwritable_folder_hinder_no_load() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        fs::write(folder.path().join(FILE), [0xff]).expect("the folder can be written");
        let record = start(folder.path());
        drop(folder);
        record.begin(1, SHARD, YOUNG).expect("it loads");
        record.end(1, false);
        record.forget();
    }
}
