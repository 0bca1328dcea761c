//! Executes an assignment: loads the shard, accepts incoming links, opens the others, starts the engine.
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use common::{fault::FaultKind, ids::Epoch};
use protocol::{
    NUMERIC_VERSION,
    connection::{Connection, send_welcome},
    handshake::{Between, Identity, Purpose, Welcome},
    message::Prepare,
};
use telemetry::LoadProgress;
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    task::{AbortHandle, spawn_blocking},
};

use super::{
    Driver, Event, Input,
    linking::{self, Arrival, Linking, OpenLinks},
    loading::{self, Loaded},
    running::{Place, Running},
};

/// A finished load and the number of its attempt; the result of an earlier attempt at the same epoch is ignored.
#[derive(Debug)]
pub struct LoadOutcome(pub(super) u64, pub(super) Result<Box<Loaded>, FaultKind>);

/// Opened links, with the number of their attempt.
#[derive(Debug)]
pub struct LinkOutcome(pub(super) u64, pub(super) Result<OpenLinks, FaultKind>);

/// An assignment between its load and its start.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) attempt: u64,
    pub(super) place: Place,
    pub(super) loaded: Option<Box<Loaded>>,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) arrivals: Sender<Arrival>,
    pub(super) arrived: Option<Receiver<Arrival>>,
    /// The task that opens links ends with the assignment, so that a later assignment of the same epoch gets none of
    /// them.
    linking: Option<Ending>,
}

/// A task that is aborted when this is dropped.
#[derive(Debug)]
struct Ending(AbortHandle);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Driver {
    pub(super) fn load(&mut self, prepare: Prepare) {
        let cancelled = Arc::new(AtomicBool::new(false));
        let topology = prepare.topology.clone();
        let (arrivals, arrived) = channel(4 * topology.members.len());
        let place = Place { epoch: prepare.epoch, hash: topology.hash(), topology, member: prepare.member };
        let arrived = Some(arrived);
        self.attempts += 1;
        let attempt = self.attempts;
        self.open = Some(Open {
            attempt,
            place,
            loaded: None,
            cancelled: Arc::clone(&cancelled),
            arrivals,
            arrived,
            linking: None,
        });
        let (config, inputs) = (Arc::clone(&self.config), self.around.inputs.clone());
        let kernels = self.around.kernels;
        let load = move || {
            let epoch = prepare.epoch;
            let begun = Instant::now();
            let told = AtomicU64::new(0);
            let progress = |progress: LoadProgress| {
                // At most ten a second, and the last one.
                let now = begun.elapsed().as_millis() as u64;
                let last = told.load(Ordering::Relaxed);
                if (now >= last + 100 || progress.done == progress.total)
                    && told.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
                {
                    // If the queue is full, only a progress line is lost.
                    let _ = inputs.try_send(Input::Event(Event::LoadProgress(epoch, progress)));
                }
                !cancelled.load(Ordering::Acquire)
            };
            let result = loading::load(&config, kernels, &prepare, &progress).map(Box::new);
            tracing::info!(%epoch, model = prepare.topology.model, ok = result.is_ok(), ms = begun.elapsed().as_millis() as u64, "load ended");
            let _ = inputs.blocking_send(Input::Loaded(LoadOutcome(attempt, result)));
        };
        let benching = self.benching.take();
        tokio::spawn(async move {
            if let Some(benching) = benching {
                benching.gone().await;
            }
            spawn_blocking(load);
        });
    }

    pub(super) async fn loaded(&mut self, attempt: u64, result: Result<Box<Loaded>, FaultKind>) {
        let Some(open) = self.open.as_mut().filter(|open| open.attempt == attempt) else { return };
        let epoch = open.place.epoch;
        let result = match result {
            Ok(loaded) => {
                let bytes = loaded.bytes;
                open.loaded = Some(loaded);
                Ok(bytes)
            }
            Err(kind) => Err(self.fault(kind)),
        };
        self.event(Event::Loaded(epoch, result)).await;
    }

    /// Accepts an incoming link of a rank if its assignment is being connected here.
    pub(super) fn link(&mut self, mut connection: Connection, purpose: Purpose, identity: &Identity) {
        let (between, is_data) = match purpose {
            Purpose::Data(between) => (between, true),
            Purpose::Control(between) => (between, false),
            Purpose::Console => return,
            Purpose::Probe => return self.probed(connection, identity),
        };
        let verdict =
            self.identity.check_ranks(identity, connection.version).and_then(|()| self.check_link(&between, identity));
        let from = between.from;
        let welcome = match verdict {
            Ok(_) => Welcome::Accepted(self.identity.clone()),
            Err(ref kind) => Welcome::Refused(self.fault(kind.clone())),
        };
        tokio::spawn(async move {
            if send_welcome(&mut connection, &welcome).await.is_ok()
                && let Ok(arrivals) = verdict
            {
                // If the assignment ended meanwhile, the socket closes.
                let _ = arrivals.send(Arrival { from, is_data, connection }).await;
            }
        });
    }

    fn check_link(&self, between: &Between, identity: &Identity) -> Result<Sender<Arrival>, FaultKind> {
        let open = self.open.as_ref().filter(|_| self.node.expects_links(between.epoch, between.hash));
        let open = open.ok_or_else(|| self.unexpected(between))?;
        if identity.numeric != NUMERIC_VERSION {
            return Err(FaultKind::NumericVersion { theirs: identity.numeric, own: NUMERIC_VERSION });
        }
        let topology = &open.place.topology;
        let member = topology.members.get(between.from.index());
        let (own, from) = (open.place.seat(), topology.place(between.from));
        let is_linked = from.replica == own.replica || topology.layout.are_across(between.from, open.place.member);
        let is_of_replica = member.is_some() && is_linked;
        let is_lower = between.from < between.to && between.to == open.place.member;
        if !is_lower || !is_of_replica || member.is_none_or(|member| member.name != identity.name) {
            let reason = format!("{} dialled as member {} to member {}", identity.name, between.from, between.to);
            return Err(FaultKind::LinksFailed { reason });
        }
        Ok(open.arrivals.clone())
    }

    /// Why links do not belong to the assignment that this node prepares: the epoch or the topology differs.
    fn unexpected(&self, between: &Between) -> FaultKind {
        let (epoch, hash) = (between.epoch, between.hash);
        match self.node.topology() {
            Some((_, own, _)) if own != hash || self.node.epoch() != epoch => FaultKind::LinksFailed {
                reason: format!(
                    "the links are for epoch {epoch} and topology {hash}, this node is at epoch {} and topology \
                     {own}",
                    self.node.epoch()
                ),
            },
            _ => FaultKind::NotPrepared { epoch },
        }
    }

    pub(super) fn connect(&mut self, epoch: Epoch) {
        let Some(open) = self.open.as_mut().filter(|open| open.place.epoch == epoch) else { return };
        let Some(arrived) = open.arrived.take() else { return };
        let attempt = open.attempt;
        let Place { epoch, hash, topology, member: own } = open.place.clone();
        let linking = Linking { identity: self.identity.clone(), topology, epoch, hash, own };
        let inputs = self.around.inputs.clone();
        let task = tokio::spawn(async move {
            let result = linking::open(linking, arrived).await;
            let _ = inputs.send(Input::Linked(LinkOutcome(attempt, result))).await;
        });
        open.linking = Some(Ending(task.abort_handle()));
    }

    pub(super) async fn linked(&mut self, attempt: u64, result: Result<OpenLinks, FaultKind>) {
        let Some(open) = self.open.take_if(|open| open.attempt == attempt) else { return };
        let epoch = open.place.epoch;
        let started = result.and_then(|links| {
            let loaded = open.loaded.ok_or(FaultKind::NotPrepared { epoch })?;
            Running::start(&self.around, open.place, *loaded, (links, attempt))
        });
        let result = match started {
            Ok(running) => {
                if self.draining {
                    running.announce_draining();
                }
                self.running = Some(running);
                Ok(())
            }
            Err(kind) => Err(self.fault(kind)),
        };
        self.event(Event::Connected(epoch, result)).await;
    }
}
