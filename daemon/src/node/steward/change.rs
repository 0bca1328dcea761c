//! The kinds of topology that a member proposes, and the members that come back with one.
use common::ids::{Epoch, MemberIndex, is_in_reach};
use planner::replan::Stays;
use topology::{Member, Topology};

use super::View;

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

impl TopologyChange {
    /// The highest epoch in reach that a joining member has seen: an assignment that failed may have left it there.
    pub(super) fn seen(&self, base: Epoch) -> Epoch {
        let Self::Return { joins, .. } = self else { return base };
        let seen = joins.iter().map(|one| one.epoch).filter(|epoch| is_in_reach(base.0, epoch.0));
        seen.max().unwrap_or(base)
    }

    /// A joining member has seen this epoch.
    pub(super) fn saw(&mut self, name: &str, epoch: Epoch) {
        let Self::Return { joins, .. } = self else { return };
        joins.iter_mut().filter(|one| one.name == name).for_each(|one| one.epoch = one.epoch.max(epoch));
    }

    /// The addresses of the members of the wanted topology that join it.
    pub(super) fn joining(&self, wanted: &Topology) -> Vec<String> {
        match self {
            Self::Return { joins, .. } => joins
                .iter()
                .filter(|one| wanted.members.iter().any(|member| member.name == one.name))
                .map(|one| one.address.clone())
                .collect(),
            Self::Again { topology, joins } => vec![topology.members[joins.index()].address.clone()],
            Self::On { .. } | Self::Shares(_) | Self::Leave { .. } => Vec::new(),
        }
    }
}

/// A member of the desired topology that is back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Joins {
    pub(super) name: String,
    pub(super) address: String,
    /// The highest epoch that it has seen.
    pub(super) epoch: Epoch,
}

/// The available members, by their index in the desired topology.
pub(super) fn stays<'a>(desired: &Topology, there: impl Iterator<Item = (&'a Member, &'a View)>) -> Vec<Stays> {
    let mut stay: Vec<Stays> = there
        .filter_map(|(member, view)| {
            let place = desired.members.iter().position(|one| one.name == member.name)?;
            let free = view.standing.as_ref().map_or_else(Default::default, |one| one.free);
            Some(Stays { member: MemberIndex(place as u16), address: view.address.clone(), free })
        })
        .collect();
    stay.sort_by_key(|one| one.member);
    stay
}
