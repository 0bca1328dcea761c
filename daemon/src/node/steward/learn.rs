//! Repairs by the steward while its topology serves: a later decision that its node missed, a lost record of a member
//! of another group, and its own lost record of votes.
use protocol::{
    message::RequestBody,
    recovery::{Committed, RecoveryAsk},
};

use super::{ANSWER, Doing, Look, Steward, StewardAsk, View, shape::exclusions};
use crate::node::quorum::majority;

impl Steward {
    /// Learns a later decision that this node missed. Sends the topology to a member that lost its record: only an idle
    /// member that has the record can lead a start, and in a replica of one node there is no other one. Groups with
    /// roles start together.
    pub(super) fn teach(&mut self, look: Look, views: Vec<View>) -> Vec<StewardAsk> {
        // A replica that the decision leaves unchanged keeps running, so a missed decision has no other symptom.
        let held = views.iter().filter_map(|view| view.standing.as_ref()?.committed.as_ref());
        let (base, lacks_desired) = (&look.base, look.base.desired.is_none());
        let news =
            held.filter(|held| held.epoch > base.epoch || (lacks_desired && held.desired.is_some() && *held == base));
        if let Some(later) = news.max_by_key(|held| held.epoch) {
            let own = self.settings.own.clone();
            let (question, ask) = self.recover(&own, RecoveryAsk::Learn(Box::new(later.clone())));
            self.doing = Doing::Learn(question);
            return vec![ask];
        }
        let unloaded = views.iter().filter_map(|view| view.standing.as_ref()?.unloaded);
        if unloaded.into_iter().any(|name| name == look.base.name()) {
            return self.forget(&look.base);
        }
        if let Some(ask) = self.tell_exclusions(&look.base, &views) {
            return vec![ask];
        }
        let layout = look.base.topology.layout;
        let forgetful = views.iter().find(|view| {
            let standing = view.standing.as_ref();
            standing.is_some_and(|one| one.committed.is_none() && one.epoch <= look.base.epoch)
        });
        let is_head = layout.heads().any(|head| head.index() == look.place);
        let Some(address) = forgetful.filter(|_| is_head).map(|view| view.address.clone()) else {
            return if layout.has_roles() { Vec::new() } else { self.watch_balance(look, views) };
        };
        let (question, ask) = self.recover(&address, RecoveryAsk::Learn(Box::new(look.base.clone())));
        self.doing = Doing::Learn(question);
        vec![ask]
    }

    /// Sends the list of exclusions to a member that still excludes one of the members, although a later entry includes
    /// it: its disk may have been full when it was told. It would refuse the topology, or its requests, for ever.
    pub(super) fn tell_exclusions(&mut self, base: &Committed, views: &[View]) -> Option<StewardAsk> {
        let list = exclusions(views.iter());
        let behind = views.iter().find(|view| {
            let own = view.standing.as_ref().map(|one| &one.exclusions);
            base.topology.members.iter().any(|member| {
                let entry = own.and_then(|own| own.of(&member.name, &member.address));
                entry.is_some_and(|entry| !entry.is_cordon) && list.of(&member.name, &member.address).is_none()
            })
        })?;
        let (question, ask) = self.ask(&behind.address.clone(), RequestBody::Exclude(list), ANSWER);
        self.doing = Doing::Learn(question);
        Some(ask)
    }

    /// Restores this node's lost record of votes from the topology that a majority of the other members holds. If one
    /// of them has accepted a next topology, that vote is finished first.
    pub(super) fn recall(&mut self, look: &Look, views: &[View]) -> Option<StewardAsk> {
        let others =
            || views.iter().filter_map(|view| view.standing.as_ref()).filter(|one| one.name != self.settings.name);
        let is_open = others().any(|one| one.accepted || one.committed.as_ref().is_some_and(|held| *held != look.base));
        let holding = others().filter(|one| one.committed.is_some() && !one.forgets).count();
        if !look.forgets || is_open || holding < majority(views.len()) {
            return None;
        }
        let own = self.settings.own.clone();
        let (question, ask) = self.recover(&own, RecoveryAsk::Recall(Box::new(look.base.clone())));
        self.doing = Doing::Learn(question);
        Some(ask)
    }
}
