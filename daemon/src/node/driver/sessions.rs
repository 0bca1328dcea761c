//! The sessions of consoles and other nodes: their outboxes, and their subscriptions to reports.
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    fault::{Fault, FaultKind},
    ids::RequestId,
};
use protocol::{
    inspect::{Inspect, Inspected},
    message::{Response, ResponseBody},
};
use tokio::{sync::OwnedSemaphorePermit, task::spawn_blocking};

use super::{Outbox, context::DriverContext, cursors::Cursors};
use crate::{
    log,
    node::{SessionId, effect::SessionEffect},
};

/// Limits for reporting subscriptions: in total, of viewers, per session.
const WATCHERS_MAX: usize = 128;
const VIEWERS_WATCHES_MAX: usize = 64;
const SESSION_WATCHES_MAX: usize = 8;

/// A client that receives reports at an interval.
#[derive(Debug)]
pub(super) struct Watcher {
    session: SessionId,
    id: RequestId,
    interval: Duration,
    next: Instant,
    cursors: Cursors,
}

/// All open sessions.
#[derive(Debug)]
pub(super) struct OpenSessions {
    /// This node's name, for faults.
    name: String,
    outboxes: HashMap<SessionId, Outbox>,
    watchers: Vec<Watcher>,
    /// Sessions that were ended because their clients read too slowly.
    slow: Vec<SessionId>,
}

impl OpenSessions {
    /// For the node with this name.
    pub(super) fn new(name: String) -> Self {
        Self { name, outboxes: HashMap::new(), watchers: Vec::new(), slow: Vec::new() }
    }

    /// This node's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn open(&mut self, session: SessionId, outbox: Outbox) {
        self.outboxes.insert(session, outbox);
    }

    pub(super) fn close(&mut self, session: SessionId) {
        self.outboxes.remove(&session);
        self.watchers.retain(|watcher| watcher.session != session);
    }

    /// The outbox of an open session.
    pub(super) fn outbox(&self, session: SessionId) -> Option<&Outbox> {
        self.outboxes.get(&session)
    }

    /// Whether a session is open and has read-only access.
    pub(super) fn is_viewer(&self, session: SessionId) -> bool {
        self.outboxes.get(&session).is_some_and(|outbox| outbox.guest.is_viewer())
    }

    pub(super) fn perform(&mut self, effect: SessionEffect, context: &DriverContext) {
        match effect {
            SessionEffect::Respond { session, id, body } => self.respond(session, id, body),
            SessionEffect::Watch { session, id, interval } => self.watch(session, id, interval),
            SessionEffect::Inspect { session, id, what } => {
                let seen = match what {
                    Inspect::Log { after, level } => Inspected::Log(log::ring().read(after, level)),
                    Inspect::Settings => Inspected::Settings(context.config.shown()),
                };
                self.respond(session, id, ResponseBody::Inspected(Box::new(seen)));
            }
            SessionEffect::ClearStore { session, id } => {
                let outbox = self.outboxes.get(&session).cloned();
                match outbox.map(|outbox| Ok((outbox.question()?, outbox))) {
                    Some(Ok((permit, outbox))) => clear_store(outbox, permit, id, context),
                    Some(Err(kind)) => self.refuse(session, id, kind),
                    None => {}
                }
            }
        }
    }

    /// Queues an answer; ends a session that has no room for it.
    pub(super) fn respond(&mut self, session: SessionId, id: RequestId, body: ResponseBody) {
        let Some(outbox) = self.outboxes.get(&session) else { return };
        // The last place is reserved for the reason of the session's end.
        if !outbox.is_nearly_full() && outbox.try_send(Response { id, body }) {
            return;
        }
        tracing::warn!(?session, "a console reads too slowly; its session is closed");
        let body = ResponseBody::Failed(Fault::new(&self.name, FaultKind::SlowReader));
        // If there is no room even for that, the client sees the closed session.
        outbox.try_send(Response { id, body });
        self.close(session);
        self.slow.push(session);
    }

    /// Answers with a fault of this node.
    pub(super) fn refuse(&mut self, session: SessionId, id: RequestId, kind: FaultKind) {
        let body = ResponseBody::Failed(Fault::new(&self.name, kind));
        self.respond(session, id, body);
    }

    /// The sessions that were ended since the last call because their clients read too slowly.
    pub(super) fn take_slow(&mut self) -> Vec<SessionId> {
        std::mem::take(&mut self.slow)
    }

    fn watch(&mut self, session: SessionId, id: RequestId, interval: Duration) {
        match self.check_watch(session) {
            Ok(()) => {
                let cursors = Cursors::default();
                self.watchers.push(Watcher { session, id, interval, next: Instant::now(), cursors });
            }
            Err(kind) => self.refuse(session, id, kind),
        }
    }

    /// Refuses a subscription above the limits; those of viewers leave room for operators and nodes.
    fn check_watch(&self, session: SessionId) -> Result<(), FaultKind> {
        let count = |counts: &dyn Fn(&Watcher) -> bool| self.watchers.iter().filter(|watcher| counts(watcher)).count();
        let full = |what: &str, limit: usize| Err(FaultKind::Full { what: what.into(), limit: limit as u32 });
        if count(&|watcher| watcher.session == session) >= SESSION_WATCHES_MAX {
            return full("watches of one session", SESSION_WATCHES_MAX);
        }
        if self.is_viewer(session) && count(&|watcher| self.is_viewer(watcher.session)) >= VIEWERS_WATCHES_MAX {
            return full("watching viewers", VIEWERS_WATCHES_MAX);
        }
        if self.watchers.len() >= WATCHERS_MAX {
            return full("watching consoles", WATCHERS_MAX);
        }
        Ok(())
    }

    /// Whether reports are sent at an interval.
    pub(super) fn has_watchers(&self) -> bool {
        !self.watchers.is_empty()
    }

    /// Sends the reports that are due.
    pub(super) fn send_reports(&mut self, now: Instant, report: impl Fn(&mut Cursors) -> ResponseBody) {
        let mut watchers = std::mem::take(&mut self.watchers);
        for watcher in watchers.iter_mut().filter(|watcher| watcher.next <= now) {
            watcher.next = now + watcher.interval;
            self.respond(watcher.session, watcher.id, report(&mut watcher.cursors));
        }
        watchers.retain(|watcher| self.outboxes.contains_key(&watcher.session));
        self.watchers = watchers;
    }
}

/// Deletes the stored keys and values on a blocking thread, then answers.
fn clear_store(outbox: Outbox, permit: OwnedSemaphorePermit, id: RequestId, context: &DriverContext) {
    let (store, name) = (Arc::clone(&context.kv), context.config.name.clone());
    spawn_blocking(move || {
        let body = match store.clear() {
            Ok(cleared) => ResponseBody::StoreCleared(cleared),
            Err(error) => {
                let reason = format!("some stored keys and values cannot be deleted: {error}");
                ResponseBody::Failed(Fault::new(&name, FaultKind::StoreFailed { reason }))
            }
        };
        // A session that is gone or full needs no answer.
        outbox.try_send(Response { id, body });
        drop(permit);
    });
}
