//! `bramble-bench` on real nodes: layouts compared on their heads, no assignment without consent, and a daemon with a
//! part left out.
use std::process::{Child, Command, Stdio};

use harness::programs::{Cluster, bench, console, demo_models, programs, wait_until};
use serde_json::Value;

const MODEL: &str = "bard-q8_0.gguf";

#[test]
fn layouts_are_compared_on_their_heads() {
    let cluster = Cluster::of(2);
    let nodes = cluster.nodes();
    let short = ["--input", "8", "--output", "4", "--requests", "2", "--concurrency", "2", "--rounds", "2"];
    let line = ["ab", "--nodes", &nodes, "--model", MODEL, "--topologies", "tp2,dp2", "--yes", "--json"];
    let ended = bench(&[&line[..], &short].concat());
    assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
    let found = ended.json();
    let cells = found["cells"].as_array().expect("a list");
    assert_eq!(cells.len(), 4, "prefill and decode of two layouts");
    for repeat in cells.iter().flat_map(|cell| cell["repeats"].as_array().expect("a list")) {
        assert!(repeat["completed"] == repeat["requests"] && repeat["stages"].is_object(), "{repeat}");
    }
    assert!(found["verdicts"].as_array().is_some_and(|verdicts| !verdicts.is_empty()), "{found}");
}

#[test]
fn benchmarks_assign_nothing_without_consent() {
    let cluster = Cluster::of(2);
    let nodes = cluster.nodes();
    let run = ["--prompt", "ROMEO:", "--max-tokens", "1", "--topology", "tp2"];
    let before = cluster.generate(2, &run).completion()["epoch"].clone();
    let folder = tempfile::tempdir().expect("create a temporary folder");
    let out = folder.path().join("matrix.json").display().to_string();
    for line in [
        &["ab", "--topologies", "tp1,tp2"][..],
        &["collectives", "--topology", "tp2", "--exchange", "f16"],
        &["disagg", "--topologies", "prefill:tp1+decode:tp1", "dp2-tp1"],
        &["matrix", "--reduced", "--out", &out],
    ] {
        let asked = |more: &[&str]| bench(&[line, &["--nodes", &nodes, "--model", MODEL], more].concat());
        let tried = asked(&["--dry-run"]);
        assert!(tried.code == Some(0) && tried.out.contains("would do"), "{line:?}: {} {}", tried.out, tried.err);
        let refused = asked(&[]);
        assert!(refused.code == Some(2) && refused.err.contains("--yes"), "{line:?}: {} {}", refused.out, refused.err);
    }
    assert_eq!(cluster.generate(2, &run).completion()["epoch"], before);
}

/// A running `bramble-bench daemon`.
struct VariantDaemon(Child);

impl Drop for VariantDaemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn daemon_variant_serves_the_same_text() {
    let cluster = Cluster::of(1);
    let run = ["--prompt", "ROMEO:", "--max-tokens", "8", "--temperature", "0"];
    let text = cluster.generate(1, &run).completion()["text"].clone();
    let (host, port) = cluster.addresses[0].rsplit_once(':').expect("an address has a port");
    let address = format!("{host}:{}", port.parse::<u16>().expect("a number") + 1);
    let state = tempfile::tempdir().expect("create a temporary folder");
    let mut command = Command::new(programs().join("bramble-bench"));
    command.args(["daemon", "--plain", "--http", "off", "--exit-with-parent", "--name", "plain", "--listen", &address]);
    command.arg("--models").arg(demo_models()).arg("--state").arg(state.path());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let _daemon = VariantDaemon(command.spawn().expect("bramble-bench starts"));
    wait_until("the daemon listens", || std::net::TcpStream::connect(&address).is_ok());
    let line = ["generate", "--nodes", &address, "--model", MODEL, "--json", "--yes"];
    let found = console(&[&line[..], &run].concat()).completion();
    assert_eq!(found["text"], text);
    assert_ne!(text, Value::Null);
}
