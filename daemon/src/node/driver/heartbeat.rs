//! Heartbeats with each peer of a topology, apart from the data links and from threads that compute: who is lost, who
//! stalls, who wants to leave.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use shared::{
    ids::{Epoch, Rank},
    protocol::{
        connection::{Connection, MessageWriter, split},
        error::{FaultKind, Loss},
        message::Beat,
    },
};
use tokio::{
    sync::mpsc::Sender,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use super::Input;
use crate::{
    collective::Abort,
    config::Liveness,
    node::event::{Event, PeerDrain},
};

/// What the heartbeats of one topology share.
#[derive(Clone, Debug)]
pub(super) struct Pulse {
    pub(super) epoch: Epoch,
    pub(super) liveness: Liveness,
    /// Counters of the own engine.
    pub(super) engine: Arc<Abort>,
    /// This node takes no new work.
    pub(super) draining: Arc<AtomicBool>,
    /// The topology ends here without a goodbye.
    pub(super) stop: CancellationToken,
    /// This node leaves: say so first.
    pub(super) leave: CancellationToken,
    pub(super) inputs: Sender<Input>,
}

/// What is known of a peer; pure, so that its judgement can be tested.
#[derive(Debug)]
struct Peer {
    heard: Instant,
    moved: Instant,
    progress: u64,
    drain: PeerDrain,
}

impl Peer {
    fn new(now: Instant) -> Self {
        Self { heard: now, moved: now, progress: 0, drain: PeerDrain { draining: false, busy: false } }
    }

    /// Takes a beat in; returns what is new about its draining.
    fn hear(&mut self, beat: &Beat, now: Instant) -> Option<PeerDrain> {
        self.heard = now;
        // A rank that has no work, or that waits for another, does not stall.
        if beat.progress != self.progress || !beat.busy || beat.waiting {
            (self.progress, self.moved) = (beat.progress, now);
        }
        let drain = PeerDrain { draining: beat.draining, busy: beat.busy };
        (std::mem::replace(&mut self.drain, drain) != drain).then_some(drain)
    }

    /// Whether it counts as lost, and how.
    fn lost(&self, liveness: &Liveness, now: Instant) -> Option<Loss> {
        if now.duration_since(self.heard) > liveness.silent {
            return Some(Loss::Silent);
        }
        (now.duration_since(self.moved) > liveness.stall).then_some(Loss::Stalled)
    }
}

/// Beats with one peer until it is lost or the topology ends.
pub(super) async fn run(pulse: Pulse, rank: Rank, connection: Connection) {
    let (mut reader, mut writer) = split(connection);
    let mut ticks = interval(pulse.liveness.heartbeat);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut peer = Peer::new(Instant::now());
    let lost = loop {
        // Reading comes first: after this process was stopped itself, beats that wait count before silence does.
        tokio::select! {
            biased;
            () = pulse.stop.cancelled() => return,
            () = pulse.leave.cancelled() => return leave(&pulse, &mut writer).await,
            beat = reader.receive::<Beat>() => match hear(&pulse, &mut peer, rank, beat).await {
                Some(how) => break how,
                None => continue,
            },
            _ = ticks.tick() => {}
        }
        if let Err(how) = beat(&pulse, &mut writer, &peer).await {
            break how;
        }
    };
    // The driver may be gone when the daemon ends; then nobody needs to know.
    let _ = pulse.inputs.send(Input::Event(Event::PeerLost(pulse.epoch, rank, lost))).await;
    // The socket stays open until the topology ends: peers must not take this node for the lost one.
    tokio::select! {
        () = pulse.stop.cancelled() => {}
        () = pulse.leave.cancelled() => {}
    }
}

async fn beat(pulse: &Pulse, writer: &mut MessageWriter, peer: &Peer) -> Result<(), Loss> {
    let beat = own_beat(pulse, false);
    match timeout(pulse.liveness.silent, writer.send(&beat)).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) => return Err(Loss::Reset),
        Err(_) => return Err(Loss::Silent),
    }
    peer.lost(&pulse.liveness, Instant::now()).map_or(Ok(()), Err)
}

fn own_beat(pulse: &Pulse, leaving: bool) -> Beat {
    Beat {
        progress: pulse.engine.progress(),
        busy: pulse.engine.is_busy(),
        waiting: pulse.engine.is_waiting(),
        draining: pulse.draining.load(Ordering::Acquire),
        leaving,
    }
}

async fn leave(pulse: &Pulse, writer: &mut MessageWriter) {
    // Best effort: a peer that does not hear it sees the closed connection.
    let _ = timeout(Duration::from_millis(200), writer.send(&own_beat(pulse, true))).await;
}

/// Takes a beat in; says how the peer was lost, if it was.
async fn hear(pulse: &Pulse, peer: &mut Peer, rank: Rank, beat: Result<Option<Beat>, FaultKind>) -> Option<Loss> {
    let Ok(Some(beat)) = beat else { return Some(Loss::Reset) };
    if beat.leaving {
        return Some(Loss::Left);
    }
    if let Some(drain) = peer.hear(&beat, Instant::now()) {
        let event = Event::PeerDrains(pulse.epoch, rank, drain);
        let _ = pulse.inputs.send(Input::Event(event)).await;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVENESS: Liveness = Liveness {
        heartbeat: Duration::from_millis(250),
        silent: Duration::from_secs(2),
        stall: Duration::from_secs(10),
    };

    fn beat(progress: u64, busy: bool, waiting: bool) -> Beat {
        Beat { progress, busy, waiting, draining: false, leaving: false }
    }

    #[test]
    fn a_peer_is_silent_after_its_time_and_stalled_only_if_it_computes_without_progress() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let judge = |beat: Beat| {
            let mut peer = Peer::new(start);
            for second in 0..=30 {
                peer.hear(&beat, at(second));
            }
            (peer.lost(&LIVENESS, at(31)), peer.lost(&LIVENESS, at(33)))
        };
        assert_eq!(judge(beat(7, true, false)), (Some(Loss::Stalled), Some(Loss::Silent)));
        assert_eq!(judge(beat(7, true, true)).0, None, "it waits for another rank");
        assert_eq!(judge(beat(7, false, false)).0, None, "it has nothing to do");
        let mut peer = Peer::new(start);
        for second in 0..=30 {
            peer.hear(&beat(second, true, false), at(second));
        }
        assert_eq!(peer.lost(&LIVENESS, at(31)), None, "it moves");
    }

    #[test]
    fn a_change_of_draining_is_told_once() {
        let now = Instant::now();
        let mut peer = Peer::new(now);
        assert_eq!(peer.hear(&beat(0, false, false), now), None);
        let draining = Beat { draining: true, ..beat(0, false, false) };
        assert_eq!(peer.hear(&draining, now), Some(PeerDrain { draining: true, busy: false }));
        assert_eq!(peer.hear(&draining, now), None);
    }
}
