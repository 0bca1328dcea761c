//! Loads a model for a request. One load runs at a time; a client that leaves does not stop it halfway.
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use assignment::{
    assign::{assign, reports},
    desired::{DesiredTopology, SLOTS_DEFAULT, TopologyRequest},
    event::AssignEvent,
    plan::plan_for,
    unload::{unload, wait_for_memory},
};
use common::fault::Fault;
use protocol::{recovery::Committed, session::Session};
use tokio::{
    sync::{Mutex, Semaphore, oneshot},
    time::{timeout, timeout_at},
};

use super::nodes::FileHolder;
use crate::gateway::{
    Gateway,
    cluster::{LoadedOnDemand, ServedModel},
    complete::Permission,
    error::ApiError,
};

/// Most requests that wait for a load.
const WAITING_MAX: usize = 64;
/// Longest wait for a loaded model to be reported by its head.
const APPEARS: Duration = Duration::from_secs(10);

/// The turns of loads, and places to wait for one.
#[derive(Debug)]
pub(in crate::gateway) struct LoadTurns {
    turn: Mutex<()>,
    waiting: Arc<Semaphore>,
}

impl Default for LoadTurns {
    fn default() -> Self {
        Self { turn: Mutex::default(), waiting: Arc::new(Semaphore::new(WAITING_MAX)) }
    }
}

/// Nodes for a model, and its topology on them.
struct LoadPlan {
    sessions: Vec<Arc<Session>>,
    wanted: DesiredTopology,
}

impl Gateway {
    /// The model that a request means. For a client that may change models, one that no node serves is loaded first.
    ///
    /// # Errors
    /// Those of [`Self::served`], and why the model cannot be loaded.
    pub(in crate::gateway) async fn served_for(
        self: &Arc<Self>,
        asked: Option<&str>,
        permission: Permission,
    ) -> Result<ServedModel, ApiError> {
        let refused = match self.served(asked).await {
            Ok(model) => return Ok(model),
            Err(refused) => refused,
        };
        let is_unknown = refused.is_of_unknown_model() || self.cluster.models().is_empty();
        let asked = asked.filter(|asked| !asked.is_empty() && permission == Permission::ChangesModels && is_unknown);
        let Some(asked) = asked.map(str::to_owned) else { return Err(refused) };
        let Ok(place) = Arc::clone(&self.loads.waiting).try_acquire_owned() else {
            return Err(ApiError::queue_full(WAITING_MAX, 5));
        };
        let gateway = Arc::clone(self);
        let longest = self.settings.request_max;
        let overdue = ApiError::still_loading(&asked, longest.as_secs());
        // Open as long as the client waits.
        let (client, _waits) = oneshot::channel();
        let load = tokio::spawn(async move {
            let _place = place;
            gateway.load_for_request(&asked, &client).await
        });
        tokio::select! {
            loaded = timeout(longest, load) => match loaded {
                Ok(loaded) => loaded.unwrap_or(Err(refused)),
                // A load that has begun continues.
                Err(_) => Err(overdue),
            },
            () = self.cut.cancelled() => Err(ApiError::shutting_down()),
        }
    }

    async fn load_for_request(&self, asked: &str, client: &oneshot::Sender<()>) -> Result<ServedModel, ApiError> {
        let _turn = self.loads.turn.lock().await;
        // Its client has left, and does not get the error.
        if client.is_closed() {
            return Err(ApiError::shutting_down());
        }
        // Another request may have loaded it meanwhile.
        if let Ok(model) = self.served(Some(asked)).await {
            return Ok(model);
        }
        let holders = self.holders().await;
        let Some(name) = holders.values().find_map(|holder| holder.file(asked)).map(str::to_owned) else {
            let models = self.cluster.models();
            let names: Vec<&str> = models.iter().map(|model| model.topology.model.as_str()).collect();
            return Err(ApiError::no_such_file(asked, &names));
        };
        let refused = |fault: Fault| ApiError::not_loaded(&name, &format!("{fault}; {}", fault.next()));
        let mut addresses: Vec<String> =
            holders.iter().filter(|(_, holder)| holder.is_free).map(|(address, _)| address.clone()).collect();
        let (mut leaving, mut unused) = (Vec::new(), self.cluster.loaded_on_demand().into_iter());
        let plan = loop {
            if let Some(plan) = self.plan(&name, &addresses, &holders).await.map_err(refused)? {
                break plan;
            }
            // The one that has been without a request for longest.
            let Some(next) = unused.next() else {
                let why = "no idle node has its file and memory for it; copy the file with console model pull, or unload \
                    another model with console topology unload";
                return Err(ApiError::not_loaded(&name, why));
            };
            addresses.extend(next.topology.members.iter().map(|member| member.address.clone()));
            leaving.push(next);
        };
        // Those without a node of the plan stay.
        leaving.retain(|one: &LoadedOnDemand| {
            let mut members = one.topology.members.iter();
            members.any(|member| plan.sessions.iter().any(|session| session.identity.name == member.name))
        });
        if !leaving.is_empty() {
            let before = reports(&plan.sessions).await.map_err(refused)?;
            let sessions: Vec<Arc<Session>> = holders.values().map(|holder| Arc::clone(&holder.session)).collect();
            for LoadedOnDemand { epoch, topology } in leaving {
                tracing::info!("{} is unloaded to make room for {name}", topology.model);
                let committed = Committed::new(epoch, (*topology).clone());
                unload(&sessions, &committed, true).await.map_err(refused)?;
            }
            // The context follows from the free memory, which must not lack that of the shards that have just left.
            wait_for_memory(&plan.sessions, &before).await.map_err(refused)?;
        }
        let told: &(dyn Fn(AssignEvent) + Sync) = &|event| tracing::debug!("loading {name} for a request: {event:?}");
        let assigned = assign(&plan.sessions, &plan.wanted, told).await.map_err(refused)?;
        tracing::info!("{name} is loaded for a request: {} in epoch {}", assigned.topology.layout, assigned.epoch);
        self.appeared(asked).await
    }

    /// A topology for the model on some of these nodes, if they have its file and enough memory.
    async fn plan(
        &self,
        name: &str,
        addresses: &[String],
        holders: &BTreeMap<String, FileHolder>,
    ) -> Result<Option<LoadPlan>, Fault> {
        let nodes = addresses.iter().filter_map(|address| holders.get(address));
        let having = nodes.filter(|holder| holder.file(name).is_some());
        let sessions: Vec<Arc<Session>> = having.map(|holder| Arc::clone(&holder.session)).collect();
        if sessions.is_empty() {
            return Ok(None);
        }
        let unload_after = self.settings.unload_after;
        let asked = TopologyRequest::open(name, SLOTS_DEFAULT);
        let Some(planned) = plan_for(&sessions, &asked).await? else {
            // Without predictions, all of them.
            let wanted = DesiredTopology { unload_after, ..asked.wanted(sessions.len()) };
            return Ok(Some(LoadPlan { sessions, wanted }));
        };
        let best = planned.plan.ranked.iter().find(|candidate| candidate.layout.replicas == 1);
        Ok(best.map(|best| LoadPlan {
            sessions: planned.members(best).iter().map(|place| Arc::clone(&sessions[*place])).collect(),
            wanted: DesiredTopology { context_length: None, unload_after, ..planned.wanted(best) },
        }))
    }

    /// Waits until reports show that the model is served.
    async fn appeared(&self, asked: &str) -> Result<ServedModel, ApiError> {
        let deadline = Instant::now() + APPEARS;
        loop {
            let mut changed = std::pin::pin!(self.cluster.changed.notified());
            changed.as_mut().enable();
            match self.served(Some(asked)).await {
                Ok(model) if model.is_serving() => return Ok(model),
                other if timeout_at(deadline.into(), changed).await.is_err() => return other,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, net::TcpListener};

    use axum::{http::header::RETRY_AFTER, response::IntoResponse};
    use protocol::handshake::Identity;
    use tokio::time::sleep;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::gateway::{Wanted, cluster::Cluster};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A gateway of a cluster with one node, whose requests take at most so long.
    fn gateway(node: String, request_max: Duration) -> Arc<Gateway> {
        let second = Duration::from_secs(1);
        let wanted = Wanted {
            own: vec!["pi1".into()],
            memory: 1 << 30,
            queue_wait: second,
            resume_wait: second,
            request_max,
            silent: second,
            ..Wanted::default()
        };
        let settings = wanted.check(([127, 0, 0, 1], 9999).into()).expect("the settings are valid");
        let (name, build, machine) = ("pi1".to_owned(), "b".to_owned(), String::new());
        let identity = Identity { name, build, numeric: 1, machine, cores: Vec::new() };
        let cluster = Cluster::new(node, Vec::new(), identity.clone(), second);
        Arc::new(Gateway::new(settings, identity, Arc::new(cluster), CancellationToken::new()))
    }

    /// Waits until so many places to wait for a load are free.
    async fn until_free(gateway: &Gateway, places: usize) {
        let free = async {
            while gateway.loads.waiting.available_permits() != places {
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(PATIENCE, free).await.expect("the places change in time");
    }

    #[tokio::test]
    async fn load_is_dropped_if_its_client_left_before_its_turn() {
        let node = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        node.set_nonblocking(true).expect("the socket is open");
        let gateway = gateway(node.local_addr().expect("it is bound").to_string(), PATIENCE);
        let turn = gateway.loads.turn.lock().await;
        let asking = Arc::clone(&gateway);
        let client = tokio::spawn(async move { asking.served_for(Some("big"), Permission::ChangesModels).await });
        until_free(&gateway, WAITING_MAX - 1).await;
        client.abort();
        assert!(client.await.is_err(), "it waits for the load");
        drop(turn);
        until_free(&gateway, WAITING_MAX).await;
        let contacted = node.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(contacted, Err(ErrorKind::WouldBlock), "a load asks the nodes first");
    }

    #[tokio::test]
    async fn client_may_ask_again_for_a_load_that_takes_too_long() {
        let gateway = gateway("127.0.0.1:9".into(), Duration::from_millis(20));
        let turn = gateway.loads.turn.lock().await;
        let refused = gateway.served_for(Some("big"), Permission::ChangesModels).await.expect_err("another one loads");
        drop(turn);
        assert_eq!((refused.status.as_u16(), refused.code.as_str(), refused.is_final), (503, "model_loading", false));
        assert!(refused.message().contains("big") && refused.into_response().headers().contains_key(RETRY_AFTER));
    }
}
