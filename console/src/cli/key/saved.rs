//! The saved clusters that have the key of a rotation. A key file changes only if each cluster that uses it has nodes
//! that get the new key.
use std::{
    fs,
    path::{Path, PathBuf},
};

use protocol::noise::{key::Key, keyring};

use crate::{
    cli::{Failure, shared::output},
    client::{clusters::Clusters, with_port},
};

/// A rotation, as far as it concerns saved clusters.
#[derive(Clone, Copy, Debug)]
pub(super) struct RotationScope<'a> {
    /// The key file.
    pub(super) path: &'a Path,
    /// The nodes, as `ADDRESS:PORT`.
    pub(super) nodes: &'a [String],
    /// The previous key.
    pub(super) old: &'a Key,
    /// The new key, if an earlier run has begun the rotation.
    pub(super) begun: Option<&'a Key>,
    /// Seconds for which the previous key stays valid.
    pub(super) grace: u32,
}

/// What a rotation means for the saved clusters.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeySharing {
    /// Other key files that get the new key.
    pub(super) files: Vec<PathBuf>,
    /// Lines for the operator.
    pub(super) notes: Vec<String>,
}

/// A saved cluster that has the key.
struct KeyUser<'a> {
    name: &'a str,
    file: &'a Path,
    /// Its nodes that are not part of the rotation.
    left_out: Vec<&'a str>,
    /// Whether none of its nodes is.
    is_apart: bool,
}

/// Decides which saved clusters get the new key. `default` is the key file of clusters without their own.
///
/// # Errors
/// A cluster of other nodes uses a file that gets the new key.
pub(super) fn sharing(
    clusters: &Clusters,
    default: Option<&Path>,
    rotation: RotationScope<'_>,
) -> Result<KeySharing, Failure> {
    let (apart, taking): (Vec<KeyUser<'_>>, Vec<KeyUser<'_>>) =
        users(clusters, default, rotation).into_iter().partition(|user| user.is_apart);
    let mut sharing = KeySharing::default();
    for user in taking {
        let (name, file) = (user.name, user.file.to_path_buf());
        if !user.left_out.is_empty() {
            let (left_out, grace) = (output::clean(&user.left_out.join(", ")), rotation.grace);
            sharing.notes.push(format!(
                "saved cluster {name}: the rotation leaves out {left_out}; this console keeps their key for {grace} s"
            ));
        }
        if file != rotation.path && !sharing.files.contains(&file) {
            sharing.notes.push(format!("saved cluster {name}: {} gets the new key, too", file.display()));
            sharing.files.push(file);
        }
    }
    for user in apart {
        let (name, nodes) = (user.name, output::clean(&user.left_out.join(", ")));
        let mut changed = sharing.files.iter().map(PathBuf::as_path).chain([rotation.path]);
        if changed.any(|file| is_same_file(file, user.file)) {
            return Err(Failure::State {
                message: format!("saved cluster {name} uses the same key file, but {nodes} would not get the new key"),
                next: "name the nodes of both clusters with --nodes; or save that cluster with a copy of the key file: \
                       console cluster add NAME NODE.. --key-file COPY",
            });
        }
        sharing.notes.push(format!("saved cluster {name}: {nodes} and {} keep the previous key", user.file.display()));
    }
    Ok(sharing)
}

/// The saved clusters that have the previous key, or the new one of a rotation that has begun.
fn users<'a>(clusters: &'a Clusters, default: Option<&'a Path>, rotation: RotationScope<'_>) -> Vec<KeyUser<'a>> {
    let mut users = Vec::new();
    for (name, kept) in &clusters.all {
        let Some(file) = kept.key.as_deref().or(default) else { continue };
        // A file that cannot be read is of no use to any command.
        let held = keyring::read_if_there(file).unwrap_or_default();
        let Some(current) = held.first().map(|held| &held.key) else { continue };
        if current != rotation.old && Some(current) != rotation.begun {
            continue;
        }
        let left_out = kept.nodes.iter().filter(|node| !rotation.nodes.contains(&with_port(node)));
        let left_out: Vec<&str> = left_out.map(String::as_str).collect();
        let is_apart = left_out.len() == kept.nodes.len();
        users.push(KeyUser { name, file, left_out, is_apart });
    }
    users
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    real(one) == real(other)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use protocol::noise::keyring::Held;
    use tempfile::TempDir;

    use super::*;
    use crate::client::clusters::Kept;

    /// Key files, and the saved clusters that use them.
    struct SavedFixture {
        folder: TempDir,
        clusters: Clusters,
    }

    impl SavedFixture {
        /// A folder with the file `cluster.key`, which is the default one.
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("create a temporary folder");
            let fixture = Self { folder, clusters: Clusters::default() };
            fixture.write("cluster.key", 1);
            fixture
        }

        fn path(&self, file: &str) -> PathBuf {
            self.folder.path().join(file)
        }

        fn write(&self, file: &str, byte: u8) {
            let held = [Held { key: Key::Secret([byte; 32]), until: None }];
            keyring::write(&self.path(file), &held).expect("the folder can be written");
        }

        fn save(&mut self, name: &str, nodes: &[&str], file: Option<&str>) {
            let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
            let key = file.map(|file| self.path(file));
            self.clusters.all.insert(name.to_owned(), Kept { nodes, key });
        }

        /// Rotates the default file on pi1 and pi2 from key 1 to key 2.
        fn rotate(&self) -> Result<KeySharing, Failure> {
            let path = self.path("cluster.key");
            let nodes = ["pi1:9999", "pi2:9999"].map(str::to_owned);
            let [old, new] = [1, 2].map(|byte| Key::Secret([byte; 32]));
            let rotation = RotationScope { path: &path, nodes: &nodes, old: &old, begun: Some(&new), grace: 60 };
            sharing(&self.clusters, Some(&path), rotation)
        }
    }

    #[test]
    fn clusters_of_the_same_nodes_get_the_new_key_and_others_keep_theirs() {
        let mut saved = SavedFixture::new();
        for (file, byte) in [("same.key", 1), ("begun.key", 2), ("apart.key", 1), ("other.key", 3)] {
            saved.write(file, byte);
        }
        saved.save("home", &["pi1", "pi2:9999"], None);
        assert_eq!(saved.rotate().expect("it is the only cluster"), KeySharing::default());
        saved.save("same", &["pi2", "pi1"], Some("same.key"));
        saved.save("begun", &["pi1"], Some("begun.key"));
        saved.save("again", &["pi1"], Some("same.key"));
        saved.save("apart", &["pi5"], Some("apart.key"));
        saved.save("other", &["pi1"], Some("other.key"));
        saved.save("missing", &["pi1"], Some("missing.key"));
        let KeySharing { files, notes } = saved.rotate().expect("each file has one set of nodes");
        assert_eq!(files, [saved.path("same.key"), saved.path("begun.key")]);
        let apart = format!("saved cluster apart: pi5 and {} keep the previous key", saved.path("apart.key").display());
        assert!(notes.len() == 3 && notes.contains(&apart), "{notes:?}");
    }

    #[test]
    fn key_file_of_a_cluster_with_other_nodes_is_not_changed() {
        let mut saved = SavedFixture::new();
        saved.write("shared.key", 1);
        symlink(saved.path("cluster.key"), saved.path("link.key")).expect("the folder can be written");
        saved.save("home", &["pi1", "pi2"], None);
        saved.save("copy", &["pi1", "pi2"], Some("shared.key"));
        for file in [None, Some("link.key"), Some("shared.key")] {
            saved.save("lab", &["pi5", "pi6"], file);
            let refused = saved.rotate().expect_err("its nodes would not get the new key");
            assert_eq!(refused.code(), 8);
            let message = refused.to_string();
            assert!(message.contains("lab") && message.contains("pi5, pi6"), "{file:?}: {message}");
        }
    }

    #[test]
    fn node_that_a_rotation_leaves_out_is_named() {
        let mut saved = SavedFixture::new();
        saved.save("home", &["pi1", "pi2", "pi3"], None);
        let KeySharing { files, notes } = saved.rotate().expect("the operator may leave out a node");
        let expected = "saved cluster home: the rotation leaves out pi3; this console keeps their key for 60 s";
        assert!(files.is_empty() && notes == [expected], "{notes:?}");
    }
}
