//! Carries out the orders of the dashboard's Models page.
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use assignment::{
    source::{hub, url_at},
    unload::unload,
};
use common::{
    fault::{Fault, FaultKind},
    ids::Epoch,
};
use planner::search::Goal;
use protocol::recovery::Committed;
use tokio::sync::mpsc::Sender;
use tokio_util::sync::CancellationToken;
use topology::Topology;

use super::{
    event::ClientEvent,
    models,
    pull::{self, Download, PullProgress},
    session::{self, Session},
};
use crate::{
    catalogue::ENTRIES,
    operator::{fit::fit, model_order::ModelEvent, planner_query::PlannerNode, transfer::TransferReport},
};

/// The number of the latest query for fits; older ones end early.
#[derive(Debug, Default)]
pub(super) struct FitQueries(AtomicU64);

/// Sends a model event; the dashboard may be gone.
pub(super) async fn send(events: &Sender<ClientEvent>, event: ModelEvent) {
    let _ = events.send(ClientEvent::Model(event)).await;
}

/// Lists the files of a node.
pub(super) async fn list(node: usize, session: Result<Arc<Session>, Fault>, events: &Sender<ClientEvent>) {
    let answer = match session {
        Ok(session) => models::list(&session).await,
        Err(fault) => Err(fault),
    };
    // The dashboard may be gone.
    let _ = events.send(ClientEvent::Models { node, answer }).await;
}

/// Plans the models of the catalogue one after another, the small ones of each family first, until a newer query arrives.
pub(super) async fn plan_all(
    queries: Arc<FitQueries>,
    nodes: Vec<PlannerNode>,
    goal: Goal,
    events: Sender<ClientEvent>,
) {
    let number = queries.0.fetch_add(1, Ordering::AcqRel) + 1;
    let nodes = Arc::new(nodes);
    for entry in ENTRIES {
        if queries.0.load(Ordering::Acquire) != number {
            return;
        }
        let nodes = Arc::clone(&nodes);
        let work = tokio::task::spawn_blocking(move || fit(entry, entry.usual(), &nodes, goal));
        let Ok(fit) = work.await else { return };
        send(&events, ModelEvent::Fits { name: entry.name.to_owned(), fit }).await;
    }
}

/// Puts a file of a server on the nodes at these addresses, over sessions of their own: a cancellation closes them, and
/// the nodes keep the bytes that have arrived. `places`: the indices of the nodes in the dashboard's list.
pub(super) async fn pull_until(
    addresses: Vec<String>,
    places: Vec<usize>,
    source: &'static str,
    stop: CancellationToken,
    events: Sender<ClientEvent>,
) {
    let progress = events.clone();
    let tell: Arc<PullProgress> = Arc::new(move |index, report: TransferReport| {
        let Some(node) = places.get(index).copied() else { return };
        // Models of the catalogue are single files, whose totals are exact.
        let TransferReport { step, done, total, .. } = report;
        // A dashboard that falls behind misses a step of the bar, but no other event.
        drop(progress.try_send(ClientEvent::Model(ModelEvent::Pulling { node, step, done, total })));
    });
    let work = async {
        let (url, model) = url_at(source, &hub()).map_err(|reason| odd(&reason))?;
        let mut sessions = Vec::with_capacity(addresses.len());
        for address in &addresses {
            sessions.push(Arc::new(session::open(address).await?));
        }
        pull::pull(&sessions, &Download::of(&url, &model), &tell).await?.complete()
    };
    let event = tokio::select! {
        () = stop.cancelled() => ModelEvent::Cancelled,
        done = work => ModelEvent::Pulled(done.map(|files| files.len())),
    };
    send(&events, event).await;
}

fn odd(reason: &str) -> Fault {
    Fault::new("console", FaultKind::ParameterInvalid { reason: reason.to_owned() })
}

/// Deletes a model on nodes.
pub(super) async fn remove(sessions: Result<Vec<Arc<Session>>, Fault>, model: String, events: &Sender<ClientEvent>) {
    let answer = match sessions {
        Ok(sessions) => pull::remove(&sessions, &model).await,
        Err(fault) => Err(fault),
    };
    send(events, ModelEvent::Removed { model, answer }).await;
}

/// Unloads a topology if it runs no requests.
pub(super) async fn unload_idle(
    sessions: Vec<Arc<Session>>,
    epoch: Epoch,
    topology: Topology,
    events: &Sender<ClientEvent>,
) {
    let model = topology.model.clone();
    let answer = unload(&sessions, &Committed::new(epoch, topology), true).await;
    // A member that does not answer learns it from the others.
    send(events, ModelEvent::Unloaded { model, answer: answer.map(|_| ()) }).await;
}
