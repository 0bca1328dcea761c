//! Requests caused by web pages: refused before their bodies are read, unless the page is this node's own (`web`) or the
//! operator allows its origin; then the response has the CORS headers that let the page read it.
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::Response,
};
use common::browser::{BrowserPolicy, RequestHead, check_body};

use super::error::ApiError;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");
/// Response headers that a page may read.
const EXPOSED: &str = "x-request-id, x-bramble-changed, x-bramble-warning, retry-after";
/// Request headers that a page may send if its preflight names none.
const HEADERS: &str = "authorization, content-type, x-request-id";
/// Seconds for which a browser may cache a preflight.
const REMEMBERED: &str = "600";

/// The value of a header; one that is not text becomes U+FFFD, which no rule allows.
fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"))
}

/// Checks whether a request is allowed. Returns the origin of the allowed page, or `None` if no page sent the request.
///
/// # Errors
/// The request may come from a page that is not allowed.
pub(super) fn page(policy: &BrowserPolicy, request: &Request) -> Result<Option<HeaderValue>, ApiError> {
    let headers = request.headers();
    let mut hosts: Vec<&str> =
        headers.get_all(header::HOST).iter().map(|value| value.to_str().unwrap_or("\u{fffd}")).collect();
    hosts.extend(request.uri().authority().map(|authority| authority.as_str()));
    let head = RequestHead { hosts, origin: text(headers, header::ORIGIN), site: text(headers, FETCH_SITE) };
    let origin = policy.check(&head).map_err(|refusal| ApiError::refused(&refusal))?;
    Ok(origin.and_then(|_| headers.get(header::ORIGIN).cloned()))
}

/// Checks whether a body is declared as JSON.
///
/// # Errors
/// It is not.
pub(super) fn json(path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
    let head = RequestHead {
        origin: text(headers, header::ORIGIN),
        site: text(headers, FETCH_SITE),
        ..RequestHead::default()
    };
    check_body(path, text(headers, header::CONTENT_TYPE), &head).map_err(|refusal| ApiError::refused(&refusal))
}

/// Whether this is a CORS preflight request.
pub(super) fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// The response to an allowed preflight.
pub(super) fn preflight(request: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    let asked = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let allowed = asked.unwrap_or(HeaderValue::from_static(HEADERS));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(REMEMBERED));
    if request.contains_key(PRIVATE_NETWORK) {
        headers.insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
    }
    response
}

/// Adds the headers that let the page at `origin` read a response.
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
        let own = [("host", "pi1:9980"), ("origin", "http://pi1:9980")];
        assert_eq!(page(&closed, &request(&own)), Ok(Some(HeaderValue::from_static("http://pi1:9980"))));
        for (policy, bad) in [
            (&closed, &good[..]),
            (&open, &[("host", "evil.example"), ("origin", "https://chat.example")]),
            (&open, &[("host", "pi1"), ("host", "evil.example")]),
            (&closed, &[("host", "pi1:9980"), ("origin", "http://pi1:3000")]),
            (&open, &[("host", "pi1"), ("sec-fetch-site", "cross-site")]),
            (&open, &[("host", "pi1"), ("origin", "null")]),
        ] {
            let refused = page(policy, &request(bad)).expect_err("it is refused");
            assert_eq!(refused.status, StatusCode::FORBIDDEN, "{bad:?}");
        }
        let mut absolute = request(&[("host", "pi1")]);
        *absolute.uri_mut() = "http://evil.example/health".parse().expect("a URL");
        assert!(page(&open, &absolute).is_err(), "the host of an absolute URL counts, too");
    }

    #[test]
    fn only_clients_of_ollama_that_are_no_browser_may_declare_nothing() {
        for (path, headers, is_good) in [
            ("/api/chat", &[][..], true),
            ("/v1/chat/completions", &[], false),
            ("/v1/chat/completions", &[("content-type", "application/json")], true),
            ("/api/chat", &[("content-type", "text/plain")], false),
            ("/api/chat", &[("origin", "https://chat.example")], false),
            ("/api/chat", &[("sec-fetch-site", "none")], false),
        ] {
            assert_eq!(json(path, request(headers).headers()).is_ok(), is_good, "{path} {headers:?}");
        }
    }

    #[test]
    fn preflight_response_lists_allowed_methods_and_headers() {
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
        assert_eq!(value("access-control-allow-methods"), Some("GET, POST, DELETE"));
        assert_eq!((value("access-control-allow-private-network"), value("vary")), (Some("true"), Some("origin")));
    }
}
