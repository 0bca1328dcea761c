//! Topology files: which nodes hold which layers and shares of a model, as hand-written TOML and as printed by
//! `topology show`.
use assignment::draft::{draft_file, draft_name};
use collectives::Choice;
use common::{
    limits::NODES_MAX,
    precision::{Exchange, KvFormat},
};
use serde::{Deserialize, Serialize};
use topology::{Group, Layout, Role, Topology};

use super::desired::{DesiredTopology, SLOTS_DEFAULT};

/// Maximum size of a topology file in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// A topology file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyFile {
    /// File name of the model, relative to the nodes' model folders.
    pub model: String,
    /// Maximum sequence length in tokens; by default as many as fit into memory, at most the model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u32>,
    /// Maximum number of concurrent sequences.
    #[serde(default = "slots")]
    pub slots: u16,
    /// Format of the KV cache: f16, q8_0, q4_0 or f32.
    #[serde(default = "kv")]
    pub kv: String,
    /// Format of the partial sums between nodes.
    #[serde(default)]
    pub exchange: Exchange,
    /// All-reduce algorithm: auto, or the name of one algorithm.
    #[serde(default = "collective")]
    pub collective: String,
    /// Seconds without a request after which the topology is unloaded; if absent, it stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unload_after_s: Option<u32>,
    /// File name of the draft model, relative to the nodes' model folders, or "mtp"; if absent, there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<String>,
    /// The stages of all replicas.
    pub stage: Vec<Stage>,
}

/// A stage of a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Index of the replica, starting at 0.
    #[serde(default)]
    pub replica: u16,
    /// Role of the replica: prefill or decode; if no stage sets it, every replica does both.
    #[serde(default, skip_serializing_if = "does_both")]
    pub role: Role,
    /// Number of layers; if no stage sets it, layers are balanced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
    /// `ADDRESS[:PORT]` of each rank.
    pub nodes: Vec<String>,
    /// Relative shares of the ranks; equal if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<u32>,
}

/// Why a file does not describe a valid topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// Invalid TOML, or an unknown or mistyped field.
    #[error("{0}")]
    Toml(String),
    /// No stage, or a stage without nodes.
    #[error("no [[stage]] lists any nodes; add nodes = [\"ADDRESS\", ..] to each stage")]
    Empty,
    /// Stages or replicas of different sizes.
    #[error("{what} has {found}, the first has {first}; every {each} needs the same number")]
    Uneven {
        /// The stage or replica that differs.
        what: String,
        /// Its size, with the unit.
        found: String,
        /// The size of the first one.
        first: String,
        /// The kind of group that must match in size: `stage` or `replica`.
        each: &'static str,
    },
    /// Replicas are not numbered from 0 without gaps.
    #[error("replica {0} has stages, but replica {1} has none; number replicas from 0")]
    Gap(u16, u16),
    /// The number of weights differs from the number of nodes.
    #[error("stage {stage} has {weights} weights for {nodes} nodes; give one per node, or none")]
    Weights {
        /// Number of the stage in the file, starting at 1.
        stage: usize,
        /// Number of weights.
        weights: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// Only some stages set their layers, or replicas are split differently.
    #[error("{0}; set layers on every stage, the same in every replica, or on none")]
    Layers(String),
    /// More nodes than a topology can have.
    #[error("{0} nodes listed, a topology can have at most {NODES_MAX}")]
    Nodes(usize),
    /// An invalid value.
    #[error("{0}")]
    Value(String),
}

fn slots() -> u16 {
    SLOTS_DEFAULT
}

fn does_both(role: &Role) -> bool {
    *role == Role::Both
}

fn kv() -> String {
    KvFormat::default().to_string()
}

fn collective() -> String {
    Choice::default().to_string()
}

impl TopologyFile {
    /// Parses the text of a topology file.
    ///
    /// # Errors
    /// The text is not a valid topology file; the message names line and column.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        toml::from_str(text).map_err(|error| FileError::Toml(error.to_string().trim_end().to_owned()))
    }

    /// Describes a running topology; assigning the result recreates it.
    pub fn of(topology: &Topology) -> Self {
        let layout = topology.layout;
        let stages = (0..layout.replicas).flat_map(|replica| {
            let stages = topology.replica(replica).chunks(usize::from(layout.ranks_of(replica)));
            stages.map(move |members| Stage {
                replica,
                role: layout.role(replica),
                layers: Some(members[0].layers.end - members[0].layers.start),
                nodes: members.iter().map(|member| member.address.clone()).collect(),
                weights: members.iter().map(|member| member.weight).collect(),
            })
        });
        Self {
            model: topology.model.clone(),
            context_length: Some(topology.context_length),
            slots: topology.slots,
            kv: topology.kv.to_string(),
            exchange: topology.exchange,
            collective: topology.collective.to_string(),
            unload_after_s: topology.unload_after,
            draft: topology.draft.as_ref().map(|draft| draft_name(&draft.model, &topology.model).into()),
            stage: stages.collect(),
        }
    }

    /// The file as TOML.
    pub fn text(&self) -> String {
        toml::to_string(self).expect("a topology file holds only TOML values")
    }

    /// The nodes in order of replica, stage and rank, and the topology requested on them.
    ///
    /// # Errors
    /// The stages do not form a layout.
    pub fn wanted(&self) -> Result<(Vec<String>, DesiredTopology), FileError> {
        let stages = self.ordered()?;
        let layout = layout(&stages)?;
        let nodes: Vec<String> = stages.iter().flat_map(|stage| stage.nodes.clone()).collect();
        let has_weights = stages.iter().any(|stage| !stage.weights.is_empty());
        let wanted = DesiredTopology {
            layout,
            weights: if has_weights {
                stages
                    .iter()
                    .flat_map(|stage: &&Stage| match stage.weights.as_slice() {
                        [] => vec![1; stage.nodes.len()],
                        weights => weights.to_vec(),
                    })
                    .collect()
            } else {
                Vec::new()
            },
            layers: layers(&stages, usize::from(layout.stages))?,
            model: self.model.clone(),
            kv: self.kv.parse().map_err(FileError::Value)?,
            exchange: self.exchange,
            collective: self.collective.parse().map_err(FileError::Value)?,
            context_length: self.context_length,
            slots: self.slots,
            unload_after: self.unload_after_s,
            draft: self.draft.as_deref().map(|draft| draft_file(draft, &self.model)),
        };
        Ok((nodes, wanted))
    }

    /// The stages sorted by replica; the order within a replica is kept.
    fn ordered(&self) -> Result<Vec<&Stage>, FileError> {
        let nodes = self.stage.iter().map(|stage| stage.nodes.len()).sum::<usize>();
        if nodes == 0 || self.stage.iter().any(|stage| stage.nodes.is_empty()) {
            return Err(FileError::Empty);
        }
        if nodes > NODES_MAX {
            return Err(FileError::Nodes(nodes));
        }
        for (index, stage) in self.stage.iter().enumerate() {
            let (weights, nodes) = (stage.weights.len(), stage.nodes.len());
            if weights != 0 && weights != nodes {
                return Err(FileError::Weights { stage: index + 1, weights, nodes });
            }
        }
        let mut stages: Vec<&Stage> = self.stage.iter().collect();
        stages.sort_by_key(|stage| stage.replica);
        Ok(stages)
    }
}

fn layout(stages: &[&Stage]) -> Result<Layout, FileError> {
    let has_roles = stages.iter().any(|stage| stage.role != Role::Both);
    // Replicas may differ in their number of ranks; the stages of one replica may not.
    if let Some(other) = stages.iter().find(|stage: &&&Stage| {
        let first = stages.iter().find(|other| other.replica == stage.replica).unwrap_or(&stages[0]);
        stage.nodes.len() != first.nodes.len() || stage.role != first.role
    }) {
        if has_roles && stages.iter().any(|stage| stage.replica == other.replica && stage.role != other.role) {
            return Err(FileError::Value(format!("the stages of replica {} have different roles", other.replica)));
        }
        let what = format!("the stage of {}", other.nodes.join(", "));
        let first = stages.iter().find(|stage| stage.replica == other.replica).unwrap_or(&stages[0]).nodes.len();
        let (found, first) = (format!("{} nodes", other.nodes.len()), first.to_string());
        return Err(FileError::Uneven { what, found, first, each: "stage" });
    }
    let replicas = stages.chunk_by(|a, b| a.replica == b.replica);
    let count = replicas.clone().next().map_or(0, <[&Stage]>::len);
    for (expected, replica) in replicas.clone().enumerate() {
        let number = replica[0].replica;
        if usize::from(number) != expected {
            return Err(FileError::Gap(number, expected as u16));
        }
        if replica.len() != count {
            let (found, first) = (format!("{} stages", replica.len()), count.to_string());
            return Err(FileError::Uneven { what: format!("replica {number}"), found, first, each: "replica" });
        }
    }
    let groups: Vec<Group> = replicas
        .map(|replica: &[&Stage]| Group { role: replica[0].role, ranks: replica[0].nodes.len() as u16 })
        .collect();
    Layout::of_replicas(&groups, count as u16).map_err(|error| FileError::Value(error.to_string()))
}

/// The layers of each stage; empty = balance them.
fn layers(stages: &[&Stage], count: usize) -> Result<Vec<u32>, FileError> {
    let given: Vec<u32> = stages.iter().filter_map(|stage| stage.layers).collect();
    match given.len() {
        0 => Ok(Vec::new()),
        some if some < stages.len() => Err(FileError::Layers(format!("{some} of {} stages set layers", stages.len()))),
        _ if given.chunks(count).any(|replica| replica != &given[..count]) => {
            Err(FileError::Layers("replicas are split into different layers".into()))
        }
        _ => Ok(given[..count].to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use topology::Member;

    use super::*;

    const FILE: &str = r#"
        model = "m.gguf"
        kv = "q8_0"
        exchange = "q80"
        [[stage]]
        replica = 1
        nodes = ["pi5", "pi6"]
        [[stage]]
        nodes = ["pi1", "pi2:9998"]
        weights = [3, 1]
    "#;

    fn error(text: &str) -> FileError {
        let file = TopologyFile::parse(text);
        file.and_then(|file| file.wanted()).expect_err("file is rejected")
    }

    #[test]
    fn running_topology_round_trips_through_its_file() {
        let (nodes, wanted) = TopologyFile::parse(FILE).and_then(|file| file.wanted()).expect("valid file");
        assert_eq!(nodes, ["pi1", "pi2:9998", "pi5", "pi6"]);
        assert_eq!((wanted.layout.to_string(), wanted.weights.as_slice()), ("dp2-tp2".into(), &[3, 1, 1, 1][..]));
        assert_eq!((wanted.kv, wanted.exchange, wanted.layers.len()), (KvFormat::Q8, Exchange::Q80, 0));
        let running = crate::fixtures::topology();
        let again = TopologyFile::parse(&TopologyFile::of(&running).text()).expect("printed file parses");
        let (nodes, wanted) = again.wanted().expect("printed file forms a topology");
        let addresses: Vec<&String> = running.members.iter().map(|member| &member.address).collect();
        assert_eq!(nodes.iter().collect::<Vec<_>>(), addresses);
        assert_eq!(wanted, DesiredTopology::again(&running, running.members.len()));
    }

    #[test]
    fn groups_with_roles_may_differ_in_ranks_and_keep_their_roles() {
        let text = r#"
            model = "m.gguf"
            [[stage]]
            role = "prefill"
            nodes = ["a", "b"]
            [[stage]]
            replica = 1
            role = "decode"
            nodes = ["c"]
        "#;
        let (nodes, wanted) = TopologyFile::parse(text).and_then(|file| file.wanted()).expect("valid file");
        assert_eq!((nodes.len(), wanted.layout.to_string()), (3, "prefill:tp2+decode:tp1".into()));
        assert!(error(&text.replace("decode", "prefill")).to_string().contains("no group has the role decode"));
        assert!(error(&text.replace("role = \"decode\"", "")).to_string().contains("no role"));
        let two = text.replace("replica = 1", "").replace("\"c\"", "\"c\", \"d\"");
        assert!(error(&two).to_string().contains("different roles"));
        let layout = wanted.layout;
        let mut running = crate::fixtures::topology();
        let member = running.members[0].clone();
        running.layout = layout;
        running.members = (0..3).map(|n| Member { address: format!("pi{n}:1"), ..member.clone() }).collect();
        let again = TopologyFile::parse(&TopologyFile::of(&running).text()).and_then(|file| file.wanted());
        assert_eq!(again.map(|(_, wanted)| wanted.layout), Ok(layout));
    }

    #[test]
    fn invalid_layouts_are_rejected_with_a_reason() {
        let stage = |rest: &str| format!("[[stage]]\n{rest}\n");
        let model = "model = \"m\"\n";
        assert!(matches!(error("model = "), FileError::Toml(_)));
        assert!(
            matches!(error(&format!("{model}{}", stage("node = 1"))), FileError::Toml(text) if text.contains("node"))
        );
        assert_eq!(error(&format!("{model}{}", stage("nodes = []"))), FileError::Empty);
        let two = stage("nodes = [\"a\", \"b\"]");
        assert!(matches!(
            error(&format!("{model}{two}{}", stage("nodes = [\"c\"]"))),
            FileError::Uneven { each: "stage", .. }
        ));
        let other = stage("replica = 1\nnodes = [\"c\", \"d\"]");
        assert!(matches!(error(&format!("{model}{two}{two}{other}")), FileError::Uneven { each: "replica", .. }));
        assert_eq!(error(&format!("{model}{other}")), FileError::Gap(1, 0));
        let weights = stage("nodes = [\"a\", \"b\"]\nweights = [1]");
        assert_eq!(error(&format!("{model}{weights}")), FileError::Weights { stage: 1, weights: 1, nodes: 2 });
        let layered = stage("nodes = [\"c\", \"d\"]\nlayers = 3");
        assert!(matches!(error(&format!("{model}{two}{layered}")), FileError::Layers(_)));
        let kv = format!("{model}kv = \"f8\"\n{two}");
        assert!(matches!(error(&kv), FileError::Value(text) if text.contains("q8_0")));
    }
}
