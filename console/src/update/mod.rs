//! Changes and effects of each event: the complete behaviour of the dashboard, without a terminal or a clock. Every
//! group of actions has its own file and is matched there exhaustively.
mod app;
mod assign;
mod chat;
mod command_line;
mod edit;
pub mod effect;
pub mod event;
mod frozen;
mod generate;
mod models;
mod mouse;
mod navigate;
mod nodes;
mod operate;
mod plan;
mod question;
mod scroll;
mod table;
mod tour;

use std::time::Duration;

use self::{
    effect::{Effect, FileEffect},
    event::{ClientEvent, Event},
};
use crate::{
    keymap::{Action, Focus, GenerateAction, Key, KeyCode, NavigateAction, Page, Panel},
    state::{
        State,
        clean::clean_line,
        node::NodeStatus,
        tour::{STEPS, Tour},
        watch,
    },
};

/// Handles an event. Every event except a tick without changes requests a frame.
pub fn update(state: &mut State, event: Event) -> Vec<Effect> {
    let mut effects =
        if state.frozen.is_some() { frozen::update_frozen(state, event) } else { update_live(state, event) };
    let alerts = state.journal.alerts.take();
    if state.preferences.alerts.is_on() {
        effects.extend(alerts.into_iter().map(Effect::Alert));
    }
    effects
}

fn update_live(state: &mut State, event: Event) -> Vec<Effect> {
    let mut effects = match event {
        Event::Drawn(extent) => {
            state.screen.extent = extent;
            return Vec::new();
        }
        Event::Tick { now } => return tick(state, now),
        Event::Resize => Vec::new(),
        Event::Key(key) => on_key(state, key),
        Event::Paste(text) => paste(state, &text),
        Event::Client(ClientEvent::Report { node, report }) if nodes::says_nothing_new(state, node, &report) => {
            return nodes::observed(state, ClientEvent::Report { node, report });
        }
        Event::Client(ClientEvent::Log { node, answer }) => {
            let now = state.now;
            return if state.journal.log.answer(node, now, answer) { vec![Effect::Draw] } else { Vec::new() };
        }
        Event::Client(event) => nodes::observed(state, event),
        Event::Signal(signal) => app::quit(state, signal.exit_code()),
        Event::Mouse(mouse) => mouse::on_mouse(state, mouse),
        Event::Recording(event) => {
            app::on_recording(state, event);
            Vec::new()
        }
        Event::Tour(tour) => {
            let step = tour.step.min(STEPS.len() - 1);
            state.screen.tour = Some(Tour { step, ..tour });
            Vec::new()
        }
        Event::Conversations(news) => {
            chat::on_news(state, news);
            Vec::new()
        }
        Event::Said(text) => {
            state.screen.notice = Some(clean_line(&text));
            Vec::new()
        }
    };
    leave_prompt(state);
    tour::observe(state);
    effects.extend(chat::settle(state));
    effects.push(Effect::Draw);
    effects
}

/// Moves the focus out of the prompt box where no prompt can be sent.
fn leave_prompt(state: &mut State) {
    if state.readonly && state.screen.focus.panel == Panel::Prompt {
        state.screen.focus.panel = Panel::Text;
    }
}

/// What time alone changes on the screen: a node that falls silent, the seconds of an operation in the footer, and
/// all-reduces that stop arriving.
fn time_dependent(state: &State) -> (Vec<NodeStatus>, bool, Option<u64>) {
    let seconds = (state.is_operating() || state.models.pull.is_some()).then_some(state.now.as_secs());
    (state.cluster.nodes.iter().map(|node| node.status(state.now)).collect(), state.layers_move(), seconds)
}

/// Advances the time.
fn tick(state: &mut State, now: Duration) -> Vec<Effect> {
    let before = time_dependent(state);
    state.now = now;
    watch::observe_silence(state);
    let draw = (time_dependent(state) != before).then_some(Effect::Draw);
    read_log(state).into_iter().chain(models::keep_current(state)).chain(draw).collect()
}

/// Continues reading the log of the node whose page is open.
fn read_log(state: &mut State) -> Option<Effect> {
    if state.screen.focus.page != Page::Node {
        return None;
    }
    let (node, now) = (state.screen.selected, state.now);
    let known = state.cluster.nodes.get(node).filter(|known| known.is_open())?;
    // The first report after a connection names the run of the daemon whose lines are read.
    let instance = known.report.as_ref()?.instance;
    let after = state.journal.log.ask(node, instance, now)?;
    Some(Effect::Log { node, after })
}

fn on_key(state: &mut State, key: Key) -> Vec<Effect> {
    state.screen.notice = None;
    if state.screen.form.is_some() {
        return generate::form::on_key(state, key);
    }
    if state.operations.dialog.is_some() {
        return operate::on_key(state, key);
    }
    if state.preferences.is_commanding {
        return command_line::on_key(state, key);
    }
    if state.screen.help.is_some() {
        return app::on_key_in_help(state, key);
    }
    if let Some(effects) = tour::on_key(state, key) {
        return effects;
    }
    if let Some(action) = state.preferences.keys.action(state.screen.focus, key) {
        return act(state, action);
    }
    if let KeyCode::Char(letter) = key.code
        && key.types()
        && state.screen.focus.is_typing()
    {
        edit::type_text(state, letter.encode_utf8(&mut [0; 4]));
    }
    Vec::new()
}

/// Performs an action: the only place that distributes actions to their groups.
fn act(state: &mut State, action: Action) -> Vec<Effect> {
    if !state.offers(action) {
        question::refuse(state);
        return Vec::new();
    }
    match action {
        Action::Navigate(NavigateAction::Open) if state.screen.focus.page == Page::Models => {
            return models::choose_selected(state);
        }
        Action::App(action) => return app::act(state, action),
        Action::Navigate(action) => navigate::act(state, action),
        Action::Scroll(action) => navigate::scroll(state, action),
        Action::Edit(action) => edit::act(state, action),
        Action::Table(action) => table::act(state, action),
        Action::Generate(GenerateAction::Submit) if state.screen.focus.page == Page::Chat => {
            return chat::submit(state);
        }
        Action::Generate(action) => return generate::act(state, action),
        Action::Chat(action) => return chat::act(state, action),
        Action::Operate(action) => return operate::act(state, action),
        Action::Replay(action) => return vec![Effect::Replay(action)],
        Action::Tour(action) => return tour::act(state, action),
    }
    Vec::new()
}

fn paste(state: &mut State, text: &str) -> Vec<Effect> {
    state.screen.help = None;
    state.screen.notice = None;
    if let Some(form) = &mut state.screen.form {
        form.insert(text);
    } else if state.operations.dialog.is_some() {
        operate::insert(state, text);
    } else if state.preferences.is_commanding {
        command_line::insert(state, text);
    } else if state.screen.focus.is_filter() {
        table::type_text(state, text);
    } else if !question::refuses_looker(state) {
        let page = if state.screen.focus.page == Page::Chat { Page::Chat } else { Page::Generate };
        state.screen.focus = Focus::first_of(page);
        // Terminals send a carriage return for each new line of a paste.
        edit::insert(state, &text.replace("\r\n", "\n").replace('\r', "\n"));
    }
    Vec::new()
}

fn export(format: crate::state::command::Format, file: Option<String>) -> Vec<Effect> {
    vec![Effect::File(FileEffect::Export { format, file })]
}

#[cfg(test)]
mod tests;
