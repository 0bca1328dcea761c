//! The files of the page: types, headers, references, and who is sent to it.
use axum::{body::Body, http::StatusCode};

use super::*;

/// All files below the page, with the beginning of their types.
const FILES: [(&str, &str); 6] = [
    ("page.css", "text/css"),
    ("page.js", "text/javascript"),
    ("api.js", "text/javascript"),
    ("chat.js", "text/javascript"),
    ("status.js", "text/javascript"),
    ("text.js", "text/javascript"),
];

fn value<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

#[tokio::test]
async fn files_have_their_type_and_forbid_everything_foreign() {
    let mut responses = vec![(page().await, "text/html")];
    for (name, kind) in FILES {
        responses.push((file(Path(name.into())).await.expect("it is a file of the page"), kind));
    }
    for (response, kind) in &responses {
        assert_eq!(response.status(), StatusCode::OK);
        assert!(value(response, "content-type").starts_with(kind), "{kind}");
        let policy = value(response, "content-security-policy");
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'") && policy.contains("connect-src 'self'"), "{policy}");
        assert_eq!(value(response, "x-content-type-options"), "nosniff");
        assert_eq!((value(response, "referrer-policy"), value(response, "cache-control")), ("same-origin", "no-store"));
    }
    let error = file(Path("other.js".into())).await.expect_err("there is no such file");
    assert_eq!(error.status, StatusCode::NOT_FOUND);
}

#[test]
fn page_has_no_inline_code_and_nothing_from_elsewhere() {
    for inline in ["<style", " style=", "onclick=", "onload=", "javascript:", "http://", "https://"] {
        assert!(!HTML.contains(inline), "{inline}");
    }
    for script in HTML.split("<script").skip(1) {
        assert!(script.contains(" src=\"") && script.contains("></script>"), "{script}");
    }
    let references = HTML.split(" src=\"").skip(1).chain(HTML.split(" href=\"").skip(1));
    let references = references.filter_map(|rest| rest.split('"').next());
    for reference in references.filter(|reference| !reference.starts_with('#') && !reference.starts_with("data:")) {
        assert!(FILES.iter().any(|(name, _)| *name == reference), "{reference}");
    }
    assert!(HTML.contains("<noscript>") && HTML.contains("console chat"));
}

#[test]
fn only_a_browser_that_opens_the_address_is_sent_to_the_page() {
    for (method, path, accept, is_sent) in [
        (Method::GET, "/", Some("text/html,application/xhtml+xml,*/*;q=0.8"), true),
        (Method::HEAD, "/", Some("text/html"), true),
        (Method::GET, "/", Some("*/*"), false),
        (Method::GET, "/", Some("application/json"), false),
        (Method::HEAD, "/", None, false),
        (Method::GET, "/v1/models", Some("text/html"), false),
        (Method::POST, "/", Some("text/html"), false),
    ] {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("a path");
        if let Some(accept) = accept {
            request.headers_mut().insert(header::ACCEPT, accept.parse().expect("a value"));
        }
        assert_eq!(opens_page(&request), is_sent, "{path} {accept:?}");
    }
}
