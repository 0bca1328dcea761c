//! `console key`: the file with the cluster's key, which this console dials with and gives to the nodes that it adopts.
use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use serde_json::json;
use shared::protocol::{
    noise::{
        key::{Key, Role, hexadecimal},
        keyring::{self, Held, Keyring},
    },
    pairing::GRACE_SECONDS_MAX,
};

use super::{
    Failure,
    confirm::{Consent, Rehearsal},
    options, output,
    reach::{Need, Reach},
    rotate,
};
use crate::{client::with_port, clusters::config_folder};

/// `console key`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Make a new key, in a file that only you can read
    New {
        /// Whether it is only tried.
        #[command(flatten)]
        rehearsal: Rehearsal,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
    /// Print the key, or one derived from it that allows less; to be kept in a file of mode 0600
    Show {
        /// viewer: reads and does nothing; operator: does all that a console does, but adopts no nodes
        #[arg(long, value_name = "ROLE")]
        role: Option<ShownRole>,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
    /// Give all nodes a new key; the one before counts for a while beside it. Run again, it goes on where it ended
    Rotate {
        #[command(flatten)]
        nodes: options::Nodes,
        /// How long the key before counts, in seconds: for nodes that are away now, and for other consoles
        #[arg(long, value_name = "SECONDS", default_value_t = 24 * 3600, value_parser = clap::value_parser!(u32).range(0..=i64::from(GRACE_SECONDS_MAX)))]
        grace: u32,
        /// Whether it may be done.
        #[command(flatten)]
        consent: Consent,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
    /// Print sixteen digits that tell keys apart and betray nothing
    Fingerprint {
        /// Print an object
        #[arg(long)]
        json: bool,
    },
}

/// A role that keys are made for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum ShownRole {
    /// Reads.
    Viewer,
    /// Operates.
    Operator,
}

impl Command {
    /// The nodes that it is about.
    pub(super) fn reach(&mut self) -> Reach<'_> {
        match self {
            Self::New { .. } | Self::Show { .. } | Self::Fingerprint { .. } => Reach::Otherwise("is about a file"),
            Self::Rotate { nodes, .. } => Reach::Nodes(&mut nodes.nodes, Need::Acts),
        }
    }

    /// Whether an object is wanted.
    pub(super) fn json(&self) -> bool {
        match self {
            Self::New { json, .. }
            | Self::Show { json, .. }
            | Self::Fingerprint { json }
            | Self::Rotate { json, .. } => *json,
        }
    }
}

/// Runs it.
pub(super) async fn run(command: Command, file: Option<PathBuf>) -> Result<u8, Failure> {
    let path = file.map_or_else(default_path, Ok)?;
    match command {
        Command::New { rehearsal, json } => new(&path, rehearsal, json)?,
        Command::Show { role, json } => show(&path, role, json)?,
        Command::Rotate { nodes, grace, consent, json } => {
            let nodes: Vec<String> = nodes.nodes.iter().map(|node| with_port(node)).collect();
            return rotate::run(&path, &nodes, (grace, consent, json)).await;
        }
        Command::Fingerprint { json } => {
            let fingerprint = current(&path)?.fingerprint();
            if json {
                output::line(&json!({"file": path, "fingerprint": fingerprint}).to_string());
            } else {
                output::line(&fingerprint);
            }
        }
    }
    Ok(0)
}

/// Reads the key that this process dials with: from the file that was named, or from the usual one if it is there.
pub(super) fn load(file: Option<&Path>, allows_plain: bool) -> Result<(), Failure> {
    let held = match file {
        Some(path) => keyring::read(path).map_err(anyhow::Error::from)?,
        // Without a home there is no usual place, and no key in it.
        None => default_path().map_or_else(
            |_| Ok(Vec::new()),
            |path| keyring::read_if_there(&path).map_err(|error| Failure::Other(error.into())),
        )?,
    };
    keyring::set_own(Keyring::with(Role::Owner, held).allowing_plain(allows_plain));
    Ok(())
}

/// Where the key is unless told otherwise.
pub(super) fn default_path() -> Result<PathBuf, Failure> {
    let folder = config_folder().ok_or_else(|| Failure::Usage {
        message: "there is no home folder for the key file".into(),
        next: "name the key file with --key FILE",
    })?;
    Ok(folder.join("cluster.key"))
}

/// The current key of a file.
pub(super) fn current(path: &Path) -> Result<Key, Failure> {
    let held = keyring::read(path).map_err(anyhow::Error::from)?;
    let first = held.into_iter().next().ok_or_else(|| anyhow!("{} holds no key", path.display()))?;
    Ok(first.key)
}

fn new(path: &Path, rehearsal: Rehearsal, json: bool) -> Result<(), Failure> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(Failure::State {
            message: format!("{} is there already", path.display()),
            next: "use it, name another with --key FILE, or give all nodes a new one with console key rotate",
        });
    }
    if !rehearsal.is_real(&format!("make a key in {}", path.display()), &json!({"file": path}), json) {
        return Ok(());
    }
    let key = Key::random().map_err(|error| anyhow!(error))?;
    let fingerprint = key.fingerprint();
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.with_context(|| format!("cannot make {}", folder.display()))?;
    }
    keyring::write(path, &[Held { key, until: None }]).with_context(|| format!("cannot write {}", path.display()))?;
    if json {
        output::line(&json!({"file": path, "fingerprint": fingerprint}).to_string());
    } else {
        output::line(&format!("{}: key {fingerprint}", path.display()));
        output::note("next: keep a copy apart, then console adopt NODE.. --code CODE (or --ssh)");
    }
    Ok(())
}

fn show(path: &Path, role: Option<ShownRole>, json: bool) -> Result<(), Failure> {
    let key = current(path)?;
    let wanted = role.map(|role| match role {
        ShownRole::Viewer => Role::Viewer,
        ShownRole::Operator => Role::Operator,
    });
    let shown = match wanted {
        None => key.clone(),
        Some(role) => key.for_role(role).ok_or_else(|| Failure::Usage {
            message: format!("{} holds a key of the role {}", path.display(), key.name()),
            next: "derive keys of roles where the cluster's secret is",
        })?,
    };
    if json {
        let shown =
            json!({"role": shown.name(), "key": hexadecimal(shown.bytes()), "fingerprint": shown.fingerprint()});
        output::line(&shown.to_string());
    } else {
        output::line(&format!("{} {}", shown.name(), hexadecimal(shown.bytes())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_never_written_over_one_that_is_there() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("deep/er/cluster.key");
        new(&path, Rehearsal::default(), true).expect("the folder can be written");
        let before = current(&path).expect("it is good");
        let refused = new(&path, Rehearsal::default(), true).expect_err("it is there");
        assert_eq!((refused.code(), current(&path).expect("it is good")), (8, before));
    }

    #[test]
    fn a_roles_key_gives_no_other_role() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("viewer.key");
        let key = Key::Secret([1; 32]).for_role(Role::Viewer).expect("a secret has all roles");
        keyring::write(&path, &[Held { key, until: None }]).expect("the folder can be written");
        assert!(show(&path, Some(ShownRole::Viewer), true).is_ok());
        assert_eq!(show(&path, Some(ShownRole::Operator), true).expect_err("it is a viewer's").code(), 2);
    }
}
