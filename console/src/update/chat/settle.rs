//! The end of an answer: it becomes part of its conversation, also if it failed, was stopped or was never sent.
use common::{
    chat::FinishReason,
    fault::{Fault, FaultKind},
    latency::RequestTimes,
};

use super::{clock_ms, keep};
use crate::{
    conversation::{ChatAnswer, figures},
    state::{State, clean::clean_line, request::Phase},
    update::{effect::Effect, generate},
};

/// Adds the answer to its conversation once the request has ended. Called after every event, because a request ends in
/// several ways.
pub(in crate::update) fn settle(state: &mut State) -> Vec<Effect> {
    if state.chat.awaited.is_none() || state.generation.request.is_open() {
        return Vec::new();
    }
    let answer = match &state.generation.request.phase {
        Phase::Failed(fault) if fault.kind == FaultKind::NoTemplate && !is_plain(state) => {
            state.chat.plain_model.clone_from(&state.generation.sent_model);
            state.generation.request.phase = Phase::Held;
            state.screen.notice =
                Some("the model has no chat template: it continues the text of each message".to_owned());
            return generate::release_held(state);
        }
        Phase::Failed(fault) => Some(failed(fault)),
        Phase::Finished(finished) => {
            Some(ChatAnswer { figures: figures(&finished.times, finished.reason), ..ChatAnswer::default() })
        }
        Phase::Withdrawn | Phase::Nothing => None,
        Phase::Held | Phase::Queued | Phase::Prefill | Phase::Decoding | Phase::Cancelling => return Vec::new(),
    };
    store(state, answer)
}

/// The dashboard quits: the part of an answer that has arrived is stored.
pub(in crate::update) fn close(state: &mut State) -> Vec<Effect> {
    if state.chat.awaited.is_none() || state.generation.request.tokens == 0 {
        return Vec::new();
    }
    let figures = figures(&RequestTimes::default(), FinishReason::Cancelled);
    store(state, Some(ChatAnswer { figures, ..ChatAnswer::default() }))
}

/// Whether the model received the prompt as a plain text.
fn is_plain(state: &State) -> bool {
    state.generation.sent_model.is_none() || state.chat.plain_model == state.generation.sent_model
}

fn failed(fault: &Fault) -> ChatAnswer {
    let next = match fault.kind {
        FaultKind::PromptTooLong { .. } => {
            "start a new conversation (n, or F6 in the prompt box), or edit the message (u, F4)".to_owned()
        }
        _ => fault.next(),
    };
    let failure = clean_line(&format!("{fault}. Next: {next}."));
    ChatAnswer { failure: Some(failure), ..ChatAnswer::default() }
}

/// Stores the text that has arrived with these figures; `None` leaves the prompt without an answer. An answer that was
/// asked for again stays if no text has arrived.
fn store(state: &mut State, answer: Option<ChatAnswer>) -> Vec<Effect> {
    let read = state.chat.arrived(&state.generation.request);
    let model = state.generation.sent_model.clone().unwrap_or_default();
    let now = clock_ms(state);
    let earlier = state.chat.replaced.take();
    let Some(id) = state.chat.awaited.take() else { return Vec::new() };
    let Some(conversation) = state.chat.get_mut(&id) else { return Vec::new() };
    conversation.changed_ms = now;
    let has_text = answer.is_some() && !read.text.is_empty();
    let mut new = answer.map(|answer| ChatAnswer { model, thought: read.thought, text: read.text, ..answer });
    if let Some(new) = new.as_mut().filter(|new| state.generation.request.is_cut && !new.figures.is_empty()) {
        new.figures.push_str(", the start was left out");
    }
    if let Some(earlier) = earlier.filter(|_| !has_text) {
        let reason = new.map_or_else(|| "it was not sent".to_owned(), |new| new.failure.unwrap_or(new.figures));
        state.screen.notice = Some(format!("no new answer, the earlier one stays: {reason}"));
        new = Some(earlier);
    }
    if let Some(turn) = conversation.turns.last_mut() {
        turn.answer = new;
    }
    vec![keep(conversation.clone())]
}
