//! Problems between nodes that are individually healthy: different releases, different files under one model name,
//! different MTUs, clock skew. Pure.
use std::collections::BTreeMap;

use common::{
    digest::Sha256,
    ids::{ContentRoot, ModelIdentity},
    units::Bytes,
};

use super::finding::{Finding, Severity};

/// Largest clock skew, in milliseconds, that still lets logs be compared.
pub const SKEW_MAX_MS: i64 = 2000;

/// The properties of a node that are compared.
#[derive(Clone, Debug, Default)]
pub struct Examined {
    /// Its name.
    pub name: String,
    /// Its release.
    pub build: String,
    /// Numeric version of its kernels.
    pub numeric: u32,
    /// Its clock minus the console's clock, in milliseconds.
    pub skew_ms: i64,
    /// MTU of its link in bytes.
    pub mtu: Option<u32>,
    /// Its complete model files; `None` if not requested or not available.
    pub models: Option<Vec<ExaminedModel>>,
}

/// The properties of a model file that are compared between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExaminedModel {
    /// Its name.
    pub model: String,
    /// Identity of its header; `None` if it is not a usable model.
    pub identity: Option<ModelIdentity>,
    /// Its size.
    pub size: Bytes,
    /// SHA-256 of the whole file, if the node has computed it.
    pub sha256: Option<Sha256>,
    /// Content root, if the node has computed it.
    pub content: Option<ContentRoot>,
}

/// The problems between the nodes, the worst first.
pub fn compare(nodes: &[Examined]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let groups = |value: &dyn Fn(&Examined) -> Option<String>| {
        let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for node in nodes {
            if let Some(value) = value(node) {
                groups.entry(value).or_default().push(&node.name);
            }
        }
        groups
    };
    let numeric = groups(&|node| Some(node.numeric.to_string()));
    if numeric.len() > 1 {
        findings.push(Finding {
            code: "numeric_version_differs",
            severity: Severity::Error,
            meaning: format!("kernels of different numeric versions cannot share a stage: {}", told(&numeric)),
            fix: "install the same release on each and restart them as docs/upgrade.md describes (from 0.1: replica by replica)".into(),
        });
    }
    let builds = groups(&|node| Some(node.build.clone()));
    if builds.len() > 1 {
        findings.push(Finding {
            code: "build_differs",
            severity: Severity::Warning,
            meaning: format!("releases differ: {}", told(&builds)),
            fix: "install the same release on each and restart them as docs/upgrade.md describes (from 0.1: replica by replica)".into(),
        });
    }
    let mtus = groups(&|node| node.mtu.map(|mtu| mtu.to_string()));
    if mtus.len() > 1 {
        findings.push(Finding {
            code: "mtu_differs",
            severity: Severity::Warning,
            meaning: format!("MTUs differ, large packets may be lost between these nodes: {}", told(&mtus)),
            fix: "sudo ip link set dev eth0 mtu 1500 on each (and the same in its network settings)".into(),
        });
    }
    findings.extend(skew(nodes));
    findings.extend(models(nodes));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// `VALUE on A, B; VALUE on C`
fn told(groups: &BTreeMap<String, Vec<&str>>) -> String {
    groups.iter().map(|(value, nodes)| format!("{value} on {}", nodes.join(", "))).collect::<Vec<_>>().join("; ")
}

fn skew(nodes: &[Examined]) -> Option<Finding> {
    let first = nodes.iter().min_by_key(|node| node.skew_ms)?;
    let last = nodes.iter().max_by_key(|node| node.skew_ms)?;
    let apart = last.skew_ms.saturating_sub(first.skew_ms);
    (apart > SKEW_MAX_MS).then(|| Finding {
        code: "clocks_apart",
        severity: Severity::Warning,
        meaning: format!("the clock of {} is {:.1} s ahead of that of {}", last.name, apart as f64 / 1e3, first.name),
        fix: "sudo timedatectl set-ntp true on each".into(),
    })
}

/// Files of one name that differ, and files that only some nodes have.
fn models(nodes: &[Examined]) -> Vec<Finding> {
    let listed: Vec<&Examined> = nodes.iter().filter(|node| node.models.is_some()).collect();
    let mut files: BTreeMap<&str, Vec<(&ExaminedModel, &str)>> = BTreeMap::new();
    for node in &listed {
        for file in node.models.iter().flatten() {
            files.entry(&file.model).or_default().push((file, &node.name));
        }
    }
    let mut findings = Vec::new();
    for (model, holders) in &files {
        if let Some(told) = differences(holders) {
            findings.push(Finding {
                code: "model_differs",
                severity: Severity::Error,
                meaning: format!("files under the name {model} differ: {told}"),
                fix: format!("console model remove {model} --node WRONG --yes; console model pull {model} --from RIGHT --node WRONG"),
            });
            continue;
        }
        let without: Vec<&str> = listed
            .iter()
            .filter(|node| !holders.iter().any(|(_, name)| *name == node.name))
            .map(|node| node.name.as_str())
            .collect();
        if let (false, Some((_, from))) = (without.is_empty(), holders.first()) {
            findings.push(Finding {
                code: "model_missing",
                severity: Severity::Note,
                meaning: format!("{} without {model}: a topology with it needs the file", without.join(", ")),
                fix: format!("console model pull {model} --from {from}"),
            });
        }
    }
    findings
}

/// Groups the nodes by their file: by header and size, otherwise by content, otherwise by SHA-256. `None` if they
/// agree; a hash that a node has not computed is ignored.
fn differences(holders: &[(&ExaminedModel, &str)]) -> Option<String> {
    apart_by(holders, |file| {
        let identity = file.identity.map_or("no model".into(), |identity| identity.to_string());
        Some(format!("{identity} ({})", file.size))
    })
    .or_else(|| apart_by(holders, |file| file.content.map(|root| format!("content {root}"))))
    .or_else(|| apart_by(holders, |file| file.sha256.map(|hash| format!("SHA-256 {}", &hash.to_string()[..16]))))
}

/// Groups the nodes by the value that `name` returns for their file, if the values differ.
fn apart_by(holders: &[(&ExaminedModel, &str)], name: impl Fn(&ExaminedModel) -> Option<String>) -> Option<String> {
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (file, node) in holders {
        if let Some(name) = name(file) {
            groups.entry(name).or_default().push(node);
        }
    }
    (groups.len() > 1).then(|| told(&groups))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Examined {
        let (identity, content) = (Some(ModelIdentity([1; 32])), Some(ContentRoot([2; 32])));
        let models = vec![ExaminedModel { model: "a.gguf".into(), identity, size: Bytes(9), sha256: None, content }];
        let (build, mtu) = ("0.1.0".into(), Some(1500));
        Examined { name: name.into(), build, numeric: 3, skew_ms: 40, mtu, models: Some(models) }
    }

    #[track_caller]
    fn check(change: impl Fn(&mut Examined), code: &str, severity: Severity, parts: &[&str]) {
        let mut nodes = [node("pi1"), node("pi2"), node("pi3")];
        change(&mut nodes[1]);
        let findings = compare(&nodes);
        let [finding] = findings.as_slice() else { panic!("one finding: {findings:?}") };
        assert_eq!((finding.code, finding.severity), (code, severity));
        for part in parts {
            assert!(finding.meaning.contains(part), "{part}: {}", finding.meaning);
        }
        assert!(!finding.fix.is_empty());
    }

    #[test]
    fn equal_nodes_have_no_findings() {
        assert_eq!(compare(&[node("pi1"), node("pi2")]), []);
        assert_eq!(compare(&[node("pi1")]), []);
        assert_eq!(compare(&[]), []);
        let unknown = Examined { mtu: None, models: None, skew_ms: 1900, ..node("pi2") };
        assert_eq!(compare(&[node("pi1"), unknown]), []);
    }

    #[test]
    fn what_differs_is_named_with_who_has_what() {
        check(|node| node.numeric = 4, "numeric_version_differs", Severity::Error, &["3 on pi1, pi3", "4 on pi2"]);
        check(|node| node.build = "0.2.0".into(), "build_differs", Severity::Warning, &["0.2.0 on pi2"]);
        check(|node| node.mtu = Some(9000), "mtu_differs", Severity::Warning, &["1500 on pi1, pi3; 9000 on pi2"]);
        check(|node| node.skew_ms = 3040, "clocks_apart", Severity::Warning, &["pi2 is 3.0 s ahead"]);
        check(|node| node.skew_ms = i64::MIN, "clocks_apart", Severity::Warning, &["that of pi2"]);
        check(
            |node| node.models.iter_mut().flatten().for_each(|model| model.identity = None),
            "model_differs",
            Severity::Error,
            &["a.gguf", "no model (9 B) on pi2", "on pi1, pi3"],
        );
        check(
            |node| node.models.iter_mut().flatten().for_each(|model| model.size = Bytes(8)),
            "model_differs",
            Severity::Error,
            &["(8 B) on pi2"],
        );
        check(|node| node.models = Some(Vec::new()), "model_missing", Severity::Note, &["pi2 without a.gguf"]);
    }

    #[test]
    fn nodes_with_different_weights_under_one_header_are_named() {
        let set = |content: Option<u8>, sha256: Option<u8>| {
            move |node: &mut Examined| {
                for model in node.models.iter_mut().flatten() {
                    model.content = content.map(|byte| ContentRoot([byte; 32]));
                    model.sha256 = sha256.map(|byte| Sha256([byte; 32]));
                }
            }
        };
        let parts = ["content 0202020202020202 on pi1, pi3", "content 0303030303030303 on pi2"];
        check(set(Some(3), None), "model_differs", Severity::Error, &parts);
        // A hash that a node has not computed is not a difference.
        let mut nodes = [node("pi1"), node("pi2"), node("pi3")];
        set(None, Some(7))(&mut nodes[1]);
        assert_eq!(compare(&nodes), []);
        set(None, Some(8))(&mut nodes[2]);
        let findings = compare(&nodes);
        assert!(findings[0].meaning.contains("SHA-256 0808080808080808 on pi3"), "{findings:?}");
    }
}
