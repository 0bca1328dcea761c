//! The progress of a node with the files of a model, as that of one whole.
use std::sync::Arc;

use common::units::Bytes;
use protocol::models::Step;

use crate::operator::transfer::TransferReport;

/// Receives the progress of a node, by its index among the sessions.
pub type PullProgress = dyn Fn(usize, TransferReport) + Send + Sync;

/// What a node has of a model.
pub(super) struct WholeProgress {
    /// Index of the node.
    node: usize,
    /// Of each file its size in bytes, if it is known.
    sizes: Vec<Option<u64>>,
    /// Which of the files the node has.
    has: Vec<bool>,
    tell: Arc<PullProgress>,
}

impl WholeProgress {
    /// The progress of a node that has some of the files.
    pub(super) fn new(node: usize, sizes: Vec<Option<u64>>, has: Vec<bool>, tell: &Arc<PullProgress>) -> Self {
        Self { node, sizes, has, tell: Arc::clone(tell) }
    }

    /// Reports the progress with the file at `place`.
    pub(super) fn report(&self, place: usize, step: Step, done: Bytes, total: Option<Bytes>) {
        let mut sizes = self.sizes.clone();
        if let (Some(size), Some(total)) = (sizes.get_mut(place), total) {
            *size = Some(total.0);
        }
        let complete = sizes.iter().zip(&self.has).filter(|(_, has)| **has).filter_map(|(size, _)| *size);
        let done = Bytes(complete.fold(done.0, u64::saturating_add));
        let (total, is_estimate) = whole(&sizes);
        (self.tell)(self.node, TransferReport { step, done, total, is_estimate });
    }

    /// The file at `place` has arrived.
    pub(super) fn arrived(&mut self, place: usize, size: Bytes) {
        if let (Some(known), Some(has)) = (self.sizes.get_mut(place), self.has.get_mut(place)) {
            (*known, *has) = (Some(size.0), true);
        }
    }

    /// The sizes of the files, as far as they are known.
    pub(super) fn sizes(&self) -> &[Option<u64>] {
        &self.sizes
    }
}

/// The size of all files, and whether it is an estimate: a server states the size of a file only when its download
/// begins, and the files of a model are of similar size.
fn whole(sizes: &[Option<u64>]) -> (Option<Bytes>, bool) {
    let known: Vec<u64> = sizes.iter().flatten().copied().collect();
    let unknown = (sizes.len() - known.len()) as u64;
    let sum = known.iter().copied().fold(0, u64::saturating_add);
    // Without a known size, there is nothing to divide by.
    let Some(average) = sum.checked_div(known.len() as u64) else { return (None, false) };
    (Some(Bytes(sum.saturating_add(average.saturating_mul(unknown)))), unknown > 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn size_of_a_model_is_estimated_until_all_sizes_are_known() {
        assert_eq!(whole(&[None, None]), (None, false));
        assert_eq!(whole(&[Some(10), None, Some(20)]), (Some(Bytes(45)), true));
        assert_eq!(whole(&[Some(10), Some(20)]), (Some(Bytes(30)), false));
        assert_eq!(whole(&[Some(u64::MAX), Some(2), None]), (Some(Bytes(u64::MAX)), true), "of a node that lies");
        assert_eq!(whole(&[]), (None, false));
    }

    #[test]
    fn progress_with_a_file_is_that_of_the_whole_model() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let reports = Arc::clone(&told);
        let tell: Arc<PullProgress> = Arc::new(move |node, report| {
            reports.lock().expect("the lock is not poisoned").push((node, report));
        });
        let mut progress = WholeProgress::new(1, vec![None; 3], vec![false, false, true], &tell);
        progress.report(0, Step::Downloading, Bytes(4), Some(Bytes(10)));
        progress.arrived(0, Bytes(10));
        progress.report(1, Step::Copying, Bytes(5), Some(Bytes(20)));
        progress.arrived(2, Bytes(30));
        progress.report(1, Step::Hashing, Bytes(20), Some(Bytes(20)));
        // The server states no size.
        WholeProgress::new(0, vec![None], vec![false], &tell).report(0, Step::Downloading, Bytes(7), None);
        let report = |step, done, total: Option<u64>, is_estimate| {
            let (done, total) = (Bytes(done), total.map(Bytes));
            TransferReport { step, done, total, is_estimate }
        };
        let expected = [
            (1, report(Step::Downloading, 4, Some(30), true)),
            (1, report(Step::Copying, 15, Some(45), true)),
            (1, report(Step::Hashing, 60, Some(60), false)),
            (0, report(Step::Downloading, 7, None, false)),
        ];
        assert_eq!(*told.lock().expect("the lock is not poisoned"), expected);
    }
}
