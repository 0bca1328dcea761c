//! From new nodes to the first answer with `console up`, commands that get a model's file to nodes that lack it
//! (`console run`, `node add`, `node replace`), and what commands conclude if nodes of a saved cluster do not answer.
use std::{fs, path::PathBuf, process::Command};

use harness::programs::{Cluster, Ended, demo_models, programs, wait_until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{adopt::pair, json_output::assert_described};

const MODEL: &str = "bard-q8_0.gguf";
/// Addresses at which nothing listens.
const DEAD: [&str; 2] = ["127.0.0.1:1", "127.0.0.1:2"];

/// Nodes, of which only the first `having` have the demo model, and the home folder of an operator.
struct House {
    cluster: Cluster,
    folder: TempDir,
}

impl House {
    fn start(count: usize, having: usize) -> Self {
        let folder = tempfile::tempdir().expect("create a temporary folder");
        let mut cluster = Cluster::with(count, &demo_models(), "");
        for index in having..count {
            let models = folder.path().join(format!("models{index}"));
            fs::create_dir(&models).expect("create a temporary folder");
            cluster.signal(index, Signal::SIGTERM);
            assert_eq!(cluster.wait(index), Some(0));
            cluster.start_with(index, &models);
        }
        Self { cluster, folder }
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    fn console(&self, arguments: &[&str]) -> Ended {
        let mut command = Command::new(programs().join("console"));
        command.args(arguments).env("XDG_CONFIG_HOME", self.home());
        let ended = command.env_remove("BRAMBLE_KEY_FILE").env_remove("BRAMBLE_NODES").output().expect("console runs");
        let text = |bytes| String::from_utf8(bytes).expect("console prints UTF-8");
        Ended { code: ended.status.code(), out: text(ended.stdout), err: text(ended.stderr) }
    }

    fn good(&self, arguments: &[&str]) -> Ended {
        let ended = self.console(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {} {}", ended.out, ended.err);
        ended
    }

    fn address(&self, index: usize) -> &str {
        &self.cluster.addresses[index]
    }

    /// Saves the first `count` nodes and loads the model on them.
    fn serve(&self, count: usize) {
        self.good(&["cluster", "add", "home", &self.cluster.addresses[..count].join(",")]);
        let layout = format!("tp{count}");
        self.good(&["generate", "--model", MODEL, "--topology", &layout, "--prompt", "a", "--max-tokens", "1"]);
    }

    fn saved(&self) -> Value {
        self.good(&["cluster", "list", "--json"]).json()["clusters"][0]["nodes"].clone()
    }
}

/// The states of the steps in the first line of the output.
fn states(ended: &Ended) -> Vec<String> {
    let line = ended.out.lines().next().unwrap_or_default();
    let object: Value =
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {} {}", ended.out, ended.err));
    assert_described("console up", &object);
    let steps = object["steps"].as_array().expect("a list of steps").clone();
    steps.iter().map(|step| step["state"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn up_sets_up_new_nodes_and_continues_where_it_ended() {
    let house = House::start(3, 1);
    let codes: Vec<String> = (0..3).map(|index| pair(&house.cluster, index)).collect();
    let codes = codes.join(",");
    let [one, two, three] = [0, 1, 2].map(|index| house.address(index));
    let more = ["--model", "bard", "--prompt", "ROMEO:", "--json", "--yes"];
    let up = |rest: &[&str]| house.console(&[&["up", one, two, three], &more[..], rest].concat());

    let planned = up(&["--code", &codes, "--dry-run"]);
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    assert!(states(&planned)[1..].iter().all(|state| state == "planned"), "{}", planned.out);
    assert!(!house.home().exists(), "a dry run writes nothing");

    let refused = up(&[]);
    assert_eq!(refused.code, Some(2), "{} {}", refused.out, refused.err);
    assert!(refused.err.contains("--code"), "{}", refused.err);
    assert!(house.home().join("bramble/cluster.key").exists(), "the steps before the codes are done");

    let ended = up(&["--code", &codes]);
    assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
    let done = ["skipped", "skipped", "done", "done", "done", "skipped", "done", "done"];
    assert_eq!(states(&ended), done, "{}", ended.out);
    let answer: Value = serde_json::from_str(ended.out.lines().nth(1).expect("the answer")).expect("an object");
    assert!(answer["text"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
    assert_eq!(answer["topology"], "tp3");

    let again = house.good(&["up", "--prompt", "ROMEO:", "--json", "--yes"]);
    let skipped = ["skipped", "skipped", "skipped", "skipped", "done", "skipped", "skipped", "done"];
    assert_eq!(states(&again), skipped, "{}", again.out);
    assert_eq!(house.saved().as_array().map(Vec::len), Some(3));
}

#[test]
fn run_copies_a_file_to_nodes_that_lack_it_only_with_consent() {
    let house = House::start(2, 1);
    let nodes = house.cluster.nodes();
    let run = |more: &[&str]| house.console(&[&["run", "bard", "ROMEO:", "--json", "--nodes", &nodes], more].concat());
    let planned = run(&["--dry-run"]);
    assert_eq!(planned.json()["plan"]["lacking"], json!(["pi2"]), "{}", planned.out);
    run(&[]).assert_error(4, "model_missing", &["pi2"]);
    let ended = run(&["--yes", "--max-tokens", "4"]);
    assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
    let words = house.good(&["run", "hello there", "--max-tokens", "4", "--nodes", &nodes]);
    assert!(words.err.contains("it is the prompt for bard"), "{}", words.err);
}

#[test]
fn added_node_gets_the_file_that_it_lacks() {
    let house = House::start(2, 1);
    house.serve(1);
    let planned = house.good(&["node", "add", house.address(1), "--dry-run", "--json"]);
    assert_eq!(planned.json()["plan"]["copies"], json!([MODEL]), "{}", planned.out);
    let added = house.good(&["node", "add", house.address(1), "--yes", "--json"]);
    assert_eq!(added.json()["topology"], "tp2", "{}", added.out);
}

#[test]
fn new_node_replaces_a_dead_one_at_its_position() {
    let mut house = House::start(4, 3);
    house.serve(3);
    house.cluster.signal(1, Signal::SIGKILL);
    house.cluster.wait(1);
    wait_until("the loss is noticed", || house.console(&["status", "--json"]).out.contains("lost"));
    let new = house.address(3).to_owned();
    let planned = house.good(&["node", "replace", "pi2", &new, "--dry-run", "--json"]);
    assert_eq!(planned.json()["plan"]["topology"], "tp3", "{}", planned.out);
    let replaced = house.good(&["node", "replace", "pi2", &new, "--yes", "--json"]).json();
    assert_described("console node replace", &replaced);
    assert_eq!(
        (&replaced["old"], &replaced["new"], &replaced["topology"]),
        (&json!("pi2"), &json!("pi4"), &json!("tp3"))
    );
    assert_eq!(house.saved(), json!([house.address(0), new, house.address(2)]));
    let answer = house.good(&["generate", "--prompt", "a", "--max-tokens", "1", "--json"]);
    assert_eq!(answer.completion()["topology"], "tp3");
}

#[test]
fn excluded_dead_node_leaves_the_saved_cluster() {
    let mut house = House::start(3, 3);
    house.serve(3);
    house.good(&["node", "exclude", "pi3", "--reason", "dead", "--yes"]);
    house.cluster.signal(2, Signal::SIGKILL);
    house.cluster.wait(2);
    let left = house.good(&["node", "remove", "pi3", "--yes", "--json"]);
    assert_eq!(left.json()["state"], "left", "{}", left.out);
    assert_eq!(house.saved().as_array().map(Vec::len), Some(2));
    let status = house.good(&["status", "--json"]);
    assert!(!status.out.contains("\"dead\""), "its exclusion is deleted: {}", status.out);
}

#[test]
fn nodes_that_do_not_answer_are_not_taken_for_idle_ones() {
    let house = House::start(0, 0);
    house.good(&["cluster", "add", "home", &DEAD.join(",")]);
    let commands: [&[&str]; 8] = [
        &["node", "check", DEAD[0]],
        &["node", "check", DEAD[0], "--nodes", DEAD[0]],
        &["node", "remove", DEAD[0], "--yes"],
        &["node", "replace", DEAD[0], "127.0.0.1:3", "--yes"],
        &["topology", "unload", "--yes"],
        &["topology", "unload", "bard", "--yes"],
        &["restart", "status"],
        &["restart", "pause"],
    ];
    for command in commands {
        let refused = house.console(&[command, &["--json"]].concat());
        refused.assert_error(3, "node_unreachable", &[DEAD[0]]);
    }
    assert_eq!(house.saved(), json!(DEAD));
}

#[test]
fn node_is_not_added_while_a_node_that_may_hold_the_topology_is_silent() {
    let house = House::start(2, 2);
    let (one, new) = (house.address(0), house.address(1));
    house.good(&["cluster", "add", "home", &[one, DEAD[0], DEAD[1]].join(",")]);
    let add = ["node", "add", new, "--yes", "--json"];
    let refused = house.console(&add);
    refused.assert_error(3, "node_unreachable", &DEAD);
    let error = refused.json()["error"].clone();
    assert_eq!((&error["node"], &error["others"][0]["node"]), (&json!(DEAD[0]), &json!(DEAD[1])), "{error}");
    assert!(refused.err.contains("may hold the topology"), "{}", refused.err);
    house.good(&["cluster", "add", "home", one]);
    house.console(&add).assert_error(8, "state", &["no topology runs"]);

    house.serve(1);
    house.good(&["cluster", "add", "home", &[one, DEAD[0]].join(",")]);
    let added = house.good(&add);
    let object = added.json();
    assert_eq!((&object["topology"], &object["away"][0]["node"]), (&json!("tp2"), &json!(DEAD[0])), "{object}");
    assert!(added.err.contains("no answer from 127.0.0.1:1, which may hold another topology"), "{}", added.err);
}

#[test]
fn commands_name_silent_nodes_next_to_those_that_answer() {
    let house = House::start(2, 2);
    let (one, two) = (house.address(0).to_owned(), house.address(1).to_owned());
    let nodes = [one.as_str(), &two, DEAD[0]].join(",");
    house.good(&["cluster", "add", "home", &nodes]);
    let known = house.good(&["model", "search", "llama", "--json"]).json();
    assert_eq!((&known["names"], &known["away"][0]["node"]), (&json!(["pi1", "pi2"]), &json!(DEAD[0])), "{known}");
    let listed = house.console(&["model", "list"]);
    assert!(listed.code == Some(3) && listed.out.contains("pi1, pi2"), "not on all: {} {}", listed.out, listed.err);
    house.console(&["logs", "pi3", "--json"]).assert_error(3, "node_unreachable", &[DEAD[0]]);
    house.console(&["logs", DEAD[1], "--json"]).assert_error(2, "usage", &[DEAD[1], "among pi1, pi2"]);
    // Each may hold a topology that the others do not report.
    let requests = house.console(&["requests"]);
    assert!(requests.code == Some(3) && requests.out.contains("127.0.0.1:1: cannot be reached"), "{}", requests.out);
    let events = house.console(&["events", "--json"]);
    assert_eq!((events.code, &events.json()["away"][0]["node"]), (Some(3), &json!(DEAD[0])), "{}", events.err);
    let cordoned = house.console(&["node", "cordon", DEAD[0], "--reason", "fan", "--drain", "--yes", "--json"]);
    cordoned.assert_error(3, "node_unreachable", &[DEAD[0]]);
    let status = house.console(&["status", "--json"]).json();
    assert_eq!(status["nodes"][2]["out"]["reason"], "fan", "it stays cordoned: {status}");
    let excluded = house.good(&["node", "exclude", DEAD[0], "--reason", "dead", "--yes", "--json"]).json();
    assert_eq!((&excluded["topology"], &excluded["away"]), (&Value::Null, &json!([])), "{excluded}");
    assert_eq!(house.good(&["requests", "--json"]).json()["away"], json!([]), "an excluded node is not missed");
}

#[test]
fn silent_spare_is_named_and_fails_no_command() {
    let house = House::start(2, 2);
    let (one, two) = (house.address(0).to_owned(), house.address(1).to_owned());
    house.serve(2);
    house.good(&["cluster", "add", "home", &[one.as_str(), &two, DEAD[0]].join(",")]);
    let requests = house.good(&["requests", "--json"]).json();
    assert_eq!((&requests["heads"][0]["node"], &requests["away"][0]["node"]), (&json!("pi1"), &json!(DEAD[0])));
    let removed = house.good(&["node", "remove", "pi2", "--yes"]);
    assert!(removed.err.contains("no answer from 127.0.0.1:1, which may hold another topology"), "{}", removed.err);
    assert_eq!(house.saved(), json!([one, DEAD[0]]));
}

#[test]
fn dead_node_leaves_or_is_replaced_if_all_others_answer() {
    let house = House::start(2, 2);
    let (one, new) = (house.address(0), house.address(1));
    let save = |nodes: &[&str]| drop(house.good(&["cluster", "add", "home", &nodes.join(",")]));
    save(&[one, DEAD[0], DEAD[1]]);
    let remove = ["node", "remove", DEAD[0], "--yes", "--json"];
    let replace = ["node", "replace", DEAD[0], new, "--yes", "--json"];
    let check = ["node", "check", DEAD[0], "--json"];
    for command in [&remove[..], &replace[..], &check[..]] {
        let refused = house.console(command);
        refused.assert_error(3, "node_unreachable", &[DEAD[1]]);
        assert!(refused.err.contains("console cluster add"), "{}", refused.err);
    }
    assert_eq!(house.saved(), json!([one, DEAD[0], DEAD[1]]));

    save(&[one, DEAD[0]]);
    // It may serve a model on its own.
    house.console(&check).assert_error(3, "node_unreachable", &[DEAD[0]]);
    for what in [&["topology", "unload", "--yes", "--json"][..], &["restart", "status", "--json"]] {
        house.console(what).assert_error(3, "node_unreachable", &[DEAD[0]]);
    }
    let replaced = house.good(&replace).json();
    assert_eq!((&replaced["new"], &replaced["topology"]), (&json!("pi2"), &Value::Null), "{replaced}");
    assert_eq!(house.saved(), json!([one, new]));
    save(&[one, new, DEAD[0]]);
    assert_eq!(house.good(&remove).json()["state"], "left");
    assert_eq!(house.saved(), json!([one, new]));
}

#[test]
fn idle_nodes_that_all_answer_have_nothing_to_unload() {
    let house = House::start(2, 2);
    house.good(&["cluster", "add", "home", &house.cluster.nodes()]);
    let spare = house.good(&["node", "check", "pi2", "--json"]).json();
    assert_eq!(spare, json!({"node": "pi2", "ok": true, "member": false}));
    house.console(&["topology", "unload", "--yes", "--json"]).assert_error(8, "state", &["no topology is loaded"]);
    house.console(&["restart", "status", "--json"]).assert_error(8, "state", &["no rolling restart"]);
    assert_eq!(house.good(&["node", "remove", "pi2", "--yes", "--json"]).json()["state"], "left");
    assert_eq!(house.saved(), json!([house.address(0)]));
}
