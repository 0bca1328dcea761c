//! A rank's part in transfers, and in loads from its disk, between its steps.
use std::os::fd::BorrowedFd;

use common::ids::Rank;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use smallvec::SmallVec;

use super::Worker;
use crate::{
    collective::{CollectiveError, Links},
    transfer::{TransferOrder, Transfers},
};

/// Longest sleep while keys and values are read, in milliseconds.
const SLEEP_MS: u8 = 1;

impl Worker {
    /// Executes an order of the head; false if it is invalid.
    pub fn execute(&mut self, order: &TransferOrder) -> bool {
        match order {
            TransferOrder::Store(order) => self.store.execute(order),
            order => self.transfers.execute(order, self.model.memories()),
        }
    }

    /// Whether anything is to be sent, received or read while the rank waits.
    pub fn is_moving(&self) -> bool {
        self.transfers.is_busy() || self.store.is_busy()
    }

    /// Moves arrived data; returns whether there was anything.
    pub fn move_arrived(&mut self) -> bool {
        let is_received = self.transfers.step(self.model.memories());
        self.store.step(self.model.memories()) || is_received
    }

    /// Sleeps until something is to be moved or the other descriptor is ready, at most for a moment.
    pub fn sleep(transfers: &Transfers, other: Option<BorrowedFd<'_>>) {
        if transfers.is_on() {
            return transfers.sleep(other);
        }
        let mut list: SmallVec<[PollFd<'_>; 1]> = SmallVec::new();
        list.extend(other.map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN)));
        // The result does not matter: arrived data is looked for next.
        let _ = poll(&mut list, PollTimeout::from(SLEEP_MS));
    }

    /// Moves keys and values until a message of a rank of this group arrives, or nothing is left to move.
    ///
    /// # Errors
    /// A peer of this group is lost, or the wait was aborted.
    pub fn move_transfers(&mut self, leader: Rank) -> Result<(), CollectiveError> {
        while self.is_moving() {
            let is_idle = !self.move_arrived();
            let Some(links) = self.group.links() else { return Ok(()) };
            if links.look_for(leader)? {
                return Ok(());
            }
            if is_idle {
                Self::sleep(&self.transfers, Links::descriptor(links, leader));
            }
        }
        Ok(())
    }
}
