//! A rank's part in transfers, and in loads from its disk, between its steps.
use common::ids::Rank;

use super::Worker;
use crate::{
    collective::{CollectiveError, Links},
    transfer::TransferOrder,
};

impl Worker {
    /// Executes an order of the head; false if it is invalid.
    pub fn execute(&mut self, order: &TransferOrder) -> bool {
        match order {
            TransferOrder::Store(order) => self.store.execute(order),
            TransferOrder::Receive { blocks, windowed, first_block, .. } => {
                let from = *first_block as usize;
                self.store.forget(blocks.get(from..).unwrap_or_default(), &windowed.1);
                self.transfers.execute(order, self.model.memories())
            }
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
                self.transfers.sleep(Links::descriptor(links, leader));
            }
        }
        Ok(())
    }
}
