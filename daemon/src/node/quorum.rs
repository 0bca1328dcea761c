//! Which topology follows the last one when some of its members are gone: single-decree Paxos among the members of the last
//! topology (Lamport, "Paxos made simple"), one decision for each of them. A voter's word counts when it is on its disk. Pure.
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use shared::{
    ids::Epoch,
    protocol::recovery::{Ballot, Committed, Ruling, Vote},
};

use super::planted::{Planted, is_planted};

/// What a voter keeps on its disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Votes {
    /// Nothing older is accepted.
    pub promised: Ballot,
    /// The topology that is to be followed.
    pub base: Committed,
    /// What was accepted last.
    pub accepted: Option<Accepted>,
}

/// A proposal that was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accepted {
    /// Its number.
    pub ballot: Ballot,
    /// The topology that shall follow.
    pub next: Committed,
}

/// A voter.
#[derive(Clone, Debug, Default)]
pub struct Voter {
    /// What it said about the latest base.
    pub votes: Option<Votes>,
    /// What it does not know of earlier votes.
    pub forgot: Option<Forgot>,
}

/// What a voter does not know of its earlier votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forgot {
    /// Its state folder was empty: it is new, or it was wiped.
    Fresh,
    /// Its record was damaged, and it does not know about which topology it voted.
    Lost,
    /// It may have voted about this epoch and earlier ones.
    UpTo(Epoch),
}

impl Voter {
    /// It is asked as a witness, which commits no topology: a new one votes, one that was damaged abstains about what it hears of first.
    pub fn witnesses(&mut self, epoch: Epoch) {
        self.forgot = match self.forgot {
            Some(Forgot::Lost) => Some(Forgot::UpTo(epoch)),
            Some(Forgot::Fresh) => None,
            other => other,
        };
    }

    /// Rules on a vote; `seen` is the highest epoch that the node has seen. Returns whether the record has to be written before
    /// the answer goes out. The caller has checked that no later topology is known here.
    pub fn rule(&mut self, vote: &Vote, seen: Epoch) -> (Ruling, bool) {
        if let Some(own) = &self.votes
            && own.base.epoch > vote.base.epoch
        {
            return (Ruling::Behind(Box::new(own.base.clone())), false);
        }
        if let Some(forgot) = self.forgot {
            let reason = match forgot {
                Forgot::UpTo(epoch) if epoch < vote.base.epoch => None,
                Forgot::UpTo(_) => Some("its record of votes was lost; it votes again about later topologies"),
                Forgot::Fresh | Forgot::Lost => {
                    Some("its record of votes is gone; it votes again when it knows what a majority holds")
                }
            };
            if let Some(reason) = reason {
                return (Ruling::Abstains(reason.into()), false);
            }
        }
        let is_new = self.votes.as_ref().is_none_or(|own| own.base.epoch < vote.base.epoch);
        if is_new {
            self.votes = Some(Votes { promised: Ballot::default(), base: vote.base.clone(), accepted: None });
        }
        let Some(own) = self.votes.as_mut().filter(|own| own.base == vote.base) else {
            return (Ruling::Abstains(format!("it holds another topology of epoch {}", vote.base.epoch)), false);
        };
        // A ballot is promised once: a proposer that was restarted and counts from the beginning must not find its old promises.
        let is_used = vote.next.is_none() && vote.ballot == own.promised && !is_planted(Planted::BallotTwice);
        if vote.ballot < own.promised || is_used {
            return (Ruling::Outdone(own.promised), is_new);
        }
        let before = own.clone();
        own.promised = vote.ballot;
        let ruling = match &vote.next {
            None => {
                let accepted = own.accepted.clone().map(|accepted| (accepted.ballot, accepted.next));
                Ruling::Promised { accepted, epoch: seen }
            }
            Some(next) => {
                own.accepted = Some(Accepted { ballot: vote.ballot, next: next.clone() });
                Ruling::Accepted
            }
        };
        (ruling, is_new || *own != before)
    }
}

/// What a proposer does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It waits for answers.
    Wait,
    /// Enough promised: it may propose.
    Propose,
    /// Enough accepted: this follows.
    Chosen(Committed),
    /// A later topology is known.
    Behind(Committed),
    /// It is outdone: begin anew with a later round.
    Outdone(Ballot),
}

/// One proposal.
#[derive(Clone, Debug)]
pub struct Proposer {
    ballot: Ballot,
    /// How many votes decide.
    needed: usize,
    promised: BTreeSet<usize>,
    accepted: BTreeSet<usize>,
    best: Option<(Ballot, Committed)>,
    /// Highest epoch that anybody has seen.
    epoch: Epoch,
    next: Option<Committed>,
}

/// Votes that decide among so many voters.
pub fn majority(voters: usize) -> usize {
    voters / 2 + 1
}

impl Proposer {
    /// A proposal among so many voters; `granted` of them are away and an operator answers for them.
    pub fn new(base: &Committed, ballot: Ballot, (voters, granted): (usize, usize)) -> Self {
        let needed = majority(voters).saturating_sub(granted).max(1);
        let (promised, accepted) = (BTreeSet::new(), BTreeSet::new());
        Self { ballot, needed, promised, accepted, best: None, epoch: base.epoch, next: None }
    }

    /// What is proposed, once enough promised: what was accepted before, else `wanted` with an epoch that nobody has seen.
    pub fn propose(&mut self, wanted: impl FnOnce(Epoch) -> Committed) -> Committed {
        let (best, epoch) = (&self.best, self.epoch.next());
        let next = self.next.get_or_insert_with(|| match best {
            Some((_, next)) => next.clone(),
            None => wanted(epoch),
        });
        next.clone()
    }

    /// Takes in a voter's answer to this proposal.
    pub fn hear(&mut self, voter: usize, ruling: Ruling) -> Step {
        match ruling {
            Ruling::Behind(later) => Step::Behind(*later),
            Ruling::Outdone(ballot) => Step::Outdone(ballot),
            Ruling::Abstains(_) => Step::Wait,
            Ruling::Promised { accepted, epoch } => {
                // What is proposed already does not change with a late promise.
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
            Ruling::Accepted => {
                self.accepted.insert(voter);
                match &self.next {
                    Some(next) if self.accepted.len() >= self.needed => Step::Chosen(next.clone()),
                    _ => Step::Wait,
                }
            }
        }
    }

    /// Its number.
    pub fn ballot(&self) -> Ballot {
        self.ballot
    }
}
