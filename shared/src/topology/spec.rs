//! Layouts (`tp4`, `pp2-tp4`, `dp2-pp2-tp4`) and the topology that an assignment carries. Pure; nothing is loaded here.
use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::ids::{ModelIdentity, TopologyHash};

/// Most nodes in one topology.
pub const NODES_MAX: usize = 64;
/// Longest name of a node or a model file.
pub const NAME_LENGTH_MAX: usize = 255;
/// Most sequences that run at the same time in one replica.
pub const SLOTS_MAX: u16 = 16;
/// Positions in a KV block.
pub const KV_BLOCK_LENGTH: usize = 32;
/// Longest context that can be asked for.
pub const CONTEXT_LENGTH_MAX: u32 = 1 << 20;

/// Why a layout or topology cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Not of the grammar.
    #[error("`{0}` is no topology; write tpN, ppS-tpN or dpR-ppS-tpN, for example tp4")]
    Grammar(String),
    /// A part counts zero or too many.
    #[error("`{part}` in topology `{text}` must be from 1 to {NODES_MAX}; for example tp4")]
    Count {
        /// The whole layout as written.
        text: String,
        /// The offending part.
        part: String,
    },
    /// The layout needs another number of nodes.
    #[error("topology {layout} needs {needed} nodes, {given} were given; name {needed} nodes or ask for {suggestion}")]
    NodeCount {
        /// The layout.
        layout: Layout,
        /// Nodes that it needs.
        needed: usize,
        /// Nodes that were given.
        given: usize,
        /// A layout for the nodes given.
        suggestion: Layout,
    },
    /// A part of the grammar that this build cannot run.
    #[error("topology {layout} asks for {what}, which this version does not run yet; use {suggestion}")]
    NotBuilt {
        /// The layout.
        layout: Layout,
        /// What is missing.
        what: &'static str,
        /// The nearest layout that works.
        suggestion: Layout,
    },
    /// The same node twice.
    #[error("node {0} is named twice; each node holds one shard")]
    Twice(String),
    /// A name is empty or too long.
    #[error("a {0} is empty or longer than {NAME_LENGTH_MAX} bytes; give it a name")]
    Name(&'static str),
    /// A number outside its bounds.
    #[error("{what} is {value}, it must be from {least} to {most}")]
    Bound {
        /// What the number counts.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Least value allowed.
        least: u64,
        /// Greatest value allowed.
        most: u64,
    },
}

/// How many replicas, stages and ranks; written `dp2-pp2-tp4`, parts equal to 1 left out except `tp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// Independent copies of the model.
    pub replicas: u16,
    /// Groups of consecutive layers in a replica.
    pub stages: u16,
    /// Nodes that share every layer of a stage.
    pub ranks: u16,
}

impl Layout {
    /// `tpN`.
    pub fn tensor_parallel(ranks: u16) -> Self {
        Self { replicas: 1, stages: 1, ranks }
    }

    /// Nodes that the layout needs.
    pub fn node_count(self) -> usize {
        usize::from(self.replicas) * usize::from(self.stages) * usize::from(self.ranks)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        if self.replicas != 1 {
            text.push_str(&format!("dp{}-", self.replicas));
        }
        if self.stages != 1 {
            text.push_str(&format!("pp{}-", self.stages));
        }
        text.push_str(&format!("tp{}", self.ranks));
        f.pad(&text)
    }
}

impl FromStr for Layout {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let grammar = || SpecError::Grammar(text.chars().take(64).collect());
        let mut counts = [None::<u16>; 3];
        let mut latest = None;
        for part in text.split('-') {
            let place = ["dp", "pp", "tp"].iter().position(|kind| part.starts_with(kind)).ok_or_else(grammar)?;
            if latest.is_some_and(|before| before >= place) {
                return Err(grammar());
            }
            let digits = &part[2..];
            if digits.is_empty() || digits.len() > 6 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(grammar());
            }
            let count: usize = digits.parse().map_err(|_| grammar())?;
            let count = u16::try_from(count).ok().filter(|count| (1..=NODES_MAX as u16).contains(count));
            let count = count.ok_or_else(|| SpecError::Count { text: text.into(), part: part.into() })?;
            counts[place] = Some(count);
            latest = Some(place);
        }
        let layout =
            Self { replicas: counts[0].unwrap_or(1), stages: counts[1].unwrap_or(1), ranks: counts[2].unwrap_or(1) };
        if layout.node_count() > NODES_MAX {
            return Err(SpecError::Count { text: text.into(), part: text.into() });
        }
        Ok(layout)
    }
}

/// How the KV cache is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvFormat {
    /// 4 bytes a value: for comparing with references.
    F32,
    /// 2 bytes a value.
    #[default]
    F16,
    /// int8 with a half as the scale of each 32 values of a head.
    Q8,
}

impl KvFormat {
    /// Bytes of the keys or values of one position and head.
    pub fn head_bytes(self, head_length: usize) -> usize {
        match self {
            Self::F32 => 4 * head_length,
            Self::F16 => 2 * head_length,
            Self::Q8 => head_length + 2 * head_length.div_ceil(32),
        }
    }
}

impl FromStr for KvFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let formats = [Self::F32, Self::F16, Self::Q8];
        let found = formats.into_iter().find(|format| format.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is no format of the KV cache; take f16, q8_0 or f32"))
    }
}

impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8_0",
        })
    }
}

/// How partial sums travel in an all-reduce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exchange {
    /// 4 bytes a value, no rounding.
    #[default]
    F32,
    /// Blocks of 32 int8 with an f16 scale: 34 bytes for 32 values.
    Q80,
    /// 2 bytes a value.
    F16,
}

impl FromStr for Exchange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let formats = [Self::F32, Self::F16, Self::Q80];
        let found = formats.into_iter().find(|format| format.to_string() == text);
        found.ok_or_else(|| format!("{text:?} is no exchange format; take f32, f16 or q80"))
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q80 => "q80",
        })
    }
}

/// One node's place in a topology.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// The node's name.
    pub name: String,
    /// `ADDRESS:PORT` on which the other ranks reach it.
    pub address: String,
    /// Its share of each layer relative to the other ranks of its stage.
    pub weight: u32,
    /// Cores that the rank may pin its threads to; empty = it does not pin.
    pub cores: Vec<u16>,
    /// Compute threads.
    pub threads: u16,
    /// Whether waiting threads may spin (only if all ranks on its machine have a core for each thread).
    pub spin: bool,
}

/// What an assignment makes the nodes hold. Members in the order replica, stage, rank; the first of a replica is its head.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Topology {
    /// Replicas, stages, ranks.
    pub layout: Layout,
    /// One member a node.
    pub members: Vec<Member>,
    /// File name of the model below a node's model folders.
    pub model: String,
    /// Identity that every node's file must have.
    pub identity: ModelIdentity,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Format of the partial sums on the wire.
    pub exchange: Exchange,
    /// Longest sequence in tokens.
    pub context_length: u32,
    /// Sequences that can run at the same time.
    pub slots: u16,
}

impl Topology {
    /// The hash that every frame of an assignment carries: the first 8 bytes of SHA-256 over the encoded topology.
    pub fn hash(&self) -> TopologyHash {
        let encoded = postcard::to_stdvec(self).expect("a topology holds only types that postcard encodes");
        let digest = Sha256::digest(&encoded);
        TopologyHash(u64::from_le_bytes(digest[..8].try_into().expect("a SHA-256 has 32 bytes")))
    }

    /// Ranks in the tensor-parallel group.
    pub fn world(&self) -> usize {
        usize::from(self.layout.ranks)
    }

    /// KV blocks that every rank allocates: enough for one sequence of full length or several shorter ones.
    pub fn kv_block_count(&self) -> usize {
        (self.context_length as usize).div_ceil(KV_BLOCK_LENGTH) + usize::from(self.slots) - 1
    }

    /// Checks bounds, names and that this build runs the layout.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), SpecError> {
        let layout = self.layout;
        let given = self.members.len();
        if layout.node_count() != given {
            let suggestion = Layout::tensor_parallel(given.clamp(1, NODES_MAX) as u16);
            return Err(SpecError::NodeCount { layout, needed: layout.node_count(), given, suggestion });
        }
        check_built(layout)?;
        for (index, member) in self.members.iter().enumerate() {
            for (what, text) in [("node name", &member.name), ("node address", &member.address)] {
                if text.is_empty() || text.len() > NAME_LENGTH_MAX {
                    return Err(SpecError::Name(what));
                }
            }
            let twice = |other: &Member| other.name == member.name || other.address == member.address;
            if self.members[..index].iter().any(twice) {
                return Err(SpecError::Twice(member.name.clone()));
            }
            bound("the weight of a rank", u64::from(member.weight), 1, 1 << 20)?;
            bound("the number of threads", u64::from(member.threads), 1, 256)?;
            bound("the number of cores", member.cores.len() as u64, 0, 1024)?;
        }
        if self.model.is_empty() || self.model.len() > NAME_LENGTH_MAX {
            return Err(SpecError::Name("model name"));
        }
        bound("the context length", u64::from(self.context_length), 1, u64::from(CONTEXT_LENGTH_MAX))?;
        bound("the number of slots", u64::from(self.slots), 1, u64::from(SLOTS_MAX))
    }
}

/// Refuses, by name, the layouts of the grammar that this build cannot run yet.
///
/// # Errors
/// `NotBuilt` with the nearest layout that works.
pub fn check_built(layout: Layout) -> Result<(), SpecError> {
    let suggestion = Layout::tensor_parallel(layout.node_count().clamp(1, NODES_MAX) as u16);
    if layout.replicas != 1 {
        return Err(SpecError::NotBuilt { layout, what: "replicas (dp)", suggestion });
    }
    if layout.stages != 1 {
        return Err(SpecError::NotBuilt { layout, what: "pipeline stages (pp)", suggestion });
    }
    Ok(())
}

fn bound(what: &'static str, value: u64, least: u64, most: u64) -> Result<(), SpecError> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(SpecError::Bound { what, value, least, most }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_written_as_they_are_read() {
        for text in ["tp1", "tp4", "pp2-tp4", "dp2-tp3", "dp2-pp2-tp4"] {
            assert_eq!(text.parse::<Layout>().map(|layout| layout.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("pp2".parse::<Layout>().map(|layout| layout.to_string()), Ok("pp2-tp1".to_owned()));
    }

    #[test]
    fn what_is_no_layout_is_refused() {
        for text in ["", "tp", "tp-4", "4", "tp4-pp2", "tp4-tp4", "xp2", "tp 4", "tp4-", "tp9999999", "tp+4"] {
            assert!(matches!(text.parse::<Layout>(), Err(SpecError::Grammar(_))), "{text}");
        }
        for text in ["tp0", "tp65", "dp8-pp8-tp8"] {
            assert!(matches!(text.parse::<Layout>(), Err(SpecError::Count { .. })), "{text}");
        }
    }
}
