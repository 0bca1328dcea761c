//! Admission: for each model a bounded queue for its replicas' slots, first come first served, each request with a
//! deadline. Resumed answers come before all others.
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use common::ids::ModelRoots;
use tokio::{sync::Notify, time::timeout_at};

use super::{
    cluster::{Cluster, GRACE, Replica},
    route::{RequestOutcome, Router, RoutingDecision},
};

/// Weight of the latest request in the mean duration.
const LATEST: f64 = 0.2;

#[derive(Debug, Default)]
struct AdmissionState {
    router: Router,
    /// Those that wait for a slot of a model; a model for which none waits has no entry.
    queues: BTreeMap<ModelRoots, VecDeque<u64>>,
    /// Mean time that a request holds its slot, in seconds.
    held_s: f64,
}

impl AdmissionState {
    fn waiting(&self, model: &ModelRoots) -> usize {
        self.queues.get(model).map_or(0, VecDeque::len)
    }
}

/// The queues, and the slots in use.
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
    /// The model's nodes have another model now, or none.
    Gone,
}

/// A request for a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    /// The model that is to answer it.
    pub(super) model: ModelRoots,
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
    model: ModelRoots,
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
    /// Creates empty queues of at most `limit` requests.
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
            let replicas = self.cluster.replicas();
            self.state().router.learn(&replicas);
            changed.await;
        }
    }

    /// Number of waiting requests if all queues are full, else `None`.
    pub(super) fn is_full(&self) -> Option<usize> {
        let models = self.cluster.models();
        let state = self.state();
        let least = models.iter().map(|model| state.waiting(&model.topology.roots())).min().unwrap_or_default();
        (least >= self.limit && least > 0).then_some(least)
    }

    /// Estimated seconds until a slot of a model is free, from its queue's length and recent durations.
    pub(super) fn retry_after(&self, model: &ModelRoots) -> u64 {
        let served = self.cluster.model_of(model);
        let state = self.state();
        let (places, _) = state.router.places(served.as_ref().map_or(&[], |served| &served.replicas));
        let seconds = state.held_s * (state.waiting(model) + 1) as f64 / f64::from(places.max(1));
        (seconds.ceil() as u64).clamp(1, 60)
    }

    /// Number of requests that wait for a model.
    pub(super) fn waiting(&self, model: &ModelRoots) -> usize {
        self.state().waiting(model)
    }

    /// Current occupancy of all models.
    pub(super) fn occupancy(&self) -> Occupancy {
        let replicas = self.cluster.replicas();
        let state = self.state();
        let (places, taken) = state.router.places(&replicas);
        Occupancy { waiting: state.queues.values().map(VecDeque::len).sum(), places, taken }
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
        let ticket = self.enter(&claim)?;
        let served_lately = self.cluster.model_of(&claim.model).is_some_and(|served| served.has_served_lately());
        let waits = claim.is_resumed || (self.recovers && served_lately);
        let patience = if waits { claim.deadline } else { claim.deadline.min(Instant::now() + GRACE) };
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            let mut changed = std::pin::pin!(self.cluster.changed.notified());
            // No notification is missed from here on.
            moved.as_mut().enable();
            changed.as_mut().enable();
            let served = self.cluster.model_of(&claim.model).ok_or(Refused::Gone)?;
            let way = self.take(&ticket, &served.replicas, claim.prefix);
            match way {
                RoutingDecision::To(head) => {
                    let (outcome, admission) = (RequestOutcome::Neither, Arc::clone(self));
                    return Ok(ReplicaSlot { head, outcome, admission, since: Instant::now() });
                }
                // If an operator has cordoned all replicas, only an answer that has begun waits.
                RoutingDecision::Nowhere
                    if Instant::now() >= patience || (!claim.is_resumed && served.cordon().is_some()) =>
                {
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

    fn enter(&self, claim: &Claim) -> Result<QueueTicket<'_>, Refused> {
        let served = self.cluster.model_of(&claim.model).ok_or(Refused::Gone)?;
        let mut state = self.state();
        let (places, taken) = state.router.places(&served.replicas);
        let waiting = state.waiting(&claim.model);
        // With a queue of length 0, a request still enters if a slot is free.
        if !claim.is_resumed && waiting >= self.limit && (taken >= places || waiting > 0) {
            return Err(if places == 0 { Refused::Nowhere } else { Refused::Full });
        }
        let number = self.tickets.fetch_add(1, Ordering::Relaxed);
        let queue = state.queues.entry(claim.model).or_default();
        if claim.is_resumed {
            queue.push_front(number);
        } else {
            queue.push_back(number);
        }
        Ok(QueueTicket { number, model: claim.model, admission: self })
    }

    /// Takes a slot if this request is first in its queue.
    fn take(&self, ticket: &QueueTicket<'_>, replicas: &[Replica], prefix: u64) -> RoutingDecision {
        let mut state = self.state();
        let first = state.queues.get(&ticket.model).and_then(VecDeque::front);
        if first != Some(&ticket.number) {
            let (places, _) = state.router.places(replicas);
            return if places == 0 { RoutingDecision::Nowhere } else { RoutingDecision::Busy };
        }
        state.router.choose(replicas, prefix, Instant::now())
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        let mut state = self.admission.state();
        if let Some(queue) = state.queues.get_mut(&self.model) {
            queue.retain(|number| *number != self.number);
            if queue.is_empty() {
                state.queues.remove(&self.model);
            }
        }
        drop(state);
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
