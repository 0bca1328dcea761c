//! HTTP/1.1 as far as the OpenAI API needs it: JSON asked and answered, chunked bodies, server-sent events, connections used again.
//! Parsing is pure (`head.rs`, `body.rs`, `events.rs`); only `client.rs` has a socket. Every length has a bound, every wait a deadline.
mod api;
#[cfg(test)]
mod api_tests;
mod body;
mod client;
mod events;
#[cfg(test)]
pub(crate) mod fake;
mod head;
mod request_head;
mod url;

pub use api::{Answer, Ask, Gathering, Kind, Told, model, new_request_id, stream};
pub use client::{Api, CONNECT, Request, Response};
pub use events::{EVENT_BYTES_MAX, Events};
pub use head::Head;
pub use url::{HTTP_PORT, Url};
pub(crate) use {body::BodyReader, request_head::RequestLines};

/// Most bytes of a body that is read as a whole.
pub const BODY_BYTES_MAX: usize = 8 << 20;

/// Why a request has no answer. `at` is `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the values that the message of each variant prints")]
pub enum HttpError {
    /// No such address, or only one that this program does not speak.
    #[error("{url}: {reason}")]
    Url { url: String, reason: &'static str },
    /// No connection.
    #[error("{at} cannot be reached: {reason}")]
    Unreachable { at: String, reason: String },
    /// Something took too long.
    #[error("{at}: {what} took longer than {seconds} s")]
    Timeout { at: String, what: &'static str, seconds: u64 },
    /// The connection broke before the answer was whole.
    #[error("{at}: the connection broke: {reason}")]
    Lost { at: String, reason: String },
    /// What came is not what was asked for.
    #[error("{at} sent no answer of an OpenAI API: {reason}")]
    Malformed { at: String, reason: String },
    /// The server said no.
    #[error("{at} answered {status}: {message}")]
    Refused { at: String, status: u16, code: String, message: String, retry_after_seconds: Option<u32> },
    /// An answer that was asked for again began otherwise.
    #[error("{at} began another answer when it was asked again after the connection broke, from byte {after} on")]
    Diverged { at: String, after: usize },
}

impl HttpError {
    /// The stable name in `--json` output.
    pub fn code(&self) -> &str {
        match self {
            Self::Url { .. } => "url",
            Self::Unreachable { .. } => "unreachable",
            Self::Timeout { .. } => "timeout",
            Self::Lost { .. } => "connection_lost",
            Self::Malformed { .. } => "malformed_answer",
            Self::Refused { code, .. } => code,
            Self::Diverged { .. } => "answer_diverged",
        }
    }

    /// `HOST:PORT` of the server, where there is one.
    pub fn at(&self) -> Option<&str> {
        match self {
            Self::Url { .. } => None,
            Self::Unreachable { at, .. }
            | Self::Timeout { at, .. }
            | Self::Lost { at, .. }
            | Self::Malformed { at, .. }
            | Self::Refused { at, .. }
            | Self::Diverged { at, .. } => Some(at),
        }
    }

    /// What to do.
    pub fn next(&self) -> &'static str {
        match self {
            Self::Url { .. } => "give --url http://HOST:PORT; for https put a proxy that ends TLS in front",
            Self::Unreachable { .. } => {
                "look whether brambled runs there and with which --http (default 127.0.0.1:9980)"
            }
            Self::Timeout { .. } => "look at the load of the node, or give a longer --timeout",
            Self::Lost { .. } | Self::Diverged { .. } => "ask again",
            Self::Malformed { .. } => "look whether the port is that of --http, not of --listen",
            Self::Refused { status: 401 | 403, .. } => "set --api-key or BRAMBLE_API_KEY",
            Self::Refused { status: 404, .. } => "console generate without --model takes the model that is served",
            Self::Refused { status: 413, .. } => "shorten the prompt",
            Self::Refused { status: 429 | 503, .. } => "try again a little later",
            Self::Refused { .. } => "correct the request, or look at the log of the node",
        }
    }

    /// Whether the same request may well be answered in a moment.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. } | Self::Lost { .. })
            || matches!(self, Self::Refused { status: 429 | 502 | 503 | 504, .. })
    }
}
