//! Layouts (`tp4`, `pp2-tp4`, `dp2-pp2-tp4`): their notation, and the position of each member. Pure.
use common::limits::NAME_LENGTH_MAX;
pub mod groups;

use std::{fmt, ops::Range, str::FromStr};

use common::ids::{MemberIndex, Rank};
use common::limits::NODES_MAX;
use serde::{Deserialize, Serialize};

use super::layout::groups::{Group, Groups, Role};

/// Most tokens in a step: a prompt is computed in chunks of this size, mixed with the tokens of running answers.
pub const STEP_TOKENS_MAX: usize = 128;
/// Most rows of logits in a step of a pipeline because of speculative tokens: each costs memory on the last stage.
pub const PIPELINE_ROWS: usize = 16;

/// Numbers of replicas, stages and ranks; written `dp2-pp2-tp4`, parts equal to 1 omitted except `tp`. Replicas with
/// roles may have different numbers of ranks: `prefill:tp2+decode:tp1+decode:tp3`. So may replicas one of which has
/// lost a node: `tp2+tp1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// Independent copies of the model.
    pub replicas: u16,
    /// Groups of consecutive layers in a replica.
    pub stages: u16,
    /// Ranks of each stage; those of the first replica if replicas differ ([`Self::ranks_of`]).
    pub ranks: u16,
    /// The replicas, if they differ.
    pub groups: Groups,
}

impl Layout {
    /// A layout with identical replicas.
    pub fn alike(replicas: u16, stages: u16, ranks: u16) -> Self {
        Self { replicas, stages, ranks, groups: Groups::default() }
    }

    /// A layout with a replica for each group.
    pub(super) fn of_groups(groups: Groups, stages: u16) -> Self {
        let list = groups.list();
        Self { replicas: list.len() as u16, stages, ranks: list.first().map_or(1, |group| group.ranks), groups }
    }

    /// A layout with these replicas of `stages` stages each, as [`Self::alike`] if they are identical and have no role.
    ///
    /// # Errors
    /// As [`Groups::new`].
    pub fn of_replicas(list: &[Group], stages: u16) -> Result<Self, SpecError> {
        match list {
            [] => Err(SpecError::Roles("no replica is given")),
            [first, rest @ ..] if first.role == Role::Both && rest.iter().all(|group| group == first) => {
                Ok(Self::alike(list.len() as u16, stages, first.ranks))
            }
            _ => Ok(Self::of_groups(Groups::new(list)?, stages)),
        }
    }

    /// Whether some replicas compute prompts for others, so that they can only serve together.
    pub fn has_roles(self) -> bool {
        self.role(0) != Role::Both
    }

    /// `tpN`.
    pub fn tensor_parallel(ranks: u16) -> Self {
        Self::alike(1, 1, ranks)
    }

    /// The role of a replica.
    pub fn role(self, replica: u16) -> Role {
        self.groups.list().get(usize::from(replica)).map_or(Role::Both, |group| group.role)
    }

    /// Ranks of each stage of this replica.
    pub fn ranks_of(self, replica: u16) -> u16 {
        self.groups.list().get(usize::from(replica)).map_or(self.ranks, |group| group.ranks)
    }

    /// The members of a replica.
    pub fn members(self, replica: u16) -> Range<usize> {
        let length = |ranks: u16| usize::from(self.stages) * usize::from(ranks);
        let before = self.groups.list().iter().take(usize::from(replica));
        let begin = match self.groups.is_empty() {
            true => usize::from(replica) * length(self.ranks),
            false => before.map(|group| length(group.ranks)).sum(),
        };
        begin..begin + length(self.ranks_of(replica))
    }

    /// The replica of a member.
    pub fn replica_of(self, member: MemberIndex) -> u16 {
        if self.groups.is_empty() {
            return (member.index() / self.members(0).len()) as u16;
        }
        (0..self.replicas.saturating_sub(1)).take_while(|replica| self.members(*replica).end <= member.index()).count()
            as u16
    }

    /// The heads that accept requests.
    pub fn heads(self) -> impl Iterator<Item = MemberIndex> {
        (0..self.replicas)
            .filter(move |replica| self.role(*replica).takes_requests())
            .map(move |replica| MemberIndex(self.members(replica).start as u16))
    }

    /// Whether one of two members computes prompts for the other.
    pub fn are_across(self, one: MemberIndex, two: MemberIndex) -> bool {
        let roles = [one, two].map(|member| self.role(self.replica_of(member)));
        matches!(roles, [Role::Prefill, Role::Decode] | [Role::Decode, Role::Prefill])
    }

    /// Number of nodes that the layout needs.
    pub fn node_count(self) -> usize {
        self.members(self.replicas.saturating_sub(1)).end
    }

    /// Checks that the layout needs exactly this number of nodes.
    ///
    /// # Errors
    /// [`SpecError::NodeCount`] with a layout for the nodes given.
    pub fn check_nodes(self, given: usize) -> Result<(), SpecError> {
        let needed = self.node_count();
        let suggestion = self.on(given);
        if needed == given { Ok(()) } else { Err(SpecError::NodeCount { layout: self, needed, given, suggestion }) }
    }

    /// The nearest layout for this number of nodes: the same replicas and stages with more or fewer ranks, otherwise
    /// the same replicas, otherwise a single group of ranks.
    pub fn on(self, nodes: usize) -> Self {
        let nodes = nodes.clamp(1, NODES_MAX);
        if !self.groups.is_empty() {
            return if nodes == self.node_count() { self } else { Self::tensor_parallel(nodes as u16) };
        }
        let with = |replicas: u16, stages: u16| {
            let groups = usize::from(replicas) * usize::from(stages);
            let ranks = nodes.is_multiple_of(groups).then(|| (nodes / groups) as u16);
            ranks.filter(|ranks| *ranks > 0).map(|ranks| Self::alike(replicas, stages, ranks))
        };
        // Keep a pipeline of single nodes a pipeline: on a slow network, tensor parallelism would be slower than fewer
        // stages.
        let shorter = (self.stages > 1 && self.ranks == 1 && self.replicas == 1 && nodes < usize::from(self.stages))
            .then(|| Self::alike(1, nodes as u16, 1));
        let nearest = with(self.replicas, self.stages)
            .or(shorter)
            .or_else(|| with(self.replicas, 1))
            .or_else(|| with(1, self.stages));
        nearest.unwrap_or(Self::tensor_parallel(nodes as u16))
    }

    /// Most tokens of a step: a pipeline uses more and shorter chunks, so that its stages idle for a smaller part of a
    /// prompt.
    pub fn step_tokens(self) -> usize {
        if self.stages > 1 { STEP_TOKENS_MAX / 2 } else { STEP_TOKENS_MAX }
    }

    /// The position of a member.
    pub fn place(self, member: MemberIndex) -> Place {
        let replica = self.replica_of(member);
        let (begin, ranks) = (self.members(replica).start, self.ranks_of(replica));
        let rank = (member.index() - begin) as u16;
        let stage = rank / ranks;
        Place {
            replica,
            role: self.role(replica),
            stage,
            stages: self.stages,
            rank: Rank(rank),
            group: stage * ranks..(stage + 1) * ranks,
        }
    }

    /// The member with this rank in the replica of `of`.
    pub fn peer(self, of: MemberIndex, rank: Rank) -> MemberIndex {
        MemberIndex(self.members(self.replica_of(of)).start as u16 + rank.0)
    }
}

/// The position of a member in a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its replica.
    pub replica: u16,
    /// Role of its replica.
    pub role: Role,
    /// Its stage.
    pub stage: u16,
    /// Number of stages of its replica.
    pub stages: u16,
    /// Its rank in the replica.
    pub rank: Rank,
    /// The ranks of its stage.
    pub group: Range<u16>,
}

impl Place {
    /// Most tokens of a step.
    pub fn step_tokens(&self) -> usize {
        Layout::alike(1, self.stages, self.group.len() as u16).step_tokens()
    }

    /// Whether it is the head of the replica.
    pub fn is_head(&self) -> bool {
        self.rank == Rank(0)
    }

    /// Whether its stage is the last one of the replica.
    pub fn is_last_stage(&self) -> bool {
        self.stage + 1 == self.stages
    }

    /// The first rank of its stage, which receives the head's plans and forwards them to the other ranks.
    pub fn leader(&self) -> Rank {
        Rank(self.group.start)
    }

    /// The rank of the previous stage that hands hidden states over to this one.
    pub fn before(&self) -> Option<Rank> {
        (self.stage > 0).then(|| Rank(self.rank.0 - self.group.len() as u16))
    }

    /// The rank of the next stage to which this one hands hidden states over.
    pub fn next(&self) -> Option<Rank> {
        (!self.is_last_stage()).then(|| Rank(self.rank.0 + self.group.len() as u16))
    }

    /// The first rank of the last stage, which samples.
    pub fn sampler(&self) -> Rank {
        Rank((self.stages - 1) * self.group.len() as u16)
    }

    /// The leaders of the stages after the first.
    pub fn later_leaders(&self) -> impl Iterator<Item = Rank> + use<> {
        let ranks = self.group.len() as u16;
        (1..self.stages).map(move |stage| Rank(stage * ranks))
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.groups.is_empty() {
            return f.pad(&groups::write(self));
        }
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
        if text.contains([':', '+']) {
            return groups::parse(text);
        }
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
        let [replicas, stages, ranks] = counts.map(|count| count.unwrap_or(1));
        let layout = Self::alike(replicas, stages, ranks);
        if layout.node_count() > NODES_MAX {
            return Err(SpecError::Count { text: text.into(), part: text.into() });
        }
        Ok(layout)
    }
}

/// Why a layout or topology is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The text does not match the grammar.
    #[error("invalid topology `{0}`; write tpN, ppS-tpN or dpR-ppS-tpN, for example tp4")]
    Grammar(String),
    /// A number is zero or too large.
    #[error("`{part}` in topology `{text}` must be from 1 to {NODES_MAX}; for example tp4")]
    Count {
        /// The whole layout as written.
        text: String,
        /// The offending part.
        part: String,
    },
    /// The layout needs another number of nodes.
    #[error("topology {layout} needs {needed} nodes, but {given} were given; give {needed} nodes or use {suggestion}")]
    NodeCount {
        /// The layout.
        layout: Layout,
        /// Number of nodes that it needs.
        needed: usize,
        /// Number of nodes given.
        given: usize,
        /// A layout for the nodes given.
        suggestion: Layout,
    },
    /// The stages do not hold each layer exactly once.
    #[error(
        "replica {replica} stage {stage} holds layers {begin} to {end} (exclusive), but must begin with layer {expected}; \
         stages must hold consecutive layers, equal on all ranks of a stage"
    )]
    Layers {
        /// The replica.
        replica: u16,
        /// Its stage.
        stage: u16,
        /// First layer.
        begin: u32,
        /// End of its layers, exclusive.
        end: u32,
        /// The layer that it must begin with.
        expected: u32,
    },
    /// More stages than the model can have: as many as layers, fewer if some layers must be in the same stage.
    #[error("topology {layout} has more stages than the model can have ({most}); use {suggestion}")]
    Stages {
        /// The layout.
        layout: Layout,
        /// Most stages of the model.
        most: u32,
        /// The nearest valid layout, on fewer nodes.
        suggestion: Layout,
    },
    /// The requested layers of the stages do not add up to the model.
    #[error(
        "invalid layers of stages {given}: topology {layout} has {stages} stages and the model {block_count} layers; \
         give {stages} numbers that add up to {block_count}, or none"
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
    /// The number of weights does not match.
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
    /// A replica ends with a different layer.
    #[error(
        "replica {replica} ends with layer {end}, but the first replica with {expected}; every replica holds the whole model"
    )]
    Replica {
        /// The replica.
        replica: u16,
        /// End of its layers, exclusive.
        end: u32,
        /// End of the layers of the first replica, exclusive.
        expected: u32,
    },
    /// An invalid combination of roles.
    #[error("{0}; give at least one group of each role, for example prefill:tp2+decode:tp1+decode:tp1")]
    Roles(&'static str),
    /// Replicas that would be unloaded one by one.
    #[error("a topology that is unloaded when idle has one replica; give a layout without dpN, or leave out the time")]
    UnloadsReplicas,
    /// A draft model in a pipeline.
    #[error(
        "a draft model needs a topology of one stage, this one has {0}; give a layout without ppN, or no draft model"
    )]
    DraftStages(u16),
    /// The same node occurs twice.
    #[error("node {0} is given twice; each node holds one shard")]
    Twice(String),
    /// A name is empty, too long or contains control characters.
    #[error("a {0} is empty, longer than {NAME_LENGTH_MAX} bytes or contains control characters; use another one")]
    Name(&'static str),
    /// A number outside its bounds.
    #[error("{what} is {value}, but must be from {least} to {most}")]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_written_as_they_are_read() {
        for text in ["tp1", "tp4", "pp2-tp4", "dp2-tp3", "dp2-pp2-tp4", "tp2+tp1", "dp2-tp2+tp1", "pp2-tp2+pp2-tp1"] {
            assert_eq!(text.parse::<Layout>().map(|layout| layout.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("tp2+tp2".parse::<Layout>().map(|layout| layout.to_string()), Ok("dp2-tp2".to_owned()));
        assert_eq!("pp2".parse::<Layout>().map(|layout| layout.to_string()), Ok("pp2-tp1".to_owned()));
    }

    #[test]
    fn what_is_no_layout_is_refused() {
        for text in ["", "tp", "tp-4", "4", "tp4-pp2", "tp4-tp4", "xp2", "tp 4", "tp4-", "tp9999999", "tp+4", "tp2+"] {
            assert!(matches!(text.parse::<Layout>(), Err(SpecError::Grammar(_))), "{text}");
        }
        for text in ["tp0", "tp65", "dp8-pp8-tp8"] {
            assert!(matches!(text.parse::<Layout>(), Err(SpecError::Count { .. })), "{text}");
        }
    }

    #[test]
    fn nearest_layout_keeps_replicas_and_stages_if_possible() {
        let on = |layout: &str, nodes| layout.parse::<Layout>().expect("a layout").on(nodes).to_string();
        assert_eq!(
            (on("pp2-tp2", 6), on("pp2-tp2", 3), on("dp2-pp2-tp2", 6)),
            ("pp2-tp3".into(), "tp3".into(), "dp2-tp3".into())
        );
        assert_eq!(
            (on("tp4", 3), on("dp2-tp2", 2), on("dp3-pp2", 2)),
            ("tp3".into(), "dp2-tp1".into(), "pp2-tp1".into())
        );
        assert_eq!((on("tp4", 0), on("pp4", 1000)), ("tp1".into(), "pp4-tp16".into()));
    }

    #[test]
    fn every_member_has_a_stage_and_neighbours() {
        let layout: Layout = "dp2-pp3-tp2".parse().expect("a layout");
        let place = layout.place(MemberIndex(9));
        assert_eq!((place.replica, place.stage, place.rank, place.group.clone()), (1, 1, Rank(3), 2..4));
        assert_eq!((place.leader(), place.before(), place.next()), (Rank(2), Some(Rank(1)), Some(Rank(5))));
        assert_eq!((place.sampler(), layout.peer(MemberIndex(9), Rank(5))), (Rank(4), MemberIndex(11)));
        assert!(!place.is_head() && layout.place(MemberIndex(6)).is_head());
        assert_eq!(place.later_leaders().collect::<Vec<_>>(), [Rank(2), Rank(4)]);
        let alone = Layout::tensor_parallel(1).place(MemberIndex(0));
        assert_eq!((alone.before(), alone.next(), alone.sampler()), (None, None, Rank(0)));
    }
}
