//! Decides which topology follows the last one after a loss: single-decree Paxos among the members of the last topology
//! (Lamport, "Paxos made simple"), one decision per topology. A voter's answer counts only when it is on its disk.
//! Pure.
use std::collections::BTreeSet;

use common::{
    ids::Epoch,
    limits::NODES_MAX,
    planted::{Planted, is_planted},
};
use protocol::recovery::{Ballot, Committed, Vote, VoteReply};
use serde::{Deserialize, Serialize};
use topology::Topology;

/// Most groups for which a node votes as the witness.
pub const WITNESSED_MAX: usize = NODES_MAX;

/// A voter's record on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Votes {
    /// Smallest ballot that may still be accepted.
    pub promised: Ballot,
    /// The topology whose successor is decided.
    pub base: Committed,
    /// The proposal that was accepted last.
    pub accepted: Option<Accepted>,
}

/// An accepted proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accepted {
    /// Its ballot.
    pub ballot: Ballot,
    /// The proposed topology.
    pub next: Committed,
}

/// A voter.
#[derive(Clone, Debug, Default)]
pub struct Acceptor {
    /// Votes about the latest base of which the node is a member, or the topology that followed without the node.
    pub votes: Option<Votes>,
    /// Votes as the witness of groups of which the node is not a member, the latest base of each.
    pub witnessed: Vec<Votes>,
    /// The gap in the record of its earlier votes.
    pub forgot: Option<VoteGap>,
}

/// What a voter has lost of its earlier votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VoteGap {
    /// Its state folder was empty: the node is new, or was wiped.
    Fresh,
    /// Its record was damaged, and it is unknown which topology it was about.
    Lost,
    /// It may have voted about this epoch and earlier ones, not about later ones.
    UpTo(Epoch),
}

impl Acceptor {
    /// Called for a voter that acts as a witness and commits no topology. A new witness votes; a damaged one abstains
    /// about the first topology that it is asked about.
    pub fn witnesses(&mut self, epoch: Epoch) {
        self.forgot = match self.forgot {
            Some(VoteGap::Lost) => Some(VoteGap::UpTo(epoch)),
            Some(VoteGap::Fresh) => None,
            other => other,
        };
    }

    /// Rules on a vote; `seen` is the highest epoch that the node has seen. Returns the ruling, and whether the record
    /// must be written before the answer is sent. The caller has checked that this node has seen no later topology.
    pub fn rule(&mut self, vote: &Vote, seen: Epoch) -> (VoteReply, bool) {
        if let Some(own) = &self.votes
            && own.base.is_later_than(&vote.base)
        {
            return (superseded(&own.base, &vote.base), false);
        }
        if let Some(forgot) = self.forgot {
            let voters = voters(vote.base.topology.members.len(), vote.witness.is_some());
            let reason = match forgot {
                VoteGap::UpTo(epoch) if epoch < vote.base.epoch => None,
                // A single voter: other nodes that had learned a decision of it would hold a later topology than the base.
                VoteGap::UpTo(epoch) if epoch == vote.base.epoch && voters == 1 => None,
                // Any two majorities of an even number of voters have two voters in common: one of them may forget.
                _ if voters.is_multiple_of(2) => None,
                VoteGap::UpTo(_) => Some("its record of votes was lost; it votes again about later topologies"),
                VoteGap::Fresh | VoteGap::Lost => Some(
                    "its record of votes is lost; it votes again when it has learned the topology of a \
                     majority",
                ),
            };
            if let Some(reason) = reason {
                return (VoteReply::Abstains(reason.into()), false);
            }
        }
        let is_new = self.votes.as_ref().is_none_or(|own| vote.base.is_later_than(&own.base));
        if is_new {
            self.votes = Some(Votes { promised: Ballot::default(), base: vote.base.clone(), accepted: None });
        }
        let Some(own) = self.votes.as_mut().filter(|own| own.base == vote.base) else {
            return (VoteReply::Abstains(format!("it holds another topology of epoch {}", vote.base.epoch)), false);
        };
        // A ballot is promised only once: a restarted proposer that counts from the beginning must not receive promises
        // made to its previous run.
        let is_used = vote.next.is_none() && vote.ballot == own.promised && !is_planted(Planted::BallotTwice);
        let is_older = vote.ballot < own.promised && !is_planted(Planted::OlderBallotAccepted);
        if is_older || is_used {
            return (VoteReply::Nack(own.promised), is_new);
        }
        let before = own.clone();
        own.promised = vote.ballot;
        let ruling = match &vote.next {
            None => {
                let accepted = own.accepted.clone().filter(|_| !is_planted(Planted::AcceptedUntold));
                let accepted = accepted.map(|accepted| (accepted.ballot, accepted.next));
                VoteReply::Promised { accepted, epoch: seen }
            }
            Some(next) => {
                own.accepted = Some(Accepted { ballot: vote.ballot, next: next.clone() });
                VoteReply::Accepted
            }
        };
        (ruling, is_new || *own != before)
    }

    /// Rules like [`Self::rule`] on a vote of a group of which the node is not a member. Each group has its own record:
    /// a vote of one group must neither end the topology of another nor erase its votes.
    pub fn rule_as_witness(&mut self, vote: &Vote, seen: Epoch) -> (VoteReply, bool) {
        let records = self.votes.iter().chain(&self.witnessed).filter(|one| is_one_group(&one.base, &vote.base));
        // Release 0.1 kept these votes in `votes`. Of two records about the same base, the last one is the current one.
        let votes = records.max_by(|one, other| one.base.order(&other.base)).cloned();
        let mut group = Self { votes, witnessed: Vec::new(), forgot: self.forgot };
        let (ruling, is_new) = group.rule(vote, seen);
        let Some(votes) = group.votes.filter(|_| is_new) else { return (ruling, false) };
        let mut kept = self.witnessed.clone();
        // The record of a later topology with the same nodes and others answers for an earlier one.
        kept.retain(|one| !names(&one.base.topology).is_subset(&names(&vote.base.topology)));
        if kept.len() >= WITNESSED_MAX {
            return (VoteReply::Abstains(format!("it is the witness of {WITNESSED_MAX} other groups")), false);
        }
        kept.push(votes);
        self.witnessed = kept;
        (ruling, true)
    }
}

fn names(topology: &Topology) -> BTreeSet<&str> {
    topology.members.iter().map(|member| member.name.as_str()).collect()
}

/// Whether two topologies are of one group, so that only one of them can hold: their desired topologies have a member in
/// common. Epochs of different groups are not related.
pub fn is_one_group(one: &Committed, other: &Committed) -> bool {
    !names(one.desired()).is_disjoint(&names(other.desired()))
}

/// The answer to a vote on `base` by a voter that has seen a later topology.
pub fn superseded(later: &Committed, base: &Committed) -> VoteReply {
    if is_one_group(later, base) {
        VoteReply::Behind(Box::new(later.clone()))
    } else {
        VoteReply::Abstains(format!("it has moved to another group, which has epoch {}", later.epoch))
    }
}

/// The proposer's next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Wait for answers.
    Wait,
    /// A majority promised: propose.
    Propose,
    /// A majority accepted: this topology follows.
    Chosen(Committed),
    /// A later topology was committed.
    Behind(Committed),
    /// A voter has promised a higher ballot: start again with a later round.
    Nack(Ballot),
}

/// One proposal.
#[derive(Clone, Debug)]
pub struct Proposer {
    base: Committed,
    ballot: Ballot,
    /// Number of votes that form a majority.
    needed: usize,
    promised: BTreeSet<usize>,
    accepted: BTreeSet<usize>,
    best: Option<(Ballot, Committed)>,
    /// Highest epoch seen by any voter.
    epoch: Epoch,
    next: Option<Committed>,
}

/// Those that decide about a proposal.
#[derive(Clone, Copy, Debug)]
pub struct Electorate {
    /// Number of voters.
    pub voters: usize,
    /// Of these, voters that are away and for which an operator answers.
    pub granted: usize,
}

/// Number of voters: the members of the base, and the witness of two.
pub fn voters(members: usize, has_witness: bool) -> usize {
    members + usize::from(has_witness && members == 2)
}

/// Size of a majority of `voters`.
pub fn majority(voters: usize) -> usize {
    voters / 2 + usize::from(!is_planted(Planted::SmallMajority))
}

impl Proposer {
    /// A proposal among the voters.
    pub fn new(base: &Committed, ballot: Ballot, electorate: Electorate) -> Self {
        let needed = majority(electorate.voters).saturating_sub(electorate.granted).max(1);
        let (base, epoch) = (base.clone(), base.epoch);
        let (promised, accepted) = (BTreeSet::new(), BTreeSet::new());
        Self { base, ballot, needed, promised, accepted, best: None, epoch, next: None }
    }

    /// The next topology gets an epoch above this one, which a node that joins has seen.
    pub fn above(self, epoch: Epoch) -> Self {
        Self { epoch: self.epoch.max(epoch), ..self }
    }

    /// The proposal, once a majority has promised: the previously accepted one with the highest ballot, otherwise
    /// `wanted` with an unused epoch.
    pub fn propose(&mut self, wanted: impl FnOnce(Epoch) -> Committed) -> Committed {
        let (best, epoch) = (&self.best, self.epoch.next());
        let next = self.next.get_or_insert_with(|| match best {
            Some((_, next)) => next.clone(),
            None => wanted(epoch),
        });
        next.clone()
    }

    /// Processes a voter's answer to this proposal.
    pub fn hear(&mut self, voter: usize, ruling: VoteReply) -> Step {
        match ruling {
            VoteReply::Behind(later) if is_one_group(&later, &self.base) => Step::Behind(*later),
            VoteReply::Nack(ballot) => Step::Nack(ballot),
            // A witness of release 0.1 answers with the topology of any group.
            VoteReply::Abstains(_) | VoteReply::Behind(_) => Step::Wait,
            VoteReply::Promised { accepted, epoch } => {
                // A late promise does not change a proposal.
                if self.next.is_some() {
                    return Step::Wait;
                }
                self.epoch = self.epoch.max(epoch);
                if let Some((ballot, next)) = accepted
                    && self.best.as_ref().is_none_or(|(best, _)| ballot > *best)
                {
                    self.best = Some((ballot, next));
                }
                self.promised.insert(voter);
                if self.promised.len() >= self.needed { Step::Propose } else { Step::Wait }
            }
            VoteReply::Accepted => {
                self.accepted.insert(voter);
                match &self.next {
                    Some(next) if self.accepted.len() >= self.needed => Step::Chosen(next.clone()),
                    _ => Step::Wait,
                }
            }
        }
    }

    /// Its ballot.
    pub fn ballot(&self) -> Ballot {
        self.ballot
    }
}
