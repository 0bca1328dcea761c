//! Invariants that hold at every event: one topology per epoch, at most one successor of each topology, promises are
//! kept, and no node starts an epoch below one that it has seen.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use common::ids::{Epoch, RequestId};
use daemon::node::{
    BoundedSize, SessionId,
    quorum::{majority, voters},
    steward::BY_ITSELF,
};
use protocol::{
    message::{Request, RequestBody, ResponseBody},
    recovery::{Ballot, Committed, RecoveryAnswer, RecoveryAsk, Vote, VoteReply},
};
use telemetry::NodeState;
use topology::{Member, Topology};

use crate::simulation::world::{World, consoles::OPERATOR, name};

type RunName = (Epoch, u64);

/// Within this time after an exclusion and after the last fault, all members know of the exclusion.
const TOLD: Duration = Duration::from_secs(8);

fn name_of(committed: &Committed) -> RunName {
    (committed.epoch, committed.topology.hash().0)
}

/// What the checks have observed so far.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Votes in progress, by session and request.
    votes: BTreeMap<(u64, RequestId), Vote>,
    /// The highest ballot that a voter promised or accepted, by voter and base.
    promised: BTreeMap<(usize, RunName), Ballot>,
    /// Voters that have lost their records.
    forgetful: BTreeSet<usize>,
    /// Voters that accepted each (base, ballot, successor).
    accepted: BTreeMap<(RunName, Ballot, RunName), BTreeSet<usize>>,
    /// The chosen successor of each base.
    chosen: BTreeMap<RunName, RunName>,
    /// Number of decided votes.
    pub(crate) decisions: u32,
    /// The epoch that each node holds.
    held: BTreeMap<usize, Epoch>,
    /// The latest epoch that a node held.
    latest: Epoch,
    /// Requests that have ended, by session and request.
    ended: BTreeSet<(u64, RequestId)>,
}

impl Told {
    /// A node starts again with a gap in its record of votes.
    pub(crate) fn lose_votes(&mut self, node: usize) {
        self.forgetful.insert(node);
    }

    /// An older record of votes was restored.
    pub(crate) fn forget_votes(&mut self, node: usize) {
        self.promised.retain(|(voter, _), _| *voter != node);
    }

    /// A daemon starts: it may have lost a record that was not yet on its disk.
    pub(crate) fn forget_epoch(&mut self, node: usize) {
        self.held.remove(&node);
    }
}

impl World {
    pub(crate) fn violate(&mut self, what: String) {
        self.story.say(self.now, "VIOLATED", || what.clone());
        self.violation.get_or_insert(what);
    }

    /// No other node may hold another topology of the same epoch, if both nodes are members of both.
    pub(crate) fn check_committed(&mut self, node: usize, committed: &Committed) {
        let (epoch, hash) = committed.name();
        let has = |held: &Committed, node: usize| held.topology.members.iter().any(|one| one.name == name(node));
        let mut others = self.machines.iter().enumerate().filter_map(|(other, machine)| {
            let held = machine.process.as_ref().map_or(machine.disk.committed(), |process| process.node.committed())?;
            // The node itself may be about to replace the topology that it holds.
            let is_replaced = other == node && committed.is_later_than(held);
            let is_other = held.epoch == epoch && held.topology.hash() != hash && !is_replaced;
            (is_other && has(held, node) && has(committed, other)).then(|| (other, held.topology.hash()))
        });
        if let Some((other, theirs)) = others.next() {
            let (one, two) = (name(node), name(other));
            self.violate(format!("two topologies have epoch {epoch}: {hash} at {one}, {theirs} at {two}"));
        }
    }

    /// Checks the topology that a node holds, after each of its events.
    pub(crate) fn check_node(&mut self, node: usize) {
        let Some(process) = &self.machines[node].process else { return };
        let unsynced = process.writes.is_empty() && process.node.exclusions() != self.machines[node].disk.exclusions();
        let full = process.node.sizes().into_iter().find(|size| size.count > size.most);
        let committed = process.node.committed().cloned();
        if unsynced {
            self.violate(format!("{} acts on a list of exclusions that is not on its disk", name(node)));
        }
        if let Some(BoundedSize { what, count, most }) = full {
            self.violate(format!("{} has {count} {what}, the bound is {most}", name(node)));
        }
        let Some(committed) = committed else { return };
        let before = self.told.held.insert(node, committed.epoch).unwrap_or_default();
        self.told.latest = self.told.latest.max(committed.epoch);
        if before > committed.epoch {
            self.violate(format!("{} goes from epoch {before} back to {}", name(node), committed.epoch));
        }
        self.check_committed(node, &committed);
    }

    /// Called when an engine starts; its epoch must not be below the one that the node holds. It may be below one that
    /// was only prepared or accepted.
    pub(crate) fn check_run(&mut self, node: usize) {
        let Some(process) = &self.machines[node].process else { return };
        let held = process.node.committed().map_or(Epoch(0), |committed| committed.epoch);
        let Some(run) = &process.run else { return };
        if run.epoch < held {
            let epoch = run.epoch;
            self.violate(format!("{} starts epoch {epoch}, but holds {held}", name(node)));
        }
    }

    /// Called when an engine receives a request; no member of its replica may be excluded.
    pub(crate) fn check_submit(&mut self, node: usize) {
        let Some(process) = &self.machines[node].process else { return };
        let Some(run) = &process.run else { return };
        let replica = run.topology.replica(run.topology.place(run.member).replica);
        let out = replica.iter().find(|member| {
            let entry = process.node.exclusions().of(&member.name, &member.address);
            // Nodes end the topology of a member that they exclude by a vote; until then it serves.
            entry.is_some_and(|entry| !entry.by.ends_with(BY_ITSELF))
        });
        if let Some(member) = out {
            let member = member.name.clone();
            return self.violate(format!("{} starts a request with {member}, which is excluded", name(node)));
        }
        // A node that was away learns it from the others.
        let missed = replica.iter().find(|member| {
            let since = self.named(&member.name).and_then(|node| self.out.get(&node));
            since.is_some_and(|since| self.now > self.rough.max(*since) + TOLD)
        });
        if let Some(member) = missed {
            let member = member.name.clone();
            self.violate(format!("{} starts a request with {member}, which an operator has excluded", name(node)));
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
        let is_end = matches!(body, ResponseBody::Finished(_) | ResponseBody::Failed(_));
        if self.told.ended.contains(&(session.0, id)) && (is_end || matches!(body, ResponseBody::Token(_))) {
            self.violate(format!("{} answers request {id} of session {} after its end", name(node), session.0));
        }
        if is_end {
            self.told.ended.insert((session.0, id));
        }
        let ResponseBody::Recovery(RecoveryAnswer::Vote(ruling)) = body else { return };
        let Some(vote) = self.told.votes.remove(&(session.0, id)) else { return };
        let base = name_of(&vote.base);
        let value = match ruling {
            VoteReply::Promised { .. } => None,
            VoteReply::Accepted => vote.next.clone(),
            _ => return,
        };
        let synced = self.machines[node].disk.votes_on(&vote.base);
        if synced.is_none_or(|votes| votes.promised < vote.ballot) {
            self.violate(format!("{} sent a promise that is not on its disk", name(node)));
        }
        let voters = voters(vote.base.topology.members.len(), vote.witness.is_some());
        let ballot = vote.ballot;
        let before = *self.told.promised.entry((node, base)).or_insert(ballot);
        self.told.promised.insert((node, base), before.max(ballot));
        // Any two majorities of an even number of voters have two voters in common: one of them may forget.
        let may_forget = self.told.forgetful.contains(&node) && (voters == 1 || voters.is_multiple_of(2));
        if before > ballot && !may_forget {
            self.violate(format!("{} promised ballot {before:?} and now takes part in {ballot:?}", name(node)));
        }
        let Some(next) = value else { return };
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
        let mut held = self.machines.iter().filter_map(|machine| machine.process.as_ref()?.node.committed());
        let is_held = held.any(|held| name_of(held) == first);
        if first != name_of(&next) && voters == 1 && self.told.forgetful.contains(&node) && !is_held {
            // The only voter lost a decision that no node had learned.
            self.told.chosen.insert(base, name_of(&next));
        } else if first != name_of(&next) {
            let (one, two) = (first, name_of(&next));
            self.violate(format!("two topologies follow epoch {}: {one:?} and {two:?}", base.0));
        }
    }

    /// Members of the latest topology that do not serve it, each with its state. If an operator and a vote have chosen
    /// the same epoch on different members, one of the two topologies serves.
    pub(crate) fn away(&self) -> Vec<String> {
        let held = || self.machines.iter().filter_map(|machine| machine.process.as_ref()?.node.committed());
        let latest = held().map(|committed| committed.epoch).max();
        let all = held().filter(|committed| Some(committed.epoch) == latest).map(|committed| self.away_of(committed));
        all.min_by_key(Vec::len).unwrap_or_default()
    }

    fn away_of(&self, latest: &Committed) -> Vec<String> {
        let mut away = Vec::new();
        for member in &latest.topology.members {
            let node = self.named(&member.name).and_then(|node| self.machines[node].process.as_ref());
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

    /// Whether a member of the desired topology cannot find the others, nor they find it: it has another address than
    /// their topologies say, and so have they in its topology, or it holds none. Only an operator knows both addresses.
    pub(crate) fn is_out_of_sight(&self) -> bool {
        let lists = |holder: usize, other: usize| {
            let held = self.machines[holder].process.as_ref().and_then(|process| process.node.committed());
            let mut all = held.into_iter().flat_map(|one| one.topology.members.iter().chain(&one.desired().members));
            all.any(|one| one.name == name(other) && one.address == self.address(other))
        };
        (0..self.desired.members.len()).any(|node| {
            (0..self.machines.len())
                .filter(|other| *other != node)
                .all(|other| !lists(other, node) && !lists(node, other))
        })
    }

    /// Whether a member of a desired topology serves another one, without the members that serve a reduced form: a console
    /// gave it that one while the others voted. Only an operator knows which one is meant.
    pub(crate) fn is_divided(&self) -> bool {
        let held = || self.machines.iter().filter_map(|machine| machine.process.as_ref()?.node.committed());
        let serves = |topology: &Topology, wanted: &Member| topology.members.iter().any(|one| one.name == wanted.name);
        held().filter(|reduced| reduced.desired.is_some()).any(|reduced| {
            let own = &reduced.topology;
            let mut others = held().filter(|other| !other.desired().is_alike(reduced.desired()));
            others.any(|other| {
                let mut absent = reduced.desired().members.iter().filter(|member| !serves(own, member));
                let is_apart = own.members.iter().all(|staying| !serves(&other.topology, staying));
                is_apart && absent.any(|member| serves(&other.topology, member))
            })
        })
    }

    /// Whether no node holds the latest topology any longer: all its members have lost their records.
    pub(crate) fn is_forgotten(&self) -> bool {
        let held = self.machines.iter().filter_map(|machine| machine.process.as_ref()?.node.committed());
        held.map(|held| held.epoch).max() < Some(self.told.latest)
    }

    /// Whether the latest topology is the one that an operator asked for, or a node is excluded.
    pub(crate) fn is_desired(&self) -> bool {
        let nodes = || self.machines.iter().filter_map(|machine| Some(&machine.process.as_ref()?.node));
        let latest = nodes().filter_map(|node| node.committed()).max_by_key(|committed| committed.epoch);
        let is_excluded = nodes().any(|node| node.exclusions().out().any(|entry| entry.by == OPERATOR));
        is_excluded || latest.is_none_or(|latest| latest.desired.is_none())
    }

    /// Requests that have not ended.
    pub(crate) fn open_requests(&self) -> usize {
        self.asked.iter().filter(|asked| asked.ended.is_none()).count()
    }
}
