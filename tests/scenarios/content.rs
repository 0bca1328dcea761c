//! Files with the same name and header but different weights: refused by name before anything is served, whatever their
//! modification times; reported by doctor. One process per state folder.
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use harness::{
    http::{beside, post},
    programs::{Cluster, demo_models, programs, wait_until},
};
use nix::sys::signal::Signal;
use tempfile::TempDir;

const NAME: &str = "bard.gguf";
const PROMPT: &[&str] = &["--model", NAME, "--prompt", "ROMEO:", "--max-tokens", "4", "--temperature", "0"];

/// Nodes with a copy of the demo model each, in separate folders.
fn nodes(count: usize, settings: &str) -> (Cluster, TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let folders: Vec<PathBuf> = (1..=count).map(|index| folder.path().join(format!("models{index}"))).collect();
    let mut cluster = Cluster::with(count, folder.path(), settings);
    for (index, models) in folders.iter().enumerate() {
        fs::create_dir(models).expect("create a temporary folder");
        fs::copy(demo_models().join("bard-q8_0.gguf"), models.join(NAME)).expect("the demo model is there");
        cluster.signal(index, Signal::SIGKILL);
        cluster.wait(index);
        cluster.start_with(index, models);
    }
    (cluster, folder, folders)
}

/// Changes the last weights in place and restores the modification time, as `rsync -t --inplace` does.
fn overwrite(folder: &Path) {
    let file = File::options().read(true).write(true).open(folder.join(NAME)).expect("it opens");
    let before = file.metadata().expect("it is there");
    let mut bytes = [0; 64];
    let at = before.len() - bytes.len() as u64;
    file.read_exact_at(&mut bytes, at).expect("it is read");
    bytes.iter_mut().for_each(|byte| *byte ^= 1);
    file.write_all_at(&bytes, at).expect("it is written");
    file.set_modified(before.modified().expect("it has one")).expect("it is set back");
    let after = file.metadata().expect("it is there");
    assert_eq!(
        (before.len(), before.modified().ok()),
        (after.len(), after.modified().ok()),
        "size and modification time must be unchanged"
    );
}

fn serves(cluster: &Cluster, index: usize) -> bool {
    matches!(cluster.status(index)["state"].as_str(), Some("ready" | "serving"))
}

#[test]
fn different_weights_under_one_header_are_refused_by_name() {
    let (cluster, _folder, folders) = nodes(3, "");
    overwrite(&folders[1]);
    let all = cluster.nodes();
    let refused = cluster.generate(3, PROMPT);
    refused.assert_error(4, "content_differs", &["pi2", NAME, "on pi1, pi3"]);
    let expected = refused.err.split("expected ").nth(1).and_then(|rest| rest.get(..16)).expect("a hash").to_owned();
    assert!((0..3).all(|index| cluster.status(index)["topology"].is_null()), "nothing may be prepared");
    let doctor = cluster.console(&["doctor", "--nodes", &all, "--json"]).json();
    let finding = doctor["between"].as_array().and_then(|all| all.iter().find(|one| one["code"] == "model_differs"));
    let meaning = finding.expect("doctor names the node")["meaning"].as_str().expect("a text").to_owned();
    assert!(meaning.contains(&format!("content {expected} on pi1, pi3")) && meaning.contains("on pi2"), "{meaning}");

    // The remedy that the error proposes.
    let remove = ["model", "remove", NAME, "--nodes", &all, "--node", "pi2", "--yes"];
    assert_eq!(cluster.console(&remove).code, Some(0));
    let fetched = cluster.console(&["model", "pull", NAME, "--from", "pi1", "--nodes", &all]);
    assert_eq!(fetched.code, Some(0), "{}", fetched.err);
    cluster.generate(3, PROMPT).completion();
    let doctor = cluster.console(&["doctor", "--nodes", &all, "--json"]).json();
    assert!(!doctor["between"].to_string().contains("model_differs"), "{doctor}");
}

#[test]
fn assignment_loads_files_that_were_replaced_on_all_nodes() {
    let (cluster, folder, folders) = nodes(2, "");
    let file = folder.path().join("tp2.toml");
    let all: Vec<String> = cluster.nodes().split(',').map(|node| format!("{node:?}")).collect();
    let topology = format!("model = {NAME:?}\n[[stage]]\nnodes = [{}]\n", all.join(", "));
    fs::write(&file, topology).expect("it is written");
    let assign = || cluster.console(&["topology", "assign", &file.display().to_string(), "--yes", "--json"]).json();
    let first = assign();
    let again = assign();
    assert_eq!((&first["reused"], &again["reused"]), (&false.into(), &true.into()), "{first} {again}");
    folders.iter().for_each(|folder| overwrite(folder));
    let replaced = assign();
    assert_eq!(replaced["reused"], false, "the running shards have the weights of the earlier files: {replaced}");
    assert_eq!(assign()["reused"], true);
}

#[test]
fn weights_overwritten_in_place_do_not_serve_after_a_restart() {
    let (mut cluster, _folder, folders) = nodes(2, "recover = true\nsilent_ms = 30000\nstall_ms = 60000\n");
    let before = cluster.generate(2, PROMPT).completion()["token_ids"].clone();
    let cycle = |cluster: &mut Cluster| {
        (0..2).for_each(|index| cluster.signal(index, Signal::SIGKILL));
        (0..2).for_each(|index| assert_eq!(cluster.wait(index), None));
        (0..2).for_each(|index| cluster.start_with(index, &folders[index]));
    };
    // An unchanged model returns to service without being hashed again.
    cycle(&mut cluster);
    wait_until("the topology is back", || (0..2).all(|index| serves(&cluster, index)));
    for index in 0..2 {
        assert_eq!(cluster.log(index).matches("MB of weights in").count(), 1, "{}", cluster.log(index));
    }

    overwrite(&folders[1]);
    cycle(&mut cluster);
    wait_until("the other weights are refused by name", || {
        (0..2).any(|index| {
            cluster.log(index).contains("cannot bring the topology back yet: node pi2: bard.gguf has different weights")
        })
    });
    assert!(!serves(&cluster, 0) && !serves(&cluster, 1));
    cluster.generate(2, PROMPT).assert_error(4, "content_differs", &["pi2"]);

    // The original weights are back; no further action is needed.
    overwrite(&folders[1]);
    wait_until("the topology is back", || (0..2).all(|index| serves(&cluster, index)));
    assert_eq!(cluster.generate(2, PROMPT).completion()["token_ids"], before);
}

#[test]
fn member_with_other_weights_is_left_out_and_returns_with_the_right_ones() {
    let settings = "recover = true\nsilent_ms = 30000\nstall_ms = 60000\nexclude_after_ms = 1500\n";
    let (mut cluster, _folder, folders) = nodes(3, settings);
    cluster.generate(3, PROMPT).completion();
    overwrite(&folders[1]);
    cluster.signal(1, Signal::SIGKILL);
    cluster.wait(1);
    cluster.start_with(1, &folders[1]);
    let layout =
        |cluster: &Cluster, wanted: &str| serves(cluster, 2) && cluster.status(2)["topology"]["layout"] == wanted;
    let check_reason = |cluster: &Cluster, text: &str| {
        let status = cluster.status(2);
        let entries = status["exclusions"].as_array().expect("a list");
        let mut reasons = entries.iter().filter_map(|entry| entry["reason"].as_str());
        let found = reasons.any(|reason| reason.starts_with("has no usable model file: ") && reason.contains(text));
        assert!(found, "{status}");
    };
    wait_until("the others serve", || layout(&cluster, "tp2") && serves(&cluster, 0));
    check_reason(&cluster, "different weights");
    overwrite(&folders[1]);
    wait_until("all serve again", || layout(&cluster, "tp3") && serves(&cluster, 1));
    // The node that leads cannot even plan the topology of the others with its own file.
    let away = folders[0].join("away");
    fs::rename(folders[0].join(NAME), &away).expect("it can be renamed");
    cluster.signal(0, Signal::SIGKILL);
    cluster.wait(0);
    cluster.start_with(0, &folders[0]);
    wait_until("the others serve", || layout(&cluster, "tp2") && serves(&cluster, 1));
    check_reason(&cluster, "not found");
    fs::rename(&away, folders[0].join(NAME)).expect("it can be renamed");
    wait_until("all serve again", || layout(&cluster, "tp3") && serves(&cluster, 0));
}

#[test]
fn second_daemon_on_one_state_folder_is_refused() {
    let cluster = Cluster::of(1);
    let mut second = Command::new(programs().join("brambled"));
    second.args(["--listen", "127.0.0.1:0", "--http", "off", "--state"]).arg(cluster.state(0));
    let ended = second.output().expect("it runs");
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{error}");
    let holder = format!("process {}", cluster.pid(0));
    assert!(error.contains(&holder) && error.contains("--state DIR"), "{error}");
    cluster.assert_alive();
}

/// Bytes that a node has caused to be written to storage, including its log.
fn written(cluster: &Cluster) -> u64 {
    let io = fs::read_to_string(format!("/proc/{}/io", cluster.pid(0))).expect("the node runs");
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).expect("the kernel counts it");
    line.parse().expect("a number")
}

#[test]
fn idle_node_and_its_requests_write_nothing() {
    let cluster = Cluster::with(1, &demo_models(), "recover = true\nhttp_queue = 8\n");
    cluster.generate(1, &["--prompt", "a", "--max-tokens", "1"]).completion();
    // The packed shard is written while the shard is in use.
    wait_until("the packed shard is on the disk", || {
        fs::read_dir(cluster.state(0).join("packed"))
            .is_ok_and(|files| files.flatten().any(|file| file.path().extension().is_some_and(|kind| kind == "shard")))
    });
    let address = beside(&cluster.addresses[0]);
    let body = serde_json::json!({"prompt": "ab", "max_tokens": 2, "temperature": 0.0});
    let before = written(&cluster);
    for _ in 0..100 {
        assert_eq!(post(&address, "/v1/completions", &body).status, 200);
    }
    cluster.generate(1, &["--prompt", "a", "--max-tokens", "1"]).completion();
    assert_eq!(written(&cluster) - before, 0, "{}", cluster.log(0));
}
