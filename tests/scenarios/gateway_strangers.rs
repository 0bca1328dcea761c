//! Web pages, slow clients and clients that send too much: none of them may take resources of the HTTP API from the
//! others.
use std::{
    fs,
    io::Write,
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use harness::http::{HttpAnswer, bytes, get, post, raw, serving};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

fn good() -> String {
    json!({"prompt": "ROMEO:\n", "max_tokens": 4, "temperature": 0}).to_string()
}

/// Sends only the head of a request that declares a body.
fn head_only(address: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
    let mut text = format!("{method} {path} HTTP/1.1\r\n");
    headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    if method == "POST" {
        text.push_str("Content-Length: 1000000\r\n");
    }
    text.push_str("\r\n");
    raw(address, text.as_bytes()).rest()
}

fn metric(address: &str, name: &str) -> f64 {
    let text = get(address, "/metrics").body;
    let line = text.lines().find(|line| line.split([' ', '{']).next() == Some(name));
    line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()).unwrap_or_else(|| panic!("{name} is not in\n{text}"))
}

#[test]
fn web_pages_get_403_before_a_body_and_no_token_is_computed() {
    let (_cluster, address) = serving("http_hosts = [\"llm.example.org\"]\n");
    let json = ("Content-Type", "application/json");
    let mut waited = Duration::ZERO;
    for (headers, status, code) in [
        (vec![("Host", "evil.example"), json], 403, "host_refused"),
        (vec![("Host", "evil.example:9980"), ("Origin", "http://evil.example:9980"), json], 403, "host_refused"),
        (
            vec![("Host", &*address), ("Origin", "https://evil.example"), ("Content-Type", "text/plain")],
            403,
            "origin_refused",
        ),
        (vec![("Host", "localhost"), ("Origin", "null"), json], 403, "origin_refused"),
        (vec![("Host", "localhost"), ("Sec-Fetch-Site", "cross-site"), json], 403, "origin_refused"),
        (vec![("Host", "localhost"), ("Content-Type", "text/plain")], 415, "content_type_refused"),
        (
            vec![("Host", "localhost"), ("Content-Type", "application/x-www-form-urlencoded")],
            415,
            "content_type_refused",
        ),
        (vec![("Host", "localhost")], 415, "content_type_refused"),
    ] {
        for path in ["/v1/completions", "/v1/chat/completions"] {
            let begun = Instant::now();
            head_only(&address, "POST", path, &headers).assert_error(status, code, "");
            waited += if status == 403 { begun.elapsed() } else { Duration::ZERO };
        }
        if status == 403 {
            for path in ["/health", "/traces", "/metrics", "/v1/models"] {
                head_only(&address, "GET", path, &headers).assert_error(403, code, "http_");
            }
        }
    }
    // Each of these ten would take a second if it waited for the body, which does not arrive.
    assert!(waited < Duration::from_secs(8), "{waited:?}");
    let preflight =
        [("Host", "localhost"), ("Origin", "https://evil.example"), ("Access-Control-Request-Method", "POST")];
    let refused = head_only(&address, "OPTIONS", "/v1/completions", &preflight);
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (403, None));
    assert_eq!(metric(&address, "bramble_sampled_tokens_total"), 0.0);
    assert_eq!(metric(&address, "bramble_prompt_tokens_total"), 0.0);
    for host in [&*address, "localhost", "LocalHost:9980", "pi1", "pi1.local:9980", "llm.example.org", "[::1]:9980"] {
        let request = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json; charset=utf-8\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}",
            good().len(),
            good()
        );
        raw(&address, request.as_bytes()).rest().good();
    }
    assert_eq!(raw(&address, b"GET /health HTTP/1.0\r\n\r\n").rest().status, 200, "a balancer's probe");
}

#[test]
fn allowed_page_gets_the_headers_that_browsers_need() {
    let (_cluster, address) = serving("http_origins = [\"https://chat.example.org\"]\n");
    let page = "https://chat.example.org";
    let preflight = [
        ("Host", "localhost"),
        ("Origin", page),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization,content-type"),
    ];
    let allowed = head_only(&address, "OPTIONS", "/v1/chat/completions", &preflight);
    assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (204, Some(page)));
    assert_eq!(allowed.header("access-control-allow-headers"), Some("authorization,content-type"));
    let headers = [("Origin", page), ("Sec-Fetch-Site", "cross-site")];
    let answer = raw(&address, &bytes("POST", "/v1/completions", &headers, Some(&good()))).rest();
    assert_eq!((answer.header("access-control-allow-origin"), answer.header("vary")), (Some(page), Some("origin")));
    answer.good();
    let other = [("Origin", "https://evil.example")];
    raw(&address, &bytes("POST", "/v1/completions", &other, Some(&good()))).rest().assert_error(
        403,
        "origin_refused",
        "http_origins",
    );
    assert_eq!(
        get(&address, "/health").header("access-control-allow-origin"),
        None,
        "no CORS headers without an origin"
    );
}

/// A memory figure in bytes from a process's status, by the name of its line.
fn memory(pid: i32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon runs");
    let line =
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("the kernel reports it");
    line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).expect("a number") * 1024
}

#[test]
fn oversized_prompts_take_neither_memory_nor_a_replica() {
    let (cluster, address) = serving("");
    let pid = cluster.pid(0).as_raw();
    let idle = memory(pid, "VmRSS");
    // Reset the peak of resident memory.
    fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("the daemon is ours");
    let tokens = format!("{{\"prompt\":[{}1],\"n\":16,\"max_tokens\":1}}", "1,".repeat((8 << 20) / 2 - 40));
    let request = bytes("POST", "/v1/completions", &[], Some(&tokens));
    thread::scope(|scope| {
        let asked: Vec<_> = (0..24).map(|_| scope.spawn(|| raw(&address, &request).rest())).collect();
        for answer in asked.into_iter().map(|asked| asked.join().expect("it is answered")) {
            let code = answer.json()["error"]["code"].as_str().expect("a code").to_owned();
            let is_expected =
                matches!((answer.status, code.as_str()), (400, "context_length_exceeded") | (429, "bodies_full"));
            assert!(is_expected, "{} {}", answer.status, answer.body);
        }
    });
    let (peak, after) = (memory(pid, "VmHWM"), memory(pid, "VmRSS"));
    println!("idle {} MB, highest {} MB, then {} MB", idle >> 20, peak >> 20, after >> 20);
    assert!(peak < idle * 5 / 4 + (128 << 20), "{idle} idle, {peak} at most");
    assert!(after < idle * 5 / 4 + (32 << 20), "{idle} idle, {after} after it");

    let long = "x".repeat(5 << 20);
    let begun = Instant::now();
    let text = post(&address, "/v1/completions", &json!({"prompt": long, "n": 16}));
    text.assert_error(413, "prompt_too_large", "2097152");
    let chat = post(&address, "/v1/chat/completions", &json!({"messages": [{"role": "user", "content": long}]}));
    chat.assert_error(413, "prompt_too_large", "messages");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    for name in ["bramble_resumed_total", "bramble_replica_out", "bramble_sampled_tokens_total"] {
        assert_eq!(metric(&address, name), 0.0, "{name}");
    }
    raw(&address, &bytes("POST", "/v1/completions", &[], Some(&good()))).rest().good();
}

#[test]
fn refusals_reach_clients_that_still_send_their_bodies() {
    let (_cluster, address) = serving("api_keys = [\"sk-0123456789abcdef\"]\n");
    let (right, wrong) = ("Bearer sk-0123456789abcdef", "Bearer sk-wrong-key-0");
    for length in [200_000, 4 << 20] {
        let body = json!({"prompt": "x".repeat(length)}).to_string();
        for (method, path, key, encoding, status, code) in [
            ("POST", "/v1/completions", wrong, "identity", 401, "invalid_api_key"),
            ("POST", "/v1/unknown", right, "identity", 404, "not_found"),
            ("PUT", "/v1/completions", right, "identity", 405, "method_not_allowed"),
            ("POST", "/v1/completions", right, "br", 415, "unsupported_content_encoding"),
        ] {
            let headers = [("Authorization", key), ("Content-Encoding", encoding)];
            let request = bytes(method, path, &headers, Some(&body));
            for _ in 0..5 {
                raw(&address, &request).rest().assert_error(status, code, "");
            }
        }
    }
}

/// Opens connections that send `begin` and nothing more.
fn silent(address: &str, count: usize, begin: &[u8]) -> Vec<TcpStream> {
    (0..count)
        .map(|_| {
            let mut stream = TcpStream::connect(address).expect("the node listens");
            stream.write_all(begin).expect("it is taken");
            stream
        })
        .collect()
}

#[test]
fn idle_connections_and_stalled_bodies_delay_no_other() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("the kernel reports it");
    setrlimit(Resource::RLIMIT_NOFILE, most.min(8192), most).expect("the limit may be lowered");
    let (_cluster, address) = serving("");
    let within = |what: &str, work: &dyn Fn() -> HttpAnswer| {
        let begun = Instant::now();
        work().good();
        assert!(begun.elapsed() < Duration::from_secs(5), "{what}: {:?}", begun.elapsed());
    };
    let body: Value = serde_json::from_str(&good()).expect("it is JSON");
    let idle = silent(&address, 1100, b"");
    within("health with idle connections open", &|| get(&address, "/health"));
    within("an answer with idle connections open", &|| post(&address, "/v1/completions", &body));
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let stalled = silent(&address, 40, format!("{head}5\r\n{{\"pro\r\n").as_bytes());
    let chunked =
        format!("{head}{:x}\r\n{}\r\n0\r\n\r\n", good().len(), good()).replacen("\r\n", "\r\nConnection: close\r\n", 1);
    within("a chunked body with stalled ones open", &|| raw(&address, chunked.as_bytes()).rest());
    within("metrics with stalled bodies open", &|| {
        let answer = get(&address, "/metrics");
        HttpAnswer { body: "{}".into(), ..answer }
    });
    drop((idle, stalled));
}
