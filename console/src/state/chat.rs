//! The conversations of the page Chat: all of them, the one shown, and the one that waits for an answer.
use std::sync::Arc;

use common::chat::{AnswerForm, Chat};
use protocol::message::Prompt;

use super::{GenerateDefaults, request::Request};
use crate::conversation::{AnswerText, ChatAnswer, ChatTurn, Conversation, read};

/// Least `max_tokens` of an answer in a conversation: the default of completions would cut most answers.
const MAX_TOKENS_LEAST: u32 = 512;

/// The conversations.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatState {
    /// All conversations, the latest first.
    pub all: Vec<Arc<Conversation>>,
    /// Id of the conversation shown; `None` = a new one, which exists from its first prompt on.
    pub current: Option<String>,
    /// The system prompt of the next new conversation.
    pub system: String,
    /// Id of the conversation that the dashboard's request belongs to.
    pub awaited: Option<String>,
    /// Its answer so far, if it is asked for again: it stays if no new text arrives.
    pub replaced: Option<ChatAnswer>,
    /// How to read its answer.
    pub form: AnswerForm,
    /// Whether the next prompt replaces the last one of the conversation shown.
    pub edits: bool,
    /// Whether thoughts are shown in full.
    pub shows_thoughts: bool,
    /// A model without a chat template: it continues each prompt as a text.
    pub plain_model: Option<String>,
    /// Parameters of the next answers.
    pub defaults: GenerateDefaults,
    /// Number of conversations begun here.
    pub begun: u64,
}

impl ChatState {
    /// The prompt of the request under way, if it belongs to a conversation and the model has a chat template.
    pub fn prompt(&self, model: &str) -> Option<Prompt> {
        let awaited = self.awaited.as_deref().and_then(|id| self.place(id))?;
        if self.plain_model.as_deref() == Some(model) {
            return None;
        }
        let messages = self.all[awaited].messages().ok()?;
        Some(Prompt::Chat(Box::new(Chat { messages, ..Chat::default() })))
    }

    /// No conversations yet; `defaults` are the parameters of generations.
    pub fn new(defaults: &GenerateDefaults) -> Self {
        let max_tokens = defaults.max_tokens.max(MAX_TOKENS_LEAST);
        Self {
            all: Vec::new(),
            current: None,
            system: String::new(),
            awaited: None,
            replaced: None,
            form: AnswerForm::default(),
            edits: false,
            shows_thoughts: false,
            plain_model: None,
            defaults: GenerateDefaults { max_tokens, ..defaults.clone() },
            begun: 0,
        }
    }

    /// Index of a conversation.
    pub fn place(&self, id: &str) -> Option<usize> {
        self.all.iter().position(|conversation| conversation.id == id)
    }

    /// The conversation shown.
    pub fn shown(&self) -> Option<&Arc<Conversation>> {
        self.current.as_deref().and_then(|id| self.place(id)).map(|place| &self.all[place])
    }

    /// The last turn of the conversation shown.
    pub fn last_turn(&self) -> Option<&ChatTurn> {
        self.shown().and_then(|conversation| conversation.turns.last())
    }

    /// A conversation to change.
    pub fn get_mut(&mut self, id: &str) -> Option<&mut Conversation> {
        let place = self.place(id)?;
        Some(Arc::make_mut(&mut self.all[place]))
    }

    /// Whether the conversation shown waits for an answer.
    pub fn awaits(&self) -> bool {
        self.awaited.is_some() && self.awaited == self.current
    }

    /// The part of the awaited answer that has arrived.
    pub fn arrived(&self, request: &Request) -> AnswerText {
        read(&request.text, &self.form)
    }
}
