//! The web page of a node: its files are for every browser that uses a name of the node, its data only for those with a
//! key. `tests/web` opens it in a real browser.
use harness::{
    http::{HttpAnswer, beside, bytes, get, raw, serving},
    programs::{Cluster, wait_until},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const KEY: &str = "sk-page-0123456789";
const FILES: [&str; 7] =
    ["/ui/", "/ui/page.css", "/ui/page.js", "/ui/api.js", "/ui/chat.js", "/ui/status.js", "/ui/text.js"];

/// A request as a browser sends it, with exactly these headers.
fn browse(address: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> HttpAnswer {
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    if !body.is_empty() {
        text.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
    }
    raw(address, format!("{text}\r\n{body}").as_bytes()).rest()
}

#[test]
fn page_needs_a_name_of_the_node_and_no_key() {
    let (_cluster, address) = serving(&format!("api_keys = [\"{KEY}\"]\n"));
    for file in FILES {
        let answer = browse(&address, "GET", file, &[("Host", &address)], "");
        assert_eq!(answer.status, 200, "{file}: {}", answer.body);
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{file}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{file}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{file}");
        for (name, value, code) in [
            ("Host", "evil.example", "host_refused"),
            ("Origin", "https://evil.example", "origin_refused"),
            ("Sec-Fetch-Site", "cross-site", "origin_refused"),
        ] {
            let host = if name == "Host" { vec![] } else { vec![("Host", address.as_str())] };
            let headers = [&host[..], &[(name, value)]].concat();
            browse(&address, "GET", file, &headers, "").assert_error(403, code, "http_");
        }
    }
    let missing = browse(&address, "GET", "/ui/other.js", &[("Host", &address)], "");
    missing.assert_error(404, "not_found", "/ui/other.js");
    // Browsers are sent to the page, programs get what they always got.
    for (path, accept) in [("/", "text/html,*/*;q=0.8"), ("/ui", "*/*")] {
        let sent = browse(&address, "GET", path, &[("Host", &address), ("Accept", accept)], "");
        assert_eq!((sent.status, sent.header("location")), (303, Some("/ui/")), "{path}");
    }
    for accept in ["*/*", "application/json"] {
        let refused = browse(&address, "GET", "/", &[("Host", &address), ("Accept", accept)], "");
        refused.assert_error(401, "invalid_api_key", "Bearer");
    }
    let bearer = format!("Bearer {KEY}");
    let root = raw(&address, &bytes("GET", "/", &[("Authorization", &bearer)], None)).rest().good();
    assert_eq!((&root["name"], &root["api"]), (&json!("bramble"), &json!("/v1")));
}

#[test]
fn page_of_the_node_itself_may_use_its_api_with_a_key() {
    let (_cluster, address) = serving(&format!("api_keys = [\"{KEY}\"]\n"));
    let bearer = format!("Bearer {KEY}");
    let body = json!({"messages": [{"role": "user", "content": "Speak."}], "max_tokens": 4}).to_string();
    let chat = |origin: &str, key: &str| {
        let headers = [("Host", address.as_str()), ("Origin", origin), ("Authorization", key)];
        browse(&address, "POST", "/v1/chat/completions", &headers, &body)
    };
    let own = format!("http://{address}");
    let answer = chat(&own, &bearer).good();
    assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
    chat(&own, "Bearer sk-wrong").assert_error(401, "invalid_api_key", "");
    let host = address.split(':').next().expect("a host");
    for foreign in [
        "http://evil.example".to_owned(),
        format!("https://{address}"),
        format!("http://{host}:3000"),
        format!("http://{host}"),
        "http://localhost:9980".to_owned(),
        "null".to_owned(),
    ] {
        chat(&foreign, &bearer).assert_error(403, "origin_refused", "http_origins");
    }
    // A name that was pointed at this node is not its own, whatever the page's origin is.
    let rebound = [("Host", "evil.example"), ("Origin", "http://evil.example"), ("Authorization", &*bearer)];
    browse(&address, "POST", "/v1/chat/completions", &rebound, &body).assert_error(403, "host_refused", "http_hosts");
    for path in ["/cluster", "/v1/models", "/metrics"] {
        let headers = [("Host", address.as_str())];
        browse(&address, "GET", path, &headers, "").assert_error(401, "invalid_api_key", "");
    }
}

/// A node of `/cluster` by its name, or null.
fn node(cluster: &Value, name: &str) -> Value {
    let nodes = cluster["nodes"].as_array().expect("a list");
    nodes.iter().find(|node| node["name"] == name).cloned().unwrap_or_default()
}

#[test]
fn cluster_has_the_figures_of_console_status() {
    let cluster = Cluster::of(2);
    cluster.generate(2, &["--prompt", "ROMEO:\n", "--max-tokens", "4"]).completion();
    let address = beside(&cluster.addresses[0]);
    let look = || get(&address, "/cluster").good();
    let expected = [cluster.status(0), cluster.status(1)];
    // The first request makes the gateway watch all members.
    wait_until("all members have reported", || {
        let seen = look();
        expected.iter().all(|status| {
            let shown = node(&seen, status["name"].as_str().expect("a name"));
            ["state", "tokens"].iter().all(|field| shown[*field] == status[*field])
        })
    });
    let seen = look();
    for (name, status) in ["pi1", "pi2"].into_iter().zip(&expected) {
        let shown = node(&seen, name);
        for field in
            ["address", "name", "state", "epoch", "desired", "fault", "load", "shard_bytes", "requests", "tokens"]
        {
            assert_eq!(shown[field], status[field], "{name}: {field}");
        }
        for field in ["layout", "rank", "model", "context", "kv", "exchange"] {
            assert_eq!(shown["topology"][field], status["topology"][field], "{name}: {field}");
        }
        assert_eq!(shown["health"]["memory"]["total"], status["health"]["memory"]["total"], "{name}");
        assert_eq!((&shown["reachable"], &shown["away_ms"]), (&json!(true), &Value::Null), "{name}");
        assert!(shown["age_ms"].as_u64().is_some_and(|age| age < 5000), "{shown}");
    }
    assert_eq!((&seen["status"], &seen["node"]), (&json!("ready"), &json!("pi1")));
    assert_eq!(seen["models"][0]["id"], "bard-q8_0.gguf");
    assert_eq!(seen["nodes"].as_array().map(Vec::len), Some(2), "each node once: {seen}");
    cluster.signal(1, Signal::SIGKILL);
    wait_until("the lost node is known", || node(&look(), "pi2")["reachable"] == false);
    let lost = node(&look(), "pi2");
    assert!(lost["away_ms"].is_u64() && lost["age_ms"].is_u64(), "{lost}");
    assert_eq!(lost["shard_bytes"], expected[1]["shard_bytes"], "its last figures stay, with their age");
}
