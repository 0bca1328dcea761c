//! Metadata that changes whenever a file changes.
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// File-system metadata that every write to the file changes: programs can set the modification time back, but not the
/// change time. (FAT stores no change time.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Device number of the file system.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time: seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Change time: seconds and nanoseconds.
    pub changed: (i64, i64),
}

impl Stamp {
    /// Reads the stamp from a file's metadata.
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// All fields as bytes, for hashing.
    pub fn bytes(&self) -> [u8; 56] {
        let mut bytes = [0; 56];
        let numbers = [self.device, self.inode, self.size].into_iter().map(u64::to_le_bytes);
        let times =
            [self.modified.0, self.modified.1, self.changed.0, self.changed.1].into_iter().map(i64::to_le_bytes);
        for (place, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(numbers.chain(times)) {
            *place = number;
        }
        bytes
    }
}
