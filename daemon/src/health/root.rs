//! Files of /proc and /sys below a root, so that fixtures are read like machines. Missing or malformed values are
//! `None`.
use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Maximum size of a file; /proc/stat of a large machine is the largest.
const BYTES_MAX: u64 = 256 * 1024;
/// Maximum number of entries of a folder.
const ENTRIES_MAX: usize = 1024;

/// The root of /proc and /sys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Root(PathBuf);

impl Root {
    pub(super) fn new(path: &Path) -> Self {
        Self(path.into())
    }

    /// Whether this is the machine itself.
    pub(super) fn is_machine(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// A file's text.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        read(&self.0.join(path))
    }

    /// A file's bytes.
    pub(super) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.0.join(path)).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The value of a file that holds one word or number.
    pub(super) fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.trim().parse().ok()
    }

    /// Whether a file or folder exists.
    pub(super) fn has(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }

    /// Entries of a folder whose names start with `prefix`, sorted by name, as paths below the root.
    pub(super) fn entries(&self, folder: &str, prefix: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.0.join(folder)) else { return Vec::new() };
        let names = entries.take(ENTRIES_MAX).flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
        names.sort();
        names.into_iter().map(|name| format!("{folder}/{name}")).collect()
    }
}

fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}
