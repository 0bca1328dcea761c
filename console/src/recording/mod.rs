//! A session as a file: every event of a dashboard with its time, a JSON object a line, the first line saying of what.
//! The state is a function of its events, so playing them gives every screen that was seen, and those that were not.
mod delta;
mod line;
pub mod player;
pub mod reader;
pub mod writer;

use std::{io, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

pub use line::Moment;

use shared::protocol::handshake::Identity;

use crate::{
    effect::Wanted,
    event::{AssignEvent, ClientEvent, Event},
    state::{Assignment, GenerateDefaults, State, node::Link},
    wanted::Asked,
};

/// Version of the format.
pub const FORMAT: u32 = 1;
/// Longest line that is read: a report of a node with all its layers is a tenth of this.
pub const LINE_BYTES_MAX: u64 = 4 << 20;
/// Most nodes of a recording.
pub const NODES_MAX: usize = 1024;

/// The first line: what the dashboard was started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format.
    pub bramble_recording: u32,
    /// Build of the console that wrote it.
    pub build: String,
    /// When the dashboard started, which is the time 0 of the events: milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Addresses of the nodes.
    pub nodes: Vec<String>,
    /// What was wanted of them.
    pub wanted: Option<Wanted>,
    /// What of it was asked for.
    #[serde(default)]
    pub asked: Option<Asked>,
    /// What stood in the prompt box.
    pub prompt: String,
    /// What each generation asked for.
    pub defaults: GenerateDefaults,
    /// The operator's keys, where they are not the usual ones: a key file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub keys: String,
}

/// Why a recording cannot be written or played.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// Nothing is overwritten.
    #[error("{} exists already; name another file", .0.display())]
    Exists(PathBuf),
    /// The file cannot be opened, read or written.
    #[error("{}: {reason}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// The first line is not that of a recording.
    #[error("{} is no recording: {reason}", .path.display())]
    NoRecording {
        /// The file.
        path: PathBuf,
        /// What is wrong with its first line.
        reason: String,
    },
    /// A line says nothing that can have happened.
    #[error("{}, line {line}: {reason}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1, which is the header.
        line: u64,
        /// What is wrong.
        reason: String,
    },
}

/// What a recording begins with that was not begun with the session: what the nodes said last, and what runs.
pub fn opening(state: &State) -> Vec<Event> {
    let mut events = Vec::new();
    for (place, node) in state.nodes.iter().enumerate() {
        if let Some(report) = &node.report {
            let (name, build) = (node.name().to_owned(), report.build.clone());
            let identity = Identity { name, build, numeric: 0, machine: String::new(), cores: Vec::new() };
            events.push(ClientEvent::Connected { node: place, identity });
            events.push(ClientEvent::Report { node: place, report: Box::new(report.clone()) });
        }
        if let Link::Lost { fault, .. } = &node.link {
            events.push(ClientEvent::Disconnected { node: place, fault: fault.clone() });
        }
    }
    if let (Assignment::Running { epoch, reused }, Some(topology)) = (&state.assignment, &state.assigned) {
        let (epoch, reused, topology) = (*epoch, *reused, Box::new(topology.clone()));
        events.push(ClientEvent::Assign(AssignEvent::Running { epoch, topology, reused }));
    }
    events.into_iter().map(Event::Client).collect()
}

/// The time of an event as it is written: whole microseconds, so that what is played has the times that were.
pub fn rounded(time: Duration) -> Duration {
    Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
