//! The web page for people without a terminal: static files inside the program. They hold no data and need no key; the page
//! asks for everything over the API, with the key that its user types.
#[cfg(test)]
mod tests;

use axum::{
    extract::{Path, Request},
    http::{HeaderName, Method, header},
    response::{IntoResponse, Redirect, Response},
};

use super::error::ApiError;

/// Address of the page. Its files lie next to it and name each other and the API by relative paths.
const PAGE: &str = "/ui/";
const HTML: &str = include_str!("index.html");

/// Headers of all files. The page runs only its own files, talks only to the node that it came from, and cannot be put
/// into the frame of another page. Browsers keep no copy: after an upgrade it would not fit the node. The referrer stays
/// within the node; without any, some browsers hide the origin of requests from the node, too.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
            form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

/// Whether a browser opens this node's address without a path. Programs ask for other types, or for any.
pub(super) fn opens_page(request: &Request) -> bool {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let accepted = request.headers().get_all(header::ACCEPT);
    is_read
        && request.uri().path() == "/"
        && accepted.iter().any(|types| types.to_str().is_ok_and(|types| types.contains("text/html")))
}

/// Redirects to the page.
pub(super) async fn to_page() -> Response {
    Redirect::to(PAGE).into_response()
}

/// Returns the page.
pub(super) async fn page() -> Response {
    served("text/html; charset=utf-8", HTML)
}

/// Returns a style sheet or a script of the page.
///
/// # Errors
/// There is no such file.
pub(super) async fn file(Path(name): Path<String>) -> Result<Response, ApiError> {
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    Ok(match name.as_str() {
        "page.css" => served("text/css; charset=utf-8", include_str!("page.css")),
        "page.js" => served(SCRIPT, include_str!("page.js")),
        "api.js" => served(SCRIPT, include_str!("api.js")),
        "chat.js" => served(SCRIPT, include_str!("chat.js")),
        "status.js" => served(SCRIPT, include_str!("status.js")),
        "text.js" => served(SCRIPT, include_str!("text.js")),
        _ => return Err(ApiError::no_such_path(&format!("{PAGE}{name}"))),
    })
}

fn served(kind: &'static str, text: &'static str) -> Response {
    (HEADERS, [(header::CONTENT_TYPE, kind)], text).into_response()
}
