//! KV links of a rank to ranks of other groups, from prefill to decode. Unlike a link within the replica, a broken one
//! is only dropped: the prompts that used it are computed locally, and the head stops using the prefill group for a
//! while. Nothing here blocks except for buffer space, and that wait is bounded.
use std::{
    collections::VecDeque,
    io,
    ops::Range,
    os::fd::BorrowedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{Epoch, MemberIndex, Rank, TopologyHash},
    limits::NODES_MAX,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use protocol::frame::{FrameHeader, FrameKind, FramePlace};

use super::{
    Abort, CollectiveError,
    peer::{Calls, Patience, Peer, Socket},
};

/// Most unsent bytes on a link; above that the sender waits.
const BACKLOG_BYTES_MAX: usize = 16 << 20;
/// Longest wait for a link to drain; a rank that accepts nothing for this long is given up. A rank takes little during a
/// step of its own, which may last for many seconds with a large model.
const ROOM: Duration = if cfg!(test) { Duration::from_millis(400) } else { Duration::from_secs(15) };
/// Longest sleep in one poll, in milliseconds.
const SLEEP_MS: u8 = 2;

/// What a receiver did with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It was used, or its transfer is over.
    Done,
    /// It arrived too early and stays at the front.
    Later,
    /// It is invalid; the link is dropped.
    Broken,
}

/// One link.
#[derive(Debug)]
struct Far {
    member: MemberIndex,
    peer: Peer,
    backlog: VecDeque<(FrameHeader, Vec<u8>)>,
    backlog_bytes: usize,
    /// Buffers of sent messages, for reuse.
    spare: Vec<Vec<u8>>,
}

/// KV links of one rank to other groups.
#[derive(Debug)]
pub struct KvLinks {
    own: MemberIndex,
    epoch: Epoch,
    hash: TopologyHash,
    links: Vec<Far>,
    calls: Calls,
    /// Whether keys and values are received on them.
    reads: bool,
    /// Ends the wait for a link to drain, which is one for another rank.
    abort: Arc<Abort>,
}

impl KvLinks {
    /// Takes connected sockets, one for each rank of the other groups. Keys and values are received if `reads`, else
    /// sent. `abort` is that of this rank's engine.
    ///
    /// # Errors
    /// A socket option cannot be set.
    pub fn new(
        own: MemberIndex,
        epoch: Epoch,
        hash: TopologyHash,
        sockets: Vec<(MemberIndex, Socket)>,
        reads: bool,
        abort: Arc<Abort>,
    ) -> io::Result<Self> {
        let links = sockets.into_iter().map(|(member, socket)| {
            let peer = Peer::new(socket, false, None)?;
            Ok(Far { member, peer, backlog: VecDeque::new(), backlog_bytes: 0, spare: Vec::new() })
        });
        let links = links.collect::<io::Result<Vec<_>>>()?;
        Ok(Self { own, epoch, hash, links, calls: Calls::default(), reads, abort })
    }

    /// Whether a member is still connected.
    pub fn has(&self, member: MemberIndex) -> bool {
        self.links.iter().any(|far| far.member == member)
    }

    /// Whether any link has unsent bytes.
    pub fn is_sending(&self) -> bool {
        self.links.iter().any(|far| !far.backlog.is_empty() || !far.peer.is_flushed())
    }

    /// Sends a message of a transfer, now or as soon as the socket accepts it; `fill` appends its payload. Sends
    /// nothing to a lost member. Returns the number of bytes on the wire.
    pub fn send(&mut self, to: MemberIndex, transfer: u64, sequence: u32, fill: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let header = self.header(transfer, sequence);
        let Some(index) = self.links.iter().position(|far| far.member == to) else { return 0 };
        let far = &mut self.links[index];
        if far.backlog.is_empty() && far.peer.is_flushed() {
            let bytes = far.peer.load(header, fill);
            if let Err(error) = far.peer.write(Rank(to.0), &mut self.calls) {
                self.give_up(index, &error.to_string());
            }
            return bytes;
        }
        let mut payload = far.spare.pop().unwrap_or_default();
        payload.clear();
        fill(&mut payload);
        far.backlog_bytes += payload.len();
        let bytes = far.peer.wire_bytes(payload.len());
        far.backlog.push_back((header, payload));
        self.pump();
        self.make_room(to);
        bytes
    }

    fn header(&self, transfer: u64, sequence: u32) -> FrameHeader {
        let (kind, place) = (FrameKind::KeysValues, FramePlace::default());
        let (epoch, hash, from) = (self.epoch, self.hash, Rank(self.own.0));
        let (step, slowest) = (transfer, Rank(0));
        let (length, compute_ns, payload_sum) = (0, 0, 0);
        FrameHeader { kind, from, length, epoch, hash, step, sequence, place, slowest, compute_ns, payload_sum }
    }

    /// Drops the messages of a transfer to these members that have not begun to be sent. Transfers of other groups may
    /// have the same number.
    pub fn forget(&mut self, transfer: u64, members: &Range<usize>) {
        for far in self.links.iter_mut().filter(|far| members.contains(&far.member.index())) {
            far.backlog.retain(|(header, _)| header.step != transfer);
            far.backlog_bytes = far.backlog.iter().map(|(_, payload)| payload.len()).sum();
        }
    }

    /// Waits until the unsent bytes are within the limit.
    fn make_room(&mut self, to: MemberIndex) {
        let (mut since, mut unsent) = (Instant::now(), usize::MAX);
        while let Some(index) = self.links.iter().position(|far| far.member == to) {
            let backlog = self.links[index].backlog_bytes;
            if backlog <= BACKLOG_BYTES_MAX || self.abort.is_raised() {
                break;
            }
            if backlog < unsent {
                (since, unsent) = (Instant::now(), backlog);
            } else if since.elapsed() > ROOM {
                self.give_up(index, "it accepts no keys and values");
                break;
            }
            self.abort.set_waiting(true);
            Self::sleep(Some(self), None);
            self.pump();
        }
        self.abort.set_waiting(false);
    }

    /// Sends as much as the sockets accept.
    pub fn pump(&mut self) {
        let mut index = 0;
        while index < self.links.len() {
            match self.links[index].pump(&mut self.calls) {
                Ok(()) => index += 1,
                Err(error) => self.give_up(index, &error.to_string()),
            }
        }
    }

    /// Passes received frames to `take`, at most about `budget` bytes; returns the number of bytes.
    pub fn receive(&mut self, budget: usize, mut take: impl FnMut(MemberIndex, &FrameHeader, &[u8]) -> Taken) -> usize {
        let (mut index, mut bytes) = (0, 0);
        while index < self.links.len() {
            let far = &mut self.links[index];
            match far.receive(self.epoch, self.hash, &mut bytes, budget, &mut self.calls, &mut take) {
                Ok(()) => index += 1,
                Err(error) => self.give_up(index, &error.to_string()),
            }
        }
        bytes
    }

    fn give_up(&mut self, index: usize, reason: &str) {
        let far = self.links.swap_remove(index);
        tracing::warn!("dropped the link to member {} of another group: {reason}", far.member);
    }

    /// Sleeps until one of the sockets of these links or the given one is ready, or for a few milliseconds.
    pub fn sleep(links: Option<&Self>, beside: Option<BorrowedFd<'_>>) {
        let mut list: smallvec::SmallVec<[PollFd<'_>; NODES_MAX + 1]> = smallvec::SmallVec::new();
        list.extend(beside.map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN)));
        for (far, reads) in links.into_iter().flat_map(|own| own.links.iter().map(|far| (far, own.reads))) {
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, reads && !far.peer.has_front());
            events.set(PollFlags::POLLOUT, !far.peer.is_flushed());
            if !events.is_empty() {
                list.push(PollFd::new(far.peer.descriptor(), events));
            }
        }
        // The result does not matter: the sockets are checked next.
        let _ = poll(&mut list, PollTimeout::from(SLEEP_MS));
    }
}

impl Far {
    fn pump(&mut self, calls: &mut Calls) -> Result<(), CollectiveError> {
        let rank = Rank(self.member.0);
        self.peer.write(rank, calls)?;
        while self.peer.is_flushed() {
            let Some((header, payload)) = self.backlog.pop_front() else { return Ok(()) };
            self.backlog_bytes -= payload.len();
            self.peer.load(header, |out| out.extend_from_slice(&payload));
            if self.spare.len() < 4 {
                self.spare.push(payload);
            }
            self.peer.write(rank, calls)?;
        }
        Ok(())
    }

    fn receive(
        &mut self,
        epoch: Epoch,
        hash: TopologyHash,
        bytes: &mut usize,
        budget: usize,
        calls: &mut Calls,
        take: &mut impl FnMut(MemberIndex, &FrameHeader, &[u8]) -> Taken,
    ) -> Result<(), CollectiveError> {
        let rank = Rank(self.member.0);
        loop {
            self.peer.read(rank, Patience::Now, calls)?;
            if !self.peer.has_front() || *bytes > budget {
                return Ok(());
            }
            let (header, payload) = self.peer.front();
            let is_ours =
                (header.kind, header.epoch, header.hash, header.from) == (FrameKind::KeysValues, epoch, hash, rank);
            let taken = if is_ours { take(self.member, &header, payload) } else { Taken::Broken };
            *bytes += payload.len();
            match taken {
                Taken::Done => self.peer.consume(rank)?,
                Taken::Later => return Ok(()),
                Taken::Broken => {
                    let got = format!(
                        "{:?} {}.{} of {} {}",
                        header.kind, header.step, header.sequence, header.epoch, header.hash
                    );
                    return Err(CollectiveError::OutOfStep { rank, got, expected: "keys and values".into() });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{TcpListener, TcpStream},
    };

    use protocol::{frame::HEADER_BYTES, seal::Seals};

    use super::*;

    const WHO: (Epoch, TopologyHash) = (Epoch(3), TopologyHash(4));

    fn pair() -> (KvLinks, KvLinks, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
        let one = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("loopback accepts");
        let (two, _) = listener.accept().expect("a peer dialled");
        let raw = one.try_clone().expect("a socket can be cloned");
        let links = |own, other, stream, reads| {
            let sockets = vec![(MemberIndex(other), Socket { stream, seals: Seals::default() })];
            let abort = Arc::new(Abort::new().expect("there are descriptors"));
            KvLinks::new(MemberIndex(own), WHO.0, WHO.1, sockets, reads, abort)
        };
        (links(0, 5, one, false).expect("it is good"), links(5, 0, two, true).expect("it is good"), raw)
    }

    #[test]
    fn backlog_arrives_in_order_without_blocking_the_sender() {
        let (mut sender, mut receiver, _) = pair();
        let (mut sent, mut got) = (0_u32, 0_u32);
        while sent < 200 {
            // The byte count is the same whether it is sent at once or buffered.
            let bytes = sender.send(MemberIndex(5), 7, sent, |out| out.resize(out.len() + 65_536, sent as u8));
            assert_eq!(bytes, (HEADER_BYTES + 65_536) as u64, "frame {sent}");
            sent += 1;
        }
        assert!(sender.is_sending(), "12 MB do not fit into sockets");
        let until = Instant::now() + Duration::from_secs(20);
        while got < 200 && Instant::now() < until {
            sender.pump();
            let before = got;
            receiver.receive(1 << 20, |member, header, payload| {
                assert_eq!((member, header.step, header.sequence), (MemberIndex(0), 7, got));
                assert!(payload.len() == 65_536 && payload.iter().all(|byte| *byte == got as u8));
                got += 1;
                Taken::Done
            });
            assert!(got - before <= 17, "{} frames at once", got - before);
        }
        assert!(got == 200 && !sender.is_sending());
    }

    #[test]
    fn messages_of_a_cancelled_transfer_are_dropped() {
        let (mut sender, mut receiver, _) = pair();
        for number in 0..200 {
            let _bytes = sender.send(MemberIndex(5), 7, number, |out| out.resize(out.len() + 65_536, 0));
        }
        sender.send(MemberIndex(5), 8, 0, |out| out.push(8));
        sender.forget(7, &(5..6));
        let (mut old, mut new) = (0, 0);
        let until = Instant::now() + Duration::from_secs(20);
        while (new == 0 || sender.is_sending()) && Instant::now() < until {
            sender.pump();
            receiver.receive(1 << 20, |_, header, payload| {
                if header.step == 7 {
                    old += 1
                } else {
                    new += payload.len()
                }
                Taken::Done
            });
        }
        assert!(old < 200 && new == 1 && !sender.is_sending(), "{old} and {new}");
    }

    #[test]
    fn early_frame_stays_and_invalid_one_drops_the_link() {
        let (mut sender, mut receiver, _) = pair();
        sender.send(MemberIndex(5), 1, 0, |out| out.push(9));
        let mut take = |taken| {
            KvLinks::sleep(Some(&receiver), None);
            let mut seen = 0;
            receiver.receive(100, |_, _, _| {
                seen += 1;
                taken
            });
            (seen, receiver.has(MemberIndex(0)))
        };
        assert_eq!(take(Taken::Later), (1, true));
        assert_eq!(take(Taken::Later), (1, true));
        assert_eq!(take(Taken::Broken), (1, false));
        let (sender, mut receiver, mut raw) = pair();
        raw.write_all(&[0; HEADER_BYTES]).expect("loopback takes it");
        KvLinks::sleep(Some(&receiver), None);
        receiver.receive(100, |_, _, _| Taken::Done);
        assert!(!receiver.has(MemberIndex(0)), "no frame is of kind 0");
        drop((sender, raw));
        let (mut sender, receiver, _) = pair();
        drop(receiver);
        for number in 0..100 {
            let _bytes = sender.send(MemberIndex(5), 1, number, |out| out.resize(out.len() + 65_536, 0));
        }
        assert!(!sender.has(MemberIndex(5)) && !sender.is_sending());
    }
}
