//! Resource limits for the holder of a role's key: no more than its share of a node, and nothing that belongs to
//! others.
use std::{path::Path, time::Duration};

use common::{
    fault::{Fault, FaultKind},
    ids::RequestId,
};
use harness::programs::{Cluster, console, wait_until};
use protocol::{
    connection::{Arrived, Connection, Door, dial_with, receive_hello},
    handshake::{Hello, Identity, Purpose},
    message::{Request, RequestBody, Response, ResponseBody},
    messages::{MessageReader, MessageWriter, split},
    models::ModelsRequest,
    noise::{
        key::Role,
        keyring::{self, Held, Keyring},
    },
};
use tokio::{net::TcpListener, runtime::Runtime, time::timeout};

use crate::keys::Keys;

/// Deadline for a node to answer or to end a session.
const PATIENCE: Duration = Duration::from_secs(20);

fn keyring_in(path: impl AsRef<Path>) -> Keyring {
    Keyring::with(Role::Owner, keyring::read(path.as_ref()).expect("it is a key file"))
}

async fn dialled(address: &str, name: &str, keyring: &Keyring) -> Result<Connection, Fault> {
    let identity = Identity { name: name.into(), build: "0".into(), numeric: 1, machine: "m".into(), cores: vec![0] };
    let hello = Hello { identity, purpose: Purpose::Console };
    dial_with(address, &hello, keyring).await.map(|(connection, _)| connection)
}

async fn session(address: &str, keyring: &Keyring) -> (MessageReader, MessageWriter) {
    split(dialled(address, "desk", keyring).await.expect("the key fits"))
}

async fn next(reader: &mut MessageReader) -> ResponseBody {
    let response = timeout(PATIENCE, reader.receive::<Response>()).await.expect("it answers in time");
    response.expect("the session is whole").expect("the session is open").body
}

fn request(id: u64, body: RequestBody) -> Request {
    Request { id: RequestId(id), body }
}

fn read(id: u64) -> Request {
    let read = ModelsRequest::Read { model: "bard-q8_0.gguf".into(), offset: 0 };
    request(id, RequestBody::Models(Box::new(read)))
}

fn failure(body: &ResponseBody) -> Option<&FaultKind> {
    if let ResponseBody::Failed(fault) = body { Some(&fault.kind) } else { None }
}

/// Resident memory of a node in MiB.
fn resident_mib(cluster: &Cluster) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", cluster.pid(0))).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux reports it");
    line.split_whitespace().next().and_then(|text| text.parse::<u64>().ok()).expect("a number") / 1024
}

#[test]
fn viewers_leave_watches_and_connections_to_operators() {
    let keys = Keys::new();
    let cluster = keys.cluster(1, "");
    let (viewer, operator) = (keyring_in(keys.role("viewer")), keyring_in(keys.role("operator")));
    let address = &cluster.addresses[0];
    Runtime::new().expect("a runtime").block_on(async {
        let mut sessions = Vec::new();
        let mut refused = None;
        while refused.is_none() && sessions.len() < 512 {
            match dialled(address, "wall", &viewer).await {
                Ok(connection) => sessions.push(split(connection)),
                Err(fault) => refused = Some(fault.kind),
            }
        }
        assert!(matches!(refused, Some(FaultKind::Full { .. })), "after {} sessions: {refused:?}", sessions.len());
        for (_, writer) in sessions.iter_mut().take(100) {
            for id in 0..16 {
                let watch = RequestBody::Watch { interval_ms: 60_000 };
                writer.send(&request(id, watch)).await.expect("the node reads");
            }
        }
        let (mut reader, mut writer) = session(address, &operator).await;
        writer.send(&request(1, RequestBody::Watch { interval_ms: 50 })).await.expect("the node reads");
        let answer = next(&mut reader).await;
        assert!(matches!(answer, ResponseBody::Report(_)), "{answer:?}");
    });
}

#[test]
fn viewer_gets_no_model_and_forges_no_line_of_the_log() {
    let keys = Keys::new();
    let cluster = keys.cluster(1, "");
    let viewer = keyring_in(keys.role("viewer"));
    let address = &cluster.addresses[0];
    Runtime::new().expect("a runtime").block_on(async {
        let (mut reader, mut writer) = session(address, &viewer).await;
        writer.send(&read(1)).await.expect("the node reads");
        let answer = next(&mut reader).await;
        assert!(matches!(failure(&answer), Some(FaultKind::RoleRefused { .. })), "{answer:?}");
        for name in ["a\n2026-11-22T16:00:00Z  INFO audit: operator root: model-remove: ok", &"x".repeat(8000)] {
            let refused = dialled(address, name, &viewer).await.expect_err("the name must be refused");
            assert!(matches!(refused.kind, FaultKind::Malformed { .. }), "{refused}");
        }
        // Refusals are reported but do not fill the disk.
        for id in 0..2000 {
            writer.send(&request(id, RequestBody::Restart)).await.expect("the node reads");
            let answer = next(&mut reader).await;
            assert!(matches!(failure(&answer), Some(FaultKind::RoleRefused { .. })), "{answer:?}");
        }
    });
    let log = cluster.log(0);
    assert!(log.contains("audit: viewer desk") && !log.lines().any(|line| line.starts_with("2026-11-22T16:00:00Z")));
    let told = log.lines().filter(|line| line.contains("restart: refused")).count();
    assert!((1..=300).contains(&told), "{told} lines of 2000");
}

#[test]
fn reader_that_does_not_read_costs_bounded_memory() {
    let keys = Keys::new();
    let cluster = keys.cluster(1, "");
    let operator = keyring_in(keys.role("operator"));
    let address = &cluster.addresses[0];
    let before = resident_mib(&cluster);
    let runtime = Runtime::new().expect("a runtime");
    let deaf = runtime.block_on(async {
        let mut deaf = Vec::new();
        for _ in 0..8 {
            let (reader, mut writer) = session(address, &operator).await;
            // One after another, as fast as jobs end: each finds a free slot at first.
            for id in 0..230 {
                if timeout(PATIENCE, writer.send(&read(id))).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            deaf.push((reader, writer));
        }
        deaf
    });
    let mut most = 0;
    let until = std::time::Instant::now() + Duration::from_secs(3);
    wait_until("three seconds are over", || {
        most = most.max(resident_mib(&cluster));
        std::time::Instant::now() > until
    });
    assert!(most < before + 128, "{before} MiB before, {most} MiB now");
    runtime.block_on(async {
        let (mut reader, mut writer) = session(address, &operator).await;
        writer.send(&request(1, RequestBody::Report)).await.expect("the node reads");
        assert!(matches!(next(&mut reader).await, ResponseBody::Report(_)));
    });
    drop(deaf);
}

#[test]
fn sessions_of_a_revoked_key_end() {
    let keys = Keys::new();
    let cluster = keys.cluster(1, "");
    let own = cluster.state(0).join("cluster.key");
    // The node writes the file that its settings name; the console writes its own copy.
    std::fs::copy(keys.path(), &own).expect("write to the folder");
    let mut cluster = cluster;
    cluster.signal(0, nix::sys::signal::Signal::SIGKILL);
    cluster.wait(0);
    cluster.set_settings(&format!("key_file = \"{}\"\n", own.display()));
    cluster.start(0);
    let viewer = keyring_in(keys.role("viewer"));
    let runtime = Runtime::new().expect("a runtime");
    let (mut reader, _writer) = runtime.block_on(async {
        let (mut reader, mut writer) = session(&cluster.addresses[0], &viewer).await;
        writer.send(&request(1, RequestBody::Watch { interval_ms: 50 })).await.expect("the node reads");
        assert!(matches!(next(&mut reader).await, ResponseBody::Report(_)));
        (reader, writer)
    });
    let address = &cluster.addresses[0];
    let rotate = ["key", "rotate", "--nodes", address, "--grace", "0", "--yes", "--json", "--key", keys.text()];
    let rotated = console(&rotate);
    assert_eq!(rotated.code, Some(0), "{} {}", rotated.out, rotated.err);
    let ends = async { while let Ok(Some(_)) = reader.receive::<Response>().await {} };
    runtime
        .block_on(async { timeout(PATIENCE, ends).await })
        .expect("the session must end although the viewer sends no request");
}

#[test]
fn rotation_reveals_nothing_to_an_impostor_of_the_node() {
    let keys = Keys::new();
    let operator = keyring::read(Path::new(&keys.role("operator"))).expect("it is a key file");
    let runtime = Runtime::new().expect("a runtime");
    for (held, code) in [(operator, "key_differs"), (Vec::<Held>::new(), "unclaimed")] {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("bind to loopback");
        let address = listener.local_addr().expect("the listener is bound").to_string();
        let playing = runtime.spawn(async move {
            let keyring = Keyring::with(Role::Node, held);
            let mut sessions = 0;
            while let Ok((stream, _)) = listener.accept().await {
                let door = Door { name: "pi1", keyring: &keyring, is_pairing: &|| false };
                if matches!(receive_hello(stream, door).await, Ok(Arrived::Hello(..))) {
                    sessions += 1;
                    break;
                }
            }
            sessions
        });
        let rotate = ["key", "rotate", "--nodes", &address, "--yes", "--json", "--key", keys.text()];
        console(&rotate).assert_error(4, code, &[]);
        assert!(!playing.is_finished(), "no session may be opened with it");
        playing.abort();
    }
}
