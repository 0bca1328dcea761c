//! The circuit breaker over slow nodes: decides when a rank that holds the others up is taken out, and when the topology of before is
//! tried again. Pure: sees what the members said a moment ago, remembers what it did.
use std::time::Duration;

use shared::{
    ids::MemberIndex,
    protocol::recovery::{Committed, Standing},
    telemetry::NodeState,
    topology::Topology,
};

use super::steward::View;

/// Longest time until a slow node is tried again; each time that it is slow again doubles the time.
const RETRY_MAX: Duration = Duration::from_secs(2 * 3600);

/// A node that was taken out.
#[derive(Clone, Debug)]
struct Opened {
    /// What it had a part in.
    before: Committed,
    member: MemberIndex,
    /// Since when, and how long it stays out at least.
    since: Duration,
    wait: Duration,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// Nothing.
    Rest,
    /// Go on without a member.
    TakeOut {
        /// Which.
        slow: MemberIndex,
        /// Why.
        reason: String,
    },
    /// Serve this again; the member of it that was out takes part.
    TryAgain {
        /// What was served before.
        before: Topology,
        /// The member.
        joins: MemberIndex,
    },
}

/// What it did, on the one node that acts.
#[derive(Debug)]
pub struct Breaker {
    /// First time until a slow node is tried again; `None`: never.
    retry: Option<Duration>,
    opened: Option<Opened>,
    /// Who was tried again, when, and how long it had been out.
    tried: Option<(String, Duration, Duration)>,
}

impl Breaker {
    /// A breaker that tries again after so long.
    pub fn new(retry: Option<Duration>) -> Self {
        Self { retry, opened: None, tried: None }
    }

    /// Whether somebody has to be asked: the own node names a slow rank, or one that was may be tried again.
    pub fn is_due(&self, own: &Standing, now: Duration) -> bool {
        own.slow.is_some()
            || (self.retry.is_some() && self.opened.as_ref().is_some_and(|one| now >= one.since + one.wait))
    }

    /// Where the node that was taken out was.
    pub fn out(&self) -> Option<(&str, &str)> {
        let opened = self.opened.as_ref()?;
        let member = &opened.before.topology.members[opened.member.index()];
        Some((&member.name, &member.address))
    }

    /// Decides for member `own` of what is served; `views` are its members, `out` is what the node that was taken out says.
    pub fn look(
        &mut self,
        own: MemberIndex,
        base: &Committed,
        views: &[View],
        out: Option<&Standing>,
        now: Duration,
    ) -> Turn {
        // Everything else goes first.
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
        // What is served now must be what followed: the others of before, the next epoch that they agreed on.
        let before = opened.before.topology.members.iter().filter(|one| one.name != member.name);
        let follows = base.epoch > opened.before.epoch
            && before.map(|one| &one.name).eq(base.topology.members.iter().map(|one| &one.name));
        let is_left_to_us = |out: &Standing| {
            out.exclusions.of(&member.name, &member.address).is_some_and(|entry| entry.by.ends_with(BY_ITSELF))
        };
        match out {
            _ if !follows => self.opened = None,
            Some(out) if !is_left_to_us(out) => self.opened = None,
            Some(out) if now >= opened.since + opened.wait && out.state == NodeState::Idle && out.trouble.is_none() => {
                self.tried = Some((member.name.clone(), now, opened.wait));
                // Forgotten when it serves again; a vote that fails is held anew after the same time.
                opened.since = now;
                return Turn::TryAgain { before: opened.before.topology.clone(), joins: opened.member };
            }
            _ => {}
        }
        Turn::Rest
    }
}

/// How an exclusion ends that no operator made.
pub const BY_ITSELF: &str = "(by itself)";

/// The member that holds the others up, with the reason, if it is the own node that acts: the lowest of the stage beside it. A rank
/// that is late because it waits for another one only hands the lateness on: the one is meant that waits for nobody.
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
    // A circle names nobody.
    let found = standing(named.rank.0).filter(|found| found.slow.is_none())?;
    let trouble = found.trouble.as_ref().map_or(String::new(), |trouble| format!(": {trouble}"));
    let reason = format!("held the others up {} % of their time for {} s{trouble}", named.percent, named.seconds);
    let leader = place.group.start + u16::from(named.rank.0 == place.group.start);
    let slow = MemberIndex((first + named.rank.index()) as u16);
    (leader == place.rank.0).then_some((slow, reason))
}
