//! Whether this node can answer: loading with its progress, ready, degraded, draining, or nothing that serves.
use std::time::Instant;

use axum::http::StatusCode;
use serde_json::{Value, json};
use shared::{telemetry::NodeState, topology::Exclusion};

use super::{Gateway, cluster::Serving, error::ApiError, trace::milliseconds};

/// A remaining time is told once so much is loaded, and only then.
const SHARE_MIN: f64 = 0.05;
/// And after so long.
const SECONDS_MIN: f64 = 1.0;

/// Since when something loads, and how much of it was there then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    since: Instant,
    done: u64,
    total: u64,
}

/// How it stands.
#[derive(Debug)]
pub(super) struct Standing {
    status: &'static str,
    code: StatusCode,
    message: String,
    load: Option<(u64, u64, Option<f64>)>,
    replicas: (usize, usize),
}

impl Gateway {
    /// How this node stands now.
    pub(super) fn standing(&self) -> Standing {
        let serving = self.cluster.serving();
        let count = serving.replicas.iter().filter(|replica| replica.is_serving).count();
        let all = serving.replicas.len();
        let own = self.cluster.own();
        let state = own.as_ref().map(|seen| seen.report.state);
        let load = self.load();
        let (status, code, message) = match (state, count) {
            (Some(NodeState::Draining), _) => (
                "draining",
                StatusCode::SERVICE_UNAVAILABLE,
                "this node drains; ask another or wait until it is back".into(),
            ),
            (_, 1..) if count < all => {
                let away: Vec<&str> = serving
                    .replicas
                    .iter()
                    .filter(|replica| !replica.is_serving)
                    .map(|replica| replica.name.as_str())
                    .collect();
                let message = format!("{count} of {all} replicas serve; look at {}: console status", away.join(", "));
                ("degraded", StatusCode::OK, message)
            }
            (_, 1..) => ("ready", StatusCode::OK, format!("{count} of {all} replicas serve")),
            _ if load.is_some() => {
                ("loading", StatusCode::SERVICE_UNAVAILABLE, "the model is being loaded; wait".into())
            }
            _ if serving.cordon().is_some() => ("cordoned", StatusCode::SERVICE_UNAVAILABLE, cordoned(&serving)),
            (None, _) => {
                ("starting", StatusCode::SERVICE_UNAVAILABLE, "the node has not reported yet; try again".into())
            }
            (_, 0) if all > 0 => {
                let message = "the topology is broken; assign it again: console generate or the dashboard".into();
                ("unavailable", StatusCode::SERVICE_UNAVAILABLE, message)
            }
            _ => {
                let message = "no topology is assigned; assign one: console generate or the dashboard".into();
                ("unavailable", StatusCode::SERVICE_UNAVAILABLE, message)
            }
        };
        Standing { status, code, message, load, replicas: (count, all) }
    }

    /// Bytes loaded and to load on all nodes that load, and the seconds left, if the pace is known.
    fn load(&self) -> Option<(u64, u64, Option<f64>)> {
        let is_loading = |state| matches!(state, NodeState::Loading | NodeState::Prepared | NodeState::Connecting);
        let nodes = self.cluster.nodes();
        let loading: Vec<_> = nodes.iter().filter(|(_, seen)| is_loading(seen.report.state)).collect();
        let mut begun = self.loading.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if loading.is_empty() {
            *begun = None;
            return None;
        }
        let progress = loading.iter().filter_map(|(_, seen)| seen.report.load);
        let (done, total) = progress.fold((0, 0), |(done, total), load| (done + load.done.0, total + load.total.0));
        let now = Instant::now();
        let first =
            begun.filter(|load| load.total == total && load.done <= done).unwrap_or(Load { since: now, done, total });
        *begun = Some(first);
        Some((done, total, remaining(first, done, now)))
    }

    /// Why nothing serves, for a request.
    pub(super) fn not_serving(&self) -> ApiError {
        let standing = self.standing();
        let code = match standing.status {
            "loading" => "model_loading",
            "cordoned" => "cordoned",
            _ => "not_serving",
        };
        let (progress, retry_after) = match standing.load {
            Some((done, total, left)) if total > 0 => {
                let share = 100.0 * done as f64 / total as f64;
                let left_text = left.map_or(String::new(), |left| format!(", about {left:.0} s left"));
                (format!(" ({share:.0} % loaded{left_text})"), left.map_or(5, |left| left.ceil() as u64).clamp(1, 60))
            }
            _ => (String::new(), 5),
        };
        ApiError::not_serving(code, format!("{}{progress}", standing.message), retry_after)
    }
}

/// Who keeps all replicas from taking requests, why, and what ends that.
fn cordoned(serving: &Serving) -> String {
    let Some(Exclusion { node, reason, by, .. }) = serving.cordon() else { return String::new() };
    let why = reason.as_deref().unwrap_or_default();
    format!("{node} is cordoned ({why}; by {by}) and no other replica takes requests: console node uncordon {node}")
}

/// Seconds left at the pace since the load began; `None` while that says little.
fn remaining(load: Load, done: u64, now: Instant) -> Option<f64> {
    let seconds = milliseconds(now.saturating_duration_since(load.since)) / 1e3;
    let share = done as f64 / load.total.max(1) as f64;
    let pace = done.saturating_sub(load.done) as f64 / seconds.max(1e-3);
    (seconds >= SECONDS_MIN && share >= SHARE_MIN && pace > 0.0).then(|| load.total.saturating_sub(done) as f64 / pace)
}

impl Standing {
    /// What /health answers.
    pub(super) fn answer(&self, name: &str, occupancy: super::admission::Occupancy) -> (StatusCode, Value) {
        let progress = self.load.map(|(done, total, left)| {
            let share = shared::latency::ratio(done as f64, total as f64);
            json!({"done_bytes": done, "total_bytes": total, "fraction": share, "eta_seconds": left})
        });
        let object = json!({
            "status": self.status,
            "node": name,
            "message": self.message,
            "loading": progress,
            "replicas": {"serving": self.replicas.0, "all": self.replicas.1},
            "slots": {"all": occupancy.places, "taken": occupancy.taken},
            "queue": occupancy.waiting,
        });
        (self.code, object)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_time_left_is_told_only_when_the_pace_is_known() {
        let since = Instant::now();
        let load = Load { since, done: 100, total: 1100 };
        let at = |ms: u64| since + Duration::from_millis(ms);
        assert_eq!(remaining(load, 300, at(500)), None, "too early");
        assert_eq!(remaining(load, 100, at(5000)), None, "it does not move");
        assert_eq!(remaining(load, 300, at(2000)), Some(8.0));
        assert_eq!(remaining(Load { done: 0, ..load }, 20, at(2000)), None, "too little");
    }
}
