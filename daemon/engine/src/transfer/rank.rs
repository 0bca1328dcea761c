//! Transfers on one rank: executes the head's orders, and moves keys and values between steps and between layers.
use std::{fmt, os::fd::BorrowedFd};

use common::ids::MemberIndex;
use topology::Layout;

use crate::transfer::{
    TransferId, TransferOrder, TransferStatus,
    inbox::Inbox,
    outbox::{Outbox, Sending},
};
use crate::{
    collective::{Group, KvLinks},
    model::{Batch, ForwardError, Memories, Model},
};

/// Most bytes received between two steps: about a millisecond of copying, so that running answers do not wait.
const BETWEEN_STEPS: usize = 4 << 20;

/// The transfers of a rank. The default belongs to a topology without roles and does nothing.
#[derive(Debug, Default)]
pub struct Transfers(Option<RankTransfers>);

struct RankTransfers {
    links: KvLinks,
    outbox: Outbox,
    inbox: Inbox,
    layout: Layout,
}

impl fmt::Debug for RankTransfers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankTransfers")
            .field("inbox", &self.inbox)
            .field("outbox", &self.outbox)
            .finish_non_exhaustive()
    }
}

impl Transfers {
    pub(super) fn new(links: KvLinks, outbox: Outbox, inbox: Inbox, layout: Layout) -> Self {
        Self(Some(RankTransfers { links, outbox, inbox, layout }))
    }

    /// Whether the topology's groups have roles.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether anything is to be sent or received: then the sockets are polled while the rank waits.
    pub fn is_busy(&self) -> bool {
        self.0.as_ref().is_some_and(|rank| rank.links.is_sending() || rank.inbox.reads())
    }

    /// Executes an order of the head; false if it is invalid.
    pub fn execute(&mut self, order: &TransferOrder, memories: Memories<'_>) -> bool {
        let Some(rank) = &mut self.0 else { return false };
        match order {
            TransferOrder::Send { slot, transfer, replica, first_block, length } => {
                rank.outbox.open(*slot, *transfer, *replica, *first_block as usize, *length as usize);
            }
            TransferOrder::Receive { .. } => return rank.inbox.open(order, memories.cache, memories.states),
            TransferOrder::End { transfer, replica } => rank.end(*transfer, *replica),
            TransferOrder::Tell { .. } | TransferOrder::Store(_) => {}
        }
        true
    }

    /// Status of a transfer on this rank.
    pub fn status(&self, transfer: TransferId) -> TransferStatus {
        self.0.as_ref().map_or(TransferStatus::Failed, |rank| rank.inbox.status(transfer))
    }

    /// Sends and receives without blocking; returns whether anything was received.
    pub fn step(&mut self, memories: Memories<'_>) -> bool {
        self.0.as_mut().is_some_and(|rank| rank.step(memories))
    }

    /// Sleeps until a socket of another group or the given one is ready, at most for a moment.
    pub fn sleep(&self, other: Option<BorrowedFd<'_>>) {
        KvLinks::sleep(self.0.as_ref().map(|rank| &rank.links), other);
    }

    /// Runs the layers of a step, and moves keys and values between them.
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn forward(&mut self, model: &mut Model, batch: Batch<'_>, group: &mut Group) -> Result<(), ForwardError> {
        let Some(rank) = &mut self.0 else { return model.forward(batch, group).map(drop) };
        let (tokens, tables) = (batch.tokens, batch.tables);
        rank.step(model.memories());
        rank.outbox.begin(tokens);
        let mut sink = Sending { outbox: &mut rank.outbox, links: &mut rank.links, tables };
        model.forward_beside(batch, group, &mut sink)?;
        let Memories { cache, states } = model.memories();
        rank.outbox.end(cache, states, tables, &mut rank.links);
        Ok(())
    }
}

impl RankTransfers {
    /// Ends a transfer from or to a replica. Each decode group counts its own transfers: the others keep theirs.
    fn end(&mut self, transfer: TransferId, replica: u16) {
        self.inbox.close(transfer);
        self.outbox.close(transfer, replica);
        self.links.forget(transfer.0, &self.layout.members(replica));
    }

    fn step(&mut self, mut memories: Memories<'_>) -> bool {
        self.links.pump();
        let Self { links, inbox, layout, .. } = self;
        if !inbox.reads() {
            return false;
        }
        let bytes = links.receive(BETWEEN_STEPS, |member, header, payload| {
            inbox.take(layout.replica_of(member), header, payload, &mut memories)
        });
        let broken = inbox
            .awaited()
            .filter(|replica| !layout.members(*replica).all(|member| links.has(MemberIndex(member as u16))));
        let broken: smallvec::SmallVec<[u16; 4]> = broken.collect();
        broken.into_iter().for_each(|replica| inbox.fail(replica));
        bytes > 0
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        sync::Arc,
        time::{Duration, Instant},
    };

    use common::ids::{Epoch, TopologyHash};
    use protocol::seal::Seals;
    use topology::ShardPlan;

    use super::*;
    use crate::collective::{Abort, Socket, Taken};

    /// Transfers that fill the sockets, that one group ends, and behind it.
    const FILLING: u64 = 6;
    const ENDED: u64 = 7;
    const LATER: u64 = 8;

    /// Two ends of a connection.
    fn connected() -> [Socket; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be bound");
        let one = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("loopback accepts");
        let (two, _) = listener.accept().expect("a peer dialled");
        [one, two].map(|stream| Socket { stream, seals: Seals::default() })
    }

    fn links(own: u16, sockets: Vec<(MemberIndex, Socket)>, reads: bool) -> KvLinks {
        let abort = Arc::new(Abort::new().expect("there are descriptors"));
        KvLinks::new(MemberIndex(own), Epoch(3), TopologyHash(4), sockets, reads, abort).expect("the sockets are good")
    }

    #[test]
    fn end_of_a_transfer_leaves_that_of_another_group_with_its_number() {
        let layout: Layout = "prefill:tp1+decode:tp1+decode:tp1".parse().expect("a layout");
        let ([one, of_one], [two, of_two]) = (connected(), connected());
        let receiver = |member, socket| links(member, vec![(MemberIndex(0), socket)], true);
        let mut receivers = [receiver(1, of_one), receiver(2, of_two)];
        let plan = ShardPlan { layers: 0..0, cuts: Vec::new(), vocabulary: 0..0 };
        let mut rank = RankTransfers {
            links: links(0, vec![(MemberIndex(1), one), (MemberIndex(2), two)], false),
            outbox: Outbox::new(Vec::new(), &plan, false),
            inbox: Inbox::new(&plan, None),
            layout,
        };
        let members = [1, 2].map(MemberIndex);
        for member in members {
            // 12 MB do not fit into the sockets: what follows has not begun to be sent.
            for number in 0..200 {
                rank.links.send(member, FILLING, number, |out| out.resize(out.len() + 65_536, 0));
            }
            rank.links.send(member, ENDED, 0, |out| out.push(0));
        }
        rank.end(TransferId(ENDED), 1);
        for member in members {
            rank.links.send(member, LATER, 0, |out| out.push(0));
        }
        let mut found: [Vec<u64>; 2] = Default::default();
        let until = Instant::now() + Duration::from_secs(20);
        while found.iter().any(|transfers| transfers.last() != Some(&LATER)) {
            assert!(Instant::now() < until, "{found:?}");
            rank.links.pump();
            for (receiver, found) in receivers.iter_mut().zip(&mut found) {
                receiver.receive(1 << 20, |_, header, _| {
                    if header.step != FILLING {
                        found.push(header.step);
                    }
                    Taken::Done
                });
            }
        }
        assert_eq!(found, [vec![LATER], vec![ENDED, LATER]]);
    }
}
