//! Operator commands on the screen: the dialog, its answer and the outcome. No command is issued without confirmation.
use common::fault::Fault;
use telemetry::Severity;
use topology::{Exclusions, Rolling, exclusion::REASON_LENGTH_MAX, rolling::Phase};

use super::{release_held, table::node_of_selected};
use crate::{
    keymap::{Action, Key, KeyCode},
    operator::command::{OperatorCommand, Removal, RollingCommand},
    operator::desired::DesiredTopology,
    state::{
        Assignment, State,
        clean::clean_line,
        operation::{Dialog, Operation, Question},
    },
    update::effect::Effect,
    update::event::OperateEvent,
};

/// Opens the dialog of an action; `false` if the action is not an operator command.
pub(super) fn ask(state: &mut State, action: Action) -> bool {
    match action {
        Action::Restart => ask_restart(state),
        Action::Exclude => ask_out(state, Removal::Exclude),
        Action::Cordon => ask_out(state, Removal::Cordon),
        Action::Drain => ask_out(state, Removal::Drain),
        Action::AssignAgain => ask_assign_again(state),
        Action::AbortAssignment => ask_abort(state),
        Action::CancelRequest => ask_cancel(state),
        _ => return false,
    }
    true
}

/// `R`: asks whether to restart all included nodes, or how to continue with the restart that is under way.
fn ask_restart(state: &mut State) {
    if state.open_rolling().is_some() {
        state.dialog = Some(Dialog::plain(Question::Rolling));
        return;
    }
    if refuses(state) {
        return;
    }
    let which = state.usable();
    let reports =
        || which.iter().filter_map(|place| Some((&state.nodes[*place], state.nodes[*place].report.as_ref()?)));
    let away = which.iter().map(|place| &state.nodes[*place]).find(|node| !node.is_open());
    let alone = reports().find(|(_, report)| !report.supervised);
    let forgets = reports().find(|(_, report)| !report.recovers);
    let why = match (away, alone, forgets) {
        _ if which.is_empty() => "no node to restart".to_owned(),
        (Some(node), ..) => format!("{} does not answer: start it first, or take it out (x)", node.name()),
        (_, Some((node, _)), _) => {
            format!("{} has nothing that would start it again: run it under systemd", node.name())
        }
        (.., Some((node, _))) => {
            format!("{} brings no topology back (recover = false): use console restart", node.name())
        }
        _ => {
            state.dialog = Some(Dialog::plain(Question::Restart { which }));
            return;
        }
    };
    state.notice = Some(why);
}

/// `x`, `c`, `d`: asks whether to exclude, cordon or drain the selected node, or to include it again.
fn ask_out(state: &mut State, how: Removal) {
    if refuses(state) {
        return;
    }
    let Some(node) = node_of_selected(state) else {
        state.notice = Some("no node is selected here; 1 lists the nodes".to_owned());
        return;
    };
    let known = &state.nodes[node];
    // A cordoned node can still be drained or excluded.
    let goes_further = match how {
        Removal::Cordon => false,
        Removal::Drain => known.is_open(),
        Removal::Exclude => state.is_cordoned(known),
    };
    if state.exclusion(known).is_some() && !goes_further {
        if known.is_open() {
            state.dialog = Some(Dialog::plain(Question::In { node }));
        } else {
            state.notice = Some(format!("{} does not answer: start it before it is taken in", known.name()));
        }
        return;
    }
    state.dialog = Some(Dialog::out(state, node, how));
}

/// `r`: asks whether to assign the requested or last running topology again.
fn ask_assign_again(state: &mut State) {
    match state.assignable() {
        Some(wanted) => {
            let members = state.usable();
            ask_assign(state, wanted, members);
        }
        None => {
            state.notice = Some("nothing to assign; start the console with --topology and --model".to_owned());
        }
    }
}

/// Asks whether to assign this topology to the nodes with these list indices, by rank.
pub(super) fn ask_assign(state: &mut State, wanted: DesiredTopology, members: Vec<usize>) {
    if refuses(state) {
        return;
    }
    if state.request.is_sent() {
        state.notice = Some("a generation runs; Esc cancels it, then assign again".to_owned());
        return;
    }
    state.dialog = Some(Dialog::plain(Question::Assign { wanted, members }));
}

fn ask_abort(state: &mut State) {
    if let Some(Operation::Change { out: None | Some(Removal::Drain | Removal::Exclude), .. }) = state.operation {
        state.dialog = Some(Dialog::plain(Question::AbortAssignment));
        return;
    }
    match state.assignment {
        Assignment::Loading => state.dialog = Some(Dialog::plain(Question::AbortAssignment)),
        Assignment::WaitsForNodes => {
            state.assignment = Assignment::Nothing;
            state.wanted = None;
            state.assigns_best = false;
            state.notice = Some("nothing is assigned any more when the nodes are there".to_owned());
        }
        Assignment::Committing => {
            state.notice = Some("the nodes switch already: that is over in a moment".to_owned());
        }
        _ => state.notice = Some("no assignment of this dashboard is under way".to_owned()),
    }
}

/// `X`: asks whether to cancel the selected request on its head, regardless of the client that sent it.
fn ask_cancel(state: &mut State) {
    match crate::state::tables::selected_request(state) {
        Some((node, number, who)) => {
            state.dialog = Some(Dialog::plain(Question::CancelRequest { node, number, who }));
        }
        None => state.notice = Some("no request that runs is selected".to_owned()),
    }
}

/// Shows a notice and returns `true` on a read-only dashboard.
pub(super) fn refuses_looker(state: &mut State) -> bool {
    if state.readonly {
        state.notice = Some("this dashboard only looks: start it without --readonly to act".to_owned());
    }
    state.readonly
}

fn refuses(state: &mut State) -> bool {
    let why = if state.rolling_runs() {
        "a rolling restart is under way: R pauses or ends it"
    } else if state.operation.is_some() {
        "something else is under way, see below; wait for its end"
    } else if state.is_assigning() {
        "an assignment is under way: A aborts it"
    } else {
        return false;
    };
    state.notice = Some(why.to_owned());
    true
}

/// Handles all keys while a dialog is open.
pub(super) fn on_key(state: &mut State, key: Key) -> Vec<Effect> {
    let keys = state.desk.keys.clone();
    let Some(dialog) = &mut state.dialog else { return Vec::new() };
    let letter = match key {
        Key { code: KeyCode::Char(letter), control: false, alt: false, .. } => Some(letter),
        _ => None,
    };
    match (keys.dialog_action(key), letter) {
        (Some(Action::Submit), _) => return answer(state),
        (Some(Action::Escape), _) => state.dialog = None,
        (Some(Action::FocusNext | Action::FocusPrevious), _) => {
            dialog.in_name = dialog.name.is_some() && !dialog.in_name
        }
        (Some(action), _) => {
            if let Some(editor) = dialog.input() {
                super::edit_in(editor, action);
            }
        }
        (None, Some(letter)) if dialog.input().is_some() => insert(state, letter.encode_utf8(&mut [0; 4])),
        (None, Some('n')) => state.dialog = None,
        (None, Some(letter)) => return answer_letter(state, letter),
        (None, None) => {}
    }
    Vec::new()
}

/// Handles answers given by a letter: yes, or a command for the rolling restart.
fn answer_letter(state: &mut State, letter: char) -> Vec<Effect> {
    let is_rolling = matches!(&state.dialog, Some(dialog) if dialog.question == Question::Rolling);
    let roll = match (is_rolling, letter, state.rolling_runs()) {
        (false, 'y', _) => return answer(state),
        (true, 'p', true) => RollingCommand::Pause,
        (true, 'r', false) => RollingCommand::Resume,
        (true, 'a', _) => RollingCommand::Abort,
        _ => return Vec::new(),
    };
    state.dialog = None;
    order(state, OperatorCommand::Roll(roll))
}

/// Inserts text typed or pasted into the reason or the name; one line, bounded.
pub(super) fn insert(state: &mut State, text: &str) {
    let Some(editor) = state.dialog.as_mut().and_then(Dialog::input) else { return };
    let text = text.replace(['\n', '\r', '\t'], " ");
    if editor.text().len() + text.len() > REASON_LENGTH_MAX {
        state.notice = Some(format!("at most {REASON_LENGTH_MAX} bytes"));
        return;
    }
    editor.insert(&text);
}

/// Enter: confirms, if all required text has been typed.
fn answer(state: &mut State) -> Vec<Effect> {
    let Some(dialog) = &mut state.dialog else { return Vec::new() };
    if dialog.reason.as_ref().is_some_and(|reason| reason.text().trim().is_empty()) {
        dialog.in_name = false;
        state.notice = Some("type a reason: whoever looks at the cluster later will read it".to_owned());
        return Vec::new();
    }
    if let (Question::Out { node, .. }, Some(name)) = (&dialog.question, &dialog.name) {
        let expected = state.nodes.get(*node).map_or("", |node| node.name());
        if name.text().trim() != expected {
            let notice = format!("type {expected} below to confirm: nothing would be left to serve");
            dialog.in_name = true;
            state.notice = Some(notice);
            return Vec::new();
        }
    }
    if dialog.question == Question::Rolling {
        return Vec::new();
    }
    let Some(dialog) = state.dialog.take() else { return Vec::new() };
    match (dialog.order(), dialog.question) {
        (_, Question::Assign { wanted, members }) => {
            // Execute only what the dialog showed: if a node has disconnected since, the assignment fails.
            state.assignment = Assignment::Loading;
            // Otherwise the planner's answer would be assigned afterwards.
            state.assigns_best = false;
            if members == state.usable() {
                state.wanted = Some(wanted.clone());
            }
            vec![Effect::Assign { wanted, members }]
        }
        (Some(given), _) => order(state, given),
        (None, _) => Vec::new(),
    }
}

fn order(state: &mut State, order: OperatorCommand) -> Vec<Effect> {
    let since = state.now;
    let change = |node, out| Some(Operation::Change { node, out, requests: 0, since });
    match &order {
        OperatorCommand::Roll(_) | OperatorCommand::CancelRequest { .. } => state.operation = Some(Operation::Telling),
        OperatorCommand::Out { node, how, .. } => state.operation = change(*node, Some(*how)),
        OperatorCommand::In { node } => state.operation = change(*node, None),
        // The assignment reports its own end.
        OperatorCommand::AbortAssignment => {}
    }
    vec![Effect::Operate(order)]
}

/// Merges a report or answer about the rolling restart; the higher revision wins.
pub(super) fn rolled(state: &mut State, known: &Rolling) -> Vec<Effect> {
    let was = state.rolling_runs();
    let before = state.rolling.as_ref().map(|rolling| (rolling.done, rolling.before.is_some()));
    if !Rolling::merge(&mut state.rolling, known) {
        return Vec::new();
    }
    if before != Some((known.done, known.before.is_some())) {
        state.rolling_since = state.now;
    }
    if !was || state.rolling_runs() {
        return Vec::new();
    }
    let (done, all) = (known.done, known.targets.len());
    let (severity, what) = match &known.phase {
        Phase::Done => (Severity::Note, format!("all {all} nodes are restarted")),
        Phase::Aborted => (Severity::Warning, format!("the restart ended after {done} of {all} nodes")),
        Phase::Paused(reason) => {
            (Severity::Warning, format!("the restart paused after {done} of {all} nodes: {reason}"))
        }
        Phase::Runs => return release_held(state),
    };
    state.events.push(state.now, severity, None, &what);
    if !matches!(known.phase, Phase::Paused(_)) {
        state.notice = Some(what);
    }
    release_held(state)
}

/// Shows a message in the last line until the next key, and adds it to the events.
fn say(state: &mut State, severity: Severity, node: &str, what: &str) {
    let place = state.nodes.iter().position(|known| known.name() == node);
    state.notice = Some(clean_line(&format!("{node} {what}")));
    state.events.push(state.now, severity, place, what);
}

fn fails(state: &mut State, fault: &Fault) {
    say(state, Severity::Error, &fault.node, &format!("{}; {}", fault.kind, fault.kind.next()));
}

/// Handles the client's events about an operation.
pub(super) fn on_event(state: &mut State, event: OperateEvent) -> Vec<Effect> {
    match event {
        OperateEvent::Restart { .. } | OperateEvent::Told { .. } | OperateEvent::Assign(_) => return Vec::new(),
        OperateEvent::WaitsForRequests { count } => {
            if let Some(Operation::Change { requests, .. }) = &mut state.operation {
                *requests = count;
            }
            return Vec::new();
        }
        // Record it before any node reports it; until then keys and prompts would act on outdated exclusions.
        OperateEvent::Said(entry) => {
            state.exclusions.merge(&Exclusions(vec![entry]));
            return Vec::new();
        }
        OperateEvent::NotKept(fault) => {
            let what = format!("cannot keep the list of nodes that are out: {}", fault.kind);
            say(state, Severity::Warning, &fault.node, &what);
            return Vec::new();
        }
        OperateEvent::Rolled(rolling) => {
            state.operation = None;
            return rolled(state, &rolling);
        }
        OperateEvent::Cordoned { node, drained } => {
            let what = match drained {
                None => "takes nothing new; c takes it in again",
                Some(true) => "is drained: nothing runs there; c takes it in again",
                Some(false) => "takes nothing new, but not all that runs has ended; d waits again",
            };
            say(state, Severity::Note, &node, what);
        }
        OperateEvent::Excluded { node, out, running } => {
            let serves = running.as_ref().map(|(_, topology)| format!("; {} serves", topology.layout));
            let state_word = if out { "out" } else { "in again" };
            say(state, Severity::Note, &node, &format!("is {state_word}{}", serves.unwrap_or_default()));
            if let Some((epoch, topology)) = running {
                state.assignment = Assignment::Running { epoch, reused: false };
                state.assigns_best = false;
                state.assigned = Some(*topology);
            }
        }
        OperateEvent::ExcludeFailed(fault) => {
            state.assignment = Assignment::Failed(fault.clone());
            fails(state, &fault);
        }
        OperateEvent::RequestCancelled { node } => say(state, Severity::Note, &node, "ends that request"),
        OperateEvent::Refused(fault) => fails(state, &fault),
    }
    state.operation = None;
    release_held(state)
}

#[cfg(test)]
mod tests;
