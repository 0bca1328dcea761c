//! The requests that wait to be prepared, in three lanes: what is done at once, ordinary conversations, and all that may take long. What
//! one lane does holds up no other. The node bounds how many there are.
use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use shared::protocol::message::Generate;

use crate::engine::RequestKey;

/// Where a request is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Without a child: first of all, every request is tried here.
    Front,
    /// Conversations of an ordinary length.
    Chat,
    /// Long texts and conversations, and schemas that nobody has seen.
    Long,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) key: RequestKey,
    pub(super) generate: Arc<Generate>,
    pub(super) received: Instant,
}

/// What a lane does next.
#[derive(Debug)]
pub(super) enum Next {
    Prepare(Waiting),
    /// Nothing came for a while.
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
        // Nothing panics with it in hand.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new request in.
    pub(super) fn enter(&self, waiting: Waiting) {
        let mut places = self.lock();
        places.pending.insert(waiting.key);
        places.queues[Lane::Front as usize].push_back(waiting);
        drop(places);
        self.wake.notify_all();
    }

    /// Hands a request on to another lane, if it is still wanted.
    pub(super) fn hand_on(&self, lane: Lane, waiting: Waiting) {
        let mut places = self.lock();
        if places.pending.contains(&waiting.key) {
            places.queues[lane as usize].push_back(waiting);
        }
        drop(places);
        self.wake.notify_all();
    }

    /// Waits for the next request of a lane, at most for so long.
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

    /// Takes a request out; false if it is not here any more.
    pub(super) fn leave(&self, key: RequestKey) -> bool {
        self.leave_with(key, || true) == Some(true)
    }

    /// Takes a request out if `then` says so, before it can be cancelled elsewhere; `None` if it is not here any more.
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

    /// The engine ends: nothing is prepared any more.
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
    use shared::sampling::SamplingParameters;

    use super::*;

    fn waiting(key: u64) -> Waiting {
        let generate = Generate::new("a", 1, SamplingParameters::default(), Vec::new());
        Waiting { key: RequestKey(key), generate: Arc::new(generate), received: Instant::now() }
    }

    #[test]
    fn a_request_that_left_is_neither_prepared_nor_handed_on() {
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
