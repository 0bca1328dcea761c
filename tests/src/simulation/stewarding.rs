//! Sends a steward's questions and returns the answers to it: sessions with deadlines, and unreachable peers.
use std::{collections::BTreeMap, time::Duration};

use common::{
    fault::{Fault, FaultKind},
    ids::RequestId,
};
use daemon::node::steward::{
    Question, Reply, StewardAsk,
    rolling::{RollingStep, candidates},
};
use planner::replan::replan;
use protocol::{
    message::{Request, RequestBody, ResponseBody},
    recovery::{RecoveryAsk, Standing},
};

use super::{
    network::{End, Packet},
    world::{Own, World, name},
};

/// Deadline to connect to a node.
const DIAL: Duration = Duration::from_millis(1500);
/// Duration of a planner run, which reads the model's file.
const PLAN: Duration = Duration::from_millis(20);
/// A question that no steward asks.
const IGNORED: Question = Question(u64::MAX);

impl World {
    /// Runs the steward's check with the standing of its own node; `leaves` is a member that is about to restart.
    pub(super) fn look(&mut self, node: usize, own: Standing, leaves: Option<String>) {
        let now = self.since(node);
        let Some(process) = &mut self.machines[node].process else { return };
        let asks = match leaves {
            Some(name) => process.steward.leave(now, own, &name),
            None => process.steward.look(now, own),
        };
        self.ask(node, asks);
    }

    /// Takes the next step of a rolling restart; returns a member that is about to restart. The standings of the others
    /// are read without delay.
    pub(super) fn look_at_restart(&mut self, node: usize, own: &Standing) -> Option<String> {
        let mut answers = BTreeMap::new();
        for (_, address) in candidates(own).unwrap_or_default() {
            let there = self.index_of(&address).filter(|to| !self.is_unreachable(node, *to));
            if let Some(to) = there.filter(|to| self.machines[*to].process.is_some()) {
                answers.insert(address, self.standing(to));
            }
        }
        let now = self.since(node);
        let step = self.machines[node].process.as_mut()?.restarting.look(own, &answers, now);
        let address = self.address(node);
        match step {
            RollingStep::Rest => {}
            RollingStep::Leave(name) => return Some(name),
            RollingStep::Learn(later) => self.order(node, &address, RecoveryAsk::Rolling(later)),
            RollingStep::Restart { address, drain_ms } => self.order(node, &address, RecoveryAsk::Restart { drain_ms }),
            RollingStep::Spread(next) => {
                self.story.say(self.now, &name(node), || format!("rolling restart: {:?} {}", next.phase, next.done));
                for address in answers.into_keys() {
                    self.order(node, &address, RecoveryAsk::Rolling(next.clone()));
                }
            }
        }
        None
    }

    /// Asks a node for something whose answer does not matter.
    fn order(&mut self, node: usize, address: &str, ask: RecoveryAsk) {
        let body = RequestBody::Recovery(Box::new(ask));
        self.ask_node(node, IGNORED, address, body, Duration::from_secs(3));
    }

    /// Passes an answer to the steward.
    pub(super) fn hear(&mut self, node: usize, question: Question, reply: Reply) {
        let now = self.since(node);
        let Some(process) = &mut self.machines[node].process else { return };
        if !process.steward.is_busy() {
            return;
        }
        let before = process.steward.said().to_owned();
        let asks = process.steward.hear(now, question, reply);
        let after = process.steward.said().to_owned();
        if before != after && !after.is_empty() {
            self.story.say(self.now, &name(node), || format!("steward: {after}"));
        }
        self.ask(node, asks);
    }

    fn ask(&mut self, node: usize, asks: Vec<StewardAsk>) {
        for ask in asks {
            match ask {
                StewardAsk::Node { question, address, body, within } => {
                    self.ask_node(node, question, &address, body, within)
                }
                StewardAsk::Content { question, address, .. } => {
                    let result = self.content_at(node, &address);
                    self.own_later(node, PLAN, Own::SameContent(question, result));
                }
                StewardAsk::Plan { question, desired, stay } => {
                    let planned = replan(&desired, &stay, &self.sizes);
                    let planned = planned.map_err(|reason| FaultKind::TopologyInvalid { reason });
                    self.own_later(node, PLAN, Own::Planned(question, Box::new(planned)));
                }
            }
        }
        let Some(process) = &mut self.machines[node].process else { return };
        if !process.steward.is_busy() {
            process.asked.clear();
            let wait = process.steward.wait();
            self.own_later(node, wait, Own::Look);
        }
    }

    /// Whether the node at an address holds the weights of the topology.
    fn content_at(&self, from: usize, address: &str) -> Result<(), Fault> {
        let fails =
            |reason: &str| Fault::new(address, FaultKind::ModelInvalid { model: "".into(), reason: reason.into() });
        match self.index_of(address) {
            Some(to) if from != to && self.is_unreachable(from, to) => Err(fails("it does not answer")),
            Some(to) if self.machines[to].process.is_none() => Err(fails("it does not answer")),
            Some(to) if self.machines[to].has_other_file => Err(fails("it has other weights")),
            Some(_) => Ok(()),
            None => Err(fails("it does not answer")),
        }
    }

    fn ask_node(&mut self, node: usize, question: Question, address: &str, body: RequestBody, within: Duration) {
        if let RequestBody::Recovery(ask) = &body
            && let RecoveryAsk::Learn(next) = &**ask
        {
            self.check_committed(node, next);
        }
        let Some(to) = self.index_of(address) else {
            return self.own_later(node, DIAL, Own::Unreachable(question));
        };
        let known = self.machines[node].process.as_ref().and_then(|process| process.sessions.get(&to).copied());
        let known =
            known.filter(|number| self.network.connections.get(number).is_some_and(|connection| connection.is_open[0]));
        let number = match known {
            Some(number) => number,
            None => {
                let Some(number) = self.dial(node, to) else {
                    let is_refused = !self.is_unreachable(node, to);
                    let delay = if is_refused { Duration::from_millis(1) } else { DIAL };
                    return self.own_later(node, delay, Own::Unreachable(question));
                };
                number
            }
        };
        let Some(process) = &mut self.machines[node].process else { return };
        process.sessions.insert(to, number);
        process.requests += 1;
        let id = RequestId(process.requests);
        process.asked.insert((number, id), question);
        self.send(number, 0, Packet::Request(Box::new(Request { id, body })));
        self.own_later(node, within, Own::Overdue(number, id));
    }

    /// Whether a dial gets no answer at all.
    pub(super) fn is_unreachable(&self, from: usize, to: usize) -> bool {
        let machine = &self.machines[to];
        from != to
            && (!machine.has_power
                || self.network.is_cut(from, to)
                || self.network.is_cut(to, from)
                || machine.process.as_ref().is_some_and(|process| process.is_stopped))
    }

    /// Opens a connection if a daemon answers.
    pub(super) fn dial(&mut self, from: usize, to: usize) -> Option<u64> {
        if self.is_unreachable(from, to) {
            return None;
        }
        let own = End { node: from, life: self.life(from)? };
        let other = End { node: to, life: self.life(to)? };
        Some(self.network.open(own, other))
    }

    /// Called at the deadline of a question.
    pub(super) fn overdue(&mut self, node: usize, number: u64, id: RequestId) {
        let Some(process) = &mut self.machines[node].process else { return };
        let Some(question) = process.asked.remove(&(number, id)) else { return };
        let kind = FaultKind::Timeout { what: "an answer".into(), seconds: 3 };
        self.hear(node, question, Reply::Node(Err(Fault::new("peer", kind))));
    }

    /// Called when a dial has failed.
    pub(super) fn unreachable(&mut self, node: usize, question: Question) {
        let kind = FaultKind::Unreachable { address: "peer".into(), reason: "no answer".into() };
        self.hear(node, question, Reply::Node(Err(Fault::new("peer", kind))));
    }

    /// Passes a response to the steward.
    pub(super) fn answered(&mut self, node: usize, number: u64, id: RequestId, body: ResponseBody) {
        let Some(process) = &mut self.machines[node].process else { return };
        if matches!(body, ResponseBody::Loading(_)) {
            return;
        }
        let Some(question) = process.asked.remove(&(number, id)) else { return };
        let reply = match body {
            ResponseBody::Failed(fault) => Err(fault),
            body => Ok(body),
        };
        self.hear(node, question, Reply::Node(reply));
    }

    /// Fails the open questions of a steward's session that is gone.
    pub(super) fn session_lost(&mut self, node: usize, number: u64) {
        let Some(process) = &mut self.machines[node].process else { return };
        process.sessions.retain(|_, session| *session != number);
        let open: Vec<(u64, RequestId)> = process.asked.keys().copied().filter(|(of, _)| *of == number).collect();
        for key in open {
            let Some(process) = &mut self.machines[node].process else { return };
            let Some(question) = process.asked.remove(&key) else { continue };
            let kind = FaultKind::SessionLost { reason: "closed by the node".into() };
            self.hear(node, question, Reply::Node(Err(Fault::new("peer", kind))));
        }
    }
}
