//! Repairs by the steward while its topology serves: a later decision that its node missed, a lost record of a member
//! of another group, and its own lost record of votes.
use protocol::recovery::RecoveryAsk;

use super::{Doing, Look, Steward, StewardAsk, View};
use crate::node::quorum::majority;

impl Steward {
    /// Learns a later decision that this node missed. With roles, sends the topology to a member of another group that
    /// lost its record: groups with roles start together, and only an idle member that has the record can lead the
    /// start.
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
        let layout = look.base.topology.layout;
        if !layout.has_roles() {
            return self.watch_balance(look, views);
        }
        if !layout.heads().any(|head| head.index() == look.place) {
            return Vec::new();
        }
        let forgetful = views.iter().find(|view| {
            let standing = view.standing.as_ref();
            standing.is_some_and(|one| one.committed.is_none() && one.epoch <= look.base.epoch)
        });
        let Some(address) = forgetful.map(|view| view.address.clone()) else { return Vec::new() };
        let (question, ask) = self.recover(&address, RecoveryAsk::Learn(Box::new(look.base.clone())));
        self.doing = Doing::Learn(question);
        vec![ask]
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
