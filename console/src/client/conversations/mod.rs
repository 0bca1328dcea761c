//! Conversations on disk: one JSON file each below `~/.local/share/bramble/conversations`, which only its owner can read.
//! A file is replaced atomically; damaged files are skipped and named, never deleted.
pub mod keeper;

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    client::clusters::write_atomically,
    conversation::{Conversation, is_id},
};

/// Most conversations in the folder.
pub const CONVERSATIONS_MAX: usize = 500;
/// Largest file in bytes.
pub const FILE_BYTES_MAX: u64 = 8 << 20;
/// Most bytes of all files that are read; older files are skipped.
const ALL_BYTES_MAX: u64 = 64 << 20;

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

/// Reads all conversations of a folder; a missing folder has none.
///
/// # Errors
/// The folder cannot be read.
pub fn read_all(folder: &Path) -> Result<ReadConversations, String> {
    let mut files = match files(folder) {
        Ok(files) => files,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(ReadConversations::default());
        }
        Err(error) => return Err(format!("cannot read the conversations in {}: {error}", folder.display())),
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

/// Stores a conversation.
///
/// # Errors
/// It cannot be stored; the message names the file and the reason.
pub fn keep(folder: &Path, conversation: &Conversation) -> Result<(), String> {
    let path = path_of(folder, &conversation.id)?;
    // A conversation that fails this check could not be read again.
    conversation.check().map_err(|reason| format!("the conversation {reason}"))?;
    let text = conversation.json();
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("the conversation is larger than {FILE_BYTES_MAX} bytes: start a new one"));
    }
    // A folder that does not exist yet has no files.
    if !path.exists() && files(folder).map_or(0, |files| files.len()) >= CONVERSATIONS_MAX {
        return Err(format!("{CONVERSATIONS_MAX} conversations are stored already: delete some to store this one"));
    }
    write_atomically(&path, &text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Deletes a conversation; a missing one is no error.
///
/// # Errors
/// The file cannot be deleted.
pub fn remove(folder: &Path, id: &str) -> Result<(), String> {
    let path = path_of(folder, id)?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("cannot delete {}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

fn path_of(folder: &Path, id: &str) -> Result<PathBuf, String> {
    if is_id(id) { Ok(folder.join(format!("{id}.json"))) } else { Err(format!("{id:?} is no id of a conversation")) }
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
