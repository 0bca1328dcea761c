//! Conversations on disk: one JSON file each below `~/.local/share/bramble/conversations`, which only its owner can read.
//! A file is replaced atomically, and only if no other console changed it; damaged files are skipped and named, never
//! deleted.
pub mod keeper;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Read},
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    client::clusters::write_atomically,
    conversation::{Conversation, TITLE_BYTES_MAX, is_id},
};

/// Most conversations in the folder.
pub const CONVERSATIONS_MAX: usize = 500;
/// Largest file in bytes.
pub const FILE_BYTES_MAX: u64 = 8 << 20;
/// Most bytes of all files that are read; older files are skipped.
const ALL_BYTES_MAX: u64 = 64 << 20;
/// End of the title of a copy.
const COPY_SUFFIX: &str = " (copy)";
/// Longest part of an id that the id of its copy repeats, in bytes.
const COPY_STEM_MAX: usize = 56;

/// The conversations of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadConversations {
    /// The conversations, the latest first.
    pub all: Vec<Conversation>,
    /// Files that were skipped, each with the reason.
    pub skipped: Vec<String>,
}

/// Folder of the console's data: `XDG_DATA_HOME/bramble` or `~/.local/share/bramble`; `None` without a home folder.
pub fn data_folder() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = folder("XDG_DATA_HOME").or_else(|| folder("HOME").map(|home| home.join(".local/share")))?;
    Some(folder.join("bramble"))
}

/// Folder of the conversations; `None` without a home folder.
pub fn folder() -> Option<PathBuf> {
    Some(data_folder()?.join("conversations"))
}

/// A folder of conversations as one process uses it. Several consoles use the same folder, each with its own copies.
#[derive(Debug)]
pub struct ConversationFolder {
    folder: PathBuf,
    /// By the id of a conversation in this process: the file that its copy was read from or written to.
    held: BTreeMap<String, HeldFile>,
}

/// A file as this process last read or wrote it.
#[derive(Debug)]
struct HeldFile {
    /// The id in the file; another one than in this process if the copy became a conversation of its own.
    id: String,
    fingerprint: u64,
}

impl ConversationFolder {
    /// The folder at this path, which need not exist yet. This process holds no copies yet.
    pub fn at(folder: PathBuf) -> Self {
        Self { folder, held: BTreeMap::new() }
    }

    /// Reads all conversations; a missing folder has none.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn read_all(&self) -> Result<ReadConversations, String> {
        let mut files = match files(&self.folder) {
            Ok(files) => files,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(ReadConversations::default());
            }
            Err(error) => return Err(format!("cannot read the conversations in {}: {error}", self.folder.display())),
        };
        files.sort_by(|one, other| other.cmp(one));
        let mut found = ReadConversations::default();
        let mut bytes = 0u64;
        for (_, size, path) in files {
            let name = path.display();
            // No more than this is read of a larger file.
            bytes = bytes.saturating_add(size.min(FILE_BYTES_MAX));
            if found.all.len() >= CONVERSATIONS_MAX || bytes > ALL_BYTES_MAX {
                found.skipped.push(format!("{name}: there are too many conversations; delete some"));
                continue;
            }
            match read(&path) {
                Ok(conversation) => found.all.push(conversation),
                Err(reason) => found.skipped.push(format!("{name}: {reason}")),
            }
        }
        found.all.sort_by_key(|conversation| std::cmp::Reverse(conversation.changed_ms));
        Ok(found)
    }

    /// From now on, this process holds a conversation as [`Self::read_all`] returned it. One that is only listed is not
    /// held: a later [`Self::keep`] of an older copy would overwrite what the list has seen.
    pub fn hold(&mut self, conversation: &Conversation) {
        let file = HeldFile { id: conversation.id.clone(), fingerprint: fingerprint(conversation) };
        self.held.insert(conversation.id.clone(), file);
    }

    /// Stores a conversation. If its file has changes that this process does not hold, the file stays as it is: now and
    /// later, the conversation is stored as another one. Returns a message about it for the user.
    ///
    /// # Errors
    /// It cannot be stored; the message names the file and the reason.
    pub fn keep(&mut self, conversation: &Conversation) -> Result<Option<String>, String> {
        let held = self.held.get(&conversation.id);
        let id = held.map_or(&conversation.id, |held| &held.id);
        let is_copied = is_foreign(&self.path_of(id)?, held.map(|held| held.fingerprint));
        let mut stored = conversation.clone();
        stored.id = if is_copied { self.free_id(id)? } else { id.clone() };
        if stored.id != conversation.id {
            stored.title = copy_title(conversation);
        }
        let path = self.path_of(&stored.id)?;
        let written = self.write(&path, &stored);
        // A file system that cannot synchronize the folder has replaced the file all the same.
        if written.is_ok() || read(&path).is_ok_and(|found| found == stored) {
            let file = HeldFile { id: stored.id.clone(), fingerprint: fingerprint(&stored) };
            self.held.insert(conversation.id.clone(), file);
        }
        written?;
        let title = stored.title;
        let message = format!("another console changed this chat; your version is stored as {title:?}");
        Ok(is_copied.then_some(message))
    }

    /// Deletes a conversation of this process; a missing one is no error.
    ///
    /// # Errors
    /// The file cannot be deleted.
    pub fn remove(&self, id: &str) -> Result<(), String> {
        let path = self.path_of(self.held.get(id).map_or(id, |held| held.id.as_str()))?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("cannot delete {}: {error}", path.display()))
            }
            _ => Ok(()),
        }
    }

    fn path_of(&self, id: &str) -> Result<PathBuf, String> {
        if is_id(id) {
            Ok(self.folder.join(format!("{id}.json")))
        } else {
            Err(format!("{id:?} is no id of a conversation"))
        }
    }

    /// The id of a new file for a copy of the conversation with this id.
    fn free_id(&self, id: &str) -> Result<String, String> {
        let stem = &id[..id.len().min(COPY_STEM_MAX)];
        let mut ids = (2..=CONVERSATIONS_MAX + 2).map(|number| format!("{stem}-{number}"));
        ids.find(|id| !self.folder.join(format!("{id}.json")).exists()).ok_or_else(is_full)
    }

    fn write(&self, path: &Path, conversation: &Conversation) -> Result<(), String> {
        // A conversation that fails this check could not be read again.
        conversation.check().map_err(|reason| format!("the conversation {reason}"))?;
        let text = conversation.json();
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(format!("the conversation is larger than {FILE_BYTES_MAX} bytes: start a new one"));
        }
        // A folder that does not exist yet has no files.
        if !path.exists() && files(&self.folder).map_or(0, |files| files.len()) >= CONVERSATIONS_MAX {
            return Err(is_full());
        }
        write_atomically(path, &text).map_err(|error| format!("cannot write {}: {error}", path.display()))
    }
}

fn is_full() -> String {
    format!("{CONVERSATIONS_MAX} conversations are stored already: delete some to store this one")
}

/// Whether a file has a content that this process neither read nor wrote. Its last content is known by the fingerprint;
/// the time of the change is not enough, because a new title does not change it.
fn is_foreign(path: &Path, held: Option<u64>) -> bool {
    match read(path) {
        Ok(found) => held != Some(fingerprint(&found)),
        // A damaged file is left to the user.
        Err(_) => path.exists(),
    }
}

fn fingerprint(conversation: &Conversation) -> u64 {
    let mut hasher = DefaultHasher::new();
    conversation.hash(&mut hasher);
    hasher.finish()
}

/// The title of a copy, different from that of the conversation.
fn copy_title(conversation: &Conversation) -> String {
    let title = conversation.title();
    let end = title.floor_char_boundary(TITLE_BYTES_MAX - COPY_SUFFIX.len());
    format!("{}{COPY_SUFFIX}", &title[..end])
}

/// The files with conversations: time of change, size and path.
fn files(folder: &Path) -> io::Result<Vec<(SystemTime, u64, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_ours = path.extension().is_some_and(|suffix| suffix == "json");
        // A file that is gone again is skipped.
        let Some(data) = fs::metadata(&path).ok().filter(|data| is_ours && data.is_file()) else { continue };
        files.push((data.modified().unwrap_or(SystemTime::UNIX_EPOCH), data.len(), path));
    }
    Ok(files)
}

fn read(path: &Path) -> Result<Conversation, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("larger than {FILE_BYTES_MAX} bytes"));
    }
    let conversation: Conversation = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    conversation.check()?;
    if path.file_stem().is_none_or(|stem| stem != conversation.id.as_str()) {
        return Err("its id is not its file name".to_owned());
    }
    Ok(conversation)
}

#[cfg(test)]
mod tests;
