//! Which model file a command uses: the name as typed, a part of one name, the model that runs, or the only one that
//! the nodes have.
use std::sync::Arc;

use common::fault::{Fault, FaultKind};
use protocol::models::{FileState, files_of};
use tokio::task::JoinSet;

use crate::cli::{Failure, shared::output};
use crate::client::{cluster::Cluster, models, session::Session};
use crate::suggest::{did_you_mean, folded};

/// The model files of some nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelFiles {
    /// The nodes that answered.
    nodes: Vec<NodeFiles>,
    /// Why other nodes cannot list their files.
    unlisted: Vec<Fault>,
}

/// The complete model files of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeFiles {
    /// Name of the node.
    pub(crate) name: String,
    /// Its `ADDRESS:PORT`.
    pub(crate) address: String,
    /// Names of the files.
    pub(crate) files: Vec<String>,
    /// Whether it is excluded: it may give its files to others, but needs none.
    pub(crate) is_out: bool,
}

impl ModelFiles {
    /// Nodes with these files.
    #[cfg(test)]
    pub(crate) fn of(nodes: &[(&str, &[&str])]) -> Self {
        let nodes = nodes.iter().map(|node: &(&str, &[&str])| NodeFiles {
            name: node.0.into(),
            address: format!("{}:9999", node.0),
            files: node.1.iter().map(|file| (*file).into()).collect(),
            is_out: false,
        });
        Self { nodes: nodes.collect(), unlisted: Vec::new() }
    }

    /// Asks all nodes at once. Nodes that cannot list their files have none here, see [`Self::ensure_listed`].
    pub(crate) async fn ask(sessions: &[Arc<Session>]) -> Self {
        let mut asked = JoinSet::new();
        for (index, session) in sessions.iter().enumerate() {
            let session = Arc::clone(session);
            asked.spawn(async move { (index, models::list(&session).await) });
        }
        let mut answers = asked.join_all().await;
        answers.sort_by_key(|(index, ..)| *index);
        let (mut nodes, mut unlisted) = (Vec::with_capacity(answers.len()), Vec::new());
        for (index, files) in answers {
            let files = match files {
                Ok(files) => files,
                Err(fault) => {
                    unlisted.push(fault);
                    continue;
                }
            };
            let complete = files.into_iter().filter(|file| matches!(file.state, FileState::Complete));
            let (session, files) = (&sessions[index], complete.map(|file| file.model).collect());
            let (name, address) = (session.identity.name.clone(), session.address.clone());
            nodes.push(NodeFiles { name, address, files, is_out: false });
        }
        Self { nodes, unlisted }
    }

    /// Names the nodes that cannot list their files on standard error: they may have models.
    ///
    /// # Errors
    /// No node can list its files.
    pub(crate) fn ensure_listed(&self) -> Result<(), Fault> {
        if let Some(fault) = self.unlisted.first().filter(|_| self.nodes.is_empty()) {
            return Err(fault.clone());
        }
        let unlisted = self.unlisted.iter().map(|fault| format!("the model files of a node are unknown: {fault}"));
        unlisted.for_each(|line| output::note(&output::clean(&line)));
        Ok(())
    }

    /// Marks a node as excluded.
    #[cfg(test)]
    pub(crate) fn set_out(&mut self, name: &str) {
        self.nodes.iter_mut().filter(|node| node.name == name).for_each(|node| node.is_out = true);
    }

    /// Marks the excluded nodes.
    pub(crate) fn mark_excluded(&mut self, cluster: &Cluster) {
        for node in &mut self.nodes {
            node.is_out = cluster.exclusions.of(&node.name, &node.address).is_some_and(|entry| !entry.is_cordon);
        }
    }

    /// The nodes that answered.
    pub(crate) fn nodes(&self) -> &[NodeFiles] {
        &self.nodes
    }

    /// The names of the models on any node, sorted; of a model in several files, the name of the first.
    pub(crate) fn models(&self) -> Vec<&str> {
        let files = self.nodes.iter().flat_map(|node| node.files.iter().map(String::as_str));
        let mut names: Vec<&str> =
            files.filter(|file| files_of(file).first().is_some_and(|first| first == file)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// A node that has the file, other than `except`.
    fn holder(&self, model: &str, except: &str) -> Option<&str> {
        let holders = self.nodes.iter().filter(|node| node.files.iter().any(|file| file == model));
        holders.map(|node| node.name.as_str()).find(|name| *name != except)
    }

    /// A failure to find a model file, with the way to get the file as the next step. Other faults stay as they are.
    pub(crate) fn advise(&self, fault: Fault) -> Failure {
        let FaultKind::ModelMissing { model, .. } = &fault.kind else { return fault.into() };
        let next = match self.holder(model, &fault.node) {
            Some(from) => format!("copy it: console model pull {model} --from {from} --node {}", fault.node),
            None => {
                let meant = did_you_mean(model, self.models()).map_or_else(String::new, |text| format!("{text} "));
                format!("{meant}console model list shows the files; to get one: console model pull hf:OWNER/REPO:FILE")
            }
        };
        Failure::Advised { fault: Box::new(fault), next }
    }
}

/// Replaces the next step of a missing model file by one that names a node with the file.
pub(crate) async fn advised(failure: Failure, sessions: &[Arc<Session>]) -> Failure {
    match failure {
        Failure::Fault(fault) if matches!(fault.kind, FaultKind::ModelMissing { .. }) => {
            ModelFiles::ask(sessions).await.advise(fault)
        }
        other => other,
    }
}

/// The name of the model for `typed`: the running model if it matches, else the only file that matches. A name that
/// matches no file is returned as typed: the nodes then report that it is missing. An empty `typed` matches all.
///
/// # Errors
/// Several files match, or none exists and nothing was typed.
pub(crate) fn pick(typed: &str, running: Option<&str>, held: &[&str]) -> Result<String, Failure> {
    if typed.is_empty() {
        return match (running, held) {
            (Some(model), _) => Ok(model.into()),
            (None, [only]) => Ok((*only).into()),
            (None, []) => Err(Failure::State {
                message: "the nodes have no model file".into(),
                next: "download one with console model pull hf:OWNER/REPO:FILE, or send one with console model pull FILE",
            }),
            (None, several) => Err(Failure::Usage {
                message: format!("no model runs, and the nodes have several: {}", several.join(", ")),
                next: "name one of them, or a part of its name",
            }),
        };
    }
    let exact = held.iter().copied().chain(running).find(|name| *name == typed);
    if let Some(name) = exact {
        return Ok(name.into());
    }
    let part = folded(typed);
    let rules: [&dyn Fn(&str) -> bool; 3] =
        [&|name| name.strip_suffix(".gguf") == Some(typed), &|name| folded(name).starts_with(&part), &|name| {
            folded(name).contains(&part)
        }];
    for matches in rules.into_iter().filter(|_| !part.is_empty()) {
        if let Some(model) = running.filter(|model| matches(model)) {
            return Ok(model.into());
        }
        let found: Vec<&str> = held.iter().copied().filter(|name| matches(name)).collect();
        match found.as_slice() {
            [] => {}
            [only] => return Ok((*only).into()),
            several => {
                return Err(Failure::Usage {
                    message: format!("{typed} matches several models: {}", several.join(", ")),
                    next: "type more of the name",
                });
            }
        }
    }
    Ok(typed.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: [&str; 4] = ["bard-q8_0.gguf", "llama-3.2-1b-q4_k_m.gguf", "llama-3.2-3b-q4_k_m.gguf", "tall.gguf"];

    fn picked(typed: &str, running: Option<&str>, held: &[&str]) -> String {
        pick(typed, running, held).unwrap_or_else(|failure| format!("{}: {failure}", failure.code()))
    }

    #[test]
    fn unique_part_of_a_name_is_a_match() {
        for (typed, name) in [
            ("bard", HELD[0]),
            ("BARD-Q8", HELD[0]),
            ("llama3.2-1b", HELD[1]),
            ("3b-q4", HELD[2]),
            ("tall", HELD[3]),
            ("bard-q8_0.gguf", HELD[0]),
            ("absent.gguf", "absent.gguf"),
            ("..", ".."),
        ] {
            assert_eq!(picked(typed, None, &HELD), name, "{typed}");
        }
    }

    #[test]
    fn ambiguous_part_lists_the_matches_unless_one_runs() {
        let text = picked("llama", None, &HELD);
        assert!(text.starts_with("2: llama matches several models: ") && text.ends_with(HELD[2]), "{text}");
        assert_eq!(picked("llama", Some(HELD[2]), &HELD), HELD[2]);
        assert_eq!(picked(HELD[1], Some(HELD[2]), &HELD), HELD[1], "the full name wins over the running model");
    }

    #[test]
    fn without_a_name_the_running_or_only_model_is_used() {
        assert_eq!(picked("", Some("tall.gguf"), &HELD), "tall.gguf");
        assert_eq!(picked("", None, &HELD[..1]), HELD[0]);
        assert!(picked("", None, &HELD).starts_with("2: no model runs"));
        assert!(picked("", None, &[]).starts_with("8: the nodes have no model file"));
    }

    #[test]
    fn nodes_that_cannot_list_their_files_are_not_nodes_without_files() {
        let fault = Fault::new("pi2", FaultKind::Timeout { what: "a list of model files".into(), seconds: 20 });
        let mut held = ModelFiles { nodes: Vec::new(), unlisted: vec![fault.clone()] };
        assert_eq!(held.ensure_listed(), Err(fault));
        held.nodes.push(NodeFiles { name: "pi1".into(), ..NodeFiles::default() });
        assert_eq!((held.ensure_listed(), ModelFiles::default().ensure_listed()), (Ok(()), Ok(())));
    }

    #[test]
    fn missing_file_names_a_node_that_has_it_or_the_download() {
        let held = ModelFiles::of(&[("pi1", &HELD[..1]), ("pi2", &[])]);
        let missing = |model: &str| {
            let kind = FaultKind::ModelMissing { model: model.into(), folders: "/m".into() };
            let failure = held.advise(Fault::new("pi2", kind));
            assert_eq!(failure.code(), 4);
            failure.json()["error"]["next"].as_str().unwrap_or_default().to_owned()
        };
        assert_eq!(missing(HELD[0]), "copy it: console model pull bard-q8_0.gguf --from pi1 --node pi2");
        let next = missing("bart-q8_0.gguf");
        assert!(next.starts_with("did you mean bard-q8_0.gguf? ") && next.contains("console model pull"), "{next}");
    }
}
