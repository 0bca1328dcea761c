//! Whether this node can answer: loading with its progress, ready, degraded, draining, cordoned or unavailable.
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use common::ids::ModelRoots;
use serde_json::{Value, json};
use telemetry::NodeState;
use topology::Exclusion;

use super::{
    Gateway,
    cluster::{Replica, ServedModel},
    error::ApiError,
    models::concerns,
    trace::milliseconds,
};

/// Share of the load that must be done before the remaining time is reported.
const SHARE_MIN: f64 = 0.05;
/// Time that must have passed before it is reported.
const SECONDS_MIN: f64 = 1.0;
/// Between two requests further apart than this, one load may have ended and another one begun.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// When a load was first seen, and how much of it was done then; when it was last seen, and how much was done then.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadProgress {
    since: Instant,
    done: u64,
    total: u64,
    latest: Instant,
    done_latest: u64,
}

impl LoadProgress {
    /// The load that was seen before, if it can be the same one; otherwise a load that begins now.
    fn after(before: Option<Self>, done: u64, total: u64, now: Instant) -> Self {
        let same = before.filter(|load| {
            let is_recent = now.saturating_duration_since(load.latest) <= PAUSE_MAX;
            load.total == total && load.done_latest <= done && is_recent
        });
        let first = same.unwrap_or(Self { since: now, done, total, latest: now, done_latest: done });
        Self { latest: now, done_latest: done, ..first }
    }
}

/// Serving status of this node.
#[derive(Debug)]
pub(super) struct ServingStatus {
    status: &'static str,
    code: StatusCode,
    message: String,
    load: Option<(u64, u64, Option<f64>)>,
    replicas: (usize, usize),
}

impl Gateway {
    /// Current status of this node for one model, or for all.
    pub(super) fn standing(&self, of: Option<&ModelRoots>) -> ServingStatus {
        let mut models = self.cluster.models();
        models.retain(|model| concerns(of, &model.topology.roots()));
        let replicas: Vec<&Replica> = models.iter().flat_map(|model| &model.replicas).collect();
        let count = replicas.iter().filter(|replica| replica.is_serving).count();
        let all = replicas.len();
        let own = self.cluster.own();
        let state = own.as_ref().map(|seen| seen.report.state);
        let load = self.load(of);
        let (status, code, message) = match (state, count) {
            (Some(NodeState::Draining), _) => (
                "draining",
                StatusCode::SERVICE_UNAVAILABLE,
                "this node is draining; use another node or wait until it is back".into(),
            ),
            (_, 1..) if count < all => {
                let away: Vec<&str> = replicas
                    .iter()
                    .filter(|replica| !replica.is_serving)
                    .map(|replica| replica.name.as_str())
                    .collect();
                let message = format!("{count} of {all} replicas serve; check {}: console status", away.join(", "));
                ("degraded", StatusCode::OK, message)
            }
            (_, 1..) => ("ready", StatusCode::OK, format!("{count} of {all} replicas serve")),
            _ if load.is_some() => ("loading", StatusCode::SERVICE_UNAVAILABLE, "the model is loading; wait".into()),
            _ if models.iter().any(|model| model.cordon().is_some()) => {
                ("cordoned", StatusCode::SERVICE_UNAVAILABLE, cordoned(&models))
            }
            (None, _) => {
                ("starting", StatusCode::SERVICE_UNAVAILABLE, "the node has not reported yet; try again".into())
            }
            (_, 0) if all > 0 => {
                let message =
                    "the topology is broken; `console status` names the member that is missing or fails".into();
                ("unavailable", StatusCode::SERVICE_UNAVAILABLE, message)
            }
            _ => {
                let message = "no topology is assigned; assign one with `console generate` or the dashboard".into();
                ("unavailable", StatusCode::SERVICE_UNAVAILABLE, message)
            }
        };
        ServingStatus { status, code, message, load, replicas: (count, all) }
    }

    /// Bytes loaded and bytes to load on all loading nodes, and the estimated seconds left.
    fn load(&self, of: Option<&ModelRoots>) -> Option<(u64, u64, Option<f64>)> {
        let mut loading = self.cluster.nodes();
        loading.retain(|(_, seen)| {
            let loads = matches!(seen.report.state, NodeState::Loading | NodeState::Prepared | NodeState::Connecting);
            let model = seen.report.topology.as_ref().map(|(topology, ..)| topology.roots());
            loads && model.is_none_or(|model| concerns(of, &model))
        });
        let mut begun = self.loading.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if loading.is_empty() {
            *begun = None;
            return None;
        }
        let progress = loading.iter().filter_map(|(_, seen)| seen.report.load);
        let (done, total) = progress.fold((0, 0), |(done, total), load| (done + load.done.0, total + load.total.0));
        let now = Instant::now();
        let load = LoadProgress::after(*begun, done, total, now);
        *begun = Some(load);
        Some((done, total, remaining(load, done, now)))
    }

    /// The error for requests while nothing serves this model, or any.
    pub(super) fn not_serving(&self, of: Option<&ModelRoots>) -> ApiError {
        let standing = self.standing(of);
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

/// Message about the cordon that keeps all replicas from taking requests, and how to end it.
fn cordoned(models: &[ServedModel]) -> String {
    let cordon = models.iter().find_map(ServedModel::cordon);
    let Some(Exclusion { node, reason, by, .. }) = cordon else { return String::new() };
    let why = reason.as_deref().unwrap_or_default();
    format!(
        "{node} is cordoned ({why}; by {by}) and no other replica takes requests; \
        run `console node include {node}`"
    )
}

/// Estimated seconds left at the rate since the load began; `None` while the estimate is unreliable.
fn remaining(load: LoadProgress, done: u64, now: Instant) -> Option<f64> {
    let seconds = milliseconds(now.saturating_duration_since(load.since)) / 1e3;
    let share = done as f64 / load.total.max(1) as f64;
    let pace = done.saturating_sub(load.done) as f64 / seconds.max(1e-3);
    (seconds >= SECONDS_MIN && share >= SHARE_MIN && pace > 0.0).then(|| load.total.saturating_sub(done) as f64 / pace)
}

impl ServingStatus {
    /// The response of /health.
    pub(super) fn answer(&self, name: &str, occupancy: super::admission::Occupancy) -> (StatusCode, Value) {
        let progress = self.load.map(|(done, total, left)| {
            let share = common::latency::ratio(done as f64, total as f64);
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
    use super::*;

    #[test]
    fn time_left_is_reported_only_once_the_rate_is_known() {
        let since = Instant::now();
        let load = LoadProgress::after(None, 100, 1100, since);
        let at = |ms: u64| since + Duration::from_millis(ms);
        assert_eq!(remaining(load, 300, at(500)), None, "too early");
        assert_eq!(remaining(load, 100, at(5000)), None, "no progress");
        assert_eq!(remaining(load, 300, at(2000)), Some(8.0));
        assert_eq!(remaining(LoadProgress { done: 0, ..load }, 20, at(2000)), None, "too little");
    }

    #[test]
    fn rate_of_an_earlier_load_is_not_used_for_the_next_one() {
        let since = Instant::now();
        let at = |seconds: u64| since + Duration::from_secs(seconds);
        let load = LoadProgress::after(Some(LoadProgress::after(None, 0, 1000, since)), 500, 1000, at(10));
        assert_eq!((load.since, load.done), (since, 0), "the same load");
        let next = LoadProgress::after(Some(load), 100, 1000, at(40));
        assert_eq!((next.since, next.done), (at(40), 100), "less is done: it is another one");
        let next = LoadProgress::after(Some(load), 600, 1000, at(80));
        assert_eq!((next.since, next.done), (at(80), 600), "it has not been seen for long");
        let next = LoadProgress::after(Some(load), 600, 1100, at(20));
        assert_eq!((next.since, next.done), (at(20), 600), "another size");
    }
}
