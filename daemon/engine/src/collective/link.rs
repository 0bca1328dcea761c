//! Data links of one rank to all others of its replica: one coalesced write per message, one read if it arrived whole.
//! Every wait makes progress in both directions with all peers, so that full socket buffers never block two ranks.
use std::{io, net::TcpStream, ops::Range, os::fd::BorrowedFd, sync::Arc, time::Instant};

use collectives::RankSet;
use common::{
    ids::{Epoch, Rank, TopologyHash},
    limits::NODES_MAX,
    units::Nanoseconds,
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use protocol::{frame::FrameHeader, seal::Seals};

use super::{
    Abort, CollectiveError, FrameTag, clocks,
    pauses::Pauses,
    peer::{Calls, Patience, Peer, Socket},
    timing::{ArrivalTimes, Hop, SlowestRank},
};

/// Polls of the sockets before sleeping, if spinning is allowed.
const SPIN_ROUNDS: u32 = 20_000;
/// Longest sleep between two checks of the abort flag, in milliseconds.
const POLL_MS: u16 = 200;

/// A rank's place among the ranks of its replica, and the assignment that its frames carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// This rank, numbered across the stages of the replica.
    pub own: Rank,
    /// The ranks of its stage, which share all-reduces.
    pub stage: Range<u16>,
    /// Epoch of the assignment.
    pub epoch: Epoch,
    /// Hash of its topology.
    pub hash: TopologyHash,
}

/// The links of one rank to all others of its replica.
#[derive(Debug)]
pub struct Links {
    seat: Seat,
    peers: Vec<Option<Peer>>,
    abort: Arc<Abort>,
    spin: bool,
    calls: Calls,
    /// When the latest wait began, and the ranks whose frames it was for.
    waited: Instant,
    awaited: RankSet,
    /// In the all-reduce since [`Self::listen`].
    pauses: Pauses,
}

/// Condition of a wait.
#[derive(Clone, Copy, Debug, Default)]
struct Goal {
    /// A frame of each of these ranks is at the front.
    from: RankSet,
    /// Everything sent to these ranks was accepted by the system.
    flushed: RankSet,
    /// Whether to block on the socket of a last missing rank alone: one call less, but an abort is noticed later.
    may_sleep_alone: bool,
}

/// Receive window of a rank in bytes, shared by the other ranks of its stage, and the minimum for each. In a prefill
/// all-reduce they all send at once (incast); a small switch queues a few hundred kB per port and drops the rest. See
/// "Paced nodes" in `bench/measurements.md`.
const WINDOW_BYTES: (usize, usize) = (256 << 10, 8 << 10);

/// The receive window for each of the other ranks; `None` for a single sender: the system's default.
fn window(ranks: usize) -> Option<usize> {
    let (all, least) = WINDOW_BYTES;
    (ranks > 2).then(|| (all / (ranks - 1)).max(least))
}

impl Links {
    /// Takes connected sockets, one for each other rank of the replica (`None` at this rank's index).
    ///
    /// # Errors
    /// A socket option cannot be set.
    pub fn new(seat: Seat, streams: Vec<Option<TcpStream>>, abort: Arc<Abort>, spin: bool) -> io::Result<Self> {
        let sockets = streams.into_iter().map(|stream| Some(Socket { stream: stream?, seals: Seals::default() }));
        Self::sealed(seat, sockets.collect(), abort, spin)
    }

    /// Like [`Self::new`], on sockets with encrypted frames.
    ///
    /// # Errors
    /// A socket option cannot be set.
    pub fn sealed(seat: Seat, sockets: Vec<Option<Socket>>, abort: Arc<Abort>, spin: bool) -> io::Result<Self> {
        assert!(sockets.len() <= NODES_MAX, "a topology has at most {NODES_MAX} nodes: checked when it was made");
        let peers = sockets.into_iter().enumerate().map(|(rank, socket)| {
            let is_stage = seat.stage.contains(&(rank as u16));
            let window = if is_stage { window(seat.stage.len()) } else { None };
            // Only other stages send hand-overs.
            socket.map(|socket| Peer::new(socket, !is_stage, window)).transpose()
        });
        let peers = peers.collect::<io::Result<Vec<_>>>()?;
        let (calls, waited) = (Calls::default(), Instant::now());
        let (awaited, pauses) = (RankSet::default(), Pauses::new(waited));
        Ok(Self { seat, peers, abort, spin, calls, waited, awaited, pauses })
    }

    /// This rank.
    pub fn own(&self) -> Rank {
        self.seat.own
    }

    /// The ranks of the stage.
    pub fn stage(&self) -> impl ExactSizeIterator<Item = Rank> + Clone + use<> {
        self.seat.stage.clone().map(Rank)
    }

    /// The first rank of the stage.
    pub fn first(&self) -> u16 {
        self.seat.stage.start
    }

    /// State shared with the watchers of this engine.
    pub fn abort(&self) -> &Abort {
        &self.abort
    }

    /// System calls so far.
    pub fn calls(&self) -> Calls {
        self.calls
    }

    /// The other ranks of the stage, starting with the next one.
    pub fn others(&self) -> impl Iterator<Item = Rank> + Clone + use<> {
        let (own, stage) = (self.seat.own.0, self.seat.stage.clone());
        (own + 1..stage.end).chain(stage.start..own).map(Rank)
    }

    /// The other ranks of the replica.
    pub fn all_others(&self) -> impl Iterator<Item = Rank> + use<> {
        let (own, world) = (self.seat.own, self.peers.len() as u16);
        (0..world).map(Rank).filter(move |rank| *rank != own)
    }

    /// Starts sending a message that reports this rank's compute time; `fill` appends its payload. Returns the number of
    /// bytes on the wire.
    ///
    /// # Errors
    /// The peer is lost, or the previous message could not be sent.
    pub fn send(
        &mut self,
        to: Rank,
        tag: FrameTag,
        compute: Nanoseconds,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<u64, CollectiveError> {
        self.send_reporting(to, tag, SlowestRank { compute, rank: self.seat.own }, fill)
    }

    /// Like [`Self::send`], but reports the slowest rank known to this one.
    ///
    /// # Errors
    /// The peer is lost, or the previous message could not be sent.
    pub fn send_reporting(
        &mut self,
        to: Rank,
        tag: FrameTag,
        slowest: SlowestRank,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<u64, CollectiveError> {
        let header = self.header(to, tag, slowest)?;
        let peer = self.peers[to.index()].as_mut().expect("a rank has links to all others and none to itself");
        let bytes = peer.load(header, fill);
        peer.write(to, &mut self.calls)?;
        Ok(bytes)
    }

    /// Like [`Self::send_reporting`], for a contiguous payload.
    ///
    /// # Errors
    /// The peer is lost, or the previous message could not be sent.
    pub fn send_slice(
        &mut self,
        to: Rank,
        tag: FrameTag,
        slowest: SlowestRank,
        payload: &[u8],
    ) -> Result<u64, CollectiveError> {
        let header = self.header(to, tag, slowest)?;
        let peer = self.peers[to.index()].as_mut().expect("a rank has links to all others and none to itself");
        peer.send(to, header, payload, &mut self.calls)
    }

    /// The header of the next message to a rank, once the previous one is sent.
    fn header(&mut self, to: Rank, tag: FrameTag, slowest: SlowestRank) -> Result<FrameHeader, CollectiveError> {
        if !self.peer(to).is_flushed() {
            self.wait(Goal { flushed: RankSet::one(to), ..Goal::default() })?;
        }
        let Seat { own, epoch, hash, .. } = self.seat;
        let FrameTag { kind, step, sequence, place } = tag;
        let (slowest, compute_ns) = (slowest.rank, slowest.compute.0);
        let (from, length, payload_sum) = (own, 0, 0);
        Ok(FrameHeader { kind, from, length, epoch, hash, step, sequence, place, slowest, compute_ns, payload_sum })
    }

    /// Waits until a frame of each rank in `from` is at the front and everything sent within the stage is flushed.
    ///
    /// # Errors
    /// A peer is lost or sent an invalid header, or the wait was aborted.
    pub fn wait_for(&mut self, from: impl Iterator<Item = Rank>) -> Result<(), CollectiveError> {
        let from = from.fold(RankSet::default(), RankSet::with);
        self.wait(Goal { from, flushed: self.stage_set(), may_sleep_alone: false })
    }

    /// Waits until a frame of each rank in `from` is at the front; used within an all-reduce, where peers answer soon.
    ///
    /// # Errors
    /// A peer is lost or sent an invalid header, or the wait was aborted.
    pub fn receive(&mut self, from: RankSet) -> Result<(), CollectiveError> {
        self.wait(Goal { from, flushed: RankSet::default(), may_sleep_alone: true })
    }

    /// Whether everything sent within the stage is flushed.
    pub fn is_flushed(&self) -> bool {
        let stage = usize::from(self.seat.stage.start)..usize::from(self.seat.stage.end);
        self.peers[stage].iter().flatten().all(Peer::is_flushed)
    }

    /// Waits until everything sent within the stage is flushed: its ranks no longer depend on this one.
    ///
    /// # Errors
    /// A peer is lost or sent an invalid header, or the wait was aborted.
    pub fn flush_stage(&mut self) -> Result<(), CollectiveError> {
        self.wait(Goal { flushed: self.stage_set(), ..Goal::default() })
    }

    /// The rank whose frame arrived last in the latest wait, and how long only that one was missing; this rank if all
    /// were there before. The time of an arrival is when the system received the frame: a pause of this process is no
    /// delay of a peer. To be called before frames are consumed.
    pub fn last_arrival(&self) -> (Rank, Nanoseconds) {
        let (mut last, mut at, mut before) = (self.seat.own, self.waited, self.waited);
        for (rank, arrived) in self.arrivals(self.awaited) {
            if arrived > at {
                (last, at, before) = (rank, arrived, at);
            } else {
                before = before.max(arrived);
            }
        }
        (last, Nanoseconds(at.duration_since(before).as_nanos() as u64))
    }

    /// When the front frames of these ranks arrived.
    fn arrivals(&self, from: RankSet) -> impl Iterator<Item = (Rank, Instant)> {
        from.iter().filter_map(|rank| Some((rank, self.peers.get(rank.index())?.as_ref()?.arrived())))
    }

    /// Begins an all-reduce for [`Self::heard`].
    pub fn listen(&mut self) {
        let stage = usize::from(self.seat.stage.start)..usize::from(self.seat.stage.end);
        self.peers[stage].iter_mut().flatten().for_each(Peer::listen);
        self.pauses = Pauses::new(Instant::now());
    }

    /// For each other rank of the stage, in order, when the first and the last byte of the frames consumed since
    /// [`Self::listen`] arrived; later by nothing that this rank's own pauses caused, see [`Pauses`].
    pub fn heard(&self) -> impl Iterator<Item = ArrivalTimes> {
        let stage = usize::from(self.seat.stage.start)..usize::from(self.seat.stage.end);
        self.peers[stage].iter().flatten().map(Peer::heard)
    }

    /// Waits until everything sent is flushed: no other thread sends it while this rank sleeps elsewhere.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn flush(&mut self) -> Result<(), CollectiveError> {
        self.wait(Goal { flushed: RankSet::others(0..self.peers.len(), self.seat.own.index()), ..Goal::default() })
    }

    /// Ends a collective: reports progress to the watchers, and advances transfers with other stages without waiting.
    ///
    /// # Errors
    /// A peer is lost or sent an invalid header.
    pub fn pump(&mut self) -> Result<(), CollectiveError> {
        self.abort.advance();
        let stage = self.stage_set();
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            let (rank, Some(peer)) = (Rank(rank as u16), peer) else { continue };
            if !stage.contains(rank) {
                peer.write(rank, &mut self.calls)?;
                peer.read(rank, Patience::Now, &mut self.calls)?;
            }
        }
        Ok(())
    }

    /// Whether a frame of a rank is at the front, as far as was read.
    pub fn has_front(&self, rank: Rank) -> bool {
        self.peers[rank.index()].as_ref().is_some_and(Peer::has_front)
    }

    /// Advances all directions without waiting; returns whether a frame of a rank is at the front.
    ///
    /// # Errors
    /// A peer is lost or sent an invalid header, or waits are aborted.
    pub fn look_for(&mut self, rank: Rank) -> Result<bool, CollectiveError> {
        if self.abort.is_raised() {
            return Err(CollectiveError::Aborted);
        }
        self.look()?;
        let is_there = self.has_front(rank);
        self.abort.set_waiting(!is_there);
        Ok(is_there)
    }

    /// The socket of a rank.
    pub fn descriptor(&self, rank: Rank) -> Option<BorrowedFd<'_>> {
        self.peers[rank.index()].as_ref().map(Peer::descriptor)
    }

    /// The front frame from `rank`, if it is the expected one.
    ///
    /// # Errors
    /// A frame of another assignment, kind, step, sequence number or position: the ranks are out of step.
    pub fn front(&self, rank: Rank, tag: FrameTag) -> Result<(FrameHeader, &[u8]), CollectiveError> {
        let Seat { epoch, hash, .. } = self.seat;
        let (header, payload) = self.front_any(rank);
        let FrameHeader { kind, step, sequence, place, .. } = header;
        let found = FrameTag { kind, step, sequence, place };
        let is_known = usize::from(header.slowest.0) < self.peers.len();
        if found != tag || (header.epoch, header.hash, header.from) != (epoch, hash, rank) || !is_known {
            let expected = format!("{tag} of {epoch} {hash}");
            let got = format!("{found} of {} {} from rank {}", header.epoch, header.hash, header.from);
            return Err(CollectiveError::OutOfStep { rank, got, expected });
        }
        Ok((header, payload))
    }

    /// The front frame from `rank`, of any kind; it must be there.
    pub fn front_any(&self, rank: Rank) -> (FrameHeader, &[u8]) {
        self.peers[rank.index()].as_ref().expect("a rank has links to all others and none to itself").front()
    }

    /// The hop of the front frame, which a rank of another stage sent; it must be there.
    pub fn hop(&self, from: Rank, step: u64) -> Hop {
        let peer = self.peers[from.index()].as_ref().expect("a rank has links to all others and none to itself");
        let (header, payload) = peer.front();
        let (sent, bytes) = (Nanoseconds(header.compute_ns), peer.wire_bytes(payload.len()) as u32);
        let time = self.abort.clocks().on_the_way(from, sent, clocks::at(peer.arrived()));
        Hop { from, step, bytes, time }
    }

    /// Drops the front frame from `rank`.
    ///
    /// # Errors
    /// The next frame is invalid.
    pub fn consume(&mut self, rank: Rank) -> Result<(), CollectiveError> {
        let paused = self.pauses.total();
        let peer = self.peer(rank);
        peer.hear(paused);
        peer.consume(rank)
    }

    fn peer(&mut self, rank: Rank) -> &mut Peer {
        self.peers[rank.index()].as_mut().expect("a rank has links to all others and none to itself")
    }

    fn stage_set(&self) -> RankSet {
        let range = usize::from(self.seat.stage.start)..usize::from(self.seat.stage.end);
        RankSet::others(range, self.seat.own.index())
    }

    /// The ranks whose frames are missing, and those whose sockets are not flushed.
    fn missing(&self, goal: Goal) -> (RankSet, RankSet) {
        let (mut from, mut flushed) = (RankSet::default(), RankSet::default());
        for (rank, peer) in self.peers.iter().enumerate() {
            let (rank, Some(peer)) = (Rank(rank as u16), peer) else { continue };
            if goal.from.contains(rank) && !peer.has_front() {
                from = from.with(rank);
            }
            if goal.flushed.contains(rank) && !peer.is_flushed() {
                flushed = flushed.with(rank);
            }
        }
        (from, flushed)
    }

    fn wait(&mut self, goal: Goal) -> Result<(), CollectiveError> {
        let mut rounds = 0;
        (self.waited, self.awaited) = (Instant::now(), goal.from);
        self.pauses.begin_wait(self.waited);
        // After sleeping on one socket alone, all of them are checked before the next sleep.
        let mut was_alone = false;
        loop {
            let (from, flushed) = self.missing(goal);
            if from.is_empty() && flushed.is_empty() {
                self.abort.set_waiting(false);
                let arrived = self.arrivals(goal.from).map(|(_, arrived)| arrived).max();
                self.pauses.end_wait(arrived.unwrap_or_else(Instant::now));
                return Ok(());
            }
            if self.abort.is_raised() {
                return Err(CollectiveError::Aborted);
            }
            self.abort.set_waiting(true);
            rounds += 1;
            if self.spin && rounds < SPIN_ROUNDS {
                self.look()?;
                std::hint::spin_loop();
            } else if goal.may_sleep_alone
                && !was_alone
                && from.len() == 1
                && self.peers.iter().flatten().all(Peer::is_flushed)
            {
                was_alone = true;
                for rank in from.iter() {
                    let peer = self.peers[rank.index()].as_mut().expect("only ranks with links are missing");
                    peer.read(rank, Patience::Sleep, &mut self.calls)?;
                }
            } else {
                was_alone = false;
                self.sleep()?;
            }
        }
    }

    /// Advances all directions as far as possible.
    fn look(&mut self) -> Result<(), CollectiveError> {
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            let (rank, Some(peer)) = (Rank(rank as u16), peer) else { continue };
            peer.write(rank, &mut self.calls)?;
            peer.read(rank, Patience::Now, &mut self.calls)?;
        }
        Ok(())
    }

    /// Sleeps until a socket or the abort descriptor is ready, and advances those sockets.
    fn sleep(&mut self) -> Result<(), CollectiveError> {
        // The first entry is the abort descriptor.
        let mut list: [PollFd; NODES_MAX + 1] =
            std::array::from_fn(|_| PollFd::new(self.abort.descriptor(), PollFlags::POLLIN));
        let mut ranks = [0; NODES_MAX + 1];
        let mut count = 1;
        for (rank, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer else { continue };
            // A peer whose frame waits to be consumed is not read further: its socket would wake the poll for nothing.
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, !peer.has_front());
            events.set(PollFlags::POLLOUT, !peer.is_flushed());
            if !events.is_empty() {
                list[count] = PollFd::new(peer.descriptor(), events);
                ranks[count] = rank;
                count += 1;
            }
        }
        self.calls.polls += 1;
        match poll(&mut list[..count], PollTimeout::from(POLL_MS)) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(()),
            Err(error) => return Err(CollectiveError::System { rank: self.seat.own, error }),
        }
        // An error or a hang-up concerns both directions.
        let broken = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
        let found = list.map(|place| place.revents().unwrap_or(broken));
        for (found, rank) in found[1..count].iter().zip(&ranks[1..count]) {
            let rank = Rank(*rank as u16);
            let peer = self.peers[rank.index()].as_mut().expect("it was in the list");
            if found.intersects(PollFlags::POLLOUT | broken) {
                peer.write(rank, &mut self.calls)?;
            }
            if found.intersects(PollFlags::POLLIN | broken) {
                peer.read(rank, Patience::Now, &mut self.calls)?;
            }
        }
        Ok(())
    }
}
