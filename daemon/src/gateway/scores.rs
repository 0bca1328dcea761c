//! Log probabilities of answers that are sent as one object are kept until the end: all requests share a budget for them.
//! Streams keep none.
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;

/// Memory of one as JSON, in bytes: names, text, and the text's bytes as a list of numbers.
const BYTES: u64 = 1 << 10;
/// The budget as a fraction of the machine's memory, and its bounds in bytes.
const SHARE: u64 = 16;
const BUDGET: std::ops::RangeInclusive<u64> = (64 << 20)..=(512 << 20);
/// Number in a reservation.
const UNIT: usize = 256;

/// The budget of a node.
#[derive(Debug)]
pub(super) struct ScoreBudget {
    units: Arc<Semaphore>,
    all: usize,
}

/// What one request keeps; released when dropped.
#[derive(Debug)]
pub(super) struct HeldScores {
    units: Arc<Semaphore>,
    all: usize,
    permits: Option<OwnedSemaphorePermit>,
    count: usize,
}

impl ScoreBudget {
    /// The budget of a machine with `memory` bytes.
    pub(super) fn new(memory: u64) -> Self {
        let all = ((memory / SHARE).clamp(*BUDGET.start(), *BUDGET.end()) / BYTES) as usize;
        Self { units: Arc::new(Semaphore::new(all / UNIT)), all }
    }

    /// Nothing yet.
    pub(super) fn hold(&self) -> HeldScores {
        HeldScores { units: Arc::clone(&self.units), all: self.all, permits: None, count: 0 }
    }
}

impl HeldScores {
    /// Reserves memory for more of them.
    ///
    /// # Errors
    /// There is none left.
    pub(super) fn add(&mut self, more: usize) -> Result<(), ApiError> {
        self.count += more;
        let has = self.permits.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let lacks = self.count.div_ceil(UNIT).saturating_sub(has);
        if lacks == 0 {
            return Ok(());
        }
        // There are fewer units than u32 can count.
        match Arc::clone(&self.units).try_acquire_many_owned(u32::try_from(lacks).unwrap_or(u32::MAX)) {
            Ok(further) => match &mut self.permits {
                Some(permits) => permits.merge(further),
                None => self.permits = Some(further),
            },
            Err(_) => return Err(ApiError::scores_full(self.count, self.all)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_share_the_budget_and_give_it_back() {
        let budget = ScoreBudget::new(0);
        let [mut one, mut two] = [budget.hold(), budget.hold()];
        for _ in 0..budget.all / 2 {
            one.add(1).expect("there is room");
        }
        two.add(budget.all / 2).expect("there is room");
        let full = two.add(UNIT).expect_err("the other has the rest");
        assert_eq!((full.status.as_u16(), full.code.as_str()), (429, "logprobs_full"));
        drop((one, two));
        let mut alone = budget.hold();
        alone.add(budget.all).expect("all was given back");
        let more = alone.add(1).expect_err("more than all");
        assert_eq!((more.status.as_u16(), more.code.as_str()), (400, "invalid_value"));
        assert!(more.message().contains("stream"), "{}", more.message());
    }
}
