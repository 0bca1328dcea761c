//! Paths, keys, request ids and bodies: everything about a request except its answer.
use std::{
    hash::{BuildHasher, RandomState},
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Instant,
};

use axum::{
    Json, Router,
    body::{Body, Bytes, HttpBody},
    extract::{Query, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, header},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{MethodRouter, any, delete, get, post},
};
use common::digest::fnv1a;
use hyper::body::{Frame, SizeHint};
use serde_json::{Value, json};
use tower_http::{
    CompressionLevel,
    compression::{
        CompressionLayer,
        predicate::{And, NotForContentType, Predicate, SizeAbove},
    },
    decompression::RequestDecompressionLayer,
};

use super::{
    Gateway, anthropic,
    bodies::SHORT_BYTES,
    changes,
    cluster::seconds_since_1970,
    complete::complete,
    connections::{Visit, Working},
    embeddings,
    error::ApiError,
    intake::{Intake, receive},
    metrics::Moment,
    models, native, nodes, ollama, openai, openapi,
    outline::Bounds,
    pages, paths,
    pool::Held,
    request::{Asked, RUNNING_MAX},
    responses, texts, unread, web,
    writer::{Demand, Framing},
};
use crate::gateway::complete::{Permission, ReceivedRequest};
use crate::gateway::settings::{ApiKey, GatewaySettings};

/// Prompts of short bodies take at most this much unless they continue a conversation that is kept.
const CONTINUED_BYTES: usize = 2 * (RUNNING_MAX + 1) * SHORT_BYTES;
/// Shorter answers are not compressed: they fit into one packet.
const COMPRESSED_BYTES: u16 = 1400;
/// Longest request id accepted from a client.
const ID_BYTES_MAX: usize = 128;
/// Number of traces returned by default.
const TRACES: usize = 32;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Names parts of a schema that are not enforced.
const WARNING: HeaderName = HeaderName::from_static("x-bramble-warning");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Routes of all paths, after the paths are straightened.
pub(super) fn router(gateway: Arc<Gateway>) -> Router {
    let straightened = from_fn(|mut request: Request, next: Next| {
        paths::straighten(request.uri_mut());
        next.run(request)
    });
    Router::new().fallback_service(routes(gateway)).layer(straightened)
}

fn routes(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route("/", get(root))
        .route("/ui", get(web::to_page))
        .route("/ui/", get(web::page))
        .route("/ui/{file}", get(web::file))
        .route("/cluster", get(nodes::get))
        .route("/openapi.json", get(openapi::get))
        .route("/ping", get(health))
        .route("/version", get(version))
        .route("/v1/completions", answering(openai::completion))
        .route("/v1/chat/completions", answering(openai::chat))
        .route("/v1/messages", answering(anthropic::read))
        .route("/v1/messages/count_tokens", post(texts::count_tokens))
        .route("/v1/embeddings", post(embeddings::openai))
        .route("/api/embed", post(embeddings::ollama))
        .route("/api/embeddings", post(embeddings::ollama_one))
        .route("/completion", answering(native::read))
        .route("/tokenize", post(texts::tokenize))
        .route("/detokenize", post(texts::detokenize))
        .route("/apply-template", post(texts::apply_template))
        .route("/tokenizer_info", get(texts::tokenizer_info))
        .route("/props", get(texts::props))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{model}", get(models::get))
        .route("/v1/responses", answering(responses::read))
        .route("/v1/responses/{id}", get(responses::get).delete(responses::delete))
        .route("/api/chat", answering(ollama::chat))
        .route("/api/generate", answering(ollama::generate))
        .route("/api/show", post(ollama::show))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::running))
        .route("/api/version", get(ollama::version))
        .route("/api/pull", post(changes::pull))
        .route("/api/delete", delete(changes::delete))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/traces", get(traces))
        .fallback(any(|request: Request| async move { ApiError::no_such_path(request.uri().path()) }))
        .method_not_allowed_fallback(any(|request: Request| async move {
            ApiError::wrong_method(request.method().as_str(), request.uri().path())
        }))
        // Unknown encodings are refused where the body is read.
        .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
        .layer(from_fn_with_state(Arc::clone(&gateway), around))
        .layer(CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(is_compressed()))
        .with_state(gateway)
}

/// Which answers are compressed for clients that accept it: none in parts, because each part must arrive at once.
fn is_compressed() -> And<And<SizeAbove, NotForContentType>, NotForContentType> {
    let lines = NotForContentType::const_new(Framing::Lines.content_type());
    SizeAbove::new(COMPRESSED_BYTES).and(NotForContentType::SSE).and(lines)
}

/// Wraps every request: assigns its id, checks the key, and counts its status.
async fn around(State(gateway): State<Arc<Gateway>>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let open = request.extensions().get::<Arc<Working>>().cloned();
    let permission = permission(&gateway, request.headers());
    let arrival = ReceivedRequest {
        // A repeated request gives the same text.
        seed: fnv1a(&id),
        id,
        at: Instant::now(),
        created: seconds_since_1970(),
        permission: permission.unwrap_or(Permission::Asks),
    };
    let uri = request.uri().clone();
    let path = known_path(uri.path());
    let id = HeaderValue::from_str(&arrival.id);
    request.extensions_mut().insert(arrival);
    let page = pages::page(&gateway.settings.browsers, &request);
    // Nothing is read for a page that is not allowed, and connections for monitoring are few.
    let (request, unread) =
        if page.is_ok() && !is_reserved(&request) { unread::lend(request) } else { (request, None) };
    let mut response = respond(&page, permission, request, next).await;
    if let Some(unread) = unread {
        unread.drain(response.status(), &gateway.rests).await;
    }
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        response = in_form(uri.path(), &error, response);
    }
    if let Ok(Some(origin)) = page {
        pages::allow(&mut response, origin);
    }
    if let Ok(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    gateway.metrics.answered(path, response.status().as_u16());
    response.map(|body| Body::new(Answering { body, _open: open }))
}

/// The response to a request; the request itself is dropped.
async fn respond(
    page: &Result<Option<HeaderValue>, ApiError>,
    permission: Option<Permission>,
    request: Request,
    next: Next,
) -> Response {
    let is_crowded = is_reserved(&request);
    let path = known_path(request.uri().path());
    match page {
        // Checked first: requests caused by web pages must cost almost nothing.
        Err(refused) => refused.clone().into_response(),
        Ok(Some(_)) if pages::is_preflight(&request) => pages::preflight(request.headers()),
        Ok(_) if is_crowded && !matches!(path, "/health" | "/ping" | "/metrics") => {
            ApiError::connections_full().into_response()
        }
        Ok(_) if is_open(&request) || permission.is_some() => next.run(request).await,
        Ok(_) => ApiError::unauthorized().into_response(),
    }
}

/// Whether a request came on a connection that is reserved for monitoring.
fn is_reserved(request: &Request) -> bool {
    request.extensions().get::<Visit>().is_some_and(|visit| visit.is_reserved)
}

/// Whether a request needs no key: one for the state of the node, or for the page, which asks its user for a key.
fn is_open(request: &Request) -> bool {
    let path = request.uri().path();
    matches!(path, "/health" | "/ping" | "/ui") || path.starts_with("/ui/") || web::opens_page(request)
}

/// An error in the form of the API that the path belongs to.
fn in_form(path: &str, error: &ApiError, response: Response) -> Response {
    let object = match path {
        path if path == "/v1/messages" || path.starts_with("/v1/messages/") => anthropic::error(error),
        path if path.starts_with("/api/") => ollama::error(error),
        _ => return response,
    };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(object.to_string()))
}

/// The client's id if it is short visible ASCII, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    given
        .filter(|id| (1..=ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()))
        .map_or_else(new_id, Into::into)
}

/// 16 random hexadecimal digits.
fn new_id() -> String {
    format!("{:016x}", RandomState::new().hash_one(0))
}

/// What a request's key permits; `None`: it needs another one.
fn permission(gateway: &Gateway, headers: &HeaderMap) -> Option<Permission> {
    let GatewaySettings { keys, operator_keys, listen, .. } = &gateway.settings;
    let given = given_key(headers);
    // All keys are compared, even after a match.
    let is_among = |keys: &[ApiKey]| keys.iter().fold(false, |found, key| key.is(given) | found);
    let (is_client, is_operator) = (is_among(keys), is_among(operator_keys));
    let is_open =
        keys.is_empty() && (operator_keys.is_empty() || listen.is_none_or(|listen| listen.ip().is_loopback()));
    match (is_operator, is_client || is_open) {
        (true, _) => Some(Permission::ChangesModels),
        (false, true) => Some(Permission::Asks),
        (false, false) => None,
    }
}

/// The key of a request: `Authorization: Bearer KEY`, with the scheme in any case, or `x-api-key: KEY`.
pub(super) fn given_key(headers: &HeaderMap) -> &[u8] {
    if let Some(value) = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes) {
        let scheme = value.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case(b"Bearer "));
        return scheme.map_or(&[], |_| &value[7..]);
    }
    headers.get("x-api-key").map_or(&[], HeaderValue::as_bytes)
}

/// The path as a metric label; all unknown paths share one.
pub(super) fn known_path(path: &str) -> &'static str {
    let known = [
        "/",
        "/api/chat",
        "/api/delete",
        "/api/generate",
        "/api/ps",
        "/api/pull",
        "/api/show",
        "/api/tags",
        "/api/version",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/messages/count_tokens",
        "/api/embed",
        "/api/embeddings",
        "/v1/models",
        "/v1/responses",
        "/apply-template",
        "/cluster",
        "/completion",
        "/detokenize",
        "/health",
        "/metrics",
        "/openapi.json",
        "/ping",
        "/props",
        "/tokenize",
        "/tokenizer_info",
        "/traces",
        "/version",
    ];
    if path == "/ui" || path.starts_with("/ui/") {
        return "/ui/";
    }
    known.into_iter().find(|known| path == *known).unwrap_or("other")
}

/// Reads a body in the form of one API.
type ReadBody = fn(&Gateway, &[u8], &ReceivedRequest, Bounds) -> Result<Demand, ApiError>;

/// A path whose requests are read by `read`.
fn answering(read: ReadBody) -> MethodRouter<Arc<Gateway>> {
    post(move |State(gateway): State<Arc<Gateway>>, request: Request| ask(gateway, read, request))
}

async fn ask(gateway: Arc<Gateway>, read: ReadBody, request: Request) -> Result<Response, ApiError> {
    let shared = Arc::clone(&gateway);
    let intake = receive(&gateway, request, true, move |bytes, arrival, bounds| read(&shared, bytes, arrival, bounds));
    let Intake { parsed: demand, mut held, is_long, arrival, working } = intake.await?;
    if let Demand::Answer(asked, _) = &demand {
        // A short request may continue a long conversation that is kept here.
        let is_continued = !is_long && asked.bytes() > CONTINUED_BYTES;
        if is_continued {
            held = Held::default();
        }
        if is_long || is_continued {
            gateway.bodies.settle(&mut held, asked.bytes())?;
        }
    }
    let (asked, writer) = match demand {
        Demand::Answer(asked, writer) => (*asked, writer),
        Demand::Known(model, describe) => {
            let served = gateway.served_for(model.as_deref(), arrival.permission).await?;
            return Ok(Json(describe(&served)).into_response());
        }
    };
    let warning = warning(&asked);
    let mut response = complete(gateway, asked, writer, held, arrival).await?;
    if let Some(warning) = warning {
        response.headers_mut().insert(WARNING, warning);
    }
    Ok(response.map(|body| Body::new(Answering { body, _open: working.map(Arc::new) })))
}

/// What of the request's schemas the answer may violate, for the client.
fn warning(asked: &Asked) -> Option<HeaderValue> {
    let names: Vec<&str> = asked.unenforced.iter().map(String::as_str).collect();
    let is_any = !names.is_empty();
    HeaderValue::from_str(&format!("not enforced: {}", names.join(", "))).ok().filter(|_| is_any)
}

/// The body of an answer; a count of its connection ends when it is written.
struct Answering {
    body: Body,
    _open: Option<Arc<Working>>,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

async fn root(request: Request) -> Response {
    let vary = [(header::VARY, "accept")];
    if web::opens_page(&request) {
        return (vary, web::to_page().await).into_response();
    }
    (vary, Json(json!({"name": "bramble", "version": VERSION, "api": "/v1"}))).into_response()
}

async fn version() -> Json<Value> {
    Json(json!({"version": VERSION}))
}

async fn health(State(gateway): State<Arc<Gateway>>) -> Response {
    let (code, object) = gateway.standing(None).answer(&gateway.identity.name, gateway.admission.occupancy());
    (code, Json(object)).into_response()
}

async fn metrics(State(gateway): State<Arc<Gateway>>) -> Response {
    let own = gateway.cluster.own();
    let moment = Moment {
        occupancy: gateway.admission.occupancy(),
        own: own.as_ref().map(|seen| &*seen.report),
        running: gateway.running.load(Ordering::Relaxed),
        culprits: gateway.cluster.culprits(),
        replicas: gateway
            .cluster
            .replicas()
            .iter()
            .map(|replica| {
                let (running, is_out) = gateway.admission.standing(&replica.head);
                (replica.name.clone(), running, replica.is_serving, is_out)
            })
            .collect(),
    };
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, gateway.metrics.text(&moment)).into_response()
}

async fn traces(
    State(gateway): State<Arc<Gateway>>,
    Query(query): Query<std::collections::HashMap<String, String>>,
) -> Result<Json<Value>, ApiError> {
    let limit = match query.get("limit") {
        None => TRACES,
        Some(text) => text.parse().map_err(|_| ApiError::invalid("limit", "limit must be a whole number; give one"))?,
    };
    Ok(Json(json!({"object": "list", "data": gateway.traces.latest(limit)})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_where_clients_put_them() {
        for (name, value, expected) in [
            ("authorization", "Bearer a", "a"),
            ("authorization", "bearer a", "a"),
            ("authorization", "Basic a", ""),
            ("authorization", "Be", ""),
            ("x-api-key", "a", "a"),
        ] {
            let headers = HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
            assert_eq!(given_key(&headers), expected.as_bytes(), "{name}: {value}");
        }
    }
}
