//! Evaluates a peer's heartbeats: detects lost, stalled and leaving peers, and a broken topology. Pure; times are
//! relative to the start of the run.
use std::time::Duration;

use common::{
    fault::Loss,
    ids::Rank,
    planted::{Planted, is_planted},
};
use protocol::message::Beat;

use super::event::PeerDrain;
use crate::config::Liveness;

/// Changes of a peer's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Its drain state, if that changed.
    pub drain: Option<PeerDrain>,
    /// The rank at which its topology broke: one that it lost, or its own.
    pub failed: Option<Rank>,
}

/// The state of a peer.
#[derive(Debug)]
pub struct Peer {
    heard: Duration,
    moved: Duration,
    progress: u64,
    drain: PeerDrain,
    failed: Option<Rank>,
}

impl Peer {
    /// A peer whose link has just been opened.
    pub fn new(now: Duration) -> Self {
        let drain = PeerDrain { draining: false, busy: false };
        Self { heard: now, moved: now, progress: 0, drain, failed: None }
    }

    /// Processes a heartbeat; returns each change once.
    pub fn hear(&mut self, beat: &Beat, now: Duration) -> News {
        self.heard = now;
        // A rank that has no work, or that waits for a peer, is not stalled.
        if beat.progress != self.progress || !beat.busy || beat.waiting {
            (self.progress, self.moved) = (beat.progress, now);
        }
        let drain = PeerDrain { draining: beat.draining, busy: beat.busy };
        let failed = beat.failed.filter(|_| self.failed.is_none() && !is_planted(Planted::UntoldFault));
        self.failed = self.failed.or(failed);
        let changed = std::mem::replace(&mut self.drain, drain) != drain;
        News { drain: changed.then_some(drain), failed }
    }

    /// How the peer was lost, if another rank reports it as lost. A silent peer is noticed by all at about the same
    /// time; as long as its heartbeats arrive here, the other rank lost its connection.
    pub fn reported_lost(&self, liveness: &Liveness, now: Duration) -> Loss {
        if now.saturating_sub(self.heard) > liveness.silent / 2 { Loss::Silent } else { Loss::Reset }
    }

    /// How the peer was lost, if it counts as lost.
    pub fn lost(&self, liveness: &Liveness, now: Duration) -> Option<Loss> {
        if now.saturating_sub(self.heard) > liveness.silent && !is_planted(Planted::SilenceUnnoticed) {
            return Some(Loss::Silent);
        }
        (now.saturating_sub(self.moved) > liveness.stall).then_some(Loss::Stalled)
    }
}

#[cfg(test)]
mod tests {
    use common::units::Nanoseconds;

    use super::*;

    const LIVENESS: Liveness = Liveness {
        heartbeat: Duration::from_millis(250),
        silent: Duration::from_secs(2),
        stall: Duration::from_secs(10),
    };

    fn beat(progress: u64, busy: bool, waiting: bool) -> Beat {
        Beat {
            progress,
            busy,
            waiting,
            draining: false,
            leaving: false,
            failed: None,
            sent: Nanoseconds(0),
            echo: None,
        }
    }

    #[test]
    fn silent_peer_is_lost_and_stalled_one_only_with_work() {
        let at = Duration::from_secs;
        let judge = |beat: Beat| {
            let mut peer = Peer::new(at(0));
            for second in 0..=30 {
                peer.hear(&beat, at(second));
            }
            (peer.lost(&LIVENESS, at(31)), peer.lost(&LIVENESS, at(33)))
        };
        assert_eq!(judge(beat(7, true, false)), (Some(Loss::Stalled), Some(Loss::Silent)));
        assert_eq!(judge(beat(7, true, true)).0, None, "it waits for a peer");
        assert_eq!(judge(beat(7, false, false)).0, None, "it has nothing to do");
        let mut peer = Peer::new(at(0));
        for second in 0..=30 {
            peer.hear(&beat(second, true, false), at(second));
        }
        assert_eq!(peer.lost(&LIVENESS, at(31)), None, "it makes progress");
        let reported = |second| peer.reported_lost(&LIVENESS, at(second));
        assert_eq!((reported(31), reported(32)), (Loss::Reset, Loss::Silent));
    }

    #[test]
    fn changes_and_faults_of_a_peer_are_reported_once() {
        let now = Duration::ZERO;
        let mut peer = Peer::new(now);
        assert_eq!(peer.hear(&beat(0, false, false), now), News::default());
        let draining = Beat { draining: true, ..beat(0, false, false) };
        let drain = Some(PeerDrain { draining: true, busy: false });
        assert_eq!(peer.hear(&draining, now), News { drain, failed: None });
        assert_eq!(peer.hear(&draining, now), News::default());
        let failed = Beat { failed: Some(Rank(2)), ..draining };
        assert_eq!(peer.hear(&failed, now), News { drain: None, failed: Some(Rank(2)) });
        assert_eq!(peer.hear(&failed, now), News::default());
    }
}
