//! Runs a vote on the next topology, and sends the decision to all members that answer.
use std::{collections::BTreeMap, time::Duration};

use common::{
    fault::{Fault, FaultKind},
    ids::{MemberIndex, is_in_reach},
};
use protocol::{
    message::{Prepare, Previous, RequestBody, ResponseBody},
    recovery::{Ballot, Committed, RecoveryAnswer, RecoveryAsk, Vote, VoteReply},
};
use topology::{Member, Topology};

use super::{
    ANSWER, Doing, Question, Reply, Steward, StewardAsk, View,
    ask::unexpected,
    balance::with_shares,
    change::{TopologyChange, stays},
    reasons::{BY_ITSELF, CANNOT_LOAD, ends_by_itself},
    view::exclusions,
};
use crate::node::quorum::{Electorate, Proposer, Step, voters};

/// A topology to vote on.
#[derive(Debug)]
pub(super) struct Proposal {
    pub(super) base: Committed,
    pub(super) views: Vec<View>,
    /// This node's place.
    pub(super) own: usize,
    pub(super) change: TopologyChange,
    /// Votes of absent members, for which an operator answers.
    pub(super) granted: usize,
    /// The topology serves, so the next one is loaded before it ends.
    pub(super) serves: bool,
}

impl Proposal {
    /// Whether a member is lost again that the next topology adds, or hangs: the end of the topology that serves without it
    /// would not help. A member that returns at another address than the decision has, which an earlier vote may have made,
    /// needs another vote, and a slow member is not kept for the sake of a lost one.
    fn has_lost_again(&self, added: &Member, kind: &FaultKind) -> bool {
        let is_lost = matches!(
            kind,
            FaultKind::SessionLost { .. }
                | FaultKind::Unreachable { .. }
                | FaultKind::Timeout { .. }
                | FaultKind::Draining
        );
        is_lost
            && match &self.change {
                TopologyChange::Return { joins, .. } => {
                    joins.iter().any(|one| one.name == added.name && one.address == added.address)
                }
                TopologyChange::Shares(_) | TopologyChange::Leave { .. } | TopologyChange::Again { .. } => {
                    !self.base.topology.members.iter().any(|one| one.name == added.name)
                }
                TopologyChange::On { .. } => false,
            }
    }

    /// Whether the plan with the returned members equals the running topology.
    fn would_change_nothing(&self, wanted: &Topology) -> bool {
        matches!(self.change, TopologyChange::Return { .. }) && wanted.is_alike(&self.base.topology)
    }
}

/// The current stage.
#[derive(Debug)]
pub(super) enum ProposalStage {
    Plan,
    /// The members that join compare their model files, then they confirm that they hold no topology (`joins`).
    Content,
    Standing,
    /// Voters promise, or accept.
    Vote(Box<Proposer>),
    /// The list of exclusions is stored, then the next topology is learned.
    Tell(Committed, Told),
    /// The members of changed replicas load the next topology while the previous one serves, then switch.
    Load(Committed, Loading),
    /// A later topology was committed: this node learns it.
    Behind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Out,
    Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loading {
    Prepare,
    Commit,
    Abort,
}

/// Longest time without progress of a load.
const PREPARE: Duration = Duration::from_secs(60);
/// Deadline for opening the links.
const COMMIT: Duration = Duration::from_secs(20);

/// A running vote.
#[derive(Debug)]
pub(super) struct Propose {
    pub(super) proposal: Proposal,
    ballot: Ballot,
    /// Voters with their addresses; the witness is the last.
    voters: Vec<(usize, String)>,
    pub(super) wanted: Option<Topology>,
    pub(super) stage: ProposalStage,
    /// Open questions, with the index of the voter or the index in `told`.
    pub(super) waiting: BTreeMap<Question, usize>,
    result: Result<(), Fault>,
}

impl Steward {
    /// Whether it holds a vote, or loads the topology decided by one.
    pub fn is_voting(&self) -> bool {
        matches!(self.doing, Doing::Propose(_))
    }

    /// Starts a vote.
    pub(super) fn propose(&mut self, proposal: Proposal) -> Vec<StewardAsk> {
        let question = self.question();
        let (wanted, asks) = match &proposal.change {
            TopologyChange::Again { topology, .. } => (Some(topology.clone()), Vec::new()),
            TopologyChange::Shares(topology) => {
                // All members stay, so the plan only checks their memory: shares that do not fit would end the running
                // topology, and replace the desired ones.
                let stay = stays(topology, topology.members.iter().zip(&proposal.views));
                (None, vec![StewardAsk::Plan { question, desired: topology.clone(), stay }])
            }
            TopologyChange::On { stay, .. } => {
                let views = stay
                    .iter()
                    .map(|member| (&proposal.base.topology.members[member.index()], &proposal.views[member.index()]));
                let stay = stays(proposal.base.desired(), views);
                (None, vec![StewardAsk::Plan { question, desired: proposal.base.desired().clone(), stay }])
            }
            TopologyChange::Return { stay, .. } | TopologyChange::Leave { stay } => {
                let (desired, stay) = (proposal.base.desired().clone(), stay.clone());
                (None, vec![StewardAsk::Plan { question, desired, stay }])
            }
        };
        let propose = Propose {
            proposal,
            ballot: Ballot::default(),
            voters: Vec::new(),
            wanted,
            stage: ProposalStage::Plan,
            waiting: BTreeMap::from([(question, 0)]),
            result: Ok(()),
        };
        if propose.wanted.is_some() {
            return self.check_joins(Box::new(propose));
        }
        self.doing = Doing::Propose(Box::new(propose));
        asks
    }

    /// Asks all voters to promise.
    pub(super) fn begin_vote(&mut self, mut propose: Box<Propose>) -> Vec<StewardAsk> {
        let views = &propose.proposal.views;
        let answering = views.iter().enumerate().filter(|(_, view)| view.standing.is_some());
        propose.voters = answering.map(|(index, view)| (index, view.address.clone())).collect();
        let witness = self.settings.recovery.witness.clone().filter(|_| views.len() == 2);
        let count = voters(views.len(), witness.is_some());
        let forgetful = views.iter().filter(|view| view.standing.as_ref().is_some_and(|one| one.forgets)).count();
        if forgetful > 1 && count.is_multiple_of(2) {
            let fault = self.no_majority("several members have lost their records of votes");
            return self.end_vote(&propose.proposal, Err(fault));
        }
        propose.voters.extend(witness.map(|address| (views.len(), address)));
        self.round = self.round.saturating_add(1);
        propose.ballot = Ballot { round: self.round, member: propose.proposal.own as u16 };
        let proposer = Proposer::new(
            &propose.proposal.base,
            propose.ballot,
            Electorate { voters: count, granted: propose.proposal.granted },
        );
        let proposer = proposer.above(propose.proposal.change.seen(propose.proposal.base.epoch));
        propose.stage = ProposalStage::Vote(Box::new(proposer));
        self.ask_voters(propose, None)
    }

    fn ask_voters(&mut self, mut propose: Box<Propose>, next: Option<Committed>) -> Vec<StewardAsk> {
        let (base, ballot) = (propose.proposal.base.clone(), propose.ballot);
        let vote = Vote { base, witness: self.settings.recovery.witness.clone(), ballot, next };
        propose.waiting.clear();
        let mut asks = Vec::with_capacity(propose.voters.len());
        for (voter, address) in propose.voters.clone() {
            let (question, ask) = self.recover(&address, RecoveryAsk::Vote(Box::new(vote.clone())));
            propose.waiting.insert(question, voter);
            asks.push(ask);
        }
        self.doing = Doing::Propose(propose);
        asks
    }

    pub(super) fn hear_propose(
        &mut self,
        mut propose: Box<Propose>,
        question: Question,
        reply: Reply,
    ) -> Vec<StewardAsk> {
        let Some(voter) = propose.waiting.remove(&question) else {
            self.doing = Doing::Propose(propose);
            return Vec::new();
        };
        match (&mut propose.stage, reply) {
            (ProposalStage::Plan, Reply::Plan(Ok(wanted))) if propose.proposal.would_change_nothing(&wanted) => {
                self.return_changes_nothing();
                Vec::new()
            }
            (ProposalStage::Plan, Reply::Plan(Ok(wanted))) => {
                propose.wanted = Some(wanted);
                self.check_joins(propose)
            }
            (ProposalStage::Plan, Reply::Plan(Err(kind))) => {
                let fault = Fault::new(&self.settings.name, kind);
                self.end_vote(&propose.proposal, Err(fault))
            }
            (ProposalStage::Content, Reply::Content(result)) => self.joins_compared(propose, voter, result),
            (ProposalStage::Standing, reply) => self.joins_answered(propose, reply),
            (ProposalStage::Plan | ProposalStage::Content, _) => self.end_vote(&propose.proposal, Err(unexpected())),
            (ProposalStage::Vote(proposer), reply) => {
                let step = match reply.of_node() {
                    Ok(ResponseBody::Recovery(RecoveryAnswer::Vote(ruling))) => {
                        if let VoteReply::Abstains(reason) = &ruling {
                            tracing::warn!(voter, "a voter abstains: {reason}");
                        }
                        proposer.hear(voter, ruling)
                    }
                    Ok(_) => Step::Wait,
                    Err(fault) => {
                        tracing::warn!("cannot hold a vote: {fault}");
                        Step::Wait
                    }
                };
                self.vote_step(propose, step)
            }
            (ProposalStage::Tell(..), reply) => self.told(propose, reply),
            (ProposalStage::Load(..), reply) => self.loaded(propose, voter, reply),
            (ProposalStage::Behind, reply) => self.end_vote(&propose.proposal, reply.of_node().map(drop)),
        }
    }

    fn vote_step(&mut self, mut propose: Box<Propose>, step: Step) -> Vec<StewardAsk> {
        let ProposalStage::Vote(proposer) = &mut propose.stage else { return Vec::new() };
        match step {
            Step::Wait if !propose.waiting.is_empty() => {
                self.doing = Doing::Propose(propose);
                Vec::new()
            }
            Step::Wait => {
                let fault = self.no_majority("too few members voted for the next topology");
                self.end_vote(&propose.proposal, Err(fault))
            }
            Step::Propose => {
                let base = &propose.proposal.base;
                let topology = propose.wanted.clone().unwrap_or_else(|| base.topology.clone());
                let wanted = match &propose.proposal.change {
                    TopologyChange::Shares(topology) => with_shares(base.desired(), topology),
                    _ => base.desired().clone(),
                };
                let desired = (!topology.is_alike(&wanted)).then(|| Box::new(wanted));
                let next = proposer.propose(|epoch| Committed { epoch, topology, desired });
                self.ask_voters(propose, Some(next))
            }
            Step::Chosen(next) => self.decided(propose, next),
            Step::Behind(later) => {
                let own = self.settings.own.clone();
                let (question, ask) = self.recover(&own, RecoveryAsk::Learn(Box::new(later)));
                (propose.stage, propose.waiting) = (ProposalStage::Behind, BTreeMap::from([(question, 0)]));
                self.doing = Doing::Propose(propose);
                vec![ask]
            }
            Step::Nack(other) => {
                // A voter that reports the last round must not end all later votes.
                if is_in_reach(self.round.into(), other.round.into()) {
                    self.round = self.round.max(other.round);
                }
                let fault = self.no_majority("another node holds a vote");
                self.end_vote(&propose.proposal, Err(fault))
            }
        }
    }

    fn no_majority(&self, reason: &str) -> Fault {
        Fault::new(&self.settings.name, FaultKind::TopologyInvalid { reason: reason.into() })
    }

    pub(super) fn end_vote(&mut self, proposal: &Proposal, outcome: Result<(), Fault>) -> Vec<StewardAsk> {
        match &proposal.change {
            TopologyChange::Return { .. } => self.return_ended(outcome),
            TopologyChange::Leave { .. } => self.leave_ended(outcome),
            TopologyChange::Shares(_) => self.balance_ended(outcome),
            _ if proposal.serves => self.speed_ended(outcome),
            _ => {
                // After a vote that failed, the topology is brought up with all of them for as long as before.
                self.failing.clear();
                self.ended(outcome);
            }
        }
        Vec::new()
    }

    /// Excludes the members that the next topology does not have, with the reason; then sends that topology to all
    /// members that answer.
    fn decided(&mut self, mut propose: Box<Propose>, next: Committed) -> Vec<StewardAsk> {
        let Proposal { base, views, change, .. } = &propose.proposal;
        let names: Vec<&str> = next.topology.members.iter().map(|member| member.name.as_str()).collect();
        let layout = next.topology.layout;
        tracing::warn!("epoch {} follows epoch {}: {layout} on {}", next.epoch, base.epoch, names.join(", "));
        self.expect_joins(base, &next);
        let mut list = exclusions(views.iter().filter_map(|view| view.standing.as_ref()));
        let by = format!("{} {BY_ITSELF}", self.settings.name);
        let answering = views.iter().filter(|view| view.standing.is_some());
        let mut told: Vec<String> = answering.map(|view| view.address.clone()).collect();
        // The decision may be an earlier proposal, which a ballot must adopt: members that it does not have do not
        // join.
        match change {
            TopologyChange::On { lost, .. } => {
                for (index, member) in base.topology.members.iter().enumerate() {
                    let said = lost.iter().find(|one| one.0.index() == index).map(|one| one.1.as_str());
                    let Some(reason) = said.or_else(|| self.why_left_out(base, &member.name)) else { continue };
                    // A member that an operator cordoned returns by itself, but not if its load fails each time.
                    let entry = list.of(&member.name, &member.address);
                    let is_news = entry.is_none_or(|entry| entry.is_cordon && reason.starts_with(CANNOT_LOAD));
                    if is_news && !names.contains(&member.name.as_str()) {
                        list.say(&member.name, &member.address, Some(reason), &by);
                    }
                }
            }
            TopologyChange::Again { topology, joins } => {
                let member = &topology.members[joins.index()];
                if names.contains(&member.name.as_str()) {
                    list.say(&member.name, &member.address, None, &by);
                    told.push(member.address.clone());
                }
            }
            TopologyChange::Shares(_) | TopologyChange::Leave { .. } => {}
            TopologyChange::Return { joins, .. } => {
                let joins = joins.iter().filter(|one| names.contains(&one.name.as_str()));
                told.extend(joins.map(|one| one.address.clone()));
            }
        }
        // A member of the next topology is not away any more. An operator's entry has precedence.
        for member in &next.topology.members {
            if list.of(&member.name, &member.address).is_some_and(ends_by_itself) {
                list.say(&member.name, &member.address, None, &by);
            }
        }
        propose.waiting.clear();
        let mut asks = Vec::with_capacity(told.len());
        for (place, address) in told.iter().enumerate() {
            let (question, ask) = self.ask(address, RequestBody::Exclude(list.clone()), ANSWER);
            propose.waiting.insert(question, place);
            asks.push(ask);
        }
        propose.voters = told.into_iter().enumerate().collect();
        propose.stage = ProposalStage::Tell(next, Told::Out);
        self.doing = Doing::Propose(propose);
        asks
    }

    /// The result of storing the list, or of learning the next topology, on one member.
    fn told(&mut self, mut propose: Box<Propose>, reply: Reply) -> Vec<StewardAsk> {
        let ProposalStage::Tell(next, told) = &propose.stage else { return Vec::new() };
        let (next, told) = (next.clone(), *told);
        match (told, reply.of_node()) {
            (Told::Out, Err(fault)) => tracing::warn!("cannot store the list of excluded nodes: {fault}"),
            (Told::Next, Err(fault)) => propose.result = propose.result.and(Err(fault)),
            _ => {}
        }
        if !propose.waiting.is_empty() {
            self.doing = Doing::Propose(propose);
            return Vec::new();
        }
        match told {
            Told::Next => self.end_vote(&propose.proposal, propose.result),
            Told::Out if propose.proposal.serves => self.load(propose, next, Loading::Prepare),
            Told::Out => self.tell_next(propose, next),
        }
    }

    /// Sends the next topology to all members that answer.
    fn tell_next(&mut self, mut propose: Box<Propose>, next: Committed) -> Vec<StewardAsk> {
        propose.waiting.clear();
        let mut asks = Vec::with_capacity(propose.voters.len());
        for (place, address) in propose.voters.clone() {
            let (question, ask) = self.recover(&address, RecoveryAsk::Learn(Box::new(next.clone())));
            propose.waiting.insert(question, place);
            asks.push(ask);
        }
        propose.stage = ProposalStage::Tell(next, Told::Next);
        self.doing = Doing::Propose(propose);
        asks
    }

    /// Loads the next topology while the current one serves, so that serving pauses only to open links. Unchanged
    /// replicas are skipped.
    fn load(&mut self, mut propose: Box<Propose>, next: Committed, stage: Loading) -> Vec<StewardAsk> {
        let before = &propose.proposal.base.topology;
        let changes = next.topology.members.iter().enumerate().filter(|(_, member)| {
            let place = before.members.iter().position(|one| one.name == member.name);
            place.is_none_or(|place| before.kept_in(MemberIndex(place as u16), &next.topology).is_none())
        });
        let changes: Vec<usize> = changes.map(|(index, _)| index).collect();
        let (epoch, hash) = next.name();
        propose.waiting.clear();
        let mut asks = Vec::with_capacity(changes.len());
        for index in changes {
            let (body, within) = match stage {
                Loading::Prepare => {
                    let (topology, member) = (next.topology.clone(), MemberIndex(index as u16));
                    let desired = next.desired.clone();
                    let prepare = Prepare { seen: epoch, epoch, topology, member, desired, previous: Previous::Serves };
                    (RequestBody::Prepare(Box::new(prepare)), PREPARE)
                }
                Loading::Commit => (RequestBody::Commit { epoch, hash }, COMMIT),
                Loading::Abort => (RequestBody::Abort { epoch, hash }, ANSWER),
            };
            let (question, ask) = self.ask(&next.topology.members[index].address, body, within);
            propose.waiting.insert(question, index);
            asks.push(ask);
        }
        if asks.is_empty() {
            return self.tell_next(propose, next);
        }
        propose.stage = ProposalStage::Load(next, stage);
        self.doing = Doing::Propose(propose);
        asks
    }

    /// A member has loaded or switched, or failed. After a failure all members learn the decision, and recovery starts
    /// it as after a loss. If an operator assigns a topology meanwhile, the current one serves until that is committed;
    /// if a member that returns is lost again, until the next attempt. A later vote adopts the decision.
    fn loaded(&mut self, mut propose: Box<Propose>, place: usize, reply: Reply) -> Vec<StewardAsk> {
        let ProposalStage::Load(next, stage) = &propose.stage else { return Vec::new() };
        let (next, stage) = (next.clone(), *stage);
        let answer = match (stage, reply.of_node()) {
            (Loading::Abort, _) => Ok(()),
            (Loading::Prepare, Ok(ResponseBody::Prepared)) | (Loading::Commit, Ok(ResponseBody::Committed)) => Ok(()),
            (Loading::Prepare | Loading::Commit, Ok(_)) => Err(unexpected()),
            (Loading::Prepare | Loading::Commit, Err(fault)) => Err(fault),
        };
        if let Err(fault) = answer {
            // If the same decision is superseded again, an operator's assignment that failed has left a later epoch on some
            // members. They learn the decision only as after a loss.
            let is_operators = match fault.kind {
                FaultKind::PrepareOpen { .. } => true,
                FaultKind::Superseded { .. } => self.dropped.replace(next.name()) != Some(next.name()),
                _ => false,
            };
            if !is_operators {
                self.hold_back_joins(&propose.proposal.base, &next);
            }
            let member = &next.topology.members[place];
            if stage == Loading::Prepare && is_operators {
                tracing::warn!("an operator assigns a topology, so the next one is dropped: {fault}");
                propose.result = Err(fault);
            } else if stage == Loading::Prepare && propose.proposal.has_lost_again(member, &fault.kind) {
                tracing::warn!(
                    "{} was lost while it loaded, so the current topology still serves: {fault}",
                    member.name
                );
                propose.result = Err(fault);
            } else {
                tracing::warn!(
                    "cannot load the next topology while the current one serves; ending the current one \
                     first: {fault}"
                );
            }
            return self.load(propose, next, Loading::Abort);
        }
        if !propose.waiting.is_empty() {
            self.doing = Doing::Propose(propose);
            return Vec::new();
        }
        match stage {
            Loading::Prepare => self.load(propose, next, Loading::Commit),
            Loading::Abort if propose.result.is_err() => self.end_vote(&propose.proposal, propose.result),
            Loading::Commit | Loading::Abort => self.tell_next(propose, next),
        }
    }
}
