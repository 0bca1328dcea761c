//! A rank's part in transfers at each of its steps.
use common::ids::Rank;

use super::Worker;
use crate::{
    collective::{CollectiveError, Links},
    transfer::TransferOrder,
};

impl Worker {
    /// Executes an order of the head; false if it is invalid.
    pub fn execute(&mut self, order: &TransferOrder) -> bool {
        self.transfers.execute(order, self.model.memories())
    }

    /// Moves keys and values until a message of a rank of this group arrives, or nothing is left to move.
    ///
    /// # Errors
    /// A peer of this group is lost, or the wait was aborted.
    pub fn move_transfers(&mut self, leader: Rank) -> Result<(), CollectiveError> {
        let Some(links) = self.group.links() else { return Ok(()) };
        let transfers = &mut self.transfers;
        while transfers.is_busy() && !links.look_for(leader)? {
            if !transfers.step(self.model.memories()) {
                transfers.sleep(Links::descriptor(links, leader));
            }
        }
        Ok(())
    }
}
