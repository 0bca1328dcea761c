//! The key file of a node: read at start and at SIGHUP, written when the node is adopted or its cluster's key changes.
use std::{
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use anyhow::ensure;
use common::fault::FaultKind;
use protocol::{
    noise::{
        key::{Key, Role},
        keyring::{self, GRACE_SECONDS_MAX, Held, Keyring},
    },
    pairing::{NextKey, Rekeying},
};

use crate::config::Config;

/// Held while the keys are compared, written or read, and used: a reload must not bring back those of a moment ago.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the key file that the settings name; without one, the node has no key.
///
/// # Errors
/// Other users can read it, it is not a key file, or it holds a key that is not for nodes.
pub fn load(config: &Config) -> anyhow::Result<Keyring> {
    let held = keyring::read_if_there(&config.key_file)?;
    ensure!(
        held.iter().all(|held| matches!(held.key, Key::Secret(_))),
        "key file {} holds a role's key; a node needs the secret of its cluster: run `console key adopt` to give it one",
        config.key_file.display()
    );
    Ok(keyring_of(held, config))
}

/// The keyring of a node with these keys.
fn keyring_of(held: Vec<Held>, config: &Config) -> Keyring {
    let mut keyring = Keyring::with(Role::Node, held);
    keyring.data_links = config.data_links;
    keyring
}

/// Reads the key file again and uses its keys from now on.
///
/// # Errors
/// As [`load`].
pub fn reload(config: &Config) -> anyhow::Result<()> {
    let _turn = turn();
    let keyring = load(config)?;
    tell(keyring.current(), &config.key_file);
    keyring::set_own(keyring);
    Ok(())
}

/// Gives a node without a key its first one; false if another console was faster.
///
/// # Errors
/// The file cannot be written.
pub fn adopt(key: Key, config: &Config) -> std::io::Result<bool> {
    let _turn = turn();
    if keyring::own().has_key() {
        return Ok(false);
    }
    keep(vec![Held { key, until: None }], config)?;
    Ok(true)
}

/// Writes keys to the disk and uses them from now on.
fn keep(held: Vec<Held>, config: &Config) -> std::io::Result<()> {
    keyring::write(&config.key_file, &held)?;
    tell(held.first().map(|held| &held.key), &config.key_file);
    keyring::set_own(keyring_of(held, config));
    Ok(())
}

/// Accepts the cluster's next key from a console that has the current one; returns its fingerprint.
///
/// # Errors
/// The node has no key, the console does not have it, or the file cannot be written.
pub fn take(rekey: &Rekeying, config: &Config) -> Result<String, FaultKind> {
    let _turn = turn();
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

/// The next key, if a holder of the current one sent it. A key that the node already has may be sent under the previous
/// key, by a console that continues a rotation.
fn next(rekey: &Rekeying, keyring: &Keyring) -> Result<NextKey, &'static str> {
    let current = keyring.current().ok_or("it has no key yet; run `console key adopt` to give it the first one")?;
    let is_current = |next: &NextKey| *current == Key::Secret(next.secret);
    match rekey {
        Rekeying::Bare(rekey) => {
            let next = NextKey { secret: rekey.secret, grace_seconds: rekey.grace_seconds };
            let is_good = is_current(&next) || rekey.is_vouched_by(current);
            is_good.then_some(next).ok_or("the new key is not authenticated by the current one")
        }
        Rekeying::Wrapped(wrapped) => {
            let before = keyring.held().iter().skip(1).find_map(|held| wrapped.open(&held.key));
            let next = wrapped.open(current).or_else(|| before.filter(is_current));
            next.ok_or("the new key is not wrapped under the current one")
        }
    }
}

/// Logs the current key's fingerprint.
pub fn tell(key: Option<&Key>, path: &Path) {
    match key {
        Some(key) => tracing::info!(fingerprint = key.fingerprint(), file = %path.display(), "cluster key"),
        None => tracing::info!(file = %path.display(), "no cluster key: only this machine may use the node"),
    }
}

#[cfg(test)]
mod tests {
    use protocol::pairing::{Rekey, WrappedKey};

    use super::*;

    #[test]
    fn next_key_comes_only_from_a_holder_of_the_current_one() {
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
        assert!(taken(&wrapped(&old, &other), &rotated).is_err(), "the previous key gives no other");
        assert!(taken(&wrapped(&old, &new), &Keyring::empty(Role::Node)).is_err());
    }
}
