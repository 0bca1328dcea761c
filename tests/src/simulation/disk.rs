//! A node's disk: records count once they are synced; a kill or a power loss interrupts the write in progress. Damaged
//! files are read by the daemon's own reader, from a folder in memory.
use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use common::ids::{Epoch, TopologyHash};
use daemon::node::{
    driver::state::{PersistedState, StateFolder},
    event::Record,
    machine::NodeInit,
    quorum::{Acceptor, VoteGap, Votes, majority},
};
use protocol::recovery::Committed;
use topology::{Exclusions, Rolling};

use crate::random::Random;

/// A pending write.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a disk of a simulation holds few of them")]
pub(super) enum Entry {
    Record(Record),
    /// The list of excluded nodes.
    Exclusions(Exclusions),
}

/// Synced contents.
#[derive(Clone, Debug, Default)]
struct Synced {
    epoch: Epoch,
    committed: Option<Committed>,
    votes: Option<Votes>,
    witnessed: Vec<Votes>,
    forgot: Option<VoteGap>,
    exclusions: Exclusions,
    rolling: Option<Rolling>,
    unloaded: Option<(Epoch, TopologyHash)>,
    neighbours: BTreeSet<String>,
}

/// Why writes fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskTrouble {
    /// Every other write finds room.
    Full,
    /// None succeeds.
    ReadOnly,
}

/// The state folder of one node.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    synced: Synced,
    /// What a backup holds.
    backup: Synced,
    /// Number of writes so far.
    writes: u64,
    pub(super) trouble: Option<DiskTrouble>,
    /// Writes end after this time.
    pub(super) stalls_until: Duration,
}

impl Disk {
    /// The disk of a member that has committed a topology.
    pub(super) fn of_member(committed: &Committed) -> Self {
        let synced = Synced { epoch: committed.epoch, committed: Some(committed.clone()), ..Synced::default() };
        Self { backup: synced.clone(), synced, ..Self::default() }
    }

    /// Empties the folder. A daemon of release 0.1 does not notice.
    pub(super) fn wipe(&mut self) {
        self.synced = Synced { forgot: Some(VoteGap::Fresh), ..Synced::default() };
    }

    /// Writes all entries and syncs them.
    pub(super) fn write(&mut self, entries: &[Entry]) -> Result<(), String> {
        self.writes += u64::from(!entries.is_empty());
        match self.trouble.filter(|_| !entries.is_empty()) {
            Some(DiskTrouble::ReadOnly) => return Err("Read-only file system (os error 30)".into()),
            Some(DiskTrouble::Full) if self.writes.is_multiple_of(2) => {
                return Err("No space left on device (os error 28)".into());
            }
            _ => {}
        }
        entries.iter().for_each(|entry| self.apply(entry));
        Ok(())
    }

    /// Interrupts a write of these entries by a kill or power loss: a random prefix is synced.
    pub(super) fn cut(&mut self, entries: &[Entry], random: &mut Random) {
        let whole = random.below(entries.len() + 1);
        let _ = self.write(&entries[..whole]);
    }

    fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Record(Record::Promise(epoch, _)) => self.synced.epoch = *epoch,
            Entry::Record(Record::Committed(committed)) => self.synced.committed.clone_from(committed),
            Entry::Record(Record::Votes(votes)) => self.synced.votes = Some(votes.clone()),
            Entry::Record(Record::Witnessed(votes)) => self.synced.witnessed.clone_from(votes),
            Entry::Record(Record::VoteGap(forgot)) => self.synced.forgot = *forgot,
            Entry::Record(Record::Rolling(rolling)) => self.synced.rolling = Some(rolling.clone()),
            Entry::Record(Record::Unloaded(unloaded)) => self.synced.unloaded = *unloaded,
            Entry::Record(Record::Neighbours(addresses)) => {
                self.synced.neighbours = addresses.iter().cloned().collect();
            }
            Entry::Exclusions(list) => self.synced.exclusions = list.clone(),
        }
    }

    /// Damages one of the files and reads the folder as the daemon does at its start. Returns what was damaged.
    pub(super) fn damage(&mut self, random: &mut Random) -> String {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let folder = folder.expect("a temporary folder can be made");
        self.write_files(folder.path());
        let listed = fs::read_dir(folder.path()).expect("the folder exists").flatten();
        let mut names: Vec<String> = listed.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        if names.is_empty() {
            return "nothing to damage".into();
        }
        let name = names[random.below(names.len())].clone();
        let path = folder.path().join(&name);
        let mut bytes = fs::read(&path).expect("it was written");
        let place = random.below(bytes.len().max(1));
        let how = ["cut", "zeroed", "changed"][random.below(3)];
        match how {
            "cut" => bytes.truncate(place),
            "zeroed" => bytes[place..].fill(0),
            _ => bytes[place] ^= 1 << random.below(8),
        }
        fs::write(&path, bytes).expect("the folder can be written");
        let (_, kept) = StateFolder::open(folder.path()).expect("the folder can be read");
        let PersistedState { epoch, exclusions, committed, voter, rolling, unloaded, neighbours, .. } = kept;
        let Acceptor { votes, witnessed, forgot } = voter;
        self.synced = Synced { epoch, committed, votes, witnessed, forgot, exclusions, rolling, unloaded, neighbours };
        format!("{name} was {how} at byte {place}")
    }

    fn write_files(&self, folder: &Path) {
        let Synced { epoch, committed, votes, witnessed, forgot, exclusions, rolling, unloaded, neighbours } =
            &self.synced;
        let (state, _) = StateFolder::open(folder).expect("an empty folder can be opened");
        let mut records = vec![Record::VoteGap(*forgot)];
        records.extend((*epoch > Epoch(0)).then_some(Record::Promise(*epoch, TopologyHash(1))));
        records.extend(committed.clone().map(|committed| Record::Committed(Some(committed))));
        records.extend(votes.clone().map(Record::Votes));
        records.extend((!witnessed.is_empty()).then(|| Record::Witnessed(witnessed.clone())));
        records.extend(rolling.clone().map(Record::Rolling));
        records.extend(unloaded.map(|unloaded| Record::Unloaded(Some(unloaded))));
        records.extend((!neighbours.is_empty()).then(|| Record::Neighbours(neighbours.iter().cloned().collect())));
        records.iter().for_each(|record| state.save(record).expect("it can be written"));
        state.save_exclusions(exclusions).expect("it can be written");
    }

    /// Makes a backup.
    pub(super) fn back_up(&mut self) {
        self.backup = self.synced.clone();
    }

    /// Restores the backup; returns whether the topology and the votes were restored, too. Nothing defends against a
    /// backup that takes back a promise on which a majority rests, so these are restored only if the votes are the same,
    /// or if enough others, whose epochs are given, hold a later topology.
    pub(super) fn restore(&mut self, others: &[(String, Epoch)]) -> bool {
        let now = std::mem::replace(&mut self.synced, self.backup.clone());
        let base = self.backup.committed.as_ref();
        let voters = base.map_or(0, |base| base.topology.members.len());
        let later = others.iter().filter(|(name, epoch)| {
            base.is_some_and(|base| *epoch > base.epoch && base.topology.members.iter().any(|one| one.name == *name))
        });
        let later = later.count();
        let is_settled = later > 0 && later > voters - majority(voters);
        let has_same_votes = (&now.votes, &now.witnessed) == (&self.backup.votes, &self.backup.witnessed);
        let is_same = now.committed == self.backup.committed && has_same_votes;
        if !(is_same || is_settled) {
            let Synced { epoch, committed, votes, witnessed, forgot, unloaded, .. } = now;
            self.synced = Synced { epoch, committed, votes, witnessed, forgot, unloaded, ..self.synced.clone() };
        }
        is_same || is_settled
    }

    /// The synced list of exclusions.
    pub(super) fn exclusions(&self) -> &Exclusions {
        &self.synced.exclusions
    }

    /// The synced topology.
    pub(super) fn committed(&self) -> Option<&Committed> {
        self.synced.committed.as_ref()
    }

    /// Whether the record of votes has a gap.
    pub(super) fn forgets(&self) -> bool {
        self.synced.forgot.is_some()
    }

    /// The synced votes about the successor of a topology.
    pub(super) fn votes_on(&self, base: &Committed) -> Option<&Votes> {
        self.synced.witnessed.iter().chain(&self.synced.votes).find(|votes| votes.base == *base)
    }

    /// The highest synced epoch.
    pub(super) fn epoch(&self) -> Epoch {
        self.synced.committed.as_ref().map_or(self.synced.epoch, |one| one.epoch.max(self.synced.epoch))
    }

    /// The persisted state with which a daemon starts.
    pub(super) fn beginning(&self, name: &str, witness: Option<String>) -> NodeInit {
        let Synced { committed, votes, witnessed, forgot, exclusions, rolling, unloaded, neighbours, .. } =
            self.synced.clone();
        NodeInit {
            name: name.into(),
            epoch: self.epoch(),
            exclusions,
            supervised: true,
            committed,
            voter: Acceptor { votes, witnessed, forgot },
            witness,
            rolling,
            unloaded,
            neighbours,
        }
    }
}
