//! Overload, lost nodes and nodes without a shard, as seen by clients of the OpenAI API.
use harness::{
    deep_models::deep_models,
    fake_heads::{FakeHeads, Script},
    http::{Stream, beside, get, post, stream, text_of},
    programs::{Cluster, DEEP, demo_models, wait_until},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

fn assign(cluster: &Cluster, count: usize, topology: &str, more: &[&str]) {
    let mut run = vec!["--model", DEEP, "--prompt", "ab", "--max-tokens", "1", "--topology", topology];
    run.extend(more);
    cluster.generate(count, &run).completion();
}

fn serving(address: &str) {
    wait_until("the gateway has the topology", || get(address, "/health").status == 200);
}

fn body(index: usize, max_tokens: u32) -> Value {
    let prompt: String = "ab".chars().cycle().take(2 + index).collect();
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.9, "seed": index, "stream": true})
}

fn begin(address: &str, body: &Value) -> (Stream, Vec<Value>) {
    let mut answer = stream(address, "/v1/completions", body);
    assert_eq!(answer.status, 200);
    let first = answer.event().expect("tokens arrive");
    (answer, vec![serde_json::from_str(&first).expect("JSON")])
}

fn rest(begun: (Stream, Vec<Value>)) -> (String, Value) {
    let (answer, mut events) = begun;
    events.extend(answer.events());
    let end = events.last().expect("events arrived");
    (text_of(&events, 0), end["timings"]["trace"].clone())
}

#[test]
fn answers_of_a_killed_replica_continue_at_the_other_one() {
    let models = deep_models();
    let mut cluster = Cluster::with(2, models.path(), "");
    assign(&cluster, 2, "dp2-tp1", &["--context", "2048"]);
    let address = beside(&cluster.addresses[1]);
    wait_until("both serve", || get(&address, "/health").json()["replicas"] == json!({"serving": 2, "all": 2}));
    let expected: Vec<String> = (0..4).map(|index| rest(begin(&address, &body(index, 300))).0).collect();
    let running: Vec<_> = (0..4).map(|index| begin(&address, &body(index, 300))).collect();
    cluster.signal(0, Signal::SIGKILL);
    cluster.wait(0);
    let found: Vec<(String, Value)> = running.into_iter().map(rest).collect();
    let resumed = found.iter().filter(|(_, trace)| trace["resumed"].as_u64() > Some(0)).count();
    println!("{resumed} of 4 continued on the other replica");
    for ((text, trace), expected) in found.iter().zip(&expected) {
        assert_eq!(text, expected, "{trace}");
    }
    assert!(resumed > 0, "the killed node must have run some of them");
    let health = get(&address, "/health");
    wait_until("the gateway reports it", || get(&address, "/health").json()["status"] == "degraded");
    assert_eq!(health.status, 200);
    assert!(get(&address, "/metrics").body.contains(&format!("bramble_resumed_total {resumed}")));
}

#[test]
fn answers_of_a_hung_head_continue_at_the_other_one() {
    let models = deep_models();
    let cluster = Cluster::with(2, models.path(), "silent_ms = 1000\nstall_ms = 60000\n");
    assign(&cluster, 2, "dp2-tp1", &["--context", "2048"]);
    let address = beside(&cluster.addresses[1]);
    wait_until("both serve", || get(&address, "/health").json()["replicas"] == json!({"serving": 2, "all": 2}));
    let expected: Vec<String> = (0..4).map(|index| rest(begin(&address, &body(index, 300))).0).collect();
    let running: Vec<_> = (0..4).map(|index| begin(&address, &body(index, 300))).collect();
    cluster.signal(0, Signal::SIGSTOP);
    let found: Vec<(String, Value)> = running.into_iter().map(rest).collect();
    cluster.signal(0, Signal::SIGCONT);
    let resumed = found.iter().filter(|(_, trace)| trace["resumed"].as_u64() > Some(0)).count();
    assert!(resumed > 0, "the stopped node must have run some of them");
    for ((text, trace), expected) in found.iter().zip(&expected) {
        assert_eq!(text, expected, "{trace}");
    }
}

#[test]
fn answer_waits_until_its_replica_is_assigned_again() {
    let models = deep_models();
    let mut cluster = Cluster::with(2, models.path(), "");
    assign(&cluster, 2, "tp2", &["--context", "2048"]);
    let address = beside(&cluster.addresses[0]);
    serving(&address);
    let (expected, _) = rest(begin(&address, &body(3, 120)));
    let running = begin(&address, &body(3, 120));
    cluster.signal(1, Signal::SIGKILL);
    cluster.wait(1);
    wait_until("the topology is broken", || get(&address, "/health").status == 503);
    post(&address, "/v1/completions", &body(1, 3)).assert_error(503, "not_serving", "console status");
    cluster.start(1);
    assign(&cluster, 2, "tp2", &["--context", "2048"]);
    let (text, trace) = rest(running);
    assert_eq!(text, expected, "{trace}");
    assert!(trace["resumed"].as_u64() > Some(0), "{trace}");
}

#[test]
fn requests_beyond_the_queue_are_refused_and_others_complete() {
    let models = deep_models();
    let cluster = Cluster::with(1, models.path(), "http_queue = 2\nhttp_queue_ms = 60000\n");
    assign(&cluster, 1, "tp1", &["--context", "2048"]);
    let address = beside(&cluster.addresses[0]);
    serving(&address);
    let slots = get(&address, "/health").json()["slots"]["all"].as_u64().expect("a count") as usize;
    let mut running: Vec<_> = (0..slots).map(|index| begin(&address, &body(index, 100))).collect();
    let waiting: Vec<_> = (0..2)
        .map(|index| {
            let address = address.clone();
            std::thread::spawn(move || stream(&address, "/v1/completions", &body(index, 3)).events())
        })
        .collect();
    let mut refused = 0;
    wait_until("the queue is full", || get(&address, "/health").json()["queue"] == 2 || running.is_empty());
    for index in 0..20 {
        let answer = post(&address, "/v1/completions", &body(index, 3));
        if answer.status == 429 {
            answer.assert_error(429, "queue_full", "try again");
            assert!(answer.header("retry-after").is_some());
            refused += 1;
        }
    }
    assert!(refused > 0, "with {slots} places taken and 2 waiting some are refused");
    for one in running.drain(..) {
        assert!(!rest(one).0.is_empty());
    }
    waiting.into_iter().for_each(|one| assert!(!one.join().expect("no panic").is_empty()));
    wait_until("all places are free", || get(&address, "/health").json()["slots"]["taken"] == 0);
    assert!(get(&address, "/metrics").body.contains(&format!("bramble_refused_total {refused}")));
}

#[test]
fn node_without_a_shard_forwards_requests_to_the_heads() {
    let models = deep_models();
    let mut cluster = Cluster::with(3, models.path(), "");
    assign(&cluster, 2, "tp2", &["--context", "2048"]);
    let peer = cluster.addresses[1].clone();
    cluster.signal(2, Signal::SIGTERM);
    cluster.wait(2);
    cluster.start_with_arguments(2, &["--peer", &peer]);
    let lite = beside(&cluster.addresses[2]);
    serving(&lite);
    serving(&beside(&cluster.addresses[0]));
    let own =
        post(&beside(&cluster.addresses[0]), "/v1/completions", &json!({"prompt": "ab", "max_tokens": 9, "seed": 1}))
            .good();
    let handed = post(&lite, "/v1/completions", &json!({"prompt": "ab", "max_tokens": 9, "seed": 1})).good();
    assert_eq!(own["choices"], handed["choices"]);
    assert_eq!(cluster.status(2)["state"], "idle");
}

#[test]
fn draining_node_finishes_its_streams() {
    let models = deep_models();
    let mut cluster = Cluster::with(1, models.path(), "drain_ms = 300000\n");
    assign(&cluster, 1, "tp1", &["--context", "2048"]);
    let address = beside(&cluster.addresses[0]);
    serving(&address);
    let running = begin(&address, &body(2, 1000));
    cluster.signal(0, Signal::SIGTERM);
    wait_until("it drains", || get(&address, "/health").json()["status"] == "draining");
    assert!(!rest(running).0.is_empty());
    assert_eq!(cluster.wait(0), Some(0));
}

#[test]
fn stream_cut_by_the_drain_of_its_gateway_ends_with_a_reason() {
    let models = deep_models();
    let cluster = Cluster::with(1, models.path(), "");
    assign(&cluster, 1, "tp1", &["--context", "2048"]);
    let settings = format!("peers = [\"{}\"]\ndrain_ms = 100\n", cluster.addresses[0]);
    let mut front = Cluster::with(1, models.path(), &settings);
    let address = beside(&front.addresses[0]);
    serving(&address);
    let (mut answer, _) = begin(&address, &body(1, 1900));
    front.signal(0, Signal::SIGTERM);
    let last = std::iter::from_fn(|| answer.event()).last().expect("it has events");
    let last: Value = serde_json::from_str(&last).expect("the stream must end with an error");
    assert_eq!(last["error"]["code"], "shutting_down", "{last}");
    assert!(last["error"]["message"].as_str().is_some_and(|text| text.contains("use another node")), "{last}");
    assert_eq!(front.wait(0), Some(0));
}

#[test]
fn stream_that_has_not_begun_at_the_end_of_a_drain_gets_an_error() {
    let heads = FakeHeads::start(&[Script::Waits]);
    let settings = format!("peers = [\"{}\"]\ndrain_ms = 100\n", heads.addresses[0]);
    let mut front = Cluster::with(1, &demo_models(), &settings);
    let address = beside(&front.addresses[0]);
    serving(&address);
    let waiting = std::thread::spawn(move || stream(&address, "/v1/completions", &body(1, 3)).rest());
    wait_until("the head has the request", || !heads.asked().is_empty());
    front.signal(0, Signal::SIGTERM);
    waiting.join().expect("no panic").assert_error(503, "shutting_down", "use another node");
    assert_eq!(front.wait(0), Some(0));
}
