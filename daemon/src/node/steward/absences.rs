//! Sorts the answers of a look by member, and remembers members that are lost before their topology serves, for example
//! because their power supply is too weak for a load. Each return would end the wait for such a member, so that the
//! others would never continue without it.
use std::time::Duration;

use common::ids::{Epoch, TopologyHash};
use protocol::recovery::Committed;
use topology::Member;

use super::{Look, PAUSE, Purpose, Steward, View};

/// Absences before the topology serves from which the others no longer wait for a member: fewer may be restarts.
const ABSENCES_MIN: u32 = 3;

/// The absences of one member since its topology last served.
#[derive(Debug)]
pub(super) struct Absences {
    /// The topology.
    base: (Epoch, TopologyHash),
    /// When the first one began.
    first: Duration,
    count: u32,
    /// Whether the topology added the member: until then the others served without it.
    is_joining: bool,
}

impl Steward {
    /// Sorts the answers by the member that gave them.
    pub(super) fn views(&mut self, look: &Look, members: &[Member]) -> Vec<View> {
        let (own, listen) = (self.settings.own.clone(), self.settings.listen.is_some());
        let views = members.iter().map(|member| {
            let mut named = look.answers.iter().filter(|(_, standing)| standing.name == member.name);
            let at_home = look.answers.get(&member.address).filter(|standing| standing.name == member.name);
            let found = at_home.map(|standing| (&member.address, standing)).or_else(|| named.next());
            let Some((address, standing)) = found else { return self.absent(look, member) };
            // A node behind a wildcard listen address keeps its address.
            let address = if *address == own && !listen { member.address.clone() } else { address.clone() };
            // Earlier failures mean little now.
            if self.lost.remove(&member.name).is_some() {
                self.pause = PAUSE;
            }
            View { standing: Some(standing.clone()), address, lost: Duration::ZERO, is_unstable: false }
        });
        views.collect()
    }

    /// The view of a member that does not answer. Absences count only while the topology does not run.
    fn absent(&mut self, look: &Look, member: &Member) -> View {
        // The daemon that starts next may be able to load.
        self.failing.remove(&member.name);
        let (now, base) = (self.now, look.base.name());
        let is_new = !self.lost.contains_key(&member.name);
        let since = *self.lost.entry(member.name.clone()).or_insert(now);
        let mut is_unstable = false;
        if look.purpose == Purpose::Recover {
            let before = self.absences.remove(&member.name).filter(|before| before.base == base);
            let mut absences = before.unwrap_or(Absences { base, first: now, count: 0, is_joining: false });
            absences.count = absences.count.saturating_add(u32::from(is_new));
            let is_repeated = absences.is_joining || absences.count >= ABSENCES_MIN;
            let patience = self.settings.recovery.exclude_after.unwrap_or(Duration::MAX);
            is_unstable = is_repeated && (absences.is_joining || now.saturating_sub(absences.first) >= patience);
            self.absences.insert(member.name.clone(), absences);
            if is_new && is_repeated {
                tracing::warn!("{} was lost again before epoch {} served", member.name, look.base.epoch);
                self.hold_back(member.address.clone());
            }
        }
        View { standing: None, address: member.address.clone(), lost: now.saturating_sub(since), is_unstable }
    }

    /// The others do not wait for members that `next` adds if these are lost before it serves: until now the others
    /// served without them.
    pub(super) fn expect_joins(&mut self, base: &Committed, next: &Committed) {
        for member in added(base, next) {
            let absences = Absences { base: next.name(), first: self.now, count: 0, is_joining: true };
            self.absences.insert(member.name.clone(), absences);
        }
    }

    /// A topology could not be loaded: the next attempt to include the members that it adds follows after a pause.
    pub(super) fn hold_back_joins(&mut self, base: &Committed, next: &Committed) {
        added(base, next).for_each(|member| self.hold_back(member.address.clone()));
    }

    /// All members of a topology serve it.
    pub(super) fn forget_absences(&mut self, base: &Committed) {
        for member in &base.topology.members {
            self.absences.remove(&member.name);
            self.held_back.remove(&member.address);
        }
    }
}

/// The members of `next` that `base` does not have.
fn added<'a>(base: &'a Committed, next: &'a Committed) -> impl Iterator<Item = &'a Member> {
    let members = &base.topology.members;
    next.topology.members.iter().filter(move |member| members.iter().all(|one| one.name != member.name))
}
