//! Reservations of memory in a budget that requests share: bytes in units. A request that holds a part never waits for more, so
//! that no two requests wait for each other.
use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// A budget.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    units: Arc<Semaphore>,
    all: usize,
    unit: usize,
}

/// Bytes of a budget; released when dropped.
#[derive(Debug, Default)]
pub(super) struct Held(Option<OwnedSemaphorePermit>);

/// Others hold too much of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exhausted {
    /// Bytes of the whole budget.
    pub(super) all: usize,
}

impl Pool {
    /// A budget of `all` bytes, counted in units of `unit`.
    pub(super) fn new(all: usize, unit: usize) -> Self {
        Self { units: Arc::new(Semaphore::new(all / unit)), all, unit }
    }

    /// Bytes of the whole budget.
    pub(super) fn all(&self) -> usize {
        self.all
    }

    /// Whether nothing is reserved.
    #[cfg(test)]
    pub(super) fn is_free(&self) -> bool {
        self.units.available_permits() * self.unit == self.all
    }

    /// Reserves bytes, waiting at most `patience` for others to release some.
    ///
    /// # Errors
    /// They do not.
    pub(super) async fn hold(&self, bytes: usize, patience: Duration) -> Result<Held, Exhausted> {
        let units = Arc::clone(&self.units).acquire_many_owned(bytes.div_ceil(self.unit) as u32);
        let Ok(Ok(permit)) = timeout(patience, units).await else { return Err(Exhausted { all: self.all }) };
        Ok(Held(Some(permit)))
    }

    /// Changes a reservation to `bytes` without waiting.
    ///
    /// # Errors
    /// There is not enough left; the reservation stays as it was.
    pub(super) fn change(&self, held: &mut Held, bytes: usize) -> Result<(), Exhausted> {
        let wanted = bytes.div_ceil(self.unit);
        let has = held.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if wanted <= has {
            let spare = held.0.as_mut().and_then(|permit| permit.split(has - wanted));
            drop(spare);
            return Ok(());
        }
        let further = u32::try_from(wanted - has).ok();
        let further = further.and_then(|units| Arc::clone(&self.units).try_acquire_many_owned(units).ok());
        let Some(further) = further else { return Err(Exhausted { all: self.all }) };
        match &mut held.0 {
            Some(permit) => permit.merge(further),
            None => held.0 = Some(further),
        }
        Ok(())
    }
}
