//! Log probabilities of answers that are sent as one object are kept until the end: all requests share a budget for them.
//! Streams keep none.
use super::{
    error::ApiError,
    pool::{Held, Pool},
};

/// Memory of one as JSON, in bytes: names, text, and the text's bytes as a list of numbers.
const BYTES: usize = 1 << 10;
/// The budget as a fraction of the machine's memory, and its bounds in bytes.
const SHARE: u64 = 16;
const BUDGET: std::ops::RangeInclusive<u64> = (64 << 20)..=(512 << 20);
/// Unit of reservations in bytes.
const UNIT: usize = 256 << 10;

/// The budget of a node.
#[derive(Debug)]
pub(super) struct ScoreBudget(Pool);

/// Those that one request keeps; released when dropped.
#[derive(Debug)]
pub(super) struct HeldScores {
    pool: Pool,
    held: Held,
    count: usize,
}

impl ScoreBudget {
    /// The budget of a machine with `memory` bytes.
    pub(super) fn new(memory: u64) -> Self {
        let all = (memory / SHARE).clamp(*BUDGET.start(), *BUDGET.end()) as usize;
        Self(Pool::new(all, UNIT))
    }

    /// Nothing yet.
    pub(super) fn hold(&self) -> HeldScores {
        HeldScores { pool: self.0.clone(), held: Held::default(), count: 0 }
    }
}

impl HeldScores {
    /// Reserves memory for more of them.
    ///
    /// # Errors
    /// There is none left.
    pub(super) fn add(&mut self, more: usize) -> Result<(), ApiError> {
        self.count += more;
        let changed = self.pool.change(&mut self.held, self.count * BYTES);
        changed.map_err(|full| ApiError::scores_full(self.count, full.all / BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_share_the_budget_and_give_it_back() {
        let budget = ScoreBudget::new(0);
        let [mut one, mut two] = [budget.hold(), budget.hold()];
        let all = budget.0.all() / BYTES;
        for _ in 0..all / 2 {
            one.add(1).expect("there is room");
        }
        two.add(all / 2).expect("there is room");
        let full = two.add(UNIT / BYTES).expect_err("the other has the rest");
        assert_eq!((full.status.as_u16(), full.code.as_str()), (429, "logprobs_full"));
        drop((one, two));
        let mut alone = budget.hold();
        alone.add(all).expect("all was given back");
        let more = alone.add(1).expect_err("more than all");
        assert_eq!((more.status.as_u16(), more.code.as_str()), (400, "invalid_value"));
        assert!(more.message().contains("stream"), "{}", more.message());
    }
}
