//! What an update wants done outside of the state. Plain values; `run` performs them.
use shared::protocol::message::Generate;

pub use crate::wanted::Wanted;

/// Something to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// What is on the screen changed.
    Draw,
    /// Make the nodes hold this.
    Assign(Wanted),
    /// Complete a text.
    Generate(Box<Generate>),
    /// Cancel the running generation.
    Cancel,
    /// End with this exit code.
    Quit(i32),
}
