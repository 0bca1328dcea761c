//! Assigns a topology in two phases (HOUSE "Assignment"): read, prepare on all, commit on all; abort where one says no.
use std::{sync::Arc, time::Duration};

use shared::{
    ids::{Epoch, Rank, TopologyHash},
    protocol::{
        error::{Fault, FaultKind},
        message::{ModelCard, Prepare, RequestBody, ResponseBody},
    },
    telemetry::{NodeReport, NodeState},
    topology::{Member, Topology},
};
use tokio::task::JoinSet;

use super::{event::AssignEvent, session::Session};
use crate::wanted::Wanted;

/// A report must come within this.
const REPORT: Duration = Duration::from_secs(10);
/// A load must move on within this.
const PREPARE: Duration = Duration::from_secs(120);
/// Links must be open within this.
const COMMIT: Duration = Duration::from_secs(30);
/// The context that is asked for where nothing is said.
const CONTEXT_DEFAULT: u32 = 4096;
/// Sequences at the same time where nothing is said.
pub const SLOTS_DEFAULT: u16 = 4;

/// A topology that runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Assigned {
    /// Its epoch.
    pub epoch: Epoch,
    /// What runs.
    pub topology: Topology,
    /// It ran already.
    pub reused: bool,
}

/// Makes the wanted topology run on the nodes of the sessions (in the order replica, stage, rank), or finds it running.
///
/// # Errors
/// The first fault of any node; what was prepared is aborted.
pub async fn assign(
    sessions: &[Arc<Session>],
    wanted: &Wanted,
    tell: &(dyn Fn(AssignEvent) + Sync),
) -> Result<Assigned, Fault> {
    let reports = reports(sessions).await?;
    if let Some(assigned) = running(sessions, &reports, wanted) {
        return Ok(assigned);
    }
    let card = identify(&sessions[0], &wanted.model).await?;
    let topology = compose(sessions, wanted, &card);
    topology.check().map_err(|error| {
        let node = error_node(&sessions[0]);
        Fault::new(node, FaultKind::TopologyInvalid { reason: error.to_string() })
    })?;
    let epoch = reports.iter().map(|report| report.epoch).max().unwrap_or_default().next();
    let hash = topology.hash();
    if let Err(fault) = prepare(sessions, &reports, &topology, epoch, tell).await {
        abort(sessions, epoch, hash).await;
        return Err(fault);
    }
    tell(AssignEvent::Committing);
    commit(sessions, epoch, hash).await?;
    Ok(Assigned { epoch, topology, reused: false })
}

fn error_node(session: &Session) -> String {
    session.identity.name.clone()
}

fn unexpected(session: &Session, body: &ResponseBody) -> Fault {
    let name = format!("{body:?}");
    let reason = format!("unexpected answer {}", name.chars().take(40).collect::<String>());
    Fault::new(error_node(session), FaultKind::Malformed { reason })
}

/// One report of a node.
///
/// # Errors
/// It does not answer.
pub async fn report(session: &Session) -> Result<NodeReport, Fault> {
    let mut reply = session.ask(RequestBody::Report).await?;
    match reply.next("a report", REPORT).await? {
        ResponseBody::Report(report) => Ok(*report),
        other => Err(unexpected(session, &other)),
    }
}

async fn reports(sessions: &[Arc<Session>]) -> Result<Vec<NodeReport>, Fault> {
    let mut reports = Vec::with_capacity(sessions.len());
    for session in sessions {
        reports.push(report(session).await?);
    }
    Ok(reports)
}

async fn identify(session: &Session, model: &str) -> Result<ModelCard, Fault> {
    let mut reply = session.ask(RequestBody::Identify { model: model.into() }).await?;
    match reply.next("reading the model's header", REPORT).await? {
        ResponseBody::Model(card) => Ok(card),
        other => Err(unexpected(session, &other)),
    }
}

/// The running topology, if all nodes run one and it is what is wanted.
fn running(sessions: &[Arc<Session>], reports: &[NodeReport], wanted: &Wanted) -> Option<Assigned> {
    let (topology, hash, _) = reports.first()?.topology.clone()?;
    let is_member = |(rank, report): (usize, &NodeReport)| {
        let serves = matches!(report.state, NodeState::Ready | NodeState::Serving);
        let place = report.topology.as_ref().map(|(_, hash, rank)| (*hash, rank.index()));
        let address = topology.members.get(rank).is_some_and(|member| member.address == sessions[rank].address);
        serves && place == Some((hash, rank)) && address && report.epoch == reports[0].epoch
    };
    let is_wanted = topology.layout == wanted.layout
        && topology.members.len() == reports.len()
        && topology.model == wanted.model
        && (topology.kv, topology.exchange, topology.slots) == (wanted.kv, wanted.exchange, wanted.slots)
        && wanted.context_length.is_none_or(|context| context == topology.context_length);
    let is_running = is_wanted && reports.iter().enumerate().all(is_member);
    is_running.then(|| Assigned { epoch: reports[0].epoch, topology, reused: true })
}

fn compose(sessions: &[Arc<Session>], wanted: &Wanted, card: &ModelCard) -> Topology {
    let machines: Vec<(&str, &[u16])> =
        sessions.iter().map(|session| (session.identity.machine.as_str(), session.identity.cores.as_slice())).collect();
    let member = |(session, share): (&Arc<Session>, Share)| Member {
        name: session.identity.name.clone(),
        address: session.address.clone(),
        weight: 1,
        cores: share.cores,
        threads: share.threads,
        spin: share.spin,
    };
    Topology {
        layout: wanted.layout,
        members: sessions.iter().zip(shares(&machines)).map(member).collect(),
        model: wanted.model.clone(),
        identity: card.identity,
        kv: wanted.kv,
        exchange: wanted.exchange,
        context_length: wanted.context_length.unwrap_or(card.context_length.min(CONTEXT_DEFAULT)),
        slots: wanted.slots,
    }
}

/// What of a machine one rank may use.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Share {
    cores: Vec<u16>,
    threads: u16,
    spin: bool,
}

/// Divides each machine's cores among the ranks on it. With more ranks than cores none may spin: it would take the core
/// from the rank that it waits for.
fn shares(machines: &[(&str, &[u16])]) -> Vec<Share> {
    let mut shares = Vec::with_capacity(machines.len());
    for (rank, machine) in machines.iter().enumerate() {
        let all = machine.1;
        let count = machines.iter().filter(|other| *other == machine).count();
        let index = machines[..rank].iter().filter(|other| *other == machine).count();
        let each = all.len() / count;
        shares.push(match (all.is_empty(), each) {
            (true, _) => Share { cores: Vec::new(), threads: 1, spin: false },
            (false, 0) => Share { cores: vec![all[index % all.len()]], threads: 1, spin: false },
            (false, _) => {
                let cores = all[index * each..(index + 1) * each].to_vec();
                Share { cores, threads: each as u16, spin: true }
            }
        });
    }
    shares
}

async fn prepare(
    sessions: &[Arc<Session>],
    reports: &[NodeReport],
    topology: &Topology,
    epoch: Epoch,
    tell: &(dyn Fn(AssignEvent) + Sync),
) -> Result<(), Fault> {
    let (progress, mut progressed) = tokio::sync::mpsc::channel(64);
    let mut loads = JoinSet::new();
    for (node, (session, report)) in sessions.iter().zip(reports).enumerate() {
        let (session, progress) = (Arc::clone(session), progress.clone());
        let rank = Rank(node as u16);
        let prepare = Prepare { seen: report.epoch, epoch, topology: topology.clone(), rank };
        loads.spawn(async move {
            let mut reply = session.ask(RequestBody::Prepare(Box::new(prepare))).await?;
            loop {
                match reply.next("loading its shard", PREPARE).await? {
                    // A line of progress that finds no place is made up for by the next.
                    ResponseBody::Loading(load) => drop(progress.try_send((node, load))),
                    ResponseBody::Prepared => return Ok(()),
                    other => return Err(unexpected(&session, &other)),
                }
            }
        });
    }
    drop(progress);
    loop {
        tokio::select! {
            Some((node, progress)) = progressed.recv() => tell(AssignEvent::Loading { node, progress }),
            done = loads.join_next() => match done {
                Some(Ok(result)) => result?,
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
            match reply.next("opening its links", COMMIT).await? {
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

/// Tells every node to forget it; one that never heard of it does not mind.
async fn abort(sessions: &[Arc<Session>], epoch: Epoch, hash: TopologyHash) {
    for session in sessions {
        if let Ok(mut reply) = session.ask(RequestBody::Abort { epoch, hash }).await {
            let _ = reply.next("an abort", Duration::from_secs(2)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_divided_among_the_ranks_of_a_machine_and_none_spins_without_a_core_of_its_own() {
        let share = |cores: &[u16], spin| Share { cores: cores.to_vec(), threads: cores.len() as u16, spin };
        let four: &[u16] = &[0, 1, 2, 3];
        assert_eq!(shares(&[("a", four), ("b", four)]), [share(four, true), share(four, true)]);
        assert_eq!(shares(&[("a", four), ("a", four)]), [share(&[0, 1], true), share(&[2, 3], true)]);
        assert_eq!(shares(&[("a", four); 3])[2], share(&[2], true));
        let two: &[u16] = &[4, 6];
        let crowded = shares(&[("a", two); 3]);
        assert_eq!(crowded, [share(&[4], false), share(&[6], false), share(&[4], false)]);
        assert_eq!(shares(&[("a", &[])]), [Share { cores: Vec::new(), threads: 1, spin: false }]);
    }
}
