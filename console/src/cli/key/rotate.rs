//! `console key rotate`: a new key for all nodes. The new key is written to disk before any node receives it, and
//! replaces the previous key when all nodes have it. An interrupted rotation resumes with the same new key.
use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, anyhow};
use protocol::noise::{
    key::{Key, Role},
    keyring::{self, Held, Keyring},
};
use serde_json::json;

use crate::cli::{
    Failure,
    key::file::current,
    shared::{confirm::Consent, interrupts::Interrupts, output},
};
use crate::client::rotate::rekey;

/// How to rotate a key.
pub(super) struct Rotation {
    /// Seconds for which the old key stays valid.
    pub(super) grace: u32,
    pub(super) consent: Consent,
    pub(super) json: bool,
}

/// Gives all nodes the new key.
pub(super) async fn run(path: &Path, nodes: &[String], how: Rotation) -> Result<u8, Failure> {
    let Rotation { grace, consent, json } = how;
    consent.check()?;
    let old = current(path)?;
    if !matches!(old, Key::Secret(_)) {
        return Err(Failure::State {
            message: format!(
                "{} holds a key with the role {}, but rotation needs the cluster secret",
                path.display(),
                old.name()
            ),
            next: "run this on the machine that holds the cluster secret",
        });
    }
    let mut interrupts = Interrupts::listen()?;
    let question = format!("Give {} nodes a new key?", nodes.len());
    if !interrupts.end(consent.obtain(&question, &json!({"nodes": nodes, "grace_seconds": grace}), json)).await? {
        return Ok(0);
    }
    let next = next_path(path);
    let new = next_key(&next)?;
    let work = async {
        let (mut taken, mut failed) = (Vec::new(), None);
        for node in nodes {
            match rekey(node, &old, &new, grace).await {
                Ok(name) => {
                    if !json {
                        output::line(&format!("{} has key {}", output::clean(&name), new.fingerprint()));
                    }
                    taken.push(name);
                }
                Err(fault) => {
                    output::note(&output::clean(&fault.to_string()));
                    failed.get_or_insert(fault);
                }
            }
        }
        Ok::<_, Failure>((taken, failed))
    };
    let (taken, failed) = interrupts.end(work).await?;
    if let Some(fault) = failed {
        output::note(&format!(
            "{} of {} nodes have the new key, which is stored in {}; run the same command again",
            taken.len(),
            nodes.len(),
            next.display()
        ));
        return Err(fault.into());
    }
    let held = Keyring::with(Role::Owner, vec![Held { key: old, until: None }]);
    let until = seconds() + u64::from(grace);
    let fingerprint = new.fingerprint();
    keyring::write(path, &held.rotated(new, until)).with_context(|| format!("cannot write {}", path.display()))?;
    fs::remove_file(&next).with_context(|| format!("cannot remove {}", next.display()))?;
    if json {
        let object = json!({"file": path, "fingerprint": fingerprint, "nodes": taken, "grace_seconds": grace});
        output::line(&object.to_string());
    }
    Ok(0)
}

fn next_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".next");
    path.with_file_name(name)
}

/// The new key of an interrupted rotation, or a fresh one; written to disk.
fn next_key(next: &Path) -> Result<Key, Failure> {
    if let Some(held) = keyring::read_if_there(next).map_err(anyhow::Error::from)?.into_iter().next() {
        return Ok(held.key);
    }
    let key = Key::random().map_err(|error| anyhow!(error))?;
    let held = [Held { key: key.clone(), until: None }];
    keyring::write(next, &held).with_context(|| format!("cannot write {}", next.display()))?;
    Ok(key)
}

fn seconds() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs())
}
