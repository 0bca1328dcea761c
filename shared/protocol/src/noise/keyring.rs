//! The keys of this process, and the file that stores them. The keyring is global: a dial that did not receive it would
//! silently dial without a key.
use std::{
    fs, io,
    io::Write,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, PoisonError, RwLock},
};

use super::{
    Psk,
    key::{Key, Role, hexadecimal, of_hexadecimal},
};
use crate::seal::Protection;

/// Longest key file.
const FILE_BYTES_MAX: u64 = 4096;
/// Most keys in a file: the current key, and the previous keys of one or two rotations that are still valid.
const HELD_MAX: usize = 4;

/// Why a key file was rejected.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It does not exist or cannot be read.
    #[error("cannot read key file {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// Other users can read it.
    #[error("key file {} can be read by others (mode {mode:04o}): chmod 600 {}", path.display(), path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Its content is invalid.
    #[error("{} is not a valid key file: {reason}; create one with console key new, or copy it again", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// A key and its validity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The key.
    pub key: Key,
    /// Expiry in seconds since 1970, in the file by the machine's clock and in use by that of the process
    /// (`connection::steady_seconds`); `None` for the current key.
    pub until: Option<u64>,
}

/// The key that a connection proved, with its role.
#[derive(Clone, PartialEq, Eq)]
pub struct Pass {
    /// The role.
    pub role: Role,
    psk: Psk,
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pass({})", self.role)
    }
}

impl Pass {
    /// The proof of a role by this key.
    pub fn new(role: Role, psk: Psk) -> Self {
        Self { role, psk }
    }

    /// The key.
    pub fn psk(&self) -> &Psk {
        &self.psk
    }
}

/// A key to dial with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// The role of the dialling side.
    pub role: Role,
    key: Key,
}

impl Credential {
    /// The proof for a peer of this wire version; `None` if the key does not grant its role.
    pub fn pass(&self, version: u16) -> Option<Pass> {
        let role = if self.role == Role::Owner && version < OWNER_SINCE { Role::Operator } else { self.role };
        self.key.psk(role).map(|psk| Pass::new(role, psk))
    }
}

/// The keys of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyring {
    /// The role of a holder of the cluster's secret.
    acts_as: Role,
    held: Vec<Held>,
    /// Protection of this process's data links; the stronger request of both ends is used.
    pub data_links: Protection,
    /// Whether it connects in clear to ends without a key although it holds one.
    pub(crate) allows_plain: bool,
}

static OWN: LazyLock<RwLock<Arc<Keyring>>> = LazyLock::new(|| RwLock::new(Arc::new(Keyring::empty(Role::Operator))));

/// The keyring of this process.
pub fn own() -> Arc<Keyring> {
    Arc::clone(&OWN.read().unwrap_or_else(PoisonError::into_inner))
}

/// Replaces the keyring of this process, at its start and when its keys change.
pub fn set_own(keyring: Keyring) {
    *OWN.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keyring);
}

impl Keyring {
    /// A keyring without a key.
    pub fn empty(acts_as: Role) -> Self {
        Self::with(acts_as, Vec::new())
    }

    /// A keyring with these keys, the current one first.
    pub fn with(acts_as: Role, held: Vec<Held>) -> Self {
        Self { acts_as, held, data_links: Protection::default(), allows_plain: false }
    }

    /// With leave to talk in clear to ends without a key, or without.
    #[must_use]
    pub fn allowing_plain(self, allows_plain: bool) -> Self {
        Self { allows_plain, ..self }
    }

    /// Whether it holds a key.
    pub fn has_key(&self) -> bool {
        !self.held.is_empty()
    }

    /// The current key.
    pub fn current(&self) -> Option<&Key> {
        self.held.first().map(|held| &held.key)
    }

    /// Its keys, the current one first.
    pub fn held(&self) -> &[Held] {
        &self.held
    }

    /// The keys to dial with, in the order of attempts; `now` in seconds since 1970.
    pub fn dialling(&self, now: u64) -> Vec<Credential> {
        let credentials = self.counting(now).map(|key| {
            let role = match key {
                Key::Secret(_) => self.acts_as,
                Key::Role(role, _) => *role,
            };
            Credential { role, key: key.clone() }
        });
        credentials.collect()
    }

    /// The keys that a dialling side with this role may use.
    pub fn accepting(&self, role: Role, now: u64) -> Vec<Psk> {
        self.counting(now).filter_map(|key| key.psk(role)).collect()
    }

    /// Whether a connection may continue: the key it proved is still valid, or it proved none and there is still no
    /// key.
    pub fn lets_in(&self, pass: Option<&Pass>, now: u64) -> bool {
        pass.map_or(!self.has_key(), |pass| self.accepting(pass.role, now).contains(&pass.psk))
    }

    fn counting(&self, now: u64) -> impl Iterator<Item = &Key> {
        // No time before the rotation is accepted: a machine without a real-time clock starts in 1970 and would accept
        // old keys for years.
        self.held
            .iter()
            .filter(move |held| {
                held.until
                    .is_none_or(move |until| (until.saturating_sub(u64::from(GRACE_SECONDS_MAX))..until).contains(&now))
            })
            .map(|held| &held.key)
    }

    /// The keys after a rotation to a new current key; the previous key is valid until `until`. Older keys are dropped.
    pub fn rotated(&self, key: Key, until: u64) -> Vec<Held> {
        let before = self.held.first().filter(|held| held.key != key);
        let before = before.map(|held| Held { key: held.key.clone(), until: Some(until) });
        std::iter::once(Held { key, until: None }).chain(before).collect()
    }
}

/// Reads a key file.
///
/// # Errors
/// It does not exist, other users can read it, or its content is invalid.
pub fn read(path: &Path) -> Result<Vec<Held>, KeyFileError> {
    let unreadable = |error| KeyFileError::Unreadable { path: path.into(), error };
    let file = fs::File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let (mode, broken) = (metadata.mode() & 0o777, |reason| KeyFileError::Broken { path: path.into(), reason });
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Open { path: path.into(), mode });
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(broken(format!("it has {} bytes", metadata.len())));
    }
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, FILE_BYTES_MAX), &mut text).map_err(unreadable)?;
    parse(&text).map_err(broken)
}

/// As [`read`]; returns no keys if the file does not exist.
///
/// # Errors
/// As [`read`].
pub fn read_if_there(path: &Path) -> Result<Vec<Held>, KeyFileError> {
    match read(path) {
        Err(KeyFileError::Unreadable { error, .. })
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(Vec::new())
        }
        result => result,
    }
}

/// Writes a key file that only its owner can read, atomically; it is on disk when this returns. A symbolic link to a file
/// stays one.
///
/// # Errors
/// The folder is not writable.
pub fn write(path: &Path, held: &[Held]) -> io::Result<()> {
    let linked = fs::canonicalize(path);
    let path = linked.as_deref().unwrap_or(path);
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(".new");
    let beside = path.with_file_name(name);
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(format(held).as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(folder)?.sync_all()
}

fn format(held: &[Held]) -> String {
    let mut text = "# Key of a Bramble cluster. Anyone who can read this file can use the cluster.\n".to_owned();
    for Held { key, until } in held {
        let until = until.map_or(String::new(), |until| format!(" until {until}"));
        text += &format!("{} {}{until}\n", key.name(), hexadecimal(key.bytes()));
    }
    text
}

fn parse(text: &str) -> Result<Vec<Held>, String> {
    let mut held: Vec<Held> = Vec::new();
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let wrong = || format!("line {number} is not `secret`, `operator` or `viewer` with 64 hexadecimal digits");
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, digits, until) = match words[..] {
            [name, digits] => (name, digits, None),
            [name, digits, "until", until] => (name, digits, Some(until.parse().map_err(|_| wrong())?)),
            _ => return Err(wrong()),
        };
        let key = of_hexadecimal(digits).and_then(|bytes| Key::named(name, bytes)).ok_or_else(wrong)?;
        if until.is_none() != held.is_empty() || held.len() >= HELD_MAX {
            return Err(format!("line {number}: expected one current key first, then at most {} others", HELD_MAX - 1));
        }
        held.push(Held { key, until });
    }
    if held.is_empty() { Err("it contains no key".into()) } else { Ok(held) }
}

/// Lowest wire version whose nodes distinguish owners from operators.
pub const OWNER_SINCE: u16 = 5;

/// Longest time that the previous key stays valid after a rotation.
pub const GRACE_SECONDS_MAX: u32 = 30 * 24 * 3600;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn held(byte: u8, until: Option<u64>) -> Held {
        Held { key: Key::Secret([byte; 32]), until }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("bramble-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder can be made");
        folder
    }

    #[test]
    fn key_file_readable_by_others_is_rejected() {
        let folder = folder("keyring");
        let path = folder.join("cluster.key");
        let keys = vec![held(1, None), held(2, Some(1_700_000_000))];
        write(&path, &keys).expect("the folder can be written");
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&path).expect("it is good"), keys);
        for mode in [0o640, 0o604, 0o660] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
            let error = read(&path).expect_err("others can read it").to_string();
            assert!(error.contains(&format!("chmod 600 {}", path.display())), "{error}");
        }
        assert!(read_if_there(&path).is_err());
        let link = folder.join("link.key");
        std::os::unix::fs::symlink(&path, &link).expect("the folder can be written");
        write(&link, &keys[..1]).expect("the folder can be written");
        assert_eq!(read(&path).expect("the link's file was written"), keys[..1]);
        assert!(link.is_symlink());
        assert_eq!(read_if_there(&folder.join("none")).expect("no file is no key"), Vec::new());
        fs::remove_dir_all(folder).expect("it is ours");
    }

    #[test]
    fn invalid_key_file_is_rejected_with_its_line() {
        let digits = "0123456789abcdef".repeat(4);
        let good = format!("# a key\nviewer {digits}\n");
        assert_eq!(parse(&good).map(|held| held.len()), Ok(1));
        for (text, named) in [
            (String::new(), "no key"),
            (format!("secret {}", &digits[1..]), "line 1"),
            (format!("node {digits}"), "line 1"),
            (format!("secret {digits} until"), "line 1"),
            (format!("secret {digits} until x"), "line 1"),
            (format!("secret {digits} until 5"), "line 1"),
            (format!("secret {digits}\nsecret {digits}"), "line 2"),
        ] {
            let error = parse(&text).expect_err("it is wrong");
            assert!(error.contains(named), "{text:?}: {error}");
        }
    }

    #[test]
    fn previous_key_is_valid_for_the_grace_period() {
        let before = Keyring::with(Role::Node, vec![held(1, None), held(9, Some(50))]);
        let keyring = Keyring::with(Role::Node, before.rotated(Key::Secret([2; 32]), 100));
        let psk = |byte: u8| Key::Secret([byte; 32]).psk(Role::Node).expect("a secret has all roles");
        assert_eq!(keyring.accepting(Role::Node, 99), [psk(2), psk(1)]);
        let shown: Vec<_> = keyring.dialling(99).iter().filter_map(|credential| credential.pass(5)).collect();
        assert_eq!(shown, [Pass::new(Role::Node, psk(2)), Pass::new(Role::Node, psk(1))]);
        assert_eq!(keyring.accepting(Role::Node, 100), [psk(2)]);
        let pass = Pass::new(Role::Node, psk(1));
        assert!(keyring.lets_in(Some(&pass), 99) && !keyring.lets_in(Some(&pass), 100));
        let late = Keyring::with(Role::Node, before.rotated(Key::Secret([2; 32]), 1_800_000_000));
        assert!(late.lets_in(Some(&pass), 1_799_999_999), "within the grace");
        assert!(!late.lets_in(Some(&pass), 10), "a clock at 1970 revives no old key");
        assert!(!keyring.lets_in(None, 0) && Keyring::empty(Role::Node).lets_in(None, 0));
        assert_eq!(keyring.rotated(Key::Secret([2; 32]), 200).len(), 1, "the same key again is no rotation");
    }
}
