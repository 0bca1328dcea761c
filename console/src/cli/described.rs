//! Reads hypothetical nodes, which may differ, from a TOML file, for `console plan --described`.
use std::{collections::HashSet, fs::File, io::Read, path::Path};

use anyhow::Context;
use serde::Deserialize;
use shared::{
    simulate::NodeProfile,
    topology::{cost::PlanNode, memory::PANEL_ROWS, spec::NODES_MAX},
};

use super::Failure;

/// Most bytes of such a file.
const BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    node: Vec<Node>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    name: String,
    #[serde(default = "pi5")]
    profile: String,
    /// Share of the profile's.
    #[serde(default = "one")]
    speed: f64,
    /// Memory for the shard, its KV cache and its working buffers, in MiB.
    free_mib: u64,
}

fn pi5() -> String {
    "pi5".into()
}

fn one() -> f64 {
    1.0
}

/// The nodes of a file.
///
/// # Errors
/// It cannot be read, has none or too many, or a value out of bounds.
pub(super) fn nodes(path: &Path) -> Result<Vec<PlanNode>, Failure> {
    let reading = || format!("cannot read {}", path.display());
    let usage = |message: String| Failure::Usage {
        message: format!("{}: {message}", path.display()),
        next: "add a [[node]] table per node: name, free_mib, optionally profile (pi4, pi5) and speed (0.01 to 100)",
    };
    let mut text = String::new();
    // A device has no length of its own.
    File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_string(&mut text)).with_context(reading)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(usage(format!("longer than {BYTES_MAX} bytes")));
    }
    parse(&text).map_err(usage)
}

fn parse(text: &str) -> Result<Vec<PlanNode>, String> {
    let file: Described = toml::from_str(text).map_err(|error| error.to_string())?;
    if file.node.is_empty() || file.node.len() > NODES_MAX {
        return Err(format!("{} nodes, from 1 to {NODES_MAX} can be planned for", file.node.len()));
    }
    let mut names = HashSet::new();
    if let Some(node) = file.node.iter().find(|node| !names.insert(node.name.as_str())) {
        return Err(format!("{} is described twice", node.name));
    }
    let node = |Node { name, profile, speed, free_mib }: Node| {
        if !(0.01..=100.0).contains(&speed) || !(1..=1 << 24).contains(&free_mib) {
            return Err(format!("{name}: speed {speed} or free_mib {free_mib} is out of bounds"));
        }
        let profile = NodeProfile::named(&profile).map_err(|error| format!("{name}: {error}"))?.at_speed(speed);
        Ok(PlanNode { name, profile, memory: free_mib << 20, panel_rows: PANEL_ROWS, link: None })
    };
    file.node.into_iter().map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_differ_in_speed_and_memory() {
        let text = "[[node]]\nname = \"a\"\nfree_mib = 4096\n[[node]]\nname = \"b\"\nspeed = 0.5\nfree_mib = 1024\n";
        let nodes = parse(text).expect("it is whole");
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
            ("[[node]]\nname = \"a\"\nfree_mib = 1\nprofile = \"pi6\"", "a: \"pi6\""),
            ("[[node]]\nname = \"a\"\nfree_mib = 1\n[[node]]\nname = \"a\"\nfree_mib = 2", "a is described twice"),
            ("[[node]]\nname = \"a\"\nfree = 1", "free"),
        ] {
            let error = parse(text).expect_err("it is refused");
            assert!(error.contains(named), "{text}: {error}");
        }
        assert!(nodes(Path::new("/dev/zero")).is_err(), "reading ends");
    }
}
