//! Line editing with a history on a terminal. A thread edits a line at a time; between lines the terminal is as it was, so
//! that Ctrl-C is a signal while an answer is printed.
use std::{
    fs::{self, DirBuilder},
    io::stdin,
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    sync::mpsc,
};

use anyhow::anyhow;
use common::chat::PROMPT_BYTES_MAX;
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use rustyline::{
    Config, Context, Editor, Helper,
    completion::Completer,
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::{FileHistory, History},
    validate::{ValidationContext, ValidationResult, Validator},
};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{
    chat_command::{WORDS, is_unfinished, joined},
    prompt_source::too_long,
};
use crate::cli::{Failure, shared::output};
use crate::client::conversations::data_folder;

/// Most lines of the history.
const HISTORY_MAX: usize = 1000;
/// Longest line that the history keeps, in bytes.
const HISTORY_LINE_MAX: usize = 4096;
/// Largest history file that is read.
const HISTORY_BYTES_MAX: u64 = 8 << 20;

/// Pasted text arrives without marks again.
const PASTE_OFF: &str = "\x1b[?2004l\n";

/// A line of a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EditedLine {
    /// A text, perhaps of several lines.
    Text(String),
    /// Ctrl-C.
    Cancelled,
    /// Ctrl-D.
    End,
}

/// The thread that edits lines.
pub(super) struct LineEditor {
    wanted: mpsc::Sender<()>,
    lines: Receiver<Result<EditedLine, Failure>>,
    /// The settings of the terminal before the first line.
    before: Option<Termios>,
    /// Whether a line is being edited.
    is_editing: bool,
}

impl LineEditor {
    /// Starts the thread, which ends with the program.
    pub(super) fn start() -> Self {
        let (wanted, asked) = mpsc::channel();
        let (sender, lines) = channel(1);
        std::thread::spawn(move || edit(&asked, &sender));
        Self { wanted, lines, before: tcgetattr(stdin()).ok(), is_editing: false }
    }

    /// The next line.
    pub(super) async fn next(&mut self) -> Result<EditedLine, Failure> {
        // The thread is gone after an error, which was returned.
        let _ = self.wanted.send(());
        self.is_editing = true;
        let line = self.lines.recv().await;
        self.is_editing = false;
        line.unwrap_or(Ok(EditedLine::End))
    }
}

impl Drop for LineEditor {
    /// Restores the terminal: a signal ends the chat while a line is edited.
    fn drop(&mut self) {
        if let Some(before) = self.before.as_ref().filter(|_| self.is_editing) {
            let _ = tcsetattr(stdin(), SetArg::TCSANOW, before);
            output::text(PASTE_OFF);
        }
    }
}

fn edit(asked: &mpsc::Receiver<()>, lines: &Sender<Result<EditedLine, Failure>>) {
    let config = Config::builder().auto_add_history(false).bracketed_paste(true);
    let editor = config.max_history_size(HISTORY_MAX).and_then(|config| Editor::with_config(config.build()));
    let mut editor: Editor<ChatHelper, FileHistory> = match editor {
        Ok(editor) => editor,
        Err(error) => return drop(lines.blocking_send(Err(anyhow!("cannot edit lines: {error}").into()))),
    };
    editor.set_helper(Some(ChatHelper));
    let mut file = history_file().map(|path| HistoryFile::load(path, editor.history_mut()));
    while asked.recv().is_ok() {
        let line = read(&mut editor);
        if let (Ok(EditedLine::Text(text)), Some(file)) = (&line, &mut file) {
            file.add(editor.history_mut(), text);
        }
        if lines.blocking_send(line.map(unmarked)).is_err() {
            return;
        }
    }
}

/// The line without the marks of several lines.
fn unmarked(line: EditedLine) -> EditedLine {
    match line {
        EditedLine::Text(text) => EditedLine::Text(joined(&text)),
        other => other,
    }
}

fn read(editor: &mut Editor<ChatHelper, FileHistory>) -> Result<EditedLine, Failure> {
    loop {
        return match editor.readline("> ") {
            Ok(text) if text.len() > PROMPT_BYTES_MAX => Err(too_long("an input line")),
            Ok(text) => Ok(EditedLine::Text(text)),
            Err(ReadlineError::Interrupted) => Ok(EditedLine::Cancelled),
            Err(ReadlineError::Eof) => Ok(EditedLine::End),
            // The window has another size.
            Err(ReadlineError::Signal(_)) => continue,
            Err(error) => Err(anyhow!("cannot read the terminal: {error}").into()),
        };
    }
}

/// The file of a history, which only its owner can read. Chats that run at the same time add their lines to one file.
struct HistoryFile {
    path: PathBuf,
    /// Whether it is damaged or too large, so that the next line replaces it.
    is_unusable: bool,
}

impl HistoryFile {
    /// Reads the file, if there is one.
    fn load(path: PathBuf, history: &mut FileHistory) -> Self {
        let is_unusable =
            fs::metadata(&path).is_ok_and(|data| data.len() > HISTORY_BYTES_MAX || history.load(&path).is_err());
        Self { path, is_unusable }
    }

    /// Adds a line to the history and to the file.
    fn add(&mut self, history: &mut FileHistory, line: &str) {
        if line.trim().is_empty() || line.len() > HISTORY_LINE_MAX {
            return;
        }
        // `save` writes only the lines of this process; `append` adds to the lines of other chats that are in the file.
        let added = history.add(line).and_then(|_| match self.is_unusable {
            true => history.save(&self.path),
            false => history.append(&self.path),
        });
        // A history that cannot be written is no reason to end a chat.
        self.is_unusable &= added.is_err();
    }
}

/// The history file; its folder is created if necessary.
fn history_file() -> Option<PathBuf> {
    let folder = data_folder()?;
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).ok()?;
    Some(folder.join("chat-history"))
}

/// Completes commands and recognizes lines that continue.
struct ChatHelper;

impl Helper for ChatHelper {}
impl Highlighter for ChatHelper {}

impl Hinter for ChatHelper {
    type Hint = String;
}

impl Completer for ChatHelper {
    type Candidate = String;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..pos];
        let fitting = WORDS.iter().filter(|word| typed.starts_with('/') && word.starts_with(typed));
        Ok((0, fitting.map(|word| format!("{word} ")).collect()))
    }
}

impl Validator for ChatHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let is_open = is_unfinished(context.input());
        Ok(if is_open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The history of a chat with at most three lines.
    fn history() -> FileHistory {
        let config = Config::builder().max_history_size(3).expect("a valid size");
        FileHistory::with_config(&config.build())
    }

    #[test]
    fn parallel_chats_share_a_private_history_of_limited_length() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("chat-history");
        let (mut one, mut other) = (history(), history());
        let mut file = HistoryFile::load(path.clone(), &mut one);
        let mut same_file = HistoryFile::load(path.clone(), &mut other);
        file.add(&mut one, "a");
        same_file.add(&mut other, "b");
        file.add(&mut one, "c");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "#V2\na\nb\nc\n");
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut next = history();
        let mut file = HistoryFile::load(path.clone(), &mut next);
        assert_eq!(next.iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        file.add(&mut next, "d");
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "#V2\nb\nc\nd\n");
    }

    #[test]
    fn unusable_history_is_replaced_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let [damaged, huge] = ["damaged", "huge"].map(|name| folder.path().join(name));
        fs::write(&damaged, [0xff, 0xfe, b'\n']).expect("the folder is writable");
        let hole = fs::File::create(&huge).expect("the folder is writable");
        hole.set_len(HISTORY_BYTES_MAX + 1).expect("a file with a hole");
        for path in [damaged, huge] {
            let (mut one, mut other) = (history(), history());
            let mut file = HistoryFile::load(path.clone(), &mut one);
            file.add(&mut one, "a");
            HistoryFile::load(path.clone(), &mut other).add(&mut other, "b");
            file.add(&mut one, "c");
            assert_eq!(fs::read_to_string(&path).expect("it is there"), "#V2\na\nb\nc\n");
        }
    }
}
