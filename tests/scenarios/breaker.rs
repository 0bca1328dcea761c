//! A straggling rank is excluded automatically and included again on trial once it has recovered.
use harness::{
    http::{beside, get, stream, text_of},
    programs::{Cluster, demo_models, root, wait_until},
    slowing::Slowed,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const SETTINGS: &str =
    "recover = true\nsilent_ms = 30000\nstall_ms = 60000\nexclude_slow_ms = 3000\nretry_slow_ms = 2000\n";

/// The text of an answer through a gateway.
fn text(address: &str, max_tokens: u32) -> String {
    let body = json!({"prompt": "abab", "max_tokens": max_tokens, "temperature": 0, "stream": true});
    let answer = stream(address, "/v1/completions", &body);
    assert_eq!(answer.status, 200);
    let events: Vec<Value> = answer.events();
    text_of(&events, 0)
}

#[test]
fn straggler_is_excluded_service_continues_and_it_is_retried() {
    let mut cluster = Cluster::with(3, &demo_models(), SETTINGS);
    // Fixed health files: the load of other programs on this machine must not count as a fault of a node.
    let health = root().join("daemon/src/health/fixtures/pi5");
    for index in 0..3 {
        cluster.signal(index, Signal::SIGTERM);
        cluster.wait(index);
        cluster.start_with_arguments(index, &["--health-root", &health.to_string_lossy()]);
    }
    let run = ["--prompt", "ab", "--max-tokens", "1"];
    cluster.generate(3, &run).completion();
    let address = beside(&cluster.addresses[0]);
    wait_until("the gateway has the topology", || get(&address, "/health").status == 200);
    let layout = |cluster: &Cluster| cluster.status(0)["topology"]["layout"].as_str().unwrap_or_default().to_owned();
    let expected = text(&address, 16);
    // Far longer than the delays that other processes on these cores cause.
    let slowed = Slowed::begin(cluster.pid(2), 95, 100);
    wait_until("the others continue without it", || {
        assert!(!text(&address, 16).is_empty(), "answers must continue");
        layout(&cluster) == "tp2"
    });
    let status = cluster.status(0);
    let entry = status["exclusions"][0].clone();
    let reason = entry["reason"].as_str().unwrap_or_default();
    assert!(entry["node"] == "pi3" && reason.starts_with("delayed its peers"), "{status}");
    assert!(cluster.log(0).contains("pi3 is excluded as a straggler: it delayed its peers"), "{}", cluster.log(0));
    drop(slowed);
    wait_until("it is tried again", || layout(&cluster) == "tp3");
    assert!(cluster.status(0)["exclusions"][0]["reason"].is_null(), "{}", cluster.status(0));
    wait_until("all serve", || {
        (0..3).all(|index| matches!(cluster.status(index)["state"].as_str(), Some("ready" | "serving")))
    });
    assert_eq!(text(&address, 16), expected, "the same layout must give the same text");
}
