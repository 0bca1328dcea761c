//! What a node writes to its disk: the highest epoch that it promised with the topology's hash, and the nodes that an
//! operator took out. Synced before it counts.
use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use shared::{
    ids::{Epoch, TopologyHash},
    topology::{Exclusion, Exclusions},
};

const FILE: &str = "epoch.toml";
const EXCLUSIONS_FILE: &str = "exclusions.toml";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    epoch: u64,
    topology: String,
}

/// TOML wants a table at the top.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedExclusions {
    #[serde(default)]
    node: Vec<Exclusion>,
}

/// What was kept over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Highest epoch promised.
    pub epoch: Epoch,
    /// Nodes that are out, or were.
    pub exclusions: Exclusions,
}

/// The state folder.
#[derive(Clone, Debug)]
pub struct StateFolder {
    folder: PathBuf,
}

impl StateFolder {
    /// Opens (and if needed makes) the folder and reads what was kept; nothing where nothing was written yet.
    ///
    /// # Errors
    /// The folder cannot be made, or a file cannot be read or is damaged: the message says what to do.
    pub fn open(folder: &Path) -> anyhow::Result<(Self, Kept)> {
        let help = || format!("cannot use state folder {}; give a writable one with --state DIR", folder.display());
        fs::create_dir_all(folder).with_context(help)?;
        let read = |name: &str| match fs::read_to_string(folder.join(name)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(help),
        };
        let damaged = |name: &str, cure: &str| format!("{} is damaged; {cure}", folder.join(name).display());
        let epoch = match read(FILE)? {
            Some(text) => {
                let cure = "write `epoch = N` with N above every epoch that `console status` shows, and \
                            `topology = \"\"` into it";
                let saved: Saved = toml::from_str(&text).with_context(|| damaged(FILE, cure))?;
                Epoch(saved.epoch)
            }
            None => Epoch(0),
        };
        let exclusions = match read(EXCLUSIONS_FILE)? {
            Some(text) => {
                let cure = "remove it: the other nodes know the list, `console exclude` or `include` brings it here";
                let saved: SavedExclusions = toml::from_str(&text).with_context(|| damaged(EXCLUSIONS_FILE, cure))?;
                let list = Exclusions(saved.node);
                list.check().with_context(|| damaged(EXCLUSIONS_FILE, cure))?;
                list
            }
            None => Exclusions::default(),
        };
        Ok((Self { folder: folder.into() }, Kept { epoch, exclusions }))
    }

    /// Writes (epoch, hash).
    ///
    /// # Errors
    /// The disk is full, read-only or broken.
    pub fn save(&self, epoch: Epoch, hash: TopologyHash) -> io::Result<()> {
        let saved = Saved { epoch: epoch.0, topology: hash.to_string() };
        self.replace(FILE, &toml::to_string(&saved).map_err(io::Error::other)?)
    }

    /// Writes the list of exclusions.
    ///
    /// # Errors
    /// The disk is full, read-only or broken.
    pub fn save_exclusions(&self, list: &Exclusions) -> io::Result<()> {
        let saved = SavedExclusions { node: list.0.clone() };
        self.replace(EXCLUSIONS_FILE, &toml::to_string(&saved).map_err(io::Error::other)?)
    }

    /// A new file, synced, renamed over the old one, and the folder synced.
    fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let fresh = self.folder.join(format!("{name}.new"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, self.folder.join(name))?;
        File::open(&self.folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_survives_and_a_damaged_file_is_refused_with_the_cure() {
        let folder = std::env::temp_dir().join(format!("bramble-state-{}", std::process::id()));
        let (state, kept) = StateFolder::open(&folder).expect("the folder can be made");
        assert_eq!(kept, Kept::default());
        state.save(Epoch(7), TopologyHash(9)).expect("the folder can be written");
        let mut exclusions = Exclusions::default();
        exclusions.say("pi2", "pi2:9999", Some("fan \"stuck\""), "me@here");
        exclusions.say("pi3", "pi3:9999", None, "me@here");
        state.save_exclusions(&exclusions).expect("the folder can be written");
        let kept = StateFolder::open(&folder).map(|(_, kept)| kept).ok();
        assert_eq!(kept, Some(Kept { epoch: Epoch(7), exclusions }));
        fs::write(folder.join(EXCLUSIONS_FILE), "[[node]]\nnode = 1").expect("the folder can be written");
        let error = StateFolder::open(&folder).expect_err("the file is damaged");
        assert!(error.to_string().contains("exclusions.toml is damaged"), "{error}");
        fs::write(folder.join(FILE), "epo").expect("the folder can be written");
        let error = StateFolder::open(&folder).expect_err("the file is damaged");
        assert!(error.to_string().contains("damaged"), "{error}");
        fs::remove_dir_all(&folder).expect("the folder can be removed");
    }
}
