//! Requests that are answered without the node's state machine: a model's identity, the latest all-reduces, the log,
//! the settings; and the change of the cluster key.
use std::sync::Arc;

use common::{
    fault::{Fault, FaultKind},
    ids::RequestId,
};
use protocol::{
    inspect::{Inspect, Inspected},
    message::{Response, ResponseBody},
    pairing::Rekeying,
};
use tokio::task::spawn_blocking;

use super::{Driver, loading};
use crate::{keys, log, node::SessionId};

impl Driver {
    pub(super) async fn records(&mut self, session: SessionId, id: RequestId) {
        let mut records = Vec::new();
        if let Some(running) = &self.running {
            running.ring.read_since(&mut 0, |record| records.push(record.clone()));
        }
        self.respond(session, id, ResponseBody::Records(records)).await;
    }

    pub(super) async fn inspect(&mut self, session: SessionId, id: RequestId, what: Inspect) {
        let seen = match what {
            Inspect::Log { after, level } => Inspected::Log(log::ring().read(after, level)),
            Inspect::Settings => Inspected::Settings(self.config.shown()),
        };
        self.respond(session, id, ResponseBody::Inspected(Box::new(seen))).await;
    }

    pub(super) fn rekey(&self, session: SessionId, id: RequestId, rekey: Rekeying) {
        let Some(outbox) = self.sessions.get(&session).cloned() else { return };
        let config = Arc::clone(&self.config);
        tokio::spawn(async move {
            let name = config.name.clone();
            let taken = spawn_blocking(move || keys::take(&rekey, &config)).await;
            let taken = taken.unwrap_or_else(|error| Err(FaultKind::Internal { reason: error.to_string() }));
            let body = match taken {
                Ok(fingerprint) => ResponseBody::Rekeyed { fingerprint },
                Err(kind) => ResponseBody::Failed(Fault::new(&name, kind)),
            };
            // A session that is gone or full needs no answer.
            outbox.try_send(Response { id, body });
        });
    }

    pub(super) async fn identify(&mut self, session: SessionId, id: RequestId, model: String) {
        let Some(outbox) = self.sessions.get(&session).cloned() else { return };
        let place = match outbox.question() {
            Ok(place) => place,
            Err(kind) => return self.respond(session, id, ResponseBody::Failed(self.fault(kind))).await,
        };
        let config = Arc::clone(&self.config);
        tokio::spawn(async move {
            let found = spawn_blocking({
                let config = Arc::clone(&config);
                move || loading::identify(&config.models, &model)
            });
            let found = match found.await {
                Ok(Ok(card)) => Ok(card),
                Ok(Err(kind)) => Err(kind),
                Err(error) => Err(FaultKind::Internal { reason: error.to_string() }),
            };
            drop(place);
            let failed = |kind| ResponseBody::Failed(Fault::new(&config.name, kind));
            let body = found.map_or_else(failed, ResponseBody::Model);
            // A session that is gone or full needs no answer.
            outbox.try_send(Response { id, body });
        });
    }
}
