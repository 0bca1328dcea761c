//! Side effects that an update requests: plain values that `run` executes.
use protocol::message::Generate;

use crate::{
    client::conversations::keeper::KeeperOrder,
    keymap::ReplayAction,
    operator::model_order::ModelOrder,
    operator::planner_query::PlannerQuery,
    state::{alerts::Alert, command::Format, tour::Scene},
};
pub use crate::{operator::command::OperatorCommand, operator::desired::DesiredTopology};

/// A requested side effect.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Render a frame: the screen content changed.
    Draw,
    /// Assign a topology to nodes.
    Assign {
        /// The topology request.
        wanted: DesiredTopology,
        /// Indices of the nodes in the list, by rank.
        members: Vec<usize>,
    },
    /// Start a generation.
    Generate {
        /// Index of the head in the list.
        head: usize,
        /// The request.
        generate: Box<Generate>,
    },
    /// Query the planner.
    Plan(Box<PlannerQuery>),
    /// Execute an operator command.
    Operate(OperatorCommand),
    /// Read a node's log.
    Log {
        /// Index of the node in the list.
        node: usize,
        /// Return only lines after this number.
        after: u64,
    },
    /// Cancel the running generation.
    Cancel,
    /// Quit with this exit code.
    Quit(i32),
    /// Capture the mouse, or release it to the terminal.
    TakeMouse(bool),
    /// Execute an order about model files.
    Models(ModelOrder),
    /// Copy a text to the clipboard of the terminal.
    Copy(String),
    /// Write a file; performed by the observer of the session.
    File(FileEffect),
    /// Change the playback of the recording.
    Replay(ReplayAction),
    /// Set the scene of the guided tour on the nodes of the demo.
    Tour(Scene),
    /// Deliver an alert.
    Alert(Alert),
}

/// A requested file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileEffect {
    /// Start recording the session to a file; `None` = a file named by the time.
    Record(Option<String>),
    /// Stop recording.
    StopRecording,
    /// Write the page's data or the screen to a new file.
    Export {
        /// The file format.
        format: Format,
        /// The file; `None` = named by page and time.
        file: Option<String>,
    },
    /// Read, store or delete conversations.
    Conversations(KeeperOrder),
}

impl Effect {
    /// Whether the effect reaches the cluster, or changes the stored conversations.
    pub fn acts(&self) -> bool {
        match self {
            Self::Assign { .. } | Self::Generate { .. } | Self::Operate(_) | Self::Cancel => true,
            Self::Models(order) => order.acts(),
            Self::File(FileEffect::Conversations(order)) => *order != KeeperOrder::Read,
            Self::Draw
            | Self::Plan(_)
            | Self::Log { .. }
            | Self::Quit(_)
            | Self::TakeMouse(_)
            | Self::Copy(_)
            | Self::File(_)
            | Self::Replay(_)
            | Self::Tour(_)
            | Self::Alert(_) => false,
        }
    }
}
