//! The node's records on disk: the highest promised epoch, the committed topology and the last unloaded one, its votes, the
//! exclusions, the rolling restart, the other nodes, the load in progress. A record counts only once it is synced. A damaged file is set aside with a warning.
mod loading;
mod lock;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::Context;
use common::{
    ids::{Epoch, TopologyHash},
    limits::NODES_MAX,
};
use nix::errno::Errno;
use protocol::{address::is_address, recovery::Committed};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};
use topology::{Exclusion, Exclusions, Rolling, Topology};

pub use self::{
    loading::LoadRecord,
    lock::{Holder, StateLock},
};
use crate::node::{
    event::Record,
    quorum::{Acceptor, VoteGap, Votes, WITNESSED_MAX},
};

const FILE: &str = "epoch.toml";
const EXCLUSIONS_FILE: &str = "exclusions.toml";
const TOPOLOGY_FILE: &str = "topology.toml";
const DESIRED_FILE: &str = "desired.toml";
const VOTES_FILE: &str = "votes.toml";
const WITNESSED_FILE: &str = "witnessed.toml";
const ROLLING_FILE: &str = "restart.toml";
const FORGOT_FILE: &str = "forgot.toml";
const UNLOADED_FILE: &str = "unloaded.toml";
const NEIGHBOURS_FILE: &str = "neighbours.toml";
/// How often an unreadable or damaged file is read again, and the pause before.
const RETRIES: usize = 2;
const RETRY: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 300 });
/// Start of the line with the checksum.
const CHECKSUM: &str = "# sha256 ";

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

/// Votes as the witness of other groups. Kept in a separate file, because release 0.1 reads one record in `votes.toml`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedWitnessed {
    group: Vec<Votes>,
}

/// The gap in the record of earlier votes; the file exists only while there is one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedForgot {
    votes: VoteGap,
}

/// The other nodes of the cluster.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedNeighbours {
    addresses: Vec<String>,
}

/// Records read at startup.
#[derive(Clone, Debug, Default)]
pub struct PersistedState {
    /// Highest epoch promised.
    pub epoch: Epoch,
    /// Excluded nodes, and nodes that were excluded.
    pub exclusions: Exclusions,
    /// The topology that recovery brings back.
    pub committed: Option<Committed>,
    /// The node's votes.
    pub voter: Acceptor,
    /// The latest rolling restart.
    pub rolling: Option<Rolling>,
    /// The topology that was last unloaded.
    pub unloaded: Option<(Epoch, TopologyHash)>,
    /// Addresses of other nodes of the cluster.
    pub neighbours: BTreeSet<String>,
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
    /// The folder cannot be created, or a file that may be intact cannot be read; the message gives the remedy.
    pub fn open(folder: &Path) -> anyhow::Result<(Self, PersistedState)> {
        let help = || unusable(folder);
        // A folder on a read-only disk may still be readable.
        if !folder.is_dir() {
            fs::create_dir_all(folder).with_context(help)?;
        }
        let state = Self { folder: folder.into() };
        let mut kept = PersistedState::default();
        let saved: Option<Saved> = state.read(FILE, &mut kept.damaged, |_| true).with_context(help)?;
        let exclusions = state
            .read(EXCLUSIONS_FILE, &mut kept.damaged, |list: &SavedExclusions| {
                Exclusions(list.node.clone()).check().is_ok()
            })
            .with_context(help)?;
        let topology = state
            .read(TOPOLOGY_FILE, &mut kept.damaged, |saved: &SavedTopology| {
                saved.topology.check().is_ok() && saved.topology.hash().to_string() == saved.hash
            })
            .with_context(help)?;
        let votes: Option<Votes> = state.read(VOTES_FILE, &mut kept.damaged, are_valid).with_context(help)?;
        let witnessed: Option<SavedWitnessed> = state
            .read(WITNESSED_FILE, &mut kept.damaged, |saved: &SavedWitnessed| saved.group.iter().all(are_valid))
            .with_context(help)?;
        let witnessed: Vec<Votes> = witnessed.into_iter().flat_map(|saved| saved.group).take(WITNESSED_MAX).collect();
        kept.rolling = state
            .read(ROLLING_FILE, &mut kept.damaged, |rolling: &Rolling| rolling.check().is_ok())
            .with_context(help)?;
        let unloaded: Option<Saved> = state.read(UNLOADED_FILE, &mut kept.damaged, |_| true).with_context(help)?;
        kept.unloaded = unloaded.and_then(|saved| Some((Epoch(saved.epoch), hash_of(&saved.topology)?)));
        let neighbours: Option<SavedNeighbours> =
            state.read(NEIGHBOURS_FILE, &mut kept.damaged, are_addresses).with_context(help)?;
        kept.neighbours = neighbours.into_iter().flat_map(|saved| saved.addresses).take(NODES_MAX).collect();
        kept.exclusions = Exclusions(exclusions.map_or_else(Vec::new, |saved| saved.node));
        let desired = state
            .read(DESIRED_FILE, &mut kept.damaged, |saved: &SavedDesired| saved.topology.check().is_ok())
            .with_context(help)?;
        kept.committed = topology.map(|saved| {
            let desired =
                desired.filter(|desired| desired.epoch == saved.epoch).map(|desired| Box::new(desired.topology));
            Committed { epoch: Epoch(saved.epoch), topology: saved.topology, desired }
        });
        let committed = kept.committed.as_ref().map_or(Epoch(0), |committed| committed.epoch);
        kept.epoch = saved.map_or(Epoch(0), |saved| Epoch(saved.epoch)).max(committed);
        // A node that lost its votes must not contradict them, not even after its next restart.
        let is_lost = kept.damaged.iter().any(|name| [FILE, VOTES_FILE, WITNESSED_FILE].contains(&name.as_str()));
        let never_voted = votes.is_none() && witnessed.is_empty();
        let saved: Option<SavedForgot> = state.read(FORGOT_FILE, &mut kept.damaged, |_| true).with_context(help)?;
        let saved = saved.map(|saved| saved.votes);
        let forgot = match (saved, &kept.committed) {
            (Some(VoteGap::UpTo(epoch)), _) if is_lost => Some(VoteGap::UpTo(epoch.max(kept.epoch))),
            (Some(forgot), _) => Some(forgot),
            (None, Some(committed)) if is_lost => Some(VoteGap::UpTo(committed.epoch)),
            (None, _) if is_lost || kept.damaged.iter().any(|name| name == FORGOT_FILE) => Some(VoteGap::Lost),
            (None, None) if kept.epoch == Epoch(0) && never_voted => Some(VoteGap::Fresh),
            (None, _) => None,
        };
        if saved != forgot && forgot.is_some() {
            // If the disk cannot be written, the next start finds the folder in the same state.
            let _ = state.save(&Record::VoteGap(forgot));
        }
        kept.voter = Acceptor { votes, witnessed, forgot };
        Ok((state, kept))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Reads a file; a damaged one is set aside and added to the list.
    fn read<T: DeserializeOwned>(
        &self,
        name: &str,
        damaged: &mut Vec<String>,
        is_sound: impl Fn(&T) -> bool,
    ) -> io::Result<Option<T>> {
        let path = self.folder.join(name);
        let mut text = intact_text(fs::read(&path));
        for _ in 0..RETRIES {
            if !matches!(text, Ok(None)) {
                break;
            }
            // After a reset of the disk, the next read may succeed.
            thread::park_timeout(RETRY);
            text = intact_text(fs::read(&path));
        }
        let text = match text {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let parsed = text.and_then(|text| toml::from_str(&text).ok()).filter(is_sound);
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
            Record::Witnessed(votes) => self.replace(WITNESSED_FILE, &text(&SavedWitnessed { group: votes.clone() })?),
            Record::VoteGap(Some(votes)) => self.replace(FORGOT_FILE, &text(&SavedForgot { votes: *votes })?),
            Record::VoteGap(None) => self.remove(FORGOT_FILE),
            Record::Rolling(rolling) => self.replace(ROLLING_FILE, &text(rolling)?),
            Record::Unloaded(Some((epoch, hash))) => {
                self.replace(UNLOADED_FILE, &text(&Saved { epoch: epoch.0, topology: hash.to_string() })?)
            }
            Record::Unloaded(None) => self.remove(UNLOADED_FILE),
            Record::Neighbours(addresses) => {
                self.replace(NEIGHBOURS_FILE, &text(&SavedNeighbours { addresses: addresses.clone() })?)
            }
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

    /// Writes a new file with its checksum, syncs it, renames it over the old one and syncs the folder.
    fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let fresh = self.folder.join(format!("{name}.new"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.write_all(checksum(text).as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, self.folder.join(name))?;
        File::open(&self.folder)?.sync_all()
    }
}

/// The last line of a file: a comment, which release 0.1 ignores.
fn checksum(text: &str) -> String {
    let digest = Sha256::digest(text);
    let sum = u64::from_be_bytes(digest[..8].try_into().expect("a SHA-256 has 32 bytes"));
    format!("{CHECKSUM}{sum:016x}\n")
}

/// Whether the text of a file fits the checksum at its end. A file of release 0.1 has none.
fn is_intact(text: &str) -> bool {
    let parts = text.split_at_checked(text.len().saturating_sub(checksum("").len()));
    parts.is_none_or(|(body, sum)| !sum.starts_with(CHECKSUM) || sum == checksum(body))
}

/// The text of a file as it was read; `None` if the file is damaged.
///
/// # Errors
/// It is missing, or may be intact: for example, the daemon may not read it or has too many open files.
fn intact_text(read: io::Result<Vec<u8>>) -> io::Result<Option<String>> {
    match read {
        Ok(bytes) => Ok(String::from_utf8(bytes).ok().filter(|text| is_intact(text))),
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            // A bad sector or a damaged file system: a retry fails in the same way, and the daemon would never start.
            Some(Errno::EIO | Errno::EUCLEAN | Errno::EBADMSG) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Whether all topologies of a record of votes are valid.
fn are_valid(votes: &Votes) -> bool {
    let next = votes.accepted.iter().map(|accepted| &accepted.next);
    next.chain([&votes.base]).all(|one| one.topology.check().is_ok() && one.desired().check().is_ok())
}

/// Whether the neighbours can be dialled.
fn are_addresses(saved: &SavedNeighbours) -> bool {
    saved.addresses.iter().all(|address| is_address(address))
}

/// The hash that a text shows.
fn hash_of(text: &str) -> Option<TopologyHash> {
    u64::from_str_radix(text, 16).ok().map(TopologyHash)
}

fn unusable(folder: &Path) -> String {
    format!("cannot use state folder {}; give a writable one with --state DIR", folder.display())
}

fn text<T: Serialize>(saved: &T) -> io::Result<String> {
    toml::to_string(saved).map_err(io::Error::other)
}
