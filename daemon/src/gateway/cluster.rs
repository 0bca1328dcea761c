//! The gateway's view of the nodes: a session with each relevant node, and its latest report. Replicas come from the
//! running topology.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, TopologyHash},
};
use protocol::{
    handshake::Identity,
    message::{RequestBody, ResponseBody},
    recovery::Committed,
    session::Session,
};
use telemetry::{
    NodeReport, NodeState,
    window::{Culprits, Window, culprits},
};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{sleep, timeout},
};
use topology::{Exclusion, Member, Topology};

/// Interval of a node's reports, in milliseconds.
const INTERVAL_MS: u32 = 250;
/// Interval for updating the set of relevant nodes.
const LOOK: Duration = Duration::from_millis(250);
/// How long a request waits if nothing serves: a new assignment is visible only with the next report.
pub(super) const GRACE: Duration = Duration::from_millis(600);
/// Age limit of reports and windows for finding stragglers and slow hops.
const FRESH: Duration = Duration::from_secs(5);
/// How long all members are watched after a scrape of `/metrics`; longer than the usual scrape interval.
const ASKED: Duration = Duration::from_secs(180);
/// Longest pause before an unreachable node is dialled again.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Latest report of one node.
#[derive(Clone, Debug)]
pub(super) struct LatestReport {
    pub(super) report: Arc<NodeReport>,
    pub(super) at: Instant,
}

/// One replica of the running topology.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    /// `ADDRESS:PORT` of its head.
    pub(super) head: String,
    /// The head's name.
    pub(super) name: String,
    /// Number of concurrent requests.
    pub(super) slots: u32,
    /// Requests that run and wait, from the head's latest report.
    pub(super) requests: u32,
    /// Time of that report.
    pub(super) at: Instant,
    /// Whether it takes requests.
    pub(super) is_serving: bool,
}

/// The running topology, as known to this gateway.
#[derive(Clone, Debug, Default)]
pub(super) struct Serving {
    pub(super) topology: Option<Arc<Topology>>,
    pub(super) replicas: Vec<Replica>,
    /// When the gateway first saw it, in seconds since 1970.
    pub(super) since: u64,
    /// Nodes cordoned by an operator, of replicas that would otherwise serve.
    pub(super) cordons: Vec<Exclusion>,
}

impl Serving {
    /// The cordon, if nothing takes requests only because of it: then waiting would not help.
    pub(super) fn cordon(&self) -> Option<&Exclusion> {
        let serves = self.replicas.iter().any(|replica| replica.is_serving);
        self.cordons.first().filter(|_| !serves)
    }
}

#[derive(Debug, Default)]
struct KnownCluster {
    nodes: BTreeMap<String, LatestReport>,
    /// The topology with the highest epoch, and its hash.
    latest: Option<(Epoch, TopologyHash, Arc<Topology>)>,
    /// When it was first seen, in seconds since 1970.
    since: u64,
    /// When a node last reported that it serves.
    served: Option<Instant>,
    /// When `/metrics` was last scraped.
    asked: Option<Instant>,
    /// Recent steps of nodes with the latest topology, by address.
    windows: BTreeMap<String, Window>,
}

/// The known nodes.
#[derive(Debug)]
pub(super) struct Cluster {
    own: String,
    peers: Vec<String>,
    identity: Identity,
    silent: Duration,
    known: Mutex<KnownCluster>,
    /// Reference time of windows.
    begun: Instant,
    /// Notified after each report.
    pub(super) changed: Notify,
}

impl Cluster {
    /// Creates an empty view; `own` is this node's address.
    pub(super) fn new(own: String, peers: Vec<String>, identity: Identity, silent: Duration) -> Self {
        Self { own, peers, identity, silent, known: Mutex::default(), begun: Instant::now(), changed: Notify::new() }
    }

    /// Expects this node's topology from before its restart to come back: until reports differ, requests wait for it.
    pub(super) fn expect(&mut self, Committed { epoch, topology, .. }: Committed) {
        let known = self.known.get_mut().unwrap_or_else(PoisonError::into_inner);
        known.latest = Some((epoch, topology.hash(), Arc::new(topology)));
        known.since = seconds_since_1970();
        known.served = Some(Instant::now());
    }

    fn known(&self) -> MutexGuard<'_, KnownCluster> {
        // Reports are consistent even if a task panicked while it held the lock.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps sessions with all relevant nodes, until dropped.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut tasks = Watches(BTreeMap::new());
        loop {
            let wanted = self.wanted();
            tasks.0.retain(|address, task| {
                let stays = wanted.contains(address) && !task.is_finished();
                if !stays {
                    task.abort();
                }
                stays
            });
            self.keep_only(&wanted);
            for address in wanted {
                tasks
                    .0
                    .entry(address.clone())
                    .or_insert_with(|| tokio::spawn(Arc::clone(&self).follow(address.clone())));
            }
            sleep(LOOK).await;
        }
    }

    /// Addresses of the relevant nodes: this node, peers and heads; all members while nothing serves, because one of
    /// them may have another topology, and while `/metrics` is scraped.
    fn wanted(&self) -> Vec<String> {
        let is_serving = self.serving().replicas.iter().any(|replica| replica.is_serving);
        let mut wanted = vec![self.own.clone()];
        wanted.extend(self.peers.iter().cloned());
        let known = self.known();
        if let Some((.., topology)) = &known.latest {
            let is_asked = known.asked.is_some_and(|asked| asked.elapsed() < ASKED);
            let members = topology.members.iter().enumerate().filter(|(index, _)| {
                !is_serving || is_asked || topology.layout.heads().any(|head| head.index() == *index)
            });
            wanted.extend(members.map(|(_, member)| member.address.clone()));
        }
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    /// Waits a moment for the first topology to become known.
    pub(super) async fn await_topology(&self) {
        let known = async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if self.known().latest.is_some() {
                    return;
                }
                changed.await;
            }
        };
        // Without one, the request is refused for that reason.
        let _ = timeout(GRACE, known).await;
    }

    fn keep_only(&self, wanted: &[String]) {
        let mut known = self.known();
        known.nodes.retain(|address, _| wanted.contains(address));
        known.windows.retain(|address, _| wanted.contains(address));
    }

    async fn follow(self: Arc<Self>, address: String) {
        let mut pause = Duration::from_millis(50);
        loop {
            let begin = Instant::now();
            if let Err(fault) = self.reports(&address).await {
                tracing::debug!(address, "the gateway receives no reports: {fault}");
            }
            self.changed.notify_waiters();
            pause = if begin.elapsed() > PAUSE_MAX { LOOK } else { (pause * 2).min(PAUSE_MAX) };
            sleep(pause).await;
        }
    }

    async fn reports(&self, address: &str) -> Result<(), Fault> {
        let session = Session::open(address, self.identity.clone()).await?;
        let patience = self.silent.max(Duration::from_secs(1));
        let mut reply = session.ask(RequestBody::Watch { interval_ms: INTERVAL_MS }).await?;
        loop {
            match reply.next("a report", patience).await {
                Ok(body) => self.take(address, body),
                // Too many sessions watch the node already: it is polled instead.
                Err(Fault { kind: FaultKind::Full { .. }, .. }) => break,
                Err(fault) => return Err(fault),
            }
        }
        loop {
            let mut reply = session.ask(RequestBody::Report).await?;
            self.take(address, reply.next("a report", patience).await?);
            sleep(LOOK.min(patience / 4)).await;
        }
    }

    fn take(&self, address: &str, body: ResponseBody) {
        if let ResponseBody::Report(report) = body {
            self.learn(address, *report);
            self.changed.notify_waiters();
        }
    }

    /// Whether a replica served within this time: then waiting for a restarting node is worthwhile.
    pub(super) fn has_served_within(&self, patience: Duration) -> bool {
        self.known().served.is_some_and(|served| served.elapsed() < patience)
    }

    fn learn(&self, address: &str, report: NodeReport) {
        let mut known = self.known();
        if matches!(report.state, NodeState::Ready | NodeState::Serving) {
            known.served = Some(Instant::now());
        }
        // An invalid report of a node must not break this one.
        if let Some((topology, hash, _)) = report.topology.as_ref().filter(|(topology, ..)| topology.check().is_ok()) {
            let is_new = known.latest.as_ref().is_none_or(|(_, latest, _)| latest != hash);
            let holds = matches!(report.state, NodeState::Ready | NodeState::Serving | NodeState::Draining);
            let is_later = known
                .latest
                .as_ref()
                .is_none_or(|(epoch, ..)| report.epoch > *epoch || (holds && report.epoch == *epoch));
            if is_new && is_later {
                known.latest = Some((report.epoch, *hash, Arc::new(topology.clone())));
                known.since = seconds_since_1970();
                // Another topology has other ranks.
                known.windows.clear();
            }
        }
        let latest = known.latest.as_ref().map(|(_, hash, _)| *hash);
        if report.topology.as_ref().is_some_and(|(_, hash, _)| Some(*hash) == latest) {
            known.windows.entry(address.into()).or_default().record(self.begun.elapsed(), &report);
        }
        known.nodes.insert(address.into(), LatestReport { report: Arc::new(report), at: Instant::now() });
    }

    /// Stragglers and slow hops of the latest topology, by index of its members. The first call only starts watching
    /// all members, so its result is incomplete.
    pub(super) fn culprits(&self) -> Option<(Arc<Topology>, Culprits)> {
        let mut known = self.known();
        known.asked = Some(Instant::now());
        let (_, _, topology) = known.latest.as_ref()?;
        let reports: Vec<Option<&NodeReport>> = topology
            .members
            .iter()
            .map(|member| {
                known.nodes.get(&member.address).filter(|seen| seen.at.elapsed() < FRESH).map(|seen| &*seen.report)
            })
            .collect();
        let begin = self.begun.elapsed().saturating_sub(FRESH);
        let windows: Vec<Option<&Window>> = topology
            .members
            .iter()
            .map(|member| known.windows.get(&member.address).filter(|window| window.is_since(begin)))
            .collect();
        Some((Arc::clone(topology), culprits(topology, &reports, &windows)))
    }

    /// The latest report of this node.
    pub(super) fn own(&self) -> Option<LatestReport> {
        self.node(&self.own)
    }

    /// The latest report of a node.
    pub(super) fn node(&self, address: &str) -> Option<LatestReport> {
        self.known().nodes.get(address).cloned()
    }

    /// The latest reports of all nodes, by address.
    pub(super) fn nodes(&self) -> Vec<(String, LatestReport)> {
        self.known().nodes.iter().map(|(address, seen)| (address.clone(), seen.clone())).collect()
    }

    /// The replicas of the running topology.
    pub(super) fn serving(&self) -> Serving {
        let known = self.known();
        let Some((_, hash, topology)) = &known.latest else { return Serving::default() };
        let patience = self.silent.max(Duration::from_secs(1));
        let mut cordons = Vec::new();
        let replicas = topology
            .layout
            .heads()
            .map(|index| {
                let head = &topology.members[index.index()];
                let seen = known.nodes.get(&head.address);
                let takes = |seen: &&LatestReport| {
                    let is_in = seen.report.topology.as_ref().is_some_and(|(_, own, _)| own == hash);
                    let serves = matches!(seen.report.state, NodeState::Ready | NodeState::Serving);
                    // The output of a paced node must not reach a client as an answer.
                    is_in && serves && !seen.report.is_paced()
                };
                let takes = seen.filter(|seen| seen.at.elapsed() < patience).as_ref().is_some_and(takes);
                let entry = |member: &Member| seen?.report.exclusions.of(&member.name, &member.address);
                let members = topology.replica(topology.place(index).replica);
                let cordon = members.iter().find_map(entry).filter(|entry| takes && entry.is_cordon);
                cordons.extend(cordon.cloned());
                Replica {
                    head: head.address.clone(),
                    name: head.name.clone(),
                    slots: u32::from(topology.slots),
                    requests: seen.map_or(0, |seen| seen.report.requests),
                    at: seen.map_or_else(Instant::now, |seen| seen.at),
                    is_serving: takes && cordon.is_none(),
                }
            })
            .collect();
        Serving { topology: Some(Arc::clone(topology)), replicas, since: known.since, cordons }
    }
}

/// Now, in seconds since 1970.
pub(super) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Tasks that are aborted when dropped.
struct Watches(BTreeMap<String, JoinHandle<()>>);

impl Drop for Watches {
    fn drop(&mut self) {
        self.0.values().for_each(JoinHandle::abort);
    }
}
