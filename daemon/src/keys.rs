//! The key file of a node: read at start and at SIGHUP, written when the node is adopted or its cluster's key changes.
//! Many machines have no battery for their clock: a key may be rotated, or a daemon be started, while the clock is
//! years behind. So a process counts the grace period of its own rotation by a clock that does not jump, and corrects
//! the expiry in the file. A key that it has read from the file ends as soon as either clock has reached its expiry.
use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::ensure;
use common::fault::FaultKind;
use protocol::{
    connection::steady_seconds,
    noise::{
        key::{Key, Role},
        keyring::{self, GRACE_SECONDS_MAX, Held, KeyFileError, Keyring},
    },
    pairing::{NextKey, Rekeying},
};
use tokio::{sync::watch::Receiver, task::spawn_blocking, time::sleep};

use crate::config::Config;

/// How often the end of a grace period in the key file is checked.
const LOOK: Duration = Duration::from_secs(60);
/// Most seconds by which a restart may shift the expiry: with a clock that is set, and with one that is not.
const SHIFT_MAX: u64 = 60;
const SHIFT_UNSET_MAX: u64 = 600;

/// The keys as this process last wrote them to the key file. Locked while the keys are compared, written or read, and
/// used: a reload must not bring back those of a moment ago.
static WRITTEN: Mutex<Vec<Held>> = Mutex::new(Vec::new());

fn turn() -> MutexGuard<'static, Vec<Held>> {
    WRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the key file that the settings name; without one, the node has no key.
///
/// # Errors
/// Other users can read it, it is not a key file, or it holds a key that is not for nodes.
pub fn load(config: &Config) -> anyhow::Result<Keyring> {
    let file = KeyFile::read(config)?;
    ensure!(
        file.held.iter().all(|held| matches!(held.key, Key::Secret(_))),
        "key file {} holds a role's key; a node needs the secret of its cluster: run `console key adopt` to give it one",
        config.key_file.display()
    );
    Ok(keyring_of(file.in_use(keyring::own().held(), KeyClocks::now()), config))
}

fn seconds_since_1970(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The clocks by which keys expire, in seconds since 1970.
#[derive(Clone, Copy, Debug)]
struct KeyClocks {
    /// That of the machine, for the key file. It jumps when it is set.
    machine: u64,
    /// That of this process, for the keys in use.
    process: u64,
}

impl KeyClocks {
    fn now() -> Self {
        Self { machine: seconds_since_1970(SystemTime::now()), process: steady_seconds() }
    }
}

/// The key file as it was read.
#[derive(Debug)]
struct KeyFile {
    held: Vec<Held>,
    /// Its last change in seconds since 1970 by the machine's clock.
    changed: u64,
}

/// What follows from another look at the key file.
#[derive(Debug, PartialEq, Eq)]
struct KeyChanges {
    /// The keys to use from now on.
    in_use: Vec<Held>,
    /// The keys to write to the file.
    stored: Option<Vec<Held>>,
    /// The time of the last change to set for the file.
    changed: Option<u64>,
}

impl KeyFile {
    fn read(config: &Config) -> Result<Self, KeyFileError> {
        let held = keyring::read_if_there(&config.key_file)?;
        let changed = fs::metadata(&config.key_file).and_then(|file| file.modified());
        Ok(Self { held, changed: changed.map_or(0, seconds_since_1970) })
    }

    /// Seconds until an expiry of the file. A clock that is behind the file's last change is not set yet: then the
    /// grace period continues as it was at that change.
    fn left(&self, until: u64, machine: u64) -> u64 {
        until.saturating_sub(machine.max(self.changed)).min(GRACE_SECONDS_MAX.into())
    }

    /// Its keys for a process that used the keys `before`: none ends later than before.
    fn in_use(&self, before: &[Held], clocks: KeyClocks) -> Vec<Held> {
        let keys = self.held.iter().map(|held| {
            let before = before.iter().find(|before| before.key == held.key).and_then(|before| before.until);
            let until = held.until.map(|until| clocks.process + self.left(until, clocks.machine));
            let until = until.map(|until| before.map_or(until, |before| before.min(until)));
            Held { key: held.key.clone(), until }
        });
        keys.collect()
    }

    /// What to change while this process uses the keys `held`, which are those of the file. `written` are the keys that
    /// it last wrote: if the file still has them, its own clock counts the grace period, otherwise the earlier end.
    fn look(&self, held: &[Held], written: &[Held], clocks: KeyClocks) -> KeyChanges {
        let is_own = self.held == written;
        let in_use = if is_own { held.to_vec() } else { self.in_use(held, clocks) };
        let (mut is_shifted, mut changed) = (false, None);
        for (file, used) in self.held.iter().zip(&in_use) {
            let Some((until, end)) = file.until.zip(used.until) else { continue };
            let (found, left) = (self.left(until, clocks.machine), end.saturating_sub(clocks.process));
            is_shifted |= found.abs_diff(left) > SHIFT_MAX || (left == 0 && found > 0);
            changed = changed.max(self.later_change(until, left, clocks.machine));
        }
        let stored = (is_own && is_shifted).then(|| stored(&in_use, clocks));
        KeyChanges { in_use, stored, changed }
    }

    /// The last change to set for the file so that a start with an unset clock neither adds much to a grace period with
    /// `left` seconds left nor begins again one that is over.
    fn later_change(&self, until: u64, left: u64, machine: u64) -> Option<u64> {
        let now = match left {
            0 => until,
            _ if machine >= self.changed => machine,
            _ => until.saturating_sub(left),
        };
        let is_due = left == 0 || now > self.changed.saturating_add(SHIFT_UNSET_MAX);
        (is_due && self.changed < until).then_some(now)
    }
}

/// The keys in use as a file holds them.
fn stored(held: &[Held], clocks: KeyClocks) -> Vec<Held> {
    let keys = held.iter().map(|held| {
        let left = held.until.map(|until| until.saturating_sub(clocks.process));
        Held { until: left.map(|left| clocks.machine + left), key: held.key.clone() }
    });
    keys.collect()
}

/// Looks at the expiries in the key file again. Other keys that an operator has put there are left alone.
fn refresh(config: &Config, written: &mut Vec<Held>) -> anyhow::Result<()> {
    let (keyring, file) = (keyring::own(), KeyFile::read(config)?);
    let (in_file, own) = (file.held.iter().map(|held| &held.key), keyring.held().iter().map(|held| &held.key));
    if in_file.ne(own) {
        return Ok(());
    }
    let KeyChanges { in_use, stored, changed } = file.look(keyring.held(), written, KeyClocks::now());
    if in_use != keyring.held() {
        keyring::set_own(keyring_of(in_use, config));
    }
    let changed = changed.and_then(|changed| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(changed)));
    if let Some(stored) = stored {
        keyring::write(&config.key_file, &stored)?;
        *written = stored;
    } else if let Some(changed) = changed {
        fs::File::open(&config.key_file)?.set_modified(changed)?;
    }
    Ok(())
}

/// Looks at the key file from time to time while it holds a previous key, until the task is dropped.
pub async fn keep_expiries(settings: Receiver<Arc<Config>>) {
    loop {
        sleep(LOOK).await;
        if keyring::own().held().iter().all(|held| held.until.is_none()) {
            continue;
        }
        let config = Arc::clone(&settings.borrow());
        let refreshed = spawn_blocking(move || refresh(&config, &mut turn()));
        if let Ok(Err(error)) = refreshed.await {
            tracing::debug!("cannot correct the expiry in the key file: {error:#}");
        }
    }
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
    let mut written = turn();
    if let Err(error) = refresh(config, &mut written) {
        tracing::debug!("cannot correct the expiry in the key file: {error:#}");
    }
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
    let mut written = turn();
    if keyring::own().has_key() {
        return Ok(false);
    }
    keep(vec![Held { key, until: None }], config, &mut written)?;
    Ok(true)
}

/// Writes keys to the disk and uses them from now on.
fn keep(held: Vec<Held>, config: &Config, written: &mut Vec<Held>) -> std::io::Result<()> {
    let stored = stored(&held, KeyClocks::now());
    keyring::write(&config.key_file, &stored)?;
    *written = stored;
    tell(held.first().map(|held| &held.key), &config.key_file);
    keyring::set_own(keyring_of(held, config));
    Ok(())
}

/// Accepts the cluster's next key from a console that has the current one; returns its fingerprint.
///
/// # Errors
/// The node has no key, the console does not have it, or the file cannot be written.
pub fn take(rekey: &Rekeying, config: &Config) -> Result<String, FaultKind> {
    let mut written = turn();
    let (keyring, refused) = (keyring::own(), |reason: &str| FaultKind::KeyRefused { reason: reason.into() });
    let next = next(rekey, &keyring).map_err(refused)?;
    let new = Key::Secret(next.secret);
    let fingerprint = new.fingerprint();
    if keyring.current() == Some(&new) {
        return Ok(fingerprint);
    }
    let until = steady_seconds() + u64::from(next.grace_seconds.min(GRACE_SECONDS_MAX));
    keep(keyring.rotated(new, until), config, &mut written).map_err(|error| refused(&error.to_string()))?;
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

    const TODAY: u64 = 1_800_000_000;

    /// The keys after a rotation; the previous key ends at `until`.
    fn rotated(until: u64) -> Vec<Held> {
        let [old, new] = [1, 2].map(|byte| Key::Secret([byte; 32]));
        Keyring::with(Role::Node, vec![Held { key: old, until: None }]).rotated(new, until)
    }

    fn accepts_previous(held: &[Held], process: u64) -> bool {
        let psk = Key::Secret([1; 32]).psk(Role::Node).expect("a secret has all roles");
        Keyring::with(Role::Node, held.to_vec()).accepting(Role::Node, process).contains(&psk)
    }

    /// Nothing but these keys to use.
    fn only(held: &[Held]) -> KeyChanges {
        KeyChanges { in_use: held.to_vec(), stored: None, changed: None }
    }

    #[test]
    fn jump_of_the_clock_shifts_no_expiry_of_an_own_rotation() {
        // For an hour from second 50 after the start of a machine whose clock is not set.
        let unset = KeyClocks { machine: 50, process: 50 };
        let held = rotated(3650);
        let written = stored(&held, unset);
        let file = KeyFile { held: written.clone(), changed: 50 };
        assert_eq!(file.look(&held, &written, unset), only(&held));
        // Ten seconds later the clock is set.
        let set = KeyClocks { machine: TODAY, process: 60 };
        let changes = file.look(&held, &written, set);
        assert_eq!(changes.in_use, held);
        let written = changes.stored.expect("the previous key would end at the next start");
        let mut file = KeyFile { held: written.clone(), changed: TODAY };
        assert_eq!(file.look(&held, &written, set), only(&held));
        // A restart after 100 s, one with an unset clock, one after the hour, and one with a clock that is far ahead.
        for (machine, left) in [(TODAY + 100, 3490), (5, 3590), (TODAY + 3600, 0), (2 * TODAY, 0)] {
            let again = file.in_use(&[], KeyClocks { machine, process: machine });
            assert_eq!(accepts_previous(&again, machine), left > 0, "{machine}");
            assert!(left == 0 || accepts_previous(&again, machine + left - 1), "{machine}");
            assert!(!accepts_previous(&again, machine + left), "{machine}");
        }
        // A start with an unset clock would not count these minutes.
        let later = file.look(&held, &written, KeyClocks { machine: TODAY + 601, process: 661 });
        assert_eq!(later, KeyChanges { changed: Some(TODAY + 601), ..only(&held) });
        file.changed = TODAY + 601;
        let over = KeyClocks { machine: TODAY + 3600, process: 3660 };
        let changes = file.look(&held, &written, over);
        assert_eq!(changes.stored, None);
        file.changed = changes.changed.expect("a start with an unset clock would begin the rest again");
        assert!(!accepts_previous(&file.in_use(&[], KeyClocks { machine: 5, process: 5 }), 5));
        assert_eq!(file.look(&held, &written, over), only(&held));
    }

    #[test]
    fn key_of_the_file_ends_when_the_clock_jumps_past_its_expiry() {
        let file = KeyFile { held: rotated(TODAY + 3600), changed: TODAY };
        // A machine that was off for months begins with no time, or with that of its last minutes.
        for begin in [5, TODAY + 10] {
            let at = |machine: u64, later: u64| KeyClocks { machine, process: begin + later };
            let held = file.in_use(&[], at(begin, 0));
            assert!(accepts_previous(&held, begin), "{begin}");
            assert_eq!(file.look(&held, &[], at(begin + 20, 20)), only(&held), "{begin}");
            let later = file.look(&held, &[], at(begin + 700, 700));
            assert_eq!(later.in_use, held, "{begin}");
            assert!(later.changed >= Some(TODAY + 700), "{begin}: a start with an unset clock counts them");
            let changes = file.look(&held, &[], at(TODAY + (90 << 20), 30));
            assert_eq!(changes.stored, None, "{begin}: its end stays where it is");
            assert!(!accepts_previous(&changes.in_use, begin + 30), "{begin}");
            // Neither another jump nor a restart with an unset clock begins it again.
            let back = file.look(&changes.in_use, &[], at(begin + 40, 40));
            assert!(!accepts_previous(&back.in_use, begin + 40), "{begin}");
            let over = KeyFile { held: file.held.clone(), changed: changes.changed.expect("it is over") };
            assert!(!accepts_previous(&over.in_use(&[], KeyClocks { machine: 5, process: 5 }), 5), "{begin}");
        }
    }

    #[test]
    fn earlier_expiry_that_an_operator_writes_counts() {
        let now = KeyClocks { machine: TODAY, process: 60 };
        let held = rotated(60 + 3600);
        let written = stored(&held, now);
        for (until, left) in [(TODAY + 100, 100), (TODAY - 5, 0), (TODAY + 9000, 3600)] {
            let file = KeyFile { held: rotated(until), changed: TODAY };
            assert_eq!(file.look(&held, &written, now), only(&rotated(60 + left)), "{until}");
        }
    }
}
