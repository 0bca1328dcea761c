//! Actions on the dashboard itself: interrupt, escape, quit, help, freeze, mouse, recording, export.
use super::{chat, export, frozen, generate, scroll::scrolled, table};
use crate::{
    keymap::{Action, AppAction, Focus, Key, Page, Panel},
    state::{State, clean::clean_line, command::Format},
    update::{
        effect::{Effect, FileEffect},
        event::{RecordingEvent, Signal},
    },
};

/// Performs an action on the dashboard itself.
pub(super) fn act(state: &mut State, action: AppAction) -> Vec<Effect> {
    match action {
        AppAction::Interrupt if generate::can_cancel(state) => return generate::cancel(state),
        AppAction::Interrupt => return quit(state, Signal::Interrupt.exit_code()),
        AppAction::Escape => return escape(state),
        AppAction::Quit => return quit(state, 0),
        AppAction::Help => state.screen.help = Some(0),
        AppAction::Command => state.preferences.is_commanding = true,
        AppAction::Freeze => frozen::freeze(state),
        AppAction::Mouse => return switch_mouse(state),
        AppAction::Record if state.preferences.recording.is_some() => {
            return vec![Effect::File(FileEffect::StopRecording)];
        }
        AppAction::Record => return record(state, None),
        AppAction::ExportData => return export(Format::Csv, None),
        AppAction::ExportScreen => return export(Format::Svg, None),
    }
    Vec::new()
}

/// Keys on the help page: some scroll, Ctrl-C and q have their usual effect, any other key closes it.
pub(super) fn on_key_in_help(state: &mut State, key: Key) -> Vec<Effect> {
    let extent = state.screen.extent;
    let last = extent.help_lines.saturating_sub(extent.help_height);
    let focus = Focus { page: Page::Generate, panel: Panel::Text };
    match (state.preferences.keys.action(focus, key), state.screen.help) {
        (Some(action @ Action::App(AppAction::Interrupt | AppAction::Quit)), _) => return super::act(state, action),
        (Some(Action::Scroll(action)), Some(at)) => {
            state.screen.help = Some(scrolled(at, action, extent.help_height, last));
        }
        _ => state.screen.help = None,
    }
    Vec::new()
}

fn escape(state: &mut State) -> Vec<Effect> {
    if table::escape(state) {
        return Vec::new();
    }
    if generate::can_cancel(state) {
        return generate::cancel(state);
    }
    state.chat.edits = false;
    if state.screen.focus.panel == Panel::Prompt {
        state.screen.focus.panel = Panel::Text;
    }
    Vec::new()
}

/// Ends the dashboard; a running generation is cancelled first.
pub(super) fn quit(state: &mut State, code: i32) -> Vec<Effect> {
    state.is_ending = true;
    let cancel = state.generation.request.is_sent().then_some(Effect::Cancel);
    chat::close(state).into_iter().chain(cancel).chain([Effect::Quit(code)]).collect()
}

fn switch_mouse(state: &mut State) -> Vec<Effect> {
    state.preferences.takes_mouse = !state.preferences.takes_mouse;
    let words = if state.preferences.takes_mouse {
        "the mouse clicks tabs and rows again"
    } else {
        "the terminal selects text with the mouse"
    };
    let key = state.preferences.keys.key_of(Action::App(AppAction::Mouse));
    state.screen.notice = Some(format!("{words}; {key} changes it"));
    vec![Effect::TakeMouse(state.preferences.takes_mouse)]
}

/// Starts recording the session to a file.
pub(super) fn record(state: &mut State, file: Option<String>) -> Vec<Effect> {
    if let Some(recording) = &state.preferences.recording {
        let notice = format!("this session is written to {recording} already; :record stop ends that");
        state.screen.notice = Some(notice);
        return Vec::new();
    }
    if state.preferences.replay.is_some() {
        state.screen.notice = Some("this is a recording".to_owned());
        return Vec::new();
    }
    vec![Effect::File(FileEffect::Record(file))]
}

/// Shows the progress of a recording.
pub(super) fn on_recording(state: &mut State, event: RecordingEvent) {
    let text = match event {
        RecordingEvent::Began { file } => {
            let text = format!("this session is written to {file} from now on");
            state.preferences.recording = Some(file);
            text
        }
        RecordingEvent::Ended { file, events, lost } => {
            state.preferences.recording = None;
            let left_out = if lost > 0 { format!(", {lost} left out: the disk was too slow") } else { String::new() };
            format!("{file}: {events} events{left_out}; console replay {file} shows them")
        }
        RecordingEvent::Failed { reason } => {
            state.preferences.recording = None;
            reason
        }
    };
    state.screen.notice = Some(clean_line(&text));
}
