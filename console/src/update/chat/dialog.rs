//! The dialogs of the page Chat: the system prompt, renaming and deleting a conversation.
use super::{begin, keep, put};
use crate::{
    client::conversations::keeper::KeeperOrder,
    conversation::{Conversation, TITLE_BYTES_MAX},
    state::{
        State,
        clean::clean_line,
        editor::Editor,
        operation::{Dialog, Question},
    },
    update::effect::{Effect, FileEffect},
};

/// Asks for the system prompt of the conversation shown, or of the next one.
pub(super) fn ask_system(state: &mut State) {
    let before = state.chat.shown().map_or(&state.chat.system, |shown| &shown.system);
    state.operations.dialog = Some(Dialog::text(Question::SystemPrompt, &clean_line(before)));
}

/// Asks for the title of the conversation shown.
pub(super) fn ask_rename(state: &mut State) {
    match state.chat.shown() {
        Some(shown) => {
            let title = clean_line(&shown.title());
            state.operations.dialog = Some(Dialog::text(Question::RenameConversation { id: shown.id.clone() }, &title));
        }
        None => state.screen.notice = Some("this conversation has no message yet".to_owned()),
    }
}

/// Asks whether to delete the conversation shown.
pub(super) fn ask_delete(state: &mut State) {
    let Some(shown) = state.chat.shown() else {
        state.screen.notice = Some("this conversation is not stored yet".to_owned());
        return;
    };
    if state.chat.awaits() {
        state.screen.notice = Some("an answer is being written; Esc stops it, then delete".to_owned());
        return;
    }
    let (id, title) = (shown.id.clone(), clean_line(&shown.title()));
    state.operations.dialog = Some(Dialog::plain(Question::DeleteConversation { id, title }));
}

/// Performs the answer to one of these questions.
pub(in crate::update) fn answered(state: &mut State, question: Question, text: Option<Editor>) -> Vec<Effect> {
    let text = text.map_or_else(String::new, |editor| editor.text().trim().to_owned());
    match question {
        Question::SystemPrompt => {
            state.chat.system.clone_from(&text);
            match state.chat.shown().map(|shown| Conversation::clone(shown)) {
                Some(shown) => vec![put(state, Conversation { system: text, ..shown })],
                None => Vec::new(),
            }
        }
        Question::RenameConversation { id } => {
            let end = text.floor_char_boundary(TITLE_BYTES_MAX);
            let Some(conversation) = state.chat.get_mut(&id) else { return Vec::new() };
            text[..end].clone_into(&mut conversation.title);
            vec![keep(conversation.clone())]
        }
        Question::DeleteConversation { id, .. } => {
            let place = state.chat.place(&id);
            state.chat.all.retain(|known| known.id != id);
            let focus = state.screen.focus;
            begin(state);
            if let Some(next) = place.and_then(|place| state.chat.all.get(place).or(state.chat.all.last())) {
                state.chat.current = Some(next.id.clone());
            }
            state.screen.focus = focus;
            vec![Effect::File(FileEffect::Conversations(KeeperOrder::Remove(id)))]
        }
        _ => Vec::new(),
    }
}
