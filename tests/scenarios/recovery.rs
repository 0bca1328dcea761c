//! Topologies that recover automatically: after all nodes died, after one died, on the remaining nodes, and with full
//! or broken disks.
use std::fs;

use harness::{
    deep_models::deep_models,
    http::{Stream, beside, get, post, stream, text_of},
    programs::{Cluster, DEEP, demo_models, finish, spawn_console, wait_until},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::json_output::assert_described;

/// Nodes restore their topology.
const RECOVER: &str = "recover = true\nsilent_ms = 30000\nstall_ms = 60000\n";
const PROMPT: &[&str] = &["--prompt", "ROMEO:", "--max-tokens", "6", "--temperature", "0"];

fn state(cluster: &Cluster, index: usize) -> (String, u64) {
    let status = cluster.status(index);
    (status["state"].as_str().unwrap_or_default().into(), status["epoch"].as_u64().unwrap_or_default())
}

fn serves(cluster: &Cluster, nodes: &[usize], epoch: u64) {
    for index in nodes {
        wait_until(&format!("pi{} serves epoch {epoch}", index + 1), || {
            state(cluster, *index) == ("ready".into(), epoch)
        });
    }
}

fn kill(cluster: &mut Cluster, index: usize) {
    cluster.signal(index, Signal::SIGKILL);
    cluster.wait(index);
}

/// Starts a stream through a gateway; returns it with its first events.
fn begin(address: &str, max_tokens: u32) -> (Stream, Vec<Value>) {
    let body = json!({"prompt": "abab", "max_tokens": max_tokens, "temperature": 0.9, "seed": 5, "stream": true});
    let mut answer = stream(address, "/v1/completions", &body);
    assert_eq!(answer.status, 200);
    let first = answer.event().expect("tokens arrive");
    (answer, vec![serde_json::from_str(&first).expect("JSON")])
}

fn rest(begun: (Stream, Vec<Value>)) -> String {
    let (answer, mut events) = begun;
    events.extend(answer.events());
    text_of(&events, 0)
}

#[test]
fn four_killed_nodes_serve_again_without_a_console() {
    let mut cluster = Cluster::with(4, &demo_models(), RECOVER);
    let before = cluster.generate(4, PROMPT).completion()["token_ids"].clone();
    let first = (0..4)
        .map(|index| {
            fs::metadata(cluster.state(index).join("topology.toml"))
                .and_then(|file| file.modified())
                .expect("it was written")
        })
        .collect::<Vec<_>>();
    for order in [[2, 0, 3, 1], [1, 3, 2, 0]] {
        (0..4).for_each(|index| cluster.signal(index, Signal::SIGKILL));
        (0..4).for_each(|index| assert_eq!(cluster.wait(index), None));
        order.into_iter().for_each(|index| cluster.start(index));
        serves(&cluster, &[0, 1, 2, 3], 1);
    }
    let after = cluster.generate(4, PROMPT).completion();
    assert_eq!(
        (&after["token_ids"], after["epoch"].as_u64()),
        (&before, Some(1)),
        "same text and epoch, nothing may be assigned"
    );
    let last: Vec<_> = (0..4)
        .map(|index| {
            fs::metadata(cluster.state(index).join("topology.toml"))
                .and_then(|file| file.modified())
                .expect("it is there")
        })
        .collect();
    assert_eq!(first, last, "unchanged state must not be written again");
}

#[test]
fn each_killed_node_returns_and_the_stream_continues() {
    let mut cluster = Cluster::with(4, &demo_models(), RECOVER);
    let gateway = Cluster::with(
        1,
        &demo_models(),
        &format!("peers = [\"{}\", \"{}\"]\n", cluster.addresses[0], cluster.addresses[1]),
    );
    let run = ["--prompt", "ab", "--max-tokens", "1", "--topology", "tp3"];
    cluster.generate(3, &run).completion();
    let address = beside(&gateway.addresses[0]);
    wait_until("the gateway has the topology", || get(&address, "/health").status == 200);
    let expected = rest(begin(&address, 400));
    for victim in 0..3 {
        let running = begin(&address, 400);
        kill(&mut cluster, victim);
        cluster.start(victim);
        assert_eq!(rest(running), expected, "pi{} was killed", victim + 1);
        serves(&cluster, &[0, 1, 2], 1);
    }
    assert_eq!(state(&cluster, 3).0, "idle", "the fourth node must not take part");
}

#[test]
fn console_generate_continues_after_a_head_or_rank_is_killed() {
    // The answer takes seconds, so it still runs when a node is killed.
    let models = deep_models();
    let mut cluster = Cluster::with(2, models.path(), RECOVER);
    let run = [
        "--model",
        DEEP,
        "--context",
        "2048",
        "--prompt",
        "ab",
        "--temperature",
        "0.9",
        "--seed",
        "5",
        "--max-tokens",
        "400",
    ];
    let expected = cluster.generate(2, &run).completion();
    assert_eq!(expected["resumed"], 0);
    for victim in [1, 0] {
        let nodes = cluster.nodes();
        let running = spawn_console(&[&["generate", "--nodes", &nodes, "--json"], &run[..]].concat());
        wait_until("it runs", || cluster.status(0)["requests"] == 1);
        kill(&mut cluster, victim);
        cluster.start(victim);
        let completion = finish(running).completion();
        assert!(completion["resumed"].as_u64() > Some(0), "{completion}");
        assert_eq!(completion["token_ids"], expected["token_ids"], "pi{} was killed", victim + 1);
    }
}

#[test]
fn lost_node_is_excluded_and_included_again_when_back() {
    for victim in [2, 0] {
        let mut cluster = Cluster::with(3, &demo_models(), &format!("{RECOVER}exclude_after_ms = 1500\n"));
        let run = ["--prompt", "ab", "--max-tokens", "1"];
        cluster.generate(3, &run).completion();
        let address = beside(&cluster.addresses[1]);
        wait_until("the gateway has the topology", || get(&address, "/health").status == 200);
        let running = begin(&address, 400);
        kill(&mut cluster, victim);
        let rest_of: Vec<usize> = (0..3).filter(|index| *index != victim).collect();
        let text = rest(running);
        assert!(text.len() > 100, "the answer must continue on the remaining nodes: {text:?}");
        serves(&cluster, &rest_of, 2);
        let status = cluster.status(rest_of[0]);
        assert_eq!(status["topology"]["layout"], "tp2");
        let reason = status["exclusions"][0]["reason"].as_str().unwrap_or_default().to_owned();
        assert!(reason.contains("did not answer"), "{status}");
        assert_eq!(status["desired"], "tp3", "{status}");
        let running = begin(&address, 400);
        cluster.start(victim);
        serves(&cluster, &[0, 1, 2], 3);
        let status = cluster.status(victim);
        assert_eq!((&status["topology"]["layout"], &status["desired"]), (&json!("tp3"), &Value::Null));
        assert!(status["exclusions"][0]["reason"].is_null(), "{status}");
        assert!(rest(running).len() > 100, "a running answer must continue");
    }
}

#[test]
fn member_that_cannot_load_its_shard_is_left_out_until_it_is_included() {
    let settings = format!("{RECOVER}exclude_after_ms = 1500\n");
    let mut cluster = Cluster::with(3, &demo_models(), &settings);
    cluster.generate(3, PROMPT).completion();
    kill(&mut cluster, 1);
    // It answers, but no shard fits in so little memory.
    cluster.set_settings(&format!("{settings}memory_max_mib = 1\n"));
    cluster.start(1);
    serves(&cluster, &[0, 2], 2);
    let status = cluster.status(0);
    let reason = status["exclusions"][0]["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.starts_with("cannot load its shard (repair, then include it): not enough memory"), "{status}");
    assert_eq!((state(&cluster, 1).0.as_str(), &status["desired"]), ("idle", &json!("tp3")), "{status}");
    kill(&mut cluster, 1);
    cluster.set_settings(&settings);
    cluster.start(1);
    let included = cluster.console(&["node", "include", "pi2", "--nodes", &cluster.nodes(), "--yes"]);
    assert_eq!(included.code, Some(0), "{} {}", included.out, included.err);
    wait_until("all serve again", || {
        (0..3).all(|index| state(&cluster, index).0 == "ready" && cluster.status(index)["topology"]["layout"] == "tp3")
    });
}

#[test]
fn member_that_ends_in_each_load_is_left_out_until_it_is_included() {
    let mut cluster = Cluster::with(3, &demo_models(), &format!("{RECOVER}exclude_after_ms = 1500\n"));
    cluster.generate(3, PROMPT).completion();
    kill(&mut cluster, 1);
    // What processes leave behind that were killed while they loaded the shard.
    let topology = fs::read_to_string(cluster.state(1).join("topology.toml")).expect("it has a topology");
    let hash = topology.lines().find_map(|line| line.strip_prefix("hash = ")).expect("the file has its hash");
    let machine = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux has it");
    let record = format!("machine = \"{}\"\ntopology = {hash}\nbegun = 3\n", machine.trim());
    fs::write(cluster.state(1).join("loading.toml"), record).expect("the folder can be written");
    cluster.start(1);
    serves(&cluster, &[0, 2], 2);
    let status = cluster.status(0);
    let reason = status["exclusions"][0]["reason"].as_str().unwrap_or_default().to_owned();
    let expected = "cannot load its shard (repair, then include it): brambled ended 3 times in a row";
    assert!(reason.starts_with(expected), "{status}");
    // It tries again after an orderly restart.
    cluster.signal(1, Signal::SIGTERM);
    cluster.wait(1);
    cluster.start(1);
    let included = cluster.console(&["node", "include", "pi2", "--nodes", &cluster.nodes(), "--yes"]);
    assert_eq!(included.code, Some(0), "{} {}", included.out, included.err);
    wait_until("all serve again", || {
        (0..3).all(|index| state(&cluster, index).0 == "ready" && cluster.status(index)["topology"]["layout"] == "tp3")
    });
}

#[test]
fn one_of_two_nodes_continues_only_with_witness_or_operator() {
    let settings = format!("{RECOVER}exclude_after_ms = 500\n");
    let mut cluster = Cluster::with(2, &demo_models(), &settings);
    cluster.generate(2, PROMPT).completion();
    kill(&mut cluster, 0);
    wait_until("it detects that it has no majority", || cluster.log(1).contains("1 of 2 votes"));
    assert_ne!(state(&cluster, 1).0, "ready");
    let ended = cluster.console(&["topology", "take-over", "--nodes", &cluster.addresses[1], "--yes", "--json"]);
    assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
    assert_described("console topology take-over", &ended.json());
    serves(&cluster, &[1], 2);
    // Its third node has a name that neither of the two has.
    let witness = Cluster::with(3, &demo_models(), "");
    let mut pair = Cluster::with(2, &demo_models(), &format!("{settings}witness = \"{}\"\n", witness.addresses[2]));
    pair.generate(2, PROMPT).completion();
    kill(&mut pair, 1);
    serves(&pair, &[0], 2);
}

#[test]
fn damaged_and_unwritable_state_is_survived_and_named() {
    let mut cluster = Cluster::with(3, &demo_models(), RECOVER);
    cluster.generate(3, PROMPT).completion();
    (0..3).for_each(|index| kill(&mut cluster, index));
    let text = fs::read(cluster.state(0).join("topology.toml")).expect("it was written");
    fs::write(cluster.state(0).join("topology.toml"), &text[..text.len() / 2]).expect("it can be cut");
    fs::write(cluster.state(1).join("epoch.toml"), [0xff, 0x00]).expect("it can be broken");
    // As on a full disk: a folder is in the way, so the file cannot be written.
    fs::create_dir(cluster.state(2).join("topology.toml.new")).expect("create a temporary folder");
    (0..3).for_each(|index| cluster.start(index));
    serves(&cluster, &[0, 1, 2], 1);
    assert!(cluster.log(0).contains("topology.toml in the state folder was damaged"), "{}", cluster.log(0));
    assert!(cluster.log(1).contains("epoch.toml in the state folder was damaged"), "{}", cluster.log(1));
    // A topology that cannot be stored is served nevertheless, and the log reports the consequence.
    cluster.generate(3, &[PROMPT, &["--context", "128"]].concat()).completion();
    wait_until("the log reports it", || cluster.log(2).contains("a restart would lose this record"));
}

#[test]
fn two_nodes_with_changed_addresses_are_voted_in() {
    let mut cluster = Cluster::with(3, &demo_models(), RECOVER);
    cluster.generate(3, PROMPT).completion();
    (0..3).for_each(|index| kill(&mut cluster, index));
    cluster.addresses.swap(1, 2);
    (0..3).for_each(|index| cluster.start(index));
    serves(&cluster, &[0, 1, 2], 2);
}

#[test]
fn restarted_member_holds_requests_until_its_topology_returns() {
    let mut cluster = Cluster::with(2, &demo_models(), RECOVER);
    cluster.generate(2, PROMPT).completion();
    let address = beside(&cluster.addresses[1]);
    wait_until("the gateway has the topology", || get(&address, "/health").status == 200);
    // The other member stays down meanwhile: this node reads its topology from its own disk.
    kill(&mut cluster, 0);
    kill(&mut cluster, 1);
    cluster.start(1);
    let asked = std::thread::spawn({
        let address = address.clone();
        move || post(&address, "/v1/completions", &json!({"prompt": "ab", "max_tokens": 3}))
    });
    // The request waits in the queue; earlier releases refused it after 0.6 s.
    wait_until("the request waits", || get(&address, "/health").json()["queue"] == 1);
    cluster.start(0);
    asked.join().expect("no panic").good();
}
