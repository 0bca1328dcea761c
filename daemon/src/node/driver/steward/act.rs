//! What a node does with others to bring a topology back: prepares and commits it again on its members, or holds a vote on another
//! topology and tells everybody what was decided.
use std::{path::PathBuf, sync::Arc, time::Duration};

use shared::{
    ids::MemberIndex,
    protocol::{
        error::{Fault, FaultKind},
        message::{Prepare, RequestBody, ResponseBody},
        recovery::{Ballot, Committed, RecoveryAsk, Ruling, Vote},
        session::Session,
    },
    topology::{
        Exclusions, Topology,
        replan::{Stays, replan},
        sizes::ModelSizes,
    },
};
use tokio::task::{JoinSet, spawn_blocking};

use super::{
    super::loading,
    Steward,
    peers::{Peers, unexpected},
};
use crate::node::{
    breaker::BY_ITSELF,
    quorum::{Proposer, Step},
    steward::View,
};

/// A load must move on within this.
const PREPARE: Duration = Duration::from_secs(60);
/// Links must be open within this.
const COMMIT: Duration = Duration::from_secs(20);
/// What was prepared must be forgotten, a list kept, within this.
const ANSWER: Duration = Duration::from_secs(3);

/// Brings what was committed up again on some of its members: all of a replica, or all.
///
/// # Errors
/// The first fault of any of them; what was prepared is given up.
pub(super) async fn bring(
    peers: &mut Peers,
    base: &Committed,
    views: &[View],
    unit: &[MemberIndex],
) -> Result<(), Fault> {
    let mut sessions = Vec::with_capacity(unit.len());
    for member in unit {
        sessions.push((*member, peers.session(&views[member.index()].address).await?));
    }
    let (epoch, hash) = base.name();
    let result = match on_all(&sessions, |member, session| prepare(base.clone(), member, session)).await {
        Ok(()) => {
            on_all(&sessions, |_, session| async move {
                let mut reply = session.ask(RequestBody::Commit { epoch, hash }).await?;
                match reply.next("opening its links", COMMIT).await? {
                    ResponseBody::Committed => Ok(()),
                    _ => Err(unexpected(&session)),
                }
            })
            .await
        }
        Err(fault) => Err(fault),
    };
    if result.is_err() {
        // One that never heard of it, or serves it, does not mind.
        let _ = on_all(&sessions, |_, session| async move {
            let mut reply = session.ask(RequestBody::Abort { epoch, hash }).await?;
            reply.next("an abort", ANSWER).await.map(drop)
        })
        .await;
    }
    result
}

async fn prepare(base: Committed, member: MemberIndex, session: Arc<Session>) -> Result<(), Fault> {
    let Committed { epoch, topology } = base;
    let prepare = Prepare { seen: epoch, epoch, topology, member };
    let mut reply = session.ask(RequestBody::Prepare(Box::new(prepare))).await?;
    loop {
        match reply.next("loading its shard", PREPARE).await? {
            ResponseBody::Loading(_) => {}
            ResponseBody::Prepared => return Ok(()),
            _ => return Err(unexpected(&session)),
        }
    }
}

/// Does something with all sessions at once; the first fault, once all have ended.
async fn on_all<Work>(
    sessions: &[(MemberIndex, Arc<Session>)],
    work: impl Fn(MemberIndex, Arc<Session>) -> Work,
) -> Result<(), Fault>
where
    Work: Future<Output = Result<(), Fault>> + Send + 'static,
{
    let mut all = JoinSet::new();
    for (member, session) in sessions {
        all.spawn(work(*member, Arc::clone(session)));
    }
    let mut first = Ok(());
    while let Some(done) = all.join_next().await {
        let internal = |error: tokio::task::JoinError| {
            Err(Fault::new("steward", FaultKind::Internal { reason: error.to_string() }))
        };
        first = first.and(done.unwrap_or_else(internal));
    }
    first
}

/// What another topology is to be.
pub(super) enum Change {
    /// The members that stay, at the addresses where they answer, without the others, each with the reason.
    On { stay: Vec<MemberIndex>, lost: Vec<(MemberIndex, String)> },
    /// This one, with a node that was out.
    Again { topology: Topology, joins: MemberIndex },
}

/// Another topology to vote for.
pub(super) struct Proposal<'a> {
    pub(super) base: &'a Committed,
    pub(super) views: &'a [View],
    /// The own place.
    pub(super) own: usize,
    pub(super) change: Change,
    pub(super) granted: usize,
}

/// Holds a vote; what is decided is told to all who answer.
///
/// # Errors
/// The rest cannot hold the model, or too few voted for it.
pub(super) async fn propose(
    steward: &Steward,
    peers: &mut Peers,
    proposal: Proposal<'_>,
    round: &mut u32,
) -> Result<(), Fault> {
    let Proposal { base, views, own, .. } = &proposal;
    let wanted = wanted(steward, &proposal).await.map_err(|kind| Fault::new(&steward.identity.name, kind))?;

    let mut voters: Vec<(usize, Arc<Session>)> = Vec::new();
    for (index, view) in views.iter().enumerate().filter(|(_, view)| view.standing.is_some()) {
        voters.push((index, peers.session(&view.address).await?));
    }
    let witness = steward.settings.witness.as_ref().filter(|_| views.len() == 2);
    if let Some(address) = witness
        && let Ok(session) = peers.session(address).await
    {
        voters.push((views.len(), session));
    }
    *round += 1;
    let ballot = Ballot { round: *round, member: *own as u16 };
    let count = views.len() + usize::from(witness.is_some());
    let mut proposer = Proposer::new(base, ballot, (count, proposal.granted));
    let vote = |next| Vote { base: (*base).clone(), witness: steward.settings.witness.clone(), ballot, next };
    let mut step = ballot_round(&voters, &vote(None), &mut proposer).await;
    if step == Step::Propose {
        let next = proposer.propose(|| wanted);
        step = ballot_round(&voters, &vote(Some(next)), &mut proposer).await;
    }
    match step {
        Step::Chosen(next) => decided(steward, peers, &proposal, next).await,
        Step::Behind(later) => peers.tell(&steward.own, RecoveryAsk::Learn(Box::new(later))).await,
        Step::Outdone(other) => {
            *round = (*round).max(other.round);
            Err(no_majority(steward, "another node holds a vote"))
        }
        Step::Wait | Step::Propose => {
            Err(no_majority(steward, "too few voted for a topology without the lost members"))
        }
    }
}

/// The topology that is proposed.
async fn wanted(steward: &Steward, proposal: &Proposal<'_>) -> Result<Topology, FaultKind> {
    let stay = match &proposal.change {
        Change::On { stay, .. } => stay,
        Change::Again { topology, .. } => return Ok(topology.clone()),
    };
    let stays = |member: &MemberIndex| {
        let view = &proposal.views[member.index()];
        let free = view.standing.as_ref().map_or_else(Default::default, |one| one.free);
        Stays { member: *member, address: view.address.clone(), free }
    };
    let (before, stay) = (proposal.base.topology.clone(), stay.iter().map(stays).collect::<Vec<_>>());
    let models = steward.models.clone();
    let planned = spawn_blocking(move || plan(&models, &before, &stay)).await;
    planned.unwrap_or_else(|error| Err(FaultKind::Internal { reason: error.to_string() }))
}

fn no_majority(steward: &Steward, reason: &str) -> Fault {
    Fault::new(&steward.identity.name, FaultKind::TopologyInvalid { reason: reason.into() })
}

/// Asks all voters at once until enough have answered.
async fn ballot_round(voters: &[(usize, Arc<Session>)], vote: &Vote, proposer: &mut Proposer) -> Step {
    let mut asked = JoinSet::new();
    for (voter, session) in voters {
        let (voter, session, ask) = (*voter, Arc::clone(session), RecoveryAsk::Vote(Box::new(vote.clone())));
        asked.spawn(async move { (voter, Peers::vote(&session, ask).await) });
    }
    while let Some(answer) = asked.join_next().await {
        let Ok((voter, answer)) = answer else { continue };
        let ruling = match answer {
            Ok(ruling) => ruling,
            Err(fault) => {
                tracing::warn!("no vote: {fault}");
                continue;
            }
        };
        if let Ruling::Abstains(reason) = &ruling {
            tracing::warn!(voter, "a voter abstains: {reason}");
        }
        match proposer.hear(voter, ruling) {
            Step::Wait => {}
            step => return step,
        }
    }
    Step::Wait
}

/// Those who are not in it any more are out, with the reason; then everybody knows what follows.
async fn decided(steward: &Steward, peers: &mut Peers, proposal: &Proposal<'_>, next: Committed) -> Result<(), Fault> {
    let Proposal { base, views, .. } = proposal;
    let names: Vec<&str> = next.topology.members.iter().map(|member| member.name.as_str()).collect();
    tracing::warn!(
        "epoch {} follows epoch {}: {} on {}",
        next.epoch,
        base.epoch,
        next.topology.layout,
        names.join(", ")
    );
    let mut list = Exclusions::default();
    for standing in views.iter().filter_map(|view| view.standing.as_ref()) {
        list.merge(&standing.exclusions);
    }
    let by = format!("{} {BY_ITSELF}", steward.identity.name);
    let mut told: Vec<&str> =
        views.iter().filter(|view| view.standing.is_some()).map(|view| view.address.as_str()).collect();
    match &proposal.change {
        Change::On { lost, .. } => {
            for (member, reason) in lost {
                let member = &base.topology.members[member.index()];
                if !names.contains(&member.name.as_str()) && list.of(&member.name, &member.address).is_none() {
                    list.say(&member.name, &member.address, Some(reason), &by);
                }
            }
        }
        Change::Again { topology, joins } => {
            let member = &topology.members[joins.index()];
            list.say(&member.name, &member.address, None, &by);
            told.push(&member.address);
        }
    }
    for address in told {
        let session = peers.session(address).await?;
        let kept = match session.ask(RequestBody::Exclude(list.clone())).await {
            Ok(mut reply) => reply.next("keeping the list of nodes that are out", ANSWER).await,
            Err(fault) => Err(fault),
        };
        if let Err(fault) = kept {
            tracing::warn!("the list of nodes that are out is not kept: {fault}");
        }
        peers.tell(address, RecoveryAsk::Learn(Box::new(next.clone()))).await?;
    }
    Ok(())
}

/// The topology on those that stay, by what the model's file says.
fn plan(models: &[PathBuf], before: &Topology, stay: &[Stays]) -> Result<Topology, FaultKind> {
    let (_, file, shape) = loading::open(models, &before.model)?;
    let sizes = ModelSizes::of_file(&file, &shape);
    replan(before, stay, &sizes).map_err(|reason| FaultKind::TopologyInvalid { reason })
}
