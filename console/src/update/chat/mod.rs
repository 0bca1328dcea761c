//! The page Chat: prompts of a conversation, their answers, and the conversations themselves. The requests are those of
//! `update/generate`; one is under way at a time.
mod dialog;
mod settle;

use std::sync::Arc;

pub(super) use self::{
    dialog::answered,
    settle::{close, settle},
};
use super::{export, generate};
use crate::{
    client::conversations::{
        ReadConversations,
        keeper::{KeeperNews, KeeperOrder},
    },
    conversation::{ChatAnswer, ChatTurn, Conversation},
    keymap::{ChatAction, Focus, Page, ScrollAction},
    state::{State, TextScroll, clean::clean_line, command::Format},
    update::{
        effect::{Effect, FileEffect},
        scroll::scrolled,
    },
};

/// Longest text that is copied to the clipboard, in bytes: terminals ignore longer ones.
const COPY_BYTES_MAX: usize = 72 << 10;

/// Performs an action of the page Chat.
pub(super) fn act(state: &mut State, action: ChatAction) -> Vec<Effect> {
    match action {
        ChatAction::ChatNew => begin(state),
        ChatAction::ChatAgain => return again(state),
        ChatAction::ChatEdit => edit_last(state),
        ChatAction::ChatThoughts => state.chat.shows_thoughts = !state.chat.shows_thoughts,
        ChatAction::ChatCopy => return copy(state),
        ChatAction::ChatExport => return export(Format::Markdown, None),
        ChatAction::ChatSystem => dialog::ask_system(state),
        ChatAction::ChatRename => dialog::ask_rename(state),
        ChatAction::ChatDelete => dialog::ask_delete(state),
    }
    Vec::new()
}

/// Handles what the thread that stores conversations reports.
pub(super) fn on_news(state: &mut State, news: KeeperNews) {
    match news {
        KeeperNews::Read(ReadConversations { all, skipped }) => {
            // Conversations begun before the files were read stay first.
            let new = all.into_iter().filter(|read| state.chat.place(&read.id).is_none()).map(Arc::new);
            let new: Vec<_> = new.collect();
            state.chat.all.extend(new);
            if let Some(first) = skipped.first() {
                let more = if skipped.len() > 1 { format!(" (and {} more)", skipped.len() - 1) } else { String::new() };
                state.screen.notice = Some(clean_line(&format!("a conversation was skipped{more}: {first}")));
            }
        }
        KeeperNews::Copied(text) | KeeperNews::Failed(text) => state.screen.notice = Some(clean_line(&text)),
    }
}

/// Shows a new conversation, with the focus on the prompt box.
fn begin(state: &mut State) {
    if let Some(shown) = state.chat.shown() {
        state.chat.system = shown.system.clone();
    }
    (state.chat.current, state.chat.edits) = (None, false);
    state.screen.scroll.text = TextScroll::Follow;
    state.screen.focus = Focus::first_of(Page::Chat);
}

/// Moves the selection in the list of conversations.
pub(super) fn scroll(state: &mut State, action: ScrollAction) {
    let at = state.chat.current.as_deref().and_then(|id| state.chat.place(id));
    let last = state.chat.all.len().saturating_sub(1);
    // From a new conversation, any movement leads to the first of the list.
    let place = at.map_or(0, |at| scrolled(at, action, state.screen.extent.text_height, last));
    if let Some(conversation) = state.chat.all.get(place) {
        (state.chat.current, state.chat.edits) = (Some(conversation.id.clone()), false);
        state.screen.scroll.text = TextScroll::Follow;
    }
}

/// Sends the text of the prompt box as the next prompt. With an empty box, sends a prompt without an answer again.
pub(super) fn submit(state: &mut State) -> Vec<Effect> {
    let is_open = state.chat.last_turn().is_some_and(ChatTurn::is_open);
    let is_empty = state.screen.editor.text().trim().is_empty();
    if is_empty && is_open && !state.chat.edits {
        return again(state);
    }
    if is_empty {
        state.screen.notice = Some("type a message first".to_owned());
        return Vec::new();
    }
    if let Err(effects) = generate::check(state) {
        return effects;
    }
    let prompt = state.screen.editor.text().to_owned();
    let mut asked = match state.chat.shown() {
        Some(shown) => Conversation::clone(shown),
        None => new_conversation(state),
    };
    if state.chat.edits {
        asked.turns.pop();
    }
    asked.turns.push(ChatTurn { prompt, answer: None });
    if is_too_long(state, &asked) {
        return Vec::new();
    }
    state.screen.editor.take();
    state.chat.edits = false;
    ask(state, asked, None)
}

/// Whether a conversation is too long for a request; the reason is shown.
fn is_too_long(state: &mut State, asked: &Conversation) -> bool {
    let problem = asked.messages().err();
    let is_too_long = problem.is_some();
    if let Some(problem) = problem {
        state.screen.notice = Some(format!("{problem}: start a new one"));
    }
    is_too_long
}

fn new_conversation(state: &mut State) -> Conversation {
    state.chat.begun += 1;
    let id = format!("{}-{}", clock_ms(state), state.chat.begun);
    Conversation::new(id, state.chat.system.clone())
}

/// The wall clock in milliseconds since 1970.
fn clock_ms(state: &State) -> u64 {
    state.clock_ms.saturating_add(state.now.as_millis() as u64)
}

/// Asks for an answer to the last prompt of the conversation shown, in place of its present one.
fn again(state: &mut State) -> Vec<Effect> {
    let Some(shown) = state.chat.shown().filter(|shown| !shown.turns.is_empty()) else {
        state.screen.notice = Some("this conversation has no message yet".to_owned());
        return Vec::new();
    };
    let mut asked = Conversation::clone(shown);
    if let Err(effects) = generate::check(state) {
        return effects;
    }
    let earlier = asked.turns.last_mut().and_then(|turn| turn.answer.take());
    if is_too_long(state, &asked) {
        return Vec::new();
    }
    ask(state, asked, earlier.filter(|answer| !answer.text.is_empty()))
}

/// Stores a conversation that ends with a prompt, shows it first, and asks for the answer. With an earlier answer, the
/// file stays as it is until the new one has arrived.
fn ask(state: &mut State, asked: Conversation, earlier: Option<ChatAnswer>) -> Vec<Effect> {
    let prompt = asked.turns.last().map_or_else(String::new, |turn| turn.prompt.clone());
    let keep = put(state, asked);
    state.chat.awaited = state.chat.current.clone();
    state.chat.form = Default::default();
    let mut effects = if earlier.is_some() { Vec::new() } else { vec![keep] };
    state.chat.replaced = earlier;
    effects.extend(generate::start(state, prompt));
    effects
}

/// Puts a changed conversation first in the list, shows it, and stores it.
fn put(state: &mut State, mut changed: Conversation) -> Effect {
    changed.changed_ms = clock_ms(state);
    state.chat.all.retain(|known| known.id != changed.id);
    state.chat.current = Some(changed.id.clone());
    state.chat.all.insert(0, Arc::new(changed.clone()));
    keep(changed)
}

fn keep(conversation: Conversation) -> Effect {
    Effect::File(FileEffect::Conversations(KeeperOrder::Keep(Box::new(conversation))))
}

/// Puts the last prompt into the prompt box; sending it replaces the last turn.
fn edit_last(state: &mut State) {
    if state.chat.awaits() {
        state.screen.notice = Some("an answer is being written; Esc stops it, then edit".to_owned());
        return;
    }
    let Some(prompt) = state.chat.last_turn().map(|turn| turn.prompt.clone()) else {
        state.screen.notice = Some("this conversation has no message yet".to_owned());
        return;
    };
    state.screen.editor.replace(&prompt);
    state.chat.edits = true;
    state.screen.focus = Focus::first_of(Page::Chat);
    state.screen.notice = Some("Enter sends the changed message in place of the last one".to_owned());
}

/// Copies the last answer to the clipboard of the terminal.
fn copy(state: &mut State) -> Vec<Effect> {
    let answers = state.chat.shown().into_iter().flat_map(|shown| shown.turns.iter().rev());
    let last = answers.filter_map(|turn| turn.answer.as_ref()).map(|answer| &answer.text).find(|text| !text.is_empty());
    let (notice, effects) = match last.cloned() {
        None => ("there is no answer to copy yet".to_owned(), Vec::new()),
        Some(text) if text.len() > COPY_BYTES_MAX => {
            (format!("the answer is longer than {COPY_BYTES_MAX} bytes: write the conversation to a file"), Vec::new())
        }
        Some(text) => ("copied; not every terminal allows that (OSC 52)".to_owned(), vec![Effect::Copy(text)]),
    };
    state.screen.notice = Some(notice);
    effects
}

#[cfg(test)]
mod tests;
