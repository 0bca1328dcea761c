//! Admission: a bounded queue for the replicas' slots, first come first served, each request with a deadline. Resumed
//! answers come before all others.
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{sync::Notify, time::timeout_at};

use super::{
    cluster::{Cluster, GRACE},
    route::{RequestOutcome, Router, RoutingDecision},
};

/// A topology that served within this time is expected back: restarted nodes restore it by themselves.
const LATELY: Duration = Duration::from_secs(60);
/// Weight of the latest request in the mean duration.
const LATEST: f64 = 0.2;

#[derive(Debug, Default)]
struct AdmissionState {
    router: Router,
    queue: VecDeque<u64>,
    /// Mean time that a request holds its slot, in seconds.
    held_s: f64,
}

/// The queue, and the slots in use.
#[derive(Debug)]
pub(super) struct Admission {
    cluster: Arc<Cluster>,
    limit: usize,
    /// Whether a broken topology recovers by itself.
    recovers: bool,
    state: Mutex<AdmissionState>,
    tickets: AtomicU64,
    /// Signals that a slot is free or a request left the queue.
    moved: Notify,
}

/// Why a request gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The queue is full.
    Full,
    /// All slots were taken until its deadline.
    Overdue,
    /// No replica serves.
    Nowhere,
}

/// A request for a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    /// Hash of the beginning of its prompt.
    pub(super) prefix: u64,
    /// It waits until then.
    pub(super) deadline: Instant,
    /// Whether it is a broken answer: it goes first, and waits for a replica to serve.
    pub(super) is_resumed: bool,
}

/// A slot on a replica; released when dropped.
#[derive(Debug)]
pub(super) struct ReplicaSlot {
    /// `ADDRESS:PORT` of its head.
    pub(super) head: String,
    /// Outcome to report to the router.
    pub(super) outcome: RequestOutcome,
    admission: Arc<Admission>,
    since: Instant,
}

/// A position in the queue.
struct QueueTicket<'a> {
    number: u64,
    admission: &'a Admission,
}

/// Occupancy figures for /metrics and /health.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Occupancy {
    pub(super) waiting: usize,
    pub(super) places: u32,
    pub(super) taken: u32,
}

impl Admission {
    /// Creates an empty queue of at most `limit` requests.
    pub(super) fn new(cluster: Arc<Cluster>, limit: usize, recovers: bool) -> Self {
        Self { cluster, limit, recovers, state: Mutex::default(), tickets: AtomicU64::new(0), moved: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, AdmissionState> {
        // Queue and counts are consistent even if a task panicked while it held the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes the heads' reports, as long as it is polled.
    pub(super) async fn learn(self: Arc<Self>) {
        loop {
            let changed = self.cluster.changed.notified();
            let serving = self.cluster.serving();
            self.state().router.learn(&serving.replicas);
            changed.await;
        }
    }

    /// Number of waiting requests if the queue is full, else `None`.
    pub(super) fn is_full(&self) -> Option<usize> {
        let waiting = self.state().queue.len();
        (waiting >= self.limit && waiting > 0).then_some(waiting)
    }

    /// Estimated seconds until a slot is free, from the queue's length and recent durations.
    pub(super) fn retry_after(&self) -> u64 {
        let serving = self.cluster.serving();
        let state = self.state();
        let (places, _) = state.router.places(&serving.replicas);
        let seconds = state.held_s * (state.queue.len() + 1) as f64 / f64::from(places.max(1));
        (seconds.ceil() as u64).clamp(1, 60)
    }

    /// Current occupancy.
    pub(super) fn occupancy(&self) -> Occupancy {
        let serving = self.cluster.serving();
        let state = self.state();
        let (places, taken) = state.router.places(&serving.replicas);
        Occupancy { waiting: state.queue.len(), places, taken }
    }

    /// Number of requests of this gateway on a head, and whether its circuit breaker is open.
    pub(super) fn standing(&self, head: &str) -> (u32, bool) {
        let state = self.state();
        (state.router.running(head), state.router.is_out(head))
    }

    /// Waits for a slot.
    ///
    /// # Errors
    /// No slot is free, and none will be in time.
    pub(super) async fn admit(self: &Arc<Self>, claim: Claim) -> Result<ReplicaSlot, Refused> {
        let ticket = self.enter(claim.is_resumed)?;
        let waits = claim.is_resumed || (self.recovers && self.cluster.has_served_within(LATELY));
        let patience = if waits { claim.deadline } else { claim.deadline.min(Instant::now() + GRACE) };
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            let mut changed = std::pin::pin!(self.cluster.changed.notified());
            // No notification is missed from here on.
            moved.as_mut().enable();
            changed.as_mut().enable();
            let way = self.take(&ticket, claim.prefix);
            match way {
                RoutingDecision::To(head) => {
                    let (outcome, admission) = (RequestOutcome::Neither, Arc::clone(self));
                    return Ok(ReplicaSlot { head, outcome, admission, since: Instant::now() });
                }
                RoutingDecision::Nowhere if Instant::now() >= patience || self.is_cordoned(claim) => {
                    return Err(Refused::Nowhere);
                }
                RoutingDecision::Nowhere | RoutingDecision::Busy => {}
            }
            let either = async {
                tokio::select! {
                    () = moved => {}
                    () = changed => {}
                }
            };
            let until = if way == RoutingDecision::Nowhere { patience } else { claim.deadline };
            if timeout_at(until.into(), either).await.is_err() {
                return Err(if way == RoutingDecision::Nowhere { Refused::Nowhere } else { Refused::Overdue });
            }
        }
    }

    /// Whether an operator has cordoned all replicas: then only an answer that has begun waits.
    fn is_cordoned(&self, claim: Claim) -> bool {
        !claim.is_resumed && self.cluster.serving().cordon().is_some()
    }

    fn enter(&self, is_resumed: bool) -> Result<QueueTicket<'_>, Refused> {
        let serving = self.cluster.serving();
        let mut state = self.state();
        let (places, taken) = state.router.places(&serving.replicas);
        // With a queue of length 0, a request still enters if a slot is free.
        if !is_resumed && state.queue.len() >= self.limit && (taken >= places || !state.queue.is_empty()) {
            return Err(if places == 0 { Refused::Nowhere } else { Refused::Full });
        }
        let number = self.tickets.fetch_add(1, Ordering::Relaxed);
        if is_resumed {
            state.queue.push_front(number);
        } else {
            state.queue.push_back(number);
        }
        Ok(QueueTicket { number, admission: self })
    }

    /// Takes a slot if this request is first in the queue.
    fn take(&self, ticket: &QueueTicket<'_>, prefix: u64) -> RoutingDecision {
        let serving = self.cluster.serving();
        let mut state = self.state();
        if state.queue.front() != Some(&ticket.number) {
            let (places, _) = state.router.places(&serving.replicas);
            return if places == 0 { RoutingDecision::Nowhere } else { RoutingDecision::Busy };
        }
        state.router.choose(&serving.replicas, prefix, Instant::now())
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        self.admission.state().queue.retain(|number| *number != self.number);
        self.admission.moved.notify_waiters();
    }
}

impl Drop for ReplicaSlot {
    fn drop(&mut self) {
        let held = self.since.elapsed();
        let mut state = self.admission.state();
        state.router.ended(&self.head, self.outcome, Instant::now());
        if matches!(self.outcome, RequestOutcome::Done(_)) {
            state.held_s += if state.held_s == 0.0 { 1.0 } else { LATEST } * (seconds(held) - state.held_s);
        }
        drop(state);
        self.admission.moved.notify_waiters();
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
