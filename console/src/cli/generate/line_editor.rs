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
    history::FileHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::chat_command::{WORDS, is_unfinished, joined};
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
    let file = history_file();
    if let Some(file) =
        file.as_ref().filter(|file| fs::metadata(file).is_ok_and(|data| data.len() <= HISTORY_BYTES_MAX))
    {
        // A damaged history is replaced by a new one.
        let _ = editor.load_history(file);
    }
    while asked.recv().is_ok() {
        let line = read(&mut editor);
        if let (Ok(EditedLine::Text(text)), Some(file)) = (&line, &file) {
            remember(&mut editor, text, file);
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
            Ok(text) if text.len() > PROMPT_BYTES_MAX => {
                Err(anyhow!("an input line is longer than {PROMPT_BYTES_MAX} bytes").into())
            }
            Ok(text) => Ok(EditedLine::Text(text)),
            Err(ReadlineError::Interrupted) => Ok(EditedLine::Cancelled),
            Err(ReadlineError::Eof) => Ok(EditedLine::End),
            // The window has another size.
            Err(ReadlineError::Signal(_)) => continue,
            Err(error) => Err(anyhow!("cannot read the terminal: {error}").into()),
        };
    }
}

/// Adds a line to the history and its file, which only its owner can read.
fn remember(editor: &mut Editor<ChatHelper, FileHistory>, line: &str, file: &PathBuf) {
    if line.trim().is_empty() || line.len() > HISTORY_LINE_MAX {
        return;
    }
    // A history that cannot be written is no reason to end a chat.
    let _ = editor.add_history_entry(line);
    let _ = editor.save_history(file);
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
