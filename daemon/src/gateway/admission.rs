//! Admission: for each model a bounded queue for its replicas' slots, first come first served, each request with a
//! deadline. Resumed answers come before all others.
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use common::ids::ModelRoots;
use tokio::{sync::Notify, time::timeout_at};

pub(super) use super::queues::{Claim, Refused};
use super::{
    cluster::Cluster,
    queues::Queues,
    route::{RequestOutcome, RoutingDecision},
};

/// The queues, and the slots in use.
#[derive(Debug)]
pub(super) struct Admission {
    cluster: Arc<Cluster>,
    limit: usize,
    /// Whether a broken topology recovers by itself.
    recovers: bool,
    state: Mutex<Queues>,
    tickets: AtomicU64,
    /// Signals that a slot is free or a request left the queue.
    moved: Notify,
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

    fn state(&self) -> MutexGuard<'_, Queues> {
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
        state.retry_after(model, served.as_ref().map_or(&[], |served| &served.replicas))
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
        Occupancy { waiting: state.waiting_for_any(), places, taken }
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
        let entered = Instant::now();
        let mut patience = entered;
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            let mut changed = std::pin::pin!(self.cluster.changed.notified());
            // No notification is missed from here on.
            moved.as_mut().enable();
            changed.as_mut().enable();
            let served = self.cluster.model_of(&claim.model).ok_or(Refused::Gone)?;
            // Once the model is expected back, the request waits for it.
            patience = patience.max(claim.patience(self.recovers && served.has_served_lately(), entered));
            let way = self.state().take(ticket.number, &claim, &served.replicas, Instant::now());
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
        let number = self.tickets.fetch_add(1, Ordering::Relaxed);
        self.state().enter(number, claim, &served.replicas, self.limit)?;
        Ok(QueueTicket { number, model: claim.model, admission: self })
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        self.admission.state().leave(self.number, &self.model);
        self.admission.moved.notify_waiters();
    }
}

impl Drop for ReplicaSlot {
    fn drop(&mut self) {
        self.admission.state().released(&self.head, self.outcome, self.since.elapsed(), Instant::now());
        self.admission.moved.notify_waiters();
    }
}
