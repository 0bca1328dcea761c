//! The proxy between a client and servers that do what they are told.
use std::time::Instant as Clock;

use super::*;
use crate::http::{
    HttpError,
    fake::{FakeServer, Step, answer, completion},
};

const PATIENCE: Duration = Duration::from_secs(5);

/// A proxy to these nodes; what it told, and its URL. It ends with the runtime.
async fn proxy(nodes: &[String], limits: Limits) -> Api {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    tokio::spawn(run(listener, nodes.to_vec(), limits, drop));
    Api::new(url.parse().expect("a URL"), None)
}

const LIMITS: Limits = Limits { connections: 8, idle: Duration::from_secs(5) };

fn get(path: &str) -> Request<'_> {
    Request { path, ..Request::default() }
}

#[tokio::test]
async fn the_first_node_that_answers_is_asked_and_its_stream_is_not_held_up() {
    let server = FakeServer::start(|_, request| {
        if request.line.contains("/health") {
            return vec![Step::Bytes(answer(200, "", "{}"))];
        }
        let mut steps = completion(&["a", "b"]);
        steps.insert(2, Step::Pause(600));
        steps
    });
    let api = proxy(&["127.0.0.1:1".into(), server.address()], LIMITS).await;
    let begun = Clock::now();
    let mut response = api.send(&get("/v1/x"), PATIENCE).await.expect("it is relayed");
    let first = response.chunk(PATIENCE).await.expect("it comes").expect("it is not the end");
    assert!(String::from_utf8_lossy(&first).contains("\"a\""));
    assert!(begun.elapsed() < Duration::from_millis(500), "held up for {:?}", begun.elapsed());
    let rest = response.whole(PATIENCE).await.expect("it comes");
    assert!(String::from_utf8_lossy(&rest).ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn where_no_node_is_there_or_no_place_the_client_hears_it_in_the_shape_of_the_api() {
    let api = proxy(&["127.0.0.1:1".into()], LIMITS).await;
    let body = "x".repeat(1 << 20);
    let error = api.json(&Request { path: "/v1/x", body: Some(&body), request_id: None }, PATIENCE).await;
    let Err(HttpError::Refused { status: 502, code, message, .. }) = error else { panic!("{error:?}") };
    assert!(code == "no_node" && message.contains("127.0.0.1:1: "), "{code} {message}");

    let server = FakeServer::start(|_, _| vec![Step::Pause(1000), Step::Bytes(answer(200, "", "{}"))]);
    let api = Arc::new(proxy(&[server.address()], Limits { connections: 1, ..LIMITS }).await);
    let holding = Arc::clone(&api);
    let held = tokio::spawn(async move { holding.json(&get("/v1/x"), PATIENCE).await });
    sleep(Duration::from_millis(200)).await;
    let error = api.json(&get("/v1/x"), PATIENCE).await;
    let Err(HttpError::Refused { status: 503, code, retry_after_seconds, .. }) = error else { panic!("{error:?}") };
    assert_eq!((code.as_str(), retry_after_seconds), ("proxy_full", Some(1)));
    assert!(held.await.expect("nobody panics").is_ok());
}

#[tokio::test]
async fn a_connection_on_which_nothing_moves_is_closed() {
    let server = FakeServer::start(|_, _| vec![Step::Pause(4000), Step::Bytes(answer(200, "", "{}"))]);
    let api = proxy(&[server.address()], Limits { idle: Duration::from_millis(100), ..LIMITS }).await;
    let error = api.json(&get("/v1/x"), Duration::from_secs(3)).await;
    assert!(matches!(error, Err(HttpError::Lost { .. })), "{error:?}");
}

#[tokio::test]
async fn a_node_that_takes_connections_and_says_nothing_comes_after_those_that_answer() {
    let silent = FakeServer::start(|_, _| vec![Step::Pause(60_000)]);
    let server = FakeServer::start(|_, _| vec![Step::Bytes(answer(200, "", "{\"who\":2}"))]);
    let api = proxy(&[silent.address(), server.address()], LIMITS).await;
    // The first question of how nodes are takes a second.
    let deadline = Clock::now() + Duration::from_secs(20);
    loop {
        match api.json(&get("/v1/x"), Duration::from_millis(300)).await {
            Ok(object) => break assert_eq!(object["who"], 2),
            Err(error) => assert!(Clock::now() < deadline, "{error}"),
        }
    }
}
