//! The command line: its keys, and the commands that it performs.
use super::{act, app, edit, export, models, operate::on_node, table};
use crate::{
    keymap::{Action, AppAction, EditAction, GenerateAction, Key, KeyCode},
    state::{
        State,
        clean::clean_line,
        command::{LineCommand, Names, completed, cycle, parse},
    },
    update::effect::{Effect, FileEffect},
};

/// Maximum length of a command in bytes.
const COMMAND_BYTES_MAX: usize = 4096;

fn close(state: &mut State) {
    state.preferences.is_commanding = false;
    state.preferences.completion = None;
    state.preferences.command.replace("");
}

/// Handles all keys while the command line is open.
pub(super) fn on_key(state: &mut State, key: Key) -> Vec<Effect> {
    if key.code == KeyCode::Tab {
        complete(state, key.shift);
        return Vec::new();
    }
    state.preferences.completion = None;
    match (state.preferences.keys.dialog_action(key), key.code) {
        (Some(Action::Generate(GenerateAction::Submit)), _) => return submit(state),
        (Some(Action::App(AppAction::Escape)), _) => close(state),
        (Some(Action::Edit(EditAction::EraseBefore)), _) if state.preferences.command.text().is_empty() => close(state),
        (_, KeyCode::Up) => state.preferences.command.up(),
        (_, KeyCode::Down) => state.preferences.command.down(),
        (Some(Action::Edit(action)), _) => edit::edit_in(&mut state.preferences.command, action),
        (None, KeyCode::Char(letter)) if key.types() => insert(state, letter.encode_utf8(&mut [0; 4])),
        (Some(_) | None, _) => {}
    }
    Vec::new()
}

/// Tab: adds what all candidates have in common; where there is nothing to add, steps through them.
fn complete(state: &mut State, back: bool) {
    let names = Names::of(state);
    let desk = &mut state.preferences;
    if let Some(cycle) = &mut desk.completion {
        cycle.step(back);
        desk.command.replace(&cycle.text());
        return;
    }
    let typed = desk.command.before_cursor().to_owned();
    match completed(&typed, desk, &names) {
        Some(text) if text != typed => desk.command.replace(&text),
        _ => {
            desk.completion = cycle(&typed, desk, &names);
            if let Some(cycle) = &desk.completion {
                desk.command.replace(&cycle.text());
            }
        }
    }
}

/// Inserts text typed or pasted into the command line.
pub(super) fn insert(state: &mut State, text: &str) {
    let text = text.replace(['\n', '\r', '\t'], " ");
    if state.preferences.command.text().len() + text.len() <= COMMAND_BYTES_MAX {
        state.preferences.command.insert(&text);
    }
}

fn submit(state: &mut State) -> Vec<Effect> {
    state.preferences.is_commanding = false;
    state.preferences.completion = None;
    if state.preferences.command.text().trim().is_empty() {
        close(state);
        return Vec::new();
    }
    let text = state.preferences.command.take();
    match parse(&text, &state.preferences.keys) {
        Ok(command) => perform(state, command),
        Err(reason) => {
            state.screen.notice = Some(clean_line(&reason));
            Vec::new()
        }
    }
}

fn perform(state: &mut State, command: LineCommand) -> Vec<Effect> {
    match command {
        LineCommand::Act(action) => {
            // A command applies to the page, not to its prompt box.
            if state.screen.focus.is_typing() {
                state.screen.focus = state.screen.focus.further(1);
            }
            return act(state, action);
        }
        LineCommand::OnNode(word, name) => return on_node(state, word, &name),
        LineCommand::Export(format, file) => return export(format, file),
        LineCommand::Load(name) => return models::load(state, &name),
        LineCommand::Record(file) => return app::record(state, file),
        LineCommand::StopRecording if state.preferences.recording.is_some() => {
            return vec![Effect::File(FileEffect::StopRecording)];
        }
        LineCommand::StopRecording => state.screen.notice = Some("nothing is recorded".to_owned()),
        LineCommand::Theme(theme) => state.preferences.theme = theme,
        LineCommand::Filter(text) => table::filter(state, &text),
        LineCommand::Sort(by) => table::sort(state, by),
    }
    Vec::new()
}
