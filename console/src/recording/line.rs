//! Encodes events as lines and decodes them. Reports are deltas, so both sides keep the last report of each node.
//! The decoder validates every line: no event names an unknown node or has an unreasonable size.
use std::time::Duration;

use serde::{Deserialize, Serialize};
use telemetry::NodeReport;
use topology::{Exclusions, Topology};

use super::{NODES_MAX, delta::ReportDelta, rounded};
use crate::update::event::{AssignEvent, ClientEvent, Event, GenerateEvent, OperateEvent};

/// Largest line, cell or position number in the extent of a rendered frame.
const EXTENT_MAX: u64 = 1 << 24;

/// A moment of a session: time advanced to `at`, and then an event happened, if any.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// Time since the start of the dashboard.
    #[serde(rename = "us", serialize_with = "microseconds")]
    pub at: Duration,
    /// The event, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<Event>,
}

fn microseconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_micros() as u64)
}

/// A line in the file format.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// Microseconds since the start of the dashboard.
    us: u64,
    /// The event, unless it is a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    event: Option<Event>,
    /// The index of the node that sent the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<usize>,
    /// The changed fields of the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    report: Option<ReportDelta>,
    /// Number of events that were dropped before this line because the disk was too slow.
    #[serde(default, skip_serializing_if = "is_zero")]
    lost: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Encodes events as lines.
#[derive(Debug)]
pub(super) struct Encoder {
    reports: Vec<Option<NodeReport>>,
    lost: u64,
}

impl Encoder {
    pub(super) fn new(nodes: usize) -> Self {
        Self { reports: vec![None; nodes], lost: 0 }
    }

    /// A moment as a line, including the line break.
    ///
    /// # Errors
    /// The moment cannot be represented in JSON.
    pub(super) fn line(&mut self, at: Duration, event: Option<&Event>) -> serde_json::Result<Vec<u8>> {
        let us = rounded(at).as_micros() as u64;
        let mut written = Written { us, lost: std::mem::take(&mut self.lost), ..Written::default() };
        match event {
            Some(Event::Client(ClientEvent::Report { node, report })) if *node < self.reports.len() => {
                let last = &mut self.reports[*node];
                written.node = Some(*node);
                written.report = Some(ReportDelta::between(last.as_ref(), report));
                *last = Some(report.as_ref().clone());
            }
            Some(Event::Client(ClientEvent::Planned(_)) | Event::Conversations(_)) => {}
            other => written.event = other.cloned(),
        }
        let mut line = serde_json::to_vec(&written)?;
        line.push(b'\n');
        Ok(line)
    }

    /// Records that lines were dropped: the next reports are complete, and the next line has the number of dropped
    /// lines.
    pub(super) fn lost(&mut self, lines: u64) {
        self.lost += lines;
        self.reports.fill(None);
    }
}

/// Decodes lines into events.
#[derive(Clone, Debug)]
pub(super) struct Decoder {
    reports: Vec<Option<NodeReport>>,
    at: Duration,
    /// Number of events that the writer dropped so far.
    pub(super) lost: u64,
}

impl Decoder {
    pub(super) fn new(nodes: usize) -> Self {
        Self { reports: vec![None; nodes.min(NODES_MAX)], at: Duration::ZERO, lost: 0 }
    }

    /// The moment in a line.
    ///
    /// # Errors
    /// The reason why the line is invalid.
    pub(super) fn moment(&mut self, line: &[u8]) -> Result<Moment, String> {
        let written: Written = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let at = Duration::from_micros(written.us);
        if at < self.at {
            return Err(format!("the time decreases from {:?} to {at:?}", self.at));
        }
        if written.lost > 0 {
            self.lost = self.lost.saturating_add(written.lost);
            self.reports.fill(None);
        }
        let event = match (written.event, written.node, written.report) {
            (event, None, None) => event,
            (None, Some(node), Some(delta)) => Some(self.report(node, delta)?),
            _ => return Err("expected either an event, or a node and its report".to_owned()),
        };
        if let Some(event) = &event {
            self.check(event)?;
        }
        self.at = at;
        Ok(Moment { at, event })
    }

    fn report(&mut self, node: usize, delta: ReportDelta) -> Result<Event, String> {
        self.place(node)?;
        let last = self.reports[node].take();
        let report = delta.apply(last).map_err(|field| format!("the first report of node {node} has no {field}"))?;
        self.reports[node] = Some(report.clone());
        Ok(Event::Client(ClientEvent::Report { node, report: Box::new(report) }))
    }

    fn place(&self, node: usize) -> Result<(), String> {
        let count = self.reports.len();
        if node < count {
            Ok(())
        } else {
            Err(format!("node {node} is out of range: nodes are 0 to less than {count}"))
        }
    }

    /// Checks the invariants that a live session's event source guarantees.
    fn check(&self, event: &Event) -> Result<(), String> {
        match event {
            Event::Drawn(extent) => {
                let extent = serde_json::to_value(extent).map_err(|error| error.to_string())?;
                if is_within(&extent, EXTENT_MAX) { Ok(()) } else { Err("the frame is too large".to_owned()) }
            }
            Event::Client(event) => self.check_client(event),
            _ => Ok(()),
        }
    }

    fn check_client(&self, event: &ClientEvent) -> Result<(), String> {
        match event {
            ClientEvent::Connected { node, .. }
            | ClientEvent::Disconnected { node, .. }
            | ClientEvent::Log { node, .. }
            | ClientEvent::Models { node, .. } => self.place(*node),
            ClientEvent::Generate(GenerateEvent::Moved { topology, head, .. }) => {
                check_topology(topology)?;
                let count = topology.members.len();
                if head.index() < count { Ok(()) } else { Err(format!("head {} of {count} members", head.0)) }
            }
            ClientEvent::Report { node, report } => {
                self.place(*node)?;
                report.check()
            }
            ClientEvent::Assign(event) => self.check_assign(event),
            ClientEvent::Operate(event) => match event {
                OperateEvent::Restart { node, step: _ } => self.place(*node),
                OperateEvent::Rolled(rolling) => rolling.check(),
                OperateEvent::Said(entry) => Exclusions(vec![entry.clone()]).check().map_err(|error| error.to_string()),
                OperateEvent::Excluded { running: Some((_, topology)), .. } => check_topology(topology),
                OperateEvent::Assign(event) => self.check_assign(event),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn check_assign(&self, event: &AssignEvent) -> Result<(), String> {
        match event {
            AssignEvent::Loading { node, .. } => self.place(*node),
            AssignEvent::Running { topology, .. } => check_topology(topology),
            AssignEvent::Committing | AssignEvent::Failed(_) | AssignEvent::Pauses { .. } => Ok(()),
        }
    }
}

fn check_topology(topology: &Topology) -> Result<(), String> {
    topology.check().map_err(|error| error.to_string())
}

/// Whether all numbers in a value are at most `most`.
fn is_within(value: &serde_json::Value, most: u64) -> bool {
    match value {
        serde_json::Value::Number(number) => number.as_u64().is_some_and(|number| number <= most),
        serde_json::Value::Array(values) => values.iter().all(|value| is_within(value, most)),
        serde_json::Value::Object(values) => values.values().all(|value| is_within(value, most)),
        _ => true,
    }
}
