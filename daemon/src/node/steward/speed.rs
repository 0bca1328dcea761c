//! Acts on stragglers while the topology serves, as the circuit breaker decides.
use common::{fault::Fault, ids::MemberIndex};

use super::{Look, PAUSE_MAX, Steward, StewardAsk, View, breaker::Turn, change::TopologyChange, propose::Proposal};

impl Steward {
    /// Excludes a straggler, or tries an excluded one again, while all members serve.
    pub(super) fn watch_speed(&mut self, look: Look, views: Vec<View>) -> Vec<StewardAsk> {
        let Look { base, place, out, .. } = look;
        let out = out.and_then(|(_, _, standing)| standing);
        let change = match self.breaker.look(MemberIndex(place as u16), &base, &views, out.as_ref(), self.now) {
            Turn::Rest => return Vec::new(),
            Turn::TakeOut { slow, reason } => {
                tracing::warn!("{} is excluded as a straggler: it {reason}", base.topology.members[slow.index()].name);
                let all = (0..views.len() as u16).map(MemberIndex);
                TopologyChange::On { stay: all.filter(|one| *one != slow).collect(), lost: vec![(slow, reason)] }
            }
            Turn::TryAgain { before, joins } => {
                tracing::warn!("{} is tried again", before.members[joins.index()].name);
                TopologyChange::Again { topology: before, joins }
            }
        };
        self.propose(Proposal { base, views, own: place, change, granted: 0, serves: true })
    }

    /// A vote about a straggler has ended.
    pub(super) fn speed_ended(&mut self, outcome: Result<(), Fault>) {
        if let Err(fault) = outcome {
            tracing::warn!("the topology stays unchanged: {fault}");
            // If the topology does not fit or finds no majority now, it will not within a second either.
            self.speed_next = self.now + self.settings.recovery.exclude_slow.unwrap_or(PAUSE_MAX);
        }
    }
}
