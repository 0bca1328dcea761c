//! Repairs by the steward, most of them while its topology serves: a later decision that its node missed, a record that
//! a member has lost, an exclusion or inclusion that a member has missed, and its own lost record of votes.
use common::ids::MemberIndex;
use protocol::{
    message::RequestBody,
    recovery::{Committed, RecoveryAsk, Standing},
};
use topology::{Exclusion, Exclusions, Member};

use super::{ANSWER, BY_ITSELF, Doing, Look, Steward, StewardAsk, View, view::exclusions};
use crate::node::quorum::majority;

impl Steward {
    /// Learns a later decision that this node missed. Sends the topology to an absent member that holds an earlier one,
    /// and to a member that lost its record: only an idle member that has the record can lead a start, and in a replica
    /// of one node there is no other one. Groups with roles start together.
    pub(super) fn teach(&mut self, look: Look, views: Vec<View>) -> Vec<StewardAsk> {
        // A replica that the decision leaves unchanged keeps running, so a missed decision has no other symptom.
        let held = views.iter().filter_map(|view| view.standing.as_ref()?.committed.as_ref());
        // An absent member may hold a later one, with this node or in place of it.
        let (own, desired) = (&self.settings.name, look.base.desired());
        let absent = look.answers.values().filter_map(|one| one.committed.as_ref()).filter(|held| {
            held.topology.members.iter().any(|member| member.name == *own) || held.desired().is_alike(desired)
        });
        let held = held.chain(absent);
        let (base, lacks_desired) = (&look.base, look.base.desired.is_none());
        let news =
            held.filter(|held| held.is_later_than(base) || (lacks_desired && held.desired.is_some() && *held == base));
        if let Some(later) = news.max_by(|one, other| one.order(other)) {
            let own = self.settings.own.clone();
            let (question, ask) = self.recover(&own, RecoveryAsk::Learn(Box::new(later.clone())));
            self.doing = Doing::Learn(question);
            return vec![ask];
        }
        let unloaded = views.iter().filter_map(|view| view.standing.as_ref()?.unloaded);
        if unloaded.into_iter().any(|name| name == look.base.name()) {
            return self.forget(&look.base);
        }
        let layout = look.base.topology.layout;
        let forgetful = views.iter().find(|view| {
            let standing = view.standing.as_ref();
            standing.is_some_and(|one| one.committed.is_none() && one.epoch <= look.base.epoch)
        });
        // Also that of a prefill group, which serves on when its decode group is lost.
        let is_head = layout.place(MemberIndex(look.place as u16)).is_head();
        let forgetful = forgetful.filter(|_| is_head).map(|view| view.address.clone());
        // Every other time only: its disk may be full.
        let forgetful = forgetful.filter(|address| self.taught.as_ref() != Some(address));
        self.taught.clone_from(&forgetful);
        if forgetful.is_none()
            && let Some((address, list)) = self.behind(&look)
        {
            return vec![self.tell_exclusions(&address, list)];
        }
        let Some(address) = forgetful.or_else(|| outdated(&look)) else {
            return if layout.has_roles() { Vec::new() } else { self.watch_balance(look, views) };
        };
        let (question, ask) = self.recover(&address, RecoveryAsk::Learn(Box::new(look.base.clone())));
        self.doing = Doing::Learn(question);
        vec![ask]
    }

    /// A node that has missed an exclusion or an inclusion of a member, present or absent, and the list of exclusions
    /// that all lists together give. Every other time only, because the node may be unable to store the list.
    fn behind(&mut self, look: &Look) -> Option<(String, Exclusions)> {
        let mut list = exclusions(look.answers.values());
        let by = format!("{} {BY_ITSELF}", self.settings.name);
        taken_elsewhere(look, &list).iter().for_each(|entry| list.say(&entry.node, &entry.address, None, &by));
        let members: Vec<&Member> = look.base.topology.members.iter().chain(&look.base.desired().members).collect();
        let entry =
            |list: &Exclusions, member: &Member| list.of(&member.name, &member.address).map(|one| one.is_cordon);
        let mut answers = look.answers.iter().filter(|(address, _)| self.told.as_ref() != Some(*address));
        let behind = answers
            .find(|(_, one)| members.iter().any(|member| entry(&one.exclusions, member) != entry(&list, member)))
            .map(|(address, _)| address.clone());
        self.told.clone_from(&behind);
        behind.map(|address| (address, list))
    }

    /// Sends a list of exclusions.
    pub(super) fn tell_exclusions(&mut self, address: &str, list: Exclusions) -> StewardAsk {
        let (question, ask) = self.ask(address, RequestBody::Exclude(list), ANSWER);
        self.doing = Doing::Learn(question);
        ask
    }

    /// Ends the gap in this node's record of votes: it holds the topology that other members hold, and none of them has
    /// accepted a next one; a vote that one of them has begun is finished first. So many must answer that each majority
    /// with this node has one of them. The witness of two members is not asked: a topology that it chose with this node
    /// is lost with this node. For a single member, all absent members of the desired topology answer.
    pub(super) fn recall(&mut self, look: &Look, views: &[View]) -> Option<StewardAsk> {
        let others =
            || views.iter().filter_map(|view| view.standing.as_ref()).filter(|one| one.name != self.settings.name);
        let is_open = others().any(|one| one.accepted || one.committed.as_ref().is_some_and(|held| *held != look.base));
        let holding = others().filter(|one| one.committed.is_some() && !one.forgets).count();
        let is_known = holding + majority(views.len()) > views.len() || (views.len() == 1 && is_latest(look));
        if !look.forgets || is_open || !is_known {
            return None;
        }
        let own = self.settings.own.clone();
        let (question, ask) = self.recover(&own, RecoveryAsk::Recall(Box::new(look.base.clone())));
        self.doing = Doing::Learn(question);
        Some(ask)
    }
}

/// The address of an absent member of the desired topology that still holds an earlier reduced topology, because it was cut
/// off. It does not return as long as it holds that one.
fn outdated(look: &Look) -> Option<String> {
    let members = &look.base.topology.members;
    let mut absent = look.answers.iter().filter(|(_, one)| members.iter().all(|member| member.name != one.name));
    let earlier = absent.find(|(_, one)| {
        let held = one.committed.as_ref();
        held.is_some_and(|held| look.base.is_later_than(held) && held.desired().is_alike(look.base.desired()))
    });
    earlier.map(|(address, _)| address.clone())
}

/// Exclusions of absent members that answer again and hold a topology of another model or layout: an operator gave them
/// that one while they were away. They do not return, and these entries would keep them from serving it.
fn taken_elsewhere(look: &Look, list: &Exclusions) -> Vec<Exclusion> {
    let (base, desired) = (&look.base, look.base.desired());
    let absent =
        desired.members.iter().filter(|member| base.topology.members.iter().all(|one| one.name != member.name));
    let entries = absent.filter_map(|member| {
        let entry = list.of(&member.name, &member.address).filter(|entry| entry.by.ends_with(BY_ITSELF))?;
        let held = look.answers.values().find(|one| one.name == member.name)?.committed.as_ref()?;
        let is_member = held.topology.members.iter().any(|one| one.name == member.name);
        (is_member && !held.desired().is_alike(desired)).then(|| entry.clone())
    });
    entries.collect()
}

/// Whether all absent members of the desired topology answer, and none of them has seen a later epoch.
fn is_latest(look: &Look) -> bool {
    let desired = look.base.desired().members.iter();
    let mut absent =
        desired.filter(|member| look.base.topology.members.iter().all(|one| one.name != member.name)).peekable();
    absent.peek().is_some()
        && absent.all(|member| {
            let mut answers = look.answers.values().filter(|one| one.name == member.name);
            answers.next().is_some_and(|one| one.epoch <= look.base.epoch)
        })
}

/// Whether a node still excludes a member that a later entry of the list includes: its disk may have been full when an
/// operator included that member. It would refuse the topology, or its requests, for ever.
pub(super) fn still_excludes(standing: &Standing, base: &Committed, list: &Exclusions) -> bool {
    base.topology.members.iter().any(|member| {
        let entry = standing.exclusions.of(&member.name, &member.address);
        entry.is_some_and(|entry| !entry.is_cordon) && list.of(&member.name, &member.address).is_none()
    })
}
