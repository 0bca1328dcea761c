//! The topology of an assignment: the layers of each node and its share of them. Pure; nothing is loaded.
use std::ops::Range;

use collectives::Choice;
use common::{
    ids::{ContentRoot, MemberIndex, ModelIdentity, ModelRoots, Rank, TopologyHash},
    limits::{CONTEXT_LENGTH_MAX, NAME_LENGTH_MAX, NODES_MAX, SLOTS_MAX},
    precision::{Exchange, KvFormat},
    units::Bytes,
    version::speaking,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::kv::KvBlocks;
use crate::layout::SpecError;
use crate::layout::{Layout, Place};

/// One node of a topology.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    /// The node's name.
    pub name: String,
    /// `ADDRESS:PORT` at which the other ranks reach it.
    pub address: String,
    /// Its share of each layer relative to the other ranks of its stage.
    pub weight: u32,
    /// The layers of its stage.
    pub layers: Range<u32>,
    /// Cores to which the rank may pin its threads; empty disables pinning.
    pub cores: Vec<u16>,
    /// Compute threads.
    pub threads: u16,
    /// Whether waiting threads may spin (only if all ranks on its machine have a core for each thread).
    pub spin: bool,
}

/// The content of an assignment. Members are in the order replica, stage, rank; the first one of a replica is its head.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Topology {
    /// Replicas, stages, ranks.
    pub layout: Layout,
    /// One member per node.
    pub members: Vec<Member>,
    /// File name of the model below a node's model folders.
    pub model: String,
    /// Identity that every node's file must have.
    pub identity: ModelIdentity,
    /// Format of the KV cache.
    pub kv: KvFormat,
    /// Format of the partial sums on the wire.
    pub exchange: Exchange,
    /// The all-reduce algorithm.
    pub collective: Choice,
    /// Longest sequence in tokens.
    pub context_length: u32,
    /// Concurrent sequences per replica.
    pub slots: u16,
    /// Content root that every node's file must have; `None` in an assignment of release 0.1.
    #[serde(default, with = "common::version::since_5")]
    pub content: Option<ContentRoot>,
    /// The topology is unloaded after this many seconds without a request; `None`: never. Since wire version 12.
    #[serde(default, with = "common::version::since_12")]
    pub unload_after: Option<u32>,
    /// The draft model of speculative decoding. Since wire version 14. The last field, because it is a table in files.
    #[serde(default, with = "common::version::since_14")]
    pub draft: Option<Box<Draft>>,
}

/// A draft model: a smaller model with the same vocabulary, which every rank holds a part of, too.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Draft {
    /// File name below a node's model folders.
    pub model: String,
    /// Identity that every node's file must have.
    pub identity: ModelIdentity,
    /// Content root that every node's file must have; set when the nodes have agreed on it.
    pub content: Option<ContentRoot>,
    /// Bytes of its weights and working memory, on all ranks of a replica together, each counted like the one with most.
    pub weights: Bytes,
    /// Bytes of a KV block in all of its layers, counted likewise.
    pub block: Bytes,
}

impl Topology {
    /// Identity and content of the model.
    pub fn roots(&self) -> ModelRoots {
        ModelRoots { identity: self.identity, content: self.content }
    }

    /// The hash in every frame of an assignment: the first 8 bytes of SHA-256 over the topology as encoded by version
    /// 4, so that every release computes the same hash. Members compare `content` separately.
    pub fn hash(&self) -> TopologyHash {
        let encoded = speaking(4, || postcard::to_stdvec(self));
        let encoded = encoded.expect("a topology holds only types that postcard encodes");
        let digest = Sha256::digest(&encoded);
        TopologyHash(u64::from_le_bytes(digest[..8].try_into().expect("a SHA-256 has 32 bytes")))
    }

    /// The position of a member.
    pub fn place(&self, member: MemberIndex) -> Place {
        self.layout.place(member)
    }

    /// Whether two members have links to each other: as ranks of a replica, or because one computes prompts for the other.
    pub fn are_linked(&self, one: MemberIndex, other: MemberIndex) -> bool {
        self.layout.replica_of(one) == self.layout.replica_of(other) || self.layout.are_across(one, other)
    }

    /// The members of a replica, in the order of their ranks.
    pub fn replica(&self, replica: u16) -> &[Member] {
        &self.members[self.layout.members(replica)]
    }

    /// The head of the replica of the member with this name; `None` if there is no such member.
    pub fn head_of(&self, name: &str) -> Option<&Member> {
        let place = self.members.iter().position(|member| member.name == name)?;
        self.replica(self.layout.replica_of(MemberIndex(place as u16))).first()
    }

    /// The member with this rank in the replica of `of`.
    pub fn peer(&self, of: MemberIndex, rank: Rank) -> Option<&Member> {
        self.members.get(self.layout.peer(of, rank).index())
    }

    /// Layers and relative shares of each stage of a replica.
    pub fn stages(&self, replica: u16) -> Vec<(Range<usize>, Vec<u32>)> {
        self.replica(replica)
            .chunks(usize::from(self.layout.ranks_of(replica)))
            .map(|members| {
                let layers = members[0].layers.start as usize..members[0].layers.end as usize;
                (layers, members.iter().map(|member| member.weight).collect())
            })
            .collect()
    }

    /// Number of layers of the model for which the topology is made.
    pub fn block_count(&self) -> u32 {
        self.members.last().map_or(0, |member| member.layers.end)
    }

    /// KV blocks that every rank has for its layers, in a model whose longest window is `window`.
    pub fn kv_blocks(&self, window: Option<usize>) -> KvBlocks {
        KvBlocks::of(self.context_length, self.slots, window)
    }

    /// The index of a member in `next` if its replica is unchanged there: same members, shares, model and settings, so
    /// that its shard and KV cache stay valid. `None` for replicas with roles, which depend on each other.
    pub fn kept_in(&self, member: MemberIndex, next: &Self) -> Option<MemberIndex> {
        let name = &self.members.get(member.index())?.name;
        let place = MemberIndex(next.members.iter().position(|one| one.name == *name)? as u16);
        // The time after which it is unloaded changes nothing in its shard.
        let Self {
            layout,
            members: _,
            model,
            identity,
            kv,
            exchange,
            collective,
            context_length,
            slots,
            content,
            draft,
            unload_after: _,
        } = next;
        let is_same_model = self.model == *model && self.identity == *identity && self.content == *content;
        let is_same_work = self.kv == *kv && self.exchange == *exchange && self.collective == *collective;
        let is_same_size = self.context_length == *context_length && self.slots == *slots;
        let is_same_model = is_same_model && self.draft == *draft;
        let is_same_kind = self.layout.stages == layout.stages && !self.layout.has_roles() && !layout.has_roles();
        let replica = |one: &'_ Self, member: MemberIndex| one.layout.replica_of(member);
        let is_same_replica = self.replica(replica(self, member)) == next.replica(replica(next, place));
        (is_same_model && is_same_work && is_same_size && is_same_kind && is_same_replica).then_some(place)
    }

    /// Whether both have the same layout, nodes and shares, regardless of addresses.
    pub fn is_alike(&self, other: &Self) -> bool {
        let parts = |member: &Member| (member.name.clone(), member.weight, member.layers.clone());
        self.layout == other.layout && self.members.iter().map(parts).eq(other.members.iter().map(parts))
    }

    /// Checks bounds, names, and that each replica holds every layer once.
    ///
    /// # Errors
    /// The first rule that is violated.
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
            return Err(SpecError::Roles("the groups do not match the counts of the layout"));
        }
        layout.check_nodes(self.members.len())?;
        self.check_layers()?;
        for (index, member) in self.members.iter().enumerate() {
            for (what, text) in [("node name", &member.name), ("node address", &member.address)] {
                check_name(what, text)?;
            }
            if self.members[..index].iter().any(|other| other.name == member.name || other.address == member.address) {
                return Err(SpecError::Twice(member.name.clone()));
            }
            bound("the weight of a rank", u64::from(member.weight), 1, 1 << 20)?;
            bound("the number of threads", u64::from(member.threads), 1, 256)?;
            bound("the number of cores", member.cores.len() as u64, 0, 1024)?;
        }
        check_name("model name", &self.model)?;
        if let Some(draft) = &self.draft {
            check_name("model name", &draft.model)?;
            if layout.stages > 1 {
                return Err(SpecError::DraftStages(layout.stages));
            }
        }
        if self.unload_after.is_some() && layout.replicas > 1 {
            return Err(SpecError::UnloadsReplicas);
        }
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

/// Names appear in logs, metric labels and on screens.
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
        Topology {
            layout,
            members: (0..layout.node_count())
                .map(|index| Member {
                    name: format!("pi{index}"),
                    address: format!("pi{index}:9999"),
                    weight: 1,
                    layers: layers[index / usize::from(layout.ranks) % layers.len()].clone(),
                    cores: Vec::new(),
                    threads: 1,
                    spin: false,
                })
                .collect(),
            model: "m.gguf".into(),
            identity: ModelIdentity([1; 32]),
            content: None,
            unload_after: None,
            draft: None,
            kv: KvFormat::F16,
            exchange: Exchange::F32,
            collective: Choice::Auto,
            context_length: 128,
            slots: 1,
        }
    }

    #[test]
    fn head_of_a_member_is_the_first_of_its_replica() {
        let topology = topology("dp2-pp2-tp3", &[0..5, 5..8]);
        let head = |name: &str| topology.head_of(name).map(|head| head.name.as_str());
        let heads = ["pi0", "pi5", "pi6", "pi11"].map(head);
        assert_eq!(heads, [Some("pi0"), Some("pi0"), Some("pi6"), Some("pi6")]);
        assert_eq!(head("pi12"), None);
    }

    #[test]
    fn topology_with_every_layer_once_is_valid() {
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
    fn missing_duplicate_or_unequal_layers_are_rejected() {
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
    fn content_is_kept_but_not_part_of_the_hash() {
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
