//! Keys and values on the disk of this node: whether it stores any, and in which folder; the files and their order; the
//! threads that write and read them for the engine.
pub mod disk;
mod folder;

use std::{path::Path, sync::Arc};

use crate::{config::Config, health};
pub use folder::KvFolder;

/// Name of the folder below the state folder.
const FOLDER: &str = "kv";
/// Most bytes by default: a tenth of the disk, but never more than this.
const BYTES_MAX: u64 = 16 << 30;
const SHARE: u64 = 10;

/// Opens the folder, or deletes it if nothing is to be stored. A folder that cannot be used is only a warning.
pub fn open(config: &Config) -> Option<Arc<KvFolder>> {
    let path = config.state.join(FOLDER);
    let (storage, size) = health::disk_of(&config.health_root, &config.state);
    // Keys and values of a paced node mean nothing.
    if !config.kv_store.setting.is_on(storage) || config.paced.is_some() {
        if let Err(error) = KvFolder::delete_all(&path) {
            tracing::warn!("cannot delete {}, which holds keys and values of earlier prompts: {error}", path.display());
        }
        return None;
    }
    let bytes_max = config.kv_store.bytes_max.unwrap_or_else(|| BYTES_MAX.min(size.unwrap_or(BYTES_MAX) / SHARE));
    open_folder(&path, bytes_max)
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
