//! Topologies whose replicas differ: some compute only prompts and some only answers, or some have lost nodes. Pure.
use std::{fmt, str::FromStr};

use common::limits::NODES_MAX;
use serde::{Deserialize, Serialize};

use crate::layout::{Layout, SpecError};

/// Most replicas of a topology with different replicas.
pub const GROUPS_MAX: usize = 8;

/// The role of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Computes prompts and answers.
    #[default]
    Both,
    /// Computes prompts for the decode groups and sends them the keys and values.
    Prefill,
    /// Accepts requests, delegates long prompts to a prefill group, and computes answers.
    Decode,
}

impl Role {
    /// Whether requests are sent to its head.
    pub fn takes_requests(self) -> bool {
        self != Self::Prefill
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Both => "both",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        })
    }
}

/// A replica with its role and size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Group {
    /// Its role.
    pub role: Role,
    /// Ranks of each stage; 0 in an unused entry.
    pub ranks: u16,
}

/// The replicas of a topology whose replicas differ; empty if all are alike and have no role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Groups([Group; GROUPS_MAX]);

impl Groups {
    /// Creates groups in this order.
    ///
    /// # Errors
    /// Too many groups, a group without nodes, roles on only some groups, or a missing role.
    pub fn new(list: &[Group]) -> Result<Self, SpecError> {
        let mut groups = Self::default();
        if list.len() > GROUPS_MAX {
            let (what, value, most) = ("the number of replicas that differ", list.len() as u64, GROUPS_MAX as u64);
            return Err(SpecError::Bound { what, value, least: 2, most });
        }
        groups.0[..list.len()].copy_from_slice(list);
        groups.check()?;
        Ok(groups)
    }

    /// The groups.
    pub fn list(&self) -> &[Group] {
        let end = self.0.iter().position(|group| group.ranks == 0).unwrap_or(GROUPS_MAX);
        &self.0[..end]
    }

    /// Whether all replicas are alike.
    pub fn is_empty(&self) -> bool {
        self.list().is_empty()
    }

    /// Checks groups from another node or a console.
    ///
    /// # Errors
    /// A group behind a gap, too many nodes, roles on only some of the groups, a missing role, or identical groups
    /// without roles.
    pub fn check(&self) -> Result<(), SpecError> {
        let list = self.list();
        if self.0[list.len()..].iter().any(|group| *group != Group::default()) {
            return Err(SpecError::Roles("a group has no nodes"));
        }
        if list.iter().any(|group| usize::from(group.ranks) > NODES_MAX) {
            return Err(SpecError::Roles("a group has too many nodes"));
        }
        let has = |role: Role| list.iter().any(|group| group.role == role);
        match list {
            [] => Ok(()),
            [first, rest @ ..] if !has(Role::Prefill) && !has(Role::Decode) => {
                if rest.iter().all(|group| group == first) {
                    return Err(SpecError::Roles("the replicas are identical: write them as dpR"));
                }
                Ok(())
            }
            _ if has(Role::Both) => Err(SpecError::Roles("some groups have no role")),
            _ if !has(Role::Prefill) => Err(SpecError::Roles("no group has the role prefill")),
            _ if !has(Role::Decode) => Err(SpecError::Roles("no group has the role decode")),
            _ => Ok(()),
        }
    }
}

/// Parses `prefill:tp2+decode:dp2-tp1`, where a role applies to all replicas of the layout after it, and `tp2+tp1`:
/// replicas without roles and with different numbers of ranks.
pub(super) fn parse(text: &str) -> Result<Layout, SpecError> {
    let grammar = || SpecError::Grammar(text.chars().take(64).collect());
    let (mut list, mut stages) = (Vec::new(), None);
    for part in text.split('+') {
        let (role, layout) = match part.split_once(':') {
            None => (Role::Both, part),
            Some((role, layout)) => {
                let role = [Role::Prefill, Role::Decode].into_iter().find(|known| known.to_string() == role);
                (role.ok_or_else(grammar)?, layout)
            }
        };
        if layout.contains(':') {
            return Err(grammar());
        }
        let layout = Layout::from_str(layout)?;
        if *stages.get_or_insert(layout.stages) != layout.stages {
            return Err(SpecError::Roles("groups have different numbers of stages"));
        }
        let group = Group { role, ranks: layout.ranks };
        list.extend(std::iter::repeat_n(group, usize::from(layout.replicas)));
        if list.len() > NODES_MAX {
            return Err(SpecError::Count {
                text: text.chars().take(64).collect(),
                part: part.chars().take(64).collect(),
            });
        }
    }
    let layout = Layout::of_replicas(&list, stages.unwrap_or(1))?;
    if layout.node_count() > NODES_MAX {
        return Err(SpecError::Count { text: text.into(), part: text.into() });
    }
    Ok(layout)
}

/// Writes a layout as [`parse`] reads it; consecutive identical groups are counted.
pub(super) fn write(layout: &Layout) -> String {
    let like = layout.groups.list().chunk_by(|one, two| one == two);
    like.map(|groups| {
        let inside = Layout::alike(groups.len() as u16, layout.stages, groups[0].ranks);
        match groups[0].role {
            Role::Both => inside.to_string(),
            role => format!("{role}:{inside}"),
        }
    })
    .collect::<Vec<_>>()
    .join("+")
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::ids::{MemberIndex, Rank};

    #[test]
    fn groups_with_roles_round_trip_and_place_their_members() {
        for text in
            ["prefill:tp2+decode:tp1+decode:tp3", "decode:dp2-tp1+prefill:tp1", "prefill:pp2-tp2+decode:pp2-tp1"]
        {
            assert_eq!(text.parse::<Layout>().map(|layout| layout.to_string()), Ok(text.to_owned()));
        }
        let layout: Layout = "prefill:tp2+decode:tp1+decode:tp3".parse().expect("a layout");
        assert_eq!((layout.replicas, layout.node_count()), (3, 6));
        let places: Vec<(u16, Rank, Role)> = (0..6)
            .map(|member| layout.place(MemberIndex(member)))
            .map(|place| (place.replica, place.rank, place.role))
            .collect();
        let of = |replica, rank, role| (replica, Rank(rank), role);
        let (prefill, decode) = (Role::Prefill, Role::Decode);
        let expected = [
            of(0, 0, prefill),
            of(0, 1, prefill),
            of(1, 0, decode),
            of(2, 0, decode),
            of(2, 1, decode),
            of(2, 2, decode),
        ];
        assert_eq!(places, expected);
        assert_eq!(layout.peer(MemberIndex(3), Rank(2)), MemberIndex(5));
        assert_eq!(
            layout.heads().collect::<Vec<_>>(),
            [MemberIndex(2), MemberIndex(3)],
            "requests go to decode groups"
        );
        assert!(layout.are_across(MemberIndex(0), MemberIndex(5)) && layout.are_across(MemberIndex(2), MemberIndex(1)));
        assert!(
            !layout.are_across(MemberIndex(2), MemberIndex(3)) && !layout.are_across(MemberIndex(0), MemberIndex(1))
        );
    }

    #[test]
    fn invalid_combinations_of_roles_are_rejected() {
        let refused = |text: &str| text.parse::<Layout>().expect_err("it cannot be").to_string();
        assert!(refused("prefill:tp2+prefill:tp1").contains("no group has the role decode"));
        assert!(refused("decode:tp2").contains("no group has the role prefill"));
        assert!(refused("prefill:pp2-tp1+decode:tp2").contains("stages"));
        assert!(refused("prefill:tp2+tp1").contains("some groups have no role"));
        assert!(Groups::new(&[Group { role: Role::Both, ranks: 2 }; 2]).is_err(), "they are alike");
        for text in ["prefil:tp2+decode:tp1", "prefill:tp2+", "prefill:decode:tp1", "prefill"] {
            assert!(matches!(text.parse::<Layout>(), Err(SpecError::Grammar(_))), "{text}");
        }
        assert!(matches!("prefill:tp1+decode:dp8-tp1".parse::<Layout>(), Err(SpecError::Bound { .. })));
        assert!(matches!("prefill:tp60+decode:tp5".parse::<Layout>(), Err(SpecError::Count { .. })));
        let mut gap = Groups::default();
        gap.0[1] = Group { role: Role::Decode, ranks: 1 };
        assert!(gap.check().is_err(), "a group after an unused entry");
        assert_eq!("prefill:tp1+decode:tp1".parse::<Layout>().expect("a layout").on(3).to_string(), "tp3");
    }
}
