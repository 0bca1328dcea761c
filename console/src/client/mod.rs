//! Sessions with nodes. `Client` runs one task per node for the dashboard, which reconnects by itself; commands
//! without a dashboard use `session`, `assign` and `generate` directly and fail at the first fault.
pub mod adopt;
pub mod bench;
pub mod cluster;
pub mod clusters;
pub mod conversations;
pub mod event;
pub mod exclude;
#[cfg(test)]
pub(crate) mod fake_node;
pub mod generate;
pub mod inspect;
mod introduce;
mod model_orders;
pub mod models;
pub mod network;
pub mod operate;
pub mod pull;
pub mod recovery;
pub mod restart;
mod resume;
pub mod rotate;
pub mod session;

pub use assignment::{assign, identify, plan};

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use common::{
    fault::{Fault, FaultKind},
    units::Nanoseconds,
};
use protocol::{
    PORT,
    inspect::LogLevel,
    message::{Generate, RequestBody, ResponseBody},
};
use tokio::sync::mpsc::{Sender, channel};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    cluster::Cluster,
    event::{AssignEvent, ClientEvent, GenerateEvent, OperateEvent},
    session::Session,
};
use crate::{
    operator::command::{OperatorCommand, Removal},
    operator::desired::DesiredTopology,
    operator::model_order::ModelOrder,
    operator::planner_query::PlannerQuery,
};

/// First pause before redialling; doubles up to [`BACKOFF_MAX`].
const BACKOFF_MIN: Duration = Duration::from_millis(250);
/// Longest pause before redialling.
const BACKOFF_MAX: Duration = Duration::from_secs(4);

/// Largest number of queued events of a generation.
const EVENTS_MAX: usize = 64;

/// `ADDRESS` or `ADDRESS:PORT` with the default port added if missing; an IPv6 address with a port needs brackets.
pub fn with_port(node: &str) -> String {
    if node.parse::<std::net::Ipv6Addr>().is_ok() {
        return format!("[{node}]:{PORT}");
    }
    let has_port = node.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && !port.contains(']'));
    if has_port { node.into() } else { format!("{node}:{PORT}") }
}

/// The host of an address, without its port and brackets.
pub fn host(node: &str) -> &str {
    if node.parse::<std::net::Ipv6Addr>().is_ok() {
        return node;
    }
    let host = node.rsplit_once(':').map_or(node, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Connections to all nodes of a dashboard.
#[derive(Debug)]
pub struct Client {
    nodes: Arc<Vec<NodeConnection>>,
    events: Sender<ClientEvent>,
    stop: CancellationToken,
    cancel: Mutex<CancellationToken>,
    /// Aborts the running assignment, exclusion, inclusion or drain.
    abort: Mutex<CancellationToken>,
    /// Cancels the running transfer of a model.
    pull: Mutex<CancellationToken>,
    fits: Arc<model_orders::FitQueries>,
    tasks: TaskTracker,
}

#[derive(Debug)]
struct NodeConnection {
    address: String,
    session: Mutex<Option<Arc<Session>>>,
}

impl Client {
    /// Starts a task per node. Must be called inside a tokio runtime.
    pub fn start(nodes: &[String], watch_ms: u32, events: Sender<ClientEvent>) -> Self {
        let nodes = Arc::new(
            nodes
                .iter()
                .map(|node: &String| NodeConnection { address: with_port(node), session: Mutex::new(None) })
                .collect::<Vec<_>>(),
        );
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        for index in 0..nodes.len() {
            let (nodes, events, stop) = (Arc::clone(&nodes), events.clone(), stop.clone());
            tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = keep(&nodes, index, watch_ms, &events) => {}
                }
            });
        }
        Self {
            nodes,
            events,
            stop,
            cancel: Mutex::default(),
            abort: Mutex::default(),
            pull: Mutex::default(),
            fits: Arc::default(),
            tasks,
        }
    }

    /// A new cancellation token, which the next abort triggers.
    fn abortable(&self) -> CancellationToken {
        let token = CancellationToken::new();
        token.clone_into(&mut self.abort.lock().unwrap_or_else(PoisonError::into_inner));
        token
    }
}

impl NodeClient for Client {
    fn assign(&self, wanted: DesiredTopology, members: Vec<usize>) {
        let (nodes, events) = (Arc::clone(&self.nodes), self.events.clone());
        let abort = self.abortable();
        self.tasks.spawn(async move {
            let result = match sessions(&nodes, &members) {
                Ok(sessions) => {
                    assign::assign_until(&sessions, &wanted, &abort, &|event| {
                        drop(events.try_send(ClientEvent::Assign(placed(event, &members))));
                    })
                    .await
                }
                Err(fault) => Err(fault),
            };
            let event = match result {
                Ok(done) => {
                    let all: Vec<_> = (0..nodes.len()).filter_map(|node| session(&nodes[node]).ok()).collect();
                    let addresses: Vec<String> = all.iter().map(|session| session.address.clone()).collect();
                    for fault in assignment::unload::introduce(&all, &addresses).await {
                        tracing::warn!("a node does not learn the addresses of the others: {fault}");
                    }
                    let (epoch, topology, reused) = (done.epoch, Box::new(done.topology), done.reused);
                    AssignEvent::Running { epoch, topology, reused }
                }
                Err(fault) => AssignEvent::Failed(fault),
            };
            // The dashboard may be gone.
            let _ = events.send(ClientEvent::Assign(event)).await;
        });
    }

    fn generate(&self, head: usize, request: Generate) {
        let cancel = CancellationToken::new();
        // Only one generation at a time: a replaced request could no longer be cancelled.
        std::mem::replace(&mut *self.cancel.lock().unwrap_or_else(PoisonError::into_inner), cancel.clone()).cancel();
        let (nodes, events) = (Arc::clone(&self.nodes), self.events.clone());
        self.tasks.spawn(async move {
            let (sender, mut receiver) = channel(EVENTS_MAX);
            let work = async move {
                match session(&nodes[head]) {
                    Ok(first) => {
                        let others = (0..nodes.len()).filter(|other| *other != head);
                        let others = others.filter_map(|other| session(&nodes[other]).ok());
                        let sessions: Vec<_> = std::iter::once(first).chain(others).collect();
                        generate::generate(&sessions, request, &cancel, &sender).await;
                    }
                    Err(fault) => drop(sender.send(GenerateEvent::Failed(fault)).await),
                }
            };
            let forward = async {
                while let Some(event) = receiver.recv().await {
                    let _ = events.send(ClientEvent::Generate(event)).await;
                }
            };
            tokio::join!(work, forward);
        });
    }

    fn cancel(&self) {
        self.cancel.lock().unwrap_or_else(PoisonError::into_inner).cancel();
    }

    fn plan(&self, ask: PlannerQuery) {
        let (nodes, events) = (Arc::clone(&self.nodes), self.events.clone());
        self.tasks.spawn(async move {
            let first = ask.nodes.first().map_or(0, |node| node.place);
            let planned = match nodes.get(first).map(session) {
                Some(Ok(session)) => plan::plan(&session, ask).await.map(Box::new),
                Some(Err(fault)) => Err(fault),
                None => return,
            };
            let _ = events.send(ClientEvent::Planned(planned)).await;
        });
    }

    fn log(&self, node: usize, after: u64) {
        let (nodes, events) = (Arc::clone(&self.nodes), self.events.clone());
        self.tasks.spawn(async move {
            let answer = match nodes.get(node).map_or_else(|| Err(no_such(node)), session) {
                Ok(session) => inspect::whole_log(&session, after, LogLevel::Info).await,
                Err(fault) => Err(fault),
            };
            let _ = events.send(ClientEvent::Log { node, answer }).await;
        });
    }

    fn models(&self, order: ModelOrder) {
        let (nodes, events) = (Arc::clone(&self.nodes), self.events.clone());
        match order {
            ModelOrder::List(which) => which.into_iter().for_each(|node| {
                let (nodes, events) = (Arc::clone(&nodes), events.clone());
                self.tasks.spawn(async move {
                    let session = nodes.get(node).map_or_else(|| Err(no_such(node)), session);
                    model_orders::list(node, session, &events).await;
                });
            }),
            ModelOrder::Fit { nodes, goal } => {
                self.tasks.spawn(model_orders::plan_all(Arc::clone(&self.fits), nodes, goal, events));
            }
            ModelOrder::Pull { source, nodes: which } => {
                let stop = CancellationToken::new();
                stop.clone_into(&mut self.pull.lock().unwrap_or_else(PoisonError::into_inner));
                let addresses = which.iter().filter_map(|node| nodes.get(*node)).map(|node| node.address.clone());
                let addresses: Vec<String> = addresses.collect();
                self.tasks.spawn(model_orders::pull_until(addresses, which, source, stop, events));
            }
            ModelOrder::CancelPull => self.pull.lock().unwrap_or_else(PoisonError::into_inner).cancel(),
            ModelOrder::Remove { model, nodes: which } => {
                self.tasks.spawn(async move { model_orders::remove(sessions(&nodes, &which), model, &events).await });
            }
            ModelOrder::Unload { epoch, topology } => {
                self.tasks.spawn(async move {
                    let all = nodes.iter().filter_map(|node| session(node).ok()).collect();
                    model_orders::unload_idle(all, epoch, *topology, &events).await;
                });
            }
        }
    }

    fn operate(&self, order: OperatorCommand) {
        if order == OperatorCommand::AbortAssignment {
            return self.abort.lock().unwrap_or_else(PoisonError::into_inner).cancel();
        }
        let (nodes, events) = (Arc::clone(&self.nodes), self.events.clone());
        let stop = match &order {
            OperatorCommand::Out { .. } | OperatorCommand::In { .. } => self.abortable(),
            // These end by themselves: an abort still triggers the token of an assignment or drain under way.
            OperatorCommand::Roll(_) | OperatorCommand::CancelRequest { .. } | OperatorCommand::AbortAssignment => {
                CancellationToken::new()
            }
        };
        self.tasks.spawn(async move {
            let failed = failure_of(&order);
            let done = carry_out(&nodes, order, &stop, &|event| {
                drop(events.try_send(ClientEvent::Operate(event)));
            })
            .await;
            let _ = events.send(ClientEvent::Operate(done.unwrap_or_else(failed))).await;
        });
    }
}

/// The final event of an order that fails.
fn failure_of(order: &OperatorCommand) -> fn(Fault) -> OperateEvent {
    match order {
        OperatorCommand::Out { how: Removal::Exclude, .. } | OperatorCommand::In { .. } => OperateEvent::ExcludeFailed,
        OperatorCommand::Out { how: Removal::Cordon | Removal::Drain, .. } => OperateEvent::Refused,
        OperatorCommand::Roll(_) | OperatorCommand::CancelRequest { .. } | OperatorCommand::AbortAssignment => {
            OperateEvent::CommandRefused
        }
    }
}

/// Carries out an operator's order. Returns its final event.
async fn carry_out(
    nodes: &[NodeConnection],
    order: OperatorCommand,
    stop: &CancellationToken,
    tell: &(dyn Fn(OperateEvent) + Sync),
) -> Result<OperateEvent, Fault> {
    if let OperatorCommand::CancelRequest { node, number } = order {
        let session = nodes.get(node).map_or_else(|| Err(no_such(node)), session)?;
        inspect::cancel(&session, number).await?;
        return Ok(OperateEvent::RequestCancelled { node: session.identity.name.clone() });
    }
    let cluster = Cluster::ask(nodes.iter().map(|node| (node.address.clone(), session(node))).collect()).await;
    match order {
        OperatorCommand::Roll(roll) => Ok(OperateEvent::Rolled(Box::new(operate::roll(&cluster, roll).await?))),
        OperatorCommand::Out { node, .. } | OperatorCommand::In { node } if node >= nodes.len() => Err(no_such(node)),
        OperatorCommand::Out { node, reason, how } => operate::out(cluster, node, &reason, how, stop, tell).await,
        OperatorCommand::In { node } => {
            let done = exclude::exclude(
                cluster,
                node,
                None,
                exclude::ExclusionStop { token: stop, leaves: exclude::WhenStopped::AsBefore },
                tell,
            )
            .await?;
            let running = done.assigned.map(|done| (done.epoch, Box::new(done.topology)));
            Ok(OperateEvent::Excluded { node: done.node, out: false, running })
        }
        OperatorCommand::AbortAssignment | OperatorCommand::CancelRequest { .. } => Err(no_such(0)),
    }
}

fn no_such(node: usize) -> Fault {
    Fault::new("console", FaultKind::Internal { reason: format!("the list has no node {node}") })
}

/// An assignment's event with the node's index in the dashboard's list instead of its rank. `members` are these
/// indices by rank.
fn placed(event: AssignEvent, members: &[usize]) -> AssignEvent {
    match event {
        AssignEvent::Loading { node, progress } => {
            AssignEvent::Loading { node: members.get(node).copied().unwrap_or(node), progress }
        }
        other => other,
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.cancel();
        self.pull.lock().unwrap_or_else(PoisonError::into_inner).cancel();
        self.stop.cancel();
    }
}

fn session(node: &NodeConnection) -> Result<Arc<Session>, Fault> {
    let session = node.session.lock().unwrap_or_else(PoisonError::into_inner).clone();
    session.filter(|session| !session.is_broken()).ok_or_else(|| {
        let (address, reason) = (node.address.clone(), "not connected".into());
        Fault::new(&node.address, FaultKind::Unreachable { address, reason })
    })
}

fn sessions(nodes: &[NodeConnection], members: &[usize]) -> Result<Vec<Arc<Session>>, Fault> {
    members.iter().filter_map(|member| nodes.get(*member)).map(session).collect()
}

/// Keeps one node's session open and its reports arriving.
async fn keep(nodes: &[NodeConnection], index: usize, watch_ms: u32, events: &Sender<ClientEvent>) {
    let node = &nodes[index];
    let mut pause = BACKOFF_MIN;
    loop {
        let fault = match session::open(&node.address).await {
            Ok(session) => {
                pause = BACKOFF_MIN;
                let session = Arc::new(session);
                *node.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&session));
                let identity = session.identity.clone();
                let _ = events.send(ClientEvent::Connected { node: index, identity }).await;
                watch(&session, index, watch_ms, events).await
            }
            Err(fault) => fault,
        };
        *node.session.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let _ = events.send(ClientEvent::Disconnected { node: index, fault }).await;
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(BACKOFF_MAX);
    }
}

/// Forwards reports until the session breaks.
async fn watch(session: &Session, index: usize, interval_ms: u32, events: &Sender<ClientEvent>) -> Fault {
    let mut reply = match session.ask(RequestBody::Watch { interval_ms }).await {
        Ok(reply) => reply,
        Err(fault) => return fault,
    };
    // A node that is silent for this long is dialled again.
    let patience = Duration::from_millis(u64::from(interval_ms) * 20).max(Duration::from_secs(5));
    loop {
        match reply.next("a report", patience).await {
            Ok(ResponseBody::Report(report)) => {
                // A dashboard that falls behind misses a report, but no other event.
                let _ = events.try_send(ClientEvent::Report { node: index, report });
            }
            Ok(_) => {}
            Err(fault) => return fault,
        }
    }
}

/// A random duration between half and all of the pause, so that many consoles do not dial at once.
fn jittered(pause: Duration) -> Duration {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let random = RandomState::new().build_hasher().finish();
    let nanoseconds = Nanoseconds(pause.as_nanos() as u64 / 2);
    pause / 2 + Duration::from_nanos(random % nanoseconds.0.max(1))
}

#[cfg(test)]
pub(crate) mod tests;

/// The dashboard's commands to the nodes. Methods return at once; results arrive as events.
pub trait NodeClient {
    /// Assigns the topology to the nodes with these list indices, by rank.
    fn assign(&self, wanted: DesiredTopology, members: Vec<usize>);
    /// Starts a generation on the head.
    fn generate(&self, head: usize, generate: Generate);
    /// Cancels the running generation.
    fn cancel(&self);
    /// Queries the planner.
    fn plan(&self, ask: PlannerQuery);
    /// Reads the lines of a node's log after this line number.
    fn log(&self, node: usize, after: u64);
    /// Executes an order about model files.
    fn models(&self, order: ModelOrder);
    /// Executes an operator command.
    fn operate(&self, order: OperatorCommand);
}
