//! `console key`: the file with the cluster key, which the console uses to connect and gives to adopted nodes.
pub(crate) mod adopt;
mod file;
mod rotate;
mod saved;

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use protocol::noise::{
    key::{Key, Role, hexadecimal},
    keyring::{self, GRACE_SECONDS_MAX, Held, Keyring},
};
use serde_json::json;

use crate::cli::{
    Failure,
    key::file::current,
    shared::{
        confirm::{Consent, Rehearsal},
        need::{Need, Reach},
        options, output,
    },
};
use crate::{client::clusters::config_folder, client::with_port};

/// Subcommands of `console key`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum KeyCommand {
    /// Give the cluster key to new nodes, using the pairing code that each one displays
    Adopt(adopt::Adopt),
    /// Create a new key in a file that only you can read
    New {
        /// Whether this is a dry run.
        #[command(flatten)]
        rehearsal: Rehearsal,
        #[arg(from_global)]
        json: bool,
    },
    /// Print the key, or a restricted key derived from it; store the output in a file of mode 0600
    Show {
        /// Role of the derived key. viewer: read only; operator: everything except adopting nodes
        #[arg(long, value_name = "ROLE")]
        role: Option<ShownRole>,
        /// Print only the fingerprint, which is safe to share
        #[arg(long)]
        fingerprint: bool,
        #[arg(from_global)]
        json: bool,
    },
    /// Rotate the cluster key; the old key stays valid for --grace. Safe to re-run after an interruption
    Rotate {
        #[command(flatten)]
        nodes: options::Nodes,
        /// Seconds for which the old key stays valid, for nodes that are unreachable now and for other consoles
        #[arg(long, value_name = "SECONDS", default_value_t = 24 * 3600, value_parser = clap::value_parser!(u32).range(0..=i64::from(GRACE_SECONDS_MAX)))]
        grace: u32,
        /// The operator's consent.
        #[command(flatten)]
        consent: Consent,
        #[arg(from_global)]
        json: bool,
    },
}

/// A role that keys can be derived for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ShownRole {
    /// Read only
    Viewer,
    /// Everything except adopting nodes
    Operator,
}

impl KeyCommand {
    /// The nodes that the command contacts.
    pub(crate) fn reach(&mut self) -> Reach<'_> {
        match self {
            Self::Adopt(_) => Reach::Cluster,
            Self::New { .. } | Self::Show { .. } => Reach::Otherwise("uses a local file"),
            Self::Rotate { nodes, .. } => Reach::Nodes(&mut nodes.nodes, Need::Acts),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(command: KeyCommand, file: Option<PathBuf>, cluster: Option<String>) -> Result<u8, Failure> {
    let path = file.map_or_else(default_path, Ok)?;
    match command {
        KeyCommand::Adopt(adopt) => return adopt::run(adopt, path, cluster).await,
        KeyCommand::New { rehearsal, json } => new(&path, rehearsal, json)?,
        KeyCommand::Show { role, fingerprint, json } => show(&path, role, KeyOutput { fingerprint, json })?,
        KeyCommand::Rotate { nodes, grace, consent, json } => {
            let nodes: Vec<String> = nodes.nodes.iter().map(|node| with_port(node)).collect();
            return rotate::run(&path, &nodes, rotate::Rotation { grace, consent, json }).await;
        }
    }
    Ok(0)
}

/// Reads the key that this process connects with: from the given file, or from the default file if it exists.
pub(crate) fn load(file: Option<&Path>, allows_plain: bool) -> Result<(), Failure> {
    let held = match file {
        Some(path) => keyring::read(path).map_err(anyhow::Error::from)?,
        // Without a home folder there is no default file.
        None => default_path().map_or_else(
            |_| Ok(Vec::new()),
            |path| keyring::read_if_there(&path).map_err(|error| Failure::Other(error.into())),
        )?,
    };
    keyring::set_own(Keyring::with(Role::Owner, held).allowing_plain(allows_plain));
    Ok(())
}

/// The default key file.
pub(crate) fn default_path() -> Result<PathBuf, Failure> {
    let folder = config_folder().ok_or_else(|| Failure::Usage {
        message: "there is no home folder for the key file".into(),
        next: "pass the key file with --key FILE",
    })?;
    Ok(folder.join("cluster.key"))
}

fn new(path: &Path, rehearsal: Rehearsal, json: bool) -> Result<(), Failure> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(Failure::State {
            message: format!("{} already exists", path.display()),
            next: "use it, pass another file with --key FILE, or rotate the key with console key rotate",
        });
    }
    if !rehearsal.is_real(&format!("create a key in {}", path.display()), &json!({"file": path}), json) {
        return Ok(());
    }
    let fingerprint = create(path)?;
    if json {
        output::line(&json!({"file": path, "fingerprint": fingerprint}).to_string());
    } else {
        output::line(&format!("{}: key {fingerprint}", path.display()));
        output::note("next: store a backup copy, then run console key adopt NODE.. --code CODE (or --ssh)");
    }
    Ok(())
}

/// Creates a key in a new file, and returns its fingerprint.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn create(path: &Path) -> Result<String, Failure> {
    let key = Key::random().map_err(|error| anyhow!(error))?;
    let fingerprint = key.fingerprint();
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.with_context(|| format!("cannot create {}", folder.display()))?;
    }
    keyring::write(path, &[Held { key, until: None }]).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(fingerprint)
}

/// The fingerprint of the current key of a file.
///
/// # Errors
/// The file cannot be read, or holds no key.
pub(crate) fn fingerprint(path: &Path) -> Result<String, Failure> {
    Ok(current(path)?.fingerprint())
}

/// What `console key show` prints.
#[derive(Clone, Copy, Debug, Default)]
struct KeyOutput {
    fingerprint: bool,
    json: bool,
}

fn show(path: &Path, role: Option<ShownRole>, what: KeyOutput) -> Result<(), Failure> {
    let key = current(path)?;
    let wanted = role.map(|role| match role {
        ShownRole::Viewer => Role::Viewer,
        ShownRole::Operator => Role::Operator,
    });
    let shown = match wanted {
        None => key.clone(),
        Some(role) => key.for_role(role).ok_or_else(|| Failure::State {
            message: format!("{} holds a key of role {}, not the cluster secret", path.display(), key.name()),
            next: "run this on the machine that holds the cluster secret",
        })?,
    };
    if what.fingerprint {
        let fingerprint = shown.fingerprint();
        output::line(&match what.json {
            true => json!({"file": path, "fingerprint": fingerprint}).to_string(),
            false => fingerprint,
        });
    } else if what.json {
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
    fn new_key_never_overwrites_a_file() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("deep/er/cluster.key");
        new(&path, Rehearsal::default(), true).expect("the folder can be written");
        let before = current(&path).expect("it is good");
        let refused = new(&path, Rehearsal::default(), true).expect_err("it is there");
        assert_eq!((refused.code(), current(&path).expect("it is good")), (8, before));
    }

    #[test]
    fn derived_key_cannot_derive_another_role() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("viewer.key");
        let key = Key::Secret([1; 32]).for_role(Role::Viewer).expect("a secret has all roles");
        keyring::write(&path, &[Held { key, until: None }]).expect("the folder can be written");
        assert!(show(&path, Some(ShownRole::Viewer), KeyOutput::default()).is_ok());
        let refused = show(&path, Some(ShownRole::Operator), KeyOutput::default()).expect_err("it is a viewer's");
        assert_eq!(refused.code(), 8, "the command line is right, the file holds another key");
    }
}
