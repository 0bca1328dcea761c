//! The gateway's view of the nodes: a session with each relevant node, and its latest report. Models and replicas come
//! from the running topologies.
mod following;
pub mod groups;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use common::{
    ids::{Epoch, ModelRoots},
    limits::NODES_MAX,
};
use protocol::{
    address::is_address, handshake::Identity, message::ResponseBody, models::is_named, recovery::Committed,
};
use telemetry::{
    NodeReport,
    window::{Culprits, Window, culprits},
};
use tokio::{sync::Notify, time::timeout};
use topology::{Exclusion, Topology};

pub(super) use self::groups::LatestReport;
use self::groups::{Group, Groups, LATELY};
pub(super) use super::route::Replica;
use super::{error::ApiError, queues::GRACE};

/// Age limit of reports and windows for finding stragglers and slow hops.
const FRESH: Duration = Duration::from_secs(5);

/// A node of the cluster, whether it answers or not.
#[derive(Clone, Debug)]
pub(super) struct KnownNode {
    /// `ADDRESS:PORT` at which other nodes reach it.
    pub(super) address: String,
    /// Its name, if it has reported or is a member of a topology.
    pub(super) name: Option<String>,
    /// Its latest report, even if it does not answer any more.
    pub(super) seen: Option<LatestReport>,
    /// Since when it does not answer.
    pub(super) away: Option<Instant>,
}

/// A model, and the replicas that serve it.
#[derive(Clone, Debug)]
pub(super) struct ServedModel {
    /// The topology that was found first.
    pub(super) topology: Arc<Topology>,
    /// Of all its topologies.
    pub(super) replicas: Vec<Replica>,
    /// When the gateway first saw it, in seconds since 1970.
    pub(super) since: u64,
    /// When a node last reported that it serves it.
    pub(super) served: Option<Instant>,
    /// When one of its heads last reported requests.
    used: Option<Instant>,
    /// Nodes cordoned by an operator, of replicas that would otherwise serve.
    pub(super) cordons: Vec<Exclusion>,
}

impl ServedModel {
    /// The cordon, if nothing takes requests only because of it: then waiting would not help.
    pub(super) fn cordon(&self) -> Option<&Exclusion> {
        self.cordons.first().filter(|_| !self.is_serving())
    }

    /// Whether a replica takes requests.
    pub(super) fn is_serving(&self) -> bool {
        self.replicas.iter().any(|replica| replica.is_serving)
    }

    /// Whether it served lately: then waiting for a restarting node is worthwhile.
    pub(super) fn has_served_lately(&self) -> bool {
        self.served.is_some_and(|served| served.elapsed() < LATELY)
    }

    /// When it is unloaded unless a request arrives before, in seconds since 1970; `None`: never.
    pub(super) fn expires(&self) -> Option<u64> {
        let after = self.topology.unload_after?;
        let unused = self.used.map_or(0, |used| used.elapsed().as_secs());
        Some(seconds_since_1970().saturating_sub(unused).saturating_add(after.into()))
    }

    /// Requests that its replicas can run at the same time.
    pub(super) fn slots(&self) -> u32 {
        self.replicas.iter().map(|replica| replica.slots).sum()
    }
}

/// A topology that is unloaded when it has no requests, and has none now.
#[derive(Clone, Debug)]
pub(super) struct LoadedOnDemand {
    pub(super) epoch: Epoch,
    pub(super) topology: Arc<Topology>,
}

#[derive(Debug, Default)]
struct KnownCluster {
    nodes: BTreeMap<String, LatestReport>,
    groups: Groups,
    /// Addresses of further nodes of the cluster, as nodes report them.
    neighbours: BTreeSet<String>,
    /// Since when nodes do not answer.
    away: BTreeMap<String, Instant>,
    /// Nodes that are asked for the sake of an unknown model, and new ones.
    pending: BTreeSet<String>,
    /// When `/metrics` was last scraped.
    asked: Option<Instant>,
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
    /// Notified when a request names an unknown model: then all nodes are asked at once.
    sought: Notify,
}

impl Cluster {
    /// Creates an empty view; `own` is this node's address.
    pub(super) fn new(own: String, peers: Vec<String>, identity: Identity, silent: Duration) -> Self {
        let (changed, sought) = (Notify::new(), Notify::new());
        Self { own, peers, identity, silent, known: Mutex::default(), begun: Instant::now(), changed, sought }
    }

    /// Expects this node's topology from before its restart to come back: until reports differ, requests wait for it.
    pub(super) fn expect(&mut self, committed: Committed) {
        let known = self.known.get_mut().unwrap_or_else(PoisonError::into_inner);
        known.groups.expect(committed, Instant::now(), seconds_since_1970());
    }

    fn known(&self) -> MutexGuard<'_, KnownCluster> {
        // Reports are consistent even if a task panicked while it held the lock.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits a moment for the first model to become known.
    pub(super) async fn await_models(&self) {
        // Several, or none: both are an answer here.
        let _ = self.model_named(None).await;
    }

    /// Waits a moment for a model of this name, or any model, to become known, unless all nodes have answered.
    ///
    /// # Errors
    /// There is no such model, or several and no name is given.
    pub(super) async fn model_named(&self, asked: Option<&str>) -> Result<Option<ServedModel>, ApiError> {
        let asked = asked.filter(|asked| !asked.is_empty());
        let found = async {
            let mut has_sought = false;
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if let Some(model) = self.find(asked) {
                    return Some(model);
                }
                if !std::mem::replace(&mut has_sought, true) {
                    self.seek();
                } else if (asked.is_some() || self.models().len() > 1) && self.has_heard_all() {
                    return None;
                }
                changed.await;
            }
        };
        // If none becomes known, the request is refused for that reason.
        if let Ok(Some(model)) = timeout(GRACE, found).await {
            return Ok(Some(model));
        }
        let models = self.models();
        let names: Vec<&str> = models.iter().map(|model| model.topology.model.as_str()).collect();
        match asked {
            _ if names.is_empty() => Ok(None),
            None => Err(ApiError::model_needed(&names)),
            Some(asked) => match self.away() {
                Some(node) => Err(ApiError::model_perhaps_away(asked, &names, &node)),
                None => Err(ApiError::no_such_model(asked, &names)),
            },
        }
    }

    /// The model of this name, one that serves if several have it; without a name the only model.
    fn find(&self, asked: Option<&str>) -> Option<ServedModel> {
        let mut models = self.models();
        match asked {
            None => (models.len() == 1).then(|| models.pop()).flatten(),
            Some(asked) => {
                models.retain(|model| is_named(asked, &model.topology.model));
                let serving = models.iter().position(ServedModel::is_serving).unwrap_or_default();
                (serving < models.len()).then(|| models.swap_remove(serving))
            }
        }
    }

    /// Asks all nodes again at once.
    fn seek(&self) {
        let mut known = self.known();
        known.pending = known.neighbours.iter().chain(&self.peers).chain([&self.own]).cloned().collect();
        drop(known);
        self.sought.notify_waiters();
    }

    /// Whether each of them has answered, or failed to.
    fn has_heard_all(&self) -> bool {
        self.known().pending.is_empty()
    }

    /// A node that may serve an unknown model: it has not answered yet, or not for a short time.
    fn away(&self) -> Option<String> {
        let known = self.known();
        let mut silent = known.pending.iter().chain(known.away.keys());
        silent.find(|address| known.away.get(*address).is_none_or(|since| since.elapsed() < LATELY)).cloned()
    }

    fn take(&self, address: &str, body: ResponseBody) {
        if let ResponseBody::Report(report) = body {
            self.learn(address, *report);
            self.changed.notify_waiters();
        }
    }

    fn learn(&self, address: &str, report: NodeReport) {
        let mut known = self.known();
        let now = Instant::now();
        known.groups.learn(&report, now, seconds_since_1970());
        let hash = report.topology.as_ref().map(|(_, hash, _)| *hash);
        if let Some(group) = known.groups.0.iter_mut().find(|group| Some(group.hash) == hash) {
            group.windows.entry(address.into()).or_default().record(self.begun.elapsed(), &report);
        }
        for neighbour in report.neighbours.iter().filter(|neighbour| is_address(neighbour)) {
            if known.neighbours.len() < NODES_MAX && known.neighbours.insert(neighbour.clone()) {
                known.pending.insert(neighbour.clone());
            }
        }
        known.away.remove(address);
        known.pending.remove(address);
        known.nodes.insert(address.into(), LatestReport { report: Arc::new(report), at: now });
    }

    /// Stragglers and slow hops of each topology, by index of its members. The first call only starts watching
    /// all members, so its result is incomplete.
    pub(super) fn culprits(&self) -> Vec<(Arc<Topology>, Culprits)> {
        let mut known = self.known();
        known.asked = Some(Instant::now());
        let begin = self.begun.elapsed().saturating_sub(FRESH);
        let of_groups = known.groups.0.iter().map(|group: &Group| {
            let reports: Vec<Option<&NodeReport>> = group
                .topology
                .members
                .iter()
                .map(|member| {
                    known.nodes.get(&member.address).filter(|seen| seen.at.elapsed() < FRESH).map(|seen| &*seen.report)
                })
                .collect();
            let windows: Vec<Option<&Window>> = group
                .topology
                .members
                .iter()
                .map(|member| group.windows.get(&member.address).filter(|window| window.is_since(begin)))
                .collect();
            (Arc::clone(&group.topology), culprits(&group.topology, &reports, &windows))
        });
        of_groups.collect()
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

    /// The models of all running topologies, by name.
    pub(super) fn models(&self) -> Vec<ServedModel> {
        let known = self.known();
        let mut models: Vec<ServedModel> =
            known.groups.by_model().into_iter().filter_map(|groups| self.model(&known, &groups)).collect();
        models.sort_by(|one, two| one.topology.model.cmp(&two.topology.model));
        models
    }

    /// The topologies that are unloaded without requests and have none, the longest unused first.
    pub(super) fn loaded_on_demand(&self) -> Vec<LoadedOnDemand> {
        let known = self.known();
        let mut unused: Vec<&Group> = known.groups.0.iter().collect();
        unused.retain(|group| {
            let mut heads = group.topology.layout.heads().map(|head| &group.topology.members[head.index()].address);
            group.topology.unload_after.is_some()
                && heads.all(|head| known.nodes.get(head).is_some_and(|seen| seen.report.requests == 0))
        });
        unused.sort_by_key(|group| group.used);
        unused
            .iter()
            .map(|group| LoadedOnDemand { epoch: group.epoch, topology: Arc::clone(&group.topology) })
            .collect()
    }

    /// Addresses of all known nodes: this one, those of the configuration, members of topologies and their neighbours.
    pub(super) fn addresses(&self) -> BTreeSet<String> {
        let known = self.known();
        let members = known.groups.0.iter().flat_map(|group| &group.topology.members).map(|member| &member.address);
        members.chain(&known.neighbours).chain(&self.peers).chain([&self.own]).cloned().collect()
    }

    /// All known nodes, each once: first the members of topologies by rank, then the others by address.
    pub(super) fn known_nodes(&self) -> Vec<KnownNode> {
        let addresses = self.addresses();
        let known = self.known();
        let members = known.groups.0.iter().flat_map(|group| &group.topology.members);
        let members = members.map(|member| (&member.address, Some(&member.name)));
        let mut nodes: Vec<KnownNode> = Vec::with_capacity(addresses.len());
        for (address, member) in members.chain(addresses.iter().map(|address| (address, None))) {
            let seen = known.nodes.get(address);
            // A node that listens on all interfaces is known by several addresses.
            let is_listed = nodes.iter().any(|node| {
                let reports = node.seen.as_ref().zip(seen);
                node.address == *address || reports.is_some_and(|(one, two)| one.report.instance == two.report.instance)
            });
            if !is_listed {
                nodes.push(KnownNode {
                    address: address.clone(),
                    name: seen.map(|seen| &seen.report.name).or(member).cloned(),
                    seen: seen.cloned(),
                    away: known.away.get(address).copied(),
                });
            }
        }
        nodes
    }

    /// Address for dialling this node from this machine.
    pub(super) fn own_address(&self) -> &str {
        &self.own
    }

    /// Address at which other nodes reach the node with this name, as a topology has it.
    pub(super) fn reached_at(&self, name: &str) -> Option<String> {
        let known = self.known();
        let mut members = known.groups.0.iter().flat_map(|group| &group.topology.members);
        members.find(|member| member.name == name).map(|member| member.address.clone())
    }

    /// The model with these roots, if a topology serves it.
    pub(super) fn model_of(&self, roots: &ModelRoots) -> Option<ServedModel> {
        let known = self.known();
        self.model(&known, &known.groups.of(roots))
    }

    /// All replicas of all models.
    pub(super) fn replicas(&self) -> Vec<Replica> {
        self.models().into_iter().flat_map(|model| model.replicas).collect()
    }

    fn model(&self, known: &KnownCluster, groups: &[&Group]) -> Option<ServedModel> {
        let first = groups.first()?;
        let mut model = ServedModel {
            topology: Arc::clone(&first.topology),
            replicas: Vec::new(),
            since: first.since,
            served: groups.iter().filter_map(|group| group.served).max(),
            used: groups.iter().filter_map(|group| group.used).max(),
            cordons: Vec::new(),
        };
        let patience = self.silent.max(Duration::from_secs(1));
        for group in groups {
            let (replicas, cordons) = group.replicas(&known.nodes, patience, Instant::now());
            model.replicas.extend(replicas);
            model.cordons.extend(cordons);
        }
        Some(model)
    }
}

/// Now, in seconds since 1970.
pub(super) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
