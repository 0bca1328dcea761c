//! Owns the terminal while the dashboard is on it, and gives it back as it was on every way out: return, error, panic.
//! Signals end the run loop, and so come to the same door. Draws nothing by itself.
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

use crate::{
    outlet::{self, Outlet},
    recording::RecordingError,
};

/// Whether the terminal is ours. There is one terminal a process, so there is one of these.
static ENTERED: AtomicBool = AtomicBool::new(false);
static PANIC_HOOK: Once = Once::new();
/// Longest wait at the end for a terminal that takes its last frame slowly.
const LAST_FRAME: Duration = Duration::from_millis(500);
/// Presses and the wheel, with places beyond column 223. Not motion: over a slow link that would be most of the input.
const MOUSE_ON: &[u8] = b"\x1b[?1000h\x1b[?1006h";
/// The terminal selects text again.
const MOUSE_OFF: &[u8] = b"\x1b[?1006l\x1b[?1000l";

/// Why the terminal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TerminalError {
    /// Nobody would see the dashboard or could type.
    #[error("stdin and stdout are no terminal; use console generate or console demo --once")]
    NotATerminal,
    /// Another dashboard of this process has it.
    #[error("the terminal is in use by another dashboard of this process; end that one first")]
    InUse,
    /// A panic elsewhere gave it back.
    #[error("a part of the console panicked; its message is above, report it")]
    GivenBack,
    /// The session cannot be written.
    #[error("{0}")]
    Recording(RecordingError),
    /// The terminal said no.
    #[error("the terminal cannot be used: {0}; check TERM, or use console generate")]
    Io(#[from] io::Error),
}

/// The terminal in raw mode with the alternate screen and bracketed paste. Dropping it restores what was before.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<CrosstermBackend<outlet::Frame>>,
    frame: outlet::Frame,
    outlet: Outlet,
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// [`TerminalError::NotATerminal`] before anything was changed; after any other error all is as it was.
    pub fn enter() -> Result<Self, TerminalError> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(TerminalError::NotATerminal);
        }
        let frame = outlet::Frame::default();
        let terminal = Terminal::new(CrosstermBackend::new(frame.clone()))?;
        PANIC_HOOK.call_once(restore_before_panic_messages);
        if ENTERED.swap(true, Ordering::SeqCst) {
            return Err(TerminalError::InUse);
        }
        // From here on there is a guard: an error below drops it.
        let outlet = Outlet::start(&ENTERED).inspect_err(|_| ENTERED.store(false, Ordering::SeqCst))?;
        let screen = Self { terminal, frame, outlet };
        enable_raw_mode()?;
        // Not Terminal::clear: it asks the terminal for the cursor's place, and not every terminal answers in time.
        execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste, Clear(ClearType::All))?;
        Ok(screen)
    }

    /// Draws a frame and returns what the drawing returned. Only what differs from the last frame goes to the terminal. To be
    /// called when the last one is there ([`Self::ready`]): a frame has no place to wait.
    ///
    /// # Errors
    /// The terminal was given back by a panic elsewhere, or cannot be written.
    pub fn draw<T>(&mut self, draw: impl FnOnce(&mut Frame) -> T) -> Result<T, TerminalError> {
        self.check()?;
        let mut drawn = None;
        self.terminal.draw(|frame| drawn = Some(draw(frame)))?;
        self.outlet.send(&self.frame)?;
        Ok(drawn.expect("the terminal calls the drawing once"))
    }

    /// Waits until the terminal has taken the last frame.
    pub async fn ready(&self) {
        self.outlet.idle().await;
    }

    /// Whether it has.
    pub fn is_ready(&self) -> bool {
        self.outlet.is_idle()
    }

    /// Takes the mouse, or leaves it to the terminal for selecting text. It goes out with the next frame.
    pub fn take_mouse(&mut self, takes: bool) {
        let bytes = if takes { MOUSE_ON } else { MOUSE_OFF };
        self.frame.write_all(bytes).expect("a frame is memory");
    }

    /// Cells across and down, as they were last drawn on.
    ///
    /// # Errors
    /// The terminal does not say.
    pub fn size(&self) -> Result<(u16, u16), TerminalError> {
        let size = self.terminal.size()?;
        Ok((size.width, size.height))
    }

    /// Bytes that went to the terminal.
    pub fn bytes(&self) -> u64 {
        self.outlet.bytes()
    }

    /// Whether the terminal is still ours.
    ///
    /// # Errors
    /// It was given back by a panic elsewhere.
    pub fn check(&self) -> Result<(), TerminalError> {
        if ENTERED.load(Ordering::SeqCst) { Ok(()) } else { Err(TerminalError::GivenBack) }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if !self.outlet.wait_idle(LAST_FRAME) {
            // What the terminal has not taken by now would stand between it and its restoring.
            let _ = tcflush(io::stdout(), FlushArg::TCOFLUSH);
            self.outlet.wait_idle(LAST_FRAME);
        }
        restore();
    }
}

/// Gives the terminal back if it is ours. A terminal that is gone cannot be restored: errors are of no use here.
fn restore() {
    if !ENTERED.swap(false, Ordering::SeqCst) {
        return;
    }
    let mut bytes = MOUSE_OFF.to_vec();
    let queued = queue!(bytes, DisableBracketedPaste, LeaveAlternateScreen, Show);
    queued.expect("memory takes bytes");
    if let Ok(terminal) = io::stdout().as_fd().try_clone_to_owned()
        && takes_bytes(&terminal)
    {
        let _ = File::from(terminal).write_all(&bytes);
    }
    let _ = disable_raw_mode();
}

/// Whether writing to it would not wait for somebody.
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
