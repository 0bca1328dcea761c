//! `console key rotate`: a new key for all nodes. The new key is written to disk before any node receives it. It
//! becomes this console's current key as soon as one node has it, and the previous one stays in the key file for nodes
//! that missed the rotation. A rotation that is interrupted or misses nodes resumes with the same new key.
use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, anyhow};
use common::fault::Fault;
use protocol::noise::{
    key::{Key, Role},
    keyring::{self, Held, Keyring},
};
use serde_json::json;

use super::saved::same_key;
use crate::cli::{
    Failure, key,
    shared::{confirm::Consent, interrupts::Interrupts, output},
};
use crate::client::{
    clusters::{self, Clusters},
    rotate::rekey,
};

/// How to rotate a key.
pub(super) struct Rotation {
    /// Seconds for which the old key stays valid.
    pub(super) grace: u32,
    pub(super) consent: Consent,
    pub(super) json: bool,
}

/// The keys of a rotation, and the file with this console's keys.
struct RotatedKeys<'a> {
    path: &'a Path,
    old: &'a Key,
    new: &'a Key,
    /// Seconds for which the old key stays valid.
    grace: u32,
}

/// Which nodes have received the new key.
#[derive(Debug, Default)]
struct KeySpread {
    /// Names of those that have it.
    taken: Vec<String>,
    /// Addresses of those that do not, and why.
    missing: Vec<(String, Fault)>,
}

/// Gives all nodes the new key.
pub(super) async fn run(path: &Path, nodes: &[String], how: Rotation) -> Result<u8, Failure> {
    let Rotation { grace, consent, json } = how;
    consent.check()?;
    let held = keyring::read(path).map_err(anyhow::Error::from)?;
    if let Some(other) = held.first().map(|held| &held.key).filter(|key| !matches!(key, Key::Secret(_))) {
        return Err(Failure::State {
            message: format!(
                "{} holds a key with the role {}, but rotation needs the cluster secret",
                path.display(),
                other.name()
            ),
            next: "run this on the machine that holds the cluster secret",
        });
    }
    let next = next_path(path);
    let begun = keyring::read_if_there(&next).map_err(anyhow::Error::from)?.into_iter().next().map(|held| held.key);
    // A damaged list of clusters must not keep an operator from replacing a stolen key.
    let clusters = clusters::default_path().and_then(|path| Clusters::read(&path).ok()).unwrap_or_default();
    let notes = same_key(&clusters, key::default_path().ok().as_deref(), path, nodes);
    notes.iter().for_each(|line| output::note(line));
    let question = match &begun {
        Some(new) => format!("Continue the rotation to key {} on {} nodes?", new.fingerprint(), nodes.len()),
        None => format!("Give {} nodes a new key?", nodes.len()),
    };
    let mut interrupts = Interrupts::listen()?;
    if !interrupts.end(consent.obtain(&question, &json!({"nodes": nodes, "grace_seconds": grace}), json)).await? {
        return Ok(0);
    }
    let is_continued = begun.is_some();
    let new = begun.map_or_else(|| fresh_key(&next), Ok)?;
    let Some(old) = previous(&held, &new) else {
        return Err(Failure::State {
            message: format!("{} does not hold the key that {} replaces", path.display(), next.display()),
            next: "remove the file that ends in .next, and run the command again to rotate to another key",
        });
    };
    let keys = RotatedKeys { path, old, new: &new, grace };
    let KeySpread { taken, missing } = interrupts.end(keys.spread(nodes, json)).await?;
    if let Some(failure) = unfinished(missing, nodes, &taken, &next) {
        return Err(failure);
    }
    fs::remove_file(&next).with_context(|| format!("cannot remove {}", next.display()))?;
    if is_continued {
        output::note("this completed an earlier rotation; run the command again to replace that key as well");
    }
    if json {
        let fingerprint = new.fingerprint();
        let object = json!({"file": path, "fingerprint": fingerprint, "nodes": taken, "grace_seconds": grace,
            "continued": is_continued});
        output::line(&object.to_string());
    }
    Ok(0)
}

impl RotatedKeys<'_> {
    /// Gives the nodes the new key, one after another.
    async fn spread(&self, nodes: &[String], json: bool) -> Result<KeySpread, Failure> {
        let mut spread = KeySpread::default();
        for node in nodes {
            match rekey(node, self.old, self.new, self.grace).await {
                Ok(name) => {
                    // At once: after the grace period this node accepts no other key, even if the others fail.
                    self.keep()?;
                    if !json {
                        output::line(&format!("{} has key {}", output::clean(&name), self.new.fingerprint()));
                    }
                    spread.taken.push(name);
                }
                Err(fault) => {
                    output::note(&output::clean(&fault.to_string()));
                    spread.missing.push((node.clone(), fault));
                }
            }
        }
        Ok(spread)
    }

    /// Makes the new key the current one of this console. It tries the old one as well until the grace period is over.
    fn keep(&self) -> Result<(), Failure> {
        let held = Keyring::with(Role::Owner, vec![Held { key: self.old.clone(), until: None }]);
        let rotated = held.rotated(self.new.clone(), seconds() + u64::from(self.grace));
        let kept = keyring::write(self.path, &rotated);
        Ok(kept.with_context(|| format!("cannot write {}", self.path.display()))?)
    }
}

/// The key that a rotation replaces: the current one of the file, or the previous one if a node already has the new
/// key.
fn previous<'a>(held: &'a [Held], new: &Key) -> Option<&'a Key> {
    held.iter().map(|held| &held.key).find(|key| *key != new)
}

/// The failure of a rotation that nodes missed, with the ways to complete it; `None` if all nodes have the key.
/// `taken`: names of those that have it.
fn unfinished(missing: Vec<(String, Fault)>, nodes: &[String], taken: &[String], next: &Path) -> Option<Failure> {
    let (missing, faults): (Vec<String>, Vec<Fault>) = missing.into_iter().unzip();
    let mut faults = faults.into_iter();
    let fault = faults.next()?;
    let have: Vec<&str> = nodes.iter().filter(|node| !missing.contains(node)).map(String::as_str).collect();
    let missed = missing.join(", ");
    output::note(&output::clean(&format!(
        "{} of {} nodes have the new key, which is stored in {}; missing: {missed}",
        have.len(),
        nodes.len(),
        next.display()
    )));
    let next = match have.as_slice() {
        [] => format!("{}; then run the same command again", fault.next()),
        _ => format!(
            "run the same command again when {missed} can take the key, or complete the rotation without: console key \
             rotate --nodes {}; then pair and adopt {missed} again",
            have.join(",")
        ),
    };
    let done = taken.iter().map(|name| output::clean(name)).collect();
    Some(Failure::Partial { fault: Box::new(fault), others: faults.collect(), done, next })
}

fn next_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".next");
    path.with_file_name(name)
}

/// A fresh key, written to disk.
fn fresh_key(next: &Path) -> Result<Key, Failure> {
    let key = Key::random().map_err(|error| anyhow!(error))?;
    let held = [Held { key: key.clone(), until: None }];
    keyring::write(next, &held).with_context(|| format!("cannot write {}", next.display()))?;
    Ok(key)
}

fn seconds() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use common::fault::FaultKind;

    use super::*;

    #[test]
    fn key_file_keeps_both_keys_until_the_rotation_is_complete() {
        let folder = tempfile::tempdir().expect("create a temporary folder");
        let path = folder.path().join("cluster.key");
        let [old, new] = [1, 2].map(|byte| Key::Secret([byte; 32]));
        let before = [Held { key: old.clone(), until: None }];
        keyring::write(&path, &before).expect("the folder can be written");
        assert_eq!(previous(&before, &new), Some(&old));
        let begun = seconds();
        // The second time, the rotation continues with what the first one has written.
        for _ in 0..2 {
            let held = keyring::read(&path).expect("it is a key file");
            let old = previous(&held, &new).expect("it holds the previous key").clone();
            RotatedKeys { path: &path, old: &old, new: &new, grace: 60 }.keep().expect("the folder can be written");
            let held = keyring::read(&path).expect("it is a key file");
            let keys: Vec<&Key> = held.iter().map(|held| &held.key).collect();
            assert_eq!(keys, [&new, &before[0].key]);
            assert!(held[0].until.is_none() && held[1].until.is_some_and(|until| until >= begun + 60), "{held:?}");
        }
        assert_eq!(previous(&[Held { key: new.clone(), until: None }], &new), None);
    }

    #[test]
    fn unfinished_rotation_names_missing_nodes_and_the_way_out() {
        let nodes = ["pi1:9999", "pi2:9999", "pi3:9999"].map(str::to_owned);
        let error = |missing: &[String], taken: &[&str]| {
            let missing = missing.iter().map(|node| (node.clone(), Fault::new(node, FaultKind::Draining))).collect();
            let taken: Vec<String> = taken.iter().map(|name| (*name).to_owned()).collect();
            let failure = unfinished(missing, &nodes, &taken, Path::new("cluster.key.next"));
            failure.map(|failure| failure.json()["error"].take())
        };
        assert_eq!(error(&[], &["pi1", "pi2", "pi3"]), None);
        let some = error(&nodes[2..], &["pi1", "pi2"]).expect("pi3 lacks the key");
        let next = some["next"].as_str().unwrap_or_default();
        assert!(next.contains("when pi3:9999 can") && next.contains("--nodes pi1:9999,pi2:9999;"), "{next}");
        assert_eq!((&some["done"], &some["others"]), (&json!(["pi1", "pi2"]), &json!([])));
        let all = error(&nodes, &[]).expect("no node has the key");
        let next = all["next"].as_str().unwrap_or_default();
        assert!(next.contains("same command again") && !next.contains("--nodes"), "{next}");
        assert_eq!(all["others"].as_array().map(Vec::len), Some(2), "{all}");
    }
}
