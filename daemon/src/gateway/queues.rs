//! The queues of the gateway: for each model those that wait for a slot, first come first served, resumed answers first,
//! and the choice of a slot for the first of them. Pure: the time is an argument.
use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use common::{
    ids::ModelRoots,
    planted::{Planted, is_planted},
};

use super::route::{Replica, RequestOutcome, Router, RoutingDecision};

/// How long a request waits if nothing serves: a new assignment is visible only with the next report.
pub const GRACE: Duration = Duration::from_millis(600);
/// Weight of the latest request in the mean duration.
const LATEST: f64 = 0.2;

/// Why a request gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The queue is full.
    Full,
    /// All slots were taken until its deadline.
    Overdue,
    /// No replica serves.
    Nowhere,
    /// The model's nodes have another model now, or none.
    Gone,
}

/// A request for a slot.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The model that is to answer it.
    pub model: ModelRoots,
    /// Hash of the beginning of its prompt.
    pub prefix: u64,
    /// It waits until then.
    pub deadline: Instant,
    /// Whether it is a broken answer: it goes first, and waits for a replica to serve.
    pub is_resumed: bool,
    /// Whether other answers of its request have begun: the length of the queue does not matter.
    pub has_others: bool,
}

impl Claim {
    /// Until when it waits for a replica that serves; `is_expected`: the model is expected to come back by itself.
    pub fn patience(&self, is_expected: bool, now: Instant) -> Instant {
        if self.is_resumed || is_expected { self.deadline } else { self.deadline.min(now + GRACE) }
    }
}

/// The queues, and what the router knows.
#[derive(Debug, Default)]
pub struct Queues {
    /// Chooses replicas.
    pub router: Router,
    /// Those that wait for a slot of a model; a model for which none waits has no entry.
    queues: BTreeMap<ModelRoots, VecDeque<u64>>,
    /// Mean time that a request holds its slot, in seconds.
    held_s: f64,
}

impl Queues {
    /// Number of requests that wait for a model.
    pub fn waiting(&self, model: &ModelRoots) -> usize {
        self.queues.get(model).map_or(0, VecDeque::len)
    }

    /// Number of requests that wait for any model.
    pub fn waiting_for_any(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    /// Estimated seconds until a slot of a model is free, from its queue's length and recent durations.
    pub fn retry_after(&self, model: &ModelRoots, replicas: &[Replica]) -> u64 {
        let (places, _) = self.router.places(replicas);
        let seconds = self.held_s * (self.waiting(model) + 1) as f64 / f64::from(places.max(1));
        (seconds.ceil() as u64).clamp(1, 60)
    }

    /// Puts a request into the queue of its model, which holds at most `limit`.
    ///
    /// # Errors
    /// The queue is full, or requests do not wait and no replica serves.
    pub fn enter(&mut self, number: u64, claim: &Claim, replicas: &[Replica], limit: usize) -> Result<(), Refused> {
        let (places, taken) = self.router.places(replicas);
        let waiting = self.waiting(&claim.model);
        // With a queue of length 0, a request still enters if a slot is free.
        let is_bound = !claim.is_resumed && !claim.has_others;
        if is_bound && waiting >= limit && (taken >= places || waiting > 0) {
            return Err(if places == 0 && limit == 0 { Refused::Nowhere } else { Refused::Full });
        }
        let queue = self.queues.entry(claim.model).or_default();
        if claim.is_resumed {
            queue.push_front(number);
        } else {
            queue.push_back(number);
        }
        Ok(())
    }

    /// Takes a slot if this request is first in its queue.
    pub fn take(&mut self, number: u64, claim: &Claim, replicas: &[Replica], now: Instant) -> RoutingDecision {
        let first = self.queues.get(&claim.model).and_then(VecDeque::front);
        if first != Some(&number) {
            let (places, _) = self.router.places(replicas);
            return if places == 0 { RoutingDecision::Nowhere } else { RoutingDecision::Busy };
        }
        self.router.choose(replicas, claim.prefix, now)
    }

    /// Takes a request out of its queue.
    pub fn leave(&mut self, number: u64, model: &ModelRoots) {
        if let Some(queue) = self.queues.get_mut(model).filter(|_| !is_planted(Planted::TicketLeak)) {
            queue.retain(|waiting| *waiting != number);
            if queue.is_empty() {
                self.queues.remove(model);
            }
        }
    }

    /// Releases a slot that was held for a time.
    pub fn released(&mut self, head: &str, outcome: RequestOutcome, held: Duration, now: Instant) {
        self.router.ended(head, outcome, now);
        if matches!(outcome, RequestOutcome::Done(_)) {
            self.held_s += if self.held_s == 0.0 { 1.0 } else { LATEST } * (held.as_secs_f64() - self.held_s);
        }
    }
}
