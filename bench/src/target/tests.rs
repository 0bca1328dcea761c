//! Loads against a slow server; heads of real daemons: `tests/scenarios/bench_layouts.rs`.
use std::sync::atomic::AtomicI64;

use super::{
    fake::{FakeServer, Step, answer, completion},
    *,
};
use crate::measurement::sample::{Slo, Summary};

const PATIENCE: Duration = Duration::from_secs(10);

fn jobs() -> Vec<Job> {
    vec![Job { prompt: Prompt::Made(4), max_tokens: 3 }]
}

fn over_http(server: &FakeServer, patience: Duration) -> Arc<Load> {
    let api = Api::new(server.url().parse().expect("a URL"), None);
    Arc::new(Load::new(Target::Http { api, model: "m".into() }, patience, 1))
}

#[tokio::test]
async fn closed_load_keeps_exactly_its_concurrency_in_flight() {
    let (running, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let (now, high) = (Arc::clone(&running), Arc::clone(&most));
    let server = FakeServer::start(move |_, request| {
        let body: Value = serde_json::from_str(request).expect("JSON");
        assert_eq!(body["prompt"].as_array().map(Vec::len), Some(4));
        high.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(30));
        now.fetch_sub(1, Ordering::SeqCst);
        completion(&["a", "b", "c"])
    });
    let load = over_http(&server, PATIENCE);
    let until = Until { requests: 12, elapsed: Duration::from_secs(60) };
    let samples = load.closed(&jobs(), 3, until).await;
    let summary = Summary::of(&samples, &Slo::default());
    assert_eq!((summary.requests, summary.completed, summary.tokens, summary.prompt_tokens), (12, 12, 36, 48));
    assert!(summary.ttft_ms.p50 >= 30.0 && summary.e2e_ms.p50 >= summary.ttft_ms.p50, "{summary:?}");
    assert_eq!((most.load(Ordering::SeqCst), server.connections()), (3, 3));
}

#[tokio::test]
async fn open_load_does_not_wait_and_measures_from_due_times() {
    let server = FakeServer::start(|_, _| {
        let mut steps = vec![Step::Pause(300)];
        steps.extend(completion(&["a"]));
        steps
    });
    let load = over_http(&server, PATIENCE);
    let begun = Instant::now();
    let due = (0..20).map(|index| (Duration::from_millis(10 * index), jobs().remove(0)));
    let summary = Summary::of(&load.open(due).await, &Slo { ttft_ms: Some(200.0), tpot_ms: None });
    assert_eq!((summary.completed, summary.good), (20, 0));
    assert!(begun.elapsed() < Duration::from_secs(3), "one after the other takes 6 s");
    assert!(summary.ttft_ms.p50 >= 300.0);
}

#[tokio::test]
async fn refusals_failures_and_timeouts_are_distinguished() {
    let server = FakeServer::start(|number, _| match number % 4 {
        0 => vec![answer(429, "{\"error\":{\"code\":\"queue_full\",\"message\":\"m\"}}"), Step::Close],
        1 => vec![Step::Close],
        2 => completion(&["a", "b"]).into_iter().take(2).chain([Step::Close]).collect(),
        _ => vec![Step::Pause(5000)],
    });
    let load = over_http(&server, Duration::from_millis(500));
    let samples = load.closed(&jobs(), 1, Until { requests: 4, elapsed: PATIENCE }).await;
    let ended: Vec<&Ended> = samples.iter().map(|sample| &sample.ended).collect();
    let failed = |code: &str| Ended::Failed(code.into());
    let timed_out = failed("timeout");
    assert_eq!(
        ended[..3],
        [&Ended::Refused("queue_full".into()), &failed("connection_lost"), &failed("connection_lost")]
    );
    assert_eq!(ended[3], &timed_out);
    let summary = Summary::of(&samples, &Slo::default());
    assert_eq!((summary.refused, summary.errors["connection_lost"]), (1, 2));
}

#[test]
fn stages_need_a_server_trace() {
    let trace = json!({"queueing_ms": 2.0, "prefill_ms": 10.0, "synchronisation_ms": 3.0});
    let found = stages_of(&trace, 1).expect("there is one");
    assert_eq!((found.queue, found.compute, found.wire), (2.0, 7.0, 3.0));
    assert_eq!(stages_of(&trace, 8).map(|stages| stages.compute), Some(10.0));
    assert_eq!(stages_of(&Value::Null, 1), None);
}
