//! The default layout if none is requested, and the warning about a layout beyond the optimum.
use std::fs;

use harness::programs::{Cluster, console, wait_until};
use tempfile::TempDir;

const MODEL: &str = "bard-q8_0.gguf";

/// Two nodes with different boot ids, as on two machines.
fn apart() -> (Cluster, Vec<TempDir>) {
    let mut cluster = Cluster::of(2);
    let mut roots = Vec::new();
    for index in 0..2 {
        let root = tempfile::tempdir().expect("create a temporary folder");
        let random = root.path().join("proc/sys/kernel/random");
        fs::create_dir_all(&random).expect("write to the folder");
        fs::write(random.join("boot_id"), format!("boot-{index}\n")).expect("write to the folder");
        fs::copy("/proc/meminfo", root.path().join("proc/meminfo")).expect("Linux has it");
        cluster.signal(index, nix::sys::signal::Signal::SIGTERM);
        cluster.wait(index);
        cluster.start_with_arguments(index, &["--health-root", &root.path().to_string_lossy()]);
        roots.push(root);
    }
    (cluster, roots)
}

#[test]
fn default_layout_is_planned_and_slower_layout_warns() {
    let (cluster, _roots) = apart();
    let nodes = cluster.nodes();
    let generate = |more: &[&str]| {
        let fixed =
            ["generate", "--yes", "--nodes", &nodes, "--model", MODEL, "--prompt", "ROMEO:", "--max-tokens", "4"];
        let ended = console(&[&fixed[..], &["--temperature", "0", "--json"], more].concat());
        assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
        (cluster.status(0)["topology"].to_string(), ended)
    };
    // For the small demo model a second rank costs more time than it saves, so two replicas have the higher throughput.
    let (topology, ended) = generate(&[]);
    assert!(topology.contains("dp2"), "{topology}");
    assert!(ended.err.contains("predicted for balanced: dp2") && ended.err.contains("links assumed"), "{}", ended.err);
    let ids = ended.completion()["token_ids"].clone();
    // A running topology is used whatever its layout.
    assert!(!generate(&[]).1.err.contains("predicted"));
    let (topology, ended) = generate(&["--topology", "tp2"]);
    assert!(topology.contains("tp2") && ended.completion()["token_ids"] == ids, "{topology}");
    assert!(ended.err.contains("warning: 2 nodes answer slower than 1"), "{}", ended.err);
    // A topology file with that layout causes the same warning.
    let file = cluster.state(0).join("tp2.toml");
    fs::write(&file, console(&["topology", "show", "--nodes", &nodes]).out).expect("write to the folder");
    let checked = console(&["topology", "assign", &file.to_string_lossy(), "--dry-run", "--json"]);
    assert_eq!(checked.code, Some(0), "{} {}", checked.out, checked.err);
    assert!(
        checked.json()["plan"]["warning"].as_str().is_some_and(|warning| warning.contains("tp2: ")),
        "{}",
        checked.out
    );
    assert!(
        checked.json()["plan"]["links"].as_str().is_some_and(|links| links.contains("links assumed")),
        "{}",
        checked.out
    );
    // Once the links are measured, predictions use the measurements.
    let links = ["bench", "links", "--nodes", &nodes, "--pings", "5", "--stream-ms", "5", "--no-incast"];
    wait_until("the engines are idle", || console(&links).code == Some(0));
    let checked = console(&["topology", "assign", &file.to_string_lossy(), "--dry-run", "--json"]);
    assert!(
        checked.json()["plan"]["links"].as_str().is_some_and(|links| links.contains("links measured")),
        "{}",
        checked.out
    );
}

#[test]
fn nodes_of_one_machine_default_to_one_tensor_group() {
    let cluster = Cluster::of(2);
    let ended = cluster.generate(2, &["--prompt", "ROMEO:", "--max-tokens", "2", "--temperature", "0"]);
    assert_eq!(ended.code, Some(0), "{} {}", ended.out, ended.err);
    assert!(
        cluster.status(0)["topology"].to_string().contains("tp2") && !ended.err.contains("predicted"),
        "{}",
        ended.err
    );
}
