//! Assigns a topology in two phases: prepare on all nodes, then commit on all nodes. If a node refuses, the
//! assignment is aborted.
use std::{sync::Arc, time::Duration};

use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, MemberIndex, TopologyHash},
    precision::KvFormat,
};
use protocol::{
    message::{ModelCard, Prepare, Previous, RequestBody, ResponseBody},
    session::Session,
};
use telemetry::{NodeReport, SyncRecord};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use topology::{Draft, SpecError, Topology, sizes::ModelSizes};

use super::{
    compose::compose,
    draft::{agree, draft},
    event::AssignEvent,
    previous::{pause, previous},
};
use crate::context;
use crate::desired::DesiredTopology;
use crate::identify::{REPORT, all_speak, error_node, identify, unexpected};
use crate::lease::Leases;
use crate::links::check_links;

/// The first wire version in which nodes store keys and values in 4 bits.
const NIBBLES: u16 = 14;
/// Longest time without progress of a load.
const PREPARE: Duration = Duration::from_secs(120);
/// Time limit for opening the links.
const COMMIT: Duration = Duration::from_secs(30);
/// Time limit for a node to drop an assignment.
const ABORT: Duration = Duration::from_secs(2);
pub use crate::desired::SLOTS_DEFAULT;

/// A running topology.
#[derive(Clone, Debug, PartialEq)]
pub struct Assigned {
    /// Its epoch.
    pub epoch: Epoch,
    /// The running topology.
    pub topology: Topology,
    /// Whether it was already running.
    pub reused: bool,
}

/// The topology that an assignment would create, and the card of its model. Nothing is loaded.
///
/// # Errors
/// A node does not answer or lacks the model, or the topology is impossible.
pub async fn propose(sessions: &[Arc<Session>], wanted: &DesiredTopology) -> Result<(Topology, ModelCard), Fault> {
    let (topology, card) = propose_to(sessions, &reports(sessions).await?, wanted).await?;
    check_links(&topology, sessions.iter().map(|session| session.rank()))?;
    Ok((topology, card))
}

/// The same, given the nodes' reports.
async fn propose_to(
    sessions: &[Arc<Session>],
    reports: &[NodeReport],
    wanted: &DesiredTopology,
) -> Result<(Topology, ModelCard), Fault> {
    let card = identify(&sessions[0], &wanted.model).await?;
    let machines = sessions.iter().map(|session| (&session.identity, session.address.as_str()));
    let topology = compose(&machines.collect::<Vec<_>>(), wanted, &card);
    let invalid = |error: SpecError| {
        let node = error_node(&sessions[0]);
        Fault::new(node, FaultKind::TopologyInvalid { reason: error.to_string() })
    };
    if wanted.kv == KvFormat::Q4 {
        all_speak(sessions, NIBBLES, "keys and values in q4_0")?;
    }
    let draft = draft(sessions, wanted, &card).await?.map(Box::new);
    let topology = Topology { draft, ..topology.map_err(invalid)? };
    topology.check().map_err(invalid)?;
    if wanted.context_length.is_some() {
        return Ok((topology, card));
    }
    // A topology that runs is not replaced by one with another context without a request.
    let held = reports.first().and_then(|report| report.topology.as_ref());
    let held = held.map(|(held, ..)| Topology { context_length: held.context_length, ..topology.clone() });
    if let Some((_, running)) = held.and_then(|held| running(reports, &held)) {
        return Ok((running, card));
    }
    let sizes = card.sizes().map_err(|kind| Fault::new(error_node(&sessions[0]), kind))?;
    let machines: Vec<&str> = sessions.iter().map(|session| session.identity.machine.as_str()).collect();
    let context_length = context::longest(&topology, card.context_length, &sizes, reports, &machines);
    Ok((Topology { context_length, ..topology }, card))
}

/// Assigns the wanted topology to the nodes of the sessions (in the order replica, stage, rank), unless it already
/// runs on them.
///
/// # Errors
/// The first fault of any node; prepared shards are dropped.
pub async fn assign(
    sessions: &[Arc<Session>],
    wanted: &DesiredTopology,
    tell: &(dyn Fn(AssignEvent) + Sync),
) -> Result<Assigned, Fault> {
    assign_until(sessions, wanted, &CancellationToken::new(), tell).await
}

/// Like [`assign`]. While nodes are loading, `stop` aborts the assignment and drops all prepared shards.
///
/// # Errors
/// Those of [`assign`], and [`FaultKind::AssignmentAborted`].
pub async fn assign_until(
    sessions: &[Arc<Session>],
    wanted: &DesiredTopology,
    stop: &CancellationToken,
    tell: &(dyn Fn(AssignEvent) + Sync),
) -> Result<Assigned, Fault> {
    let reports = reports(sessions).await?;
    let (topology, card) = propose_to(sessions, &reports, wanted).await?;
    let sizes = card.sizes().map_err(|kind| Fault::new(error_node(&sessions[0]), kind))?;
    if let Some((epoch, running)) = running(&reports, &topology) {
        let agreed = tokio::select! {
            biased;
            () = stop.cancelled() => return Err(Fault::new("console", FaultKind::AssignmentAborted { epoch })),
            agreed = agree(sessions, running.clone(), tell) => agreed?,
        };
        // Otherwise the files of all nodes were replaced since they were loaded.
        if agreed == running {
            tracing::info!(%epoch, "topology {} is already running", running.layout);
            return Ok(Assigned { epoch, topology: running, reused: true });
        }
    }
    make(sessions, &reports, Next { topology, desired: None, sizes: &sizes, seen: Epoch(0) }, stop, tell).await
}

/// The topology to assign next.
pub struct Next<'a> {
    /// The topology.
    pub topology: Topology,
    /// The operator's topology, if this one only approximates it.
    pub desired: Option<Box<Topology>>,
    /// The sizes of its model.
    pub sizes: &'a ModelSizes,
    /// The highest epoch that other nodes have seen: its epoch is above that.
    pub seen: Epoch,
}

/// Assigns a topology to the sessions, which are its members in order. Replicas that already run unchanged keep
/// running.
///
/// # Errors
/// See [`assign_until`].
pub async fn assign_as(
    sessions: &[Arc<Session>],
    next: Next<'_>,
    stop: &CancellationToken,
    tell: &(dyn Fn(AssignEvent) + Sync),
) -> Result<Assigned, Fault> {
    let reports = reports(sessions).await?;
    make(sessions, &reports, next, stop, tell).await
}

async fn make(
    sessions: &[Arc<Session>],
    reports: &[NodeReport],
    next: Next<'_>,
    stop: &CancellationToken,
    tell: &(dyn Fn(AssignEvent) + Sync),
) -> Result<Assigned, Fault> {
    check_links(&next.topology, sessions.iter().map(|session| session.rank()))?;
    let epoch = reports.iter().map(|report| report.epoch).fold(next.seen, Epoch::max).next();
    let aborted = || Fault::new("console", FaultKind::AssignmentAborted { epoch });
    let topology = tokio::select! {
        biased;
        () = stop.cancelled() => return Err(aborted()),
        agreed = agree(sessions, next.topology, tell) => agreed?,
    };
    let next = Next { topology, ..next };
    let hash = next.topology.hash();
    let prepared = tokio::select! {
        biased;
        () = stop.cancelled() => Err(aborted()),
        prepared = prepare(sessions, reports, &next, epoch, tell) => prepared,
    };
    let topology = next.topology;
    let done = match prepared {
        Ok(()) => {
            tell(AssignEvent::Committing);
            commit(sessions, epoch, hash).await
        }
        Err(fault) => Err(fault),
    };
    if let Err(fault) = done {
        tracing::warn!(%epoch, "assignment failed: {fault}");
        abort(sessions, epoch, hash).await;
        return Err(fault);
    }
    tracing::info!(%epoch, "topology {} is running", topology.layout);
    Ok(Assigned { epoch, topology, reused: false })
}

/// One report of a node.
///
/// # Errors
/// The node does not answer.
pub async fn report(session: &Session) -> Result<NodeReport, Fault> {
    let mut reply = session.ask(RequestBody::Report).await?;
    match reply.next("a report", REPORT).await? {
        ResponseBody::Report(report) => Ok(*report),
        other => Err(unexpected(session, &other)),
    }
}

/// The latest all-reduces of a rank, oldest first; empty if the node holds no shard.
///
/// # Errors
/// The node does not answer.
pub async fn records(session: &Session) -> Result<Vec<SyncRecord>, Fault> {
    let mut reply = session.ask(RequestBody::Records).await?;
    match reply.next("reading the all-reduces", REPORT).await? {
        ResponseBody::Records(records) => Ok(records),
        other => Err(unexpected(session, &other)),
    }
}

/// The reports of all nodes, in the order of the sessions.
///
/// # Errors
/// The first fault of a node that does not answer.
pub async fn reports(sessions: &[Arc<Session>]) -> Result<Vec<NodeReport>, Fault> {
    let mut reports = Vec::with_capacity(sessions.len());
    for session in sessions {
        reports.push(report(session).await?);
    }
    Ok(reports)
}

/// Like [`identify`], from the first session that answers: not every node needs to have the model.
///
/// # Errors
/// The first fault if no node answers, or there is no session.
pub async fn identify_on_any(sessions: impl Iterator<Item = &Session>, model: &str) -> Result<ModelCard, Fault> {
    let mut first = None;
    for session in sessions {
        match identify(session, model).await {
            Ok(card) => return Ok(card),
            Err(fault) => drop(first.get_or_insert(fault)),
        }
    }
    let reason = format!("there is no node to read {model}");
    Err(first.unwrap_or_else(|| Fault::new("console", FaultKind::TopologyInvalid { reason })))
}

/// The wanted topology and its epoch, if exactly this topology runs on all nodes. The content is the one they
/// agreed on at assignment.
fn running(reports: &[NodeReport], wanted: &Topology) -> Option<(Epoch, Topology)> {
    let first = reports.first()?;
    let (held, ..) = first.topology.as_ref()?;
    let held_draft = held.draft.as_ref().and_then(|draft| draft.content);
    let draft = wanted.draft.clone().map(|draft| Box::new(Draft { content: held_draft, ..*draft }));
    let (epoch, wanted) = (first.epoch, Topology { content: held.content, draft, ..wanted.clone() });
    let hash = wanted.hash();
    let runs_everywhere = reports.iter().enumerate().all(|(member, report): (usize, &NodeReport)| {
        let serves = report.state.serves();
        let place = report.topology.as_ref().map(|(topology, hash, member)| (topology, *hash, member.index()));
        serves && report.epoch == epoch && place == Some((&wanted, hash, member))
    });
    runs_everywhere.then_some((epoch, wanted))
}

async fn prepare(
    sessions: &[Arc<Session>],
    reports: &[NodeReport],
    next: &Next<'_>,
    epoch: Epoch,
    tell: &(dyn Fn(AssignEvent) + Sync),
) -> Result<(), Fault> {
    let previous = previous(&next.topology, reports, next.sizes);
    for (index, session) in sessions.iter().enumerate().filter(|(index, _)| previous[*index] == Previous::Leaves) {
        let pause = pause(&next.topology, index, &reports[index], next.sizes);
        let seconds = pause.map(|pause| pause.as_secs_f64().ceil() as u32);
        tell(AssignEvent::Pauses { node: session.identity.name.clone(), seconds });
    }
    let (progress, mut progressed) = tokio::sync::mpsc::channel(64);
    let mut loads = JoinSet::new();
    for (node, (session, report)) in sessions.iter().zip(reports).enumerate() {
        let (session, progress) = (Arc::clone(session), progress.clone());
        let member = MemberIndex(node as u16);
        let prepare = Prepare {
            seen: report.epoch,
            epoch,
            topology: next.topology.clone(),
            member,
            desired: next.desired.clone(),
            previous: previous[node],
        };
        loads.spawn(async move {
            let mut reply = session.ask(RequestBody::Prepare(Box::new(prepare))).await?;
            loop {
                match reply.next("loading the shard", PREPARE).await? {
                    // If the queue is full, this progress update is dropped; the next one supersedes it.
                    ResponseBody::Loading(load) => drop(progress.try_send((node, load))),
                    ResponseBody::Prepared => return Ok(session),
                    other => return Err(unexpected(&session, &other)),
                }
            }
        });
    }
    drop(progress);
    let mut leases = Leases::default();
    loop {
        tokio::select! {
            Some((node, progress)) = progressed.recv() => tell(AssignEvent::Loading { node, progress }),
            () = leases.extend() => {}
            done = loads.join_next() => match done {
                Some(Ok(result)) => leases.add(result?),
                Some(Err(error)) => return Err(internal(&error)),
                None => return Ok(()),
            },
        }
    }
}

fn internal(error: &tokio::task::JoinError) -> Fault {
    Fault::new("console", FaultKind::Internal { reason: error.to_string() })
}

async fn commit(sessions: &[Arc<Session>], epoch: Epoch, hash: TopologyHash) -> Result<(), Fault> {
    let mut commits = JoinSet::new();
    for session in sessions {
        let session = Arc::clone(session);
        commits.spawn(async move {
            let mut reply = session.ask(RequestBody::Commit { epoch, hash }).await?;
            match reply.next("opening the links", COMMIT).await? {
                ResponseBody::Committed => Ok(()),
                other => Err(unexpected(&session, &other)),
            }
        });
    }
    let mut first = Ok(());
    while let Some(done) = commits.join_next().await {
        let result = done.unwrap_or_else(|error| Err(internal(&error)));
        first = first.and(result);
    }
    first
}

/// Requests all nodes at once to drop the assignment. A node that does not have it, or already runs it, ignores this.
async fn abort(sessions: &[Arc<Session>], epoch: Epoch, hash: TopologyHash) {
    let mut aborts = JoinSet::new();
    for session in sessions {
        let session = Arc::clone(session);
        aborts.spawn(async move {
            if let Ok(mut reply) = session.ask(RequestBody::Abort { epoch, hash }).await {
                let _ = reply.next("an abort", ABORT).await;
            }
        });
    }
    aborts.join_all().await;
}

#[cfg(test)]
mod tests {
    use common::{
        ids::ModelIdentity,
        precision::{Exchange, KvFormat},
        units::Bytes,
    };
    use protocol::handshake::Identity;
    use telemetry::NodeState;
    use topology::Layout;

    use super::*;
    use crate::identify::is_sound;

    fn wanted() -> DesiredTopology {
        let (layout, model) = (Layout::tensor_parallel(2), "m.gguf".into());
        DesiredTopology { layout, model, slots: SLOTS_DEFAULT, ..crate::fixtures::wanted() }
    }

    fn card() -> ModelCard {
        ModelCard { model: "m.gguf".into(), identity: ModelIdentity([3; 32]), ..crate::fixtures::card() }
    }

    #[test]
    fn card_with_inconsistent_layer_counts_is_refused() {
        assert!(is_sound(&card()));
        assert!(!is_sound(&ModelCard { block_count: 7, ..card() }));
        let most = models::limits::BLOCK_COUNT_MAX as usize;
        let of = |count: usize| {
            let mut sizes = crate::fixtures::sizes();
            sizes.layers = sizes.layers.iter().cycle().take(count).cloned().collect();
            sizes.spec.layers = vec![0; count];
            let sizes = Some(Box::new(sizes));
            ModelCard { block_count: count as u32, layer_bytes: vec![Bytes(1); count], sizes, ..card() }
        };
        assert!(is_sound(&of(most)) && !is_sound(&of(most + 1)) && !is_sound(&of(0)));
        let (mut fewer, mut short) = (card(), card());
        fewer.sizes.as_mut().expect("it is new").layers.pop();
        short.sizes = of(5).sizes;
        assert!(!is_sound(&fewer) && !is_sound(&short));
    }

    fn node(name: &str) -> Identity {
        let (name, machine) = (name.to_owned(), name.to_owned());
        Identity { name, build: "b".into(), numeric: 1, machine, cores: vec![0, 1, 2, 3] }
    }

    fn report(rank: u16, topology: &Topology) -> NodeReport {
        NodeReport {
            state: if rank == 0 { NodeState::Serving } else { NodeState::Ready },
            epoch: Epoch(7),
            topology: Some((topology.clone(), topology.hash(), MemberIndex(rank))),
            ..crate::fixtures::idle_report("pi")
        }
    }

    #[test]
    fn topology_follows_node_order_and_limits_context_to_4096() {
        let (one, two) = (node("pi1"), node("pi2"));
        let nodes = [(&two, "b:1"), (&one, "a:1")];
        let topology = compose(&nodes, &wanted(), &card()).expect("it can be made");
        assert_eq!(topology.check(), Ok(()));
        let members: Vec<_> = topology.members.iter().map(|one| (one.name.as_str(), one.address.as_str())).collect();
        assert_eq!(members, [("pi2", "b:1"), ("pi1", "a:1")]);
        assert_eq!((topology.context_length, topology.identity), (512, card().identity));
        let long = ModelCard { context_length: 131_072, ..card() };
        assert_eq!(compose(&nodes, &wanted(), &long).expect("it can be made").context_length, 4096);
        let asked = DesiredTopology { context_length: Some(9000), ..wanted() };
        assert_eq!(compose(&nodes, &asked, &long).expect("it can be made").context_length, 9000);
    }

    #[test]
    fn topology_is_reused_only_if_identical_on_all_nodes() {
        let (one, two) = (node("pi1"), node("pi2"));
        let nodes = [(&one, "a:1"), (&two, "b:1")];
        let topology = compose(&nodes, &wanted(), &card()).expect("it can be made");
        let reports = [report(0, &topology), report(1, &topology)];
        assert_eq!(running(&reports, &topology), Some((Epoch(7), topology.clone())));

        let refused = |wanted: &DesiredTopology, card: &ModelCard, nodes: &[(&Identity, &str)]| {
            assert_eq!(
                running(&reports, &compose(nodes, wanted, card).expect("it can be made")),
                None,
                "{wanted:?} {card:?}"
            );
        };
        refused(&DesiredTopology { kv: KvFormat::F32, ..wanted() }, &card(), &nodes);
        refused(&DesiredTopology { exchange: Exchange::Q80, ..wanted() }, &card(), &nodes);
        refused(&DesiredTopology { context_length: Some(64), ..wanted() }, &card(), &nodes);
        refused(&DesiredTopology { slots: 1, ..wanted() }, &card(), &nodes);
        refused(&DesiredTopology { model: "n.gguf".into(), ..wanted() }, &card(), &nodes);
        refused(&wanted(), &ModelCard { identity: ModelIdentity([4; 32]), ..card() }, &nodes);
        refused(&wanted(), &card(), &[(&two, "b:1"), (&one, "a:1")]);

        let broken: [fn(&mut NodeReport); 5] = [
            |report| report.state = NodeState::Faulted,
            |report| report.state = NodeState::Draining,
            |report| report.epoch = Epoch(8),
            |report| report.topology = None,
            |report| report.topology.as_mut().expect("it runs").2 = MemberIndex(0),
        ];
        for breaks in broken {
            let mut reports = reports.clone();
            breaks(&mut reports[1]);
            assert_eq!(running(&reports, &topology), None, "{:?}", reports[1]);
        }
        assert_eq!(running(&[], &topology), None);
    }
}
