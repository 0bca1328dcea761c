//! The text around an engine, which works on token ids only. Requests: templates, tokenizing, checks of schemas; the
//! input is untrusted, so work that may make a library abort or use up all memory runs in a child process with limits.
//! Answers: detokenizing and stop strings. Interface: [`TextService`] takes requests; the engine gets
//! [`engine::port::Prepared`] ones, or the client a fault; [`Answers`] translates the engine's events.
mod answer;
mod calls;
pub mod child;
mod frame;
pub mod inline;
mod lanes;
mod memory;
mod model;
mod output;
mod prepare;
mod question;
mod service;
mod vocabulary;
mod worker;

use common::{
    changes::TemplateChanges,
    chat::{Chat, Grammar},
    fault::FaultKind,
    tool_use::CallGrammar,
};
use tokenizer::template::Rendered;

pub use answer::{AnswerEvent, Answers, Translated};
pub use model::ModelText;
pub use prepare::Preparer;
pub use service::TextService;
pub use vocabulary::vocabulary;
pub use worker::{Program, check_template};

/// The tokens of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptTokens {
    /// Their ids.
    pub ids: Vec<u32>,
    /// How its conversation was changed for the chat template.
    pub changes: TemplateChanges,
}

impl From<Vec<u32>> for PromptTokens {
    fn from(ids: Vec<u32>) -> Self {
        Self { ids, changes: TemplateChanges::default() }
    }
}

/// Why a request was not prepared.
#[derive(Clone, Debug, PartialEq)]
pub enum Unprepared {
    /// The request cannot be run.
    Refused(FaultKind),
    /// The necessary work is done elsewhere.
    Elsewhere,
}

impl From<FaultKind> for Unprepared {
    fn from(kind: FaultKind) -> Self {
        Self::Refused(kind)
    }
}

/// Work that may end the process that does it.
pub trait TextWork {
    /// Renders a conversation with the model's template; `now` in seconds since 1970.
    ///
    /// # Errors
    /// The template or the conversation is refused.
    fn render(&mut self, chat: &Chat, now: u64) -> Result<Rendered, Unprepared>;

    /// Checks whether answers can have this form.
    ///
    /// # Errors
    /// The reason why they cannot.
    fn check(&mut self, grammar: &Grammar) -> Result<(), Unprepared>;

    /// Checks whether a grammar of calls is supported; its control tokens are numbered for a trial.
    ///
    /// # Errors
    /// The reason why it is not.
    fn check_calls(&mut self, calls: &CallGrammar) -> Result<(), Unprepared>;

    /// Tokenizes a text; with `bos`, begins with a BOS token if the model requires one; with `special`, parses special
    /// tokens.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    fn encode(&mut self, text: &str, bos: bool, special: bool) -> Result<Vec<u32>, Unprepared>;
}

fn refused(reason: String) -> FaultKind {
    FaultKind::ParameterInvalid { reason }
}
