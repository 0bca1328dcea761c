//! Requests that web pages cause: refused before their bodies are read, unless the operator allows the page; then browsers get the headers
//! that let it read the answer (CORS).
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::Response,
};
use shared::browser::{BrowserPolicy, RequestHead, check_json};

use super::error::ApiError;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");
/// What a page may read of an answer's headers.
const EXPOSED: &str = "x-request-id, retry-after";
/// Headers that a page may send where it does not say which.
const HEADERS: &str = "authorization, content-type, x-request-id";
/// Seconds for which a browser may remember that a page is allowed.
const REMEMBERED: &str = "600";

/// The value of a header; one that is no text is U+FFFD, which no rule allows.
fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"))
}

/// Whether a request may go on: the origin of the allowed page that asks, or `None` where no page does.
///
/// # Errors
/// A page may have caused it that is not allowed.
pub(super) fn page(policy: &BrowserPolicy, request: &Request) -> Result<Option<HeaderValue>, ApiError> {
    let headers = request.headers();
    let mut hosts: Vec<&str> =
        headers.get_all(header::HOST).iter().map(|value| value.to_str().unwrap_or("\u{fffd}")).collect();
    hosts.extend(request.uri().authority().map(|authority| authority.as_str()));
    let head = RequestHead { hosts, origin: text(headers, header::ORIGIN), site: text(headers, FETCH_SITE) };
    let origin = policy.check(&head).map_err(|refusal| ApiError::refused(&refusal))?;
    Ok(origin.and_then(|_| headers.get(header::ORIGIN).cloned()))
}

/// Whether a body is declared as JSON.
///
/// # Errors
/// It is not.
pub(super) fn json(headers: &HeaderMap) -> Result<(), ApiError> {
    check_json(text(headers, header::CONTENT_TYPE)).map_err(|refusal| ApiError::refused(&refusal))
}

/// Whether a browser asks what an allowed page may do.
pub(super) fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// What it may do.
pub(super) fn preflight(request: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    let asked = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let allowed = asked.unwrap_or(HeaderValue::from_static(HEADERS));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(REMEMBERED));
    if request.contains_key(PRIVATE_NETWORK) {
        headers.insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
    }
    response
}

/// Lets the page at `origin` read an answer.
pub(super) fn allow(response: &mut Response, origin: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    headers.append(header::VARY, HeaderValue::from_static("origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&'static str, &'static str)]) -> Request {
        let mut request = Request::new(Body::empty());
        for (name, value) in headers {
            request.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        request
    }

    #[test]
    fn a_page_is_refused_unless_its_origin_is_allowed() {
        let closed = BrowserPolicy::new(&["pi1".into()], &[], &[]).expect("it is good");
        let open = BrowserPolicy::new(&["pi1".into()], &[], &["https://chat.example".into()]).expect("it is good");
        let good = [("host", "pi1:9980"), ("origin", "https://chat.example")];
        assert_eq!(page(&open, &request(&good)), Ok(Some(HeaderValue::from_static("https://chat.example"))));
        assert_eq!(page(&open, &request(&good[..1])), Ok(None));
        for (policy, bad) in [
            (&closed, &good[..]),
            (&open, &[("host", "evil.example"), ("origin", "https://chat.example")]),
            (&open, &[("host", "pi1"), ("host", "evil.example")]),
            (&open, &[("host", "pi1"), ("sec-fetch-site", "cross-site")]),
            (&open, &[("host", "pi1"), ("origin", "null")]),
        ] {
            let refused = page(policy, &request(bad)).expect_err("it is refused");
            assert_eq!(refused.status, StatusCode::FORBIDDEN, "{bad:?}");
        }
        let mut absolute = request(&[("host", "pi1")]);
        *absolute.uri_mut() = "http://evil.example/health".parse().expect("a URL");
        assert!(page(&open, &absolute).is_err(), "the URL's own name counts, too");
    }

    #[test]
    fn a_preflight_is_told_what_an_allowed_page_may_do() {
        let mut asked = request(&[
            ("origin", "https://chat.example"),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,x-stainless-lang"),
            ("access-control-request-private-network", "true"),
        ]);
        assert!(!is_preflight(&asked));
        *asked.method_mut() = Method::OPTIONS;
        assert!(is_preflight(&asked));
        let mut response = preflight(asked.headers());
        allow(&mut response, HeaderValue::from_static("https://chat.example"));
        let value = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        assert_eq!(value("access-control-allow-origin"), Some("https://chat.example"));
        assert_eq!(value("access-control-allow-headers"), Some("authorization,x-stainless-lang"));
        assert_eq!(value("access-control-allow-methods"), Some("GET, POST"));
        assert_eq!((value("access-control-allow-private-network"), value("vary")), (Some("true"), Some("origin")));
    }
}
