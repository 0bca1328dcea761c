//! Everything that can happen to the dashboard, as plain values: keys use the console's own type, times count from the
//! start.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::client::conversations::keeper::KeeperNews;
pub use crate::client::event::{AssignEvent, ClientEvent, GenerateEvent, OperateEvent, RestartStep};
use crate::{
    keymap::Key,
    state::{Extent, tour::Tour},
};

/// An input of the dashboard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// A key was pressed.
    Key(Key),
    /// The terminal was resized; the next frame is laid out again.
    Resize,
    /// A frame was rendered; the extent of its scrollable parts.
    Drawn(Extent),
    /// Something arrived from the nodes.
    Client(ClientEvent),
    /// Time advanced. Sent before any other event, so that the events after it happen at `now`.
    Tick {
        /// Time since the dashboard started.
        now: Duration,
    },
    /// Text was pasted.
    Paste(String),
    /// The process received a signal.
    Signal(Signal),
    /// The mouse was used.
    Mouse(Mouse),
    /// Progress of a recording of this session.
    Recording(RecordingEvent),
    /// The guided tour is at this step.
    Tour(Tour),
    /// The stored conversations, or why one is not stored in its file. Not part of a recording: they are private.
    #[serde(skip)]
    Conversations(KeeperNews),
    /// The outcome of another request, as a message.
    Said(String),
}

/// A use of the mouse, in cells from the top left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mouse {
    /// The kind of use.
    pub kind: MouseKind,
    /// Cells from the left.
    pub x: u16,
    /// Lines from the top.
    pub y: u16,
}

/// A mouse action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MouseKind {
    /// The left button is pressed.
    Click,
    /// The wheel moved one step up.
    WheelUp,
    /// The wheel moved one step down.
    WheelDown,
}

/// Progress of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RecordingEvent {
    /// The recording started.
    Began {
        /// The file.
        file: String,
    },
    /// The recording ended.
    Ended {
        /// The file.
        file: String,
        /// Events in it.
        events: u64,
        /// Events dropped because the disk was too slow.
        lost: u64,
    },
    /// The recording could not start or continue.
    Failed {
        /// Why.
        reason: String,
    },
}

/// The signal that the process received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// SIGHUP, or the terminal is gone.
    HangUp,
    /// SIGINT sent by another process (Ctrl-C arrives as a key).
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Signal {
    /// The exit code after this signal: 128 plus its number.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::HangUp => 129,
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}
