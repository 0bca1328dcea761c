//! The node's part in recovery: prepares its committed topology again, votes on the next one, learns decisions, and
//! stores the rolling restart.
use std::time::Duration;

use common::{
    fault::{Fault, FaultKind},
    ids::{Epoch, JUMP_MAX, TopologyHash, is_in_reach},
    planted::{Planted, is_planted},
};
use protocol::{
    message::{Prepare, ResponseBody},
    recovery::{Ballot, Committed, RESTART_DRAIN_MS_MAX, RecoveryAnswer, RecoveryAsk, Vote, VoteReply},
};
use topology::{Rolling, Topology, layout::SpecError};

use super::{
    event::{Record, ReplyTo},
    machine::{Assignment, Node, OpenAssignment},
    quorum::{VoteGap, Votes, is_one_group, superseded},
};
use crate::node::effect::{ClusterEffect, DiskEffect, Effect, EngineEffect, PendingAnswer};

impl Assignment {
    /// The topology that its commit makes this node hold.
    pub(super) fn committed(&self) -> Committed {
        Committed { epoch: self.epoch, topology: self.topology.clone(), desired: self.desired.clone() }
    }
}

impl Node {
    /// The last topology that this node committed or learned as a member.
    pub fn committed(&self) -> Option<&Committed> {
        self.committed.as_ref()
    }

    /// The committed topology, while nothing of it runs or is prepared here.
    pub fn expected(&self) -> Option<&Topology> {
        let is_free = self.running.is_none() && self.open.is_none();
        self.committed.as_ref().filter(|_| is_free).map(|committed| &committed.topology)
    }

    /// The latest rolling restart.
    pub fn rolling(&self) -> Option<&Rolling> {
        self.rolling.as_ref()
    }

    /// Whether an operator confirmed that missing members do not come back.
    pub fn takes_over(&self) -> bool {
        self.takes_over
    }

    /// Whether this node has accepted a topology that follows its current one: that vote is finished first.
    pub fn has_accepted(&self) -> bool {
        self.accepted_name().is_some()
    }

    /// Epoch and hash of the topology that this node has accepted as the next one.
    fn accepted_name(&self) -> Option<(Epoch, TopologyHash)> {
        let votes = self.voter.votes.as_ref().filter(|votes| Some(&votes.base) == self.committed.as_ref())?;
        votes.accepted.as_ref().map(|accepted| accepted.next.name())
    }

    /// The topology that followed without this node, or the one that was unloaded here, while it holds none.
    fn followed_by(&self) -> Option<&Committed> {
        let witnessed = self.voter.witnessed.iter().map(|votes| &votes.base);
        // An absent member may be the witness of the others.
        let own = witnessed.filter(|base| base.desired().members.iter().any(|member| member.name == self.name));
        let bases = self.voter.votes.iter().map(|votes| &votes.base).chain(own);
        bases.max_by(|one, other| one.order(other)).filter(|_| self.committed.is_none())
    }

    /// The highest epoch that this node knows: promised, held, or that of the topology that followed without it.
    pub fn known_epoch(&self) -> Epoch {
        self.followed_by().map_or(self.epoch, |next| next.epoch.max(self.epoch))
    }

    /// Refuses an epoch so far ahead that no later one could follow.
    pub(super) fn check_reach(&self, epoch: Epoch) -> Result<(), FaultKind> {
        if is_in_reach(self.epoch.0, epoch.0) {
            return Ok(());
        }
        let reason = format!("epoch {epoch} is more than {JUMP_MAX} beyond epoch {}, the last seen here", self.epoch);
        Err(FaultKind::TopologyInvalid { reason })
    }

    /// Refuses a received topology that is invalid or has an epoch out of reach.
    fn check_told(&self, committed: &Committed) -> Result<(), FaultKind> {
        let invalid = |error: SpecError| FaultKind::TopologyInvalid { reason: error.to_string() };
        committed.topology.check().map_err(invalid)?;
        committed.desired().check().map_err(invalid)?;
        self.check_reach(committed.epoch)
    }

    /// Refuses a ballot so far ahead that no later one could follow.
    fn check_ballot(&self, vote: &Vote) -> Result<(), FaultKind> {
        let own = self.voter.votes.iter().chain(&self.voter.witnessed).filter(|own| own.base.epoch == vote.base.epoch);
        let (promised, round) = (own.map(|own| own.promised.round).max().unwrap_or(0), vote.ballot.round);
        if is_in_reach(promised.into(), round.into()) {
            return Ok(());
        }
        let reason = format!("ballot {round} is more than {JUMP_MAX} beyond ballot {promised}, the last promised here");
        Err(FaultKind::Malformed { reason })
    }

    /// Checks a prepare at the current epoch: it brings the committed topology up again and promises nothing new.
    pub(super) fn check_again(&self, prepare: &Prepare) -> Result<(), FaultKind> {
        let (epoch, by) = (self.known_epoch(), self.latest_by.clone());
        let name = (prepare.epoch, prepare.topology.hash());
        if self.is_unloaded(name) {
            return Err(FaultKind::NotServing { state: "unloaded".into() });
        }
        match self.committed.as_ref().map(Committed::name) {
            Some(own) if own == name => {}
            Some((held, hash)) if held == prepare.epoch => {
                let reason = format!("it holds topology {hash} of epoch {held}, this is {}", name.1);
                return Err(FaultKind::TopologyInvalid { reason });
            }
            _ if prepare.epoch < epoch => return Err(FaultKind::Superseded { epoch, by }),
            _ => {}
        }
        if self.accepted_name().is_some_and(|accepted| accepted != name) {
            let reason = "it has accepted another topology, which has precedence".into();
            return Err(FaultKind::TopologyInvalid { reason });
        }
        let serving = self.running.as_ref().filter(|running| running.fault.is_none());
        let serves = serving.is_some_and(|running| (running.assignment.epoch, running.assignment.hash) == name);
        // A member requests this only when its replica is broken. This node may not have noticed.
        if serves && prepare.topology.layout.groups.is_empty() && is_planted(Planted::UntoldFault) {
            return Err(FaultKind::TopologyInvalid { reason: "it already serves this topology".into() });
        }
        Ok(())
    }

    /// Whether this is the topology that this node holds.
    pub(super) fn holds(&self, epoch: Epoch, hash: TopologyHash) -> bool {
        self.committed.as_ref().is_some_and(|committed| committed.name() == (epoch, hash))
    }

    /// Whether this is the topology that this node holds, so that it is on the disk already.
    pub(super) fn is_kept(&self, open: &OpenAssignment) -> bool {
        self.holds(open.assignment.epoch, open.assignment.hash)
    }

    /// Records the open assignment as the committed topology, which recovery restores from now on.
    pub(super) fn keep_committed(&mut self) -> Vec<Effect> {
        let Some(open) = &self.open else { return Vec::new() };
        self.takes_over = false;
        if self.is_kept(open) {
            return Vec::new();
        }
        let (committed, again) = (open.assignment.committed(), open.again);
        let others = committed.topology.members.iter().filter(|member| member.name != self.name);
        let others: Vec<String> = others.map(|member| member.address.clone()).collect();
        self.committed = Some(committed.clone());
        let mut records = vec![Record::Committed(Some(committed.clone()))];
        records.extend(self.remember(others));
        if self.unloaded.take().is_some() {
            records.push(Record::Unloaded(None));
        }
        // A new epoch by assignment: there was no earlier vote about its successor.
        if !again && self.voter.forgot.take().is_some() {
            records.push(Record::VoteGap(None));
        }
        if !again && self.voter.votes.as_ref().is_some_and(|votes| votes.base.is_later_than(&committed)) {
            records.push(self.votes_from(committed));
        }
        vec![Effect::Disk(DiskEffect::Write { records, then: None })]
    }

    pub(super) fn recovery(&mut self, to: ReplyTo, ask: RecoveryAsk) -> Vec<Effect> {
        let ReplyTo { session, id } = to;
        let done = |answer| PendingAnswer { to, body: ResponseBody::Recovery(answer) };
        match ask {
            RecoveryAsk::Standing(caller) => vec![Effect::Cluster(ClusterEffect::Standing { session, id, caller })],
            RecoveryAsk::Learn(committed) => {
                if let Err(kind) = self.check_told(&committed) {
                    return self.refuse(session, id, kind);
                }
                let (mut effects, records) = self.learn(*committed);
                effects.push(Effect::Disk(DiskEffect::Write { records, then: Some(done(RecoveryAnswer::Learned)) }));
                effects
            }
            RecoveryAsk::Vote(vote) => {
                let told = vote.next.iter().chain([&vote.base]).try_for_each(|one| self.check_told(one));
                if let Err(kind) = told.and_then(|()| self.check_ballot(&vote)) {
                    return self.refuse(session, id, kind);
                }
                let (mut effects, records, ruling) = self.vote(&vote);
                if is_planted(Planted::VoteBeforeDisk) {
                    effects.push(Effect::respond(to, ResponseBody::Recovery(RecoveryAnswer::Vote(ruling))));
                    effects.push(Effect::Disk(DiskEffect::Write { records, then: None }));
                    return effects;
                }
                effects
                    .push(Effect::Disk(DiskEffect::Write { records, then: Some(done(RecoveryAnswer::Vote(ruling))) }));
                effects
            }
            RecoveryAsk::TakeOver => match self.take_over() {
                Ok(()) => vec![Effect::respond(to, ResponseBody::Recovery(RecoveryAnswer::Learned))],
                Err(kind) => self.refuse(session, id, kind),
            },
            RecoveryAsk::Rolling(rolling) => {
                if let Err(reason) = rolling.check() {
                    return self.refuse(session, id, FaultKind::Malformed { reason });
                }
                let seen = self.rolling.as_ref().map_or(0, |rolling| rolling.revision);
                if !is_in_reach(seen, rolling.revision) {
                    let reason = format!("revision {} is far beyond {seen}, the last seen here", rolling.revision);
                    return self.refuse(session, id, FaultKind::Malformed { reason });
                }
                let is_later = Rolling::merge(&mut self.rolling, &rolling);
                let records = if is_later { vec![Record::Rolling(rolling)] } else { Vec::new() };
                vec![Effect::Disk(DiskEffect::Write { records, then: Some(done(RecoveryAnswer::Learned)) })]
            }
            RecoveryAsk::Recall(committed) => {
                if let Err(kind) = self.check_told(&committed) {
                    return self.refuse(session, id, kind);
                }
                let (mut effects, records) = self.recall(*committed);
                effects.push(Effect::Disk(DiskEffect::Write { records, then: Some(done(RecoveryAnswer::Learned)) }));
                effects
            }
            RecoveryAsk::Restart { drain_ms } => {
                let effects = self.restart(session, id);
                if self.draining.is_some() {
                    self.drain_for = Some(Duration::from_millis(drain_ms.min(RESTART_DRAIN_MS_MAX).into()));
                }
                effects
            }
        }
    }

    /// Lets the remaining members continue without the missing ones, until their topology serves again. Refused while
    /// it serves here: an operator addresses all nodes, also of other groups, and means the members missing now.
    fn take_over(&mut self) -> Result<(), FaultKind> {
        let Some(committed) = &self.committed else {
            return Err(FaultKind::NotServing { state: self.state().name().into() });
        };
        if self.serves() {
            let reason = "its topology serves; only nodes whose topology is down can take over".into();
            return Err(FaultKind::ParameterInvalid { reason });
        }
        tracing::warn!(epoch = %committed.epoch, "an operator lets the remaining members continue without the missing \
             ones");
        self.takes_over = true;
        Ok(())
    }

    /// Adopts a later topology: ends the engine of an older one; a node that is not a member drops its record.
    fn learn(&mut self, committed: Committed) -> (Vec<Effect>, Vec<Record>) {
        let mut records = Vec::new();
        if self.is_unloaded(committed.name()) {
            return (Vec::new(), self.learn_unloaded(committed));
        }
        let is_member = committed.topology.members.iter().any(|member| member.name == self.name);
        // Another group follows its own topologies, even if the two have the same witness.
        if !is_member && self.committed.as_ref().is_some_and(|own| !is_one_group(own, &committed)) {
            return (Vec::new(), records);
        }
        let is_known = self.committed.as_ref().is_some_and(|own| !committed.is_later_than(own))
            || self.followed_by().is_some_and(|next| next.is_later_than(&committed));
        if is_known && !is_planted(Planted::OlderTopologyLearned) {
            return (Vec::new(), self.learn_desired(&committed));
        }
        let (epoch, hash) = committed.name();
        let mut effects = Vec::new();
        let kept = self.kept_in(&committed.topology);
        // Of the same epoch only if it is another topology: this one may just have begun to run.
        let earlier = self.running.take_if(|running| {
            let of = &running.assignment;
            of.epoch < epoch || (of.epoch == epoch && of.hash != hash)
        });
        if let Some(mut running) = earlier {
            let by = "a vote of its members".to_owned();
            if let Some(member) = kept {
                let (Committed { topology, desired, .. }, shard) = (committed.clone(), running.assignment.shard);
                running.assignment = Assignment { epoch, hash, topology, member, by, shard, desired };
                self.running = Some(running);
            } else {
                let fault = Fault::new(&self.name, FaultKind::Superseded { epoch, by });
                effects = running.requests.fail_all(&fault);
                effects.push(Effect::Engine(EngineEffect::Stop(running.engine)));
            }
        }
        // An operator may have chosen the same epoch at the same time: then the vote has precedence.
        let open = self.open.as_ref().map(|open| (open.assignment.epoch, open.assignment.hash));
        if open.is_some_and(|(other, of)| other < epoch || (other == epoch && of != hash)) {
            // The node or console that prepared it waits for an answer.
            let by = "a vote of its members".to_owned();
            effects.extend(self.fail_open(Fault::new(&self.name, FaultKind::Superseded { epoch, by })));
        }
        // A node that is not a member keeps its epoch: a console that includes it has just read that epoch.
        if epoch > self.epoch && is_member {
            (self.epoch, self.latest_by) = (epoch, "a vote of its members".into());
            records.push(Record::Promise(epoch, hash));
        }
        // Without a record there is nothing to drop.
        if is_member || self.committed.is_some() {
            if !is_member {
                // Members of an earlier topology that have missed this one must not take the node back to that.
                records.push(self.votes_from(committed.clone()));
            }
            self.committed = is_member.then_some(committed);
            records.push(Record::Committed(self.committed.clone()));
        }
        self.takes_over = false;
        (effects, records)
    }

    /// Begins the record of votes about the successor of a topology.
    pub(super) fn votes_from(&mut self, base: Committed) -> Record {
        let votes = Votes { promised: Ballot::default(), base, accepted: None };
        self.voter.votes = Some(votes.clone());
        Record::Votes(votes)
    }

    /// Adopts the desired topology of the topology that this node holds: a node of release 0.1 did not store it.
    fn learn_desired(&mut self, committed: &Committed) -> Vec<Record> {
        let own = self.committed.as_mut().filter(|own| *own == committed && own.desired.is_none());
        let Some(own) = own.filter(|_| committed.desired.is_some()) else { return Vec::new() };
        own.desired.clone_from(&committed.desired);
        let (records, name) = (vec![Record::Committed(Some(own.clone()))], own.name());
        let running = self.running.iter_mut().map(|running| &mut running.assignment);
        running
            .filter(|assignment| (assignment.epoch, assignment.hash) == name)
            .for_each(|assignment| assignment.desired.clone_from(&committed.desired));
        records
    }

    /// Adopts the topology of a majority: the node votes again about later topologies, but not about this one, because
    /// its earlier votes on it are unknown.
    fn recall(&mut self, committed: Committed) -> (Vec<Effect>, Vec<Record>) {
        let epoch = committed.epoch;
        let (effects, mut records) = self.learn(committed);
        if self.forgets() {
            self.voter.forgot = Some(VoteGap::UpTo(self.committed.as_ref().map_or(epoch, |own| own.epoch.max(epoch))));
            records.push(Record::VoteGap(self.voter.forgot));
        }
        (effects, records)
    }

    /// Whether its record of votes is lost and it has not yet learned the topology of a majority.
    pub fn forgets(&self) -> bool {
        matches!(self.voter.forgot, Some(VoteGap::Fresh | VoteGap::Lost))
    }

    fn vote(&mut self, vote: &Vote) -> (Vec<Effect>, Vec<Record>, VoteReply) {
        let abstain = |reason: &str| (Vec::new(), Vec::new(), VoteReply::Abstains(reason.into()));
        let is_member = vote.base.topology.members.iter().any(|member| member.name == self.name);
        if is_member && vote.witness != self.witness {
            return abstain("its configuration names a different witness");
        }
        let known = self.committed.as_ref().or_else(|| self.followed_by());
        if let Some(later) = known.filter(|known| is_member && known.is_later_than(&vote.base)) {
            return (Vec::new(), Vec::new(), superseded(later, &vote.base));
        }
        if self.is_unloaded(vote.base.name()) {
            return abstain("the topology was unloaded here");
        }
        if self.open.as_ref().is_some_and(|open| open.assignment.epoch > vote.base.epoch) {
            return abstain("it prepares another assignment");
        }
        let (effects, mut records) = if is_member { self.learn(vote.base.clone()) } else { Default::default() };
        if is_member && self.committed.as_ref() != Some(&vote.base) {
            return abstain("it holds another topology of this epoch");
        }
        if !is_member || is_planted(Planted::BallotTwice) {
            self.voter.witnesses(vote.base.epoch);
        }
        let (ruling, is_new) = match is_member {
            true => self.voter.rule(vote, self.epoch),
            false => self.voter.rule_as_witness(vote, self.epoch),
        };
        if is_new && !is_member {
            records.push(Record::Witnessed(self.voter.witnessed.clone()));
        } else if let Some(votes) = self.voter.votes.clone().filter(|_| is_new) {
            records.push(Record::Votes(votes));
        }
        if let (VoteReply::Accepted, Some(next)) = (&ruling, &vote.next)
            && next.epoch > self.epoch
            && is_member
        {
            // From here on, no assignment of this epoch can be prepared here.
            self.epoch = next.epoch;
            records.push(Record::Promise(next.epoch, next.topology.hash()));
        }
        (effects, records, ruling)
    }
}
