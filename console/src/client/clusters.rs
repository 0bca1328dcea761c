//! Named clusters, so that operators need not type addresses: `~/.config/bramble/clusters.toml`. The file is read and
//! validated as a whole and replaced atomically; only its owner can access it.
use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder},
    io::{self, Read, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::client::with_port;

/// Maximum size of the file in bytes.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// Maximum number of clusters.
const CLUSTERS_MAX: usize = 256;
/// Maximum number of nodes of a cluster.
const NODES_MAX: usize = 256;
/// Maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 64;

/// A cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// Its nodes as `ADDRESS[:PORT]`, in order of replica, stage and rank.
    pub nodes: Vec<String>,
    /// File with its cluster key, unless it is the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

/// All named clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clusters {
    /// The cluster used if none is named, chosen explicitly by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// Release 0.1 wrote this whenever a cluster was named. It was not an operator's choice, so it is ignored.
    #[serde(default, skip_serializing)]
    pub last: Option<String>,
    /// Clusters by name.
    #[serde(default, rename = "cluster")]
    pub all: BTreeMap<String, Kept>,
}

/// Why the cluster file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ClustersError {
    /// The file cannot be read or written.
    #[error("cannot access {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system error.
        error: io::Error,
    },
    /// The file has invalid content.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The problem, with its location.
        reason: String,
    },
    /// There is no cluster of that name.
    #[error("unknown cluster {name:?}; known: {}", if known.is_empty() { "none".into() } else { known.join(", ") })]
    Unknown {
        /// The requested name.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
}

/// The default path: below `XDG_CONFIG_HOME` or `~/.config`; `None` without a home folder.
pub fn default_path() -> Option<PathBuf> {
    Some(config_folder()?.join("clusters.toml"))
}

/// Folder of the console's settings: `XDG_CONFIG_HOME/bramble` or `~/.config/bramble`; `None` without a home folder.
pub fn config_folder() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")))?;
    Some(folder.join("bramble"))
}

/// Checks that a name is valid for a cluster.
///
/// # Errors
/// The name has invalid characters or an invalid length; the message describes a valid name.
pub fn check_name(name: &str) -> Result<(), String> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if fits { Ok(()) } else { Err(format!("a name must have 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.'")) }
}

impl Clusters {
    /// Reads the file; a missing file holds no clusters.
    ///
    /// # Errors
    /// The file cannot be read, or has invalid content; the message names line and key.
    pub fn read(path: &Path) -> Result<Self, ClustersError> {
        let refused = |reason: String| ClustersError::Refused { path: path.into(), reason };
        let file = match fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(ClustersError::Io { path: path.into(), error }),
        };
        let mut text = String::new();
        let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
        read.map_err(|error| ClustersError::Io { path: path.into(), error })?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(refused(format!("the file is longer than {FILE_BYTES_MAX} bytes")));
        }
        Self::parse(&text).map_err(refused)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let found: Self = toml::from_str(text).map_err(|error: toml::de::Error| error.to_string().trim().to_owned())?;
        if found.all.len() > CLUSTERS_MAX {
            return Err(format!("{} clusters, at most {CLUSTERS_MAX}", found.all.len()));
        }
        for (name, kept) in &found.all {
            let line = line_of(text, name);
            check_name(name).map_err(|reason| format!("line {line}, cluster {name:?}: {reason}"))?;
            check_nodes(&kept.nodes).map_err(|reason| format!("line {line}, cluster.{name}.nodes: {reason}"))?;
        }
        match &found.default {
            Some(default) if !found.all.contains_key(default) => {
                Err(format!("line {}, default: cluster {default:?} is not in this file", line_of(text, "default")))
            }
            _ => Ok(Self { last: None, ..found }),
        }
    }

    /// Writes the file atomically, with mode 0600: it is complete and synced to disk before it gets its name.
    ///
    /// # Errors
    /// The folder cannot be created, or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), ClustersError> {
        let text = toml::to_string(self).expect("names, strings and paths are valid TOML");
        write_atomically(path, &text).map_err(|error| ClustersError::Io { path: path.into(), error })
    }

    /// Updates the nodes of a cluster: appends `add` and removes `remove`, but keeps at least one node. Returns whether
    /// the list changed.
    ///
    /// # Errors
    /// There is no cluster of that name.
    pub fn follow(&mut self, name: &str, add: &[String], remove: &[String]) -> Result<bool, ClustersError> {
        let unknown = self.unknown(name);
        let kept = self.all.get_mut(name).ok_or(unknown)?;
        let before = kept.nodes.clone();
        let is_same = |one: &String, other: &String| with_port(one) == with_port(other);
        for node in add {
            if !kept.nodes.iter().any(|known| is_same(known, node)) && kept.nodes.len() < NODES_MAX {
                kept.nodes.push(node.clone());
            }
        }
        let stays = |node: &String| !remove.iter().any(|gone| is_same(gone, node));
        if kept.nodes.iter().any(stays) {
            kept.nodes.retain(stays);
        }
        Ok(kept.nodes != before)
    }

    /// Puts a node into the position of another one; if the cluster lacks that one, at the end. The new node is listed once.
    ///
    /// # Errors
    /// There is no cluster of that name.
    pub fn exchange(&mut self, name: &str, old: &str, new: &str) -> Result<(), ClustersError> {
        let unknown = self.unknown(name);
        let kept = self.all.get_mut(name).ok_or(unknown)?;
        kept.nodes.retain(|node| with_port(node) != with_port(new));
        match kept.nodes.iter().position(|node| with_port(node) == with_port(old)) {
            Some(place) => kept.nodes[place] = new.into(),
            None if kept.nodes.len() < NODES_MAX => kept.nodes.push(new.into()),
            None => {}
        }
        Ok(())
    }

    /// Looks up a cluster by name.
    ///
    /// # Errors
    /// There is no cluster of that name.
    pub fn named(&self, name: &str) -> Result<&Kept, ClustersError> {
        self.all.get(name).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> ClustersError {
        ClustersError::Unknown { name: name.into(), known: self.all.keys().cloned().collect() }
    }

    /// The cluster used if none is named: the chosen default, or the only one.
    pub fn default_cluster(&self) -> Option<(&str, &Kept)> {
        let name = self.default.as_ref().or_else(|| self.all.keys().next().filter(|_| self.all.len() == 1))?;
        self.all.get_key_value(name).map(|(name, kept)| (name.as_str(), kept))
    }
}

/// Writes a file that only its owner can read. It is complete and on the disk before it gets its name. A symbolic link to a
/// file stays one.
pub(crate) fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    let linked = fs::canonicalize(path);
    let path = linked.as_deref().unwrap_or(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // `NamedTempFile` creates files with mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    fs::File::open(folder)?.sync_all()
}

fn check_nodes(nodes: &[String]) -> Result<(), String> {
    if nodes.is_empty() || nodes.len() > NODES_MAX {
        return Err(format!("{} nodes, expected 1 to {NODES_MAX}", nodes.len()));
    }
    let bad = nodes
        .iter()
        .find(|node| node.is_empty() || node.chars().any(|c| c.is_whitespace() || c.is_control() || c == ','));
    bad.map_or(Ok(()), |bad| Err(format!("{bad:?} is not ADDRESS[:PORT]")))
}

/// Line number, starting at 1, of a cluster or key.
fn line_of(text: &str, name: &str) -> usize {
    text.lines().position(|line| line.contains(name)).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn home() -> Clusters {
        let kept = |node: &str| Kept { nodes: vec![node.into(), "pi2:1".into()], key: None };
        let all =
            [("home".to_owned(), kept("pi1")), ("lab".to_owned(), Kept { key: Some("/k".into()), ..kept("[::1]:9") })];
        Clusters { default: Some("lab".into()), last: None, all: all.into() }
    }

    #[test]
    fn file_round_trips_and_only_its_owner_can_read_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/bramble/clusters.toml");
        assert_eq!(Clusters::read(&path).expect("a missing file is no error"), Clusters::default());
        home().write(&path).expect("file is written");
        assert_eq!(Clusters::read(&path).expect("valid file"), home());
        let mode = fs::metadata(&path).expect("file exists").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let beside = fs::read_dir(path.parent().expect("path has a folder")).expect("folder is listed").count();
        assert_eq!(beside, 1, "no temporary file remains");
    }

    #[test]
    fn default_is_the_chosen_or_the_only_cluster() {
        assert_eq!(home().default_cluster().map(|(name, _)| name), Some("lab"));
        let none = Clusters { default: None, ..home() };
        let of_0_1 = "last = \"lab\"\n[cluster.home]\nnodes = [\"a\"]\n[cluster.lab]\nnodes = [\"b\"]\n";
        assert_eq!(
            Clusters::parse(of_0_1).map(|read| read.default_cluster().is_none()),
            Ok(true),
            "the cluster used last is not a choice"
        );
        assert_eq!(none.default_cluster(), None, "two clusters have no default");
        let mut one = none.clone();
        one.all.remove("lab");
        assert_eq!(one.default_cluster().map(|(name, _)| name), Some("home"));
        let error = one.named("office").expect_err("unknown name").to_string();
        assert!(error.contains("office") && error.contains("home"), "{error}");
    }

    #[test]
    fn cluster_nodes_follow_joins_and_leaves() {
        let mut kept = home();
        let (new, gone) = (["pi3".to_owned()], ["pi1:9999".to_owned()]);
        assert!(kept.follow("home", &new, &[]).expect("known cluster"));
        assert!(!kept.follow("home", &["pi3:9999".to_owned()], &[]).expect("known cluster"), "listed already");
        assert!(kept.follow("home", &[], &gone).expect("known cluster"));
        assert_eq!(kept.all["home"].nodes, ["pi2:1", "pi3"]);
        assert!(kept.follow("office", &new, &[]).is_err());
    }

    #[test]
    fn replaced_node_keeps_its_position() {
        let mut kept = home();
        kept.exchange("home", "pi1:9999", "pi3").expect("known cluster");
        assert_eq!(kept.all["home"].nodes, ["pi3", "pi2:1"]);
        kept.exchange("home", "pi2:1", "pi3").expect("known cluster");
        assert_eq!(kept.all["home"].nodes, ["pi3"], "listed once");
        kept.exchange("home", "pi9", "pi4").expect("known cluster");
        assert_eq!(kept.all["home"].nodes, ["pi3", "pi4"]);
        assert!(kept.exchange("office", "pi1", "pi3").is_err());
    }

    #[test]
    fn invalid_file_is_rejected_with_line_and_key() {
        for (text, parts) in [
            ("[cluster.a]\nnodes = [\"x\"]\nnode = 1\n", ["line 3", "node"]),
            ("[cluster.a]\nnodes = 1\n", ["line 2", "nodes"]),
            ("\n[cluster.a]\nnodes = []\n", ["line 2", "cluster.a.nodes"]),
            ("[cluster.a]\nnodes = [\"a b\"]\n", ["line 1", "a b"]),
            ("default = \"b\"\n[cluster.a]\nnodes = [\"x\"]\n", ["line 1", "default"]),
            ("[cluster.\"a b\"]\nnodes = [\"x\"]\n", ["line 1", "letters"]),
            ("[cluster", ["line 1", "cluster"]),
        ] {
            let error = Clusters::parse(text).expect_err(text);
            assert!(parts.iter().all(|part| error.contains(part)), "{text:?}: {error}");
        }
    }
}
