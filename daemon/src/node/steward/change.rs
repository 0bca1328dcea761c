//! The kinds of topology that a member proposes, and the members that come back with one.
use common::ids::MemberIndex;
use planner::replan::Stays;
use topology::Topology;

/// The kind of topology to propose.
#[derive(Debug)]
pub(super) enum TopologyChange {
    /// The desired topology on the members that stay; `lost` are the excluded members, each with the reason.
    On { stay: Vec<MemberIndex>, lost: Vec<(MemberIndex, String)> },
    /// The same members with new shares, which become part of the desired topology.
    Shares(Topology),
    /// The desired topology on all available members; `joins` are those that are back.
    Return { stay: Vec<Stays>, joins: Vec<Joins> },
    /// The desired topology without a member that is about to restart.
    Leave { stay: Vec<Stays> },
    /// An earlier topology, including a node that was excluded.
    Again { topology: Topology, joins: MemberIndex },
}

/// A member of the desired topology that is back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Joins {
    pub(super) name: String,
    pub(super) address: String,
}
