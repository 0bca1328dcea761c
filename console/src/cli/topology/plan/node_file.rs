//! Reads hypothetical nodes, which need not be equal, from a TOML file for `console topology plan --described`.
use std::{collections::HashSet, fs::File, io::Read, path::Path};

use anyhow::Context;
use common::limits::NODES_MAX;
use planner::{
    cost::PlanNode,
    holding::PANEL_ROWS,
    simulate::{Link, NodeProfile},
};
use serde::Deserialize;

use crate::cli::Failure;

/// Maximum size of the file in bytes.
const BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    node: Vec<NodeEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeEntry {
    name: String,
    #[serde(default = "pi5")]
    profile: String,
    /// Speed relative to the profile.
    #[serde(default = "one")]
    speed: f64,
    /// Memory for the shard, its KV cache and its working buffers, in MiB.
    free_mib: u64,
    /// Rate of its link in Mb/s; by default that of --bandwidth-mbit.
    link_mbit: Option<u64>,
}

fn pi5() -> String {
    "pi5".into()
}

fn one() -> f64 {
    1.0
}

/// The nodes of a file. `link`: the latency of all links, and the rate of nodes without `link_mbit`.
///
/// # Errors
/// The file cannot be read, has no nodes or too many, or a value is out of bounds.
pub(crate) fn nodes(path: &Path, link: Link) -> Result<Vec<PlanNode>, Failure> {
    let usage = |message: String| Failure::Usage {
        message: format!("{}: {message}", path.display()),
        next: "add a [[node]] table per node: name, free_mib, optionally profile (pi4, pi5), speed (0.01 to 100) and link_mbit",
    };
    let mut text = String::new();
    // Limits the read itself, because a device reports no length.
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text));
    read.with_context(|| format!("cannot read {}", path.display()))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(usage(format!("longer than {BYTES_MAX} bytes")));
    }
    parse(&text, link).map_err(usage)
}

fn parse(text: &str, link: Link) -> Result<Vec<PlanNode>, String> {
    let file: Described = toml::from_str(text).map_err(|error| error.to_string())?;
    if file.node.is_empty() || file.node.len() > NODES_MAX {
        return Err(format!("{} nodes, expected 1 to {NODES_MAX}", file.node.len()));
    }
    let mut names = HashSet::new();
    if let Some(node) = file.node.iter().find(|node| !names.insert(node.name.as_str())) {
        return Err(format!("{} is described twice", node.name));
    }
    let node = |NodeEntry { name, profile, speed, free_mib, link_mbit }: NodeEntry| {
        if !(0.01..=100.0).contains(&speed) || !(1..=1 << 24).contains(&free_mib) {
            return Err(format!("{name}: speed {speed} or free_mib {free_mib} is out of bounds"));
        }
        if let Some(rate) = link_mbit.filter(|rate| !(1..=400_000).contains(rate)) {
            return Err(format!("{name}: link_mbit {rate} is out of bounds"));
        }
        let link = link_mbit.map(|rate| Link { bits_per_second: rate * 1_000_000, ..link });
        let profile = NodeProfile::named(&profile).map_err(|error| format!("{name}: {error}"))?.at_speed(speed);
        Ok(PlanNode { name, profile, memory: free_mib << 20, panel_rows: PANEL_ROWS, link })
    };
    file.node.into_iter().map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use assignment::planner_query::LINK;

    #[test]
    fn nodes_differ_in_speed_memory_and_link() {
        let text = "[[node]]\nname = \"a\"\nfree_mib = 4096\nlink_mbit = 100\n[[node]]\nname = \"b\"\nspeed = 0.5\nfree_mib = 1024\n";
        let nodes = parse(text, LINK).expect("it is whole");
        assert_eq!(nodes[0].link.map(|link| (link.bits_per_second, link.alpha_ns)), Some((100_000_000, LINK.alpha_ns)));
        assert_eq!(nodes[1].link, None);
        assert_eq!((nodes[0].memory, nodes[1].memory), (4 << 30, 1 << 30));
        let ratio = nodes[0].profile.macs_per_second / nodes[1].profile.macs_per_second;
        assert!((ratio - 2.0).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn bad_value_is_refused_and_named() {
        for (text, named) in [
            ("node = []", "0 nodes"),
            ("[[node]]\nname = \"a\"\nfree_mib = 1\nspeed = 0", "a: speed 0"),
            ("[[node]]\nname = \"a\"\nfree_mib = 1\nspeed = nan", "a: speed NaN"),
            ("[[node]]\nname = \"a\"\nfree_mib = 1\nprofile = \"pi6\"", "a: unknown machine profile \"pi6\""),
            ("[[node]]\nname = \"a\"\nfree_mib = 1\n[[node]]\nname = \"a\"\nfree_mib = 2", "a is described twice"),
            ("[[node]]\nname = \"a\"\nfree = 1", "free"),
            ("[[node]]\nname = \"a\"\nfree_mib = 1\nlink_mbit = 0", "a: link_mbit 0"),
        ] {
            let error = parse(text, LINK).expect_err("it is refused");
            assert!(error.contains(named), "{text}: {error}");
        }
        assert!(nodes(Path::new("/dev/zero"), LINK).is_err(), "reading ends");
    }
}
