//! What goes wrong with a request, in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`. Every message ends with
//! the next step.
use axum::{
    Json,
    http::{HeaderValue, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use shared::protocol::error::{Fault, FaultClass, FaultKind};

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
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: &str, message: String) -> Self {
        Self { status, kind, code: code.into(), param: None, message, retry_after: None }
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

    /// The body did not come in time.
    pub(super) fn body_overdue(seconds: u64) -> Self {
        let message = format!("the body did not arrive within {seconds} s; send it faster");
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

    /// The object that clients get.
    pub(super) fn object(&self) -> Value {
        let Self { message, kind, param, code, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
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
        response
    }
}
