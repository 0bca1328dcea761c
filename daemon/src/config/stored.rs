//! The settings `kv_store`, `kv_store_max_mib` and `kv_copies`: whether keys and values are stored on the disk, and copied to
//! other nodes.
use serde::Deserialize;
use telemetry::{StoreState, health::Storage};

/// On which disks keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvStoreSetting {
    /// Where the state folder lies on an SSD or NVMe disk: memory cards wear out.
    #[default]
    Auto,
    /// On any disk.
    On,
    /// Nowhere; what an earlier daemon stored is deleted.
    Off,
}

/// Whether and how many keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvStoreSettings {
    /// On which disks.
    pub setting: KvStoreSetting,
    /// Most bytes; `None`: as many as suit the disk.
    pub bytes_max: Option<u64>,
    /// Whether the nodes of a replica keep copies for each other, in memory where nothing is stored on the disk.
    pub copies: bool,
}

impl Default for KvStoreSettings {
    fn default() -> Self {
        Self::of(None, None, None)
    }
}

impl KvStoreSettings {
    /// From the configuration file.
    pub(super) fn of(setting: Option<KvStoreSetting>, mib: Option<u64>, copies: Option<bool>) -> Self {
        let bytes_max = mib.map(|mib| mib.saturating_mul(1 << 20));
        Self { setting: setting.unwrap_or_default(), bytes_max, copies: copies.unwrap_or(true) }
    }
}

impl KvStoreSetting {
    /// Its name in the configuration file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }

    /// Whether keys and values are stored on such a disk, and why.
    pub fn state(self, storage: Option<Storage>) -> StoreState {
        match (self, storage) {
            (Self::Auto, Some(Storage::Ssd | Storage::Nvme)) => StoreState::OnFastDisk,
            (Self::Auto, _) => StoreState::OffSlowDisk,
            (Self::On, _) => StoreState::On,
            (Self::Off, _) => StoreState::Off,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fast_disks_are_used_without_being_asked() {
        let storages = [Storage::Nvme, Storage::Ssd, Storage::Sd, Storage::Emmc, Storage::Hdd, Storage::Network];
        let on = |setting: KvStoreSetting| storages.map(|storage| setting.state(Some(storage)).is_on());
        assert_eq!(on(KvStoreSetting::Auto), [true, true, false, false, false, false]);
        assert_eq!((on(KvStoreSetting::On), on(KvStoreSetting::Off)), ([true; 6], [false; 6]));
        assert!(!KvStoreSetting::Auto.state(None).is_on());
    }
}
