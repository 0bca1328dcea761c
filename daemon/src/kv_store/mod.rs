//! Keys and values that this node keeps, on its disk or in memory: whether and where; the files and their order; copies on
//! other nodes; the threads that write, copy and read them for the engine.
mod folder;
mod index;
mod peers;
mod ranks;

use std::{io, path::Path, sync::Arc};

use telemetry::{StoreCleared, StoreState, StoreUse, health::Storage};

use crate::{
    config::Config,
    health::{self, memory},
};
pub use folder::KvFolder;
pub use peers::KvPeers;
pub use ranks::RankFiles;

/// Name of the folder below the state folder.
const FOLDER: &str = "kv";
/// Most bytes by default: a tenth of the disk, but never more than this.
const BYTES_MAX: u64 = 16 << 30;
const SHARE: u64 = 10;
/// The part of a machine's memory that a store in memory may use.
const MEMORY_SHARE: u64 = 16;

/// The keys and values that a node keeps.
#[derive(Debug)]
pub struct NodeStore {
    state: StoreState,
    storage: Option<Storage>,
    /// On the disk or, if nothing is stored there, in memory for copies; `None`: none are kept.
    folder: Option<Arc<KvFolder>>,
}

impl NodeStore {
    /// Opens the folder, or deletes it if nothing is to be stored on the disk; copies are then kept in memory. A folder
    /// that cannot be used is only a warning.
    pub fn open(config: &Config) -> Self {
        let path = config.state.join(FOLDER);
        let (storage, size) = health::disk_of(&config.health_root, &config.state);
        // Keys and values of a paced node mean nothing.
        let state = if config.paced.is_some() { StoreState::OffPaced } else { config.kv_store.setting.state(storage) };
        if !state.is_on() {
            if let Err(error) = KvFolder::delete_all(&path) {
                tracing::warn!(
                    "cannot delete {}, which holds keys and values of earlier prompts: {error}",
                    path.display()
                );
            }
            return Self { state, storage, folder: in_memory(config) };
        }
        let bytes_max = config.kv_store.bytes_max.unwrap_or_else(|| BYTES_MAX.min(size.unwrap_or(BYTES_MAX) / SHARE));
        let folder = open_folder(&path, bytes_max);
        let state = if folder.is_some() { state } else { StoreState::Unusable };
        Self { state, storage, folder: folder.or_else(|| in_memory(config)) }
    }

    /// The files, if any are kept.
    pub fn folder(&self) -> Option<&Arc<KvFolder>> {
        self.folder.as_ref()
    }

    /// Their size and use.
    pub fn usage(&self) -> StoreUse {
        let known = self.folder.as_ref().map_or_else(StoreUse::default, |folder| folder.statistics());
        StoreUse { state: self.state, storage: self.storage, ..known }
    }

    /// Deletes all of them. Reads and writes may be under way.
    ///
    /// # Errors
    /// A file cannot be deleted.
    pub fn clear(&self) -> io::Result<StoreCleared> {
        self.folder.as_ref().map_or(Ok(StoreCleared::default()), |folder| folder.clear())
    }
}

/// A store in memory for copies, of this node's own blocks and of other nodes'.
fn in_memory(config: &Config) -> Option<Arc<KvFolder>> {
    let bytes_max = memory::total().0 / MEMORY_SHARE;
    let is_wanted = config.kv_store.copies && config.paced.is_none();
    is_wanted.then(|| Arc::new(KvFolder::in_memory(bytes_max)))
}

fn open_folder(path: &Path, bytes_max: u64) -> Option<Arc<KvFolder>> {
    match KvFolder::open(path, bytes_max) {
        Ok(folder) => {
            let (bytes, files) = folder.usage();
            let (held, most) = (bytes >> 20, bytes_max >> 20);
            tracing::info!("{} stores keys and values: {held} of {most} MiB, {files} files", path.display());
            Some(Arc::new(folder))
        }
        Err(error) => {
            tracing::warn!("keys and values are not stored: cannot use {}: {error}", path.display());
            None
        }
    }
}
