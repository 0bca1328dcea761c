//! Topology files: which nodes hold which layers and shares of a model, as TOML that people write and `topology show` prints.
use serde::{Deserialize, Serialize};
use shared::{
    schedule::Choice,
    topology::{Exchange, Group, KvFormat, Layout, Role, Topology, spec::NODES_MAX},
};

use crate::{client::assign::SLOTS_DEFAULT, wanted::Wanted};

/// Longest file that is read.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// A topology file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologyFile {
    /// File name of the model below the nodes' model folders.
    pub model: String,
    /// Longest sequence in tokens; without it the model's, at most 4096.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_length: Option<u32>,
    /// Sequences at the same time.
    #[serde(default = "slots")]
    pub slots: u16,
    /// Format of the KV cache: f16, q8_0 or f32.
    #[serde(default = "kv")]
    pub kv: String,
    /// Format of the partial sums between nodes.
    #[serde(default)]
    pub exchange: Exchange,
    /// How partial sums are summed: auto, or the name of one algorithm.
    #[serde(default = "collective")]
    pub collective: String,
    /// The stages of all replicas.
    pub stage: Vec<Stage>,
}

/// A stage of a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Which replica, from 0.
    #[serde(default)]
    pub replica: u16,
    /// What its replica does: prefill or decode; without it on all stages every replica does both.
    #[serde(default, skip_serializing_if = "does_both")]
    pub role: Role,
    /// How many layers; without it on all stages they are balanced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
    /// `ADDRESS[:PORT]` of its ranks.
    pub nodes: Vec<String>,
    /// Relative shares of its ranks; without it equal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<u32>,
}

/// Why a file describes no topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// Not TOML, or not of this form.
    #[error("{0}")]
    Toml(String),
    /// No stage, or a stage without nodes.
    #[error("it has no [[stage]] with nodes; write one with nodes = [\"ADDRESS\", ..] for each stage")]
    Empty,
    /// Stages or replicas of different sizes.
    #[error("{what} has {found}, the first has {first}; give every {each} as many")]
    Uneven {
        /// Which one.
        what: String,
        /// What it has.
        found: String,
        /// What the first has.
        first: String,
        /// Of what every one must have as many.
        each: &'static str,
    },
    /// Replicas are not numbered from 0 without gaps.
    #[error("replica {0} has stages, but replica {1} has none; number replicas from 0")]
    Gap(u16, u16),
    /// Another number of weights than nodes.
    #[error("stage {stage} has {weights} weights for {nodes} nodes; give one for each, or none")]
    Weights {
        /// Number of the stage in the file, from 1.
        stage: usize,
        /// Its weights.
        weights: usize,
        /// Its nodes.
        nodes: usize,
    },
    /// Layers on some stages only, or replicas cut differently.
    #[error("{0}; give layers to every stage, the same in every replica, or to none")]
    Layers(String),
    /// Too many nodes.
    #[error("{0} nodes, at most {NODES_MAX} can be in a topology")]
    Nodes(usize),
    /// A value that cannot be.
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
    /// Reads a file's text.
    ///
    /// # Errors
    /// Not of the form; the message names line and column.
    pub fn parse(text: &str) -> Result<Self, FileError> {
        toml::from_str(text).map_err(|error| FileError::Toml(error.to_string().trim_end().to_owned()))
    }

    /// A running topology as a file that makes it again.
    pub fn of(topology: &Topology) -> Self {
        let layout = topology.layout;
        let replicas = (0..layout.replicas).flat_map(|replica| {
            let stages = topology.replica(replica).chunks(usize::from(layout.ranks_of(replica)));
            stages.map(move |members| (replica, members))
        });
        let stage = |(replica, members): (u16, &[shared::topology::Member])| Stage {
            replica,
            role: layout.role(replica),
            layers: Some(members[0].layers.end - members[0].layers.start),
            nodes: members.iter().map(|member| member.address.clone()).collect(),
            weights: members.iter().map(|member| member.weight).collect(),
        };
        Self {
            model: topology.model.clone(),
            context_length: Some(topology.context_length),
            slots: topology.slots,
            kv: topology.kv.to_string(),
            exchange: topology.exchange,
            collective: topology.collective.to_string(),
            stage: replicas.map(stage).collect(),
        }
    }

    /// The file's text.
    pub fn text(&self) -> String {
        toml::to_string(self).expect("a topology file holds only what TOML can say")
    }

    /// The nodes in the order replica, stage, rank, and what is wanted of them.
    ///
    /// # Errors
    /// The stages make no layout.
    pub fn wanted(&self) -> Result<(Vec<String>, Wanted), FileError> {
        let stages = self.ordered()?;
        let layout = layout(&stages)?;
        let nodes: Vec<String> = stages.iter().flat_map(|stage| stage.nodes.clone()).collect();
        let has_weights = stages.iter().any(|stage| !stage.weights.is_empty());
        let weights = |stage: &&Stage| match stage.weights.as_slice() {
            [] => vec![1; stage.nodes.len()],
            weights => weights.to_vec(),
        };
        let wanted = Wanted {
            layout,
            weights: if has_weights { stages.iter().flat_map(weights).collect() } else { Vec::new() },
            layers: layers(&stages, usize::from(layout.stages))?,
            model: self.model.clone(),
            kv: self.kv.parse().map_err(FileError::Value)?,
            exchange: self.exchange,
            collective: self.collective.parse().map_err(FileError::Value)?,
            context_length: self.context_length,
            slots: self.slots,
        };
        Ok((nodes, wanted))
    }

    /// The stages, those of a replica behind one another.
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
    // Replicas may have different numbers of ranks, the stages of one may not.
    let unlike = |stage: &&&Stage| {
        let first = stages.iter().find(|other| other.replica == stage.replica).unwrap_or(&stages[0]);
        stage.nodes.len() != first.nodes.len() || stage.role != first.role
    };
    if let Some(other) = stages.iter().find(unlike) {
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
    let group = |replica: &[&Stage]| Group { role: replica[0].role, ranks: replica[0].nodes.len() as u16 };
    let groups: Vec<Group> = replicas.map(group).collect();
    Layout::of_replicas(&groups, count as u16).map_err(|error| FileError::Value(error.to_string()))
}

/// The layers of each stage; none if they are to be balanced.
fn layers(stages: &[&Stage], count: usize) -> Result<Vec<u32>, FileError> {
    let given: Vec<u32> = stages.iter().filter_map(|stage| stage.layers).collect();
    match given.len() {
        0 => Ok(Vec::new()),
        some if some < stages.len() => Err(FileError::Layers(format!("only {some} of {} stages", stages.len()))),
        _ if given.chunks(count).any(|replica| replica != &given[..count]) => {
            Err(FileError::Layers("replicas have different layers".into()))
        }
        _ => Ok(given[..count].to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use shared::topology::Member;

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
        file.and_then(|file| file.wanted()).expect_err("it makes no topology")
    }

    #[test]
    fn a_file_says_nodes_layout_and_shares_and_a_running_topology_is_written_as_one_that_makes_it_again() {
        let (nodes, wanted) = TopologyFile::parse(FILE).and_then(|file| file.wanted()).expect("it is good");
        assert_eq!(nodes, ["pi1", "pi2:9998", "pi5", "pi6"]);
        assert_eq!((wanted.layout.to_string(), wanted.weights.as_slice()), ("dp2-tp2".into(), &[3, 1, 1, 1][..]));
        assert_eq!((wanted.kv, wanted.exchange, wanted.layers.len()), (KvFormat::Q8, Exchange::Q80, 0));
        let running = crate::fixtures::topology();
        let again = TopologyFile::parse(&TopologyFile::of(&running).text()).expect("what is printed can be read");
        let (nodes, wanted) = again.wanted().expect("what is printed makes a topology");
        let addresses: Vec<&String> = running.members.iter().map(|member| &member.address).collect();
        assert_eq!(nodes.iter().collect::<Vec<_>>(), addresses);
        assert_eq!(wanted, Wanted::again(&running, running.members.len()));
    }

    #[test]
    fn groups_with_roles_may_have_different_ranks_and_are_printed_with_their_roles() {
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
        let (nodes, wanted) = TopologyFile::parse(text).and_then(|file| file.wanted()).expect("it is good");
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
    fn what_makes_no_layout_is_refused_with_the_reason() {
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
