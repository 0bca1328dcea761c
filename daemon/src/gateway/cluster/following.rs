//! Sessions with the relevant nodes: which ones are followed, and how closely.
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use common::fault::{Fault, FaultKind};
use protocol::{message::RequestBody, session::Session};
use tokio::{task::JoinHandle, time::sleep};

use super::{Cluster, groups::Group};

/// Interval of a node's reports, in milliseconds.
const INTERVAL_MS: u32 = 250;
/// Interval for updating the set of relevant nodes.
const LOOK: Duration = Duration::from_millis(250);
/// Interval at which nodes without a part in a known topology are asked for theirs.
const LOOK_AROUND: Duration = Duration::from_secs(2);
/// How long all members are watched after a scrape of `/metrics`; longer than the usual scrape interval.
const ASKED: Duration = Duration::from_secs(180);
/// Longest pause before an unreachable node is dialled again.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The same for a node without a part in a known topology.
const PAUSE_FAR_MAX: Duration = Duration::from_secs(30);

/// How closely a node is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Following {
    /// It is asked now and then: it has no part in a known topology.
    Asked,
    /// It sends reports.
    Watched,
}

impl Cluster {
    /// Keeps sessions with all relevant nodes, until dropped.
    pub(in crate::gateway) async fn watch(self: Arc<Self>) {
        let mut tasks = Watches(BTreeMap::new());
        loop {
            let wanted = self.wanted();
            tasks.0.retain(|(address, following), task| {
                let stays = wanted.get(address) == Some(following) && !task.is_finished();
                if !stays {
                    task.abort();
                }
                stays
            });
            self.keep_only(&wanted);
            for (address, following) in wanted {
                let key = (address.clone(), following);
                tasks.0.entry(key).or_insert_with(|| tokio::spawn(Arc::clone(&self).follow(address, following)));
            }
            sleep(LOOK).await;
        }
    }

    /// The relevant nodes. This node, peers and heads are watched; all members of topologies that do not serve, because
    /// one of them may have another topology, and while `/metrics` is scraped. Other nodes of the cluster are asked now
    /// and then.
    fn wanted(&self) -> BTreeMap<String, Following> {
        let models = self.models();
        let known = self.known();
        let mut wanted: BTreeMap<String, Following> =
            known.neighbours.iter().map(|address| (address.clone(), Following::Asked)).collect();
        let is_asked = known.asked.is_some_and(|asked| asked.elapsed() < ASKED);
        for Group { topology, .. } in &known.groups.0 {
            let heads: Vec<usize> = topology.layout.heads().map(|head| head.index()).collect();
            let mut replicas = models.iter().flat_map(|model| &model.replicas);
            let serves = replicas.any(|replica| {
                replica.is_serving && heads.iter().any(|head| topology.members[*head].address == replica.head)
            });
            let members = topology.members.iter().enumerate();
            let watched = members.filter(|(index, _)| !serves || is_asked || heads.contains(index));
            wanted.extend(watched.map(|(_, member)| (member.address.clone(), Following::Watched)));
        }
        let always = self.peers.iter().chain([&self.own]);
        wanted.extend(always.map(|address| (address.clone(), Following::Watched)));
        wanted
    }

    fn keep_only(&self, wanted: &BTreeMap<String, Following>) {
        let mut known = self.known();
        known.nodes.retain(|address, _| wanted.contains_key(address));
        known.away.retain(|address, _| wanted.contains_key(address));
        for group in &mut known.groups.0 {
            group.windows.retain(|address, _| wanted.contains_key(address));
        }
    }

    async fn follow(self: Arc<Self>, address: String, following: Following) {
        let most = if following == Following::Watched { PAUSE_MAX } else { PAUSE_FAR_MAX };
        let mut pause = Duration::from_millis(50);
        loop {
            let begin = Instant::now();
            if let Err(fault) = self.reports(&address, following).await {
                tracing::debug!(address, "the gateway receives no reports: {fault}");
                let mut known = self.known();
                known.away.entry(address.clone()).or_insert_with(Instant::now);
                known.pending.remove(&address);
            }
            self.changed.notify_waiters();
            pause = if begin.elapsed() > PAUSE_MAX { LOOK } else { (pause * 2).min(most) };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.sought.notified() => {}
            }
        }
    }

    async fn reports(&self, address: &str, following: Following) -> Result<(), Fault> {
        let session = Session::open(address, self.identity.clone()).await?;
        let patience = self.silent.max(Duration::from_secs(1));
        if following == Following::Watched {
            let mut reply = session.ask(RequestBody::Watch { interval_ms: INTERVAL_MS }).await?;
            loop {
                match reply.next("a report", patience).await {
                    Ok(body) => self.take(address, body),
                    // Too many sessions watch the node already: it is polled instead.
                    Err(Fault { kind: FaultKind::Full { .. }, .. }) => break,
                    Err(fault) => return Err(fault),
                }
            }
        }
        let pause = if following == Following::Watched { LOOK.min(patience / 4) } else { LOOK_AROUND };
        loop {
            let mut reply = session.ask(RequestBody::Report).await?;
            self.take(address, reply.next("a report", patience).await?);
            tokio::select! {
                () = sleep(pause) => {}
                () = self.sought.notified() => {}
            }
        }
    }
}

/// Tasks that are aborted when dropped.
struct Watches(BTreeMap<(String, Following), JoinHandle<()>>);

impl Drop for Watches {
    fn drop(&mut self) {
        self.0.values().for_each(JoinHandle::abort);
    }
}
