//! Decides how a node reacts when its topology does not run: waits for a member, brings the topology up again, or
//! proposes another one on the remaining members. Pure: uses only the members' latest standings.
use std::time::Duration;

use common::{
    ids::MemberIndex,
    planted::{Planted, is_planted},
};
use protocol::recovery::{Committed, Standing};
use telemetry::NodeState;
use topology::Role;

use super::{reasons::AWAY, view::exclusions};
use crate::node::quorum::{majority, voters};
use crate::node::steward::view::View;

/// Rules for a decision.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// A member that is away for longer is excluded; `None`: never.
    pub exclude_after: Option<Duration>,
    /// Whether the witness of a topology of two nodes answers; `None`: there is none.
    pub witness: Option<bool>,
    /// A member that answers but has failed to load its shard for as long.
    pub failing: Option<FailingMember<'a>>,
}

/// A member that cannot load its shard.
#[derive(Clone, Copy, Debug)]
pub struct FailingMember<'a> {
    /// The member.
    pub member: MemberIndex,
    /// Why it is excluded.
    pub reason: &'a str,
}

/// The decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Nothing is wrong, or this node can do nothing.
    Rest,
    /// Another node has to act or to return; the text gives the reason.
    Wait(String),
    /// A later topology was committed.
    Learn(Committed),
    /// Another member has unloaded the topology, or a later one.
    Forget,
    /// Bring the topology up again on these members.
    Bring(Vec<MemberIndex>),
    /// Propose a topology of these members, at the addresses at which they answer; the others are lost.
    Propose {
        /// The members that stay.
        stay: Vec<MemberIndex>,
        /// The members to exclude, each with the reason.
        lost: Vec<(MemberIndex, String)>,
        /// Votes of absent members, for which an operator answers.
        granted: usize,
    },
}

impl Decision {
    /// Whether two decisions differ only in how long a member has been away.
    pub(super) fn is_alike(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Propose { stay: one, .. }, Self::Propose { stay: two, .. }) => one == two,
            _ => self == other,
        }
    }
}

/// Decides for member `own` of the committed topology; `views` are all members, in member order.
pub fn decide(own: MemberIndex, base: &Committed, views: &[View], rules: &Rules<'_>) -> Decision {
    let standings = || views.iter().filter_map(|view| view.standing.as_ref());
    let committed = standings().filter_map(|standing| standing.committed.as_ref());
    if let Some(later) = committed.max_by(|one, other| one.order(other)).filter(|later| later.is_later_than(base)) {
        return Decision::Learn(later.clone());
    }
    if standings().any(|standing| has_ended(standing, base)) {
        return Decision::Forget;
    }
    let exclusions = exclusions(standings());
    let out = |index: usize| {
        let member = &base.topology.members[index];
        exclusions.of(&member.name, &member.address).filter(|entry| !entry.is_cordon)
    };
    if !views.get(own.index()).is_some_and(View::is_free) || out(own.index()).is_some() {
        return Decision::Rest;
    }
    let layout = base.topology.layout;
    let is_whole = layout.role(0) != Role::Both;
    let unit = if is_whole { 0..views.len() } else { layout.members(layout.replica_of(own)) };
    let taken_over = standings().any(|standing| standing.takes_over);
    let failing = |index: usize| rules.failing.filter(|one| one.member.index() == index);
    let reason = |index: usize| {
        if let Some(entry) = out(index) {
            return Some(entry.reason.clone().unwrap_or_default());
        }
        if let Some(failing) = failing(index) {
            return Some(failing.reason.into());
        }
        why_overdue(&views[index], rules, taken_over)
    };
    let missing =
        |index: &usize| views[*index].standing.is_none() || out(*index).is_some() || failing(*index).is_some();
    let is_accepted = standings().any(|standing| standing.accepted);
    // A member that holds nothing and has seen a later epoch was voted out: that vote took place while this node was
    // cut off.
    let was_voted_out = views[unit.clone()]
        .iter()
        .any(|view| view.standing.as_ref().is_some_and(|one| one.committed.is_none() && one.epoch > base.epoch));
    if was_voted_out && !(0..views.len()).any(|index| missing(&index)) {
        return propose(own, base, views, rules, taken_over, &reason);
    }
    let mut has_moved = false;
    if !unit.clone().any(|index| missing(&index)) && !is_accepted {
        let decision = bring(own, base, views, unit.clone());
        // A vote on new addresses leaves out lost members of other replicas.
        has_moved = matches!(decision, Decision::Propose { .. }) && (0..views.len()).any(|index| missing(&index));
        if !has_moved {
            return decision;
        }
    }
    // A member that is away but not overdue may come back soon: until then no member is excluded.
    let mut members = unit.clone().chain(0..views.len());
    if let Some(patient) = members.find(|index| missing(index) && reason(*index).is_none()) {
        return Decision::Wait(format!("waits for {}", base.topology.members[patient].name));
    }
    // A lost member is voted out even while other replicas serve: they keep serving, and the rest of this replica can
    // serve again.
    let has_lost = has_moved || unit.clone().any(|index| missing(&index) && out(index).is_none());
    // A vote that has begun is finished: until then its voters start nothing else.
    if views.iter().any(View::serves) && !has_lost && !is_accepted {
        return Decision::Wait(
            "its replica is broken, others serve; repair the node, then include it or assign \
         again"
                .into(),
        );
    }
    propose(own, base, views, rules, taken_over, &reason)
}

/// Why a member that does not answer is excluded, if the others wait no longer. With `taken_over`, an operator said so.
fn why_overdue(view: &View, rules: &Rules<'_>, taken_over: bool) -> Option<String> {
    let is_gone = taken_over || rules.exclude_after.is_some_and(|most| view.is_unstable || view.lost >= most);
    let again = if view.is_unstable { ", again before the topology served" } else { "" };
    (view.standing.is_none() && is_gone).then(|| format!("{AWAY} {} s{again}", view.lost.as_secs()))
}

/// Whether a member has unloaded the topology, or a later one for which it had left it. Members that were away meanwhile
/// would drop their record if the later one still ran; that it does not is no reason to bring theirs back.
fn has_ended(standing: &Standing, base: &Committed) -> bool {
    let is_free = standing.committed.is_none();
    standing.unloaded.is_some_and(|name| name == base.name() || (is_free && name.0 > base.epoch))
}

fn bring(own: MemberIndex, base: &Committed, views: &[View], unit: std::ops::Range<usize>) -> Decision {
    let name = |index: usize| base.topology.members[index].name.as_str();
    let is_whole = unit.len() == views.len();
    let mut members = unit.clone();
    let busy = members.find(|index| {
        let is_told = is_planted(Planted::UntoldFault)
            && !(is_whole && unit.len() > 1 && base.topology.layout.role(0) != Role::Both);
        // This node's replica is broken: a member that serves it has not noticed, or its group has a role and starts
        // with the others.
        let is_ready = views[*index].is_free() || (views[*index].serves() && !is_told);
        !is_ready
    });
    if let Some(busy) = busy {
        let state = views[busy].state().map_or("away", NodeState::name);
        return Decision::Wait(format!("{} is {state}", name(busy)));
    }
    // The steward of a serving member is idle, so that member cannot lead.
    let mut members = unit.clone();
    let leader = members.find(|index| {
        let view = &views[*index];
        (view.is_free() || is_planted(Planted::ServingLeader))
            && view.standing.as_ref().is_some_and(|one| one.committed.as_ref() == Some(base))
    });
    match leader {
        Some(leader) if leader == own.index() => {}
        Some(leader) => return Decision::Wait(format!("{} brings the topology up", name(leader))),
        None => return Decision::Rest,
    }
    let member = |index: usize| MemberIndex(index as u16);
    if unit.clone().any(|index| views[index].address != base.topology.members[index].address) {
        // Addresses are part of the topology, so a change of address needs a vote.
        let stay = (0..views.len()).map(member).collect();
        return Decision::Propose { stay, lost: Vec::new(), granted: 0 };
    }
    Decision::Bring(unit.map(member).collect())
}

/// Proposes a topology of the members without a reason to leave them out. With `taken_over`, an operator answers for those
/// that are away.
fn propose(
    own: MemberIndex,
    base: &Committed,
    views: &[View],
    rules: &Rules<'_>,
    taken_over: bool,
    reason: &dyn Fn(usize) -> Option<String>,
) -> Decision {
    let lost: Vec<(MemberIndex, String)> =
        (0..views.len()).filter_map(|index| Some((MemberIndex(index as u16), reason(index)?))).collect();
    let stay: Vec<MemberIndex> = (0..views.len() as u16)
        .map(MemberIndex)
        .filter(|member| !lost.iter().any(|(gone, _)| gone == member))
        .collect();
    let answers = views.iter().filter(|view| view.standing.is_some()).count();
    let voters = voters(views.len(), rules.witness.is_some());
    let votes = answers + usize::from(voters > views.len() && rules.witness == Some(true));
    let granted = if taken_over { voters - votes } else { 0 };
    if votes + granted < majority(voters) {
        let help = "if you are sure that the others do not serve, run `console topology take-over`";
        return Decision::Wait(format!("sees {votes} of {voters} votes, no majority: {help}"));
    }
    let leader = stay.iter().find(|member| {
        let view = &views[member.index()];
        view.is_free() && view.standing.as_ref().is_some_and(|one| one.committed.as_ref() == Some(base))
    });
    match leader {
        // Only this node has seen which member fails: it proposes, even a topology without itself.
        Some(leader) if *leader == own || rules.failing.is_some() => Decision::Propose { stay, lost, granted },
        Some(leader) => Decision::Wait(format!("{} takes over", base.topology.members[leader.index()].name)),
        None => Decision::Rest,
    }
}
