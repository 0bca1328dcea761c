//! Errors of requests, in OpenAI's format: `{"error": {"message", "type", "param", "code"}}`. Every message ends with
//! what to do next.
use axum::{
    Json,
    http::{HeaderName, HeaderValue, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use common::{
    browser::Refusal,
    fault::{Fault, FaultClass, FaultKind},
};
use serde_json::{Value, json};

/// Clients of OpenAI's API retry 408, 409, 429 and 5xx by themselves unless this header is `false`.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// Status that Google's APIs use for a cancelled call. No status of RFC 9110 fits, and clients do not retry this one.
const CANCELLED: u16 = 499;

/// A refusal or failure of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    /// OpenAI's error type.
    kind: &'static str,
    pub(super) code: String,
    param: Option<String>,
    message: String,
    /// Seconds after which a retry is worthwhile.
    retry_after: Option<u64>,
    /// Whether a retry would do harm, cannot succeed, or is against the operator's intention.
    pub(super) is_final: bool,
    detail: Option<Box<ErrorDetail>>,
}

/// What belongs to some errors.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ErrorDetail {
    /// The incomplete answer.
    Partial(Value),
    /// The prompt has too many tokens.
    Excess(PromptExcess),
}

/// The tokens of a prompt that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PromptExcess {
    /// At least so many.
    pub(super) tokens: usize,
    /// Most that a prompt may have.
    pub(super) context: usize,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, code: &str, message: String) -> Self {
        let (code, param, retry_after, is_final, detail) = (code.into(), None, None, false, None);
        Self { status, kind, code, param, message, retry_after, is_final, detail }
    }

    /// A parameter with an invalid value.
    pub(super) fn invalid(param: &str, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", "invalid_value", message.into());
        Self { param: Some(param.into()), ..error }
    }

    /// A body that is not a valid request.
    pub(super) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", "malformed_request", message.into())
    }

    /// No key, or a wrong one.
    pub(super) fn unauthorized() -> Self {
        let message = "missing or invalid API key; send Authorization: Bearer KEY with a key from this node's settings";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", "invalid_api_key", message.into())
    }

    /// A path that does not exist.
    pub(super) fn no_such_path(path: &str) -> Self {
        let path: String = path.chars().take(100).collect();
        let message = format!("{path} is not served; the paths are in /openapi.json, for example /v1/chat/completions");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", "not_found", message)
    }

    /// A model that is not served.
    pub(super) fn no_such_model(asked: &str, served: &[&str]) -> Self {
        let asked: String = asked.chars().take(100).collect();
        let message = format!("model {asked:?} is not served here; ask for {} (see /v1/models)", either(served));
        let error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", "model_not_found", message);
        Self { param: Some("model".into()), ..error }
    }

    /// A model that is unknown, while a node that may serve it does not answer.
    pub(super) fn model_perhaps_away(asked: &str, served: &[&str], node: &str) -> Self {
        let asked: String = asked.chars().take(100).collect();
        let message = format!(
            "model {asked:?} is not served by the nodes that answer, and {node} does not answer; try again later, or ask \
             for {}",
            either(served)
        );
        Self { param: Some("model".into()), ..Self::not_serving("model_unknown", message, 5) }
    }

    /// A model that is not served, and whose file no node has.
    pub(super) fn no_such_file(asked: &str, served: &[&str]) -> Self {
        let asked: String = asked.chars().take(100).collect();
        let message = format!(
            "model {asked:?} is not served here, and no node has its file; download it with /api/pull, or ask for {}",
            either(served)
        );
        let error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", "model_not_found", message);
        Self { param: Some("model".into()), ..error }
    }

    /// A model that cannot be loaded for a request.
    pub(super) fn not_loaded(model: &str, why: &str) -> Self {
        Self::not_serving("model_not_loaded", format!("cannot load {model}: {why}"), 10)
    }

    /// A model that is not loaded yet. Asked for again, it may be.
    pub(super) fn still_loading(model: &str, seconds: u64) -> Self {
        let model: String = model.chars().take(100).collect();
        let message = format!("model {model:?} is not loaded after {seconds} s; ask for it again in 10 s");
        Self::not_serving("model_loading", message, 10)
    }

    /// A file that a topology uses.
    pub(super) fn model_in_use(model: &str) -> Self {
        let model: String = model.chars().take(100).collect();
        let message = format!("model {model:?} is served; unload it first with console topology unload");
        Self::new(StatusCode::CONFLICT, "invalid_request_error", "model_in_use", message)
    }

    /// Whether no node serves the model that a request names.
    pub(super) fn is_of_unknown_model(&self) -> bool {
        self.code == "model_not_found"
    }

    /// Several models are served, and the request names none.
    pub(super) fn model_needed(served: &[&str]) -> Self {
        let message = format!("several models are served here; set model to {}", either(served));
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", "model_required", message);
        Self { param: Some("model".into()), ..error }
    }

    /// A response that is not kept on this node.
    pub(super) fn no_such_response(id: &str) -> Self {
        let id: String = id.chars().take(100).collect();
        let message = format!("response {id:?} is not kept on this node (any more); send its conversation as input");
        let error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", "response_not_found", message);
        Self { param: Some("id".into()), ..error }
    }

    /// A response to continue that is not kept on this node.
    pub(super) fn no_earlier_response(id: &str) -> Self {
        let (status, param) = (StatusCode::BAD_REQUEST, Some("previous_response_id".into()));
        Self { status, param, code: "previous_response_not_found".into(), ..Self::no_such_response(id) }
    }

    /// A request to download or delete models.
    pub(super) fn models_fixed() -> Self {
        let message = "models are downloaded and deleted only with a key of operator_api_keys; or the cluster's operator \
            does it with `console model`";
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", "models_fixed", message.into())
    }

    /// A method that the path does not support.
    pub(super) fn wrong_method(method: &str, path: &str) -> Self {
        let (method, path): (String, String) = (method.chars().take(20).collect(), path.chars().take(100).collect());
        let message = format!(
            "{path} does not support {method}; use POST for answers and GET for everything else (see /openapi.json)"
        );
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "method_not_allowed", message)
    }

    /// A body that is too long.
    pub(super) fn too_large(most: usize) -> Self {
        let message = format!("the body has more than {most} bytes; shorten the prompt");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", "body_too_large", message)
    }

    /// A body in an encoding that this server does not decode.
    pub(super) fn unknown_encoding(encoding: &str) -> Self {
        let encoding: String = encoding.chars().take(40).collect();
        let message = format!("Content-Encoding {encoding:?} is not supported; use gzip, deflate or none");
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(status, "invalid_request_error", "unsupported_content_encoding", message)
    }

    /// A request that a web page may have caused, or whose body is not declared as JSON.
    pub(super) fn refused(refusal: &Refusal) -> Self {
        let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::FORBIDDEN);
        Self::new(status, "invalid_request_error", refusal.code(), refusal.to_string())
    }

    /// A prompt that is too large for any node.
    pub(super) fn prompt_too_large(param: &str, bytes: usize, most: usize) -> Self {
        let message = format!("{param} has {bytes} bytes or more, at most {most}; shorten it");
        let error = Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", "prompt_too_large", message);
        Self { param: Some(param.into()), ..error }
    }

    /// A prompt with at least `tokens` tokens, more than the context. Clients recognize the text and shorten their
    /// conversations: Claude Code the part before the semicolon, LiteLLM and others the part behind it.
    pub(super) fn prompt_exceeds_context(tokens: usize, context: usize) -> Self {
        let message = format!(
            "prompt is too long: at least {tokens} tokens > {context} maximum; this model's maximum context length is \
             {context} tokens; shorten the prompt, or use a model or topology with a longer context"
        );
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", "context_length_exceeded", message);
        let detail = Some(Box::new(ErrorDetail::Excess(PromptExcess { tokens, context })));
        Self { param: Some("prompt".into()), detail, ..error }
    }

    /// Prompts of all choices that exceed the memory limit of a request.
    pub(super) fn prompts_too_large(bytes: usize, most: usize) -> Self {
        let message =
            format!("the prompts of all choices take {bytes} bytes, at most {most}; request fewer or shorten them");
        let error = Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", "prompt_too_large", message);
        Self { param: Some("n".into()), ..error }
    }

    /// Other requests hold the memory for bodies.
    pub(super) fn bodies_full(most: usize) -> Self {
        let message = format!("other requests hold the {most} bytes for bodies and prompts; try again in 1 s");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "bodies_full", message);
        Self { retry_after: Some(1), ..error }
    }

    /// The answer's log probabilities find no room; `all` have room together.
    pub(super) fn scores_full(count: usize, all: usize) -> Self {
        if count > all {
            let message = format!("the answers have more than {all} log probabilities; stream them, or ask for fewer");
            return Self::invalid("logprobs", message);
        }
        let message = format!(
            "the log probabilities of other answers take the memory of {all}; stream the answer, or try again in 1 s"
        );
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "logprobs_full", message);
        Self { retry_after: Some(1), ..error }
    }

    /// All connections that may send this request are busy.
    pub(super) fn connections_full() -> Self {
        let message = "all connections of this node are busy; try again in 1 s (/health and /metrics still answer)";
        let error =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "connections_full", message.into());
        Self { retry_after: Some(1), ..error }
    }

    /// The body arrived too slowly.
    pub(super) fn body_overdue(seconds: u64, pace: usize) -> Self {
        let message = format!("the body did not arrive within {seconds} s; send at least {pace} bytes a second");
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", "body_timeout", message)
    }

    /// The queue is full.
    pub(super) fn queue_full(waiting: usize, retry_after: u64) -> Self {
        let message = format!("the queue is full ({waiting} requests); try again in {retry_after} s or add a replica");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "queue_full", message);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// No slot became free in time.
    pub(super) fn queue_overdue(seconds: u64, retry_after: u64) -> Self {
        let message = format!("no slot became free within {seconds} s; try again in {retry_after} s or add a replica");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "queue_timeout", message);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// Nothing serves; `why` explains the reason and the next step.
    pub(super) fn not_serving(code: &str, why: String, retry_after: u64) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", code, why);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// The request took longer than allowed. Sent again, it would take as long.
    pub(super) fn overdue(seconds: u64) -> Self {
        let message =
            format!("the request took longer than {seconds} s; request fewer tokens (http_request_ms sets the limit)");
        let error = Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", "request_timeout", message);
        Self { is_final: true, ..error }
    }

    /// The node shuts down before the answer is complete.
    pub(super) fn shutting_down() -> Self {
        let message = "this node is shutting down and its drain is over; use another node, or this one when it is back";
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "shutting_down", message.into());
        Self { retry_after: Some(5), ..error }
    }

    /// Another model is served than the one that began the answer.
    pub(super) fn model_replaced(tokens: usize) -> Self {
        let message = format!(
            "the model was replaced or unloaded after {tokens} tokens of this answer, and no other one can continue it; \
                send the request again"
        );
        Self::not_serving("model_replaced", message, 1)
    }

    /// An operator cancelled the answer. It is an error, not a finish reason: OpenAI's finish reasons all mean a usable
    /// answer.
    pub(super) fn cancelled(tokens: usize) -> Self {
        let status = StatusCode::from_u16(CANCELLED).unwrap_or(StatusCode::BAD_REQUEST);
        let message = format!(
            "an operator cancelled the request after {tokens} tokens, so its text is incomplete; \
                ask the operator before sending it again"
        );
        Self { is_final: true, ..Self::new(status, "cancelled", "cancelled", message) }
    }

    /// Adds the incomplete answer to an error that occurred after the answer had begun.
    pub(super) fn with_partial(self, answer: impl FnOnce() -> Value) -> Self {
        if self.code != "cancelled" {
            return self;
        }
        Self { detail: Some(Box::new(ErrorDetail::Partial(answer()))), ..self }
    }

    /// Names the field that holds the prompt; a node cannot.
    pub(super) fn about(self, field: &str) -> Self {
        let is_of_prompt = matches!(self.param.as_deref(), Some("prompt" | "messages"));
        if is_of_prompt { Self { param: Some(field.into()), ..self } } else { self }
    }

    /// The tokens of the prompt, if it has too many.
    pub(super) fn excess(&self) -> Option<PromptExcess> {
        match self.detail.as_deref() {
            Some(ErrorDetail::Excess(excess)) => Some(*excess),
            _ => None,
        }
    }

    /// The text for people, with the next step.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// The JSON object for clients.
    pub(super) fn object(&self) -> Value {
        let Self { message, kind, param, code, .. } = self;
        let mut object = match self.detail.as_deref() {
            Some(ErrorDetail::Partial(answer)) => answer.clone(),
            _ => json!({}),
        };
        object["error"] = json!({"message": message, "type": kind, "param": param, "code": code});
        object
    }
}

impl From<&Fault> for ApiError {
    /// Converts a node's fault, including its next step.
    fn from(fault: &Fault) -> Self {
        let message = format!("{fault}; {}", fault.next());
        let code = fault.kind.code();
        let client = |param: &str| {
            let error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", code, message.clone());
            Self { param: Some(param.into()), ..error }
        };
        match (&fault.kind, fault.kind.class()) {
            (FaultKind::PromptTooLong { tokens, context }, _) => {
                Self::prompt_exceeds_context(*tokens as usize, *context as usize)
            }
            (FaultKind::PromptEmpty, _) => client("prompt"),
            (FaultKind::NoTemplate, _) => client("messages"),
            (FaultKind::PeerOlder { .. }, _) => {
                let error = Self::new(StatusCode::NOT_IMPLEMENTED, "server_error", code, message);
                Self { is_final: true, ..error }
            }
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
        // Other APIs write it in a form of their own.
        response.extensions_mut().insert(self);
        response
    }
}

/// Names as a choice.
fn either(names: &[&str]) -> String {
    match names {
        [] => "a model that is assigned".into(),
        [before @ .., last] if !before.is_empty() => {
            let before: Vec<String> = before.iter().map(|name| format!("{name:?}")).collect();
            format!("{} or {last:?}", before.join(", "))
        }
        [name, ..] => format!("{name:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_that_is_too_old_is_named_with_its_version() {
        let kind = FaultKind::PeerOlder { version: 10, what: "RequestBody::Text".into() };
        let error = ApiError::from(&Fault::new("pi2", kind));
        assert_eq!((error.status.as_u16(), error.code.as_str(), error.is_final), (501, "peer_older", true));
        assert!(["pi2", "version 10", "upgrade"].iter().all(|part| error.message.contains(part)), "{}", error.message);
    }

    #[test]
    fn too_long_prompt_has_the_texts_that_clients_look_for() {
        let fault = Fault::new("pi2", FaultKind::PromptTooLong { tokens: 9000, context: 8192 });
        for error in [ApiError::from(&fault), ApiError::prompt_exceeds_context(9000, 8192)] {
            assert_eq!((error.status.as_u16(), error.code.as_str()), (400, "context_length_exceeded"));
            for part in [
                "prompt is too long: at least 9000 tokens > 8192 maximum",
                "this model's maximum context length is 8192 tokens",
                "shorten",
            ] {
                assert!(error.message.contains(part), "{part}: {}", error.message);
            }
            assert_eq!(error.about("input").param.as_deref(), Some("input"));
        }
    }

    #[test]
    fn requests_that_took_too_long_are_not_repeated() {
        let response = ApiError::overdue(600).into_response();
        let header = response.headers().get(SHOULD_RETRY).and_then(|value| value.to_str().ok());
        assert_eq!((response.status().as_u16(), header), (504, Some("false")));
    }
}
