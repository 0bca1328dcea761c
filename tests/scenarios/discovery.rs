//! Nodes that announce themselves over multicast DNS are found; others are not.
use harness::programs::{Cluster, console, demo_models};

#[test]
fn announced_nodes_are_found_and_leave_with_a_goodbye() {
    let mut cluster = Cluster::with(2, &demo_models(), "mdns = true\n");
    let found = console(&["node", "discover", "--seconds", "30", "--count", "2", "--json"]);
    assert_eq!(found.code, Some(0), "{} {}", found.out, found.err);
    let nodes = found.json()["nodes"].clone();
    for address in &cluster.addresses {
        let node = nodes.as_array().expect("nodes").iter().find(|node| node["address"] == address.as_str());
        let node = node.unwrap_or_else(|| panic!("{address} is not in {nodes}"));
        assert!(
            node["name"].as_str().is_some_and(|name| name.starts_with("pi")) && node["build"].is_string(),
            "{node}"
        );
    }
    for index in 0..2 {
        cluster.signal(index, nix::sys::signal::Signal::SIGTERM);
        assert_eq!(cluster.wait(index), Some(0));
    }
    // On loopback a node announces itself only if configured to.
    let _quiet = Cluster::with(1, &demo_models(), "");
    let none = console(&["node", "discover", "--seconds", "1", "--json"]);
    assert_eq!((none.code, none.json()["nodes"].as_array().map(Vec::len)), (Some(1), Some(0)), "{}", none.out);
}
