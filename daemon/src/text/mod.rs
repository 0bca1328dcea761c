//! From what a request brings to what the engine runs: templates, tokenizing, checks of schemas. All of it is work on strangers' input,
//! so none of it is on the engine's thread, and what a library may answer with an abort or with all memory is in a child process with
//! limits. One interface: [`TextService`] takes requests, the engine gets [`crate::engine::port::Prepared`] ones, or the client a fault.
pub mod child;
mod frame;
pub mod inline;
mod lanes;
mod memory;
mod model;
mod prepare;
mod service;
mod worker;

use shared::protocol::{
    error::FaultKind,
    message::{Chat, Grammar},
};

pub use model::ModelText;
pub use prepare::Preparer;
pub use service::TextService;
pub use worker::{Program, check_template};

/// Why a request is not prepared.
#[derive(Clone, Debug, PartialEq)]
pub enum Unprepared {
    /// It cannot be run.
    Refused(FaultKind),
    /// What it needs is done elsewhere.
    Elsewhere,
}

impl From<FaultKind> for Unprepared {
    fn from(kind: FaultKind) -> Self {
        Self::Refused(kind)
    }
}

/// Work that may end the process that does it.
pub trait TextWork {
    /// Writes a conversation out with the model's template; `now` in seconds since 1970.
    ///
    /// # Errors
    /// The template or the conversation is refused.
    fn render(&mut self, chat: &Chat, now: u64) -> Result<String, Unprepared>;

    /// Whether answers can have this form.
    ///
    /// # Errors
    /// Why not.
    fn check(&mut self, grammar: &Grammar) -> Result<(), Unprepared>;

    /// The tokens of a text, special ones parsed; with `bos` it begins with one where the model wants that.
    ///
    /// # Errors
    /// It cannot be done.
    fn encode(&mut self, text: &str, bos: bool) -> Result<Vec<u32>, Unprepared>;
}

fn refused(reason: String) -> FaultKind {
    FaultKind::ParameterInvalid { reason }
}
