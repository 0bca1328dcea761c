//! The console's current key.
use std::path::Path;

use anyhow::anyhow;
use protocol::noise::{key::Key, keyring};

use crate::cli::Failure;

/// The current key of a file.
pub(crate) fn current(path: &Path) -> Result<Key, Failure> {
    let held = keyring::read(path).map_err(anyhow::Error::from)?;
    let first = held.into_iter().next().ok_or_else(|| anyhow!("{} holds no key", path.display()))?;
    Ok(first.key)
}
