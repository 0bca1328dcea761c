//! A node's disk: records count once they are synced; a kill or a power loss interrupts the write in progress.
use std::collections::BTreeSet;

use common::ids::{Epoch, TopologyHash};
use daemon::node::{
    event::Record,
    machine::NodeInit,
    quorum::{Acceptor, VoteGap, Votes},
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
    forgot: Option<VoteGap>,
    exclusions: Exclusions,
    rolling: Option<Rolling>,
    unloaded: Option<(Epoch, TopologyHash)>,
    neighbours: BTreeSet<String>,
}

/// The state folder of one node.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    synced: Synced,
    /// Writes fail because the disk is full or read-only.
    pub(super) is_broken: bool,
}

impl Disk {
    /// The disk of a member that has committed a topology.
    pub(super) fn of_member(committed: &Committed) -> Self {
        let synced = Synced { epoch: committed.epoch, committed: Some(committed.clone()), ..Synced::default() };
        Self { synced, is_broken: false }
    }

    /// Empties the folder. A daemon of release 0.1 does not notice.
    pub(super) fn wipe(&mut self) {
        self.synced = Synced { forgot: Some(VoteGap::Fresh), ..Synced::default() };
    }

    /// Writes all entries and syncs them.
    pub(super) fn write(&mut self, entries: &[Entry]) -> Result<(), String> {
        if self.is_broken && !entries.is_empty() {
            return Err("No space left on device (os error 28)".into());
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
            Entry::Record(Record::VoteGap(forgot)) => self.synced.forgot = *forgot,
            Entry::Record(Record::Rolling(rolling)) => self.synced.rolling = Some(rolling.clone()),
            Entry::Record(Record::Unloaded(unloaded)) => self.synced.unloaded = *unloaded,
            Entry::Record(Record::Neighbours(addresses)) => {
                self.synced.neighbours = addresses.iter().cloned().collect();
            }
            Entry::Exclusions(list) => self.synced.exclusions = list.clone(),
        }
    }

    /// The synced votes.
    pub(super) fn votes(&self) -> Option<&Votes> {
        self.synced.votes.as_ref()
    }

    /// The highest synced epoch.
    pub(super) fn epoch(&self) -> Epoch {
        self.synced.committed.as_ref().map_or(self.synced.epoch, |one| one.epoch.max(self.synced.epoch))
    }

    /// The persisted state with which a daemon starts.
    pub(super) fn beginning(&self, name: &str, witness: Option<String>) -> NodeInit {
        let Synced { committed, votes, forgot, exclusions, rolling, unloaded, neighbours, .. } = self.synced.clone();
        NodeInit {
            name: name.into(),
            epoch: self.epoch(),
            exclusions,
            supervised: true,
            committed,
            voter: Acceptor { votes, forgot },
            witness,
            rolling,
            unloaded,
            neighbours,
        }
    }
}
