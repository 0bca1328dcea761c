//! Invariants that hold at every event: one topology per epoch, at most one successor of each topology, promises are
//! kept, and no node starts an epoch below one that it has seen.
use std::collections::{BTreeMap, BTreeSet};

use common::ids::{Epoch, RequestId, TopologyHash};
use daemon::node::{SessionId, quorum::majority};
use protocol::{
    message::{Request, RequestBody, ResponseBody},
    recovery::{Ballot, Committed, RecoveryAnswer, RecoveryAsk, Vote, VoteReply},
};
use telemetry::NodeState;

use crate::simulation::world::{World, name};

type RunName = (Epoch, u64);

fn name_of(committed: &Committed) -> RunName {
    (committed.epoch, committed.topology.hash().0)
}

/// What the checks have observed so far.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Topologies by epoch.
    epochs: BTreeMap<Epoch, TopologyHash>,
    /// Votes in progress, by session and request.
    votes: BTreeMap<(u64, RequestId), Vote>,
    /// The highest ballot that a voter promised or accepted, by voter and base.
    promised: BTreeMap<(usize, RunName), Ballot>,
    /// Voters that accepted each (base, ballot, successor).
    accepted: BTreeMap<(RunName, Ballot, RunName), BTreeSet<usize>>,
    /// The chosen successor of each base.
    chosen: BTreeMap<RunName, RunName>,
    /// Number of decided votes.
    pub(crate) decisions: u32,
}

impl Told {
    pub(crate) fn begin(&mut self, committed: &Committed) {
        self.epochs.insert(committed.epoch, committed.topology.hash());
    }
}

impl World {
    pub(crate) fn violate(&mut self, what: String) {
        self.story.say(self.now, "VIOLATED", || what.clone());
        self.violation.get_or_insert(what);
    }

    /// Records a committed topology; no other topology may have its epoch.
    pub(crate) fn check_committed(&mut self, node: usize, committed: &Committed) {
        let (epoch, hash) = committed.name();
        let first = *self.told.epochs.entry(epoch).or_insert(hash);
        if first != hash {
            self.violate(format!("two topologies have epoch {epoch}: {first} and, at {}, {hash}", name(node)));
        }
    }

    /// Checks the topology that a node holds, after each of its events.
    pub(crate) fn check_node(&mut self, node: usize) {
        let Some(process) = &self.machines[node].process else { return };
        if let Some(committed) = process.node.committed().cloned() {
            self.check_committed(node, &committed);
        }
    }

    /// Called when an engine starts; its epoch must not be below one that the node has seen.
    pub(crate) fn check_run(&mut self, node: usize) {
        let Some(process) = &self.machines[node].process else { return };
        let (Some(run), seen) = (&process.run, process.node.epoch()) else { return };
        if run.epoch < seen {
            let epoch = run.epoch;
            self.violate(format!("{} starts epoch {epoch}, but has seen {seen}", name(node)));
        }
    }

    /// Called when an engine receives a request; no member of its replica may be excluded.
    pub(crate) fn check_submit(&mut self, node: usize) {
        let Some(process) = &self.machines[node].process else { return };
        let Some(run) = &process.run else { return };
        let replica = run.topology.replica(run.topology.place(run.member).replica);
        let out = replica.iter().find(|member| process.node.exclusions().of(&member.name, &member.address).is_some());
        if let Some(member) = out {
            let member = member.name.clone();
            self.violate(format!("{} starts a request with {member}, which is excluded", name(node)));
        }
    }

    /// Called when an engine computes a token; its topology must be the latest that this head has committed.
    pub(crate) fn check_step(&mut self, node: usize) {
        let Some(process) = &self.machines[node].process else { return };
        let Some(run) = &process.run else { return };
        let held = process.node.committed().map(Committed::name);
        // Until the new assignment is on disk, the previous engine continues.
        let is_right = if process.node.state() == NodeState::Connecting {
            run.epoch < process.node.epoch()
        } else {
            process.node.computes() == Some(run.epoch)
        };
        if !is_right {
            let epoch = run.epoch;
            self.violate(format!("{} computes for epoch {epoch}, but holds {held:?}", name(node)));
        }
    }

    pub(crate) fn note_vote(&mut self, session: u64, request: &Request) {
        if let RequestBody::Recovery(ask) = &request.body
            && let RecoveryAsk::Vote(vote) = &**ask
        {
            self.told.votes.insert((session, request.id), (**vote).clone());
        }
    }

    /// Called when a node answers: a promise must be on its disk and must not break an earlier one.
    pub(crate) fn check_response(&mut self, node: usize, session: SessionId, id: RequestId, body: &ResponseBody) {
        let ResponseBody::Recovery(RecoveryAnswer::Vote(ruling)) = body else { return };
        let Some(vote) = self.told.votes.remove(&(session.0, id)) else { return };
        let base = name_of(&vote.base);
        let value = match ruling {
            VoteReply::Promised { .. } => None,
            VoteReply::Accepted => vote.next.clone(),
            _ => return,
        };
        let synced = self.machines[node].disk.votes().filter(|votes| votes.base == vote.base);
        if synced.is_none_or(|votes| votes.promised < vote.ballot) {
            self.violate(format!("{} sent a promise that is not on its disk", name(node)));
        }
        let ballot = vote.ballot;
        let before = *self.told.promised.entry((node, base)).or_insert(ballot);
        self.told.promised.insert((node, base), before.max(ballot));
        if before > ballot {
            self.violate(format!("{} promised ballot {before:?} and now takes part in {ballot:?}", name(node)));
        }
        let Some(next) = value else { return };
        let voters = vote.base.topology.members.len()
            + usize::from(vote.witness.is_some() && vote.base.topology.members.len() == 2);
        let by = self.told.accepted.entry((base, ballot, name_of(&next))).or_default();
        by.insert(node);
        let is_chosen = by.len() >= majority(voters);
        self.story.say(self.now, &name(node), || {
            let members: Vec<&str> = next.topology.members.iter().map(|member| member.name.as_str()).collect();
            let (round, proposer) = (ballot.round, &vote.base.topology.members[usize::from(ballot.member)].name);
            format!("accepts {} as epoch {} (ballot {round} of {proposer})", members.join("+"), next.epoch)
        });
        if !is_chosen {
            return;
        }
        let count = self.told.chosen.len();
        let first = *self.told.chosen.entry(base).or_insert_with(|| name_of(&next));
        self.told.decisions += u32::from(self.told.chosen.len() > count);
        if first != name_of(&next) {
            let (one, two) = (first, name_of(&next));
            self.violate(format!("two topologies follow epoch {}: {one:?} and {two:?}", base.0));
        }
    }

    /// Members of the latest topology that do not serve it, each with its state.
    pub(crate) fn away(&self) -> Vec<String> {
        let held = self.machines.iter().filter_map(|machine| machine.process.as_ref()?.node.committed());
        let Some(latest) = held.max_by_key(|committed| committed.epoch) else { return Vec::new() };
        let mut away = Vec::new();
        for member in &latest.topology.members {
            let node = self.index_of(&member.address).and_then(|node| self.machines[node].process.as_ref());
            let Some(process) = node else {
                away.push(format!("{} is down", member.name));
                continue;
            };
            let run = process.node.topology().map(|(topology, ..)| topology.hash());
            let state = process.node.state();
            let serves = matches!(state, NodeState::Ready | NodeState::Serving) && run == Some(latest.topology.hash());
            if !serves {
                let says = process.steward.said();
                away.push(format!("{} is {} ({says})", member.name, state.name()));
            }
        }
        away
    }

    /// Requests that have not ended.
    pub(crate) fn open_requests(&self) -> usize {
        self.asked.iter().filter(|asked| asked.ended.is_none()).count()
    }
}
