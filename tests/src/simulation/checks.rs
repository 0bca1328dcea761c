//! What must hold at every event: one topology an epoch, one successor of each, promises that are kept, no epoch below one seen.
use std::collections::{BTreeMap, BTreeSet};

use daemon::node::{SessionId, quorum::majority};
use shared::{
    ids::{Epoch, RequestId, TopologyHash},
    protocol::{
        message::{Request, RequestBody, ResponseBody},
        recovery::{Ballot, Committed, RecoveryAnswer, RecoveryAsk, Ruling, Vote},
    },
    telemetry::NodeState,
};

use super::world::{World, name};

/// Epoch and hash.
type Name = (Epoch, u64);

fn name_of(committed: &Committed) -> Name {
    (committed.epoch, committed.topology.hash().0)
}

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Topologies by epoch.
    epochs: BTreeMap<Epoch, TopologyHash>,
    /// Votes under way, by session and request.
    votes: BTreeMap<(u64, RequestId), Vote>,
    /// The highest ballot that a voter promised or accepted, by base.
    promised: BTreeMap<(usize, Name), Ballot>,
    /// Who accepted what.
    accepted: BTreeMap<(Name, Ballot, Name), BTreeSet<usize>>,
    /// What was chosen to follow each base.
    chosen: BTreeMap<Name, Name>,
    /// Votes that were decided.
    pub(super) decisions: u32,
}

impl Told {
    pub(super) fn begin(&mut self, committed: &Committed) {
        self.epochs.insert(committed.epoch, committed.topology.hash());
    }
}

impl World {
    pub(super) fn violate(&mut self, what: String) {
        self.story.say(self.now, "VIOLATED", || what.clone());
        self.violation.get_or_insert(what);
    }

    /// A topology counts as committed somewhere: no other may have its epoch.
    pub(super) fn check_committed(&mut self, node: usize, committed: &Committed) {
        let (epoch, hash) = committed.name();
        let first = *self.told.epochs.entry(epoch).or_insert(hash);
        if first != hash {
            self.violate(format!("two topologies have epoch {epoch}: {first} and, at {}, {hash}", name(node)));
        }
    }

    /// What a node holds, after each of its events.
    pub(super) fn check_node(&mut self, node: usize) {
        let Some(process) = &self.machines[node].process else { return };
        if let Some(committed) = process.node.committed().cloned() {
            self.check_committed(node, &committed);
        }
    }

    /// An engine starts.
    pub(super) fn check_run(&mut self, node: usize) {
        let Some(process) = &self.machines[node].process else { return };
        let (Some(run), seen) = (&process.run, process.node.epoch()) else { return };
        if run.epoch < seen {
            let epoch = run.epoch;
            self.violate(format!("{} starts epoch {epoch}, but has seen {seen}", name(node)));
        }
    }

    /// A request is given to the engine.
    pub(super) fn check_submit(&mut self, node: usize) {
        let Some(process) = &self.machines[node].process else { return };
        let Some(run) = &process.run else { return };
        let replica = run.topology.replica(run.topology.place(run.member).replica);
        let out = replica.iter().find(|member| process.node.exclusions().of(&member.name, &member.address).is_some());
        if let Some(member) = out {
            let member = member.name.clone();
            self.violate(format!("{} begins a request with {member}, which is out", name(node)));
        }
    }

    /// An engine computes a token: its topology must be the latest that this head has committed.
    pub(super) fn check_step(&mut self, node: usize) {
        let Some(process) = &self.machines[node].process else { return };
        let Some(run) = &process.run else { return };
        let held = process.node.committed().map(Committed::name);
        // The new assignment is still being written to disk: until it is, the previous engine continues.
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

    pub(super) fn note_vote(&mut self, session: u64, request: &Request) {
        if let RequestBody::Recovery(ask) = &request.body
            && let RecoveryAsk::Vote(vote) = &**ask
        {
            self.told.votes.insert((session, request.id), (**vote).clone());
        }
    }

    /// A node answers: a promise must be on its disk, and must not break an earlier one.
    pub(super) fn check_response(&mut self, node: usize, session: SessionId, id: RequestId, body: &ResponseBody) {
        let ResponseBody::Recovery(RecoveryAnswer::Ruling(ruling)) = body else { return };
        let Some(vote) = self.told.votes.remove(&(session.0, id)) else { return };
        let base = name_of(&vote.base);
        let value = match ruling {
            Ruling::Promised { .. } => None,
            Ruling::Accepted => vote.next.clone(),
            _ => return,
        };
        let synced = self.machines[node].disk.votes().filter(|votes| votes.base == vote.base);
        if synced.is_none_or(|votes| votes.promised < vote.ballot) {
            self.violate(format!("{} told a promise that is not on its disk", name(node)));
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

    /// The latest topology, and who of its members does not serve it.
    pub(super) fn away(&self) -> Vec<String> {
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
    pub(super) fn open_requests(&self) -> usize {
        self.asked.iter().filter(|asked| asked.ended.is_none()).count()
    }
}
