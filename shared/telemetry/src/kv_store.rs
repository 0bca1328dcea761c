//! The store of keys and values on a node's disk, as the node reports it.
use common::units::Bytes;
use serde::{Deserialize, Serialize};

use super::health::Storage;

/// Whether a node stores keys and values on its disk, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreState {
    /// `kv_store = "on"`.
    On,
    /// By default, on an SSD or NVMe disk.
    OnFastDisk,
    /// `kv_store = "off"`.
    #[default]
    Off,
    /// By default, on any other disk.
    OffSlowDisk,
    /// The node only simulates compute time.
    OffPaced,
    /// The folder cannot be used.
    Unusable,
}

impl StoreState {
    /// Whether anything is stored.
    pub fn is_on(self) -> bool {
        matches!(self, Self::On | Self::OnFastDisk)
    }

    /// The state and its reason, in words.
    pub fn reason(self) -> &'static str {
        match self {
            Self::On => "on (kv_store = \"on\")",
            Self::OnFastDisk => "on (fast disk)",
            Self::Off => "off (kv_store = \"off\")",
            Self::OffSlowDisk => "off (not an SSD or NVMe disk)",
            Self::OffPaced => "off (paced node)",
            Self::Unusable => "off (the folder cannot be used)",
        }
    }
}

/// The store of a node: its size now, and its use since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreUse {
    /// Whether it is on.
    pub state: StoreState,
    /// The kind of disk below the state folder; `None` if unknown.
    pub storage: Option<Storage>,
    /// Whether it is in memory, for copies between nodes only.
    pub in_memory: bool,
    /// Bytes of its files.
    pub bytes: Bytes,
    /// Most bytes.
    pub bytes_max: Bytes,
    /// Number of files.
    pub files: u32,
    /// Prompts of which at least one block was read.
    pub hits: u64,
    /// Tokens whose keys and values were read.
    pub tokens_read: u64,
    /// Tokens whose keys and values were written.
    pub tokens_written: u64,
    /// Files that were damaged, foreign or unreadable; they are deleted.
    pub files_refused: u64,
}

/// What clearing a store deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCleared {
    /// Number of files.
    pub files: u32,
    /// Their bytes.
    pub bytes: Bytes,
}
