//! A node's disk: records count when they are synced; a kill or a loss of power cuts what is being written.
use daemon::node::{
    event::Record,
    machine::Beginning,
    quorum::{Forgot, Voter, Votes},
};
use shared::{
    ids::Epoch,
    protocol::recovery::Committed,
    topology::{Exclusions, Rolling},
};

use crate::random::Random;

/// Something to write.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a disk of a simulation holds few of them")]
pub(super) enum Entry {
    /// A record of the node.
    Record(Record),
    /// The list of nodes that are out.
    Exclusions(Exclusions),
}

/// What is synced.
#[derive(Clone, Debug, Default)]
struct Synced {
    epoch: Epoch,
    committed: Option<Committed>,
    votes: Option<Votes>,
    forgot: Option<Forgot>,
    exclusions: Exclusions,
    rolling: Option<Rolling>,
}

/// The state folder of one node.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    synced: Synced,
    /// Writes fail: it is full or read-only.
    pub(super) is_broken: bool,
}

impl Disk {
    /// The disk of a member that has committed a topology.
    pub(super) fn of_member(committed: &Committed) -> Self {
        let synced = Synced { epoch: committed.epoch, committed: Some(committed.clone()), ..Synced::default() };
        Self { synced, is_broken: false }
    }

    /// The folder is emptied. A daemon of release 0.1 does not notice.
    pub(super) fn wipe(&mut self) {
        self.synced = Synced { forgot: Some(Forgot::Fresh), ..Synced::default() };
    }

    /// Writes all entries and syncs them.
    pub(super) fn write(&mut self, entries: &[Entry]) -> Result<(), String> {
        if self.is_broken && !entries.is_empty() {
            return Err("No space left on device (os error 28)".into());
        }
        entries.iter().for_each(|entry| self.apply(entry));
        Ok(())
    }

    /// The process dies, or power is lost, while these are being written: some first ones are synced.
    pub(super) fn cut(&mut self, entries: &[Entry], random: &mut Random) {
        let whole = random.below(entries.len() + 1);
        let _ = self.write(&entries[..whole]);
    }

    fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Record(Record::Promise(epoch, _)) => self.synced.epoch = *epoch,
            Entry::Record(Record::Committed(committed)) => self.synced.committed.clone_from(committed),
            Entry::Record(Record::Votes(votes)) => self.synced.votes = Some(votes.clone()),
            Entry::Record(Record::Forgot(forgot)) => self.synced.forgot = *forgot,
            Entry::Record(Record::Rolling(rolling)) => self.synced.rolling = Some(rolling.clone()),
            Entry::Exclusions(list) => self.synced.exclusions = list.clone(),
        }
    }

    /// Votes that are synced.
    pub(super) fn votes(&self) -> Option<&Votes> {
        self.synced.votes.as_ref()
    }

    /// Highest epoch that is synced.
    pub(super) fn epoch(&self) -> Epoch {
        self.synced.committed.as_ref().map_or(self.synced.epoch, |one| one.epoch.max(self.synced.epoch))
    }

    /// What a daemon starts with.
    pub(super) fn beginning(&self, name: &str, witness: Option<String>) -> Beginning {
        let Synced { committed, votes, forgot, exclusions, rolling, .. } = self.synced.clone();
        Beginning {
            name: name.into(),
            epoch: self.epoch(),
            exclusions,
            supervised: true,
            committed,
            voter: Voter { votes, forgot },
            witness,
            rolling,
        }
    }
}
