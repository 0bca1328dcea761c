//! The circuit breaker for stragglers: decides when to exclude a rank that delays its peers, and when to try the
//! previous topology again. Pure: works on the members' latest reports and on what it did before.
use std::time::Duration;

use common::ids::MemberIndex;
use protocol::recovery::{Committed, Standing};
use telemetry::NodeState;
use topology::Topology;

use super::reasons::{SLOW, is_straggler};
use crate::node::steward::View;

/// Longest time until a straggler is tried again; the time doubles whenever the node is slow again.
const RETRY_MAX: Duration = Duration::from_secs(2 * 3600);

/// An excluded straggler.
#[derive(Clone, Debug)]
struct Opened {
    /// The topology that it was part of.
    before: Committed,
    member: MemberIndex,
    /// Start of the exclusion, and its shortest duration.
    since: Duration,
    wait: Duration,
}

/// The breaker's decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// No action.
    Rest,
    /// Continue without a member.
    TakeOut {
        /// The straggler.
        slow: MemberIndex,
        /// The reason for the exclusion.
        reason: String,
    },
    /// Serve an earlier topology again, including the member that was excluded.
    TryAgain {
        /// The earlier topology.
        before: Topology,
        /// The member that rejoins.
        joins: MemberIndex,
    },
}

/// State of the breaker on the one node that acts.
#[derive(Debug)]
pub struct Breaker {
    /// Initial time until a straggler is tried again; `None`: never.
    retry: Option<Duration>,
    opened: Option<Opened>,
    /// The node that was tried again, the time of that attempt, and how long the node had been excluded.
    tried: Option<(String, Duration, Duration)>,
}

impl Breaker {
    /// A breaker that tries a straggler again after `retry`.
    pub fn new(retry: Option<Duration>) -> Self {
        Self { retry, opened: None, tried: None }
    }

    /// Whether the members must be asked: this node reports a straggler, or an excluded one may be tried again.
    pub fn is_due(&self, own: &Standing, now: Duration) -> bool {
        own.slow.is_some()
            || (self.retry.is_some() && self.opened.as_ref().is_some_and(|one| now >= one.since + one.wait))
    }

    /// Name and address of the excluded node.
    pub fn out(&self) -> Option<(&str, &str)> {
        let opened = self.opened.as_ref()?;
        let member = &opened.before.topology.members[opened.member.index()];
        Some((&member.name, &member.address))
    }

    /// Decides for member `own` of the running topology. `views` are its members; `out` is the report of the excluded
    /// node.
    pub fn look(
        &mut self,
        own: MemberIndex,
        base: &Committed,
        views: &[View],
        out: Option<&Standing>,
        now: Duration,
    ) -> Turn {
        // Everything else has precedence.
        if !views.iter().all(View::serves) || views.iter().any(View::is_restarting) {
            return Turn::Rest;
        }
        if let Some((slow, reason)) = slow(own, base, views) {
            let name = &base.topology.members[slow.index()].name;
            let again = self.tried.take().filter(|(node, at, wait)| node == name && now < *at + 2 * *wait);
            let wait = again.map_or(self.retry.unwrap_or(RETRY_MAX), |(_, _, wait)| (2 * wait).min(RETRY_MAX));
            self.opened = Some(Opened { before: base.clone(), member: slow, since: now, wait });
            return Turn::TakeOut { slow, reason };
        }
        self.try_again(base, out, now)
    }

    fn try_again(&mut self, base: &Committed, out: Option<&Standing>, now: Duration) -> Turn {
        let (Some(opened), Some(_)) = (&mut self.opened, self.retry) else { return Turn::Rest };
        let member = &opened.before.topology.members[opened.member.index()];
        // The running topology must follow the earlier one: the same other members, in the next epoch that they agreed
        // on.
        let before = opened.before.topology.members.iter().filter(|one| one.name != member.name);
        let follows = base.epoch > opened.before.epoch
            && before.map(|one| &one.name).eq(base.topology.members.iter().map(|one| &one.name));
        let exclusion = out.and_then(|out| out.exclusions.of(&member.name, &member.address));
        let is_left_to_us = exclusion.is_some_and(is_straggler);
        match out {
            _ if !follows => self.opened = None,
            Some(_) if !is_left_to_us => self.opened = None,
            Some(out) if now >= opened.since + opened.wait && out.state == NodeState::Idle && out.trouble.is_none() => {
                self.tried = Some((member.name.clone(), now, opened.wait));
                // Cleared when the node serves again; if the vote fails, the next attempt follows after the same time.
                opened.since = now;
                return Turn::TryAgain { before: opened.before.topology.clone(), joins: opened.member };
            }
            _ => {}
        }
        Turn::Rest
    }
}

/// The straggler and the reason, if this node is the one to act: the lowest other rank of its stage. Blame follows the
/// wait chain: if a rank delays its peers only because it waited for another, the rank at the end of the chain is the
/// straggler.
fn slow(own: MemberIndex, base: &Committed, views: &[View]) -> Option<(MemberIndex, String)> {
    let (layout, place) = (base.topology.layout, base.topology.layout.place(own));
    if layout.has_roles() {
        return None;
    }
    let first = own.index().checked_sub(place.rank.index())?;
    let standing = |rank: u16| views.get(first + usize::from(rank))?.standing.as_ref();
    let mut named = standing(place.rank.0)?.slow?;
    for _ in place.group.clone() {
        if !place.group.contains(&named.rank.0) {
            return None;
        }
        match standing(named.rank.0)?.slow {
            Some(further) => named = further,
            None => break,
        }
    }
    // A circular wait has no straggler.
    let found = standing(named.rank.0).filter(|found| found.slow.is_none())?;
    let trouble = found.trouble.as_ref().map_or(String::new(), |trouble| format!(": {trouble}"));
    let reason = format!("{SLOW} {} % of their time for {} s{trouble}", named.percent, named.seconds);
    let leader = place.group.start + u16::from(named.rank.0 == place.group.start);
    let slow = MemberIndex((first + named.rank.index()) as u16);
    (leader == place.rank.0).then_some((slow, reason))
}
