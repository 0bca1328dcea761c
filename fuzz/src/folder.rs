//! A folder in memory for parsers that read files.
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A folder of this process.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// A new folder with this name.
    pub fn new(name: &str) -> Self {
        let memory = Path::new("/dev/shm");
        let below = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        Self(below.join(format!("bramble-fuzz-{}-{name}", std::process::id())))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Empties it, then writes files.
    pub fn fill<'a>(&self, files: impl IntoIterator<Item = (&'a str, &'a [u8])>) {
        let _ = fs::remove_dir_all(&self.0);
        fs::create_dir_all(&self.0).expect("a folder can be made");
        for (name, bytes) in files {
            fs::write(self.0.join(name), bytes).expect("a file can be written");
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
