//! Link measurements between nodes; refused while requests run, and to consoles and clients without a key.
use std::{path::Path, time::Duration};

use common::fault::{Fault, FaultKind};
use harness::{
    deep_models::deep_models,
    programs::{Cluster, console, finish, wait_until},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use protocol::{
    connection::{Connection, dial_with},
    handshake::{Hello, Identity, Purpose},
    network::{PING_BYTES, Probe},
    noise::{
        key::Role,
        keyring::{self, Keyring},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::Runtime,
    time::timeout,
};

use crate::keys::Keys;

/// Deadline for a node to answer or to close a connection.
const PATIENCE: Duration = Duration::from_secs(20);

async fn dialled(address: &str, keyring: &Keyring) -> Result<Connection, Fault> {
    let identity = Identity { name: "x".into(), build: "0".into(), numeric: 1, machine: "m".into(), cores: vec![0] };
    let hello = Hello { identity, purpose: Purpose::Probe };
    dial_with(address, &hello, keyring).await.map(|(connection, _)| connection)
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes(), body].concat()
}

#[test]
fn every_link_of_three_nodes_is_measured_by_its_receiver() {
    let cluster = Cluster::of(3);
    let nodes = cluster.nodes();
    let asked = |more: &[&str]| {
        let short = ["--pings", "20", "--stream-ms", "20"];
        console(&[&["bench", "links", "--nodes", &nodes], &short[..], more].concat())
    };
    let ended = asked(&["--json"]);
    assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
    let found = ended.json();
    let nodes = found["nodes"].as_array().expect("a list");
    assert_eq!(nodes.len(), 3, "{found}");
    for (index, node) in nodes.iter().enumerate() {
        let own = format!("pi{}", index + 1);
        assert_eq!(node["node"], own.as_str());
        let links = node["links"].as_array().expect("a list");
        let peers: Vec<&str> = links.iter().filter_map(|link| link["peer"].as_str()).collect();
        let others: Vec<&str> = ["pi1", "pi2", "pi3"].into_iter().filter(|name| *name != own).collect();
        assert_eq!(peers, others);
        for link in links {
            let number = |name: &str| link[name].as_u64().unwrap_or_else(|| panic!("{name} in {link}"));
            assert!(number("pings") == 20 && number("p50") > 0 && number("p50") <= number("p99"), "{link}");
            assert!(number("bits_per_second") > 1_000_000 && number("bytes") > 0, "{link}");
        }
        let incast = &node["incast"];
        assert!(incast["senders"] == 2 && incast["slowest"].as_u64() <= incast["fastest"].as_u64(), "{incast}");
    }
    let text = asked(&["--no-incast"]);
    assert!(text.out.contains("pi3 > pi1") && text.out.contains("RTT p99"), "{}", text.out);
    assert!(!text.out.contains("incast"), "{}", text.out);
    console(&["bench", "links", "--nodes", &cluster.addresses[0], "--json"]).assert_error(2, "usage", &["1 given"]);
    asked(&["--json", "--stream-ms", "1001"]).assert_error(2, "usage", &["stream-ms"]);
    cluster.assert_alive();
}

#[test]
fn link_bench_is_refused_while_requests_run() {
    let models = deep_models();
    let mut cluster = Cluster::with(2, models.path(), "");
    let nodes = cluster.nodes();
    let bench = ["bench", "links", "--nodes", &nodes, "--pings", "5", "--stream-ms", "5", "--json"];
    let busy = cluster.start_generation("4000");
    console(&bench).assert_error(4, "requests_run", &["pi1"]);
    kill(Pid::from_raw(busy.id().cast_signed()), Signal::SIGINT).expect("the console is running");
    finish(busy);
    let epoch = cluster.status(0)["epoch"].clone();
    wait_until("links are measured", || console(&bench).code == Some(0));
    assert_eq!((&cluster.status(0)["epoch"], &cluster.status(1)["state"]), (&epoch, &"ready".into()));
    cluster.signal(1, Signal::SIGTERM);
    cluster.wait(1);
    console(&bench).assert_error(3, "node_unreachable", &[]);
}

#[test]
fn link_probe_rejects_other_roles_and_malformed_frames() {
    let runtime = Runtime::new().expect("a runtime");
    let keys = Keys::new();
    let cluster = keys.cluster(1, "");
    let address = &cluster.addresses[0];
    for role in [Role::Viewer, Role::Operator] {
        let held =
            Keyring::with(role, keyring::read(Path::new(&keys.role(&role.to_string()))).expect("it is a key file"));
        let refused = runtime.block_on(dialled(address, &held)).expect_err("no node");
        assert!(matches!(refused.kind, FaultKind::RoleRefused { .. }), "{refused}");
    }
    let refused = runtime.block_on(dialled(address, &Keyring::empty(Role::Node))).expect_err("a stranger");
    assert!(matches!(refused.kind, FaultKind::KeyNeeded), "{refused}");
    let open = Cluster::of(1);
    let address = &open.addresses[0];
    let stream = |ms: u32| {
        let mut body = Probe::Stream { ms: 5 }.encode();
        body[1..5].copy_from_slice(&ms.to_le_bytes());
        framed(&body)
    };
    let bad = [
        u32::MAX.to_le_bytes().to_vec(),
        framed(&[0; PING_BYTES + 1]),
        framed(&[9; PING_BYTES]),
        framed(&[]),
        stream(u32::MAX),
        stream(0),
    ];
    runtime.block_on(async {
        for bytes in bad {
            let connection = dialled(address, &Keyring::empty(Role::Node)).await.expect("this machine may");
            let (mut socket, _) = connection.into_data_link();
            socket.write_all(&bytes).await.expect("it is open");
            let mut rest = Vec::new();
            let ended = timeout(PATIENCE, socket.read_to_end(&mut rest)).await.expect("the node hangs up");
            assert!(rest.is_empty(), "{ended:?}: {} bytes for {bytes:?}", rest.len());
        }
        // The number of concurrent connections is limited.
        let mut held = Vec::new();
        let full = loop {
            match dialled(address, &Keyring::empty(Role::Node)).await {
                Ok(connection) => held.push(connection),
                Err(fault) => break fault.kind,
            }
        };
        assert!(matches!(full, FaultKind::Full { .. }) && held.len() < 64, "{full} after {}", held.len());
    });
    open.assert_alive();
}
