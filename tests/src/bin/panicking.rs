//! A dashboard's screen under a panic of another thread, for the test of its restoration.
use console::terminal::{Screen, TerminalError};

fn main() -> Result<(), TerminalError> {
    let mut screen = Screen::enter()?;
    screen.draw(|_| ())?;
    let other = std::thread::spawn(|| panic!("this panic is part of a test"));
    // The panic is what this program is for.
    drop(other.join());
    screen.check()
}
