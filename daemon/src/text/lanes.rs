//! Queues of requests to prepare, in three lanes: immediate work, ordinary conversations, and work that may take long.
//! The lanes do not delay each other. The node bounds the number of requests.
use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use common::fault::FaultKind;
use engine::RequestKey;
use protocol::{
    message::Generate,
    texts::{TextRequest, TextResponse},
};
use tokio::sync::oneshot;

/// Keys of questions are not below this one, those of requests are.
pub(super) const FIRST_QUESTION: RequestKey = RequestKey(1 << 63);

/// Where a request is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Without a child: every request is tried here first.
    Front,
    /// Conversations of ordinary length.
    Chat,
    /// Long texts and conversations, and schemas that were not checked before.
    Long,
}

/// A waiting request.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) key: RequestKey,
    pub(super) work: LaneWork,
    pub(super) received: Instant,
}

/// What a lane has to do.
#[derive(Debug)]
pub(super) enum LaneWork {
    /// Prepare a request for the engine.
    Generate(Arc<Generate>),
    /// Answer a question about texts.
    Question(TextQuestion),
}

/// A question about texts, and where its answer goes.
#[derive(Debug)]
pub(super) struct TextQuestion {
    pub(super) request: Arc<TextRequest>,
    pub(super) answer: oneshot::Sender<Result<TextResponse, FaultKind>>,
}

/// Next work of a lane.
#[derive(Debug)]
pub(super) enum Next {
    Prepare(Waiting),
    /// No request arrived for a while.
    Rest,
    /// The engine ends.
    End,
}

#[derive(Debug, Default)]
struct Places {
    queues: [VecDeque<Waiting>; 3],
    /// Requests that wait or are being prepared.
    pending: BTreeSet<RequestKey>,
    is_over: bool,
}

/// The lanes of an engine.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    places: Mutex<Places>,
    wake: Condvar,
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, Places> {
        // No holder of the lock panics.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a new request.
    pub(super) fn enter(&self, waiting: Waiting) {
        let mut places = self.lock();
        places.pending.insert(waiting.key);
        places.queues[Lane::Front as usize].push_back(waiting);
        drop(places);
        self.wake.notify_all();
    }

    /// Number of questions that wait or are being answered.
    pub(super) fn questions(&self) -> usize {
        self.lock().pending.range(FIRST_QUESTION..).count()
    }

    /// Moves a request to another lane, if it is still wanted.
    pub(super) fn hand_on(&self, lane: Lane, waiting: Waiting) {
        let mut places = self.lock();
        if places.pending.contains(&waiting.key) {
            places.queues[lane as usize].push_back(waiting);
        }
        drop(places);
        self.wake.notify_all();
    }

    /// Waits at most `patience` for the next request of a lane.
    pub(super) fn next(&self, lane: Lane, patience: Duration) -> Next {
        let deadline = Instant::now() + patience;
        let mut places = self.lock();
        loop {
            if places.is_over {
                return Next::End;
            }
            if let Some(waiting) = places.queues[lane as usize].pop_front() {
                return Next::Prepare(waiting);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::Rest;
            }
            let woken = self.wake.wait_timeout(places, left);
            places = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether a request is still wanted.
    pub(super) fn is_wanted(&self, key: RequestKey) -> bool {
        let places = self.lock();
        !places.is_over && places.pending.contains(&key)
    }

    /// Removes a request; false if it is no longer here.
    pub(super) fn leave(&self, key: RequestKey) -> bool {
        self.leave_with(key, || true) == Some(true)
    }

    /// Removes a request if `then` returns true, atomically with respect to cancellation; `None` if it is no longer
    /// here.
    pub(super) fn leave_with(&self, key: RequestKey, then: impl FnOnce() -> bool) -> Option<bool> {
        let mut places = self.lock();
        if !places.pending.contains(&key) {
            return None;
        }
        let leaves = then();
        if leaves {
            places.pending.remove(&key);
            places.queues.iter_mut().for_each(|queue| queue.retain(|waiting| waiting.key != key));
        }
        Some(leaves)
    }

    /// Ends all lanes with the engine: nothing more is prepared.
    pub(super) fn end(&self) {
        let mut places = self.lock();
        places.is_over = true;
        places.pending.clear();
        places.queues.iter_mut().for_each(VecDeque::clear);
        drop(places);
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use common::sampling::SamplingParameters;

    use super::*;

    fn waiting(key: u64) -> Waiting {
        let generate = Generate::new("a", 1, SamplingParameters::default(), Vec::new());
        let work = LaneWork::Generate(Arc::new(generate));
        Waiting { key: RequestKey(key), work, received: Instant::now() }
    }

    #[test]
    fn removed_request_is_neither_prepared_nor_moved() {
        let lanes = Lanes::default();
        (1..=3).for_each(|key| lanes.enter(waiting(key)));
        assert_eq!(lanes.leave_with(RequestKey(2), || false), Some(false), "it stays");
        assert!(lanes.leave(RequestKey(2)) && !lanes.leave(RequestKey(2)));
        let next = |lane| match lanes.next(lane, Duration::ZERO) {
            Next::Prepare(waiting) => Some(waiting.key.0),
            _ => None,
        };
        assert_eq!((next(Lane::Front), next(Lane::Chat)), (Some(1), None));
        lanes.hand_on(Lane::Long, waiting(1));
        lanes.hand_on(Lane::Long, waiting(2));
        assert_eq!((next(Lane::Long), next(Lane::Long), next(Lane::Front)), (Some(1), None, Some(3)));
        assert!(lanes.is_wanted(RequestKey(1)) && !lanes.is_wanted(RequestKey(2)));
        lanes.end();
        assert!(!lanes.is_wanted(RequestKey(1)) && matches!(lanes.next(Lane::Front, Duration::ZERO), Next::End));
    }
}
