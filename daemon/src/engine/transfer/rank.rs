//! One rank's side of transfers: does what its head orders, moves keys and values between steps and between layers.
use std::{fmt, os::fd::BorrowedFd};

use shared::{
    ids::{MemberIndex, Rank},
    topology::Layout,
};

use super::{
    Order, Standing, TransferId,
    inbox::Inbox,
    outbox::{Outbox, Sending},
};
use crate::{
    collective::{AcrossLinks, CollectiveError, Links},
    engine::step::Stepper,
    model::{BatchToken, KvCache, KvSink, Model},
};

/// Most bytes that are taken in between two steps: about a millisecond of copying, so that running answers do not wait.
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

    /// Whether something is to be sent or to come: then sockets are looked at while the rank waits.
    pub fn is_busy(&self) -> bool {
        self.links.is_sending() || self.inbox.is_waiting()
    }

    /// Does what the head says; false if that cannot be.
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

    /// How it stands with a transfer here.
    pub fn standing(&self, transfer: TransferId) -> Standing {
        self.inbox.standing(transfer)
    }

    /// Moves what sockets take and have; returns whether anything came.
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

    /// Sleeps until a socket of another group has something to say, or that of the own one, or for a moment.
    pub fn sleep(&self, beside: Option<BorrowedFd<'_>>) {
        self.links.sleep(beside);
    }

    /// A step with these tokens begins.
    pub fn begin(&mut self, tokens: &[BatchToken]) {
        self.outbox.begin(tokens);
    }

    /// Who sees keys and values of the step; `tables` are the blocks of each slot.
    pub fn sink<'a>(&'a mut self, tables: &'a [Vec<u32>]) -> impl KvSink + 'a {
        Sending { outbox: &mut self.outbox, links: &mut self.links, tables }
    }

    /// The step is computed.
    pub fn end(&mut self, model: &mut Model, tables: &[Vec<u32>]) {
        self.outbox.end(model.cache(), tables, &mut self.links);
    }
}

impl Stepper {
    /// Moves keys and values until a message of a rank of the own group is there, or nothing is to be moved.
    ///
    /// # Errors
    /// A peer of the own group is lost, or the wait was aborted.
    pub fn move_transfers(&mut self, leader: Rank) -> Result<(), CollectiveError> {
        let (Some(transfers), Some(links)) = (&mut self.transfers, self.group.links()) else { return Ok(()) };
        while transfers.is_busy() && !links.look_for(leader)? {
            if !transfers.step(self.model.cache()) {
                transfers.sleep(Links::descriptor(links, leader));
            }
        }
        Ok(())
    }
}
