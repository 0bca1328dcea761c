//! A dashboard screen while another thread panics; for the test that the terminal is restored.
use console::terminal::{TerminalError, TerminalScreen};

fn main() -> Result<(), TerminalError> {
    let mut screen = TerminalScreen::enter()?;
    screen.draw(|_| ())?;
    let other = std::thread::spawn(|| panic!("this panic is part of a test"));
    // The panic is the purpose of this program.
    drop(other.join());
    screen.check()
}
