//! Transfers of model files: from a server to a node, from node to node, from a console; and their removal.
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::{Path, PathBuf},
};

use harness::{
    http::{HttpAnswer, beside, bytes as request_bytes, get, raw},
    programs::{Cluster, Ended, demo_models, wait_until},
    tiny_model::{Architecture, TinyModel},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::json_output::assert_described;

const NAME: &str = "bard.gguf";
const KEY: &str = "sk-operator-0123456789";

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

/// A server of these files, by name, that breaks off every connection after a megabyte. Ends with the test process.
fn server(files: Vec<(String, Vec<u8>)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind to loopback");
    let url = format!("http://{}", listener.local_addr().expect("the listener is bound"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let lines: Vec<String> = lines.collect();
            let path = lines.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
            let Some((_, bytes)) = files.iter().find(|(name, _)| path.strip_prefix('/') == Some(name.as_str())) else {
                let head = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                let _ = stream.write_all(head.as_bytes());
                continue;
            };
            let range =
                lines.iter().find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
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

/// The URL of the demo model on such a server.
fn breaking_server() -> String {
    format!("{}/{NAME}", server(vec![(NAME.to_owned(), bytes())]))
}

/// (name, state) of a node's files.
fn listed(cluster: &Cluster, index: usize) -> Vec<(String, String)> {
    let list = cluster.console(&["model", "list", "--nodes", &cluster.addresses[index], "--json"]).json();
    let files = list["nodes"][0]["models"].as_array().expect("files").clone();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
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
    let other = "0".repeat(64);
    let verify = ["model", "verify", NAME, "--nodes", &all, "--sha256", &other];
    let wrong = cluster.console(&verify);
    assert!(wrong.code == Some(1) && wrong.out.contains("pi3: "), "{} {}", wrong.out, wrong.err);
    cluster.console(&[&verify[..], &["--json"]].concat()).assert_error(1, "failed", &["checksum mismatch", NAME]);
    let mistyped = cluster.console(&["model", "verify", "bart.gguf", "--nodes", &all, "--json"]);
    mistyped.assert_error(4, "model_missing", &["pi1", "pi2", "pi3"]);
    let next = mistyped.json()["error"]["next"].to_string();
    assert!(next.contains("did you mean bard.gguf?"), "{next}");
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
fn damaged_file_is_named_and_removed_from_the_nodes_that_have_it() {
    let (cluster, _folder, folders) = nodes(3);
    let all = cluster.nodes();
    fs::write(folders[0].join(NAME), bytes()).expect("it can be written");
    fs::write(folders[2].join(NAME), &bytes()[..1000]).expect("it can be written");
    assert_eq!(listed(&cluster, 2), [(NAME.to_owned(), "broken".to_owned())]);
    let copy = ["model", "pull", NAME, "--from", "pi1", "--node", "pi3", "--nodes", &all, "--json"];
    let refused = cluster.console(&copy);
    refused.assert_error(4, "model_invalid", &["pi3"]);
    let next = refused.json()["error"]["next"].clone();
    assert!(next.as_str().is_some_and(|next| next.contains("console model remove")), "{next}");
    // Without pi2, which has no such file.
    let remove = ["model", "remove", NAME, "--nodes", &all, "--yes", "--json"];
    let removed = cluster.console(&remove);
    assert_eq!((removed.code, &removed.json()["removed"]), (Some(0), &json!(["pi1", "pi3"])), "{}", removed.err);
    assert!(listed(&cluster, 0).is_empty() && listed(&cluster, 2).is_empty());
    cluster.console(&remove).assert_error(4, "model_missing", &["pi1"]);
}

#[test]
fn excluded_dead_node_is_left_out_and_verify_reads_the_others() {
    let (mut cluster, _folder, folders) = nodes(3);
    let all = cluster.nodes();
    fs::write(folders[0].join(NAME), bytes()).expect("it can be written");
    let excluded = cluster.console(&["node", "exclude", "pi2", "--reason", "fan", "--nodes", &all, "--yes"]);
    assert_eq!(excluded.code, Some(0), "{} {}", excluded.out, excluded.err);
    cluster.signal(1, nix::sys::signal::Signal::SIGKILL);
    cluster.wait(1);
    let left_out = |ended: &Ended| {
        assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
        assert!(ended.err.contains("pi2 is left out: it is excluded"), "{}", ended.err);
    };
    left_out(&cluster.console(&["model", "pull", NAME, "--from", "pi1", "--nodes", &all]));
    assert_eq!(fs::read(folders[2].join(NAME)).expect("it is there"), bytes());
    let verify = ["model", "verify", NAME, "--nodes", &all];
    let verified = cluster.console(&[&verify[..], &["--json"]].concat());
    left_out(&verified);
    assert_eq!(verified.json()["left_out"], json!(["pi2"]));
    // Named, it is missed.
    let named = cluster.console(&[&verify[..], &["--node", "pi2", "--json"]].concat());
    named.assert_error(3, "node_unreachable", &[&cluster.addresses[1]]);

    cluster.signal(0, nix::sys::signal::Signal::SIGKILL);
    cluster.wait(0);
    let partly = cluster.console(&verify);
    assert!(partly.code == Some(3) && partly.out.starts_with("pi3: bard.gguf"), "{} {}", partly.out, partly.err);
    assert!(partly.err.contains("done on pi3"), "{}", partly.err);
    let remove = ["model", "remove", NAME, "--nodes", &all, "--yes"];
    cluster.console(&[&remove[..], &["--json"]].concat()).assert_error(3, "node_unreachable", &[]);
    assert!(folders[2].join(NAME).exists(), "nothing is removed while a node that may have it is silent");
    cluster.start_with(0, &folders[0]);
    let removed = cluster.console(&[&remove[..], &["--json"]].concat());
    left_out(&removed);
    assert_described("console model remove", &removed.json());
    assert_eq!(removed.json()["left_out"], json!(["pi2"]));
    assert!(!folders[0].join(NAME).exists() && !folders[2].join(NAME).exists());
}

/// Nodes with separate model folders that serve a model, so that they have addresses for each other; and the HTTP
/// address of the first.
fn serving_nodes(count: usize) -> (Cluster, TempDir, Vec<PathBuf>, String) {
    let (cluster, folder, folders) = nodes_with(count, &format!("operator_api_keys = [\"{KEY}\"]\n"));
    for folder in &folders {
        fs::write(folder.join("other.gguf"), bytes()).expect("the folder can be written");
    }
    cluster.generate(count, &["--model", "other.gguf", "--prompt", "a", "--max-tokens", "1"]).completion();
    let address = beside(&cluster.addresses[0]);
    wait_until("it serves", || get(&address, "/health").status == 200);
    (cluster, folder, folders, address)
}

fn as_operator(address: &str, method: &str, path: &str, body: &Value) -> HttpAnswer {
    let key = format!("Bearer {KEY}");
    raw(address, &request_bytes(method, path, &[("Authorization", key.as_str())], Some(&body.to_string()))).rest()
}

/// The objects of a stream of lines.
fn lines(answer: &HttpAnswer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect()
}

#[test]
fn file_pulled_by_the_api_arrives_on_all_nodes() {
    let (_cluster, _folder, folders, address) = serving_nodes(2);
    let pulled = as_operator(&address, "POST", "/api/pull", &json!({"model": breaking_server()}));
    let reports = lines(&pulled);
    assert_eq!(reports.last(), Some(&json!({"status": "success"})), "{}", pulled.body);
    let total = bytes().len();
    assert!(reports.iter().any(|line| line["total"] == total && line["completed"].is_u64()), "{}", pulled.body);
    for folder in &folders {
        assert_eq!(fs::read(folder.join(NAME)).expect("it is there"), bytes());
    }
}

#[test]
fn pull_by_the_api_copies_what_is_missing_and_names_nodes_without_it() {
    let (mut cluster, _folder, folders, address) = serving_nodes(2);
    fs::write(folders[0].join(NAME), bytes()).expect("the folder can be written");
    // No server is asked for a file that the node has.
    let [plain, streamed] =
        [false, true].map(|is_streamed| json!({"model": format!("http://127.0.0.1:1/{NAME}"), "stream": is_streamed}));
    // Nothing can be written where the copy would be.
    let place = folders[1].join(format!("{NAME}.part"));
    fs::create_dir(&place).expect("the folder can be written");
    let failed = as_operator(&address, "POST", "/api/pull", &plain);
    let error = failed.json()["error"].as_str().expect("an error").to_owned();
    assert!(failed.status == 500 && error.contains("could not be copied to pi2 (cannot write"), "{error}");
    let reports = lines(&as_operator(&address, "POST", "/api/pull", &streamed));
    assert_eq!(reports.last(), Some(&json!({"error": error})));
    assert!(reports.iter().all(|line| line["status"] != "success"), "{reports:?}");
    fs::remove_dir(&place).expect("it is empty");
    let pulled = as_operator(&address, "POST", "/api/pull", &plain);
    assert_eq!(pulled.good(), json!({"status": "success"}));
    assert_eq!(fs::read(folders[1].join(NAME)).expect("it is there"), bytes());
    // With nothing left to do, it succeeds again, and names the node that may lack the model.
    cluster.signal(1, nix::sys::signal::Signal::SIGKILL);
    cluster.wait(1);
    let reports = lines(&as_operator(&address, "POST", "/api/pull", &streamed));
    let silent = format!("no answer from {}", cluster.addresses[1]);
    let mut told = reports.iter().filter_map(|line| line["status"].as_str());
    assert!(told.any(|status| status.starts_with(&silent)), "{reports:?}");
    assert_eq!(reports.last(), Some(&json!({"status": "success"})));
}

#[test]
fn split_model_is_pulled_and_deleted_by_the_api_with_all_its_files() {
    let (_cluster, _folder, folders, address) = serving_nodes(2);
    let names = [1, 2, 3].map(|part| format!("big-0000{part}-of-00003.gguf"));
    let splits = TinyModel::new(Architecture::Llama).splits(3);
    let url = server(names.iter().cloned().zip(splits.clone()).collect());
    // What an earlier request left.
    fs::write(folders[0].join(&names[0]), &splits[0]).expect("the folder can be written");
    let body = json!({"model": format!("{url}/{}", names[0]), "stream": false});
    as_operator(&address, "POST", "/api/pull", &body).good();
    for folder in &folders {
        for (name, split) in names.iter().zip(&splits) {
            assert_eq!(&fs::read(folder.join(name)).expect("it is there"), split, "{name}");
        }
    }
    fs::remove_file(folders[1].join(&names[0])).expect("it is there");
    let body = json!({"model": names[0].trim_end_matches(".gguf")});
    as_operator(&address, "DELETE", "/api/delete", &body).good();
    for folder in &folders {
        assert!(names.iter().all(|name| !folder.join(name).exists()), "{}", folder.display());
    }
    assert_eq!(as_operator(&address, "DELETE", "/api/delete", &body).status, 404);
    // Without its first file, too.
    fs::write(folders[1].join(&names[2]), &splits[2]).expect("the folder can be written");
    as_operator(&address, "DELETE", "/api/delete", &body).good();
    assert!(!folders[1].join(&names[2]).exists());
}

/// The names of the files of a split model, and their bytes.
fn split_model() -> ([String; 3], Vec<Vec<u8>>) {
    let names = [1, 2, 3].map(|part| format!("big-0000{part}-of-00003.gguf"));
    (names, TinyModel::new(Architecture::Llama).splits(3))
}

/// The bytes of the files that are in a folder.
fn files_in(folder: &Path, names: &[String]) -> Vec<Option<Vec<u8>>> {
    names.iter().map(|name| fs::read(folder.join(name)).ok()).collect()
}

#[test]
fn split_model_is_pulled_and_verified_with_all_its_files() {
    let (cluster, _folder, folders) = nodes(3);
    let (names, splits) = split_model();
    let url = server(names.iter().cloned().zip(splits.clone()).collect());
    let all = cluster.nodes();
    // What an earlier attempt left: the node with most files gets the others.
    fs::write(folders[1].join(&names[0]), &splits[0]).expect("the folder can be written");
    let source = format!("{url}/{}", names[2]);
    let pull = ["model", "pull", &source, "--nodes", &all, "--json"];
    let planned = cluster.console(&[&pull[..], &["--dry-run"]].concat()).json();
    assert_eq!(planned["plan"]["files"], json!(names), "any file stands for the model: {planned}");
    let pulled = cluster.console(&pull);
    assert_eq!(pulled.code, Some(0), "{} {}", pulled.out, pulled.err);
    let whole: Vec<Option<Vec<u8>>> = splits.iter().cloned().map(Some).collect();
    assert!(folders.iter().all(|folder| files_in(folder, &names) == whole));
    for part in ["pi2: downloading big (3 files)", "pi1: copying big (3 files)", "pi3: copying big (3 files)"] {
        assert!(pulled.err.contains(part), "{part} is not in {}", pulled.err);
    }
    assert!(!pulled.err.contains("pi1: downloading"), "{}", pulled.err);
    let pulled = pulled.json();
    let stored = pulled["stored"].as_array().expect("a list").clone();
    assert_eq!((stored.len(), &pulled["had"]), (2 + 3 + 3, &json!([])), "{pulled}");
    assert!(stored.iter().all(|one| one["file"]["state"] == "complete"), "{pulled}");
    assert!(stored.iter().all(|one| one["file"]["sha256"].is_string()), "{pulled}");

    let again = cluster.console(&pull).json();
    assert_eq!((&again["stored"], &again["had"]), (&json!([]), &json!(["pi1", "pi2", "pi3"])));
    let verified = cluster.console(&["model", "verify", &names[0], "--nodes", &all, "--json"]).json();
    let verified = verified["stored"].as_array().expect("a list").clone();
    assert_eq!(verified.len(), 9, "three files on three nodes");
    // One hash for each file.
    let hash = |file: usize| verified[file]["file"]["sha256"].as_str().expect("a hash").to_owned();
    let verify = |hashes: &[String]| {
        let hashes = hashes.join(",");
        cluster.console(&["model", "verify", &names[0], "--nodes", &all, "--sha256", &hashes, "--json"])
    };
    assert_eq!(verify(&[hash(0), hash(1), hash(2)]).code, Some(0));
    verify(&[hash(0), hash(2), hash(1)]).assert_error(1, "failed", &["checksum mismatch", &names[1]]);
    verify(&[hash(0)]).assert_error(2, "usage", &["expected 3", "got 1"]);
    let single = |hash: &str| {
        let name = ["model", "verify", "--name", &names[1], "--nodes", &all, "--sha256", hash, "--json"];
        cluster.console(&name)
    };
    assert_eq!(single(&hash(1)).json()["stored"].as_array().map(Vec::len), Some(3), "one file on three nodes");
    single(&hash(0)).assert_error(1, "failed", &["checksum mismatch", &names[1]]);
    cluster.generate(1, &["--model", &names[0], "--prompt", "ab", "--max-tokens", "1"]).completion();
}

#[test]
fn missing_or_wrong_file_of_a_split_model_is_named() {
    let (cluster, folder, folders) = nodes(2);
    let (names, splits) = split_model();
    let all = cluster.nodes();
    let incomplete = names.iter().cloned().zip(splits.clone()).filter(|(name, _)| *name != names[1]).collect();
    let source = format!("{}/{}", server(incomplete), names[0]);
    let failed = cluster.console(&["model", "pull", &source, "--nodes", &all, "--json"]);
    let second = format!("{} (file 2 of 3)", names[1]);
    failed.assert_error(1, "download_failed", &["pi1", &second, "HTTP 404"]);
    assert_eq!(files_in(&folders[0], &names), [Some(splits[0].clone()), None, None], "it is kept for the next attempt");
    assert_eq!(files_in(&folders[1], &names), [None, None, None]);

    // A copy begins only if the source has all files.
    fs::write(folders[0].join(&names[2]), &splits[2]).expect("the folder can be written");
    let copy = ["model", "pull", &names[0], "--from", "pi1", "--nodes", &all, "--json"];
    cluster.console(&copy).assert_error(4, "model_missing", &["pi1", &names[1]]);
    assert_eq!(files_in(&folders[1], &names), [None, None, None]);
    // A file of another model in the place of the second one.
    fs::write(folders[0].join(&names[1]), bytes()).expect("the folder can be written");
    cluster.console(&copy).assert_error(4, "model_invalid", &["pi1", &names[0]]);
    fs::write(folders[0].join(&names[1]), &splits[1]).expect("the folder can be written");
    assert_eq!(cluster.console(&copy).json()["stored"].as_array().map(Vec::len), Some(3));

    let hashes = ["0", "1", "2"].map(|digit| digit.repeat(64)).join(",");
    let other = folder.path().join("none");
    let local = other.join(&names[0]).to_string_lossy().into_owned();
    fs::create_dir(&other).expect("the folder can be written");
    fs::write(&local, &splits[0]).expect("the folder can be written");
    let send = ["model", "pull", &local, "--node", "pi1", "--nodes", &all, "--json"];
    cluster.console(&send).assert_error(2, "usage", &["3 files", &names[1], "is missing"]);
    fs::write(other.join(&names[1]), &splits[1]).expect("the folder can be written");
    fs::write(other.join(&names[2]), &splits[2]).expect("the folder can be written");
    let wrong = cluster.console(&[&send[..], &["--sha256", &hashes]].concat());
    wrong.assert_error(1, "failed", &["checksum mismatch", &names[0]]);
    cluster.console(&send).assert_error(4, "model_exists", &["pi1", &names[0]]);
}

#[test]
fn split_model_of_the_console_is_sent_in_several_attempts() {
    let (cluster, folder, folders) = nodes(2);
    let (names, splits) = split_model();
    for (name, split) in names.iter().zip(&splits) {
        fs::write(folder.path().join(name), split).expect("the folder can be written");
    }
    let [first, second] = [0, 1].map(|place: usize| folder.path().join(&names[place]).to_string_lossy().into_owned());
    let all = cluster.nodes();
    // With a name, a single file is sent.
    let single = ["model", "pull", &second, "--name", &names[1], "--node", "pi1", "--nodes", &all, "--json"];
    assert_eq!(cluster.console(&single).json()["stored"].as_array().map(Vec::len), Some(1));
    assert_eq!(files_in(&folders[0], &names), [None, Some(splits[1].clone()), None]);
    let listed = cluster.console(&["model", "list", "--nodes", &all]);
    assert!(listed.out.contains("unusable on pi1 (1 of 3 files)"), "{}", listed.out);
    let sent = cluster.console(&["model", "pull", &first, "--nodes", &all, "--json"]);
    assert_eq!(sent.code, Some(0), "{} {}", sent.out, sent.err);
    let stored = sent.json()["stored"].as_array().expect("a list").clone();
    let on = |node: &str| stored.iter().filter(|one| one["node"] == node && one["file"]["state"] == "complete").count();
    assert_eq!((on("pi1"), on("pi2")), (2, 3), "{stored:?}");
    let whole: Vec<Option<Vec<u8>>> = splits.into_iter().map(Some).collect();
    assert!(folders.iter().all(|folder| files_in(folder, &names) == whole));
}
