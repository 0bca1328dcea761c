//! What an update wants done outside of the state. Plain values; `run` performs them.
use shared::protocol::message::Generate;

pub use crate::{order::Order, wanted::Wanted};

/// Something to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// What is on the screen changed.
    Draw,
    /// Make nodes hold this.
    Assign {
        /// What.
        wanted: Wanted,
        /// Places of the nodes in the list, by rank.
        members: Vec<usize>,
    },
    /// Complete a text.
    Generate {
        /// Place of the head in the list.
        head: usize,
        /// The request.
        generate: Box<Generate>,
    },
    /// Do what an operator ordered.
    Operate(Order),
    /// Cancel the running generation.
    Cancel,
    /// End with this exit code.
    Quit(i32),
}
