//! What nodes say to each other, and consoles to nodes, so that a topology comes back by itself: what each holds, votes for the
//! topology that follows, the rolling restart that goes on without its console.
use serde::{Deserialize, Serialize};

use crate::{
    ids::{Epoch, Rank, TopologyHash},
    telemetry::NodeState,
    topology::{Exclusions, Rolling, Topology},
    units::Bytes,
};

/// Longest drain that a restart may ask for, in milliseconds.
pub const RESTART_DRAIN_MS_MAX: u32 = 600_000;

/// A topology that was committed: whoever is a member may serve it.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Its epoch.
    pub epoch: Epoch,
    /// Who holds what.
    pub topology: Topology,
    /// The topology that the operator requested, if members of it are missing and `topology` is a reduced form of it.
    #[serde(default, with = "crate::protocol::version::since_5")]
    pub desired: Option<Box<Topology>>,
}

/// Compares epoch and topology only: nodes of release 0.1 do not store `desired`.
impl PartialEq for Committed {
    fn eq(&self, other: &Self) -> bool {
        (self.epoch, &self.topology) == (other.epoch, &other.topology)
    }
}

impl Committed {
    /// A topology as an operator asked for it.
    pub fn new(epoch: Epoch, topology: Topology) -> Self {
        Self { epoch, topology, desired: None }
    }

    /// What an operator asked for.
    pub fn desired(&self) -> &Topology {
        self.desired.as_deref().unwrap_or(&self.topology)
    }

    /// Epoch and hash: what names it.
    pub fn name(&self) -> (Epoch, TopologyHash) {
        (self.epoch, self.topology.hash())
    }
}

/// Number of a proposal: the later round wins, then the higher member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ballot {
    /// Counts up; 0 is nobody's.
    pub round: u32,
    /// Member of the last topology that proposes.
    pub member: u16,
}

/// The two questions of a vote (Lamport, "Paxos made simple") about the one topology that follows `base`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// The last topology that was committed: its members vote.
    pub base: Committed,
    /// Where the witness of a topology of two nodes listens, as the asker was told.
    pub witness: Option<String>,
    /// Whose proposal.
    pub ballot: Ballot,
    /// `None`: promise to accept nothing older. Else: accept this.
    pub next: Option<Committed>,
}

/// What a voter answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ruling {
    /// It is on the disk that nothing older is accepted.
    Promised {
        /// What was accepted before: it must be proposed again.
        accepted: Option<(Ballot, Committed)>,
        /// Highest epoch that the voter has seen.
        epoch: Epoch,
    },
    /// It is on the disk that this is accepted.
    Accepted,
    /// Another proposal is newer.
    Outdone(Ballot),
    /// A later topology was committed.
    Behind(Box<Committed>),
    /// It has no vote: its record was lost, it prepares something else, or it is told another witness.
    Abstains(String),
}

/// A question about recovery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryAsk {
    /// What the node holds. A node says who it is and where it listens, which may have changed.
    Standing(Option<(String, String)>),
    /// A topology that was voted for, or that is known to serve.
    Learn(Box<Committed>),
    /// A vote.
    Vote(Box<Vote>),
    /// An operator says that the missing members of the topology do not come back: the rest may go on without a majority.
    TakeOver,
    /// The state of a rolling restart; the higher revision wins.
    Rolling(Rolling),
    /// Drain for so long at most, then end to be started again.
    Restart {
        /// Longest drain.
        drain_ms: u32,
    },
    /// A steward to its own node: a majority of the other members hold this and have accepted nothing that follows it. A node whose
    /// record of votes is gone votes again about later topologies. Since wire version 5.
    Recall(Box<Committed>),
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryAnswer {
    /// What the node holds.
    Standing(Box<Standing>),
    /// It knows, and it is on the disk.
    Learned,
    /// A voter's answer.
    Ruling(Ruling),
}

/// A rank that holds the others of its stage up for long, as one of them sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slow {
    /// Which, in the replica.
    pub rank: Rank,
    /// Percent of the time of the node that says so.
    pub percent: u8,
    /// For how many seconds at least.
    pub seconds: u32,
}

/// What a node holds and is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// Another number at every start of the daemon.
    pub instance: u64,
    /// What it is doing.
    pub state: NodeState,
    /// Highest epoch seen.
    pub epoch: Epoch,
    /// The last topology that it committed, or was told of as a member.
    pub committed: Option<Committed>,
    /// Whether it has accepted a topology that follows that one.
    pub accepted: bool,
    /// Memory that a shard could take: what is free and what its shard takes now; 0 if unknown.
    pub free: Bytes,
    /// What its shard takes now.
    pub shard: Bytes,
    /// Whether something starts the daemon again when it ends to be restarted.
    pub supervised: bool,
    /// An operator said that missing members do not come back.
    pub takes_over: bool,
    /// Nodes that are out.
    pub exclusions: Exclusions,
    /// The latest rolling restart.
    pub rolling: Option<Rolling>,
    /// Where other nodes said that they listen, by name.
    pub heard: Vec<(String, String)>,
    /// The rank that it would be faster without.
    pub slow: Option<Slow>,
    /// What slows its own machine down now, in words.
    pub trouble: Option<String>,
    /// Its record of votes is gone: it votes again once it knows what a majority holds.
    #[serde(default, with = "crate::protocol::version::since_5")]
    pub forgets: bool,
    /// Share of its stage's recent all-reduce time that it spends computing, in thousandths; `None` after too few all-reduces.
    #[serde(default, with = "crate::protocol::version::since_5")]
    pub busy: Option<u16>,
}
