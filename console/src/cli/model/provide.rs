//! Gets a model to the nodes that lack a file of it, for commands that use a model: with the operator's consent, one node
//! downloads it from the catalogue's source, and the others copy it.
use common::units::Bytes;
use protocol::models::{ModelFile, files_of};
use serde_json::{Value, json};

use super::{
    choice::{ModelFiles, pick},
    pull::{self, Pull},
    source,
};
use crate::{
    catalogue::{self, Resolved},
    cli::{
        Failure,
        shared::{confirm::Consent, output},
    },
    client::cluster::Cluster,
};

/// Where the nodes that lack a file get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The node with this address has it.
    Node { name: String, address: String },
    /// One of them downloads it from here; the size in bytes, if it is known.
    Source { source: String, bytes: Option<u64> },
    /// It is unknown.
    Unknown,
}

/// A model for a command, and the nodes that have its file or lack it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Supply {
    /// Name of the file, or as it was typed if the model is unknown.
    pub(crate) model: String,
    /// Names and addresses of the nodes that lack the file.
    pub(crate) lacking: Vec<(String, String)>,
    /// Where they get it.
    pub(crate) origin: Origin,
}

impl Supply {
    /// The model for `typed`: as [`pick`] chooses it among the files of the nodes, else of the catalogue or of a server.
    ///
    /// # Errors
    /// The name is ambiguous, or there is none and no model.
    pub(crate) fn of(typed: &str, running: Option<&str>, held: &ModelFiles) -> Result<Self, Failure> {
        if source::is_remote(typed) {
            let (_, name) = source::of_server(typed)?;
            // A split model has the name of its first file.
            let model = files_of(&name).into_iter().next().unwrap_or(name);
            return Ok(Self::new(model, held, Origin::Source { source: typed.into(), bytes: None }));
        }
        let models = held.models();
        let model = pick(typed, running, &models)?;
        if models.contains(&model.as_str()) || running == Some(&model) {
            return Ok(Self::new(model, held, Origin::Unknown));
        }
        match catalogue::resolve(typed) {
            Resolved::One(_, file) => {
                let origin = Origin::Source { source: file.source.into(), bytes: Some(file.bytes) };
                Ok(Self::new(file.file_name().into(), held, origin))
            }
            Resolved::Several(entries) => Err(source::several(typed, &entries)),
            Resolved::NoSuchFile(entry) => Err(source::no_such_file(typed, entry)),
            Resolved::Unknown(_) => Ok(Self::new(model, held, Origin::Unknown)),
        }
    }

    /// A model's file for one node, with the address `node`; other nodes of `held` may have it.
    pub(crate) fn for_node(model: &str, held: &ModelFiles, node: &str) -> Self {
        let mut supply = Self::new(model.into(), held, Origin::Unknown);
        supply.lacking.retain(|(_, address)| address == node);
        supply
    }

    /// `origin` is used only if no node has the file.
    fn new(model: String, held: &ModelFiles, origin: Origin) -> Self {
        let parts = files_of(&model);
        let has_all = |files: &[String]| parts.iter().all(|part| files.contains(part));
        let holder = held.nodes().iter().find(|node| has_all(&node.files));
        let lacking = held.nodes().iter().filter(|node| !node.is_out && !has_all(&node.files));
        let lacking = lacking.map(|node| (node.name.clone(), node.address.clone())).collect();
        let origin = match holder {
            Some(node) => Origin::Node { name: node.name.clone(), address: node.address.clone() },
            None => origin,
        };
        Self { model, lacking, origin }
    }

    /// Without the nodes that lack the file if the model serves already: they may serve another one.
    pub(crate) fn unless_served(mut self, cluster: &Cluster) -> Self {
        let mut topologies = cluster.topologies().into_iter().map(|(topology, _)| topology);
        if topologies.any(|topology| topology.model == self.model && cluster.has_serving(topology)) {
            self.lacking.clear();
        }
        self
    }

    /// Whether all nodes have the file, or it is unknown where to get it.
    pub(crate) fn is_settled(&self) -> bool {
        self.lacking.is_empty() || self.origin == Origin::Unknown
    }

    /// The names of the nodes that lack the file.
    fn names(&self) -> String {
        let names: Vec<&str> = self.lacking.iter().map(|(name, _)| name.as_str()).collect();
        output::clean(&names.join(", "))
    }

    /// The work to be done, as an imperative without a full stop.
    pub(crate) fn deed(&self) -> String {
        let (model, names) = (output::clean(&self.model), self.names());
        match &self.origin {
            Origin::Node { name, .. } => format!("copy {model} from {} to {names}", output::clean(name)),
            Origin::Source { bytes: Some(bytes), .. } => format!("download {model} ({}) to {names}", Bytes(*bytes)),
            Origin::Source { .. } | Origin::Unknown => format!("download {model} to {names}"),
        }
    }

    /// The command that does the same.
    pub(crate) fn command(&self) -> String {
        match &self.origin {
            Origin::Node { name, .. } => {
                let to = self.lacking.iter().map(|(name, _)| format!(" --node {name}"));
                format!("console model pull {} --from {name}{}", self.model, to.collect::<String>())
            }
            Origin::Source { source, .. } => format!("console model pull {source}"),
            Origin::Unknown => format!("console model pull {}", self.model),
        }
    }

    /// The plan of a dry run.
    pub(crate) fn object(&self) -> Value {
        let names: Vec<&str> = self.lacking.iter().map(|(name, _)| name.as_str()).collect();
        let (from, source, bytes) = match &self.origin {
            Origin::Node { name, .. } => (Some(name), None, None),
            Origin::Source { source, bytes } => (None, Some(source), *bytes),
            Origin::Unknown => (None, None, None),
        };
        json!({"model": self.model, "lacking": names, "from": from, "source": source, "bytes": bytes})
    }

    /// Downloads or copies the file, with progress.
    ///
    /// # Errors
    /// A node or the server fails.
    pub(crate) async fn bring(&self) -> Result<Vec<(String, ModelFile)>, Failure> {
        let mut nodes: Vec<String> = self.lacking.iter().map(|(_, address)| address.clone()).collect();
        let pull = match &self.origin {
            Origin::Node { address, .. } => {
                nodes.push(address.clone());
                Pull::to(&self.model, Some(address), &nodes)
            }
            Origin::Source { source, .. } => Pull::to(source, None, &nodes),
            Origin::Unknown => return Ok(Vec::new()),
        };
        Ok(pull::fetch(&pull).await?.unwrap_or_default().stored)
    }

    /// [`Self::bring`], after the operator's consent. `false` after a dry run, and if it was declined although a node has
    /// the file: the nodes that lack it may not be needed.
    ///
    /// # Errors
    /// Those of [`Self::bring`]; no node has the file and it was declined, or cannot be asked for.
    pub(crate) async fn bring_asked(&self, consent: Consent, json: bool) -> Result<bool, Failure> {
        let is_on_a_node = matches!(self.origin, Origin::Node { .. });
        if is_on_a_node && consent.check().is_err() {
            return Ok(false);
        }
        let deed = self.deed();
        let question = format!("{}{}?", deed[..1].to_uppercase(), &deed[1..]);
        match consent.obtain_late(&question, &self.object(), json).await {
            Ok(true) => self.bring().await.map(|_| true),
            Ok(false) => Ok(false),
            Err(Failure::Declined) if is_on_a_node => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARD: &str = "bard-q8_0.gguf";

    fn supply(typed: &str, nodes: &[(&str, &[&str])]) -> Supply {
        Supply::of(typed, None, &ModelFiles::of(nodes)).unwrap_or_else(|failure| panic!("{typed}: {failure}"))
    }

    #[test]
    fn file_on_a_node_is_copied_to_those_that_lack_it() {
        let all = supply("bard", &[("pi1", &[BARD]), ("pi2", &[BARD])]);
        assert!(all.is_settled() && all.model == BARD, "{all:?}");
        let some = supply("bard", &[("pi1", &[]), ("pi2", &[BARD]), ("pi3", &[])]);
        assert_eq!(some.deed(), "copy bard-q8_0.gguf from pi2 to pi1, pi3");
        assert_eq!(some.command(), "console model pull bard-q8_0.gguf --from pi2 --node pi1 --node pi3");
        assert!(!some.is_settled());
    }

    #[test]
    fn excluded_node_gives_its_file_and_gets_none() {
        let mut held = ModelFiles::of(&[("pi1", &[]), ("pi2", &[BARD]), ("pi3", &[])]);
        held.set_out("pi3");
        let some = Supply::of("bard", None, &held).expect("it is known");
        assert_eq!(some.deed(), "copy bard-q8_0.gguf from pi2 to pi1");
        held.set_out("pi2");
        assert_eq!(Supply::of("bard", None, &held).expect("it is known"), some);
    }

    #[test]
    fn short_name_of_the_catalogue_is_downloaded() {
        let found = supply("llama-3.2-1b", &[("pi1", &[BARD]), ("pi2", &[])]);
        assert!(found.model.ends_with(".gguf") && !found.is_settled(), "{found:?}");
        assert!(found.command().starts_with("console model pull hf:"), "{}", found.command());
        let had = supply("llama-3.2-1b", &[("pi1", &[&found.model]), ("pi2", &[])]);
        assert!(matches!(had.origin, Origin::Node { .. }), "a node has it already: {had:?}");
        assert!(Supply::of("llama", None, &ModelFiles::default()).is_err(), "several models match");
    }

    #[test]
    fn source_on_a_server_is_downloaded_unless_a_node_has_its_file() {
        let source = "hf:owner/repo:m.gguf";
        let found = supply(source, &[("pi1", &[])]);
        assert_eq!((found.model.as_str(), found.deed().as_str()), ("m.gguf", "download m.gguf to pi1"));
        assert!(supply(source, &[("pi1", &["m.gguf"])]).is_settled());
        let split = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        let found = supply(&format!("hf:owner/repo:{}", split[1]), &[("pi1", &split[1..]), ("pi2", &split)]);
        assert_eq!((found.model.as_str(), found.lacking.len()), (split[0], 1), "pi1 has one of two files");
    }

    #[test]
    fn unknown_model_is_left_to_the_nodes() {
        let unknown = supply("nosuchmodel", &[("pi1", &[BARD])]);
        assert!(unknown.is_settled() && unknown.model == "nosuchmodel", "{unknown:?}");
    }
}
