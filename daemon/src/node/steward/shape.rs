//! Changes a topology while it serves. The steward of its first member includes members of the desired topology that
//! are back, and rebalances shares where ranks compute for different times. A rolling restart excludes a member before
//! it restarts.
use std::time::Duration;

use common::{
    fault::Fault,
    planted::{Planted, is_planted},
    units::Bytes,
};
use protocol::recovery::Committed;
use telemetry::NodeState;
use topology::{Exclusions, Member};

use super::{
    Look, PAUSE_MAX, SETTLE, Steward, StewardAsk, View,
    change::{Joins, TopologyChange, stays},
    propose::Proposal,
    reasons::ends_by_itself,
    view::exclusions,
};
use crate::node::steward::balance::rebalanced;

/// Pause after a rebalance; doubles up to the maximum while rebalances follow each other closely.
pub(super) const BALANCE_PAUSE: Duration = Duration::from_secs(60);
const BALANCE_PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Longest pause before another attempt to include the same members.
const RETURN_PAUSE_MAX: Duration = Duration::from_secs(300);

/// A member that the last attempt could not include: its model file did not match, or the topology with it was not
/// loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldBack {
    /// Until then the others return without it.
    until: Duration,
    /// The time from the end of that attempt until then.
    pause: Duration,
}

impl Steward {
    /// A member that is back could not be included: it must not keep others from returning, or from serving. It is
    /// tried again after a pause, which doubles with each attempt.
    pub(super) fn hold_back(&mut self, address: String) {
        let now = self.now;
        self.held_back.retain(|_, held| now < held.until + 2 * RETURN_PAUSE_MAX);
        let pause = match self.held_back.get(&address) {
            // Another failure of the same attempt.
            Some(held) if now < held.until => held.pause,
            Some(held) => (2 * held.pause).min(RETURN_PAUSE_MAX),
            None => PAUSE_MAX,
        };
        self.held_back.insert(address, HeldBack { until: now + pause, pause });
    }

    /// Proposes the desired topology, or the best fit, with the members that are back, while all members serve.
    pub(super) fn watch_return(&mut self, look: Look, views: Vec<View>) -> Vec<StewardAsk> {
        let others: Vec<Member> = {
            let desired = look.base.desired().members.iter();
            let absent =
                desired.filter(|member| look.base.topology.members.iter().all(|serving| serving.name != member.name));
            absent.cloned().collect()
        };
        let found = self.views(&look, &others);
        // Everything else has precedence.
        if !views.iter().all(|view| is_at_rest(view, &look.base)) {
            self.back = None;
            return Vec::new();
        }
        let list = exclusions(views.iter().chain(&found).filter_map(|view| view.standing.as_ref()));
        let back = others.iter().zip(&found);
        let back = back.filter(|(_, view)| self.held_back.get(&view.address).is_none_or(|held| self.now >= held.until));
        let back = back.filter(|(member, view)| is_back(member, view, &list));
        // A member that left for its restart is idle until it gets the order to restart.
        let back = back.filter(|(_, view)| {
            view.standing
                .as_ref()
                .is_none_or(|one| !views.iter().any(|view| view.is_about_to_restart(&one.name, one.instance)))
        });
        let back: Vec<(&Member, &View)> = back.collect();
        let joins: Vec<Joins> = back
            .iter()
            .filter_map(|(member, view)| {
                let epoch = view.standing.as_ref()?.epoch;
                Some(Joins { name: member.name.clone(), address: view.address.clone(), epoch })
            })
            .collect();
        if self.back.as_ref().is_none_or(|(before, _)| *before != joins) {
            (self.return_next, self.return_pause) = (self.now, PAUSE_MAX);
            self.back = Some((joins.clone(), self.now));
        }
        let is_settled = self.back.as_ref().is_some_and(|(_, since)| self.now >= *since + SETTLE);
        if joins.is_empty() || !is_settled || self.now < self.return_next {
            return Vec::new();
        }
        let stay = stays(look.base.desired(), look.base.topology.members.iter().zip(&views).chain(back));
        let change = TopologyChange::Return { stay, joins };
        self.propose(Proposal { base: look.base, views, own: look.place, change, granted: 0, serves: true })
    }

    /// Proposes a topology without the member that is about to restart, while all members serve.
    pub(super) fn watch_leave(&mut self, look: Look, views: Vec<View>) -> Vec<StewardAsk> {
        if !views.iter().all(|view| is_at_rest(view, &look.base)) {
            return Vec::new();
        }
        let members = look.base.topology.members.iter().zip(&views);
        let mut stay = stays(look.base.desired(), members.filter(|(member, _)| member.name != self.leaving));
        for one in &mut stay {
            // The current shards stay loaded meanwhile, so their memory does not count as free.
            let standing = views[one.member.index()].standing.as_ref();
            let shard = standing.map_or(Bytes(0), |standing| standing.shard);
            // 0 would mean that the free memory is unknown.
            if one.free.0 > 0 {
                one.free = Bytes(one.free.0.saturating_sub(shard.0).max(1));
            }
        }
        let change = TopologyChange::Leave { stay };
        self.propose(Proposal { base: look.base, views, own: look.place, change, granted: 0, serves: true })
    }

    /// Proposes new shares for ranks that compute for different times, while all members serve.
    pub(super) fn watch_balance(&mut self, look: Look, views: Vec<View>) -> Vec<StewardAsk> {
        let waits = look.place != 0 || self.now < self.balance_next || self.settings.recovery.rebalance_after.is_none();
        if waits || views.iter().any(View::is_restarting) || !views.iter().all(|view| is_at_rest(view, &look.base)) {
            return Vec::new();
        }
        let Some(topology) = rebalanced(&look.base.topology, &views) else { return Vec::new() };
        let shares: Vec<String> =
            topology.members.iter().map(|member| format!("{} {}", member.name, member.weight)).collect();
        tracing::warn!("ranks compute for different times; proposes new shares: {}", shares.join(", "));
        let change = TopologyChange::Shares(topology);
        self.propose(Proposal { base: look.base, views, own: look.place, change, granted: 0, serves: true })
    }

    /// A vote on shares has ended. If rebalances follow each other, speeds vary faster than shares should: the pause
    /// grows.
    pub(super) fn balance_ended(&mut self, outcome: Result<(), Fault>) {
        if let Err(fault) = outcome {
            tracing::warn!("cannot rebalance shares: {fault}");
        }
        let is_soon = self.now < self.balance_next + 2 * self.balance_pause;
        let longer = (2 * self.balance_pause).min(BALANCE_PAUSE_MAX);
        self.balance_pause = if is_soon && self.balance_next > Duration::ZERO { longer } else { BALANCE_PAUSE };
        self.balance_next = self.now + self.balance_pause;
    }

    /// A vote on including members that are back has ended.
    pub(super) fn return_ended(&mut self, outcome: Result<(), Fault>) {
        self.return_next = self.now + self.return_pause;
        if let Err(fault) = outcome {
            tracing::warn!("cannot include members that are back yet: {fault}");
            self.return_pause = (2 * self.return_pause).min(RETURN_PAUSE_MAX);
        }
    }

    /// The plan with the members that are back equals the running topology. Repeats until their free memory changes.
    pub(super) fn return_changes_nothing(&mut self) {
        tracing::debug!("the members that are back do not change the plan");
        self.return_next = self.now + self.return_pause;
        self.return_pause = (2 * self.return_pause).min(RETURN_PAUSE_MAX);
    }

    /// A vote on excluding a member before its restart has ended. The member restarts in any case.
    pub(super) fn leave_ended(&mut self, outcome: Result<(), Fault>) {
        if let Err(fault) = outcome {
            tracing::warn!("cannot exclude {} before it restarts: {fault}", self.leaving);
        }
    }
}

/// Whether a member serves this topology. It may have accepted another one in a vote without a majority; the next
/// ballot settles that.
fn is_at_rest(view: &View, base: &Committed) -> bool {
    view.serves() && view.standing.as_ref().is_some_and(|one| one.committed.as_ref() == Some(base))
}

/// Whether a member can rejoin: it is idle, holds no topology, and is excluded neither by an operator nor as a straggler.
fn is_back(member: &Member, view: &View, list: &Exclusions) -> bool {
    let is_free = view.standing.as_ref().is_some_and(|one| one.state == NodeState::Idle && one.committed.is_none());
    let is_in = list.of(&member.name, &member.address).is_none_or(|entry| entry.is_cordon || ends_by_itself(entry));
    is_free && is_in && !is_planted(Planted::NeverReturns)
}
