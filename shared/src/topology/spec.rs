//! The topology that an assignment carries: which node holds which layers and which share of them. Pure; nothing is loaded here.
use std::{fmt, ops::Range, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::layout::{Layout, Place};
use crate::{
    ids::{ContentRoot, MemberIndex, ModelIdentity, ModelRoots, Rank, TopologyHash},
    protocol::version::speaking,
    schedule::Choice,
};

/// Most nodes in one topology.
pub const NODES_MAX: usize = 64;
/// Longest name of a node or a model file.
pub const NAME_LENGTH_MAX: usize = 255;
/// Most sequences that run at the same time in one replica.
pub const SLOTS_MAX: u16 = 32;
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
    /// Stages do not hold each layer once.
    #[error(
        "replica {replica} stage {stage} holds layers {begin} to {end} (the end is not held), it must begin with {expected}; \
         give consecutive layers to the stages, the same on all ranks of a stage"
    )]
    Layers {
        /// The replica.
        replica: u16,
        /// Its stage.
        stage: u16,
        /// First layer.
        begin: u32,
        /// Behind the last layer.
        end: u32,
        /// The layer that it must begin with.
        expected: u32,
    },
    /// More stages than layers.
    #[error("topology {layout} has more stages than the model has layers ({block_count}); use {suggestion}")]
    Stages {
        /// The layout.
        layout: Layout,
        /// Layers of the model.
        block_count: u32,
        /// The nearest layout that works, on fewer nodes.
        suggestion: Layout,
    },
    /// The layers asked for are not those of the model.
    #[error(
        "{given} were given as the layers of stages: topology {layout} has {stages} stages and the model {block_count} layers; \
         give {stages} numbers that make {block_count}, or none"
    )]
    LayerCounts {
        /// As given.
        given: String,
        /// The layout.
        layout: Layout,
        /// Its stages.
        stages: u16,
        /// Layers of the model.
        block_count: u32,
    },
    /// Not a weight for each rank.
    #[error(
        "{given} weights were given for topology {layout}; give {ranks}, one for each rank of a stage, or {nodes}, one for each node"
    )]
    Weights {
        /// How many were given.
        given: usize,
        /// The layout.
        layout: Layout,
        /// Ranks of a stage.
        ranks: u16,
        /// Nodes of the topology.
        nodes: usize,
    },
    /// Replicas end with another layer.
    #[error("replica {replica} ends with layer {end}, the first with {expected}; every replica holds the whole model")]
    Replica {
        /// The replica.
        replica: u16,
        /// Behind its last layer.
        end: u32,
        /// Behind the last layer of the first replica.
        expected: u32,
    },
    /// Replicas with roles that cannot work together.
    #[error("{0}; write for example prefill:tp2+decode:tp1+decode:tp1, at least one group of each role")]
    Roles(&'static str),
    /// The same node twice.
    #[error("node {0} is named twice; each node holds one shard")]
    Twice(String),
    /// A name is empty, too long or would change the line that it stands in.
    #[error("a {0} is empty, longer than {NAME_LENGTH_MAX} bytes or has control characters; give another")]
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

impl Exchange {
    /// How hidden states travel between stages: half of a float's bytes where partial sums may be rounded, never less, for they are
    /// not summed but gone on with.
    pub fn hand_over(self) -> Self {
        match self {
            Self::F32 => Self::F32,
            Self::F16 | Self::Q80 => Self::F16,
        }
    }
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
    /// The layers of its stage.
    pub layers: Range<u32>,
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
    /// How all-reduces go.
    pub collective: Choice,
    /// Longest sequence in tokens.
    pub context_length: u32,
    /// Sequences that can run at the same time.
    pub slots: u16,
    /// What every node's file must hold; `None` in an assignment of release 0.1.
    #[serde(default, with = "crate::protocol::version::since_5")]
    pub content: Option<ContentRoot>,
}

impl Topology {
    /// Whose tokens its answers have.
    pub fn roots(&self) -> ModelRoots {
        ModelRoots { identity: self.identity, content: self.content }
    }

    /// The hash that every frame of an assignment carries: the first 8 bytes of SHA-256 over the topology as version 4 encodes it, so that
    /// every release has the same hash of a topology. Members compare `content` for themselves.
    pub fn hash(&self) -> TopologyHash {
        let encoded = speaking(4, || postcard::to_stdvec(self));
        let encoded = encoded.expect("a topology holds only types that postcard encodes");
        let digest = Sha256::digest(&encoded);
        TopologyHash(u64::from_le_bytes(digest[..8].try_into().expect("a SHA-256 has 32 bytes")))
    }

    /// Where a member stands.
    pub fn place(&self, member: MemberIndex) -> Place {
        self.layout.place(member)
    }

    /// The members of a replica, in the order of their ranks.
    pub fn replica(&self, replica: u16) -> &[Member] {
        &self.members[self.layout.members(replica)]
    }

    /// The member that is this rank of the replica of `of`.
    pub fn peer(&self, of: MemberIndex, rank: Rank) -> Option<&Member> {
        self.members.get(self.layout.peer(of, rank).index())
    }

    /// Layers and relative shares of each stage of a replica.
    pub fn stages(&self, replica: u16) -> Vec<(Range<usize>, Vec<u32>)> {
        let stage = |members: &[Member]| {
            let layers = members[0].layers.start as usize..members[0].layers.end as usize;
            (layers, members.iter().map(|member| member.weight).collect())
        };
        self.replica(replica).chunks(usize::from(self.layout.ranks_of(replica))).map(stage).collect()
    }

    /// Layers of the model that the topology is made for.
    pub fn block_count(&self) -> u32 {
        self.members.last().map_or(0, |member| member.layers.end)
    }

    /// KV blocks that every rank allocates: enough for one sequence of full length or several shorter ones.
    pub fn kv_block_count(&self) -> usize {
        (self.context_length as usize).div_ceil(KV_BLOCK_LENGTH) + usize::from(self.slots) - 1
    }

    /// The index of a member in `next` if its replica is unchanged there: same members, shares, model and settings, so that its shard and
    /// KV cache stay valid. `None` for replicas with roles, which depend on each other.
    pub fn kept_in(&self, member: MemberIndex, next: &Self) -> Option<MemberIndex> {
        let name = &self.members.get(member.index())?.name;
        let place = MemberIndex(next.members.iter().position(|one| one.name == *name)? as u16);
        // All fields by name: a new one must be compared as well.
        let Self { layout, members: _, model, identity, kv, exchange, collective, context_length, slots, content } =
            next;
        let is_same_model = self.model == *model && self.identity == *identity && self.content == *content;
        let is_same_work = self.kv == *kv && self.exchange == *exchange && self.collective == *collective;
        let is_same_size = self.context_length == *context_length && self.slots == *slots;
        let is_same_kind = self.layout.stages == layout.stages && !self.layout.has_roles() && !layout.has_roles();
        let replica = |one: &'_ Self, member: MemberIndex| one.layout.replica_of(member);
        let is_same_replica = self.replica(replica(self, member)) == next.replica(replica(next, place));
        (is_same_model && is_same_work && is_same_size && is_same_kind && is_same_replica).then_some(place)
    }

    /// Whether both are the same layout of the same nodes with the same shares, wherever these answer.
    pub fn is_alike(&self, other: &Self) -> bool {
        let parts = |member: &Member| (member.name.clone(), member.weight, member.layers.clone());
        self.layout == other.layout && self.members.iter().map(parts).eq(other.members.iter().map(parts))
    }

    /// Checks bounds, names and that each replica holds every layer once.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), SpecError> {
        let layout = self.layout;
        for (what, count) in [
            ("the number of replicas", layout.replicas),
            ("the number of stages", layout.stages),
            ("the number of ranks", layout.ranks),
        ] {
            bound(what, u64::from(count), 1, NODES_MAX as u64)?;
        }
        layout.groups.check()?;
        if !layout.groups.is_empty() && layout != Layout::of_groups(layout.groups, layout.stages) {
            return Err(SpecError::Roles("the groups are not those that the layout counts"));
        }
        layout.check_nodes(self.members.len())?;
        self.check_layers()?;
        for (index, member) in self.members.iter().enumerate() {
            for (what, text) in [("node name", &member.name), ("node address", &member.address)] {
                check_name(what, text)?;
            }
            let twice = |other: &Member| other.name == member.name || other.address == member.address;
            if self.members[..index].iter().any(twice) {
                return Err(SpecError::Twice(member.name.clone()));
            }
            bound("the weight of a rank", u64::from(member.weight), 1, 1 << 20)?;
            bound("the number of threads", u64::from(member.threads), 1, 256)?;
            bound("the number of cores", member.cores.len() as u64, 0, 1024)?;
        }
        check_name("model name", &self.model)?;
        bound("the context length", u64::from(self.context_length), 1, u64::from(CONTEXT_LENGTH_MAX))?;
        bound("the number of slots", u64::from(self.slots), 1, u64::from(SLOTS_MAX))
    }
}

impl Topology {
    fn check_layers(&self) -> Result<(), SpecError> {
        let expected_end = self.replica(0).last().map_or(0, |member| member.layers.end);
        for replica in 0..self.layout.replicas {
            let mut expected = 0;
            let ranks = usize::from(self.layout.ranks_of(replica));
            for (stage, ranks) in (0..).zip(self.replica(replica).chunks(ranks)) {
                let Range { start, end } = ranks[0].layers.clone();
                let wrong = ranks.iter().find(|member| {
                    let Range { start: begin, end: last } = member.layers;
                    begin != expected || last <= begin || (begin, last) != (start, end)
                });
                if let Some(Member { layers: Range { start: begin, end }, .. }) = wrong {
                    return Err(SpecError::Layers { replica, stage, begin: *begin, end: *end, expected });
                }
                expected = end;
            }
            if expected != expected_end {
                return Err(SpecError::Replica { replica, end: expected, expected: expected_end });
            }
        }
        Ok(())
    }
}

/// Names stand in logs, labels of metrics and on screens.
fn check_name(what: &'static str, text: &str) -> Result<(), SpecError> {
    let is_good = (1..=NAME_LENGTH_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    if is_good { Ok(()) } else { Err(SpecError::Name(what)) }
}

fn bound(what: &'static str, value: u64, least: u64, most: u64) -> Result<(), SpecError> {
    if (least..=most).contains(&value) { Ok(()) } else { Err(SpecError::Bound { what, value, least, most }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A topology whose stages hold these layers, in every replica.
    fn topology(layout: &str, layers: &[Range<u32>]) -> Topology {
        let layout: Layout = layout.parse().expect("a layout");
        let member = |index: usize| Member {
            name: format!("pi{index}"),
            address: format!("pi{index}:9999"),
            weight: 1,
            layers: layers[index / usize::from(layout.ranks) % layers.len()].clone(),
            cores: Vec::new(),
            threads: 1,
            spin: false,
        };
        Topology {
            layout,
            members: (0..layout.node_count()).map(member).collect(),
            model: "m.gguf".into(),
            identity: ModelIdentity([1; 32]),
            content: None,
            kv: KvFormat::F16,
            exchange: Exchange::F32,
            collective: Choice::Auto,
            context_length: 128,
            slots: 1,
        }
    }

    #[test]
    fn a_topology_whose_stages_hold_every_layer_once_is_good_and_tells_stages_and_peers() {
        let good = topology("dp2-pp2-tp3", &[0..5, 5..8]);
        assert_eq!(good.check(), Ok(()));
        assert_eq!((good.block_count(), good.replica(1)[0].name.as_str()), (8, "pi6"));
        assert_eq!(good.stages(1), [(0..5, vec![1; 3]), (5..8, vec![1; 3])]);
        assert_eq!(good.peer(MemberIndex(8), Rank(4)).map(|member| member.name.as_str()), Some("pi10"));
    }

    #[test]
    fn control_characters_in_names_and_addresses_are_refused() {
        let change = |change: fn(&mut Topology)| {
            let mut topology = topology("tp2", std::slice::from_ref(&(0..5)));
            change(&mut topology);
            topology.check()
        };
        assert_eq!(change(|_| {}), Ok(()));
        assert_eq!(change(|it| it.members[1].name = "pi1\nevil_metric 66".into()), Err(SpecError::Name("node name")));
        assert_eq!(change(|it| it.members[1].name = "\u{9b}2J".into()), Err(SpecError::Name("node name")));
        assert_eq!(change(|it| it.members[0].address = "pi0:9999\r".into()), Err(SpecError::Name("node address")));
        assert_eq!(change(|it| it.model = "m.gguf\u{1b}[2J".into()), Err(SpecError::Name("model name")));
    }

    #[test]
    fn layers_that_are_missing_held_twice_or_differ_between_ranks_are_refused_by_stage() {
        let stage = |topology: &Topology| match topology.check() {
            Err(SpecError::Layers { replica, stage, .. }) => Some((replica, stage)),
            _ => None,
        };
        assert_eq!(stage(&topology("pp2-tp2", &[0..5, 6..8])), Some((0, 1)));
        assert_eq!(stage(&topology("pp2-tp2", &[0..5, 4..8])), Some((0, 1)));
        assert_eq!(stage(&topology("pp2-tp2", &[1..5, 5..8])), Some((0, 0)));
        assert_eq!(stage(&topology("pp2-tp2", &[0..0, 0..8])), Some((0, 0)));
        let mut uneven = topology("dp2-pp2-tp2", &[0..5, 5..8]);
        uneven.members[7].layers = 5..7;
        assert_eq!(stage(&uneven), Some((1, 1)));
        uneven.members[6].layers = 5..7;
        assert_eq!(uneven.check(), Err(SpecError::Replica { replica: 1, end: 7, expected: 8 }));
    }

    #[test]
    fn content_is_kept_but_is_no_part_of_the_hash() {
        let old = topology("tp2", std::slice::from_ref(&(0..4)));
        let new = Topology { content: Some(ContentRoot([7; 32])), ..old.clone() };
        assert_eq!(old.hash(), new.hash());
        let bytes = postcard::to_stdvec(&new).expect("it can be encoded");
        assert_eq!(postcard::from_bytes::<Topology>(&bytes).as_ref(), Ok(&new));
        // A peer of version 4 has the topology without it.
        let bytes = speaking(4, || postcard::to_stdvec(&new)).expect("it can be encoded");
        assert_eq!(speaking(4, || postcard::from_bytes::<Topology>(&bytes)), Ok(old));
    }
}
