//! Changes and effects of each event: the complete behaviour of the dashboard, without a terminal or a clock.
mod assign;
mod desk;
pub mod effect;
pub mod event;
mod frozen;
mod generate;
mod operate;
mod plan;
mod show;
mod table;

use std::time::Duration;

use assign::{assign, on_planned};
use telemetry::NodeReport;

use crate::{
    keymap::{Action, Key, KeyCode},
    state::{
        Assignment, Focus, Page, Spot, State, TextScroll,
        clean::clean_line,
        editor::Editor,
        node::Standing,
        operation::Question,
        plan::Planning,
        request::{Phase, Request},
        standing::{Cluster, cluster, hint},
        sync, watch,
    },
    update::effect::Effect,
    update::event::{AssignEvent, ClientEvent, Event, GenerateEvent, Signal},
};

/// Handles an event. Every event except a tick without changes requests a frame.
pub fn update(state: &mut State, event: Event) -> Vec<Effect> {
    if state.frozen.is_some() { frozen::update_frozen(state, event) } else { update_live(state, event) }
}

fn update_live(state: &mut State, event: Event) -> Vec<Effect> {
    let mut effects = match event {
        Event::Drawn(extent) => {
            state.extent = extent;
            return Vec::new();
        }
        Event::Tick { now } => return tick(state, now),
        Event::Resize => Vec::new(),
        Event::Key(key) => on_key(state, key),
        Event::Paste(text) => paste(state, &text),
        Event::Client(ClientEvent::Report { node, report }) if says_nothing_new(state, node, &report) => {
            return observed(state, ClientEvent::Report { node, report });
        }
        Event::Client(ClientEvent::Log { node, answer }) => {
            let now = state.now;
            return if state.log.answer(node, now, answer) { vec![Effect::Draw] } else { Vec::new() };
        }
        Event::Client(event) => observed(state, event),
        Event::Signal(signal) => quit(state, signal.exit_code()),
        Event::Mouse(mouse) => desk::on_mouse(state, mouse),
        Event::Recording(event) => {
            desk::on_recording(state, event);
            Vec::new()
        }
        Event::Said(text) => {
            state.notice = Some(clean_line(&text));
            Vec::new()
        }
    };
    effects.push(Effect::Draw);
    effects
}

/// Whether a report changes nothing on the screen. Only the node's clock advances by itself.
fn says_nothing_new(state: &State, node: usize, report: &NodeReport) -> bool {
    let Some(node) = state.nodes.get(node) else { return true };
    let Some(before) = &node.report else { return false };
    let is_heard = matches!(node.standing(state.now), Standing::Reports(_));
    is_heard && report.layers.is_empty() && before.is_same_but_for_the_time(report) && node.load == report.load
}

/// Advances the time. Time alone changes the screen when a node falls silent, during an operation, and when all-reduces
/// stop arriving.
fn tick(state: &mut State, now: Duration) -> Vec<Effect> {
    let seen = |state: &State| -> (Vec<Standing>, bool, Option<u64>) {
        // The footer counts the seconds of the operation.
        let seconds = state.is_operating().then_some(state.now.as_secs());
        (state.nodes.iter().map(|node| node.standing(state.now)).collect(), state.layers_move(), seconds)
    };
    let before = seen(state);
    state.now = now;
    watch::observe_silence(state);
    let draw = (seen(state) != before).then_some(Effect::Draw);
    read_log(state).into_iter().chain(draw).collect()
}

/// Continues reading the log of the node whose page is open.
fn read_log(state: &mut State) -> Option<Effect> {
    let (node, now) = (state.selected, state.now);
    let is_seen = state.spot.page == Page::Node && state.nodes.get(node).is_some_and(|node| node.is_open());
    let after = is_seen.then(|| state.log.ask(node, now)).flatten()?;
    Some(Effect::Log { node, after })
}

fn on_key(state: &mut State, key: Key) -> Vec<Effect> {
    state.notice = None;
    if state.form.is_some() {
        return generate::on_key(state, key);
    }
    if state.dialog.is_some() {
        return operate::on_key(state, key);
    }
    if state.desk.is_commanding {
        return desk::on_command_key(state, key);
    }
    if state.help.is_some() {
        return on_key_in_help(state, key);
    }
    if let Some(action) = state.desk.keys.action(state.spot, key) {
        return act(state, action);
    }
    if let KeyCode::Char(letter) = key.code
        && key.types()
        && state.spot.is_typing()
    {
        type_text(state, letter.encode_utf8(&mut [0; 4]));
    }
    Vec::new()
}

/// Keys on the help page: some scroll, Ctrl-C and q have their usual effect, any other key closes it.
fn on_key_in_help(state: &mut State, key: Key) -> Vec<Effect> {
    let action = state.desk.keys.action(Spot { page: Page::Generate, focus: Focus::Text }, key);
    let (last, page) = (state.extent.help_lines.saturating_sub(state.extent.help_height), state.extent.help_height);
    match (action, state.help) {
        (Some(action @ (Action::Interrupt | Action::Quit)), _) => return act(state, action),
        (
            Some(
                action @ (Action::Up | Action::Down | Action::PageUp | Action::PageDown | Action::Top | Action::Bottom),
            ),
            Some(at),
        ) => state.help = Some(table::scrolled(at, action, page, last)),
        _ => state.help = None,
    }
    Vec::new()
}

fn act(state: &mut State, action: Action) -> Vec<Effect> {
    if action.acts() && operate::refuses_looker(state) {
        return Vec::new();
    }
    match action {
        Action::Interrupt if state.request.is_open() && state.request.phase != Phase::Cancelling => cancel(state),
        Action::Interrupt => quit(state, Signal::Interrupt.exit_code()),
        Action::Escape => escape(state),
        Action::Quit => quit(state, 0),
        Action::Submit => submit(state),
        Action::Freeze => {
            frozen::freeze(state);
            Vec::new()
        }
        Action::Plan => plan::ask(state),
        _ if operate::ask(state, action) => match state.dialog.as_ref().map(|dialog| dialog.question.clone()) {
            // The dialog shows the prediction as soon as it is available.
            Some(Question::Assign { wanted, .. }) => plan::ask_before(state, &wanted),
            _ => Vec::new(),
        },
        _ => {
            if let Some(effects) = desk::on_action(state, action) {
                return effects;
            }
            show::show(state, action);
            edit(state, action);
            Vec::new()
        }
    }
}

/// Handles actions in the prompt box.
fn edit(state: &mut State, action: Action) {
    match action {
        Action::NewLine => insert(state, "\n"),
        _ if state.spot.focus == Focus::Filter => table::edit(state, action),
        _ => edit_in(&mut state.editor, action),
    }
}

fn edit_in(editor: &mut Editor, action: Action) {
    match action {
        Action::CursorLeft => editor.left(),
        Action::CursorRight => editor.right(),
        Action::WordLeft => editor.word_left(),
        Action::WordRight => editor.word_right(),
        Action::LineStart => editor.line_start(),
        Action::LineEnd => editor.line_end(),
        Action::LineUp => editor.up(),
        Action::LineDown => editor.down(),
        Action::EraseBefore => editor.erase_before(),
        Action::EraseAfter => editor.erase_after(),
        Action::EraseWord => editor.erase_word(),
        Action::EraseToStart => editor.erase_to_start(),
        Action::EraseToEnd => editor.erase_to_end(),
        _ => {}
    }
}

/// Inserts text into the prompt box or a filter.
fn type_text(state: &mut State, text: &str) {
    if state.spot.focus == Focus::Filter { table::type_text(state, text) } else { insert(state, text) }
}

fn insert(state: &mut State, text: &str) {
    if !state.editor.insert(text) {
        state.notice = Some("the prompt box is full; use console generate for longer prompts".to_owned());
    }
}

fn paste(state: &mut State, text: &str) -> Vec<Effect> {
    state.help = None;
    state.notice = None;
    if let Some(form) = &mut state.form {
        form.insert(text);
        return Vec::new();
    }
    if state.dialog.is_some() {
        operate::insert(state, text);
        return Vec::new();
    }
    if state.desk.is_commanding {
        desk::insert(state, text);
        return Vec::new();
    }
    if state.spot.focus == Focus::Filter {
        table::type_text(state, text);
        return Vec::new();
    }
    state.spot = Spot::first_of(Page::Generate);
    // Terminals send a carriage return for each new line of a paste.
    insert(state, &text.replace("\r\n", "\n").replace('\r', "\n"));
    Vec::new()
}

fn escape(state: &mut State) -> Vec<Effect> {
    if table::escape(state) {
        return Vec::new();
    }
    if state.request.is_open() && state.request.phase != Phase::Cancelling {
        return cancel(state);
    }
    if state.spot.focus == Focus::Prompt {
        state.spot.focus = Focus::Text;
    }
    Vec::new()
}

fn cancel(state: &mut State) -> Vec<Effect> {
    match state.request.phase {
        Phase::Held => {
            state.request.phase = Phase::Withdrawn;
            Vec::new()
        }
        _ => {
            state.request.phase = Phase::Cancelling;
            vec![Effect::Cancel]
        }
    }
}

fn quit(state: &mut State, code: i32) -> Vec<Effect> {
    state.is_ending = true;
    let cancel = state.request.is_sent().then_some(Effect::Cancel);
    cancel.into_iter().chain([Effect::Quit(code)]).collect()
}

fn submit(state: &mut State) -> Vec<Effect> {
    if state.request.is_open() {
        state.notice = Some("one is generated already; Esc cancels it".to_owned());
        return Vec::new();
    }
    if state.editor.text().is_empty() {
        state.notice = Some("type a prompt first".to_owned());
        return Vec::new();
    }
    let is_ready = state.is_ready();
    // A node that the operator cordoned is not worked around without confirmation.
    if let (false, false, Cluster::Cordoned(_)) = (is_ready, state.is_operating(), cluster(state)) {
        state.notice = Some(hint(state));
        return Vec::new();
    }
    if !is_ready && !state.is_assigning() && !state.is_operating() && state.assignable().is_none() {
        state.notice = Some("no topology runs; start the console with --topology and --model".to_owned());
        return Vec::new();
    }
    state.text_scroll = TextScroll::Follow;
    state.request = Request::new(Phase::Held, state.editor.take(), state.now);
    if is_ready {
        return send(state);
    }
    if state.is_assigning() || state.is_operating() { Vec::new() } else { assign(state) }
}

/// Sends a held prompt once a topology runs, or assigns one if no assignment is under way.
fn release_held(state: &mut State) -> Vec<Effect> {
    if state.request.phase != Phase::Held || state.is_assigning() {
        return Vec::new();
    }
    if state.is_ready() {
        return send(state);
    }
    if state.is_operating() || state.assignment == Assignment::WaitsForNodes { Vec::new() } else { assign(state) }
}

/// Sends the held request.
fn send(state: &mut State) -> Vec<Effect> {
    let mut generate = state.defaults.request(&state.request.prompt, state.requests_sent);
    generate.sampling.seed = generate::seed(state, &state.request.prompt);
    generate.model = state.topology().map(|(topology, _)| topology.roots().into());
    state.request.sent_with = Some(generate::sent_with(state, generate.sampling.seed));
    state.requests_sent += 1;
    state.request_epoch = state.topology().map(|(_, epoch)| epoch);
    if matches!(state.assignment, Assignment::Failed(_)) {
        // The previous topology still runs: the failure has been shown, and the text replaces it.
        state.assignment = Assignment::Nothing;
    }
    state.request.send(state.now);
    let head = state.ready_head().or(state.place_of(0)).unwrap_or(0);
    vec![Effect::Generate { head, generate: Box::new(generate) }]
}

/// Handles a client event and adds notable changes to the events.
fn observed(state: &mut State, event: ClientEvent) -> Vec<Effect> {
    let place = match &event {
        ClientEvent::Connected { node, .. }
        | ClientEvent::Disconnected { node, .. }
        | ClientEvent::Report { node, .. } => Some(*node),
        _ => None,
    };
    let effects = client(state, event);
    place.into_iter().for_each(|place| watch::observe_node(state, place));
    watch::observe_cluster(state);
    effects
}

fn client(state: &mut State, event: ClientEvent) -> Vec<Effect> {
    let now = state.now;
    match event {
        // Handled earlier, because it may change nothing on the screen.
        ClientEvent::Log { .. } => Vec::new(),
        ClientEvent::Connected { node, identity } => {
            let Some(known) = state.nodes.get_mut(node) else { return Vec::new() };
            known.connected(now, &identity);
            Vec::new()
        }
        ClientEvent::Disconnected { node, fault } => {
            let Some(known) = state.nodes.get_mut(node) else { return Vec::new() };
            known.disconnected(fault);
            Vec::new()
        }
        ClientEvent::Report { node, report } => {
            let Some(node) = state.nodes.get_mut(node) else { return Vec::new() };
            let mut effects = Vec::new();
            state.exclusions.merge(&report.exclusions);
            let rolling = report.rolling.clone();
            node.reported(now, *report);
            sync::record(state);
            if let Some(rolling) = rolling {
                effects = operate::rolled(state, &rolling);
            }
            if state.assignment == Assignment::WaitsForNodes {
                effects.extend(assign(state));
            }
            // During a rolling restart only reports show that a topology runs.
            if state.is_operating() && state.is_ready() {
                effects.extend(release_held(state));
            }
            effects
        }
        ClientEvent::Planned(planned) => {
            state.planning = match planned {
                Ok(planned) => Planning::Done(planned),
                Err(fault) => Planning::Failed(fault),
            };
            on_planned(state)
        }
        ClientEvent::Operate(event) => operate::on_event(state, event),
        ClientEvent::Assign(event) => on_assign(state, event),
        ClientEvent::Generate(event) => {
            on_generate(state, event);
            Vec::new()
        }
    }
}

fn on_assign(state: &mut State, event: AssignEvent) -> Vec<Effect> {
    match event {
        AssignEvent::Loading { node, progress } => {
            state.assignment = Assignment::Loading;
            if let Some(node) = state.nodes.get_mut(node) {
                node.loading(state.now, progress);
            }
        }
        AssignEvent::Committing => state.assignment = Assignment::Committing,
        AssignEvent::Pauses { .. } => state.notice = event.pause().map(|pause| clean_line(&pause)),
        AssignEvent::Running { epoch, topology, reused } => {
            state.assignment = Assignment::Running { epoch, reused };
            state.assigned = Some(*topology);
            state.nodes.iter_mut().for_each(|node| node.load = None);
            if state.request.phase == Phase::Held {
                return send(state);
            }
        }
        AssignEvent::Failed(fault) => {
            if state.request.phase == Phase::Held {
                state.request.phase = Phase::Failed(fault.clone());
            }
            state.nodes.iter_mut().for_each(|node| node.load = None);
            state.assignment = Assignment::Failed(fault);
        }
    }
    Vec::new()
}

fn on_generate(state: &mut State, event: GenerateEvent) {
    let request = &mut state.request;
    match event {
        GenerateEvent::Started { prompt_token_ids } => request.started(state.now, prompt_token_ids.len()),
        GenerateEvent::Token(token) => request.token(state.now, &token),
        GenerateEvent::Finished(finished) if request.is_sent() => request.phase = Phase::Finished(finished),
        GenerateEvent::Failed(fault) if request.is_sent() => request.phase = Phase::Failed(fault),
        GenerateEvent::Finished(_) | GenerateEvent::Failed(_) => {}
        GenerateEvent::Waits { fault, seconds } => {
            state.notice =
                Some(clean_line(&format!("waiting up to {seconds} s for a head to continue the answer: {fault}")));
        }
        GenerateEvent::Moved { fault, topology, head, .. } => {
            let node = topology.members.get(head.index()).map_or("?", |member| &member.name);
            state.notice = Some(clean_line(&format!("{node} continues the answer on {}: {fault}", topology.layout)));
        }
    }
}

#[cfg(test)]
mod tests;
