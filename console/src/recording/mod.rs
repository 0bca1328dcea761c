//! Recordings of sessions: every event of a dashboard with its time, one JSON object per line; the first line is a
//! header. The state is a function of the events, so replaying them reproduces every screen, including those that were
//! not shown.
mod delta;
pub mod export;
mod line;
pub mod observer;
pub mod player;
pub mod reader;
pub mod writer;

use std::{io, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

pub use line::Moment;

use protocol::handshake::Identity;

use crate::{
    operator::desired::TopologyRequest,
    state::{AssignmentStatus, GenerateDefaults, State, node::Link},
    update::effect::DesiredTopology,
    update::event::{AssignEvent, ClientEvent, Event},
};

/// Version of the file format.
pub const FORMAT: u32 = 1;
/// Longest accepted line in bytes: a report of a node with all its layers takes a tenth of this.
pub const LINE_BYTES_MAX: u64 = 4 << 20;
/// Largest number of nodes in a recording.
pub const NODES_MAX: usize = 1024;

/// The first line: the start parameters of the dashboard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format.
    pub bramble_recording: u32,
    /// Build of the console that wrote it.
    pub build: String,
    /// Start of the dashboard, which is time 0 of the events, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Addresses of the nodes.
    pub nodes: Vec<String>,
    /// The topology that the dashboard should assign, if any.
    pub wanted: Option<DesiredTopology>,
    /// The parts of it that the operator asked for.
    #[serde(default)]
    pub asked: Option<TopologyRequest>,
    /// Initial text of the prompt box.
    pub prompt: String,
    /// Parameters of each generation.
    pub defaults: GenerateDefaults,
    /// The operator's key bindings as a key file, if they differ from the defaults.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub keys: String,
}

/// Why a recording cannot be written or played.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file exists; recordings never overwrite files.
    #[error("{} already exists; choose another file name", .0.display())]
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
    #[error("{} is not a recording: {reason}", .path.display())]
    NoRecording {
        /// The file.
        path: PathBuf,
        /// The problem with its first line.
        reason: String,
    },
    /// A line is invalid.
    #[error("{}, line {line}: {reason}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, starting at 1 for the header.
        line: u64,
        /// The problem with the line.
        reason: String,
    },
}

/// The initial events of a recording that starts during a session: the last report of each node, the running
/// topology, and the step of a tour.
pub fn opening(state: &State) -> Vec<Event> {
    let mut events = Vec::new();
    for (place, node) in state.cluster.nodes.iter().enumerate() {
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
    if let (AssignmentStatus::Running { epoch, reused }, Some(topology)) =
        (&state.cluster.assignment, &state.cluster.assigned)
    {
        let (epoch, reused, topology) = (*epoch, *reused, Box::new(topology.clone()));
        events.push(ClientEvent::Assign(AssignEvent::Running { epoch, topology, reused }));
    }
    let tour = state.screen.tour.map(Event::Tour);
    events.into_iter().map(Event::Client).chain(tour).collect()
}

/// The time of an event as it is written, in whole microseconds, so that a replay has exactly the recorded times.
pub fn rounded(time: Duration) -> Duration {
    Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
