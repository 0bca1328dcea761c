//! The key file of a node: read at start and at SIGHUP, written when the node is adopted or its cluster's key changes.
use std::{path::Path, time::SystemTime};

use anyhow::ensure;
use shared::protocol::{
    error::FaultKind,
    noise::{
        key::{Key, Role},
        keyring::{self, Held, Keyring},
    },
    pairing::{GRACE_SECONDS_MAX, NextKey, Rekeying},
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
pub fn take(rekey: &Rekeying, config: &Config) -> Result<String, FaultKind> {
    let (keyring, refused) = (keyring::own(), |reason: &str| FaultKind::KeyRefused { reason: reason.into() });
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs());
    let next = next(rekey, &keyring).map_err(refused)?;
    let new = Key::Secret(next.secret);
    let fingerprint = new.fingerprint();
    if keyring.current() == Some(&new) {
        return Ok(fingerprint);
    }
    let until = now + u64::from(next.grace_seconds.min(GRACE_SECONDS_MAX));
    keep(keyring.rotated(new, until), config).map_err(|error| refused(&error.to_string()))?;
    Ok(fingerprint)
}

/// The next key, if a holder of the present one sent it. One that the node has already may be sent under the key before: by a console that
/// continues a rotation.
fn next(rekey: &Rekeying, keyring: &Keyring) -> Result<NextKey, &'static str> {
    let current = keyring.current().ok_or("it has none yet; console adopt gives the first one")?;
    let is_current = |next: &NextKey| *current == Key::Secret(next.secret);
    match rekey {
        Rekeying::Bare(rekey) => {
            let next = NextKey { secret: rekey.secret, grace_seconds: rekey.grace_seconds };
            let is_good = is_current(&next) || rekey.is_vouched_by(current);
            is_good.then_some(next).ok_or("the new key is not vouched for by the present one")
        }
        Rekeying::Wrapped(wrapped) => {
            let before = keyring.held().iter().skip(1).find_map(|held| wrapped.open(&held.key));
            let next = wrapped.open(current).or_else(|| before.filter(is_current));
            next.ok_or("the new key is not wrapped under the present one")
        }
    }
}

/// Says which key counts.
pub fn tell(key: Option<&Key>, path: &Path) {
    match key {
        Some(key) => tracing::info!(fingerprint = key.fingerprint(), file = %path.display(), "cluster key"),
        None => tracing::info!(file = %path.display(), "no cluster key: only this machine may use the node"),
    }
}

#[cfg(test)]
mod tests {
    use shared::protocol::pairing::{Rekey, WrappedKey};

    use super::*;

    #[test]
    fn next_key_comes_only_from_a_holder_of_the_present_one() {
        let [old, new, other] = [1, 2, 3].map(|byte| Key::Secret([byte; 32]));
        let held = |key: &Key, until| Held { key: key.clone(), until };
        let keyring = Keyring::with(Role::Node, vec![held(&old, None)]);
        let wrapped = |old, new| Rekeying::Wrapped(Box::new(WrappedKey::new(old, new, 60).expect("random numbers")));
        let taken = |rekey: &Rekeying, keyring: &Keyring| next(rekey, keyring).map(|next| next.secret);
        assert_eq!(taken(&wrapped(&old, &new), &keyring), Ok([2; 32]));
        assert!(taken(&wrapped(&other, &new), &keyring).is_err());
        assert_eq!(taken(&Rekeying::Bare(Box::new(Rekey::new(&old, &new, 60))), &keyring), Ok([2; 32]));
        assert!(taken(&Rekeying::Bare(Box::new(Rekey::new(&other, &new, 60))), &keyring).is_err());
        let rotated = Keyring::with(Role::Node, vec![held(&new, None), held(&old, Some(5))]);
        assert_eq!(taken(&wrapped(&old, &new), &rotated), Ok([2; 32]), "a rotation that continues");
        assert!(taken(&wrapped(&old, &other), &rotated).is_err(), "the key before gives no other");
        assert!(taken(&wrapped(&old, &new), &Keyring::empty(Role::Node)).is_err());
    }
}
