//! Nodes with a cluster key: they generate the same texts, and refuse peers without the right key by name.
use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
};

use harness::programs::{Cluster, Ended, console, demo_models, programs, wait_until};
use tempfile::TempDir;

/// A folder with a new key.
pub(crate) struct Keys(TempDir);

impl Keys {
    pub(crate) fn new() -> Self {
        let keys = Self(tempfile::tempdir().expect("create a temporary folder"));
        let made = console(&["key", "new", "--key", keys.text(), "--json"]);
        assert_eq!(made.code, Some(0), "{}", made.err);
        keys
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("cluster.key")
    }

    pub(crate) fn text(&self) -> &str {
        // tempfile creates folders with ASCII names.
        Box::leak(self.path().into_os_string().into_string().expect("ASCII").into_boxed_str())
    }

    /// A file with the key derived for a role.
    pub(crate) fn role(&self, role: &str) -> String {
        let shown = console(&["key", "show", "--role", role, "--key", self.text()]);
        assert_eq!(shown.code, Some(0), "{}", shown.err);
        let path = self.0.path().join(format!("{role}.key"));
        fs::write(&path, shown.out).expect("write to the folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("this process owns the file");
        path.into_os_string().into_string().expect("ASCII")
    }

    fn settings(&self, more: &str) -> String {
        format!("key_file = \"{}\"\n{more}\n", self.text())
    }

    pub(crate) fn cluster(&self, count: usize, more: &str) -> Cluster {
        Cluster::with(count, &demo_models(), &self.settings(more))
    }
}

const PROMPT: &[&str] = &["--prompt", "ROMEO:", "--max-tokens", "12", "--temperature", "0"];

fn with_key(cluster: &Cluster, count: usize, key: &str) -> Ended {
    cluster.generate(count, &[PROMPT, &["--key", key]].concat())
}

#[test]
fn four_nodes_with_a_key_generate_the_same_text_as_without() {
    let open = Cluster::of(4);
    let expected = open.generate(4, PROMPT).completion();
    drop(open);
    let keys = Keys::new();
    for data_links in ["encrypted", "authenticated", "plain"] {
        let cluster = keys.cluster(4, &format!("data_links = \"{data_links}\""));
        let found = with_key(&cluster, 4, keys.text()).completion();
        assert_eq!(found["token_ids"], expected["token_ids"], "{data_links}");
        assert_eq!(found["text"], expected["text"], "{data_links}");
        assert!(found["token_ids"].as_array().is_some_and(|ids| ids.len() == 12));
    }
}

#[test]
fn stages_and_roles_generate_the_same_text_over_keyed_links() {
    let keys = Keys::new();
    let cluster = keys.cluster(3, "prefill_elsewhere_from = 16");
    let prompt = "to be or not to be ".repeat(6);
    let generate = |count: usize, topology: &str| {
        let more = ["--prompt", &prompt, "--max-tokens", "12", "--temperature", "0", "--topology", topology];
        cluster.generate(count, &[&more[..], &["--key", keys.text()]].concat()).completion()
    };
    let expected = generate(1, "tp1");
    for (count, topology) in [(2, "pp2-tp1"), (3, "prefill:tp2+decode:tp1")] {
        let found = generate(count, topology);
        assert_eq!(found["token_ids"], expected["token_ids"], "{topology}");
        let came = found["timings"]["transfer"]["bytes"].as_u64();
        assert_eq!(came.is_some_and(|bytes| bytes > 0), topology.starts_with("prefill"), "{topology}");
    }
}

#[test]
fn wrong_or_missing_key_is_refused_by_name() {
    let (keys, others) = (Keys::new(), Keys::new());
    let cluster = keys.cluster(1, "");
    with_key(&cluster, 1, others.text()).assert_error(4, "key_differs", &["pi1", "cluster key differs"]);
    // An empty folder: no key in the default place either.
    let home = tempfile::tempdir().expect("create a temporary folder");
    let mut bare = std::process::Command::new(programs().join("console"));
    bare.args(["status", "--json", "--nodes", &cluster.addresses[0]]).env("XDG_CONFIG_HOME", home.path());
    let ended = bare.env_remove("BRAMBLE_KEY_FILE").output().expect("console runs");
    let object: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("an object");
    assert_eq!(object["nodes"][0]["error"]["code"], "key_needed", "{object}");
    with_key(&cluster, 1, keys.text()).completion();
}

#[test]
fn nodes_with_different_keys_refuse_links_and_report_why() {
    let (keys, others) = (Keys::new(), Keys::new());
    let mut cluster = keys.cluster(2, "");
    cluster.signal(1, nix::sys::signal::Signal::SIGKILL);
    cluster.wait(1);
    let key = fs::read(others.path()).expect("this process owns the file");
    let own = cluster.state(1).join("cluster.key");
    fs::write(&own, key).expect("write to the folder");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o600)).expect("this process owns the file");
    cluster.set_settings(&format!("key_file = \"{}\"\n", own.display()));
    cluster.start(1);
    with_key(&cluster, 2, keys.text()).assert_error(4, "key_differs", &["pi2"]);
    with_key(&cluster, 1, keys.text()).completion();
}

#[test]
fn viewer_can_read_but_not_act() {
    let keys = Keys::new();
    let cluster = Cluster::supervised(1, &demo_models(), &keys.settings(""));
    let (viewer, operator) = (keys.role("viewer"), keys.role("operator"));
    let status = console(&["status", "--nodes", &cluster.addresses[0], "--json", "--key", &viewer]);
    assert_eq!((status.code, &status.json()["nodes"][0]["state"]), (Some(0), &"idle".into()), "{}", status.err);
    with_key(&cluster, 1, &viewer).assert_error(4, "role_refused", &["pi1", "viewer", "model-content"]);
    console(&["restart", "--nodes", &cluster.addresses[0], "--yes", "--json", "--key", &viewer]).assert_error(
        4,
        "role_refused",
        &["restart"],
    );
    assert!(cluster.log(0).contains("audit: viewer") && cluster.log(0).contains("model-content: refused"));
    with_key(&cluster, 1, &operator).completion();
    wait_until("commands are in the audit log", || {
        let log = cluster.log(0);
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("audit: operator")).collect();
        ["prepare: ok", "commit: ok"].iter().all(|end| lines.iter().any(|line| line.contains(*end)))
    });
    // Successful requests are shown to consoles but not written to disk.
    wait_until("the request is in the log that consoles read", || {
        console(&["logs", "pi1", "--nodes", &cluster.addresses[0], "--key", &operator])
            .out
            .contains("generate: ok, 12 tokens")
    });
    assert!(!cluster.log(0).contains("generate: ok"));
}

#[test]
fn key_file_readable_by_others_is_refused_with_a_fix() {
    let keys = Keys::new();
    fs::set_permissions(keys.path(), fs::Permissions::from_mode(0o644)).expect("this process owns the file");
    let cure = format!("chmod 600 {}", keys.text());
    console(&["status", "--nodes", "127.0.0.1:1", "--json", "--key", keys.text()]).assert_error(1, "failed", &[&cure]);
    let state = tempfile::tempdir().expect("create a temporary folder");
    let config = state.path().join("bramble.toml");
    fs::write(&config, keys.settings("")).expect("write to the folder");
    let mut daemon = std::process::Command::new(programs().join("brambled"));
    let ended = daemon.arg("--config").arg(&config).arg("--state").arg(state.path()).output().expect("it runs");
    let err = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && err.contains(&cure), "{err}");
}

/// Relays one connection to `to` and returns the bytes that the dialling side sent.
fn recording(to: &str) -> (String, std::thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind to loopback");
    let address = listener.local_addr().expect("a bound listener has an address").to_string();
    let to = to.to_owned();
    let thread = std::thread::spawn(move || {
        let (mut near, _) = listener.accept().expect("the console dials");
        let mut far = TcpStream::connect(to).expect("the node accepts");
        let (mut back, mut there) = (far.try_clone().expect("a socket"), near.try_clone().expect("a socket"));
        let answers = std::thread::spawn(move || std::io::copy(&mut back, &mut there));
        let (mut sent, mut bytes) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = near.read(&mut bytes) {
            sent.extend_from_slice(&bytes[..count]);
            far.write_all(&bytes[..count]).expect("the node reads");
        }
        let _ = far.shutdown(std::net::Shutdown::Both);
        let _ = answers.join();
        sent
    });
    (address, thread)
}

#[test]
fn recorded_session_cannot_be_replayed() {
    let keys = Keys::new();
    let cluster = keys.cluster(1, "");
    let (relay, recorded) = recording(&cluster.addresses[0]);
    let status = console(&["status", "--nodes", &relay, "--json", "--key", keys.text()]);
    assert_eq!(status.code, Some(0), "{}", status.err);
    let recorded = recorded.join().expect("the relay ends");
    assert!(!contains(&recorded, b"status") && recorded.len() > 100, "the recorded bytes must be encrypted");
    let mut stream = TcpStream::connect(&cluster.addresses[0]).expect("the node accepts");
    stream.write_all(&recorded).expect("the node reads");
    // The preamble and a handshake answer arrive, then the connection ends without a Welcome.
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.len() <= 16 + 2 + 48, "{} bytes", answer.len());
    wait_until("the node logs it", || cluster.log(0).contains("modified in transit"));
    with_key(&cluster, 1, keys.text()).completion();
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}
