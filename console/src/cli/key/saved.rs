//! Other saved clusters with the key that a rotation replaces. The operator decides whether it is meant for them, too.
use std::{fs, path::Path};

use protocol::noise::keyring;

use crate::{
    cli::shared::output,
    client::{clusters::Clusters, with_port},
};

/// A line for each saved cluster that would be left with the previous key of the file `path`, although its nodes get a new
/// one, or the other way round. `nodes` are those of the rotation, as `ADDRESS:PORT`; `default` is the key file of clusters
/// without their own.
pub(super) fn same_key(clusters: &Clusters, default: Option<&Path>, path: &Path, nodes: &[String]) -> Vec<String> {
    let current = |path: &Path| Some(keyring::read_if_there(path).ok()?.into_iter().next()?.key);
    let replaced = current(path);
    let mut lines = Vec::new();
    for (name, kept) in &clusters.all {
        let Some(file) = kept.key.as_deref().or(default) else { continue };
        let left_out = kept.nodes.iter().filter(|node| !nodes.contains(&with_port(node)));
        let left_out: Vec<&str> = left_out.map(String::as_str).collect();
        if is_same_file(file, path) {
            if !left_out.is_empty() {
                lines.push(format!(
                    "saved cluster {name} uses this key file, but the rotation leaves out {}: name all its nodes, or \
                     save it with a copy of the file first (console cluster add)",
                    output::clean(&left_out.join(", "))
                ));
            }
        } else if replaced.is_some() && current(file) == replaced {
            lines.push(format!("saved cluster {name} has the same key in {}, which stays as it is", file.display()));
        }
    }
    lines
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    real(one) == real(other)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use protocol::noise::{key::Key, keyring::Held};

    use super::*;
    use crate::client::clusters::Kept;

    #[test]
    fn clusters_with_the_replaced_key_are_named() {
        let folder = tempfile::tempdir().expect("create a temporary folder");
        let path = |file: &str| folder.path().join(file);
        for (file, byte) in [("cluster.key", 1), ("copy.key", 1), ("other.key", 3)] {
            let held = [Held { key: Key::Secret([byte; 32]), until: None }];
            keyring::write(&path(file), &held).expect("the folder can be written");
        }
        symlink(path("cluster.key"), path("link.key")).expect("the folder can be written");
        let mut clusters = Clusters::default();
        for (name, nodes, file) in [
            ("home", ["pi1", "pi2:9999"], None),
            ("lab", ["pi1", "pi5"], None),
            ("linked", ["pi6", "pi7"], Some("link.key")),
            ("copy", ["pi1", "pi2"], Some("copy.key")),
            ("other", ["pi1", "pi2"], Some("other.key")),
            ("missing", ["pi8", "pi9"], Some("missing.key")),
        ] {
            let kept = Kept { nodes: nodes.map(str::to_owned).to_vec(), key: file.map(path) };
            clusters.all.insert(name.into(), kept);
        }
        let rotated = path("cluster.key");
        let lines = same_key(&clusters, Some(&rotated), &rotated, &["pi1:9999", "pi2:9999"].map(str::to_owned));
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].contains("cluster copy") && lines[0].contains("copy.key"), "{lines:?}");
        assert!(lines[1].contains("cluster lab") && lines[1].contains("leaves out pi5:"), "{lines:?}");
        assert!(lines[2].contains("cluster linked") && lines[2].contains("pi6, pi7"), "{lines:?}");
    }
}
