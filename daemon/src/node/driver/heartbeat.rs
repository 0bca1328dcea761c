//! Heartbeats with each peer of a topology, on sockets and threads separate from data and compute: detects lost,
//! stalled and leaving peers.
use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use common::{
    fault::{FaultKind, Loss},
    ids::{Epoch, Rank},
    units::Nanoseconds,
};
use engine::collective::{
    Abort,
    clocks::{self, Comparison, Exchange},
};
use protocol::{
    connection::Connection,
    message::Beat,
    messages::{MessageWriter, split},
};
use tokio::{
    sync::mpsc::Sender,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use super::Input;
use crate::{
    config::Liveness,
    node::{
        event::Event,
        pulse::{News, Peer},
    },
};

/// State shared by the heartbeats of one topology.
#[derive(Clone, Debug)]
pub(super) struct Pulse {
    pub(super) run: u64,
    pub(super) epoch: Epoch,
    pub(super) liveness: Liveness,
    /// Counters of this node's engine.
    pub(super) engine: Arc<Abort>,
    /// This node takes no new work.
    pub(super) draining: Arc<AtomicBool>,
    /// The rank at which the topology broke: the lost rank, or this one.
    pub(super) failed: Arc<OnceLock<Rank>>,
    /// The peers of this node.
    pub(super) peers: Arc<PeerStates>,
    /// Ends the topology without a goodbye.
    pub(super) stop: CancellationToken,
    /// Ends the topology after a goodbye.
    pub(super) leave: CancellationToken,
    pub(super) inputs: Sender<Input>,
}

/// The state of every peer of a topology. They are in one place because a report about a rank arrives on the link of
/// another one.
#[derive(Debug)]
pub(super) struct PeerStates {
    started: Instant,
    /// By rank; `None` without a link, as for this node itself.
    ranks: Vec<Mutex<Option<Peer>>>,
}

impl PeerStates {
    /// Creates the places of `ranks` ranks.
    pub(super) fn new(ranks: usize) -> Self {
        Self { started: Instant::now(), ranks: (0..ranks).map(|_| Mutex::default()).collect() }
    }

    /// Begins with a rank whose link has just been opened.
    fn open(&self, rank: Rank) {
        if let Some(peer) = self.ranks.get(rank.index()) {
            *lock(peer) = Some(Peer::new(self.started.elapsed()));
        }
    }

    /// Uses the state of a rank; `None` without a link to it.
    fn with<T>(&self, rank: Rank, work: impl FnOnce(&mut Peer, Duration) -> T) -> Option<T> {
        let mut peer = lock(self.ranks.get(rank.index())?);
        peer.as_mut().map(|peer| work(peer, self.started.elapsed()))
    }
}

fn lock(peer: &Mutex<Option<Peer>>) -> MutexGuard<'_, Option<Peer>> {
    peer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Exchanges heartbeats with one peer until it is lost or the topology ends.
pub(super) async fn run(pulse: Pulse, rank: Rank, connection: Connection) {
    let (mut reader, mut writer) = split(connection);
    let mut ticks = interval(pulse.liveness.heartbeat);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    pulse.peers.open(rank);
    let mut far = FarEnd { rank, clock: Clock::default() };
    let lost = loop {
        // Reading has precedence: after a stop of this process (SIGSTOP), queued heartbeats count before silence does.
        tokio::select! {
            biased;
            () = pulse.stop.cancelled() => return,
            () = pulse.leave.cancelled() => return leave(&pulse, &mut writer).await,
            beat = reader.receive::<Beat>() => match far.hear(&pulse, beat).await {
                Some(how) => break how,
                None => continue,
            },
            _ = ticks.tick() => {}
        }
        if let Err(how) = far.beat(&pulse, &mut writer).await {
            break how;
        }
    };
    // When the daemon ends, the driver may be gone already.
    let _ = pulse.inputs.send(Input::Run(pulse.run, Event::PeerLost(pulse.epoch, rank, lost))).await;
    // Keeps the socket open until the topology ends, so that peers do not mistake this node for the lost one.
    tokio::select! {
        () = pulse.stop.cancelled() => {}
        () = pulse.leave.cancelled() => {}
    }
}

/// Estimate of the peer's clock.
#[derive(Default)]
struct Clock {
    comparison: Comparison,
    /// The latest heartbeat: send time by the peer's clock, and arrival time.
    echo: Option<(Nanoseconds, Nanoseconds)>,
}

impl Clock {
    /// Processes a heartbeat. Returns the offset of the peer's clock in nanoseconds, once it is known.
    fn hear(&mut self, beat: &Beat) -> Option<i64> {
        let came = clocks::now();
        // Older builds send no time.
        self.echo = (beat.sent.0 > 0).then_some((beat.sent, came));
        let (sent, received) = beat.echo?;
        self.comparison.take(Exchange { sent, received, answered: beat.sent, came })
    }
}

/// State of the other end.
struct FarEnd {
    rank: Rank,
    clock: Clock,
}

impl FarEnd {
    /// Sends a heartbeat; fails if the peer is lost.
    async fn beat(&self, pulse: &Pulse, writer: &mut MessageWriter) -> Result<(), Loss> {
        let beat = Beat { echo: self.clock.echo, ..own_beat(pulse, false) };
        match timeout(pulse.liveness.silent, writer.send(&beat)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Loss::Reset),
            Err(_) => return Err(Loss::Silent),
        }
        let lost = pulse.peers.with(self.rank, |peer, now| peer.lost(&pulse.liveness, now));
        lost.flatten().map_or(Ok(()), Err)
    }

    /// Processes a heartbeat; returns how the peer was lost, if it was.
    async fn hear(&mut self, pulse: &Pulse, beat: Result<Option<Beat>, FaultKind>) -> Option<Loss> {
        let Ok(Some(beat)) = beat else { return Some(Loss::Reset) };
        if let Some(ahead) = self.clock.hear(&beat) {
            pulse.engine.clocks().set(self.rank, ahead);
        }
        if beat.leaving {
            return Some(Loss::Left);
        }
        let news = pulse.peers.with(self.rank, |peer, now| peer.hear(&beat, now));
        let News { drain, failed } = news.unwrap_or_default();
        let drain = drain.map(|drain| Event::PeerDrains(pulse.epoch, self.rank, drain));
        let failed = failed.map(|failed| {
            let own = pulse.peers.with(failed, |peer, now| peer.reported_lost(&pulse.liveness, now));
            let how = own.unwrap_or(Loss::Reset);
            Event::PeerFailed { epoch: pulse.epoch, reporter: self.rank, failed, how }
        });
        for event in drain.into_iter().chain(failed) {
            let _ = pulse.inputs.send(Input::Run(pulse.run, event)).await;
        }
        None
    }
}

fn own_beat(pulse: &Pulse, leaving: bool) -> Beat {
    Beat {
        progress: pulse.engine.progress(),
        busy: pulse.engine.is_busy(),
        waiting: pulse.engine.is_waiting(),
        draining: pulse.draining.load(Ordering::Acquire),
        leaving,
        failed: pulse.failed.get().copied(),
        sent: clocks::now(),
        echo: None,
    }
}

async fn leave(pulse: &Pulse, writer: &mut MessageWriter) {
    // Best effort: a peer that misses the goodbye sees the closed connection.
    let _ = timeout(Duration::from_millis(200), writer.send(&own_beat(pulse, true))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ranks_with_a_link_have_a_state() {
        let peers = PeerStates::new(2);
        peers.open(Rank(1));
        // A heartbeat may name any rank: this node's own, and one that the topology does not have.
        let found = [0, 1, 2].map(|rank| peers.with(Rank(rank), |_, _| ()).is_some());
        assert_eq!(found, [false, true, false]);
        peers.open(Rank(2));
    }
}
