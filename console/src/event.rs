//! Everything that can happen to the dashboard. Plain values: keys are our own, time is the time since the start.
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use crate::client::event::{AssignEvent, ClientEvent, GenerateEvent, OperateEvent, RestartStep};
use crate::{keymap::Key, state::Extent};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// A key was pressed.
    Key(Key),
    /// The terminal has another size; the next frame is laid out anew.
    Resize,
    /// A frame was drawn: how much of what scrolls was on it.
    Drawn(Extent),
    /// Something arrived from the nodes.
    Client(ClientEvent),
    /// Time went on. Sent before any other event, so that what follows happens at `now`.
    Tick {
        /// Time since the dashboard started.
        now: Duration,
    },
    /// Text was pasted.
    Paste(String),
    /// The process was asked to end.
    Signal(Signal),
    /// The mouse was used.
    Mouse(Mouse),
    /// What became of a recording of this session.
    Recording(RecordingEvent),
    /// What became of something else that was asked for, in words.
    Said(String),
}

/// A use of the mouse, in cells from the top left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mouse {
    /// What was done.
    pub kind: MouseKind,
    /// Cells from the left.
    pub x: u16,
    /// Lines from the top.
    pub y: u16,
}

/// What a mouse does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MouseKind {
    /// The left button is pressed.
    Click,
    /// The wheel goes a step up.
    WheelUp,
    /// The wheel goes a step down.
    WheelDown,
}

/// What became of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RecordingEvent {
    /// The session is written.
    Began {
        /// To this file.
        file: String,
    },
    /// It was ended.
    Ended {
        /// The file.
        file: String,
        /// Events in it.
        events: u64,
        /// Events that were left out.
        lost: u64,
    },
    /// It cannot begin, or go on.
    Failed {
        /// Why.
        reason: String,
    },
}

/// What asked the process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// SIGHUP, or the terminal is gone.
    HangUp,
    /// SIGINT from outside (Ctrl-C is a key).
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Signal {
    /// The exit code of a process that ends by it: 128 and the signal's number.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::HangUp => 129,
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}
