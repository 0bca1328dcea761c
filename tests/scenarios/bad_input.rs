//! Requests that cannot work get one clear error with the next step, on the console and in --json, and the daemons stay
//! up.
use std::{
    io::Write,
    net::TcpListener,
    process::{Command, Stdio},
};

use common::version::{WIRE_HIGHEST, WIRE_LOWEST};
use harness::tiny_model::Architecture;
use harness::{
    programs::{Cluster, console, demo_models, folder_with, programs},
    tiny_model::TinyModel,
};

const RUN: [&str; 6] = ["--prompt", "x", "--max-tokens", "2", "--temperature", "0"];

/// Generates on all nodes with a model and asserts how it fails; the nodes must answer afterwards.
#[track_caller]
fn check_refused(cluster: &Cluster, model: &str, more: &[&str], exit: i32, code: &str, parts: &[&str]) {
    let mut arguments = vec!["--model", model];
    arguments.extend(RUN);
    arguments.extend(more);
    cluster.generate(cluster.addresses.len(), &arguments).assert_error(exit, code, parts);
    cluster.assert_alive();
}

#[test]
fn broken_model_files_are_refused_by_name() {
    let good = TinyModel::new(Architecture::Llama).bytes();
    let unsupported = TinyModel::new(Architecture::Llama).writer();
    let other = unsupported.replace("general.architecture", harness::gguf_writer::Value::Text("mamba".into())).finish();
    let folder = folder_with(&[
        ("good.gguf", &good),
        ("truncated.gguf", &good[..good.len() / 2]),
        ("head-only.gguf", &good[..40]),
        ("text.gguf", b"this is no model"),
        ("empty.gguf", b""),
        ("other.gguf", &other),
    ]);
    let cluster = Cluster::with(2, folder.path(), "");
    check_refused(&cluster, "absent.gguf", &[], 4, "model_missing", &["pi1", "absent.gguf"]);
    check_refused(&cluster, "truncated.gguf", &[], 4, "model_invalid", &["pi1", "truncated.gguf"]);
    check_refused(&cluster, "head-only.gguf", &[], 4, "model_invalid", &["head-only.gguf", "truncated"]);
    check_refused(&cluster, "text.gguf", &[], 4, "model_invalid", &["text.gguf", "GGUF"]);
    check_refused(&cluster, "empty.gguf", &[], 4, "model_invalid", &["empty.gguf"]);
    check_refused(&cluster, "other.gguf", &[], 4, "model_invalid", &["mamba", "llama"]);
    let run = ["--model", "good.gguf", "--prompt", "x", "--max-tokens", "2"];
    cluster.generate(2, &run).completion();
}

#[test]
fn file_outside_the_model_folders_is_never_opened() {
    let cluster = Cluster::of(1);
    // The console strips folders, which a hostile client would not do. Only names below the model folders count in
    // either case.
    check_refused(&cluster, "/etc/passwd", &[], 4, "model_missing", &["passwd"]);
    check_refused(&cluster, "..", &[], 4, "model_missing", &[".."]);
}

#[test]
fn model_that_does_not_fit_in_memory_is_refused_before_loading() {
    let cluster = Cluster::with(2, &demo_models(), "memory_max_mib = 10\n");
    check_refused(&cluster, "bard-q8_0.gguf", &[], 4, "memory_short", &["node pi", "needs", "free"]);
}

#[test]
fn topology_with_an_empty_rank_is_refused_with_one_that_works() {
    let mut model = TinyModel::new(Architecture::Llama);
    (model.head_count, model.head_count_kv, model.feed_forward_length) = (1, 1, 32);
    // 300 vocabulary rows are ten units of 32: with one head and one unit of columns, twelve ranks are too many.
    let folder = folder_with(&[("tiny.gguf", &model.bytes())]);
    let cluster = Cluster::with(12, folder.path(), "");
    check_refused(&cluster, "tiny.gguf", &[], 4, "topology_invalid", &["nothing", "at most tp11"]);
    cluster.generate(10, &["--model", "tiny.gguf", "--prompt", "x", "--max-tokens", "2"]).completion();
}

#[test]
fn invalid_layouts_are_refused_with_the_nearest_valid_one() {
    let cluster = Cluster::of(2);
    let refused = |arguments: &[&str], parts: &[&str]| {
        check_refused(&cluster, "bard-q8_0.gguf", arguments, 4, "topology_invalid", parts);
    };
    refused(&["--topology", "pp2-tp2"], &["needs 4 nodes, but 2 were given", "use pp2-tp1"]);
    refused(&["--topology", "pp2", "--layers", "2,9"], &["2,9", "2 numbers that add up to 6"]);
    refused(&["--topology", "tp2", "--weights", "3,2,1"], &["3 weights", "give 2"]);
    let deep = console(&["demo", "--topology", "pp8-tp1", "--json"]);
    deep.assert_error(4, "topology_invalid", &["more stages than the model can have (6)", "use pp6-tp1"]);
    check_refused(&cluster, "bard-q8_0.gguf", &["--topology", "tp3"], 4, "topology_invalid", &["tp3", "3", "2"]);
    let wrong = console(&["generate", "--nodes", "a", "--model", "m", "--prompt", "x", "--topology", "four"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.err.contains("tp4"), "the error must show an example: {}", wrong.err);
    let twice = format!("{0},{0}", cluster.addresses[0]);
    let ended = console(&["generate", "--nodes", &twice, "--model", "bard-q8_0.gguf", "--prompt", "x", "--json"]);
    ended.assert_error(4, "topology_invalid", &["pi1", "twice"]);
}

#[test]
fn prompt_longer_than_the_context_is_refused_with_both_numbers() {
    let cluster = Cluster::of(2);
    let long = "to be or not to be, ".repeat(200);
    let prompt = ["--prompt", &long];
    let mut arguments = vec!["--max-tokens", "2"];
    arguments.extend(prompt);
    cluster.generate(2, &arguments).assert_error(4, "prompt_too_long", &["tokens", "512"]);
    cluster.assert_alive();
    let context = ["--context", "9999"];
    check_refused(&cluster, "bard-q8_0.gguf", &context, 4, "topology_invalid", &["9999", "512"]);
}

#[test]
fn different_files_under_one_name_are_refused_with_identities() {
    let one = folder_with(&[("same.gguf", &TinyModel::new(Architecture::Llama).bytes())]);
    let mut other = TinyModel::new(Architecture::Llama);
    other.feed_forward_length *= 2;
    let other = folder_with(&[("same.gguf", &other.bytes())]);
    let mut cluster = Cluster::with(2, one.path(), "");
    cluster.signal(1, nix::sys::signal::Signal::SIGKILL);
    cluster.wait(1);
    cluster.start_with(1, other.path());
    check_refused(&cluster, "same.gguf", &[], 4, "model_differs", &["pi2", "same.gguf"]);
}

#[test]
fn unreachable_node_is_named() {
    let cluster = Cluster::of(1);
    let nodes = format!("{},127.0.0.1:1", cluster.addresses[0]);
    let ended = console(&["generate", "--nodes", &nodes, "--model", "bard-q8_0.gguf", "--prompt", "x", "--json"]);
    ended.assert_error(3, "node_unreachable", &["127.0.0.1:1"]);
    let status = console(&["status", "--nodes", &nodes, "--json"]);
    assert_eq!(status.code, Some(3));
    assert_eq!(status.json()["nodes"][1]["error"]["code"], "node_unreachable");
    assert_eq!(status.json()["nodes"][0]["state"], "idle");
    cluster.assert_alive();
}

/// A server that answers every connection with `bytes`, reads the request and closes.
fn answering(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind to loopback");
    let address = listener.local_addr().expect("a bound listener has an address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(4) {
            let Ok(mut stream) = stream else { return };
            let _ = stream.write_all(&bytes);
            let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
        }
    });
    address
}

#[test]
fn peer_of_another_version_or_protocol_is_named() {
    let version = |nodes: &str| console(&["generate", "--nodes", nodes, "--model", "m", "--prompt", "x", "--json"]);
    let mut newer = b"BRAMBLE\n".to_vec();
    let (from, to) = (WIRE_HIGHEST + 1, WIRE_HIGHEST + 3);
    newer.extend([from, to, 0, 0].map(u16::to_le_bytes).concat());
    let told = [format!("{from} to {to}"), format!("{WIRE_LOWEST} to {WIRE_HIGHEST}")];
    version(&answering(newer)).assert_error(4, "wire_version", &told.each_ref().map(String::as_str));
    let web = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    version(&answering(web)).assert_error(3, "not_bramble", &["127.0.0.1"]);
    let mut sealed = b"BRAMBLE\n".to_vec();
    sealed.extend([4, 0, 4, 0, 5, 0, 0, 0]);
    version(&answering(sealed)).assert_error(4, "security_mode", &["5"]);
}

#[test]
fn garbage_on_the_port_does_no_harm() {
    let cluster = Cluster::of(1);
    let mut seed = 1_u64;
    for round in 0..200_usize {
        let mut stream = std::net::TcpStream::connect(&cluster.addresses[0]).expect("the daemon accepts");
        let mut bytes = b"BRAMBLE\n\x03\0\x03\0\0\0\0\0".to_vec();
        bytes.truncate(round % 17);
        for _ in 0..round {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.push((seed >> 56) as u8);
        }
        // The daemon may have closed the connection already.
        let _ = stream.write_all(&bytes);
    }
    cluster.assert_alive();
    cluster.generate(1, &["--prompt", "x", "--max-tokens", "2"]).completion();
}

fn brambled(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(programs().join("brambled"));
    let output = command.args(arguments).stdin(Stdio::null()).output().expect("brambled runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn unknown_config_key_is_refused_with_its_line() {
    let folder = folder_with(&[("brambled.toml", b"name = \"pi1\"\nlisten_adress = \"127.0.0.1:1\"\n")]);
    let path = folder.path().join("brambled.toml");
    let (code, err) = brambled(&["--config", path.to_str().expect("a UTF-8 path")]);
    assert_eq!(code, Some(1));
    assert!(err.contains("line 2") && err.contains("listen_adress") && err.contains("brambled.toml"), "{err}");
}

#[test]
fn busy_port_error_names_the_process_that_holds_it() {
    let cluster = Cluster::of(1);
    let state = tempfile::tempdir().expect("create a temporary folder");
    let state = state.path().to_str().expect("a UTF-8 path");
    let (code, err) = brambled(&["--listen", &cluster.addresses[0], "--state", state]);
    assert_eq!(code, Some(1));
    assert!(err.contains(&cluster.addresses[0]) && err.contains("brambled") && err.contains("process"), "{err}");
    cluster.assert_alive();
}

#[test]
fn unusable_state_folder_is_named() {
    let folder = folder_with(&[("file", b"")]);
    let state = folder.path().join("file/state");
    let (code, err) = brambled(&["--listen", "127.77.0.1:0", "--state", state.to_str().expect("a UTF-8 path")]);
    assert_eq!(code, Some(1));
    assert!(err.contains("--state") && err.contains("file/state"), "{err}");
}
