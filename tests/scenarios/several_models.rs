//! Several models on one cluster: groups of nodes that serve different models behind the API of every node, loading on
//! demand, and unloading.
use std::{
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread::{scope, sleep},
    time::{Duration, Instant},
};

use gguf::BlockFormat;
use harness::{
    http::{HttpAnswer, beside, bytes, get, post, raw, try_raw},
    programs::{CONFIG_HOME, Cluster, PATIENCE, folder_with, programs, wait_until},
    random::Random,
    tiny_model::{Architecture, TinyModel},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

const MODELS: [&str; 3] = ["one.gguf", "two.gguf", "three.gguf"];
/// Requests of the test with restarts.
const REQUESTS: usize = 500;
/// Restarts meanwhile: two of each node.
const RESTARTS: usize = 8;
const CLIENTS: usize = 6;
const OPERATOR: &str = "sk-operator-0123456789";

/// A folder with models whose answers differ.
fn models() -> TempDir {
    let model = |seed: u64| {
        let mut model = TinyModel::new(Architecture::Llama);
        (model.seed, model.context_length) = (seed, 256);
        model.with_format(BlockFormat::Q8_0).bytes()
    };
    let [one, two, three] = [model(1), model(2), model(3)];
    folder_with(&[(MODELS[0], &one), (MODELS[1], &two), (MODELS[2], &three)])
}

/// Serves a model on some nodes.
fn assign(cluster: &Cluster, nodes: &[usize], model: &str) {
    let addresses: Vec<&str> = nodes.iter().map(|node| cluster.addresses[*node].as_str()).collect();
    let layout = format!("tp{}", nodes.len());
    let nodes = addresses.join(",");
    let run = ["generate", "--json", "--nodes", &nodes, "--model", model, "--topology", &layout, "--prompt", "ab"];
    cluster.console(&[&run[..], &["--max-tokens", "1", "--yes"]].concat()).completion();
}

fn body(model: &str, prompt: usize) -> Value {
    let prompt: String = "abcdefgh".chars().cycle().skip(prompt).take(2 + prompt).collect();
    json!({"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0})
}

fn text(answer: &Value) -> String {
    answer["choices"][0]["text"].as_str().expect("a text").to_owned()
}

fn served(address: &str) -> Vec<String> {
    let list = get(address, "/v1/models").good()["data"].clone();
    let mut names: Vec<String> =
        list.as_array().expect("a list").iter().map(|model| model["id"].as_str().expect("a name").to_owned()).collect();
    names.sort_unstable();
    names
}

/// Sends a request like a client that retries where the API allows it, at random nodes; returns the answer.
fn persistent(addresses: &[String], body: &Value, random: &mut Random) -> Value {
    let begin = Instant::now();
    let mut latest = String::new();
    while begin.elapsed() < PATIENCE {
        let address = &addresses[random.below(addresses.len())];
        let content = [("Content-Type", "application/json")];
        let request = bytes("POST", "/v1/completions", &content, Some(&body.to_string()));
        let answer: Option<HttpAnswer> = try_raw(address, &request).ok().map(|stream| stream.rest());
        match answer {
            Some(answer) if answer.status == 200 && serde_json::from_str::<Value>(&answer.body).is_ok() => {
                return answer.json();
            }
            Some(answer) if answer.status == 503 || answer.status == 200 => latest = answer.body,
            Some(answer) => panic!("{} {}", answer.status, answer.body),
            None => latest = "no connection".into(),
        }
        sleep(Duration::from_millis(20));
    }
    panic!("no answer within {PATIENCE:?}: {latest}")
}

/// Saves the nodes as a cluster, and runs a command with it.
fn console_with_saved(cluster: &Cluster, home: &TempDir, arguments: &[&str]) -> bool {
    let mut command = Command::new(programs().join("console"));
    command.args(arguments).env(CONFIG_HOME, home.path()).env("BRAMBLE_SILENT_MS", "10000");
    command.env_remove("BRAMBLE_NODES").env_remove("BRAMBLE_KEY_FILE");
    let ended = command.stdin(Stdio::null()).output().expect("start the console");
    let log = String::from_utf8_lossy(&ended.stderr).into_owned();
    println!("{} nodes: console {arguments:?}: {log}", cluster.addresses.len());
    ended.status.success()
}

#[test]
fn requests_to_two_models_survive_restarts_of_all_nodes() {
    let (folder, home) = (models(), tempfile::tempdir().expect("create a temporary folder"));
    let settings = "recover = true\nexclude_after_ms = 0\n";
    let mut cluster = Cluster::with(4, folder.path(), settings);
    assert!(console_with_saved(&cluster, &home, &["cluster", "add", "home", &cluster.nodes()]));
    for (nodes, model) in [([0, 1], MODELS[0]), ([2, 3], MODELS[1])] {
        let nodes = nodes.map(|node: usize| cluster.addresses[node].clone()).join(",");
        let run = ["generate", "--nodes", &nodes, "--model", model, "--topology", "tp2", "--prompt", "ab"];
        assert!(console_with_saved(&cluster, &home, &[&run[..], &["--max-tokens", "1"]].concat()));
    }
    let addresses: Vec<String> = cluster.addresses.iter().map(|address| beside(address)).collect();
    for address in &addresses {
        wait_until("every node lists both models", || served(address) == MODELS[..2]);
    }
    let expected: Vec<Vec<String>> = MODELS[..2]
        .iter()
        .map(|model| {
            (0..8).map(|prompt| text(&post(&addresses[0], "/v1/completions", &body(model, prompt)).good())).collect()
        })
        .collect();
    assert_ne!(expected[0], expected[1], "the models must give different answers");
    let (sent, restarts) = (AtomicUsize::new(0), AtomicUsize::new(0));
    scope(|threads| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (sent, restarts, addresses, expected) = (&sent, &restarts, &addresses, &expected);
                threads.spawn(move || {
                    let mut random = Random::new(client as u64);
                    let mut answered = 0;
                    // Requests are sent until all restarts are over, so that each happens under load.
                    while sent.load(Ordering::Relaxed) < REQUESTS || restarts.load(Ordering::Relaxed) < RESTARTS {
                        sent.fetch_add(1, Ordering::Relaxed);
                        let (model, prompt) = (random.below(2), random.below(8));
                        let answer = persistent(addresses, &body(MODELS[model], prompt), &mut random);
                        assert_eq!(answer["model"], MODELS[model]);
                        assert_eq!(text(&answer), expected[model][prompt], "of {}, prompt {prompt}", MODELS[model]);
                        answered += 1;
                    }
                    answered
                })
            })
            .collect();
        // Every node is stopped, then killed.
        for number in 0..RESTARTS {
            let node = number % 4;
            cluster.signal(node, if number < RESTARTS / 2 { Signal::SIGTERM } else { Signal::SIGKILL });
            cluster.wait(node);
            cluster.start(node);
            wait_until("the node serves again", || {
                matches!(cluster.status(node)["state"].as_str(), Some("ready" | "serving"))
            });
            restarts.fetch_add(1, Ordering::Relaxed);
        }
        let answered: usize = clients.into_iter().map(|client| client.join().expect("no request is lost")).sum();
        assert_eq!(answered, sent.load(Ordering::Relaxed));
        println!("{answered} requests, {RESTARTS} restarts");
    });
}

#[test]
fn request_without_a_model_or_with_another_one_is_told_the_served_ones() {
    let folder = models();
    let cluster = Cluster::with(2, folder.path(), "recover = true\n");
    let address = beside(&cluster.addresses[0]);
    // Nodes that once had a topology in common are neighbours.
    assign(&cluster, &[0, 1], MODELS[2]);
    assign(&cluster, &[0], MODELS[0]);
    assign(&cluster, &[1], MODELS[1]);
    wait_until("both models are known", || served(&address) == MODELS[..2]);
    let nameless = json!({"prompt": "ab", "max_tokens": 1});
    post(&address, "/v1/completions", &nameless).assert_error(400, "model_required", "\"two.gguf\"");
    post(&address, "/v1/completions", &body(MODELS[2], 1)).assert_error(
        404,
        "model_not_found",
        "\"one.gguf\" or \"two.gguf\"",
    );
    let ids = post(&address, "/tokenize", &json!({"content": "ab", "model": "two"})).good();
    assert!(ids["tokens"].is_array(), "{ids}");
    assert_eq!(get(&address, "/props?model=one").good()["model_alias"], MODELS[0]);
    assert_eq!(get(&address, "/props").status, 400);
    let tags = get(&address, "/api/tags").good();
    assert_eq!(tags["models"].as_array().map(Vec::len), Some(2));
}

fn as_operator(address: &str, method: &str, path: &str, body: &Value) -> HttpAnswer {
    let key = format!("Bearer {OPERATOR}");
    let headers = [("Content-Type", "application/json"), ("Authorization", key.as_str())];
    raw(address, &bytes(method, path, &headers, Some(&body.to_string()))).rest()
}

#[test]
fn model_is_loaded_for_an_operators_key_and_unloaded_when_idle() {
    let folder = models();
    let settings = format!("recover = true\noperator_api_keys = [\"{OPERATOR}\"]\nunload_after_s = 2\n");
    let mut cluster = Cluster::with(2, folder.path(), &settings);
    let address = beside(&cluster.addresses[0]);
    assign(&cluster, &[0, 1], MODELS[2]);
    assign(&cluster, &[0], MODELS[0]);
    wait_until("the first model is served", || served(&address) == MODELS[..1]);
    wait_until("the other node is free", || cluster.status(1)["state"] == "idle");
    post(&address, "/v1/completions", &body(MODELS[1], 1)).assert_error(404, "model_not_found", "one.gguf");
    let loaded = as_operator(&address, "POST", "/v1/completions", &body(MODELS[1], 1)).good();
    assert_eq!(loaded["model"], MODELS[1]);
    assert_eq!(served(&address), MODELS[..2]);
    // The node of an unused model takes the next one; that of the operator's own topology stays.
    let replaced = as_operator(&address, "POST", "/v1/completions", &body(MODELS[2], 1)).good();
    assert_eq!(replaced["model"], MODELS[2]);
    assert_eq!(served(&address), [MODELS[0], MODELS[2]]);
    wait_until("it is unloaded without requests", || served(&address) == MODELS[..1]);
    assert_eq!(cluster.status(1)["state"], "idle");
    cluster.signal(1, Signal::SIGKILL);
    cluster.wait(1);
    cluster.start(1);
    wait_until("the node reports", || cluster.status(1)["state"] == "idle");
    post(&address, "/v1/completions", &body(MODELS[0], 1)).good();
    // Until the gateway has heard of the node again, it refuses with 503.
    let again = || as_operator(&address, "POST", "/v1/completions", &body(MODELS[1], 1));
    wait_until("the model is loaded again", || again().status == 200);
    assert_eq!(text(&again().good()), text(&loaded));
}

#[test]
fn models_change_only_with_an_operators_key_and_never_under_a_topology() {
    let folder = models();
    let settings = format!("operator_api_keys = [\"{OPERATOR}\"]\n");
    let cluster = Cluster::with(1, folder.path(), &settings);
    let address = beside(&cluster.addresses[0]);
    assign(&cluster, &[0], MODELS[0]);
    wait_until("it serves", || get(&address, "/health").status == 200);
    let (one, two) = (json!({"model": MODELS[0]}), json!({"model": MODELS[1]}));
    let plain =
        raw(&address, &bytes("DELETE", "/api/delete", &[("Content-Type", "application/json")], Some(&two.to_string())));
    let refused = plain.rest();
    assert_eq!(refused.status, 403, "{}", refused.body);
    let used = as_operator(&address, "DELETE", "/api/delete", &one);
    assert!(used.status == 409 && used.body.contains("unload"), "{}", used.body);
    assert_eq!(as_operator(&address, "DELETE", "/api/delete", &two).status, 200);
    assert!(!folder.path().join(MODELS[1]).exists() && folder.path().join(MODELS[0]).exists());
    assert_eq!(as_operator(&address, "DELETE", "/api/delete", &two).status, 404);
    let odd = as_operator(&address, "POST", "/api/pull", &json!({"model": "llama3.2"}));
    assert!(odd.status == 400 && odd.body.contains("hf:OWNER/REPO:FILE"), "{}", odd.body);
    // No node is idle, and the served model was not loaded for a request.
    let busy = as_operator(&address, "POST", "/v1/completions", &body(MODELS[2], 1));
    busy.assert_error(503, "model_not_loaded", "topology unload");
    assert_eq!(served(&address), MODELS[..1]);
}

#[test]
fn member_that_missed_an_unload_unloads_when_it_is_back() {
    let folder = models();
    let mut cluster = Cluster::with(2, folder.path(), "recover = true\nexclude_after_ms = 0\n");
    assign(&cluster, &[0, 1], MODELS[0]);
    let address = beside(&cluster.addresses[0]);
    wait_until("it serves", || get(&address, "/health").status == 200);
    cluster.signal(1, Signal::SIGKILL);
    cluster.wait(1);
    let dry = cluster.console(&["topology", "unload", "--nodes", &cluster.nodes(), "--dry-run", "--json"]).json();
    assert!(dry.to_string().contains(MODELS[0]), "{dry}");
    let ended = cluster.console(&["topology", "unload", "--nodes", &cluster.nodes(), "--yes", "--json"]);
    let unloaded = ended.json();
    let [model, nodes, missed, why] = ["unloaded", "nodes", "unconfirmed", "reasons"].map(|field| &unloaded[field]);
    assert_eq!((model, nodes, missed), (&json!(MODELS[0]), &json!(["pi1"]), &json!(["pi2"])), "{}", ended.err);
    assert!(why[0]["node"] == "pi2" && why[0]["why"].as_str().is_some_and(|why| why.contains("it unloads")), "{why}");
    assert!(ended.err.contains("pi2 has not confirmed the unload: ") && ended.err.contains("it unloads"), "{ended:?}");
    wait_until("nothing is served", || served(&address).is_empty());
    cluster.start(1);
    wait_until("it learns of the unload", || cluster.log(1).contains("was unloaded on another node"));
    wait_until("both are idle", || (0..2).all(|node| cluster.status(node)["state"] == "idle"));
    assign(&cluster, &[0, 1], MODELS[0]);
    wait_until("the same topology serves again", || served(&address) == MODELS[..1]);
}

#[test]
fn node_commands_change_the_group_of_their_node_only() {
    let folder = models();
    let cluster = Cluster::with(4, folder.path(), "recover = true\n");
    assign(&cluster, &[0, 1], MODELS[0]);
    assign(&cluster, &[2, 3], MODELS[1]);
    let nodes = cluster.nodes();
    let order = |words: &[&str]| cluster.console(&[words, &["--nodes", &nodes, "--json"]].concat());
    let confirmed = |words: &[&str]| {
        let out = order(&[words, &["--yes"]].concat());
        assert_eq!(out.code, Some(0), "{words:?}: {} {}", out.out, out.err);
        out.json()
    };
    let held = |node: usize| (cluster.status(node)["topology"].clone(), cluster.status(node)["epoch"].clone());
    let others = [held(2), held(3)];
    let check = order(&["node", "check", "pi1"]);
    assert_eq!(check.json()["member"], true, "{}", check.out);
    // The only replica of its model.
    assert_eq!(confirmed(&["node", "cordon", "pi1", "--reason", "fan", "--drain"])["state"], "drained");
    confirmed(&["node", "uncordon", "pi1"]);
    assert_eq!(confirmed(&["node", "exclude", "pi1", "--reason", "fan"])["topology"], "tp1");
    let address = beside(&cluster.addresses[1]);
    wait_until("it serves on the other node", || post(&address, "/v1/completions", &body(MODELS[0], 1)).status == 200);
    assert_eq!(confirmed(&["node", "include", "pi1"])["topology"], "tp2");
    order(&["node", "replace", "pi1", &cluster.addresses[3], "--yes"]).assert_error(8, "state", &["pi4", MODELS[1]]);
    assert_eq!([held(2), held(3)], others, "the other model is left alone");
}
