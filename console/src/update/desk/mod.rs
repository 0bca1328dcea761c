//! Screen preferences: command line, colours, mouse, recording, export. Nothing here affects the cluster.
use super::{act, edit_in, show, table};
use crate::{
    keymap::{Action, Key, KeyCode},
    state::{
        Page, Spot, State,
        command::{Command, Format, completed, parse},
    },
    update::effect::Effect,
    update::event::{Event, Mouse, MouseKind},
};

/// Lines scrolled by one step of the mouse wheel.
const WHEEL_LINES: usize = 3;

/// Handles actions on the screen itself; `None` for all other actions.
pub(super) fn on_action(state: &mut State, action: Action) -> Option<Vec<Effect>> {
    match action {
        Action::Command => {
            state.desk.is_commanding = true;
            Some(Vec::new())
        }
        Action::Mouse => {
            state.desk.takes_mouse = !state.desk.takes_mouse;
            let words = if state.desk.takes_mouse {
                "the mouse clicks tabs and rows again"
            } else {
                "the terminal selects text with the mouse"
            };
            state.notice = Some(format!("{words}; {} changes it", state.desk.keys.key_of(Action::Mouse)));
            Some(vec![Effect::TakeMouse(state.desk.takes_mouse)])
        }
        Action::Record if state.desk.recording.is_some() => Some(vec![Effect::StopRecording]),
        Action::Record => Some(record(state, None)),
        Action::ExportData => Some(vec![Effect::Export { format: Format::Csv, file: None }]),
        Action::ExportScreen => Some(vec![Effect::Export { format: Format::Svg, file: None }]),
        _ => None,
    }
}

fn record(state: &mut State, file: Option<String>) -> Vec<Effect> {
    if let Some(recording) = &state.desk.recording {
        state.notice = Some(format!("this session is written to {recording} already; :record stop ends that"));
        return Vec::new();
    }
    if state.desk.replay.is_some() {
        state.notice = Some("this is a recording".to_owned());
        return Vec::new();
    }
    vec![Effect::Record(file)]
}

/// Handles all keys while the command line is open.
pub(super) fn on_command_key(state: &mut State, key: Key) -> Vec<Effect> {
    match (state.desk.keys.dialog_action(key), key.code) {
        (Some(Action::Submit), _) => return submit(state),
        (Some(Action::Escape), _) => close(state),
        (Some(Action::EraseBefore), _) if state.desk.command.text().is_empty() => close(state),
        (_, KeyCode::Tab) => {
            if let Some(text) = completed(state.desk.command.before_cursor(), &state.desk) {
                state.desk.command.replace(&text);
            }
        }
        (_, KeyCode::Up) => state.desk.command.up(),
        (_, KeyCode::Down) => state.desk.command.down(),
        (Some(action), _) => edit_in(&mut state.desk.command, action),
        (None, KeyCode::Char(letter)) if key.types() => insert(state, letter.encode_utf8(&mut [0; 4])),
        _ => {}
    }
    Vec::new()
}

/// Inserts text typed or pasted into the command line.
pub(super) fn insert(state: &mut State, text: &str) {
    let text = text.replace(['\n', '\r', '\t'], " ");
    if state.desk.command.text().len() + text.len() <= COMMAND_BYTES_MAX {
        state.desk.command.insert(&text);
    }
}

/// Maximum length of a command in bytes.
const COMMAND_BYTES_MAX: usize = 4096;

fn close(state: &mut State) {
    state.desk.is_commanding = false;
    state.desk.command.replace("");
}

fn submit(state: &mut State) -> Vec<Effect> {
    state.desk.is_commanding = false;
    if state.desk.command.text().trim().is_empty() {
        close(state);
        return Vec::new();
    }
    let text = state.desk.command.take();
    match parse(&text, &state.desk.keys) {
        Ok(command) => perform(state, command),
        Err(reason) => {
            state.notice = Some(crate::state::clean::clean_line(&reason));
            Vec::new()
        }
    }
}

fn perform(state: &mut State, command: Command) -> Vec<Effect> {
    match command {
        Command::Act(action) => {
            // A command applies to the page, not to its prompt box.
            if state.spot.is_typing() {
                state.spot = state.spot.further(1);
            }
            return act(state, action);
        }
        Command::Export(format, file) => return vec![Effect::Export { format, file }],
        Command::Record(file) => return record(state, file),
        Command::StopRecording if state.desk.recording.is_some() => return vec![Effect::StopRecording],
        Command::StopRecording => state.notice = Some("nothing is recorded".to_owned()),
        Command::Theme(theme) => state.desk.theme = theme,
        Command::Filter(text) => table::filter(state, &text),
        Command::Sort(by) => table::sort(state, by),
    }
    Vec::new()
}

/// Handles a click or a step of the wheel.
pub(super) fn on_mouse(state: &mut State, mouse: Mouse) -> Vec<Effect> {
    if state.dialog.is_some() || state.desk.is_commanding {
        return Vec::new();
    }
    if state.help.is_some() {
        let action = if mouse.kind == MouseKind::WheelUp { Action::Up } else { Action::Down };
        let last = state.extent.help_lines.saturating_sub(state.extent.help_height);
        state.help = match (mouse.kind, state.help) {
            (MouseKind::Click, _) | (_, None) => None,
            (_, Some(at)) => Some(crate::update::table::scrolled(at, action, state.extent.help_height, last)),
        };
        return Vec::new();
    }
    match mouse.kind {
        MouseKind::Click => click(state, mouse),
        MouseKind::WheelUp => (0..WHEEL_LINES).for_each(|_| show::show(state, Action::Up)),
        MouseKind::WheelDown => (0..WHEEL_LINES).for_each(|_| show::show(state, Action::Down)),
    }
    Vec::new()
}

fn click(state: &mut State, Mouse { x, y, .. }: Mouse) {
    let tab = Page::ALL.into_iter().zip(state.extent.tabs).find(|(_, tab)| tab.contains(x, y));
    if let Some((page, _)) = tab {
        state.spot = Spot::first_of(page);
    } else if table::click(state, x, y) {
        show::show(state, Action::Open);
    }
}

/// Shows the progress of a recording.
pub(super) fn on_recording(state: &mut State, event: crate::update::event::RecordingEvent) {
    use crate::update::event::RecordingEvent::{Began, Ended, Failed};
    let text = match event {
        Began { file } => {
            let text = format!("this session is written to {file} from now on");
            state.desk.recording = Some(file);
            text
        }
        Ended { file, events, lost } => {
            state.desk.recording = None;
            let left_out = if lost > 0 { format!(", {lost} left out: the disk was too slow") } else { String::new() };
            format!("{file}: {events} events{left_out}; console replay {file} shows them")
        }
        Failed { reason } => {
            state.desk.recording = None;
            reason
        }
    };
    state.notice = Some(crate::state::clean::clean_line(&text));
}

/// Whether an event changes only the arrangement of the screen, and therefore applies to the frozen screen.
pub(super) fn is_for_the_screen(event: &Event) -> bool {
    match event {
        Event::Key(_) | Event::Resize | Event::Drawn(_) | Event::Paste(_) | Event::Mouse(_) | Event::Said(_) => true,
        Event::Recording(_) | Event::Client(_) | Event::Tick { .. } | Event::Signal(_) => false,
    }
}

#[cfg(test)]
mod tests;
