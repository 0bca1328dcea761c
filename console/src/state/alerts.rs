//! Alerts: the few events that an operator wants to hear about while looking elsewhere. They are derived from the events
//! of the cluster, limited in number, and delivered by the driver as the preferences specify.
use std::time::Duration;

use serde::Serialize;
use telemetry::Severity;

use crate::state::clean::clean_line;

/// The same alert about the same node is given once in this time.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Most alerts that wait for the driver.
const WAITING_MAX: usize = 16;
/// Most kinds and nodes whose last alert is remembered.
const GIVEN_MAX: usize = 256;

/// How alerts are delivered; nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlertPreferences {
    /// Ring the terminal's bell.
    pub bell: bool,
    /// Ask the terminal for a desktop notification (OSC 9).
    pub desktop: bool,
    /// Run this command in a shell, with the alert as JSON on standard input and in the environment.
    pub command: Option<String>,
    /// Send the alert as JSON to this URL.
    pub url: Option<String>,
}

impl AlertPreferences {
    /// Whether any alert is delivered.
    pub fn is_on(&self) -> bool {
        self.bell || self.desktop || self.command.is_some() || self.url.is_some()
    }
}

/// What an alert is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlertKind {
    /// The connection to a node is lost.
    NodeLost,
    /// A lost node answers again.
    NodeReturned,
    /// A node is throttled, or its supply is too weak.
    Throttled,
    /// A node was excluded, by an operator or as a straggler.
    NodeExcluded,
    /// The running topology does not serve any more.
    ClusterBroken,
    /// A topology serves again.
    ClusterServes,
}

impl AlertKind {
    /// Its severity.
    pub fn severity(self) -> Severity {
        match self {
            Self::NodeLost | Self::ClusterBroken => Severity::Error,
            Self::Throttled | Self::NodeExcluded => Severity::Warning,
            Self::NodeReturned | Self::ClusterServes => Severity::Note,
        }
    }

    /// The name in JSON and in the environment of the command.
    pub fn name(self) -> &'static str {
        match self {
            Self::NodeLost => "node-lost",
            Self::NodeReturned => "node-returned",
            Self::Throttled => "throttled",
            Self::NodeExcluded => "node-excluded",
            Self::ClusterBroken => "cluster-broken",
            Self::ClusterServes => "cluster-serves",
        }
    }
}

/// An alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// What it is about.
    pub kind: AlertKind,
    /// The node's name; empty if it concerns the whole cluster.
    pub node: String,
    /// One sentence, safe to print.
    pub text: String,
    /// When it happened, in milliseconds since 1970.
    pub unix_ms: u64,
}

impl Alert {
    /// The alert as a line of JSON.
    pub fn json(&self) -> String {
        serde_json::json!({
            "kind": self.kind.name(),
            "severity": self.kind.severity().name(),
            "node": self.node,
            "text": self.text,
            "unix_ms": self.unix_ms,
        })
        .to_string()
    }

    /// The alert as one sentence that names the node.
    pub fn sentence(&self) -> String {
        if self.node.is_empty() { self.text.clone() } else { format!("{}: {}", self.node, self.text) }
    }
}

/// Alerts that wait for the driver, and when each was given last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Alerts {
    waiting: Vec<Alert>,
    given: Vec<(AlertKind, String, Duration)>,
}

impl Alerts {
    /// Adds an alert, unless the same one was given a moment ago or too many are waiting. `now` is the time since the
    /// start of the dashboard, and `unix_ms` the wall clock.
    pub fn push(&mut self, kind: AlertKind, node: &str, text: &str, now: Duration, unix_ms: u64) {
        self.given.retain(|(_, _, at)| now.saturating_sub(*at) < AGAIN_AFTER);
        let is_repeated = self.given.iter().any(|(known, name, _)| *known == kind && name == node);
        if is_repeated || self.waiting.len() >= WAITING_MAX || self.given.len() >= GIVEN_MAX {
            return;
        }
        self.given.push((kind, node.to_owned(), now));
        self.waiting.push(Alert { kind, node: clean_line(node), text: clean_line(text), unix_ms });
    }

    /// Takes the alerts that wait.
    pub fn take(&mut self) -> Vec<Alert> {
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flapping_node_alerts_once_a_minute_and_the_queue_is_bounded() {
        let mut alerts = Alerts::default();
        for second in 0..61 {
            alerts.push(AlertKind::NodeLost, "pi1", "connection lost", Duration::from_secs(second), 1000 * second);
        }
        let given = alerts.take();
        assert_eq!(given.iter().map(|alert| alert.unix_ms).collect::<Vec<_>>(), [0, 60_000]);
        for node in 0..1000 {
            alerts.push(AlertKind::NodeLost, &format!("pi{node}"), "x\u{1b}]9;y\u{7}", Duration::from_secs(70), 0);
        }
        let given = alerts.take();
        assert_eq!(given.len(), WAITING_MAX);
        assert!(!given[0].json().contains("u001b") && !given[0].sentence().contains('\u{1b}'), "{}", given[0].json());
    }
}
