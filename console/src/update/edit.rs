//! Editing text: the prompt box, filters, and every other text field.
use super::table;
use crate::{
    keymap::EditAction,
    state::{State, editor::Editor},
};

/// Performs an editing action in the prompt box or in the page's filter.
pub(super) fn act(state: &mut State, action: EditAction) {
    if state.screen.focus.is_filter() && action != EditAction::NewLine {
        table::edit(state, action);
    } else if action == EditAction::NewLine {
        insert(state, "\n");
    } else {
        edit_in(&mut state.screen.editor, action);
    }
}

/// Performs an editing action in a text field of one line or in the prompt box.
pub(super) fn edit_in(editor: &mut Editor, action: EditAction) {
    match action {
        EditAction::CursorLeft => editor.left(),
        EditAction::CursorRight => editor.right(),
        EditAction::WordLeft => editor.word_left(),
        EditAction::WordRight => editor.word_right(),
        EditAction::LineStart => editor.line_start(),
        EditAction::LineEnd => editor.line_end(),
        EditAction::LineUp => editor.up(),
        EditAction::LineDown => editor.down(),
        EditAction::EraseBefore => editor.erase_before(),
        EditAction::EraseAfter => editor.erase_after(),
        EditAction::EraseWord => editor.erase_word(),
        EditAction::EraseToStart => editor.erase_to_start(),
        EditAction::EraseToEnd => editor.erase_to_end(),
        // Only the prompt box has more than one line; it inserts line breaks as text.
        EditAction::NewLine => {}
    }
}

/// Inserts typed text into the prompt box or a filter.
pub(super) fn type_text(state: &mut State, text: &str) {
    if state.screen.focus.is_filter() { table::type_text(state, text) } else { insert(state, text) }
}

/// Inserts text into the prompt box.
pub(super) fn insert(state: &mut State, text: &str) {
    if !state.screen.editor.insert(text) {
        state.screen.notice = Some("the prompt box is full; use console generate for longer prompts".to_owned());
    }
}
