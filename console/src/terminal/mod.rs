//! Owns the terminal while the dashboard runs, and restores it on every exit: return, error, panic. Signals end the run
//! loop and therefore take the same path. Renders nothing itself.
pub(crate) mod input;
mod writer;

use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    os::fd::{AsFd, OwnedFd},
    panic,
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use crossterm::{
    cursor::Show,
    event::{DisableBracketedPaste, EnableBracketedPaste},
    execute, queue,
    terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::termios::{FlushArg, tcflush},
};
use ratatui::{Frame, Terminal, backend::CrosstermBackend};

use crate::{recording::RecordingError, terminal::writer::TerminalWriter};

/// Whether the terminal is ours. A process has one terminal, so this is a global.
static ENTERED: AtomicBool = AtomicBool::new(false);
static PANIC_HOOK: Once = Once::new();
/// Maximum wait at the end for a terminal that accepts its last frame slowly.
const LAST_FRAME: Duration = Duration::from_millis(500);
/// Reports presses and the wheel, also beyond column 223. Not motion: over a slow link that would be most of the input.
const MOUSE_ON: &[u8] = b"\x1b[?1000h\x1b[?1006h";
/// Lets the terminal select text again.
const MOUSE_OFF: &[u8] = b"\x1b[?1006l\x1b[?1000l";

/// Why the terminal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TerminalError {
    /// stdin or stdout is not a terminal.
    #[error("stdin and stdout must be terminals; use console generate, or console demo with its output in a pipe")]
    NotATerminal,
    /// Another dashboard of this process uses it.
    #[error("the terminal is in use by another dashboard of this process; quit that one first")]
    InUse,
    /// A panic elsewhere has restored it.
    #[error("a thread of the console panicked; please report the message above")]
    GivenBack,
    /// The session cannot be recorded.
    #[error("{0}")]
    Recording(RecordingError),
    /// A terminal operation failed.
    #[error("cannot use the terminal: {0}; check TERM, or use console generate")]
    Io(#[from] io::Error),
}

/// The terminal in raw mode with the alternate screen and bracketed paste. Dropping it restores the previous state.
#[derive(Debug)]
pub struct TerminalScreen {
    terminal: Terminal<CrosstermBackend<writer::Frame>>,
    frame: writer::Frame,
    writer: TerminalWriter,
}

impl TerminalScreen {
    /// Takes over the terminal.
    ///
    /// # Errors
    /// [`TerminalError::NotATerminal`] before any change; after any other error the terminal is restored.
    pub fn enter() -> Result<Self, TerminalError> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(TerminalError::NotATerminal);
        }
        let frame = writer::Frame::default();
        let terminal = Terminal::new(CrosstermBackend::new(frame.clone()))?;
        PANIC_HOOK.call_once(restore_before_panic_messages);
        if ENTERED.swap(true, Ordering::SeqCst) {
            return Err(TerminalError::InUse);
        }
        // From here on the guard exists: an error below drops it.
        let writer = TerminalWriter::start(&ENTERED).inspect_err(|_| ENTERED.store(false, Ordering::SeqCst))?;
        let screen = Self { terminal, frame, writer };
        enable_raw_mode()?;
        // Not `Terminal::clear`, which queries the cursor position: not every terminal answers in time.
        execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste, Clear(ClearType::All))?;
        Ok(screen)
    }

    /// Renders a frame and returns the result of `draw`. Only the differences to the last frame are sent to the
    /// terminal. Call it only after the last frame has been written ([`Self::ready`]): frames are not queued.
    ///
    /// # Errors
    /// A panic elsewhere restored the terminal, or it cannot be written.
    pub fn draw<T>(&mut self, draw: impl FnOnce(&mut Frame) -> T) -> Result<T, TerminalError> {
        self.check()?;
        let mut drawn = None;
        self.terminal.draw(|frame| drawn = Some(draw(frame)))?;
        self.writer.send(&self.frame)?;
        Ok(drawn.expect("the terminal calls the closure once"))
    }

    /// Waits until the terminal has accepted the last frame.
    pub async fn ready(&self) {
        self.writer.idle().await;
    }

    /// Whether the terminal has accepted the last frame.
    pub fn is_ready(&self) -> bool {
        self.writer.is_idle()
    }

    /// Captures the mouse, or releases it to the terminal for selecting text. Takes effect with the next frame.
    pub fn take_mouse(&mut self, takes: bool) {
        let bytes = if takes { MOUSE_ON } else { MOUSE_OFF };
        self.frame.write_all(bytes).expect("writing to memory succeeds");
    }

    /// Sends a control sequence that shows nothing, such as the bell. Takes effect with the next frame.
    pub fn send(&mut self, bytes: &[u8]) {
        self.frame.write_all(bytes).expect("writing to memory succeeds");
    }

    /// Copies a text to the clipboard of the terminal (OSC 52), if it allows that. Takes effect with the next frame.
    pub fn copy(&mut self, text: &str) {
        let bytes = format!("\x1b]52;c;{}\x07", STANDARD.encode(text));
        self.frame.write_all(bytes.as_bytes()).expect("writing to memory succeeds");
    }

    /// Columns and rows of the last rendered frame.
    ///
    /// # Errors
    /// The size of the terminal is unavailable.
    pub fn size(&self) -> Result<(u16, u16), TerminalError> {
        let size = self.terminal.size()?;
        Ok((size.width, size.height))
    }

    /// Bytes sent to the terminal.
    pub fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    /// Whether the terminal is still ours.
    ///
    /// # Errors
    /// A panic elsewhere restored the terminal.
    pub fn check(&self) -> Result<(), TerminalError> {
        if ENTERED.load(Ordering::SeqCst) { Ok(()) } else { Err(TerminalError::GivenBack) }
    }
}

impl Drop for TerminalScreen {
    fn drop(&mut self) {
        if !self.writer.wait_idle(LAST_FRAME) {
            // Discard output that the terminal has not accepted yet: it would delay the restoring sequences.
            let _ = tcflush(io::stdout(), FlushArg::TCOFLUSH);
            self.writer.wait_idle(LAST_FRAME);
        }
        restore();
    }
}

/// Restores the terminal if it is ours. Ignores errors: a terminal that is gone cannot be restored.
fn restore() {
    if !ENTERED.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut bytes = MOUSE_OFF.to_vec();
    let queued = queue!(bytes, DisableBracketedPaste, LeaveAlternateScreen, Show);
    queued.expect("writing to memory succeeds");
    if let Ok(terminal) = io::stdout().as_fd().try_clone_to_owned()
        && takes_bytes(&terminal)
    {
        let _ = File::from(terminal).write_all(&bytes);
    }
    let _ = disable_raw_mode();
}

/// Whether a write to the terminal would not block.
fn takes_bytes(terminal: &OwnedFd) -> bool {
    let mut waits = [PollFd::new(terminal.as_fd(), PollFlags::POLLOUT)];
    let most = PollTimeout::from(200u8);
    poll(&mut waits, most).is_ok_and(|count| count > 0)
}

fn restore_before_panic_messages() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        restore();
        print(panic);
    }));
}
