//! Operator commands on the screen: the dialog, its answer and the outcome. No command is issued without confirmation.
use common::fault::Fault;
use telemetry::Severity;
use topology::{Exclusions, Rolling, exclusion::REASON_LENGTH_MAX, rolling::Phase};

use super::{
    chat,
    edit::edit_in,
    generate::release_held,
    models, plan,
    question::{ask_assign, refuses, refuses_looker},
    table::node_of_selected,
};
use crate::{
    keymap::{Action, AppAction, Focus, GenerateAction, Key, KeyCode, NavigateAction, OperateAction, Page},
    operator::command::{OperatorCommand, Removal, RollingCommand},
    state::{
        AssignmentStatus, State,
        clean::clean_line,
        command::NodeWord,
        editor::Editor,
        node::Node,
        operation::{Dialog, Operation, Question, is_dangerous},
    },
    update::effect::Effect,
    update::event::OperateEvent,
};

/// Longest system prompt that is typed, in bytes.
const SYSTEM_LENGTH_MAX: usize = 4096;

/// Performs an operator action: most of them only open a dialog.
pub(super) fn act(state: &mut State, action: OperateAction) -> Vec<Effect> {
    match action {
        OperateAction::Plan => return plan::ask(state).unwrap_or_else(|| models::lead_here(state)),
        OperateAction::LoadModel => return models::open(state),
        OperateAction::AssignAgain => return ask_assign_again(state),
        OperateAction::Restart => ask_restart(state, state.cluster.usable()),
        OperateAction::Exclude => ask_out(state, Removal::Exclude),
        OperateAction::Cordon => ask_out(state, Removal::Cordon),
        OperateAction::Drain => ask_out(state, Removal::Drain),
        OperateAction::AbortAssignment => ask_abort(state),
        OperateAction::CancelRequest => ask_cancel(state),
        OperateAction::PullModel => models::ask_pull(state),
        OperateAction::CancelPull => return models::cancel_pull(state),
        OperateAction::UnloadModel => models::ask_unload(state),
        OperateAction::DeleteModel => models::ask_delete(state),
    }
    Vec::new()
}

/// `R`: asks whether to restart all included nodes, or how to continue with the restart that is under way.
fn ask_restart(state: &mut State, which: Vec<usize>) {
    if state.cluster.open_rolling().is_some() {
        state.operations.dialog = Some(Dialog::plain(Question::Rolling));
        return;
    }
    if refuses(state) {
        return;
    }
    let reports = || {
        which
            .iter()
            .filter_map(|place| Some((&state.cluster.nodes[*place], state.cluster.nodes[*place].report.as_ref()?)))
    };
    let away = which.iter().map(|place| &state.cluster.nodes[*place]).find(|node| !node.is_open());
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
            state.operations.dialog = Some(Dialog::plain(Question::Restart { which }));
            return;
        }
    };
    state.screen.notice = Some(why);
}

/// `x`, `c`, `d`: asks whether to exclude, cordon or drain the selected node, or to include it again.
fn ask_out(state: &mut State, how: Removal) {
    if refuses(state) {
        return;
    }
    let Some(node) = node_of_selected(state) else {
        state.screen.notice = Some("no node is selected here; 1 lists the nodes".to_owned());
        return;
    };
    let known = &state.cluster.nodes[node];
    // A cordoned node can still be drained or excluded.
    let goes_further = match how {
        Removal::Cordon => false,
        Removal::Drain => known.is_open(),
        Removal::Exclude => state.cluster.is_cordoned(known),
    };
    if state.cluster.exclusion(known).is_some() && !goes_further {
        ask_in(state, node);
    } else {
        state.operations.dialog = Some(Dialog::out(state, node, how));
    }
}

/// Asks whether to include a node again.
fn ask_in(state: &mut State, node: usize) {
    let known = &state.cluster.nodes[node];
    if known.is_open() {
        state.operations.dialog = Some(Dialog::plain(Question::In { node }));
    } else {
        state.screen.notice = Some(format!("{} does not answer: start it before you include it", known.name()));
    }
}

/// Commands that name a node: asks, as the keys do for the selected one. A command never does the opposite of its word.
pub(super) fn on_node(state: &mut State, word: NodeWord, name: &str) -> Vec<Effect> {
    let node = match find(state, name) {
        Ok(node) => node,
        Err(why) => {
            state.screen.notice = Some(why);
            return Vec::new();
        }
    };
    state.screen.selected = node;
    if word == NodeWord::Show {
        state.screen.focus = Focus::first_of(Page::Node);
        return Vec::new();
    }
    if refuses_looker(state) {
        return Vec::new();
    }
    if word == NodeWord::Restart {
        ask_restart(state, vec![node]);
        return Vec::new();
    }
    if refuses(state) {
        return Vec::new();
    }
    let known = &state.cluster.nodes[node];
    let (is_out, is_cordoned) = (state.cluster.exclusion(known).is_some(), state.cluster.is_cordoned(known));
    let marked = format!("{} is {}", known.name(), if is_cordoned { "cordoned already" } else { "excluded already" });
    match word {
        NodeWord::In if is_out => ask_in(state, node),
        NodeWord::In => state.screen.notice = Some(format!("{} is not excluded", known.name())),
        // A cordoned node can still be drained or excluded.
        NodeWord::Out(how) if is_out && (how == Removal::Cordon || !is_cordoned) => state.screen.notice = Some(marked),
        NodeWord::Out(how) => state.operations.dialog = Some(Dialog::out(state, node, how)),
        NodeWord::Show | NodeWord::Restart => {}
    }
    Vec::new()
}

/// Whether a node has this name or address, with or without its port.
fn is_called(node: &Node, name: &str) -> bool {
    node.name() == name || node.address == name || node.address.split(':').next() == Some(name)
}

/// The node with this name or address, or the only one whose name begins like this.
fn find(state: &State, name: &str) -> Result<usize, String> {
    let nodes = &state.cluster.nodes;
    if let Some(place) = nodes.iter().position(|node| is_called(node, name)) {
        return Ok(place);
    }
    let mut like = (0..nodes.len()).filter(|place| nodes[*place].name().starts_with(name));
    match (like.next(), like.next()) {
        (Some(place), None) => Ok(place),
        (None, _) => Err(format!("no node {name:?}; the nodes are {}", state.cluster.names().join(", "))),
        (Some(_), Some(_)) => {
            Err(format!("{name:?} means several nodes; the nodes are {}", state.cluster.names().join(", ")))
        }
    }
}

/// `r`: asks whether to assign the requested or last running topology again; the list of models if there is none.
fn ask_assign_again(state: &mut State) -> Vec<Effect> {
    let Some(desired) = state.assignable() else { return models::lead_here(state) };
    let members = state.cluster.usable();
    ask_assign(state, desired.clone(), members);
    // The dialog shows the prediction as soon as it is available.
    if state.operations.dialog.is_some() { plan::ask_before(state, &desired) } else { Vec::new() }
}

fn ask_abort(state: &mut State) {
    if let Some(Operation::Change { out: None | Some(Removal::Drain | Removal::Exclude), .. }) =
        state.operations.running
    {
        state.operations.dialog = Some(Dialog::plain(Question::AbortAssignment));
        return;
    }
    match state.cluster.assignment {
        AssignmentStatus::Loading => state.operations.dialog = Some(Dialog::plain(Question::AbortAssignment)),
        AssignmentStatus::WaitsForNodes => {
            state.cluster.assignment = AssignmentStatus::Nothing;
            state.plan.desired = None;
            state.plan.assigns_best = false;
            state.screen.notice = Some("nothing is assigned any more when the nodes are there".to_owned());
        }
        AssignmentStatus::Committing => {
            state.screen.notice = Some("the nodes switch already: that is over in a moment".to_owned());
        }
        AssignmentStatus::Nothing | AssignmentStatus::Running { .. } | AssignmentStatus::Failed(_) => {
            state.screen.notice = Some("no assignment of this dashboard is under way".to_owned());
        }
    }
}

/// `X`: asks whether to cancel the selected request on its head, regardless of the client that sent it.
fn ask_cancel(state: &mut State) {
    match crate::state::tables::selected_request(state) {
        Some((node, number, who)) => {
            state.operations.dialog = Some(Dialog::plain(Question::CancelRequest { node, number, who }));
        }
        None => state.screen.notice = Some("no request that runs is selected".to_owned()),
    }
}

/// Handles all keys while a dialog is open.
pub(super) fn on_key(state: &mut State, key: Key) -> Vec<Effect> {
    let keys = state.preferences.keys.clone();
    let Some(dialog) = &mut state.operations.dialog else { return Vec::new() };
    let letter = match key {
        Key { code: KeyCode::Char(letter), control: false, alt: false, .. } => Some(letter),
        _ => None,
    };
    match (keys.dialog_action(key), letter) {
        (Some(Action::Generate(GenerateAction::Submit)), _) => return answer(state),
        (Some(Action::App(AppAction::Escape)), _) => state.operations.dialog = None,
        (Some(Action::Navigate(NavigateAction::FocusNext) | Action::Navigate(NavigateAction::FocusPrevious)), _) => {
            (dialog.in_name, dialog.error) = (dialog.name.is_some() && !dialog.in_name, None);
        }
        (Some(Action::Edit(action)), _) => {
            dialog.error = None;
            if let Some(editor) = dialog.input() {
                edit_in(editor, action);
            }
        }
        (None, Some(letter)) if dialog.input().is_some() => insert(state, letter.encode_utf8(&mut [0; 4])),
        (None, Some('n')) => state.operations.dialog = None,
        (None, Some(letter)) => return answer_letter(state, letter),
        (Some(_), _) | (None, None) => {}
    }
    Vec::new()
}

/// Handles answers given by a letter: yes, or a command for the rolling restart.
fn answer_letter(state: &mut State, letter: char) -> Vec<Effect> {
    let is_rolling = matches!(&state.operations.dialog, Some(dialog) if dialog.question == Question::Rolling);
    let roll = match (is_rolling, letter, state.cluster.rolling_runs()) {
        (false, 'y', _) => return answer(state),
        (true, 'p', true) => RollingCommand::Pause,
        (true, 'r', false) => RollingCommand::Resume,
        (true, 'a', _) => RollingCommand::Abort,
        _ => return Vec::new(),
    };
    state.operations.dialog = None;
    order(state, OperatorCommand::Roll(roll))
}

/// Inserts text typed or pasted into the reason or the name; one line, bounded.
pub(super) fn insert(state: &mut State, text: &str) {
    let Some(dialog) = &mut state.operations.dialog else { return };
    let longest = if dialog.question == Question::SystemPrompt { SYSTEM_LENGTH_MAX } else { REASON_LENGTH_MAX };
    let Some(editor) = dialog.input() else { return };
    let text = text.replace(['\n', '\r', '\t'], " ");
    if editor.text().len() + text.len() > longest {
        dialog.error = Some(format!("at most {longest} bytes"));
    } else {
        editor.insert(&text);
        dialog.error = None;
    }
}

/// Enter: confirms, if all required text has been typed.
fn answer(state: &mut State) -> Vec<Effect> {
    let is_grave = match state.operations.dialog.as_ref().map(|dialog| &dialog.question) {
        Some(Question::Out { node, how }) => is_dangerous(state, *node, *how),
        _ => false,
    };
    let Some(dialog) = &mut state.operations.dialog else { return Vec::new() };
    if dialog.reason.as_ref().is_some_and(|reason| reason.text().trim().is_empty()) {
        dialog.in_name = false;
        dialog.error = Some("type a reason: other operators see it in the status".to_owned());
        return Vec::new();
    }
    // It may have become dangerous since the dialog was opened.
    if is_grave && dialog.name.is_none() {
        dialog.name = Some(Editor::default());
    }
    if let (Question::Out { node, .. }, Some(name)) = (&dialog.question, &dialog.name) {
        let expected = state.cluster.nodes.get(*node).map_or("", |node| node.name());
        if name.text().trim() != expected {
            dialog.in_name = true;
            dialog.error = Some(format!("type {expected} to confirm: nothing would be left to serve"));
            return Vec::new();
        }
    }
    if dialog.question == Question::Rolling {
        return Vec::new();
    }
    let Some(dialog) = state.operations.dialog.take() else { return Vec::new() };
    if let Some(order) = dialog.question.model_order() {
        models::ordered(state, &order);
        return vec![Effect::Models(order)];
    }
    match (dialog.order(), dialog.question) {
        (_, Question::Assign { wanted, members }) => {
            // Execute only what the dialog showed: if a node has disconnected since, the assignment fails.
            state.cluster.assignment = AssignmentStatus::Loading;
            // Otherwise the planner's answer would be assigned afterwards.
            state.plan.assigns_best = false;
            if members == state.cluster.usable() {
                state.plan.desired = Some(wanted.clone());
            }
            vec![Effect::Assign { wanted, members }]
        }
        (Some(given), _) => order(state, given),
        (None, question) => chat::answered(state, question, dialog.name),
    }
}

fn order(state: &mut State, order: OperatorCommand) -> Vec<Effect> {
    let since = state.now;
    let change = |node, out| Some(Operation::Change { node, out, requests: 0, since });
    match &order {
        OperatorCommand::Roll(_) | OperatorCommand::CancelRequest { .. } if state.operations.running.is_none() => {
            state.operations.running = Some(Operation::Telling);
        }
        // A change under way stays visible, and an operator can still abort it.
        OperatorCommand::Roll(_) | OperatorCommand::CancelRequest { .. } => {}
        OperatorCommand::Out { node, how, .. } => state.operations.running = change(*node, Some(*how)),
        OperatorCommand::In { node } => state.operations.running = change(*node, None),
        // The assignment reports its own end.
        OperatorCommand::AbortAssignment => {}
    }
    vec![Effect::Operate(order)]
}

/// Merges a report or answer about the rolling restart; the higher revision wins.
pub(super) fn rolled(state: &mut State, known: &Rolling) -> Vec<Effect> {
    let was = state.cluster.rolling_runs();
    let before = state.cluster.rolling.as_ref().map(|rolling| (rolling.done, rolling.before.is_some()));
    if !Rolling::merge(&mut state.cluster.rolling, known) {
        return Vec::new();
    }
    if before != Some((known.done, known.before.is_some())) {
        state.cluster.rolling_since = state.now;
    }
    if !was || state.cluster.rolling_runs() {
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
    state.journal.events.push(state.now, severity, None, &what);
    if !matches!(known.phase, Phase::Paused(_)) {
        state.screen.notice = Some(what);
    }
    release_held(state)
}

/// Shows a message in the last line until the next key, and adds it to the events.
fn say(state: &mut State, severity: Severity, node: &str, what: &str) {
    let place = state.cluster.nodes.iter().position(|known| known.name() == node);
    state.screen.notice = Some(clean_line(&format!("{node} {what}")));
    state.journal.events.push(state.now, severity, place, what);
}

fn fails(state: &mut State, fault: &Fault) {
    say(state, Severity::Error, &fault.node, &format!("{}; {}", fault.kind, fault.next()));
}

/// A command about the rolling restart or a request has ended; a change under way continues.
fn command_ended(state: &mut State) {
    if state.operations.running == Some(Operation::Telling) {
        state.operations.running = None;
    }
}

/// Handles the client's events about an operation.
pub(super) fn on_event(state: &mut State, event: OperateEvent) -> Vec<Effect> {
    match event {
        OperateEvent::Restart { .. } | OperateEvent::Told { .. } | OperateEvent::Assign(_) => return Vec::new(),
        OperateEvent::WaitsForRequests { count } => {
            if let Some(Operation::Change { requests, .. }) = &mut state.operations.running {
                *requests = count;
            }
            return Vec::new();
        }
        // Record it before any node reports it; until then keys and prompts would act on outdated exclusions.
        OperateEvent::Said(entry) => {
            state.cluster.exclusions.merge(&Exclusions(vec![entry]));
            return Vec::new();
        }
        OperateEvent::NotKept(fault) => {
            let what = format!("cannot keep the list of nodes that are out: {}", fault.kind);
            say(state, Severity::Warning, &fault.node, &what);
            return Vec::new();
        }
        OperateEvent::Rolled(rolling) => {
            command_ended(state);
            return rolled(state, &rolling);
        }
        OperateEvent::Cordoned { node, drained } => {
            let what = match drained {
                None => "accepts no new requests; c uncordons it",
                Some(true) => "is drained: nothing runs there; c takes it in again",
                Some(false) => "accepts no new requests, but some still run; d waits again",
            };
            say(state, Severity::Note, &node, what);
        }
        OperateEvent::Excluded { node, out, running } => {
            let serves = running.as_ref().map(|(_, topology)| format!("; {} serves", topology.layout));
            let state_word = if out { "out" } else { "in again" };
            say(state, Severity::Note, &node, &format!("is {state_word}{}", serves.unwrap_or_default()));
            if let Some((epoch, topology)) = running {
                state.cluster.assignment = AssignmentStatus::Running { epoch, reused: false };
                state.plan.assigns_best = false;
                state.cluster.assigned = Some(*topology);
            }
        }
        OperateEvent::ExcludeFailed(fault) => {
            state.cluster.fail(fault.clone());
            fails(state, &fault);
        }
        OperateEvent::RequestCancelled { node } => {
            say(state, Severity::Note, &node, "ends that request");
            command_ended(state);
            return release_held(state);
        }
        OperateEvent::CommandRefused(fault) => {
            fails(state, &fault);
            command_ended(state);
            return release_held(state);
        }
        OperateEvent::Refused(fault) => fails(state, &fault),
    }
    state.operations.running = None;
    release_held(state)
}

#[cfg(test)]
mod tests;
