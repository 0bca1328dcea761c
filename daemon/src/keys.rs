//! The key file of a node: read at start and at SIGHUP, written when the node is adopted or its cluster's key changes.
use std::{path::Path, time::SystemTime};

use anyhow::ensure;
use shared::protocol::{
    error::FaultKind,
    noise::{
        key::{Key, Role},
        keyring::{self, Held, Keyring},
    },
    pairing::{GRACE_SECONDS_MAX, Rekey},
};

use crate::config::Config;

/// Reads the key file that the settings name; without one the node has no key.
///
/// # Errors
/// Others can read it, it is no key file, or it holds what is not for nodes.
pub fn load(config: &Config) -> anyhow::Result<Keyring> {
    let held = keyring::read_if_there(&config.key_file)?;
    let is_secret = |held: &Held| matches!(held.key, Key::Secret(_));
    ensure!(
        held.iter().all(is_secret),
        "key file {} holds a role's key; a node needs the secret of its cluster: console adopt gives it",
        config.key_file.display()
    );
    Ok(keyring_of(held, config))
}

/// What this node does with these keys.
fn keyring_of(held: Vec<Held>, config: &Config) -> Keyring {
    let mut keyring = Keyring::with(Role::Node, held);
    keyring.data_links = config.data_links;
    keyring
}

/// Keeps keys on the disk and uses them from now on.
///
/// # Errors
/// The file cannot be written.
pub fn keep(held: Vec<Held>, config: &Config) -> std::io::Result<()> {
    keyring::write(&config.key_file, &held)?;
    tell(held.first().map(|held| &held.key), &config.key_file);
    keyring::set_own(keyring_of(held, config));
    Ok(())
}

/// Takes the cluster's next key from a console that knows the one before; its fingerprint.
///
/// # Errors
/// The node has no key, the console does not know it, or the file cannot be written.
pub fn take(rekey: &Rekey, config: &Config) -> Result<String, FaultKind> {
    let (keyring, refused) = (keyring::own(), |reason: &str| FaultKind::KeyRefused { reason: reason.into() });
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs());
    let new = Key::Secret(rekey.secret);
    let fingerprint = new.fingerprint();
    match keyring.current() {
        None => return Err(refused("it has none yet; console adopt gives the first one")),
        // Told again, by a console that went on after a pause.
        Some(current) if *current == new => return Ok(fingerprint),
        Some(current) if rekey.is_vouched_by(current) => {}
        Some(_) => return Err(refused("the new key is not vouched for by the present one")),
    }
    let until = now + u64::from(rekey.grace_seconds.min(GRACE_SECONDS_MAX));
    keep(keyring.rotated(new, until), config).map_err(|error| refused(&error.to_string()))?;
    Ok(fingerprint)
}

/// Says which key counts.
pub fn tell(key: Option<&Key>, path: &Path) {
    match key {
        Some(key) => tracing::info!(fingerprint = key.fingerprint(), file = %path.display(), "cluster key"),
        None => tracing::info!(file = %path.display(), "no cluster key: only this machine may use the node"),
    }
}
