//! Owns the terminal while the dashboard is on it, and gives it back as it was on every way out: return, error, panic.
//! Signals end the run loop, and so come to the same door. Draws nothing by itself.
use std::{
    io::{self, IsTerminal, Stdout},
    panic,
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

use crossterm::{
    cursor::Show,
    event::{DisableBracketedPaste, EnableBracketedPaste},
    execute,
    terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
};
use ratatui::{Frame, Terminal, backend::CrosstermBackend};

/// Whether the terminal is ours. There is one terminal a process, so there is one of these.
static ENTERED: AtomicBool = AtomicBool::new(false);
static PANIC_HOOK: Once = Once::new();

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
    /// The terminal said no.
    #[error("the terminal cannot be used: {0}; check TERM, or use console generate")]
    Io(#[from] io::Error),
}

/// The terminal in raw mode with the alternate screen and bracketed paste. Dropping it restores what was before.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
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
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        PANIC_HOOK.call_once(restore_before_panic_messages);
        if ENTERED.swap(true, Ordering::SeqCst) {
            return Err(TerminalError::InUse);
        }
        // From here on there is a guard: an error below drops it.
        let screen = Self { terminal };
        enable_raw_mode()?;
        // Not Terminal::clear: it asks the terminal for the cursor's place, and not every terminal answers in time.
        execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste, Clear(ClearType::All))?;
        Ok(screen)
    }

    /// Draws a frame and returns what the drawing returned.
    ///
    /// # Errors
    /// The terminal was given back by a panic elsewhere, or cannot be written.
    pub fn draw<T>(&mut self, draw: impl FnOnce(&mut Frame) -> T) -> Result<T, TerminalError> {
        self.check()?;
        let mut drawn = None;
        self.terminal.draw(|frame| drawn = Some(draw(frame)))?;
        Ok(drawn.expect("the terminal calls the drawing once"))
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
        restore();
    }
}

/// Gives the terminal back if it is ours. A terminal that is gone cannot be restored: errors are of no use here.
fn restore() {
    if ENTERED.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), DisableBracketedPaste, LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

fn restore_before_panic_messages() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        restore();
        print(panic);
    }));
}
