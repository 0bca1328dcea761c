//! What members tell one another while all serves: a later decision that one missed, a topology that one has forgotten, the record of
//! votes that one has lost.
use shared::protocol::recovery::RecoveryAsk;

use super::{Ask, Doing, Look, Steward, View};
use crate::node::quorum::majority;

impl Steward {
    /// A member of another group has lost its record: groups with roles come up together, and only a member that knows the topology and
    /// is free can lead that.
    pub(super) fn teach(&mut self, look: Look, views: Vec<View>) -> Vec<Ask> {
        // A replica that stays as it is in what was decided does not notice that its node was not told.
        let held = views.iter().filter_map(|view| view.standing.as_ref()?.committed.as_ref());
        if let Some(later) = held.filter(|held| held.epoch > look.base.epoch).max_by_key(|held| held.epoch) {
            let own = self.settings.own.clone();
            let (question, ask) = self.recover(&own, RecoveryAsk::Learn(Box::new(later.clone())));
            self.doing = Doing::Learn(question);
            return vec![ask];
        }
        let layout = look.base.topology.layout;
        if !layout.has_roles() {
            return self.watch_balance(look, views);
        }
        if !layout.heads().any(|head| head.index() == look.place) {
            return Vec::new();
        }
        let has_forgotten = |view: &&View| {
            let standing = view.standing.as_ref();
            standing.is_some_and(|one| one.committed.is_none() && one.epoch <= look.base.epoch)
        };
        let Some(address) = views.iter().find(has_forgotten).map(|view| view.address.clone()) else {
            return Vec::new();
        };
        let (question, ask) = self.recover(&address, RecoveryAsk::Learn(Box::new(look.base.clone())));
        self.doing = Doing::Learn(question);
        vec![ask]
    }

    /// The own node's record of votes is gone: it hears what a majority of the other members holds. If one of them has accepted a
    /// topology that follows, that vote comes first.
    pub(super) fn recall(&mut self, look: &Look, views: &[View]) -> Option<Ask> {
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
