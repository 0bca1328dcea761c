//! Transfers of model files: from a server to a node, from node to node, from a console; and their removal.
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::PathBuf,
};

use harness::{
    http::{beside, bytes as request_bytes, get, raw},
    programs::{Cluster, demo_models, wait_until},
};
use tempfile::TempDir;

const NAME: &str = "bard.gguf";

fn bytes() -> Vec<u8> {
    fs::read(demo_models().join("bard-q8_0.gguf")).expect("the demo model is there")
}

/// Nodes with separate model folders.
fn nodes(count: usize) -> (Cluster, TempDir, Vec<PathBuf>) {
    nodes_with(count, "")
}

/// Like [`nodes`], with lines for their configuration files.
fn nodes_with(count: usize, settings: &str) -> (Cluster, TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let folders: Vec<PathBuf> = (1..=count).map(|index| folder.path().join(format!("models{index}"))).collect();
    let mut cluster = Cluster::with(count, folder.path(), settings);
    for (index, models) in folders.iter().enumerate() {
        fs::create_dir(models).expect("create a temporary folder");
        cluster.signal(index, nix::sys::signal::Signal::SIGTERM);
        assert_eq!(cluster.wait(index), Some(0));
        cluster.start_with(index, models);
    }
    (cluster, folder, folders)
}

/// A server that breaks off every connection after a megabyte. Ends with the test process.
fn breaking_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind to loopback");
    let url = format!("http://{}/{NAME}", listener.local_addr().expect("the listener is bound"));
    std::thread::spawn(move || {
        let bytes = bytes();
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let range =
                lines.filter_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned)).last();
            let start: usize = range.and_then(|range| range.split('-').next()?.parse().ok()).unwrap_or(0);
            let (size, rest) = (bytes.len(), &bytes[start..]);
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nETag: \"1\"\r\nContent-Range: bytes {start}-{}/{size}\r\nConnection: close\r\n\r\n",
                rest.len(),
                size - 1
            );
            // The client may close the connection early.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&rest[..rest.len().min(1 << 20)]));
        }
    });
    url
}

/// (name, state) of a node's files.
fn listed(cluster: &Cluster, index: usize) -> Vec<(String, String)> {
    let list = cluster.console(&["model", "list", "--nodes", &cluster.addresses[index], "--json"]).json();
    let files = list["nodes"][0]["models"].as_array().expect("files").clone();
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    files.iter().map(|file| (text(&file["model"]), text(&file["state"]))).collect()
}

#[test]
fn one_node_downloads_the_others_copy_and_all_serve() {
    let (cluster, _folder, folders) = nodes(3);
    let all = cluster.nodes();
    let pulled = cluster.console(&["model", "pull", &breaking_server(), "--nodes", &all, "--json"]);
    assert_eq!(pulled.code, Some(0), "{} {}", pulled.out, pulled.err);
    let stored = pulled.json()["stored"].clone();
    assert_eq!(stored.as_array().map(Vec::len), Some(3), "{stored}");
    assert!(folders.iter().all(|folder| fs::read(folder.join(NAME)).expect("it is there") == bytes()));
    assert!(
        pulled.err.contains("pi1: downloading bard.gguf") && pulled.err.contains("pi3: copying bard.gguf"),
        "{}",
        pulled.err
    );
    let text = cluster
        .generate(3, &["--model", NAME, "--prompt", "ROMEO:", "--max-tokens", "2", "--temperature", "0"])
        .completion();
    assert_eq!(text["token_ids"].as_array().map(Vec::len), Some(2));
    // A file in use by a topology cannot be removed.
    let refused = cluster.console(&["model", "remove", NAME, "--nodes", &all, "--yes", "--json"]);
    refused.assert_error(4, "model_in_use", &["pi1", NAME]);
    let verified = cluster.console(&["model", "verify", NAME, "--nodes", &all, "--json"]).json();
    assert!(verified["stored"][2]["file"]["sha256"].as_str().is_some_and(|hash| hash.len() == 64), "{verified}");
    let wrong = cluster.console(&["model", "verify", NAME, "--nodes", &all, "--sha256", &"0".repeat(64)]);
    assert_eq!(wrong.code, Some(1));
}

#[test]
fn damaged_partial_copy_is_discarded_and_copied_again() {
    let (cluster, _folder, folders) = nodes(2);
    fs::write(folders[0].join(NAME), bytes()).expect("it can be written");
    let all = cluster.nodes();
    let verified = cluster.console(&["model", "verify", NAME, "--node", "pi1", "--nodes", &all, "--json"]).json();
    let hash = verified["stored"][0]["file"]["sha256"].as_str().expect("a hash").to_owned();
    // The rest of an interrupted copy, with bytes damaged on disk.
    let part = folders[1].join(format!("{NAME}.part"));
    fs::write(&part, vec![0; 2_000_000]).expect("it can be written");
    fs::write(part.with_extension("part.from"), format!("size = {}\nsha256 = \"{hash}\"\n", bytes().len()))
        .expect("it can be written");
    assert_eq!(listed(&cluster, 1), [(NAME.to_owned(), "partial".to_owned())]);
    // The partial file is offered to no peer, under either name.
    for name in [NAME, "bard.gguf.part"] {
        let one = cluster.console(&[
            "generate",
            "--nodes",
            &cluster.addresses[1],
            "--model",
            name,
            "--prompt",
            "a",
            "--json",
        ]);
        one.assert_error(4, "model_missing", &["pi2"]);
    }
    let fetch = ["model", "pull", NAME, "--from", "pi1", "--nodes", &all, "--json"];
    cluster.console(&fetch).assert_error(1, "hash_differs", &["pi2", &hash]);
    assert_eq!(listed(&cluster, 1), []);
    let fetched = cluster.console(&fetch);
    assert_eq!(fetched.code, Some(0), "{} {}", fetched.out, fetched.err);
    assert_eq!(fs::read(folders[1].join(NAME)).expect("it is there"), bytes());
    // Checks doctor. An intact beginning of a copy is not copied again, and its file may be gone by now.
    let doctor = cluster.console(&["doctor", "--nodes", &all, "--json"]).json();
    assert!(!doctor["between"].to_string().contains("model_"), "{doctor}");
}

#[test]
fn console_sends_a_file_and_doctor_names_differing_copies() {
    let (cluster, folder, folders) = nodes(2);
    let all = cluster.nodes();
    let local = folder.path().join(NAME);
    fs::write(&local, bytes()).expect("it can be written");
    let local = local.to_string_lossy().into_owned();
    let added = cluster.console(&["model", "pull", &local, "--nodes", &all, "--node", "pi1", "--json"]);
    assert_eq!(added.code, Some(0), "{} {}", added.out, added.err);
    assert_eq!(fs::read(folders[0].join(NAME)).expect("it is there"), bytes());
    cluster.console(&["model", "pull", &local, "--nodes", &all, "--node", "pi1", "--json"]).assert_error(
        4,
        "model_exists",
        &["pi1"],
    );
    let between = |wanted: &str, severity: &str| {
        let doctor = cluster.console(&["doctor", "--nodes", &all, "--json"]).json();
        let found =
            doctor["between"].as_array().expect("findings").iter().find(|finding| finding["code"] == wanted).cloned();
        assert_eq!(found.expect(wanted)["severity"], severity, "{doctor}");
    };
    between("model_missing", "note");
    // A different file of the same name: one string in the metadata differs.
    let mut other = bytes();
    let place = other.windows(7).position(|window| window == b"general").expect("it has a key");
    other[place] = b'G';
    fs::write(folders[1].join(NAME), &other).expect("it can be written");
    between("model_differs", "error");
    for file in ["notes.txt", "../up.gguf"] {
        let refused = cluster.console(&["model", "remove", file, "--nodes", &all, "--yes", "--json"]);
        refused.assert_error(2, "usage", &["NAME.gguf"]);
    }
    let removed = cluster.console(&["model", "remove", NAME, "--nodes", &all, "--node", "pi2", "--yes"]);
    assert_eq!((removed.code, removed.out.trim()), (Some(0), "removed bard.gguf on pi2"));
    assert_eq!(listed(&cluster, 1), []);
    for part in ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"] {
        fs::write(folders[1].join(part), bytes()).expect("it can be written");
    }
    let split =
        cluster.console(&["model", "remove", "big-00001-of-00002.gguf", "--nodes", &all, "--node", "pi2", "--yes"]);
    assert!(split.code == Some(0) && split.out.contains("2 in all"), "{} {}", split.out, split.err);
    assert_eq!(listed(&cluster, 1), [], "no part of a split model stays");
    assert_eq!(listed(&cluster, 0), [(NAME.to_owned(), "complete".to_owned())]);
    let away = cluster.console(&["model", "pull", "http://127.0.0.1:1/x.gguf", "--nodes", &all, "--json"]);
    away.assert_error(1, "download_failed", &["pi1"]);
    cluster.assert_alive();
}

#[test]
fn file_pulled_by_the_api_arrives_on_all_nodes() {
    const KEY: &str = "sk-operator-0123456789";
    let (cluster, _folder, folders) = nodes_with(2, &format!("operator_api_keys = [\"{KEY}\"]\n"));
    for folder in &folders {
        fs::write(folder.join("other.gguf"), bytes()).expect("the folder can be written");
    }
    // From then on, the nodes have addresses for each other.
    cluster.generate(2, &["--model", "other.gguf", "--prompt", "a", "--max-tokens", "1"]).completion();
    let address = beside(&cluster.addresses[0]);
    wait_until("it serves", || get(&address, "/health").status == 200);
    let key = format!("Bearer {KEY}");
    let headers = [("Content-Type", "application/json"), ("Authorization", key.as_str())];
    let body = serde_json::json!({"model": breaking_server()}).to_string();
    let pulled = raw(&address, &request_bytes("POST", "/api/pull", &headers, Some(&body))).rest();
    assert_eq!(pulled.status, 200, "{}", pulled.body);
    let lines: Vec<serde_json::Value> =
        pulled.body.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect();
    assert_eq!(lines.last(), Some(&serde_json::json!({"status": "success"})), "{}", pulled.body);
    let total = bytes().len();
    assert!(lines.iter().any(|line| line["total"] == total && line["completed"].is_u64()), "{}", pulled.body);
    for folder in &folders {
        assert_eq!(fs::read(folder.join(NAME)).expect("it is there"), bytes());
    }
}
