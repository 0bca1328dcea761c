//! What goes wrong with a request, in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`. Every message ends with
//! the next step.
use axum::{
    Json,
    http::{HeaderName, HeaderValue, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use shared::{
    browser::Refusal,
    protocol::error::{Fault, FaultClass, FaultKind},
};

/// Clients of OpenAI's API send 408, 409, 429 and 5xx again by themselves unless this header says `false`.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// What Google's APIs answer for a call that was cancelled. No status of RFC 9110 says it, and clients do not send it again.
const CANCELLED: u16 = 499;

/// A refusal or failure of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    /// OpenAI's class of it.
    kind: &'static str,
    pub(super) code: String,
    param: Option<String>,
    message: String,
    /// Seconds after which it is worth trying again.
    retry_after: Option<u64>,
    /// Sending the same again would do harm, or is against the operator's will.
    is_final: bool,
    /// What there is of the answer.
    partial: Option<Box<Value>>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: &str, message: String) -> Self {
        let (code, param, retry_after, is_final, partial) = (code.into(), None, None, false, None);
        Self { status, kind, code, param, message, retry_after, is_final, partial }
    }

    /// A parameter that cannot be.
    pub(super) fn invalid(param: &str, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", "invalid_value", message.into());
        Self { param: Some(param.into()), ..error }
    }

    /// A body that is no request.
    pub(super) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", "malformed_request", message.into())
    }

    /// No key, or a wrong one.
    pub(super) fn unauthorized() -> Self {
        let message = "a valid API key is missing; send Authorization: Bearer KEY with a key of this node's settings";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", "invalid_api_key", message.into())
    }

    /// Nothing is there.
    pub(super) fn no_such_path(path: &str) -> Self {
        let path: String = path.chars().take(100).collect();
        let message = format!(
            "{path} is not served; use /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics or /traces"
        );
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", "not_found", message)
    }

    /// A model that is not served.
    pub(super) fn no_such_model(asked: &str, served: &str) -> Self {
        let asked: String = asked.chars().take(100).collect();
        let message = format!("model {asked:?} is not served here; ask for {served:?} (see /v1/models)");
        let error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", "model_not_found", message);
        Self { param: Some("model".into()), ..error }
    }

    /// A method that the path does not know.
    pub(super) fn wrong_method(method: &str, path: &str) -> Self {
        let (method, path): (String, String) = (method.chars().take(20).collect(), path.chars().take(100).collect());
        let message =
            format!("{method} is not understood by {path}; completions are asked for with POST, all else with GET");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "method_not_allowed", message)
    }

    /// A body that is too long.
    pub(super) fn too_large(most: usize) -> Self {
        let message = format!("the body has more than {most} bytes; shorten the prompt");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", "body_too_large", message)
    }

    /// A web page may have caused the request, or its body is not declared as JSON.
    pub(super) fn refused(refusal: &Refusal) -> Self {
        let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::FORBIDDEN);
        Self::new(status, "invalid_request_error", refusal.code(), refusal.to_string())
    }

    /// A prompt that no node takes.
    pub(super) fn prompt_too_large(param: &str, bytes: usize, most: usize) -> Self {
        let message = format!("{param} has {bytes} bytes or more, at most {most}; shorten it");
        let error = Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", "prompt_too_large", message);
        Self { param: Some(param.into()), ..error }
    }

    /// A prompt of more tokens than the context has.
    pub(super) fn prompt_exceeds_context(context: usize) -> Self {
        let message = format!("prompt has more than {context} tokens, which is the context of this model; shorten it");
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", "context_length_exceeded", message);
        Self { param: Some("prompt".into()), ..error }
    }

    /// All choices of a request take more memory than any request may.
    pub(super) fn prompts_too_large(bytes: usize, most: usize) -> Self {
        let message =
            format!("the prompts of all choices take {bytes} bytes, at most {most}; ask for fewer or shorten them");
        let error = Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", "prompt_too_large", message);
        Self { param: Some("n".into()), ..error }
    }

    /// Other requests take the memory for bodies.
    pub(super) fn bodies_full(most: usize) -> Self {
        let message = format!("other requests hold the {most} bytes for bodies and prompts; try again in 1 s");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "bodies_full", message);
        Self { retry_after: Some(1), ..error }
    }

    /// All connections that may ask for this have work.
    pub(super) fn connections_full() -> Self {
        let message = "all connections of this node have work; try again in 1 s (/health and /metrics answer)";
        let error =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "connections_full", message.into());
        Self { retry_after: Some(1), ..error }
    }

    /// The body came too slowly.
    pub(super) fn body_overdue(seconds: u64, pace: usize) -> Self {
        let message =
            format!("the body was not there after {seconds} s; send it faster, at least {pace} bytes a second");
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", "body_timeout", message)
    }

    /// No place in the queue.
    pub(super) fn queue_full(waiting: usize, retry_after: u64) -> Self {
        let message = format!("{waiting} requests wait already; try again in {retry_after} s or add a replica");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "queue_full", message);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// No place came free in time.
    pub(super) fn queue_overdue(seconds: u64, retry_after: u64) -> Self {
        let message = format!("no place came free within {seconds} s; try again in {retry_after} s or add a replica");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "queue_timeout", message);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// Nothing serves; `why` says what is going on and what to do.
    pub(super) fn not_serving(code: &str, why: String, retry_after: u64) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", code, why);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// The request took longer than any may.
    pub(super) fn overdue(seconds: u64) -> Self {
        let message =
            format!("the request took longer than {seconds} s; ask for fewer tokens (http_request_ms bounds it)");
        Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", "request_timeout", message)
    }

    /// The node ends before the answer does.
    pub(super) fn shutting_down() -> Self {
        let message =
            "this node is being shut down and its drain is over; ask another node, or this one when it is back";
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "shutting_down", message.into());
        Self { retry_after: Some(5), ..error }
    }

    /// Another model is served than the one that the answer belongs to.
    pub(super) fn model_replaced(tokens: usize) -> Self {
        let message = format!(
            "another model was assigned after {tokens} tokens of this answer, and no other model continues it; send the request again"
        );
        Self::not_serving("model_replaced", message, 1)
    }

    /// An operator ended the answer. An error, not a reason to finish: OpenAI's reasons all mean an answer that can be used.
    pub(super) fn cancelled(tokens: usize) -> Self {
        let status = StatusCode::from_u16(CANCELLED).unwrap_or(StatusCode::BAD_REQUEST);
        let message = format!(
            "an operator cancelled the request after {tokens} tokens, its text is incomplete; ask the operator before sending it again"
        );
        Self { is_final: true, ..Self::new(status, "cancelled", "cancelled", message) }
    }

    /// With the answer as far as it came, where the error is of an answer that had begun.
    pub(super) fn with_partial(self, answer: impl FnOnce() -> Value) -> Self {
        let partial = (self.code == "cancelled").then(|| Box::new(answer()));
        Self { partial, ..self }
    }

    /// The object that clients get.
    pub(super) fn object(&self) -> Value {
        let Self { message, kind, param, code, .. } = self;
        let mut object = self.partial.as_deref().cloned().unwrap_or_else(|| json!({}));
        object["error"] = json!({"message": message, "type": kind, "param": param, "code": code});
        object
    }
}

impl From<&Fault> for ApiError {
    /// What a node said; its next step goes with it.
    fn from(fault: &Fault) -> Self {
        let message = format!("{fault}; {}", fault.kind.next());
        let code = fault.kind.code();
        let client = |param: &str| {
            let error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", code, message.clone());
            Self { param: Some(param.into()), ..error }
        };
        match (&fault.kind, fault.kind.class()) {
            (FaultKind::PromptTooLong { .. }, _) => {
                Self { code: "context_length_exceeded".into(), ..client("messages") }
            }
            (FaultKind::PromptEmpty, _) => client("prompt"),
            (FaultKind::NoTemplate, _) => client("messages"),
            (FaultKind::ModelReplaced { .. }, _) => Self::not_serving(code, message, 1),
            (FaultKind::EndsHeads { .. }, _) => {
                let error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", code, message);
                Self { is_final: true, ..error }
            }
            (FaultKind::ParameterInvalid { .. }, _) => Self { param: None, ..client("") },
            (FaultKind::QueueFull { .. }, _) => {
                let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", code, message);
                Self { retry_after: Some(1), ..error }
            }
            (_, FaultClass::Refused | FaultClass::Lost | FaultClass::Unreachable) => {
                let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", code, message);
                Self { retry_after: Some(2), ..error }
            }
            (_, FaultClass::Failed) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", code, message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.object())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.is_final {
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }
}
