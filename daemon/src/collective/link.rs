//! Data links of one rank: non-blocking sockets, one coalesced write a message, frames in order, buffers allocated once.
//! Every wait makes progress in both directions with all peers, so that full socket buffers never block two ranks.
use std::{io, net::TcpStream, ops::Range, os::fd::AsFd, sync::Arc, time::Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use shared::{
    ids::{Epoch, Rank, TopologyHash},
    protocol::{
        frame::{FrameHeader, FrameKind, HEADER_BYTES},
        seal::Seal,
    },
    topology::spec::NODES_MAX,
    units::Nanoseconds,
};

use super::{Abort, CollectiveError};

/// Looks at the sockets this often before sleeping in a poll, where spinning is allowed.
const SPIN_ROUNDS: u32 = 20_000;
/// Longest sleep before the abort flag is looked at again, in milliseconds.
const POLL_MS: u16 = 200;
/// Least that one read asks for.
const READ_BYTES_MIN: usize = 64 * 1024;

/// A rank's place among the ranks of its replica, and the assignment that its frames name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// This rank, counted over the stages of the replica.
    pub own: Rank,
    /// The ranks of its stage: all-reduces go between them.
    pub stage: Range<u16>,
    /// The assignment.
    pub epoch: Epoch,
    /// Its topology.
    pub hash: TopologyHash,
}

/// The links of one rank to all others of its replica.
#[derive(Debug)]
pub struct Links {
    seat: Seat,
    peers: Vec<Option<Peer>>,
    abort: Arc<Abort>,
    spin: bool,
    arrivals: Arrivals,
}

/// The two latest arrivals of a wait; the own send counts as the first.
#[derive(Clone, Copy, Debug)]
struct Arrivals {
    last: Rank,
    at: Instant,
    before: Instant,
}

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    seal_out: Seal,
    seal_in: Seal,
    /// A whole sealed message, sent up to `sent`.
    out: Vec<u8>,
    sent: usize,
    /// Received bytes; the first `frame` of them are the frame in front once it is whole.
    input: Vec<u8>,
    filled: usize,
    front: Option<FrameHeader>,
}

impl Links {
    /// Takes connected sockets, one for each other rank of the replica (`None` at the own place).
    ///
    /// # Errors
    /// A socket cannot be made non-blocking.
    pub fn new(seat: Seat, streams: Vec<Option<TcpStream>>, abort: Arc<Abort>, spin: bool) -> io::Result<Self> {
        assert!(streams.len() <= NODES_MAX, "a topology has at most {NODES_MAX} nodes: checked when it was made");
        let peer = |stream: TcpStream| {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let input = vec![0; READ_BYTES_MIN];
            let (seal_out, seal_in) = (Seal, Seal);
            Ok(Peer { stream, seal_out, seal_in, out: Vec::new(), sent: 0, input, filled: 0, front: None })
        };
        let peers = streams.into_iter().map(|stream| stream.map(peer).transpose()).collect::<io::Result<Vec<_>>>()?;
        let now = Instant::now();
        let arrivals = Arrivals { last: seat.own, at: now, before: now };
        Ok(Self { seat, peers, abort, spin, arrivals })
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

    /// What the watchers see of this engine.
    pub fn abort(&self) -> &Abort {
        &self.abort
    }

    /// The other ranks of the stage, from the next one on.
    pub fn others(&self) -> impl Iterator<Item = Rank> + Clone + use<> {
        let (own, stage) = (self.seat.own.0, self.seat.stage.clone());
        (own + 1..stage.end).chain(stage.start..own).map(Rank)
    }

    /// Starts sending a message; `fill` appends its payload. Returns the bytes it has on the wire.
    ///
    /// # Errors
    /// The peer is lost, or the message before could not be sent.
    pub fn send(
        &mut self,
        to: Rank,
        (kind, step, sequence, compute_ns): (FrameKind, u64, u32, u64),
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<u64, CollectiveError> {
        self.wait(|peers| peers[to.index()].as_ref().is_none_or(Peer::is_flushed))?;
        let Seat { own, epoch, hash, .. } = self.seat;
        let peer = self.peer(to);
        peer.out.clear();
        peer.out.resize(HEADER_BYTES, 0);
        fill(&mut peer.out);
        let length = (peer.out.len() - HEADER_BYTES) as u32;
        let header = FrameHeader { kind, from: own, length, epoch, hash, step, sequence, compute_ns };
        peer.out[..HEADER_BYTES].copy_from_slice(&header.encode());
        peer.seal_out.seal(&mut peer.out);
        peer.sent = 0;
        peer.write(to)?;
        Ok(u64::from(length) + HEADER_BYTES as u64)
    }

    /// Waits until a frame of each rank in `from` is in front and all that was sent within the stage is with the system.
    ///
    /// # Errors
    /// A peer is lost or sent a broken header, or the wait was aborted.
    pub fn wait_for(&mut self, from: impl Iterator<Item = Rank> + Clone) -> Result<(), CollectiveError> {
        let now = Instant::now();
        self.arrivals = Arrivals { last: self.seat.own, at: now, before: now };
        let stage = usize::from(self.seat.stage.start)..usize::from(self.seat.stage.end);
        self.wait(|peers| {
            let has_front = |rank: Rank| peers[rank.index()].as_ref().is_none_or(|peer| peer.front.is_some());
            from.clone().all(has_front) && peers[stage.clone()].iter().flatten().all(Peer::is_flushed)
        })
    }

    /// The rank whose frame came last in the latest [`Self::wait_for`], and how long only that one was missing; the own
    /// rank if all were there before.
    pub fn last_arrival(&self) -> (Rank, Nanoseconds) {
        let Arrivals { last, at, before } = self.arrivals;
        (last, Nanoseconds(at.duration_since(before).as_nanos() as u64))
    }

    /// Waits until all that was sent is with the system: nobody moves it on while this rank sleeps elsewhere.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn flush(&mut self) -> Result<(), CollectiveError> {
        self.wait(|peers| peers.iter().flatten().all(Peer::is_flushed))
    }

    /// A collective is done: the watchers see it, and what is on its way to or from other stages moves on without a wait.
    ///
    /// # Errors
    /// A peer is lost or sent a broken header.
    pub fn pump(&mut self) -> Result<(), CollectiveError> {
        self.abort.advance();
        let stage = usize::from(self.seat.stage.start)..usize::from(self.seat.stage.end);
        for (rank, peer) in self.peers.iter_mut().enumerate().filter(|(rank, _)| !stage.contains(rank)) {
            let Some(peer) = peer else { continue };
            peer.write(Rank(rank as u16))?;
            peer.read(Rank(rank as u16))?;
        }
        Ok(())
    }

    /// Whether a frame of a rank is in front, as far as was read.
    pub fn has_front(&self, rank: Rank) -> bool {
        self.peers[rank.index()].as_ref().is_some_and(|peer| peer.front.is_some())
    }

    /// The frame in front from `rank`, if it is what this rank expects.
    ///
    /// # Errors
    /// A frame of another assignment, kind, step or sequence number: the ranks are out of step.
    pub fn front(
        &mut self,
        rank: Rank,
        (kind, step, sequence): (FrameKind, u64, u32),
    ) -> Result<(FrameHeader, &mut [u8]), CollectiveError> {
        let Seat { epoch, hash, .. } = self.seat;
        let (header, payload) = self.front_any(rank);
        if (header.kind, header.step, header.sequence) != (kind, step, sequence)
            || (header.epoch, header.hash, header.from) != (epoch, hash, rank)
        {
            let expected = format!("{kind:?} {step}.{sequence} of epoch {epoch} {hash}");
            let got = format!(
                "{:?} {}.{} of epoch {} {} from rank {}",
                header.kind, header.step, header.sequence, header.epoch, header.hash, header.from
            );
            return Err(CollectiveError::OutOfStep { rank, got, expected });
        }
        Ok((header, payload))
    }

    /// The frame in front from `rank`, whatever it is; it must be there.
    pub fn front_any(&mut self, rank: Rank) -> (FrameHeader, &mut [u8]) {
        let peer = self.peer(rank);
        let header = peer.front.expect("wait_for returned with this rank's frame in front");
        let end = HEADER_BYTES + header.length as usize;
        (header, &mut peer.input[HEADER_BYTES..end])
    }

    /// Drops the frame in front from `rank`.
    ///
    /// # Errors
    /// The frame behind it is broken.
    pub fn consume(&mut self, rank: Rank) -> Result<(), CollectiveError> {
        let peer = self.peer(rank);
        if let Some(header) = peer.front.take() {
            let end = HEADER_BYTES + header.length as usize;
            peer.input.copy_within(end..peer.filled, 0);
            peer.filled -= end;
        }
        peer.find_front(rank)
    }

    fn peer(&mut self, rank: Rank) -> &mut Peer {
        self.peers[rank.index()].as_mut().expect("a rank has links to all others and none to itself")
    }

    fn wait(&mut self, is_done: impl Fn(&[Option<Peer>]) -> bool) -> Result<(), CollectiveError> {
        let mut rounds = 0;
        loop {
            if is_done(&self.peers) {
                self.abort.set_waiting(false);
                return Ok(());
            }
            if self.abort.is_raised() {
                return Err(CollectiveError::Aborted);
            }
            for (rank, peer) in self.peers.iter_mut().enumerate() {
                let Some(peer) = peer else { continue };
                let rank = Rank(rank as u16);
                peer.write(rank)?;
                if peer.front.is_none() {
                    peer.read(rank)?;
                    if peer.front.is_some() {
                        let (now, before) = (Instant::now(), self.arrivals.at);
                        self.arrivals = Arrivals { last: rank, at: now, before };
                    }
                }
            }
            if is_done(&self.peers) {
                continue;
            }
            self.abort.set_waiting(true);
            rounds += 1;
            if self.spin && rounds < SPIN_ROUNDS {
                std::hint::spin_loop();
            } else {
                self.sleep()?;
            }
        }
    }

    /// Sleeps until a socket or the abort descriptor has something to say.
    fn sleep(&self) -> Result<(), CollectiveError> {
        // The first place is the abort descriptor's.
        let mut list: [PollFd; NODES_MAX] =
            std::array::from_fn(|_| PollFd::new(self.abort.descriptor(), PollFlags::POLLIN));
        let mut count = 1;
        for peer in self.peers.iter().flatten() {
            // A peer whose frame waits to be consumed is not read on: its socket would wake the poll for nothing.
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, peer.front.is_none());
            events.set(PollFlags::POLLOUT, !peer.is_flushed());
            list[count] = PollFd::new(peer.stream.as_fd(), events);
            count += 1;
        }
        match poll(&mut list[..count], PollTimeout::from(POLL_MS)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(error) => Err(CollectiveError::System { rank: self.seat.own, error }),
        }
    }
}

impl Peer {
    fn is_flushed(&self) -> bool {
        self.sent == self.out.len()
    }

    fn write(&mut self, rank: Rank) -> Result<(), CollectiveError> {
        while !self.is_flushed() {
            match io::Write::write(&mut self.stream, &self.out[self.sent..]) {
                Ok(0) => return Err(CollectiveError::Closed(rank)),
                Ok(count) => self.sent += count,
                Err(error) => return retry(rank, &error),
            }
        }
        Ok(())
    }

    fn read(&mut self, rank: Rank) -> Result<(), CollectiveError> {
        while self.front.is_none() {
            match io::Read::read(&mut self.stream, &mut self.input[self.filled..]) {
                Ok(0) => return Err(CollectiveError::Closed(rank)),
                Ok(count) => self.filled += count,
                Err(error) => return retry(rank, &error),
            }
            self.find_front(rank)?;
        }
        Ok(())
    }

    /// Looks whether a whole frame is in front; grows the buffer as far as bytes of that frame can come.
    fn find_front(&mut self, rank: Rank) -> Result<(), CollectiveError> {
        let header = match self.input[..self.filled].first_chunk::<HEADER_BYTES>() {
            Some(bytes) => FrameHeader::decode(bytes).map_err(|error| CollectiveError::Frame { rank, error })?,
            None => return Ok(()),
        };
        let end = HEADER_BYTES + header.length as usize;
        if self.filled >= end {
            self.seal_in
                .open(&mut self.input[..end])
                .map_err(|_| CollectiveError::Frame { rank, error: shared::protocol::frame::FrameError::Reserved })?;
            self.front = Some(header);
        } else if self.filled == self.input.len() {
            // Doubling as bytes arrive: a header alone never makes a large buffer.
            let length = (2 * self.input.len()).min(end.max(READ_BYTES_MIN));
            self.input.resize(length.max(self.filled + 1), 0);
        }
        Ok(())
    }
}

/// `WouldBlock` and interruptions are no errors; everything else ends the link.
fn retry(rank: Rank, error: &io::Error) -> Result<(), CollectiveError> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(CollectiveError::Closed(rank)),
    }
}
