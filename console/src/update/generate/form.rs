//! The sampling form: its keys.
use crate::{
    keymap::{Action, AppAction, EditAction, Focus, GenerateAction, Key, KeyCode, NavigateAction, Page, Panel},
    state::{
        State,
        sampling_form::{SamplingForm, summary},
    },
    update::{edit::edit_in, effect::Effect},
};

/// Opens the form.
pub(in crate::update) fn open(state: &mut State) {
    state.screen.form = Some(SamplingForm::new(state.defaults(), state.generation.sent));
}

/// Handles all keys while the form is open.
pub(in crate::update) fn on_key(state: &mut State, key: Key) -> Vec<Effect> {
    let Some(form) = &mut state.screen.form else { return Vec::new() };
    match state.preferences.keys.action(Focus { page: Page::Generate, panel: Panel::Prompt }, key) {
        Some(Action::App(AppAction::Escape | AppAction::Interrupt)) => state.screen.form = None,
        Some(Action::Generate(GenerateAction::Submit)) => submit(state),
        Some(Action::Edit(EditAction::LineUp) | Action::Navigate(NavigateAction::FocusPrevious)) => form.previous(),
        Some(Action::Edit(EditAction::LineDown) | Action::Navigate(NavigateAction::FocusNext)) => form.next(),
        Some(Action::Edit(EditAction::EraseBefore | EditAction::EraseAfter)) if form.is_selected => {
            form.erase_selected();
        }
        Some(Action::Edit(action)) => {
            if let Some(field) = form.field() {
                edit_in(field, action);
            }
        }
        Some(_) => {}
        None => {
            if let Key { code: KeyCode::Char(letter), control: false, alt: false, .. } = key {
                form.insert(letter.encode_utf8(&mut [0; 4]));
            }
        }
    }
    Vec::new()
}

fn submit(state: &mut State) {
    let (before, sent) = (state.defaults().clone(), state.generation.sent);
    let Some(form) = &mut state.screen.form else { return };
    match form.values(&before, sent) {
        Ok(defaults) => {
            *state.defaults_mut() = defaults;
            state.screen.form = None;
            let seed = super::seed(state, state.defaults(), "");
            state.screen.notice = Some(format!("from now on {}", summary(state.defaults(), seed)));
        }
        Err((place, error)) => {
            form.enter(place);
            form.error = Some(error);
        }
    }
}
