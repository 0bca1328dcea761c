//! Excluded nodes and cordoned replicas as clients and operators see them, and a node whose disk is full.
use std::{fs, time::Instant};

use harness::{
    deep_models::deep_models,
    http::{beside, get, post},
    programs::{Cluster, Ended, PATIENCE, demo_models, finish, spawn_console, wait_until},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

const PROMPT: &[&str] = &["--prompt", "ROMEO:", "--max-tokens", "4", "--temperature", "0"];

fn order(cluster: &Cluster, words: &[&str]) -> Ended {
    let nodes = cluster.nodes();
    cluster.console(&[words, &["--nodes", &nodes, "--yes", "--json"]].concat())
}

/// A file cannot replace a non-empty folder: writing the list fails, even for root.
fn break_list(cluster: &Cluster, index: usize) {
    let list = cluster.state(index).join("exclusions.toml");
    fs::create_dir_all(list.join("in the way")).expect("the state folder can be written");
}

#[test]
fn node_whose_disk_is_full_is_excluded_and_the_rest_serves() {
    let mut cluster = Cluster::with(3, &demo_models(), "");
    let ids = cluster.generate(3, PROMPT).completion()["token_ids"].clone();
    break_list(&cluster, 1);
    let out = order(&cluster, &["node", "exclude", "pi2", "--reason", "disk full"]);
    assert_eq!((out.code, out.json()["topology"].as_str()), (Some(0), Some("tp2")), "{} {}", out.out, out.err);
    assert!(out.err.contains("pi2 cannot store the list"), "{}", out.err);
    let two = cluster.generate(3, PROMPT).completion();
    assert_eq!((two["topology"].as_str(), &two["token_ids"]), (Some("tp2"), &ids));
    // A cordon would let the nodes load the model on it again.
    order(&cluster, &["node", "cordon", "pi2", "--reason", "repair"]).assert_error(8, "state", &["pi2 is excluded"]);
    // The others keep it excluded, even if it is dead and was not named.
    cluster.signal(1, Signal::SIGKILL);
    cluster.wait(1);
    let named = format!("{},{}", cluster.addresses[0], cluster.addresses[2]);
    let again = cluster.console(&["node", "exclude", "pi2", "--reason", "dead", "--nodes", &named, "--yes", "--json"]);
    assert_eq!(again.code, Some(0), "{} {}", again.out, again.err);
    assert_eq!(cluster.generate(3, PROMPT).completion()["topology"], "tp2");
}

#[test]
fn exclusion_stored_by_too_few_nodes_changes_nothing() {
    let cluster = Cluster::with(3, &demo_models(), "");
    let epoch = cluster.generate(3, PROMPT).completion()["epoch"].clone();
    [0, 2].into_iter().for_each(|index| break_list(&cluster, index));
    order(&cluster, &["node", "exclude", "pi2", "--reason", "fan"]).assert_error(4, "state_unwritable", &[]);
    let after = cluster.generate(3, PROMPT).completion();
    assert_eq!((after["topology"].as_str(), &after["epoch"]), (Some("tp3"), &epoch), "the heads must keep serving");
    for index in 0..3 {
        let said = cluster.status(index)["exclusions"].clone();
        let out = said.as_array().into_iter().flatten().filter(|entry| !entry["reason"].is_null()).count();
        assert_eq!(out, 0, "pi{}: {said}", index + 1);
    }
}

#[test]
fn cordon_of_the_only_replica_is_reported_to_everyone() {
    let cluster = Cluster::with(2, &demo_models(), "");
    cluster.generate(2, PROMPT).completion();
    let nodes = cluster.nodes();
    let api = beside(&cluster.addresses[0]);
    let body = json!({"prompt": "ROMEO:", "max_tokens": 2, "temperature": 0});
    wait_until("the gateway serves", || post(&api, "/v1/completions", &body).status == 200);
    let words = ["node", "cordon", "pi2", "--reason", "fan", "--nodes", &nodes];
    let tried = cluster.console(&[&words[..], &["--dry-run"]].concat());
    assert!(tried.code == Some(0) && tried.out.contains("No other replica accepts requests"), "{}", tried.out);
    let done = cluster.console(&[&words[..], &["--yes"]].concat());
    assert_eq!(done.code, Some(0), "{} {}", done.out, done.err);
    assert!(done.err.contains("new ones are refused") && done.out.contains("node uncordon pi2"), "{done:?}");
    wait_until("the gateway reports it", || get(&api, "/health").status == 503);
    let health = get(&api, "/health").json();
    assert_eq!(health["status"], "cordoned", "{health}");
    assert!(health["message"].as_str().is_some_and(|text| text.contains("pi2") && text.contains("fan")), "{health}");
    let begun = Instant::now();
    let refused = post(&api, "/v1/completions", &body);
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (503, Some("cordoned")));
    assert!(begun.elapsed() < PATIENCE / 20, "the request must be refused at once");
    let status = cluster.console(&["status", "--nodes", &nodes]);
    assert!(status.out.contains("cordoned: fan") && !status.out.contains("excluded:"), "{}", status.out);
    assert_eq!(order(&cluster, &["node", "include", "pi2"]).code, Some(0));
    wait_until("it serves again", || post(&api, "/v1/completions", &body).status == 200);
    assert_eq!(get(&api, "/health").json()["status"], "ready");
}

#[test]
fn interrupted_drain_reports_that_the_node_stays_cordoned() {
    let models = deep_models();
    let cluster = Cluster::with(2, models.path(), "");
    let answer = cluster.start_generation("4000");
    let nodes = cluster.nodes();
    let words = ["node", "cordon", "pi2", "--reason", "fan", "--drain", "--nodes", &nodes, "--yes", "--json"];
    let draining = spawn_console(&words);
    let reasons = || {
        let entries = [0, 1].map(|index| cluster.status(index)["exclusions"].clone());
        entries.map(|entries| entries[0]["reason"].clone())
    };
    wait_until("both nodes have stored it", || reasons() == ["fan", "fan"]);
    kill(Pid::from_raw(draining.id().cast_signed()), Signal::SIGINT).expect("the console is running");
    let ended = finish(draining);
    ended.assert_error(130, "interrupted", &[]);
    // Whether or not the console already knows that both have stored it.
    assert!(
        ["stays", "may be"].iter().any(|word| ended.err.contains(&format!("pi2 {word} cordoned: "))),
        "{}",
        ended.err
    );
    assert!(ended.err.contains("console node uncordon pi2"), "{}", ended.err);
    assert_eq!(reasons(), ["fan", "fan"]);
    assert_eq!(order(&cluster, &["node", "include", "pi2"]).code, Some(0));
    assert!(reasons().iter().all(Value::is_null), "{:?}", reasons());
    kill(Pid::from_raw(answer.id().cast_signed()), Signal::SIGINT).expect("the console is running");
    finish(answer);
}
