//! What a node writes to its disk: the highest epoch that it promised, and the topology's hash. Synced before it counts.
use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use shared::ids::{Epoch, TopologyHash};

const FILE: &str = "epoch.toml";

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    epoch: u64,
    topology: String,
}

/// The state folder.
#[derive(Clone, Debug)]
pub struct StateFolder {
    folder: PathBuf,
}

impl StateFolder {
    /// Opens (and if needed makes) the folder and reads the epoch; zero where none was written yet.
    ///
    /// # Errors
    /// The folder cannot be made, or the file cannot be read or is damaged: the message says what to do.
    pub fn open(folder: &Path) -> anyhow::Result<(Self, Epoch)> {
        use anyhow::Context;
        let help = || format!("cannot use state folder {}; give a writable one with --state DIR", folder.display());
        fs::create_dir_all(folder).with_context(help)?;
        let path = folder.join(FILE);
        let epoch = match fs::read_to_string(&path) {
            Ok(text) => {
                let saved: Saved = toml::from_str(&text).with_context(|| {
                    format!(
                        "{} is damaged; write `epoch = N` with N above every epoch that `console status` shows, \
                         and `topology = \"\"` into it",
                        path.display()
                    )
                })?;
                Epoch(saved.epoch)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Epoch(0),
            Err(error) => return Err(error).with_context(help),
        };
        Ok((Self { folder: folder.into() }, epoch))
    }

    /// Writes (epoch, hash): a new file, synced, renamed over the old one, and the folder synced.
    ///
    /// # Errors
    /// The disk is full, read-only or broken.
    pub fn save(&self, epoch: Epoch, hash: TopologyHash) -> io::Result<()> {
        let saved = Saved { epoch: epoch.0, topology: hash.to_string() };
        let text = toml::to_string(&saved).map_err(io::Error::other)?;
        let fresh = self.folder.join("epoch.toml.new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, self.folder.join(FILE))?;
        File::open(&self.folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_survives_and_a_damaged_file_is_refused_with_the_cure() {
        let folder = std::env::temp_dir().join(format!("bramble-state-{}", std::process::id()));
        let (state, epoch) = StateFolder::open(&folder).expect("the folder can be made");
        assert_eq!(epoch, Epoch(0));
        state.save(Epoch(7), TopologyHash(9)).expect("the folder can be written");
        assert_eq!(StateFolder::open(&folder).map(|(_, epoch)| epoch).ok(), Some(Epoch(7)));
        fs::write(folder.join(FILE), "epo").expect("the folder can be written");
        let error = StateFolder::open(&folder).expect_err("the file is damaged");
        assert!(error.to_string().contains("damaged"), "{error}");
        fs::remove_dir_all(&folder).expect("the folder can be removed");
    }
}
