//! Restarts and exclusions on the screen: the question, its answer, what comes of it.
use shared::topology::exclusion::REASON_LENGTH_MAX;

use super::release_held;
use crate::{
    effect::Effect,
    event::{OperateEvent, RestartStep},
    keymap::{Action, Key, KeyCode},
    state::{
        Assignment, State,
        editor::Editor,
        operation::{Dialog, Operation, Restart},
    },
};

/// `R`: asks whether all nodes that are in shall restart, or those that an earlier restart left.
pub(super) fn ask_restart(state: &mut State) {
    if refuses(state) {
        return;
    }
    let (which, continues) = match &state.operation {
        Some(Operation::Paused { remaining, .. }) => (remaining.clone(), true),
        _ => (state.usable(), false),
    };
    let alone = which
        .iter()
        .map(|place| &state.nodes[*place])
        .find(|node| node.report.as_ref().is_some_and(|report| !report.supervised));
    if let Some(node) = alone {
        state.notice = Some(format!("{} has nothing that would start it again: run it under systemd", node.name()));
        return;
    }
    if which.is_empty() {
        state.notice = Some("no node to restart".to_owned());
        return;
    }
    state.dialog = Some(Dialog::Restart { which, continues });
}

/// `x`: asks whether the selected node shall be taken out, or in again.
pub(super) fn ask_exclude(state: &mut State) {
    if refuses(state) {
        return;
    }
    let place = state.selected;
    let Some(node) = state.nodes.get(place) else { return };
    if state.exclusion(node).is_some() {
        if !node.is_open() {
            state.notice = Some(format!("{} does not answer: start it before it is taken in", node.name()));
            return;
        }
        state.dialog = Some(Dialog::Include { node: place });
        return;
    }
    if state.usable().len() < 2 {
        state.notice = Some(format!("{} is the last node that is in: nothing would be left to serve", node.name()));
        return;
    }
    state.dialog = Some(Dialog::Exclude { node: place, reason: Editor::default() });
}

fn refuses(state: &mut State) -> bool {
    let why = if state.is_operating() {
        "a restart or an exclusion is under way"
    } else if state.is_assigning() {
        "an assignment is under way"
    } else {
        return false;
    };
    state.notice = Some(why.to_owned());
    true
}

/// All keys while a question waits.
pub(super) fn on_key(state: &mut State, key: Key) -> Vec<Effect> {
    match (state.desk.keys.dialog_action(key), key) {
        (Some(Action::Submit), _) => answer(state),
        (Some(Action::Escape), _) => {
            state.dialog = None;
            Vec::new()
        }
        (Some(action), _) => {
            if let Some(Dialog::Exclude { reason, .. }) = &mut state.dialog {
                super::edit_in(reason, action);
            }
            Vec::new()
        }
        (None, Key { code: KeyCode::Char(letter @ ('y' | 'n')), control: false, alt: false, .. })
            if !matches!(state.dialog, Some(Dialog::Exclude { .. })) =>
        {
            if letter == 'y' {
                return answer(state);
            }
            state.dialog = None;
            Vec::new()
        }
        (None, Key { code: KeyCode::Char(letter), control: false, alt: false, .. }) => {
            insert(state, letter.encode_utf8(&mut [0; 4]));
            Vec::new()
        }
        _ => Vec::new(),
    }
}

/// Text typed or pasted into the reason; one line, bounded.
pub(super) fn insert(state: &mut State, text: &str) {
    let Some(Dialog::Exclude { reason, .. }) = &mut state.dialog else { return };
    let text = text.replace(['\n', '\r', '\t'], " ");
    if reason.text().len() + text.len() > REASON_LENGTH_MAX {
        state.notice = Some(format!("a reason has at most {REASON_LENGTH_MAX} bytes"));
        return;
    }
    reason.insert(&text);
}

/// Enter: yes.
fn answer(state: &mut State) -> Vec<Effect> {
    if let Some(Dialog::Exclude { reason, .. }) = &state.dialog
        && reason.text().trim().is_empty()
    {
        state.notice = Some("type a reason: whoever looks at the cluster later will read it".to_owned());
        return Vec::new();
    }
    match state.dialog.take() {
        None => Vec::new(),
        Some(Dialog::Restart { which, .. }) => {
            let restart = Restart { which: which.clone(), done: 0, current: None, stops: false };
            state.operation = Some(Operation::Restart(restart));
            vec![Effect::Restart(which)]
        }
        Some(Dialog::Exclude { node, reason }) => {
            state.operation = Some(Operation::Change { node, out: true, requests: 0 });
            vec![Effect::Exclude { node, reason: Some(reason.text().trim().to_owned()) }]
        }
        Some(Dialog::Include { node }) => {
            state.operation = Some(Operation::Change { node, out: false, requests: 0 });
            vec![Effect::Exclude { node, reason: None }]
        }
    }
}

/// Esc: a restart ends after its node, a paused one is forgotten. Returns whether there was one.
pub(super) fn escape(state: &mut State) -> Option<Vec<Effect>> {
    match &mut state.operation {
        Some(Operation::Restart(restart)) if !restart.stops => {
            restart.stops = true;
            Some(vec![Effect::StopRestart])
        }
        Some(Operation::Paused { .. }) => {
            state.operation = None;
            Some(Vec::new())
        }
        _ => None,
    }
}

/// What the client says about it.
pub(super) fn on_event(state: &mut State, event: OperateEvent) -> Vec<Effect> {
    match event {
        OperateEvent::Restart { node, step } => {
            let now = state.now;
            if let Some(Operation::Restart(restart)) = &mut state.operation {
                restart.current = if let RestartStep::Done { .. } = step {
                    restart.done += 1;
                    None
                } else {
                    Some((node, step, now))
                };
            }
        }
        OperateEvent::WaitsForRequests { count } => {
            if let Some(Operation::Change { requests, .. }) = &mut state.operation {
                *requests = count;
            }
        }
        OperateEvent::Told { .. } | OperateEvent::Assign(_) => {}
        OperateEvent::Restarted => {
            let count = match state.operation.take() {
                Some(Operation::Restart(restart)) => restart.which.len(),
                _ => 0,
            };
            state.notice = Some(format!("all {count} nodes are restarted"));
            return release_held(state);
        }
        OperateEvent::RestartStopped { fault, remaining } => {
            state.operation = Some(Operation::Paused { fault, remaining });
            return release_held(state);
        }
        OperateEvent::Excluded { node, out, running } => {
            state.operation = None;
            let serves = running.as_ref().map(|(_, topology)| format!("; {} serves", topology.layout));
            let state_word = if out { "out" } else { "in again" };
            state.notice = Some(format!("{node} is {state_word}{}", serves.unwrap_or_default()));
            if let Some((epoch, topology)) = running {
                state.assignment = Assignment::Running { epoch, reused: false };
                state.assigned = Some(*topology);
            }
            return release_held(state);
        }
        OperateEvent::ExcludeFailed(fault) => {
            state.operation = None;
            state.assignment = Assignment::Failed(fault.clone());
            state.notice = Some(format!("{fault}; {}", fault.kind.next()));
            return release_held(state);
        }
    }
    Vec::new()
}

#[cfg(test)]
#[path = "operate_tests.rs"]
mod tests;
