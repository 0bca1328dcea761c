//! Events from the nodes: sessions, reports, assignments, generations and planner answers.
use telemetry::NodeReport;

use super::{
    assign::{assign, on_planned},
    generate, models, operate,
};
use crate::{
    state::{
        AssignmentStatus, State, clean::clean_line, node::NodeStatus, plan::Planning, request::Phase, sync, watch,
    },
    update::{
        effect::Effect,
        event::{AssignEvent, ClientEvent},
    },
};

/// Whether a report changes nothing on the screen. Only the node's clock advances by itself.
pub(super) fn says_nothing_new(state: &State, node: usize, report: &NodeReport) -> bool {
    let Some(node) = state.cluster.nodes.get(node) else { return true };
    let Some(before) = &node.report else { return false };
    let is_heard = matches!(node.status(state.now), NodeStatus::Reports(_));
    is_heard && report.layers.is_empty() && before.is_same_but_for_the_time(report) && node.load == report.load
}

/// Handles a client event and adds notable changes to the events.
pub(super) fn observed(state: &mut State, event: ClientEvent) -> Vec<Effect> {
    let place = match &event {
        ClientEvent::Connected { node, .. }
        | ClientEvent::Disconnected { node, .. }
        | ClientEvent::Report { node, .. } => Some(*node),
        ClientEvent::Assign(_)
        | ClientEvent::Generate(_)
        | ClientEvent::Operate(_)
        | ClientEvent::Log { .. }
        | ClientEvent::Models { .. }
        | ClientEvent::Model(_)
        | ClientEvent::Planned(_) => None,
    };
    let effects = on_client(state, event);
    state.cluster.observe_failure();
    place.into_iter().for_each(|place| watch::observe_node(state, place));
    watch::observe_cluster(state);
    effects
}

fn on_client(state: &mut State, event: ClientEvent) -> Vec<Effect> {
    let now = state.now;
    match event {
        ClientEvent::Connected { node, identity } => {
            if let Some(known) = state.cluster.nodes.get_mut(node) {
                known.connected(now, &identity);
            }
        }
        ClientEvent::Disconnected { node, fault } => {
            if let Some(known) = state.cluster.nodes.get_mut(node) {
                known.disconnected(fault);
            }
        }
        ClientEvent::Report { node, report } => return on_report(state, node, *report),
        ClientEvent::Planned(planned) => {
            state.plan.answer = match planned {
                Ok(planned) => Planning::Done(planned),
                Err(fault) => Planning::Failed(fault),
            };
            models::on_planned(state);
            return on_planned(state);
        }
        ClientEvent::Operate(event) => return operate::on_event(state, event),
        ClientEvent::Assign(event) => return on_assign(state, event),
        ClientEvent::Generate(event) => generate::on_event(state, event),
        ClientEvent::Models { node, answer } => return models::on_answer(state, node, answer),
        ClientEvent::Model(event) => return models::on_event(state, event),
        // Handled earlier, because it may change nothing on the screen.
        ClientEvent::Log { .. } => {}
    }
    Vec::new()
}

fn on_report(state: &mut State, node: usize, report: NodeReport) -> Vec<Effect> {
    let cluster = &mut state.cluster;
    let Some(node) = cluster.nodes.get_mut(node) else { return Vec::new() };
    let mut effects = Vec::new();
    cluster.exclusions.merge(&report.exclusions);
    let rolling = report.rolling.clone();
    node.reported(state.now, report);
    sync::record(state);
    if let Some(rolling) = rolling {
        effects = operate::rolled(state, &rolling);
    }
    if state.cluster.assignment == AssignmentStatus::WaitsForNodes {
        effects.extend(assign(state));
    }
    // After a recovery or during a rolling restart, only reports tell that the topology serves.
    if state.cluster.is_ready() {
        effects.extend(generate::release_held(state));
    }
    effects
}

fn on_assign(state: &mut State, event: AssignEvent) -> Vec<Effect> {
    let now = state.now;
    match event {
        AssignEvent::Loading { node, progress } => {
            state.cluster.assignment = AssignmentStatus::Loading;
            if let Some(node) = state.cluster.nodes.get_mut(node) {
                node.loading(now, progress);
            }
        }
        AssignEvent::Committing => state.cluster.assignment = AssignmentStatus::Committing,
        AssignEvent::Pauses { .. } => state.screen.notice = event.pause().map(|pause| clean_line(&pause)),
        AssignEvent::Running { epoch, topology, reused } => {
            state.cluster.assignment = AssignmentStatus::Running { epoch, reused };
            state.cluster.assigned = Some(*topology);
            state.cluster.nodes.iter_mut().for_each(|node| node.load = None);
            if state.generation.request.phase == Phase::Held {
                return generate::send(state);
            }
        }
        AssignEvent::Failed(fault) => {
            if state.generation.request.phase == Phase::Held {
                state.generation.request.phase = Phase::Failed(fault.clone());
            }
            state.cluster.nodes.iter_mut().for_each(|node| node.load = None);
            state.cluster.fail(fault);
        }
    }
    Vec::new()
}
