//! Transfers on one rank: executes the head's orders, and moves keys and values between steps and between layers.
use std::{fmt, os::fd::BorrowedFd};

use common::ids::MemberIndex;
use topology::Layout;

use crate::transfer::{
    Order, Standing, TransferId,
    inbox::Inbox,
    outbox::{Outbox, Sending},
};
use crate::{
    collective::AcrossLinks,
    model::{BatchToken, KvCache, KvSink, Model},
};

/// Most bytes received between two steps: about a millisecond of copying, so that running answers do not wait.
const BETWEEN_STEPS: usize = 4 << 20;

/// The transfers of a rank.
pub struct Transfers {
    links: AcrossLinks,
    outbox: Outbox,
    inbox: Inbox,
    layout: Layout,
}

impl fmt::Debug for Transfers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfers").field("inbox", &self.inbox).field("outbox", &self.outbox).finish_non_exhaustive()
    }
}

impl Transfers {
    pub(super) fn new(links: AcrossLinks, outbox: Outbox, inbox: Inbox, layout: Layout) -> Self {
        Self { links, outbox, inbox, layout }
    }

    /// Whether anything is to be sent or received: then the sockets are polled while the rank waits.
    pub fn is_busy(&self) -> bool {
        self.links.is_sending() || self.inbox.is_waiting()
    }

    /// Executes an order of the head; false if it is invalid.
    pub fn obey(&mut self, order: &Order) -> bool {
        match order {
            Order::Send { slot, transfer, replica, first_block, length } => {
                self.outbox.open(*slot, (*transfer, *replica), *first_block as usize, *length as usize);
            }
            Order::Receive { .. } => return self.inbox.open(order),
            Order::End { transfer, replica } => {
                self.inbox.close(*transfer);
                self.outbox.close(*transfer, *replica);
            }
            Order::Tell { .. } => {}
        }
        true
    }

    /// Status of a transfer on this rank.
    pub fn standing(&self, transfer: TransferId) -> Standing {
        self.inbox.standing(transfer)
    }

    /// Sends and receives without blocking; returns whether anything was received.
    pub fn step(&mut self, cache: &mut KvCache) -> bool {
        self.links.pump();
        let Self { links, inbox, layout, .. } = self;
        if !inbox.is_waiting() {
            return false;
        }
        let bytes = links.receive(BETWEEN_STEPS, |member, header, payload| {
            inbox.take(layout.replica_of(member), header, payload, cache)
        });
        let is_whole = |replica: u16| layout.members(replica).all(|member| links.has(MemberIndex(member as u16)));
        let broken: smallvec::SmallVec<[u16; 4]> = inbox.awaited().filter(|replica| !is_whole(*replica)).collect();
        broken.into_iter().for_each(|replica| inbox.fail(replica));
        bytes > 0
    }

    /// Sleeps until a socket of another group or the given one is ready, at most for a moment.
    pub fn sleep(&self, beside: Option<BorrowedFd<'_>>) {
        self.links.sleep(beside);
    }

    /// Begins a step with these tokens.
    pub fn begin(&mut self, tokens: &[BatchToken]) {
        self.outbox.begin(tokens);
    }

    /// The sink for keys and values of the step; `tables` are the blocks of each slot.
    pub fn sink<'a>(&'a mut self, tables: &'a [Vec<u32>]) -> impl KvSink + 'a {
        Sending { outbox: &mut self.outbox, links: &mut self.links, tables }
    }

    /// Ends a step.
    pub fn end(&mut self, model: &mut Model, tables: &[Vec<u32>]) {
        self.outbox.end(model.cache(), tables, &mut self.links);
    }
}
