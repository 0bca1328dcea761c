//! Tests of the proxy between a client and scripted servers.
use std::time::Instant as Clock;

use super::*;
use crate::http::{
    HttpError,
    fake::{FakeServer, FakeStep, answer, completion},
};

const PATIENCE: Duration = Duration::from_secs(5);

/// A proxy to these nodes, as a client of its URL. It ends with the runtime.
async fn proxy(nodes: &[String], limits: Limits) -> Api {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback binds");
    let url = format!("http://{}", listener.local_addr().expect("listener is bound"));
    let policy = BrowserPolicy::new(&["laptop".into()], &[], &["https://chat.example".into()]).expect("valid policy");
    tokio::spawn(run(listener, nodes.to_vec(), limits, policy, drop));
    Api::new(url.parse().expect("a URL"), None)
}

const LIMITS: Limits = Limits { connections: 8, idle: Duration::from_secs(5) };

fn get(path: &str) -> HttpRequest<'_> {
    HttpRequest { path, ..HttpRequest::default() }
}

#[tokio::test]
async fn first_reachable_node_is_used_and_its_stream_is_not_delayed() {
    let server = FakeServer::start(|_, request| {
        if request.line.contains("/health") {
            return vec![FakeStep::Bytes(answer(200, "", "{}"))];
        }
        let mut steps = completion(&["a", "b"]);
        steps.insert(2, FakeStep::Pause(600));
        steps
    });
    let api = proxy(&["127.0.0.1:1".into(), server.address()], LIMITS).await;
    let begun = Clock::now();
    let mut response = api.send(&get("/v1/x"), PATIENCE).await.expect("request is relayed");
    let first = response.chunk(PATIENCE).await.expect("chunk arrives").expect("stream continues");
    assert!(String::from_utf8_lossy(&first).contains("\"a\""));
    assert!(begun.elapsed() < Duration::from_millis(500), "delayed by {:?}", begun.elapsed());
    let rest = response.whole(PATIENCE).await.expect("rest arrives");
    assert!(String::from_utf8_lossy(&rest).ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn missing_node_or_capacity_is_reported_as_an_api_error() {
    let api = proxy(&["127.0.0.1:1".into()], LIMITS).await;
    let body = "x".repeat(1 << 20);
    let error = api.json(&HttpRequest { path: "/v1/x", body: Some(&body), request_id: None }, PATIENCE).await;
    let Err(HttpError::Refused { status: 502, code, message, .. }) = error else { panic!("{error:?}") };
    assert!(code == "no_node" && message.contains("127.0.0.1:1: "), "{code} {message}");

    let server = FakeServer::start(|_, _| vec![FakeStep::Pause(1000), FakeStep::Bytes(answer(200, "", "{}"))]);
    let api = Arc::new(proxy(&[server.address()], Limits { connections: 1, ..LIMITS }).await);
    let holding = Arc::clone(&api);
    let held = tokio::spawn(async move { holding.json(&get("/v1/x"), PATIENCE).await });
    sleep(Duration::from_millis(200)).await;
    let error = api.json(&get("/v1/x"), PATIENCE).await;
    let Err(HttpError::Refused { status: 503, code, retry_after_seconds, .. }) = error else { panic!("{error:?}") };
    assert_eq!((code.as_str(), retry_after_seconds), ("proxy_full", Some(1)));
    assert!(held.await.expect("task does not panic").is_ok());
}

#[tokio::test]
async fn idle_connection_is_closed() {
    let server = FakeServer::start(|_, _| vec![FakeStep::Pause(4000), FakeStep::Bytes(answer(200, "", "{}"))]);
    let api = proxy(&[server.address()], Limits { idle: Duration::from_millis(100), ..LIMITS }).await;
    let error = api.json(&get("/v1/x"), Duration::from_secs(3)).await;
    assert!(matches!(error, Err(HttpError::Lost { .. })), "{error:?}");
}

#[tokio::test]
async fn hung_node_is_tried_after_responsive_ones() {
    let silent = FakeServer::start(|_, _| vec![FakeStep::Pause(60_000)]);
    let server = FakeServer::start(|_, _| vec![FakeStep::Bytes(answer(200, "", "{\"who\":2}"))]);
    let api = proxy(&[silent.address(), server.address()], LIMITS).await;
    // The first health check of all nodes takes a second.
    let deadline = Clock::now() + Duration::from_secs(20);
    loop {
        match api.json(&get("/v1/x"), Duration::from_millis(300)).await {
            Ok(object) => break assert_eq!(object["who"], 2),
            Err(error) => assert!(Clock::now() < deadline, "{error}"),
        }
    }
}

/// Sends requests over one connection and reads until the proxy closes it or falls silent.
async fn raw(address: &str, text: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("proxy accepts");
    stream.write_all(text.as_bytes()).await.expect("request is sent");
    let mut answer = Vec::new();
    // A connection that is kept open sends no more data.
    let _ = timeout(Duration::from_millis(700), stream.read_to_end(&mut answer)).await;
    String::from_utf8(answer).expect("answer is UTF-8")
}

#[tokio::test]
async fn cross_site_requests_never_reach_a_node() {
    let (told, heard) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(told);
    let server = FakeServer::start(move |_, request| {
        if !request.line.contains("/health") {
            let seen = (request.line.clone(), request.header("host").map(str::to_owned), request.body.clone());
            told.lock().expect("no test thread panics").send(seen).expect("test receives");
        }
        vec![FakeStep::Bytes(answer(200, "", "{}"))]
    });
    let api = proxy(&[server.address()], LIMITS).await;
    let address = api.at().to_owned();
    let post = |headers: &str| format!("POST /v1/x HTTP/1.1\r\n{headers}Content-Length: 2\r\n\r\n{{}}");
    let json = "Content-Type: application/json\r\n";
    for (headers, status) in [
        (format!("Host: evil.example\r\n{json}"), 403),
        (format!("Host: localhost\r\nHost: evil.example\r\n{json}"), 403),
        (format!("Host: localhost\r\nOrigin: https://evil.example\r\n{json}"), 403),
        (format!("Host: localhost\r\nSec-Fetch-Site: cross-site\r\n{json}"), 403),
        ("Host: localhost\r\nContent-Type: text/plain\r\n".into(), 415),
        ("Host: localhost\r\n".into(), 415),
        (format!("Host: localhost\r\nTransfer-Encoding: chunked\r\n{json}"), 400),
    ] {
        let refused = raw(&address, &post(&headers)).await;
        assert!(refused.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {refused}");
    }
    // Clients of Ollama often declare nothing.
    let asked = "POST /api/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}";
    assert!(raw(&address, asked).await.starts_with("HTTP/1.1 200"));
    // The second request of a connection is checked, too.
    let good = post(&format!("Host: laptop.local:9980\r\n{json}"));
    let answers = raw(&address, &format!("{good}{}", post(&format!("Host: evil.example\r\n{json}")))).await;
    assert!(answers.matches("HTTP/1.1 200").count() <= 1, "{answers}");
    let allowed = post(&format!("Host: 127.0.0.1\r\nOrigin: https://chat.example\r\n{json}"));
    let answers = raw(&address, &format!("{allowed}{good}")).await;
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
    let seen: Vec<_> = heard.try_iter().collect();
    assert!(seen.len() == 4 || seen.len() == 3, "{seen:?}");
    assert!(seen.iter().all(|(_, host, body)| host.as_deref() == Some(&server.address()) && body == "{}"), "{seen:?}");
}
