//! Turns changes into events: compares a node with its last observed state and reports each difference once.
use std::time::Duration;

use common::ids::Epoch;
use telemetry::{Finding, Health, NodeState, Severity};
use topology::Topology;

use crate::state::{
    AssignmentStatus, State,
    alerts::AlertKind,
    lateness::{ranks, straggler},
    node::{Link, NodeStatus, STALE_AFTER},
    request::Phase,
    status::{ClusterStatus, status},
};

/// A finding or straggler counts as gone when it has not been seen for this long; flapping is reported once.
const GONE_AFTER: Duration = Duration::from_secs(10);
/// Codes of findings that slow a node down at once.
const THROTTLES: [&str; 2] = ["throttled", "under_voltage"];
/// Interval between two checks for a straggler.
const LATE_STEP: Duration = Duration::from_secs(1);
/// Maximum number of findings kept per node.
const FINDINGS_MAX: usize = 32;

/// Whether an operator, or a vote, keeps requests away from a node, as last observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SeenMark {
    /// No report has it yet.
    #[default]
    Unknown,
    Included,
    Cordoned,
    Excluded,
}

/// The last observed state of a node.
#[derive(Clone, Debug, Default, PartialEq)]
struct SeenNode {
    is_open: bool,
    was_refused: bool,
    is_stale: bool,
    state: Option<NodeState>,
    instance: Option<u64>,
    mark: SeenMark,
    findings: Vec<(&'static str, Duration)>,
}

/// The last observed state of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Watch {
    nodes: Vec<SeenNode>,
    /// The topology of the last event about one, and its epoch.
    topology: Option<(Epoch, Topology)>,
    assignment: Option<AssignmentStatus>,
    has_failed: bool,
    late: Option<(usize, Duration)>,
    late_checked: Duration,
    has_served: bool,
    is_broken: bool,
}

/// Reports changes of a node.
pub fn observe_node(state: &mut State, place: usize) {
    let mut watch = std::mem::take(&mut state.journal.watch);
    watch.nodes.resize(state.cluster.nodes.len(), SeenNode::default());
    if let Some(seen) = watch.nodes.get_mut(place) {
        link(state, place, seen);
        mark(state, place, seen);
        if state.cluster.nodes[place].is_open() {
            reported(state, place, seen);
            findings(state, place, seen);
        }
    }
    state.journal.watch = watch;
}

/// Reports changes of the cluster: assignments, topologies, requests of this console, stragglers.
pub fn observe_cluster(state: &mut State) {
    let mut watch = std::mem::take(&mut state.journal.watch);
    assignment(state, &mut watch);
    service(state, &mut watch);
    let failed = match &state.generation.request.phase {
        Phase::Failed(fault) => Some(format!("request failed: {fault}")),
        _ => None,
    };
    if let Some(text) = failed.as_ref().filter(|_| !watch.has_failed) {
        state.journal.events.push(state.now, Severity::Error, None, text);
    }
    watch.has_failed = failed.is_some();
    if state.now.saturating_sub(watch.late_checked) >= LATE_STEP {
        watch.late_checked = state.now;
        lateness(state, &mut watch);
    }
    state.journal.watch = watch;
}

/// Reports nodes that have fallen silent since the last check. Only the passing of time causes this change.
pub fn observe_silence(state: &mut State) {
    let mut watch = std::mem::take(&mut state.journal.watch);
    watch.nodes.resize(state.cluster.nodes.len(), SeenNode::default());
    for (place, seen) in watch.nodes.iter_mut().enumerate() {
        let is_stale = matches!(state.cluster.nodes[place].status(state.now), NodeStatus::Stale(_));
        if is_stale && !seen.is_stale {
            let text = format!("sent nothing for {} s", STALE_AFTER.as_secs());
            state.journal.events.push(state.now, Severity::Warning, Some(place), &text);
        }
        seen.is_stale = is_stale;
    }
    state.journal.watch = watch;
}

fn link(state: &mut State, place: usize, seen: &mut SeenNode) {
    let say =
        |state: &mut State, severity, text: &str| state.journal.events.push(state.now, severity, Some(place), text);
    match state.cluster.nodes[place].link.clone() {
        Link::Open if !seen.is_open => {
            say(state, Severity::Note, "connected");
            if seen.was_refused {
                alert(state, AlertKind::NodeReturned, Some(place), "answers again");
            }
            (seen.is_open, seen.was_refused) = (true, false);
        }
        Link::Lost { fault, .. } if seen.is_open => {
            let text = format!("connection lost: {}", fault.kind);
            say(state, Severity::Error, &text);
            alert(state, AlertKind::NodeLost, Some(place), &text);
            *seen = SeenNode { instance: seen.instance, mark: seen.mark, was_refused: true, ..SeenNode::default() };
        }
        Link::Lost { fault, .. } if !seen.was_refused => {
            say(state, Severity::Warning, &format!("does not answer: {}", fault.kind));
            seen.was_refused = true;
        }
        Link::Connecting | Link::Open | Link::Lost { .. } => {}
    }
    let was_stale = std::mem::replace(
        &mut seen.is_stale,
        matches!(state.cluster.nodes[place].status(state.now), NodeStatus::Stale(_)),
    );
    if was_stale && !seen.is_stale && seen.is_open {
        say(state, Severity::Note, "reports again");
    }
}

/// Reports exclusions and cordons, and their ends. Those in the first reports are no news: they may be days old.
fn mark(state: &mut State, place: usize, seen: &mut SeenNode) {
    let node = &state.cluster.nodes[place];
    // For a node that does not answer, the reports of the others have it.
    let reporters = if node.is_open() { std::slice::from_ref(node) } else { state.cluster.nodes.as_slice() };
    if reporters.iter().all(|node| node.report.is_none()) {
        return;
    }
    let entry = state.cluster.exclusion(node);
    let mark = match entry {
        None => SeenMark::Included,
        Some(entry) if entry.is_cordon => SeenMark::Cordoned,
        Some(_) => SeenMark::Excluded,
    };
    let before = std::mem::replace(&mut seen.mark, mark);
    if before == SeenMark::Unknown || before == mark {
        return;
    }
    let why = entry.map(|entry| format!("{} ({})", entry.reason.as_deref().unwrap_or_default(), entry.by));
    let why = why.unwrap_or_default();
    let (severity, text) = match (before, mark) {
        (_, SeenMark::Excluded) => (Severity::Warning, format!("excluded: {why}")),
        (_, SeenMark::Cordoned) => (Severity::Warning, format!("cordoned: {why}")),
        (SeenMark::Cordoned, _) => (Severity::Note, "uncordoned".to_owned()),
        _ => (Severity::Note, "included again".to_owned()),
    };
    state.journal.events.push(state.now, severity, Some(place), &text);
    // A cordon is the operator's own, and its node stays in the topology.
    if mark == SeenMark::Excluded {
        alert(state, AlertKind::NodeExcluded, Some(place), &text);
    }
}

fn reported(state: &mut State, place: usize, seen: &mut SeenNode) {
    let Some(report) = &state.cluster.nodes[place].report else { return };
    // The start or end of a request is not an event of the node.
    let now_is = if report.state == NodeState::Serving { NodeState::Ready } else { report.state };
    let (instance, fault) = (report.instance, report.fault.clone());
    let mut news = Vec::new();
    if seen.instance.replace(instance).is_some_and(|before| before != instance) {
        news.push((Severity::Warning, "the daemon was started again".to_owned()));
    }
    if seen.state.replace(now_is) != Some(now_is) {
        news.push(match fault.filter(|_| now_is == NodeState::Faulted) {
            Some(fault) => (Severity::Error, format!("faulted: {fault}")),
            None => (Severity::Note, format!("is {}", now_is.name())),
        });
    }
    for (severity, text) in news {
        state.journal.events.push(state.now, severity, Some(place), &text);
    }
}

fn findings(state: &mut State, place: usize, seen: &mut SeenNode) {
    let Some(report) = &state.cluster.nodes[place].report else { return };
    let now = state.now;
    // Notes are ignored: most machines have a governor that may lower the clock.
    let found: Vec<Finding> =
        report.health.findings().into_iter().filter(|finding| finding.severity > Severity::Note).collect();
    let (mut news, mut throttles) = (Vec::new(), Vec::new());
    for finding in found.iter().take(FINDINGS_MAX) {
        match seen.findings.iter_mut().find(|(code, _)| *code == finding.code) {
            Some((_, at)) => *at = now,
            None => {
                seen.findings.push((finding.code, now));
                if THROTTLES.contains(&finding.code) {
                    throttles.push(finding.meaning.clone());
                }
                news.push((finding.severity, format!("{}; fix: {}", finding.meaning, finding.fix)));
            }
        }
    }
    seen.findings.retain(|(code, at)| {
        let is_gone = now.saturating_sub(*at) >= GONE_AFTER;
        if is_gone {
            news.push((Severity::Note, format!("no longer: {}", code.replace('_', " "))));
        }
        !is_gone
    });
    for (severity, text) in news {
        state.journal.events.push(now, severity, Some(place), &text);
    }
    for text in throttles {
        alert(state, AlertKind::Throttled, Some(place), &text);
    }
}

/// Adds an alert about a node or the whole cluster. Nodes that a rolling restart stops are expected to be away.
fn alert(state: &mut State, kind: AlertKind, place: Option<usize>, text: &str) {
    if state.cluster.rolling_runs() && matches!(kind, AlertKind::NodeLost | AlertKind::NodeReturned) {
        return;
    }
    let node = place.and_then(|place| state.cluster.nodes.get(place)).map_or("", |node| node.name());
    let unix_ms = state.clock_ms.saturating_add(u64::try_from(state.now.as_millis()).unwrap_or(u64::MAX));
    state.journal.alerts.push(kind, node, text, state.now, unix_ms);
}

/// Alerts when the running topology stops serving, and when one serves again.
fn service(state: &mut State, watch: &mut Watch) {
    match status(state) {
        // A cluster that has not served since the start of the dashboard may still be connecting.
        ClusterStatus::Broken(name) if watch.has_served && !watch.is_broken => {
            let text = format!("the topology does not serve: {name}");
            watch.is_broken = true;
            alert(state, AlertKind::ClusterBroken, None, &text);
        }
        ClusterStatus::Ready | ClusterStatus::Serving => {
            watch.has_served = true;
            if std::mem::take(&mut watch.is_broken) {
                alert(state, AlertKind::ClusterServes, None, "the cluster serves again");
            }
        }
        _ => {}
    }
}

fn assignment(state: &mut State, watch: &mut Watch) {
    if let Some((topology, epoch)) = state.cluster.topology()
        && is_news(&state.cluster.assignment, watch, topology, epoch)
    {
        let (layout, model, count) = (topology.layout, &topology.model, topology.members.len());
        let text = format!("epoch {epoch}: {layout} of {model} on {count} nodes");
        watch.topology = Some((epoch, topology.clone()));
        state.journal.events.push(state.now, Severity::Note, None, &text);
    }
    if watch.assignment.as_ref() == Some(&state.cluster.assignment) {
        return;
    }
    let news = match &state.cluster.assignment {
        AssignmentStatus::Failed(fault) => Some((Severity::Error, format!("not assigned: {fault}"))),
        AssignmentStatus::Loading => Some((Severity::Note, "an assignment from here begins".to_owned())),
        AssignmentStatus::Running { reused: false, .. } => Some((Severity::Note, "assigned from here".to_owned())),
        AssignmentStatus::Nothing
        | AssignmentStatus::WaitsForNodes
        | AssignmentStatus::Committing
        | AssignmentStatus::Running { reused: true, .. } => None,
    };
    watch.assignment = Some(state.cluster.assignment.clone());
    if let Some((severity, text)) = news {
        state.journal.events.push(state.now, severity, None, &text);
    }
}

/// Whether this topology is news. A later epoch of the same one is so only if this console has assigned it again:
/// otherwise an assignment may have raised the epoch and failed.
fn is_news(assignment: &AssignmentStatus, watch: &Watch, topology: &Topology, epoch: Epoch) -> bool {
    let Some((before, known)) = &watch.topology else { return true };
    *before < epoch && (known != topology || *assignment == AssignmentStatus::Running { epoch, reused: false })
}

fn lateness(state: &mut State, watch: &mut Watch) {
    let rows = if state.layers_move() { ranks(state) } else { Vec::new() };
    let late = straggler(&rows).and_then(|row| Some((row.node?, row.late)));
    match (late, watch.late) {
        (Some((node, share)), Some((before, _))) if node != before => say_late(state, watch, node, share),
        (Some((node, share)), None) => say_late(state, watch, node, share),
        (Some((node, _)), Some(_)) => watch.late = Some((node, state.now)),
        (None, Some((node, at))) if state.now.saturating_sub(at) >= GONE_AFTER => {
            state.journal.events.push(state.now, Severity::Note, Some(node), "is no longer the straggler");
            watch.late = None;
        }
        (None, _) => {}
    }
}

fn say_late(state: &mut State, watch: &mut Watch, node: usize, share: f64) {
    let health = |place: usize| state.cluster.nodes[place].report.as_ref().map(|report| &report.health);
    let members = (0..state.cluster.nodes.len())
        .filter(|place| *place != node && state.cluster.member_of(&state.cluster.nodes[*place]).is_some());
    let others: Vec<&Health> = members.filter_map(health).collect();
    let cause = health(node).and_then(|health| health.cause_beside(&others)).map(|cause| format!("; {cause}"));
    let text = format!("delays the others: {:.0} % of their time{}", share * 100.0, cause.unwrap_or_default());
    state.journal.events.push(state.now, Severity::Warning, Some(node), &text);
    watch.late = Some((node, state.now));
}

#[cfg(test)]
mod tests;
