//! Paths as clients write them: with a doubled or trailing slash, or without `/v1`, depending on the base URL that a
//! user entered. Pure.
use axum::http::Uri;

/// Paths below `/v1`.
const VERSIONED: [&str; 6] = ["chat/completions", "completions", "embeddings", "messages", "models", "responses"];
/// Paths outside of `/v1`.
const PLAIN: [&str; 14] = [
    "api/embed",
    "apply-template",
    "cluster",
    "completion",
    "detokenize",
    "health",
    "metrics",
    "openapi.json",
    "ping",
    "props",
    "tokenize",
    "tokenizer_info",
    "traces",
    "version",
];

/// The path that is served for a path.
fn served(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let rest = parts.iter().skip_while(|part| **part == "v1").copied().collect::<Vec<_>>().join("/");
    if rest.is_empty() || PLAIN.contains(&rest.as_str()) || is_below(&rest, "api") {
        format!("/{rest}")
    } else if VERSIONED.iter().any(|known| is_below(&rest, known)) {
        format!("/v1/{rest}")
    } else {
        path.to_owned()
    }
}

fn is_below(path: &str, known: &str) -> bool {
    path.strip_prefix(known).is_some_and(|more| more.is_empty() || more.starts_with('/'))
}

/// Rewrites the path of a request to the one that is served; the query stays.
pub(super) fn straighten(uri: &mut Uri) {
    let path = served(uri.path());
    if path == uri.path() {
        return;
    }
    let target = uri.query().map_or(path.clone(), |query| format!("{path}?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = target.parse().ok();
    if let Ok(straight) = Uri::from_parts(parts) {
        *uri = straight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_of_a_path_reach_what_is_served() {
        for (given, expected) in [
            ("/v1/chat/completions", "/v1/chat/completions"),
            ("/v1/chat/completions/", "/v1/chat/completions"),
            ("//v1//chat/completions", "/v1/chat/completions"),
            ("/chat/completions", "/v1/chat/completions"),
            ("/models/a%2Fb", "/v1/models/a%2Fb"),
            ("/v1/health", "/health"),
            ("/metrics/?a=b", "/metrics?a=b"),
            ("/v1", "/"),
            ("/v1/", "/"),
            ("/", "/"),
            ("/v1/cluster", "/cluster"),
            ("/ui/", "/ui/"),
            ("/ui/page.js", "/ui/page.js"),
            ("/other/", "/other/"),
            ("/completionsx", "/completionsx"),
        ] {
            let mut uri: Uri = given.parse().expect("a path");
            straighten(&mut uri);
            assert_eq!(uri.to_string(), expected, "{given}");
        }
        let mut absolute: Uri = "http://pi1:9980/v1/models/".parse().expect("a URL");
        straighten(&mut absolute);
        assert_eq!(absolute.to_string(), "http://pi1:9980/v1/models");
    }
}
