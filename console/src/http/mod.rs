//! The part of HTTP/1.1 that the OpenAI API needs: JSON requests and responses, chunked bodies, server-sent events and
//! persistent connections. Parsing is pure (`head.rs`, `body.rs`, `events.rs`); only `client.rs` has sockets. Every
//! length is bounded, every wait has a deadline.
mod api;
mod body;
mod client;
mod events;
#[cfg(test)]
pub(crate) mod fake;
#[cfg(fuzzing)]
pub mod fuzzing;
mod head;
pub mod proxy;
mod request_head;
mod url;

pub use api::{Ask, Gathering, HttpAnswer, HttpProgress, Kind, model, new_request_id, stream};
pub use client::{Api, CONNECT, HttpRequest, Response};
pub use events::{EVENT_BYTES_MAX, EventStreamReader};
pub use head::HttpHead;
pub use url::{HTTP_PORT, Url};
pub(crate) use {body::BodyReader, request_head::RequestLines};

/// Maximum size in bytes of a body that is read as a whole.
pub const BODY_BYTES_MAX: usize = 8 << 20;

/// Why a request failed. `at` is `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the values that the message of each variant prints")]
pub enum HttpError {
    /// The URL is invalid or has an unsupported scheme.
    #[error("{url}: {reason}")]
    Url { url: String, reason: &'static str },
    /// The connection cannot be opened.
    #[error("cannot reach {at}: {reason}")]
    Unreachable { at: String, reason: String },
    /// The time limit expired.
    #[error("{at}: {what} took longer than {seconds} s")]
    Timeout { at: String, what: &'static str, seconds: u64 },
    /// The connection broke before the response was complete.
    #[error("{at}: the connection broke: {reason}")]
    Lost { at: String, reason: String },
    /// The response is not a valid response of the API.
    #[error("{at} sent an invalid OpenAI API response: {reason}")]
    Malformed { at: String, reason: String },
    /// The server responded with an error.
    #[error("{at} answered {status}: {message}")]
    Refused { at: String, status: u16, code: String, message: String, retry_after_seconds: Option<u32> },
    /// A repeated request had a different answer.
    #[error("{at} sent a different answer from byte {after} on when the request was repeated")]
    Diverged { at: String, after: usize },
}

impl HttpError {
    /// The stable error code in `--json` output.
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

    /// `HOST:PORT` of the server, if the URL was valid.
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

    /// The next step.
    pub fn next(&self) -> &'static str {
        match self {
            Self::Url { .. } => "pass --url http://HOST:PORT; for https, use a proxy that terminates TLS",
            Self::Unreachable { .. } => {
                "check that brambled runs there and listens on this address: --http (default 127.0.0.1:9980)"
            }
            Self::Timeout { .. } => "check the load of the node, or increase --timeout",
            Self::Lost { .. } | Self::Diverged { .. } => "send the request again",
            Self::Malformed { .. } => "check that the port is that of --http, not of --listen",
            Self::Refused { status: 401 | 403, .. } => "set --api-key or BRAMBLE_API_KEY",
            Self::Refused { status: 404, .. } => "omit --model to use the served model",
            Self::Refused { status: 413, .. } => "shorten the prompt",
            Self::Refused { status: 429 | 503, .. } => "try again later",
            Self::Refused { .. } => "correct the request, or check the log of the node",
        }
    }

    /// Whether the error is temporary, so that the same request may succeed soon.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Timeout { .. } | Self::Lost { .. })
            || matches!(self, Self::Refused { status: 429 | 502 | 503 | 504, .. })
    }
}
