//! Messages between nodes, and from consoles to nodes, for automatic recovery: what each node holds, votes for the next
//! topology, and the rolling restart that continues without its console.
use std::cmp::Ordering;

use common::{
    ids::{Epoch, Rank, TopologyHash},
    units::Bytes,
};
use serde::{Deserialize, Serialize};
use telemetry::NodeState;
use topology::{Exclusions, Rolling, Topology};

/// Longest drain that a restart may ask for, in milliseconds.
pub const RESTART_DRAIN_MS_MAX: u32 = 600_000;

/// A committed topology: every member may serve it.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Its epoch.
    pub epoch: Epoch,
    /// The topology.
    pub topology: Topology,
    /// The topology that the operator requested, if members of it are missing and `topology` is a reduced form of it.
    #[serde(default, with = "common::version::since_5")]
    pub desired: Option<Box<Topology>>,
}

/// Compares epoch and topology only: nodes of release 0.1 do not store `desired`.
impl PartialEq for Committed {
    fn eq(&self, other: &Self) -> bool {
        (self.epoch, &self.topology) == (other.epoch, &other.topology)
    }
}

impl Committed {
    /// A topology as an operator requested it.
    pub fn new(epoch: Epoch, topology: Topology) -> Self {
        Self { epoch, topology, desired: None }
    }

    /// The topology that the operator requested.
    pub fn desired(&self) -> &Topology {
        self.desired.as_deref().unwrap_or(&self.topology)
    }

    /// Which of two topologies wins: the one with the later epoch. An operator and a vote can choose the same epoch when
    /// nodes are cut off from each other; then the one with more members wins, and then the one with the greater hash.
    pub fn order(&self, other: &Self) -> Ordering {
        let members = (self.topology.members.len(), other.topology.members.len());
        let order = self.epoch.cmp(&other.epoch).then(members.0.cmp(&members.1));
        order.then_with(|| self.topology.hash().0.cmp(&other.topology.hash().0))
    }

    /// Whether it wins over the other topology.
    pub fn is_later_than(&self, other: &Self) -> bool {
        self.order(other) == Ordering::Greater
    }

    /// Epoch and hash, which identify it.
    pub fn name(&self) -> (Epoch, TopologyHash) {
        (self.epoch, self.topology.hash())
    }
}

/// Ballot number of a proposal: the higher round wins, then the higher member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ballot {
    /// Increases with each proposal; 0 is never proposed.
    pub round: u32,
    /// The proposing member of the last topology.
    pub member: u16,
}

/// The two phases of a vote (Lamport, "Paxos made simple") on the single topology that follows `base`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// The last committed topology, whose members vote.
    pub base: Committed,
    /// Configured address of the witness of a two-node topology.
    pub witness: Option<String>,
    /// The ballot of the proposal.
    pub ballot: Ballot,
    /// `None`: promise not to accept older ballots. Otherwise: accept this topology.
    pub next: Option<Committed>,
}

/// A voter's response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VoteReply {
    /// Promised, and stored on disk, not to accept older ballots.
    Promised {
        /// The topology accepted earlier, which must be proposed again.
        accepted: Option<(Ballot, Committed)>,
        /// Highest epoch that the voter has seen.
        epoch: Epoch,
    },
    /// Accepted, and stored on disk.
    Accepted,
    /// Rejected: another proposal is newer.
    Nack(Ballot),
    /// Rejected: a later topology was committed.
    Behind(Box<Committed>),
    /// It has no vote: its record was lost, it is preparing an assignment, or it has a different witness configured.
    Abstains(String),
}

/// A recovery request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryAsk {
    /// Return what the node holds. Carries the sender's name and listen address, which may have changed.
    Standing(Option<(String, String)>),
    /// A topology that was elected, or that is known to serve.
    Learn(Box<Committed>),
    /// A vote.
    Vote(Box<Vote>),
    /// An operator confirms that the missing members do not come back: the rest may continue without a majority.
    TakeOver,
    /// The state of a rolling restart; the higher revision wins.
    Rolling(Rolling),
    /// Drain for at most this long, then exit to be restarted.
    Restart {
        /// Longest drain.
        drain_ms: u32,
    },
    /// From a steward to its own node: a majority of the other members hold this topology and have accepted none that
    /// follows it. A node whose record of votes is gone votes again on later topologies. Since wire version 5.
    Recall(Box<Committed>),
}

/// A recovery response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecoveryAnswer {
    /// What the node holds.
    Standing(Box<Standing>),
    /// Stored, also on disk.
    Learned,
    /// A voter's answer.
    Vote(VoteReply),
}

impl RecoveryAnswer {
    /// Checks what readers rely on: all topologies are valid.
    ///
    /// # Errors
    /// The first part that is invalid.
    pub fn check(&self) -> Result<(), String> {
        let committed = match self {
            Self::Standing(standing) => {
                standing.exclusions.check().map_err(|error| error.to_string())?;
                standing.rolling.as_ref().map_or(Ok(()), Rolling::check)?;
                standing.committed.as_ref()
            }
            Self::Vote(VoteReply::Promised { accepted, .. }) => accepted.as_ref().map(|(_, committed)| committed),
            Self::Vote(VoteReply::Behind(committed)) => Some(&**committed),
            Self::Vote(_) | Self::Learned => None,
        };
        let topologies = committed.into_iter().flat_map(|committed| [&committed.topology, committed.desired()]);
        topologies.map(Topology::check).try_for_each(|checked| checked.map_err(|error| error.to_string()))
    }
}

/// A rank that has delayed its stage for a long time, as seen by one of its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slow {
    /// The rank in its replica.
    pub rank: Rank,
    /// Percent of the reporting node's time.
    pub percent: u8,
    /// Minimum duration in seconds.
    pub seconds: u32,
}

/// State and holdings of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// Random number chosen at each start of the daemon.
    pub instance: u64,
    /// Current state.
    pub state: NodeState,
    /// Highest epoch seen.
    pub epoch: Epoch,
    /// The last topology that it committed or learned as a member.
    pub committed: Option<Committed>,
    /// Whether it has accepted a topology that follows `committed`.
    pub accepted: bool,
    /// Memory for the next shard: available memory and what the current shard occupies; 0 if unknown, as with experts that
    /// may stay on the disk.
    pub free: Bytes,
    /// Size of its current shard.
    pub shard: Bytes,
    /// Whether a supervisor restarts the daemon after it exits for a restart.
    pub supervised: bool,
    /// Whether an operator confirmed that missing members do not come back.
    pub takes_over: bool,
    /// Excluded nodes.
    pub exclusions: Exclusions,
    /// The latest rolling restart.
    pub rolling: Option<Rolling>,
    /// Listen addresses that other nodes announced, by name.
    pub heard: Vec<(String, String)>,
    /// The straggler without which it would be faster.
    pub slow: Option<Slow>,
    /// The reason for its own machine's slowness, in words.
    pub trouble: Option<String>,
    /// Whether its record of votes is gone: it votes again once it has learned the state of a majority.
    #[serde(default, with = "common::version::since_5")]
    pub forgets: bool,
    /// Share of its stage's recent all-reduce time that it spends computing, in thousandths; `None` after too few
    /// all-reduces.
    #[serde(default, with = "common::version::since_5")]
    pub busy: Option<u16>,
    /// The topology that was last unloaded here: its other members unload it, too.
    #[serde(default, with = "common::version::since_12")]
    pub unloaded: Option<(Epoch, TopologyHash)>,
    /// Seconds since the last request of a head ended, if its topology is unloaded after some.
    #[serde(default, with = "common::version::since_12")]
    pub idle: Option<u32>,
}
