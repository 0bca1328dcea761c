//! The node's records on disk: the highest promised epoch, the committed topology, its votes, the exclusions, the
//! rolling restart. A record counts only once it is synced. A damaged file is set aside with a warning.
mod lock;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use common::ids::Epoch;
use protocol::recovery::Committed;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use topology::{Exclusion, Exclusions, Rolling, Topology};

pub use self::lock::StateLock;
use crate::node::{
    event::Record,
    quorum::{Forgot, Voter, Votes},
};

const FILE: &str = "epoch.toml";
const EXCLUSIONS_FILE: &str = "exclusions.toml";
const TOPOLOGY_FILE: &str = "topology.toml";
const DESIRED_FILE: &str = "desired.toml";
const VOTES_FILE: &str = "votes.toml";
const ROLLING_FILE: &str = "restart.toml";
const FORGOT_FILE: &str = "forgot.toml";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    epoch: u64,
    topology: String,
}

/// A TOML document is a table.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedExclusions {
    #[serde(default)]
    node: Vec<Exclusion>,
}

/// Includes the hash, so that a file truncated between two lines is detected.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedTopology {
    epoch: u64,
    hash: String,
    topology: Topology,
}

/// The desired topology, while the topology of this epoch differs from it. Kept in a separate file, because release 0.1
/// rejects unknown fields in `topology.toml`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedDesired {
    epoch: u64,
    topology: Topology,
}

/// What is unknown about earlier votes; the file exists only while something is.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedForgot {
    votes: Forgot,
}

/// Records read at startup.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Highest epoch promised.
    pub epoch: Epoch,
    /// Excluded nodes, and nodes that were excluded.
    pub exclusions: Exclusions,
    /// The topology that recovery brings back.
    pub committed: Option<Committed>,
    /// The node's votes.
    pub voter: Voter,
    /// The latest rolling restart.
    pub rolling: Option<Rolling>,
    /// Damaged files that were set aside.
    pub damaged: Vec<String>,
}

/// The state folder.
#[derive(Clone, Debug)]
pub struct StateFolder {
    folder: PathBuf,
}

impl StateFolder {
    /// Opens the folder, creates it if needed, and reads its records; missing files are empty records.
    ///
    /// # Errors
    /// The folder cannot be created, or a file cannot be read; the message gives the remedy.
    pub fn open(folder: &Path) -> anyhow::Result<(Self, Kept)> {
        let help = || unusable(folder);
        // A folder on a read-only disk may still be readable.
        if !folder.is_dir() {
            fs::create_dir_all(folder).with_context(help)?;
        }
        let state = Self { folder: folder.into() };
        let mut kept = Kept::default();
        let saved: Option<Saved> = state.read(FILE, &mut kept.damaged, |_| true).with_context(help)?;
        let is_sound = |list: &SavedExclusions| Exclusions(list.node.clone()).check().is_ok();
        let exclusions: Option<SavedExclusions> =
            state.read(EXCLUSIONS_FILE, &mut kept.damaged, is_sound).with_context(help)?;
        let is_sound =
            |saved: &SavedTopology| saved.topology.check().is_ok() && saved.topology.hash().to_string() == saved.hash;
        let topology: Option<SavedTopology> =
            state.read(TOPOLOGY_FILE, &mut kept.damaged, is_sound).with_context(help)?;
        let votes: Option<Votes> = state
            .read(VOTES_FILE, &mut kept.damaged, |votes: &Votes| {
                let next = votes.accepted.iter().map(|accepted| &accepted.next);
                next.chain([&votes.base]).all(|one| one.topology.check().is_ok() && one.desired().check().is_ok())
            })
            .with_context(help)?;
        kept.rolling = state
            .read(ROLLING_FILE, &mut kept.damaged, |rolling: &Rolling| rolling.check().is_ok())
            .with_context(help)?;
        kept.exclusions = Exclusions(exclusions.map_or_else(Vec::new, |saved| saved.node));
        let is_sound = |saved: &SavedDesired| saved.topology.check().is_ok();
        let desired: Option<SavedDesired> = state.read(DESIRED_FILE, &mut kept.damaged, is_sound).with_context(help)?;
        kept.committed = topology.map(|saved| {
            let desired =
                desired.filter(|desired| desired.epoch == saved.epoch).map(|desired| Box::new(desired.topology));
            Committed { epoch: Epoch(saved.epoch), topology: saved.topology, desired }
        });
        let committed = kept.committed.as_ref().map_or(Epoch(0), |committed| committed.epoch);
        kept.epoch = saved.map_or(Epoch(0), |saved| Epoch(saved.epoch)).max(committed);
        // A node that lost its votes must not contradict them, not even after its next restart.
        let is_lost = kept.damaged.iter().any(|name| name == FILE || name == VOTES_FILE);
        let saved: Option<SavedForgot> = state.read(FORGOT_FILE, &mut kept.damaged, |_| true).with_context(help)?;
        let saved = saved.map(|saved| saved.votes);
        let forgot = match (saved, &kept.committed) {
            (Some(Forgot::UpTo(epoch)), _) if is_lost => Some(Forgot::UpTo(epoch.max(kept.epoch))),
            (Some(forgot), _) => Some(forgot),
            (None, Some(committed)) if is_lost => Some(Forgot::UpTo(committed.epoch)),
            (None, _) if is_lost || kept.damaged.iter().any(|name| name == FORGOT_FILE) => Some(Forgot::Lost),
            (None, None) if kept.epoch == Epoch(0) && votes.is_none() => Some(Forgot::Fresh),
            (None, _) => None,
        };
        if saved != forgot && forgot.is_some() {
            // If the disk cannot be written, the next start finds the folder in the same state.
            let _ = state.save(&Record::Forgot(forgot));
        }
        kept.voter = Voter { votes, forgot };
        Ok((state, kept))
    }

    /// Reads a file; a damaged one is set aside and added to the list.
    fn read<T: DeserializeOwned>(
        &self,
        name: &str,
        damaged: &mut Vec<String>,
        is_sound: impl Fn(&T) -> bool,
    ) -> io::Result<Option<T>> {
        let path = self.folder.join(name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let parsed = String::from_utf8(bytes).ok().and_then(|text| toml::from_str(&text).ok()).filter(is_sound);
        if parsed.is_none() {
            damaged.push(name.into());
            // If the disk cannot be written, the next start finds the same damaged file.
            let _ = fs::rename(&path, self.folder.join(format!("{name}.damaged")));
        }
        Ok(parsed)
    }

    /// Writes a record.
    ///
    /// # Errors
    /// The disk is full, read-only or broken.
    pub fn save(&self, record: &Record) -> io::Result<()> {
        match record {
            Record::Promise(epoch, hash) => {
                let saved = Saved { epoch: epoch.0, topology: hash.to_string() };
                self.replace(FILE, &text(&saved)?)
            }
            Record::Committed(Some(Committed { epoch, topology, desired })) => {
                // Written before the topology and removed after it: a desired topology of another epoch is ignored when
                // both are read.
                if let Some(desired) = desired {
                    let saved = SavedDesired { epoch: epoch.0, topology: (**desired).clone() };
                    self.replace(DESIRED_FILE, &text(&saved)?)?;
                }
                let hash = topology.hash().to_string();
                let saved = SavedTopology { epoch: epoch.0, hash, topology: topology.clone() };
                self.replace(TOPOLOGY_FILE, &text(&saved)?)?;
                let is_stale = desired.is_none() && self.folder.join(DESIRED_FILE).exists();
                if is_stale { self.remove(DESIRED_FILE) } else { Ok(()) }
            }
            Record::Committed(None) => self.remove(TOPOLOGY_FILE),
            Record::Votes(votes) => self.replace(VOTES_FILE, &text(votes)?),
            Record::Forgot(Some(votes)) => self.replace(FORGOT_FILE, &text(&SavedForgot { votes: *votes })?),
            Record::Forgot(None) => self.remove(FORGOT_FILE),
            Record::Rolling(rolling) => self.replace(ROLLING_FILE, &text(rolling)?),
        }
    }

    /// Writes the list of exclusions.
    ///
    /// # Errors
    /// The disk is full, read-only or broken.
    pub fn save_exclusions(&self, list: &Exclusions) -> io::Result<()> {
        self.replace(EXCLUSIONS_FILE, &text(&SavedExclusions { node: list.0.clone() })?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.folder.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => File::open(&self.folder)?.sync_all(),
        }
    }

    /// Writes a new file, syncs it, renames it over the old one and syncs the folder.
    fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let fresh = self.folder.join(format!("{name}.new"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, self.folder.join(name))?;
        File::open(&self.folder)?.sync_all()
    }
}

fn unusable(folder: &Path) -> String {
    format!("cannot use state folder {}; give a writable one with --state DIR", folder.display())
}

fn text<T: Serialize>(saved: &T) -> io::Result<String> {
    toml::to_string(saved).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use common::ids::TopologyHash;
    use protocol::recovery::Ballot;
    use topology::rolling::Phase;

    use super::*;
    use crate::node::quorum::Accepted;

    fn committed(epoch: u64) -> Committed {
        let topology = Topology { slots: 3, ..crate::node::tests::topology(2) };
        Committed::new(Epoch(epoch), topology)
    }

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("bramble-state-{name}-{}", std::process::id()))
    }

    fn full(folder: &Path) -> (StateFolder, Exclusions, Votes, Rolling) {
        let (state, kept) = StateFolder::open(folder).expect("the folder can be made");
        assert_eq!((kept.epoch, kept.committed, kept.damaged.len()), (Epoch(0), None, 0));
        let mut exclusions = Exclusions::default();
        exclusions.say("pi2", "pi2:9999", Some("fan \"stuck\""), "me@here");
        exclusions.say("pi3", "pi3:9999", None, "me@here");
        let ballot = Ballot { round: 2, member: 1 };
        let accepted = Some(Accepted { ballot, next: committed(8) });
        let votes = Votes { promised: ballot, base: committed(7), accepted };
        let targets = vec![("pi1".into(), "pi1:9999".into())];
        let (before, phase) = (Some(u64::MAX >> 1), Phase::Paused("x".into()));
        let rolling = Rolling { targets, done: 0, before, phase, drain_ms: 5, by: "me".into(), revision: 3 };
        let records = [
            Record::Promise(Epoch(7), TopologyHash(9)),
            Record::Committed(Some(committed(7))),
            Record::Votes(votes.clone()),
            Record::Rolling(rolling.clone()),
            Record::Forgot(None),
        ];
        records.iter().for_each(|record| state.save(record).expect("the folder can be written"));
        state.save_exclusions(&exclusions).expect("the folder can be written");
        (state, exclusions, votes, rolling)
    }

    #[test]
    fn wiped_folder_is_remembered_until_majority_or_assignment() {
        let folder = folder("wiped");
        for _ in 0..2 {
            let (_, kept) = StateFolder::open(&folder).expect("the folder can be made");
            assert_eq!(kept.voter.forgot, Some(Forgot::Fresh));
        }
        let (state, _) = StateFolder::open(&folder).expect("the folder is there");
        state.save(&Record::Committed(Some(committed(7)))).expect("the folder can be written");
        let (_, kept) = StateFolder::open(&folder).expect("the folder is there");
        assert_eq!(kept.voter.forgot, Some(Forgot::Fresh), "the other nodes restored it");
        for forgot in [Some(Forgot::UpTo(Epoch(7))), None] {
            state.save(&Record::Forgot(forgot)).expect("the folder can be written");
            assert_eq!(StateFolder::open(&folder).expect("the folder is there").1.voter.forgot, forgot);
        }
        fs::remove_dir_all(&folder).expect("the folder can be removed");
    }

    #[test]
    fn records_survive_a_restart() {
        let folder = folder("kept");
        let (state, exclusions, votes, rolling) = full(&folder);
        let (_, kept) = StateFolder::open(&folder).expect("the folder is there");
        assert_eq!((kept.epoch, kept.exclusions, kept.committed), (Epoch(7), exclusions, Some(committed(7))));
        assert_eq!((kept.voter.votes, kept.voter.forgot, kept.rolling), (Some(votes), None, Some(rolling)));
        state.save(&Record::Committed(None)).expect("the folder can be written");
        let (_, kept) = StateFolder::open(&folder).expect("the folder is there");
        assert_eq!((kept.committed, kept.damaged.len()), (None, 0));
        fs::remove_dir_all(&folder).expect("the folder can be removed");
    }

    #[test]
    fn desired_topology_is_kept_until_it_is_the_topology() {
        let folder = folder("desired");
        let (state, _) = StateFolder::open(&folder).expect("the folder can be made");
        let desired = |kept: Kept| kept.committed.and_then(|committed| committed.desired);
        let wanted = Some(Box::new(crate::node::tests::topology(3)));
        let reduced = Committed { desired: wanted.clone(), ..committed(7) };
        state.save(&Record::Committed(Some(reduced))).expect("the folder can be written");
        assert_eq!(desired(StateFolder::open(&folder).expect("the folder is there").1), wanted);
        let file = fs::read(folder.join(DESIRED_FILE)).expect("it was written");
        state.save(&Record::Committed(Some(committed(8)))).expect("the folder can be written");
        assert!(!folder.join(DESIRED_FILE).exists());
        // After a crash before the removal, the file of another epoch remains.
        fs::write(folder.join(DESIRED_FILE), file).expect("the folder can be written");
        assert_eq!(desired(StateFolder::open(&folder).expect("the folder is there").1), None);
        fs::remove_dir_all(&folder).expect("the folder can be removed");
    }

    #[test]
    fn votes_with_an_invalid_topology_are_put_aside() {
        let folder = folder("votes");
        let (state, _, votes, _) = full(&folder);
        let mut invalid = crate::node::tests::topology(2);
        invalid.members[1].name = invalid.members[0].name.clone();
        let mut next = votes.clone();
        next.accepted.as_mut().expect("it accepted").next.topology = invalid.clone();
        let desired = Votes { base: Committed { desired: Some(Box::new(invalid)), ..committed(7) }, ..votes };
        for votes in [next, desired] {
            state.save(&Record::Votes(votes)).expect("the folder can be written");
            let (_, kept) = StateFolder::open(&folder).expect("damaged votes are survived");
            assert_eq!((kept.voter.votes, &kept.damaged[..]), (None, &[VOTES_FILE.to_owned()][..]));
        }
        fs::remove_dir_all(&folder).expect("the folder can be removed");
    }

    #[test]
    fn truncated_file_is_reported_and_stops_votes_if_they_are_lost() {
        let folder = folder("cut");
        full(&folder);
        for name in [FILE, EXCLUSIONS_FILE, TOPOLOGY_FILE, VOTES_FILE, ROLLING_FILE] {
            let whole = fs::read(folder.join(name)).expect("it was written");
            for length in (1..whole.len()).step_by(7) {
                fs::write(folder.join(name), &whole[..length]).expect("the folder can be written");
                let (_, kept) = StateFolder::open(&folder).expect("a damaged file is survived");
                // A list of exclusions can be valid without its last entries.
                if name == TOPOLOGY_FILE {
                    assert_eq!(
                        (kept.committed.as_ref(), &kept.damaged[..]),
                        (None, &[name.to_owned()][..]),
                        "{length}"
                    );
                }
                let is_lost = kept.damaged.iter().any(|lost| lost == FILE || lost == VOTES_FILE);
                assert_eq!(kept.voter.forgot.is_some(), is_lost, "{name} cut at {length}");
                assert_eq!(folder.join(format!("{name}.damaged")).is_file(), folder.join(name).metadata().is_err());
                let _ = fs::remove_file(folder.join(format!("{name}.damaged")));
                let (_, kept) = StateFolder::open(&folder).expect("it was set aside");
                assert_eq!(
                    kept.voter.forgot.is_some(),
                    is_lost,
                    "still after the next restart: {name} cut at {length}"
                );
                let _ = fs::remove_file(folder.join(FORGOT_FILE));
            }
            fs::write(folder.join(name), &whole).expect("the folder can be written");
        }
        fs::write(folder.join(FILE), [0xff; 40]).expect("the folder can be written");
        let (_, kept) = StateFolder::open(&folder).expect("a damaged file is survived");
        assert_eq!(
            (kept.epoch, kept.voter.forgot),
            (Epoch(7), Some(Forgot::UpTo(Epoch(7)))),
            "the topology gives the epoch"
        );
        fs::remove_dir_all(&folder).expect("the folder can be removed");
    }
}
