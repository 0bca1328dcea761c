//! A dashboard screen while another thread panics; for the test that the terminal is restored.
use console::terminal::{Screen, TerminalError};

fn main() -> Result<(), TerminalError> {
    let mut screen = Screen::enter()?;
    screen.draw(|_| ())?;
    let other = std::thread::spawn(|| panic!("this panic is part of a test"));
    // The panic is the purpose of this program.
    drop(other.join());
    screen.check()
}
