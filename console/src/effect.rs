//! What an update wants done outside of the state. Plain values; `run` performs them.
use shared::protocol::message::Generate;

pub use crate::{order::Order, wanted::Wanted};
use crate::{planned::PlanAsk, state::command::Format};

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
    /// Ask the planner.
    Plan(Box<PlanAsk>),
    /// Do what an operator ordered.
    Operate(Order),
    /// Read a node's log.
    Log {
        /// Place of the node in the list.
        node: usize,
        /// Only lines after this number.
        after: u64,
    },
    /// Cancel the running generation.
    Cancel,
    /// End with this exit code.
    Quit(i32),
    /// Take the mouse, or leave it to the terminal.
    TakeMouse(bool),
    /// Write the session to a file from now on; without a name to one named by the time.
    Record(Option<String>),
    /// End that.
    StopRecording,
    /// Write the page's data or the screen to a file that does not exist.
    Export {
        /// In which form.
        format: Format,
        /// The file; `None`: named by page and time.
        file: Option<String>,
    },
}

impl Effect {
    /// Whether it reaches the cluster.
    pub fn acts(&self) -> bool {
        match self {
            Self::Assign { .. } | Self::Generate { .. } | Self::Operate(_) | Self::Cancel => true,
            Self::Draw
            | Self::Plan(_)
            | Self::Log { .. }
            | Self::Quit(_)
            | Self::TakeMouse(_)
            | Self::Record(_)
            | Self::StopRecording
            | Self::Export { .. } => false,
        }
    }
}
