//! The stored conversations as a chat on a terminal uses them; the dashboard shows the same ones.
use std::{fs::OpenOptions, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use crate::cli::shared::output;
use crate::client::conversations::{ConversationFolder, folder};
use crate::conversation::Conversation;

/// Most conversations that are listed.
const LISTED_MAX: usize = 20;

/// Where conversations are stored.
pub(super) struct ChatStore {
    /// `None` if nothing is stored.
    folder: Option<ConversationFolder>,
    /// Whether the last attempt to store failed.
    has_failed: bool,
}

impl ChatStore {
    /// Stores nothing.
    pub(super) fn none() -> Self {
        Self { folder: None, has_failed: false }
    }

    /// The user's folder.
    pub(super) fn open() -> Self {
        Self { folder: folder().map(ConversationFolder::at), has_failed: false }
    }

    /// Stores a conversation. Of successive failures, only the first is reported.
    pub(super) fn keep(&mut self, conversation: &Conversation) {
        let Some(folder) = &mut self.folder else { return };
        let kept = folder.keep(conversation);
        let had_failed = std::mem::replace(&mut self.has_failed, kept.is_err());
        match kept {
            Ok(Some(copied)) => output::note(&output::clean(&copied)),
            Err(reason) if !had_failed => {
                output::note(&output::clean(&format!("this chat is not stored: {reason}")));
            }
            _ => {}
        }
    }

    fn read(&self) -> Result<Vec<Conversation>, String> {
        let folder = self.folder.as_ref().ok_or("conversations are not stored here: there is no home folder")?;
        let found = folder.read_all()?;
        found.skipped.iter().for_each(|line| output::note(&output::clean(&format!("skipped {line}"))));
        Ok(found.all)
    }

    /// The latest conversations, one a line.
    pub(super) fn list(&self) -> Result<String, String> {
        let all = self.read()?;
        if all.is_empty() {
            return Ok("no conversation is stored yet".to_owned());
        }
        let lines = all.iter().take(LISTED_MAX).map(|one| {
            let plural = if one.turns.len() == 1 { " " } else { "s" };
            format!("{:>4} turn{plural}  {}", one.turns.len(), one.title())
        });
        let more = all.len().saturating_sub(LISTED_MAX);
        let rest = (more > 0).then(|| format!("and {more} older ones; console shows all on its page Chat"));
        Ok(lines.chain(rest).collect::<Vec<_>>().join("\n"))
    }

    /// The latest conversation with this title or id, or with this text in its title.
    pub(super) fn load(&mut self, name: &str) -> Result<Conversation, String> {
        let all = self.read()?;
        let exact = all.iter().find(|one| one.title() == name || one.id == name);
        let lower = name.to_lowercase();
        let found = exact.or_else(|| all.iter().find(|one| one.title().to_lowercase().contains(&lower)));
        let found = found.ok_or_else(|| format!("no stored conversation is called {name:?}; /list shows them"))?;
        if let Some(folder) = &mut self.folder {
            folder.hold(found);
        }
        Ok(found.clone())
    }

    /// Writes a conversation to a new file that only its owner can read.
    pub(super) fn export(&self, conversation: &Conversation, file: &str) -> Result<String, String> {
        let is_json = Path::new(file).extension().is_some_and(|suffix| suffix == "json");
        let text = if is_json { conversation.json() } else { conversation.markdown() };
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
        made.and_then(|mut file| file.write_all(text.as_bytes()))
            .map(|()| format!("written to {file}"))
            .map_err(|error| format!("cannot write {file}: {error}; name another file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::ChatTurn;

    /// The chat of a process.
    fn store(home: &Path) -> ChatStore {
        ChatStore { folder: Some(ConversationFolder::at(home.join("conversations"))), has_failed: false }
    }

    fn conversation(id: &str, prompts: &[&str]) -> Conversation {
        let turns = prompts.iter().map(|prompt| ChatTurn { prompt: (*prompt).to_owned(), answer: None });
        Conversation { turns: turns.collect(), ..Conversation::new(id.to_owned(), String::new()) }
    }

    #[test]
    fn conversations_are_listed_loaded_by_a_part_of_their_title_and_exported() {
        let home = tempfile::tempdir().expect("a folder");
        let mut store = store(home.path());
        assert_eq!(store.list().as_deref(), Ok("no conversation is stored yet"));
        for (id, prompt) in [("a-1", "Verona weather"), ("a-2", "Mantua")] {
            store.keep(&conversation(id, &[prompt]));
        }
        assert!(store.list().is_ok_and(|list| list.contains("1 turn   Mantua") && list.lines().count() == 2));
        assert_eq!(store.load("verona").map(|one| one.id).as_deref(), Ok("a-1"));
        assert_eq!(store.load("a-2").map(|one| one.title()).as_deref(), Ok("Mantua"));
        assert!(store.load("Padua").is_err_and(|reason| reason.contains("/list")));
        let (talk, file) = (store.load("a-2").expect("stored"), home.path().join("talk.json").display().to_string());
        assert!(store.export(&talk, &file).is_ok() && store.export(&talk, &file).is_err(), "never overwritten");
    }

    #[test]
    fn listed_turns_of_another_chat_are_not_overwritten() {
        let home = tempfile::tempdir().expect("a folder");
        let [mut one, mut other] = [store(home.path()), store(home.path())];
        one.keep(&conversation("a-1", &["Verona"]));
        assert!(other.load("Verona").is_ok());
        other.keep(&conversation("a-1", &["Verona", "Mantua"]));
        assert!(one.list().is_ok_and(|list| list.contains("2 turns  Verona")));
        one.keep(&conversation("a-1", &["Verona", "Padua"]));
        for (title, last) in [("Verona", "Mantua"), ("Verona (copy)", "Padua")] {
            assert_eq!(one.load(title).expect("stored").turns[1].prompt, last, "{title}");
        }
    }
}
