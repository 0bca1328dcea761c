//! Rolling restarts that the nodes drive themselves, nodes that join and leave, and consoles that are stopped in the
//! middle of an assignment.
use std::time::Duration;

use harness::{
    deep_models::deep_models,
    http::{beside, get, stream, text_of},
    programs::{Cluster, DEEP, Ended, demo_models, finish, spawn_console, wait_until},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

const RECOVER: &str = "recover = true\nsilent_ms = 30000\nstall_ms = 60000\n";
const PROMPT: &[&str] = &["--prompt", "ROMEO:", "--max-tokens", "4", "--temperature", "0"];

fn operate(cluster: &Cluster, command: &[&str]) -> Ended {
    let nodes = cluster.nodes();
    let mut arguments = command.to_vec();
    arguments.extend(["--nodes", &nodes, "--json"]);
    cluster.console(&arguments)
}

fn good(ended: Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
    ended.json()
}

#[test]
fn rolling_restart_outlives_its_console_and_streams_continue() {
    // The answer takes seconds, so it still runs when the first node is restarted.
    let models = deep_models();
    let cluster = Cluster::supervised(3, models.path(), RECOVER);
    let front = Cluster::with(1, models.path(), &format!("{RECOVER}peers = [\"{}\"]\n", cluster.addresses[0]));
    let run = ["--model", DEEP, "--prompt", "ab", "--max-tokens", "1", "--context", "2048"];
    cluster.generate(3, &run).completion();
    let address = beside(&front.addresses[0]);
    wait_until("the gateway has the topology", || get(&address, "/health").status == 200);
    let body = json!({"prompt": "abab", "max_tokens": 400, "temperature": 0.9, "seed": 5, "stream": true});
    let whole = || text_of(&stream(&address, "/v1/completions", &body).events(), 0);
    let expected = whole();
    let pids: Vec<_> = (0..3).map(|index| cluster.pid(index)).collect();
    let mut running = stream(&address, "/v1/completions", &body);
    assert!(running.event().is_some(), "tokens arrive");
    good(operate(&cluster, &["restart", "--rolling", "--drain-ms", "100", "--yes", "--detach"]));
    // The two ranks that serve while the third restarts round sums differently, so a sampled text may change from there
    // on.
    let events = running.events();
    let end = events.last().expect("the stream has events");
    assert_eq!(end["choices"][0]["finish_reason"], "length", "{end}");
    assert!(end["timings"]["trace"]["resumed"].as_u64() > Some(0), "{end}");
    let done = good(operate(&cluster, &["restart", "status"]));
    assert_eq!((done["phase"].as_str(), done["done"].as_u64()), (Some("done"), Some(3)));
    (0..3).for_each(|index| assert_ne!(cluster.pid(index), pids[index], "pi{} was not restarted", index + 1));
    let status = cluster.status(0);
    assert_eq!(
        (&status["topology"]["layout"], &status["desired"]),
        (&json!("tp3"), &Value::Null),
        "the layout must be restored"
    );
    assert_eq!(whole(), expected);
}

#[test]
fn rolling_restart_pauses_at_a_failure_and_can_be_ended() {
    let mut cluster = Cluster::supervised(3, &demo_models(), RECOVER);
    cluster.generate(3, PROMPT).completion();
    // No supervisor would restart pi2.
    cluster.signal(1, Signal::SIGTERM);
    assert_eq!(cluster.wait(1), Some(0));
    cluster.start_with_arguments(1, &[]);
    wait_until("all serve", || (0..3).all(|index| cluster.status(index)["state"] == "ready"));
    let third = cluster.pid(2);
    let ended = operate(&cluster, &["restart", "--rolling", "--yes"]);
    let paused = ended.json();
    assert_eq!(
        (ended.code, paused["phase"].as_str(), paused["done"].as_u64()),
        (Some(1), Some("paused"), Some(1)),
        "{paused}"
    );
    assert!(paused["reason"].as_str().is_some_and(|reason| reason.contains("pi2")), "{paused}");
    assert_eq!(cluster.pid(2), third, "the nodes after it must not be restarted");
    assert_eq!(good(operate(&cluster, &["restart", "abort"]))["phase"], "aborted");
    assert_eq!(operate(&cluster, &["restart", "resume"]).code, Some(8), "the restart must be over");
    // A single node is restarted by its peers.
    let first = cluster.pid(0);
    assert_eq!(good(operate(&cluster, &["restart", "pi1", "--rolling", "--yes"]))["phase"], "done");
    assert_ne!(cluster.pid(0), first);
}

#[test]
fn nodes_join_and_leave_while_an_answer_continues() {
    let models = deep_models();
    let cluster = Cluster::with(4, models.path(), RECOVER);
    let run = ["--model", DEEP, "--prompt", "ab", "--max-tokens", "1", "--context", "2048"];
    cluster.generate(3, &run).completion();
    let address = beside(&cluster.addresses[0]);
    wait_until("the gateway has the topology", || get(&address, "/health").status == 200);
    let three = cluster.addresses[..3].join(",");
    let stop = cluster.console(&["node", "check", "pi2", "--nodes", &three, "--json"]);
    let outlook = good(stop);
    assert_eq!((outlook["ok"].as_bool(), outlook["topology"].as_str()), (Some(true), Some("tp2")), "{outlook}");
    let body = json!({"prompt": "abab", "max_tokens": 400, "temperature": 0.9, "seed": 5, "stream": true});
    let mut running = stream(&address, "/v1/completions", &body);
    assert!(running.event().is_some(), "tokens arrive");
    let joined = cluster.console(&["node", "add", &cluster.addresses[3], "--nodes", &three, "--yes", "--json"]);
    assert_eq!(good(joined)["topology"], "tp4");
    let events = running.events();
    let end = events.last().expect("the stream has events");
    assert!(end["timings"]["trace"]["resumed"].as_u64() > Some(0), "the answer must continue after the switch: {end}");
    assert_eq!(good(operate(&cluster, &["node", "remove", "pi2", "--yes"]))["topology"], "tp3");
    assert_eq!(cluster.status(0)["topology"]["layout"], "tp3");
    let last = operate(&cluster, &["node", "cordon", "pi3", "--drain", "--reason", "fan", "--yes"]);
    assert_eq!(good(last)["state"], "drained");
}

#[test]
fn console_stopped_during_an_assignment_changes_nothing_later() {
    let cluster = Cluster::with(2, &demo_models(), "");
    let nodes = cluster.nodes();
    let (mut lost, mut seed) = (0, 7_u64);
    for run in 0..20 {
        let one = (64 + run).to_string();
        let first = spawn_console(&[
            "generate",
            "--nodes",
            &nodes,
            "--model",
            "bard-q8_0.gguf",
            "--context",
            &one,
            "--prompt",
            "a",
            "--max-tokens",
            "1",
            "--json",
            "--yes",
        ]);
        let pid = Pid::from_raw(first.id().cast_signed());
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::park_timeout(Duration::from_millis(5 + (seed >> 40) % 60));
        let _ = kill(pid, Signal::SIGSTOP);
        let second = (128 + run).to_string();
        let mut assigned = None;
        // While the first console's sessions are open, so is its prepared assignment; the second console waits for its
        // lease.
        for _ in 0..3 {
            let ended = cluster.generate(2, &["--context", &second, "--prompt", "a", "--max-tokens", "1"]);
            if ended.code == Some(0) {
                assigned = ended.json()["epoch"].as_u64();
                break;
            }
        }
        let _ = kill(pid, Signal::SIGCONT);
        let ended = finish(first);
        let own = if ended.code == Some(0) { ended.json()["epoch"].as_u64() } else { None };
        lost += usize::from(own.is_none());
        // An answer that was continued on the second console's assignment reports the epoch of that one.
        let has_moved = ended.code == Some(0) && ended.json()["resumed"].as_u64() > Some(0);
        if let (Some(own), Some(assigned), false) = (own, assigned, has_moved) {
            assert_ne!(own, assigned, "one epoch, two assignments");
        }
        let at = |index: usize| {
            let status = cluster.status(index);
            let serves = (status["topology"]["hash"].clone(), status["topology"]["layout"].clone());
            (status["epoch"].as_u64(), serves)
        };
        // One node may have promised an epoch to a console that the other refused. The promise is only a number; no
        // node serves it.
        wait_until("both nodes serve the same", || at(0).1 == at(1).1);
        let latest = at(0).0.min(at(1).0);
        assert!(
            latest >= assigned.max(own),
            "a stale assignment came after a later one: {latest:?} {assigned:?} {own:?}"
        );
    }
    println!("{lost} of 20 stopped consoles were refused for a later assignment");
}
