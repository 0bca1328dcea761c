//! Links between ranks, heartbeats on them, and the steps of the engines.
use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use common::{
    changes::TemplateChanges,
    chat::AnswerForm,
    chat::FinishReason,
    fault::{Fault, FaultKind, Loss},
    ids::{Epoch, MemberIndex, TopologyHash},
    latency::RequestTimes,
    units::{Bytes, Nanoseconds},
};
use daemon::node::{event::Event as NodeEvent, pulse::Peer};
use daemon::text::AnswerEvent;
use engine::{RequestKey, port::ReplicaEvent};
use protocol::message::{Beat, Finished, Generate, TokenEvent};

use crate::simulation::{
    compute::{Begun, HeadEngine, Sampled},
    network::{End, Packet},
    process::{EngineRun, Input, Linked, Opening, Pair},
    world::{LIVENESS, Machine, Own, World, name},
};

/// Deadline for all links of an assignment, as in the daemon.
const LINKS: Duration = Duration::from_secs(10);
/// A dial without an answer fails after this.
const DIAL: Duration = Duration::from_secs(5);
/// Interval at which a step that cannot be computed is tried again.
const STEP: Duration = Duration::from_millis(30);
/// How much longer a slow rank computes.
const SLOW: u32 = 8;

impl World {
    pub(crate) fn run_of(&mut self, node: usize) -> Option<&mut EngineRun> {
        self.machines.get_mut(node)?.process.as_mut()?.run.as_mut()
    }

    fn opening_of(&mut self, node: usize) -> Option<&mut Opening> {
        self.machines[node].process.as_mut()?.opening.as_mut()
    }

    pub(crate) fn loaded(&mut self, node: usize, attempt: u64) {
        let Machine { has_other_file, is_unreadable, .. } = self.machines[node];
        if let Some(opening) = self.opening_of(node).filter(|opening| opening.attempt == attempt) {
            opening.has_other_weights = has_other_file;
            let epoch = opening.epoch;
            let unreadable = FaultKind::ModelInvalid { model: "".into(), reason: "read error".into() };
            let result = if is_unreadable { Err(Fault::new(name(node), unreadable)) } else { Ok(Bytes(1)) };
            self.input(node, Input::Event(NodeEvent::Loaded(epoch, result)));
        }
    }

    /// The members to which a member has links, each with whether there is a control link as well.
    fn linked(opening: &Opening) -> Vec<(MemberIndex, bool)> {
        let (topology, own) = (&opening.topology, opening.member);
        let place = topology.place(own);
        let all = (0..topology.members.len() as u16).map(MemberIndex).filter(|member| *member != own);
        all.filter_map(|member| {
            let other = topology.place(member);
            let is_across = topology.layout.are_across(own, member) && place.is_head() && other.is_head();
            (other.replica == place.replica).then_some((member, true)).or(is_across.then_some((member, false)))
        })
        .collect()
    }

    pub(crate) fn connect(&mut self, node: usize, epoch: Epoch) {
        let Some(opening) = self.opening_of(node).filter(|opening| opening.epoch == epoch) else { return };
        let attempt = opening.attempt;
        let mut dials = VecDeque::new();
        for (member, has_control) in Self::linked(opening) {
            if member > opening.member {
                dials.push_back((member, true));
                if has_control {
                    dials.push_back((member, false));
                }
            }
        }
        opening.dials = Some(dials);
        self.own_later(node, LINKS, Own::LinksOverdue(attempt));
        self.next_dial(node);
    }

    fn links_failed(&mut self, node: usize, reason: &str) {
        let Some(process) = &mut self.machines[node].process else { return };
        let Some(opening) = process.opening.take() else { return };
        let fault = Fault::new(name(node), FaultKind::LinksFailed { reason: reason.into() });
        self.close_opening(node, &opening);
        self.input(node, Input::Event(NodeEvent::Connected(opening.epoch, Err(fault))));
    }

    pub(crate) fn links_overdue(&mut self, node: usize, attempt: u64) {
        if self.opening_of(node).is_some_and(|opening| opening.attempt == attempt && opening.dials.is_some()) {
            self.story.say(self.now, &name(node), || "not all links were open within 15 s".into());
            self.links_failed(node, "no link within 15 s");
        }
    }

    pub(crate) fn dial_failed(&mut self, node: usize, attempt: u64) {
        if self.opening_of(node).is_some_and(|opening| opening.attempt == attempt) {
            self.links_failed(node, "cannot be reached");
        }
    }

    fn next_dial(&mut self, node: usize) {
        let Some(opening) = self.opening_of(node) else { return };
        let Some(dials) = &mut opening.dials else { return };
        let attempt = opening.attempt;
        if let Some((member, is_data)) = dials.pop_front() {
            let (epoch, hash, from) = (opening.epoch, opening.hash, opening.member);
            let address = opening.topology.members[member.index()].address.clone();
            let Some(to) = self.index_of(&address) else { return };
            let Some(number) = self.dial(node, to) else {
                let delay = if self.is_unreachable(node, to) { DIAL } else { Duration::from_millis(1) };
                return self.own_later(node, delay, Own::DialFailed(attempt));
            };
            if let Some(opening) = self.opening_of(node) {
                opening.dialling = Some(number);
                let pair = opening.links.entry(member).or_default();
                *(if is_data { &mut pair.data } else { &mut pair.control }) = Some(number);
            }
            self.own_later(node, DIAL, Own::DialOverdue(attempt, number));
            return self.send(number, 0, Packet::Dial { epoch, hash, from, is_data });
        }
        self.check_links(node);
    }

    /// Fails the links if a dial is still unanswered.
    pub(crate) fn dial_overdue(&mut self, node: usize, attempt: u64, number: u64) {
        if self.opening_of(node).is_some_and(|opening| opening.attempt == attempt && opening.dialling == Some(number)) {
            self.links_failed(node, "the handshake got no answer");
        }
    }

    /// Handles a dial from another rank.
    pub(crate) fn dialled(&mut self, node: usize, number: u64, packet: &Packet) {
        let Packet::Dial { epoch, hash, from, is_data } = packet else { return };
        let expects =
            self.machines[node].process.as_ref().is_some_and(|process| process.node.expects_links(*epoch, *hash));
        let opening =
            self.opening_of(node).filter(|opening| expects && (opening.epoch, opening.hash) == (*epoch, *hash));
        let Some(opening) = opening else {
            self.send(number, 1, Packet::Welcome(false));
            return self.send(number, 1, Packet::Closed);
        };
        let pair = opening.links.entry(*from).or_default();
        *(if *is_data { &mut pair.data } else { &mut pair.control }) = Some(number);
        self.send(number, 1, Packet::Welcome(true));
        self.check_links(node);
    }

    pub(crate) fn welcomed(&mut self, node: usize, number: u64, is_welcome: bool) {
        let Some(opening) = self.opening_of(node).filter(|opening| opening.dialling == Some(number)) else { return };
        opening.dialling = None;
        if is_welcome { self.next_dial(node) } else { self.links_failed(node, "the link was refused") }
    }

    /// Starts the engine once all links are open.
    fn check_links(&mut self, node: usize) {
        let Some(opening) = self.opening_of(node) else { return };
        let is_idle = opening.dialling.is_none() && opening.dials.as_ref().is_some_and(VecDeque::is_empty);
        let has_all = Self::linked(opening).iter().all(|(member, has_control)| {
            opening
                .links
                .get(member)
                .is_some_and(|pair| pair.data.is_some() && (pair.control.is_some() || !has_control))
        });
        if !is_idle || !has_all {
            return;
        }
        self.runs += 1;
        let (number, since) = (self.runs, self.clock(node));
        let Some(process) = &mut self.machines[node].process else { return };
        let Some(opening) = process.opening.take() else { return };
        let Opening { attempt, epoch, hash, topology, member, links, has_other_weights, .. } = opening;
        let replica = topology.place(member).replica;
        let mut run = EngineRun {
            attempt,
            number,
            epoch,
            hash,
            topology,
            member,
            since,
            ranks: Default::default(),
            across: Default::default(),
            failed: None,
            draining: false,
            is_aborted: false,
            progress: 0,
            engine: None,
            steps: false,
            has_other_weights,
        };
        for (other, pair) in links {
            let place = run.topology.place(other);
            if place.replica == replica {
                let linked = Linked { member: other, pair, peer: Peer::new(Duration::ZERO), is_lost: false };
                run.ranks.insert(place.rank, linked);
            } else if let Some(data) = pair.data {
                run.across.insert(place.replica, data);
            }
        }
        process.run = Some(run);
        self.own_later(node, Duration::ZERO, Own::Beats(attempt));
        self.check_run(node);
        self.input(node, Input::Event(NodeEvent::Connected(epoch, Ok(()))));
    }

    pub(crate) fn close_opening(&mut self, node: usize, opening: &Opening) {
        let numbers: Vec<u64> =
            opening.links.values().flat_map(|Pair { data, control }| data.iter().chain(control)).copied().collect();
        numbers.into_iter().for_each(|number| self.close(node, number));
    }

    pub(crate) fn close(&mut self, node: usize, number: u64) {
        if let Some(end) = self.network.end_of(number, node) {
            self.send(number, end, Packet::Closed);
        }
    }

    pub(crate) fn abort(&mut self, node: usize, epoch: Epoch) {
        let Some(run) = self.run_of(node).filter(|run| run.epoch == epoch) else { return };
        run.is_aborted = true;
        run.engine = None;
        // Close the links to other groups, for which this replica is no longer of use.
        let across: Vec<u64> = run.across.values().copied().collect();
        across.into_iter().for_each(|number| self.close(node, number));
    }

    pub(crate) fn stop_run(&mut self, node: usize, epoch: Epoch) {
        let Some(process) = &mut self.machines[node].process else { return };
        let Some(run) = process.run.take_if(|run| run.epoch == epoch) else { return };
        let links = run.ranks.values().flat_map(|linked| [linked.pair.data, linked.pair.control]).flatten();
        let numbers: Vec<u64> = links.chain(run.across.values().copied()).collect();
        numbers.into_iter().for_each(|number| self.close(node, number));
    }

    /// Runs every heartbeat interval: detects lost peers and sends this rank's heartbeats.
    pub(crate) fn beats(&mut self, node: usize, attempt: u64) {
        let now = self.clock(node);
        let Some(run) = self.run_of(node).filter(|run| run.attempt == attempt) else { return };
        let (epoch, since) = (run.epoch, now - run.since);
        let beat = Beat {
            progress: run.progress,
            busy: run.engine.as_ref().is_some_and(HeadEngine::has_work),
            waiting: true,
            draining: run.draining,
            leaving: false,
            failed: run.failed,
            sent: Nanoseconds(0),
            echo: None,
        };
        let mut lost = Vec::new();
        let mut told = Vec::new();
        for (rank, linked) in run.ranks.iter_mut().filter(|(_, linked)| !linked.is_lost) {
            told.extend(linked.pair.control);
            if let Some(how) = linked.peer.lost(&LIVENESS, since) {
                linked.is_lost = true;
                lost.push((*rank, how));
            }
        }
        for number in told {
            if let Some(end) = self.network.end_of(number, node) {
                if self.network.connections.get(&number).is_some_and(|connection| !connection.is_open[end]) {
                    self.link_lost(node, number, Loss::Reset);
                }
                self.send(number, end, Packet::Beat(beat));
            }
        }
        for (rank, how) in lost {
            self.input(node, Input::Run(attempt, NodeEvent::PeerLost(epoch, rank, how)));
        }
        self.own_later(node, LIVENESS.heartbeat, Own::Beats(attempt));
    }

    /// Handles a heartbeat.
    pub(crate) fn heard(&mut self, node: usize, number: u64, beat: &Beat) {
        if beat.leaving {
            return self.link_lost(node, number, Loss::Left);
        }
        let now = self.clock(node);
        let Some(run) = self.run_of(node) else { return };
        let (epoch, attempt, since) = (run.epoch, run.attempt, now - run.since);
        let found = run.ranks.iter_mut().find(|(_, linked)| linked.pair.control == Some(number) && !linked.is_lost);
        let Some((rank, linked)) = found else { return };
        let (rank, news) = (*rank, linked.peer.hear(beat, since));
        let failed = news.failed.map(|failed| {
            let own = run.ranks.get(&failed).map(|linked| linked.peer.reported_lost(&LIVENESS, since));
            NodeEvent::PeerFailed { epoch, reporter: rank, failed, how: own.unwrap_or(Loss::Reset) }
        });
        if let Some(drain) = news.drain {
            self.input(node, Input::Run(attempt, NodeEvent::PeerDrains(epoch, rank, drain)));
        }
        if let Some(failed) = failed {
            self.input(node, Input::Run(attempt, failed));
        }
    }

    /// Handles the loss of a link of the running topology.
    pub(crate) fn link_lost(&mut self, node: usize, number: u64, how: Loss) {
        let Some(run) = self.run_of(node) else { return };
        let (epoch, attempt, is_aborted) = (run.epoch, run.attempt, run.is_aborted);
        if let Some((replica, _)) = run.across.iter().find(|(_, link)| **link == number) {
            let replica = *replica;
            return self.input(node, Input::Run(attempt, NodeEvent::Across(epoch, replica, None)));
        }
        let mut event = None;
        for (rank, linked) in &mut run.ranks {
            if linked.pair.control == Some(number) && !linked.is_lost {
                linked.is_lost = true;
                event = Some(NodeEvent::PeerLost(epoch, *rank, how));
            } else if linked.pair.data == Some(number) && !is_aborted {
                let reason = "a data link was closed".into();
                event = Some(NodeEvent::Engine(epoch, ReplicaEvent::Broken { rank: Some(*rank), reason }));
            }
        }
        if let Some(event) = event {
            self.input(node, Input::Run(attempt, event));
        }
    }

    /// Notifies the peers that this rank leaves.
    pub(crate) fn say_goodbye(&mut self, node: usize) {
        let Some(run) = self.run_of(node) else { return };
        let links: Vec<u64> = run.ranks.values().filter_map(|linked| linked.pair.control).collect();
        let (sent, echo) = (Nanoseconds(0), None);
        let beat =
            Beat { progress: 0, busy: false, waiting: true, draining: true, leaving: true, failed: None, sent, echo };
        for number in links {
            if let Some(end) = self.network.end_of(number, node) {
                self.send(number, end, Packet::Beat(beat));
            }
        }
    }

    pub(crate) fn submit(&mut self, node: usize, key: RequestKey, generate: &Generate) {
        self.check_submit(node);
        let Some(run) = self.run_of(node).filter(|run| !run.is_aborted) else { return };
        let (epoch, attempt, topology) = (run.epoch, run.attempt, &run.topology);
        let engine = run.engine.get_or_insert_with(|| HeadEngine::new(topology));
        let begun = engine.submit(key, generate);
        if !std::mem::replace(&mut run.steps, true) {
            self.own_later(node, Duration::ZERO, Own::Step(attempt));
        }
        let mut told = Vec::new();
        match begun {
            Begun::Refused(kind) => told.push(AnswerEvent::Refused(Fault::new(name(node), kind))),
            Begun::Started { prompt, is_over } => {
                let (form, changes) = (AnswerForm::default(), TemplateChanges::default());
                told.push(AnswerEvent::Started { prompt, form, changes });
                told.extend(is_over.then(|| finished(FinishReason::Length)));
            }
        }
        for event in told {
            self.input(node, Input::Run(attempt, NodeEvent::Answer(epoch, key, event)));
        }
    }

    /// The engine ends a request.
    pub(crate) fn cancel(&mut self, node: usize, key: RequestKey) {
        let Some(run) = self.run_of(node) else { return };
        let (epoch, attempt) = (run.epoch, run.attempt);
        if run.engine.as_mut().is_some_and(|engine| engine.cancel(key)) {
            let event = finished(FinishReason::Cancelled);
            self.input(node, Input::Run(attempt, NodeEvent::Answer(epoch, key, event)));
        }
    }

    /// The epoch and topology that a machine's rank runs, unless it is aborted or stopped.
    fn running_on(&self, node: usize) -> Option<(Epoch, TopologyHash)> {
        let process = self.machines[node].process.as_ref()?;
        let run = process.run.as_ref().filter(|run| !run.is_aborted && !process.is_stopped)?;
        Some((run.epoch, run.hash))
    }

    /// Whether all ranks of the replica run in step with this one: alive, linked, in the same run.
    fn can_step(&self, node: usize) -> bool {
        let Some(run) = self.machines[node].process.as_ref().and_then(|process| process.run.as_ref()) else {
            return false;
        };
        let mut nodes = vec![node];
        nodes.extend(
            run.ranks.values().filter_map(|linked| self.named(&run.topology.members[linked.member.index()].name)),
        );
        nodes.len() == run.ranks.len() + 1
            && nodes.iter().all(|one| self.running_on(*one) == Some((run.epoch, run.hash)))
            && nodes.iter().all(|one| nodes.iter().all(|two| !self.network.is_cut(*one, *two)))
            && nodes.iter().all(|one| self.has_links(*one))
    }

    /// Whether a rank of the replica was loaded from another file.
    fn has_other_weights(&self, node: usize) -> bool {
        let Some(run) = self.machines[node].process.as_ref().and_then(|process| process.run.as_ref()) else {
            return false;
        };
        let members =
            run.ranks.values().filter_map(|linked| self.named(&run.topology.members[linked.member.index()].name));
        members.chain([node]).any(|one| {
            let process = self.machines[one].process.as_ref();
            process.and_then(|process| process.run.as_ref()).is_some_and(|run| run.has_other_weights)
        })
    }

    /// Whether all data links of a rank are open at both ends.
    fn has_links(&self, node: usize) -> bool {
        let Some(run) = self.machines[node].process.as_ref().and_then(|process| process.run.as_ref()) else {
            return false;
        };
        run.ranks.values().all(|linked| {
            let connection = linked.pair.data.and_then(|number| self.network.connections.get(&number));
            connection.is_some_and(|connection| connection.is_open == [true; 2])
        })
    }

    /// Ends a step and begins the next one.
    pub(crate) fn step(&mut self, node: usize, attempt: u64) {
        let (can_step, is_wrong) = (self.can_step(node), self.has_other_weights(node));
        let slowness = if self.is_slow(node) { SLOW } else { 1 };
        let Some(run) = self.run_of(node).filter(|run| run.attempt == attempt) else { return };
        let (epoch, roots, is_aborted) = (run.epoch, run.topology.roots(), run.is_aborted);
        let Some(engine) = run.engine.as_mut().filter(|engine| !is_aborted && engine.has_work()) else {
            run.steps = false;
            return;
        };
        if !can_step {
            return self.own_later(node, STEP, Own::Step(attempt));
        }
        run.progress += 1;
        let sampled = engine.end_step(&roots);
        let next = engine.begin_step();
        let left = engine.sizes().into_iter().find(|size| size.count > size.most);
        if let Some(left) = left {
            let (what, count) = (left.what, left.count);
            self.violate(format!("the engine of {} keeps {count} {what}", name(node)));
        }
        self.check_step(node);
        for Sampled { key, id, is_last } in sampled {
            let token = TokenEvent { id: Some(id ^ u32::from(is_wrong)), text: "x".into(), logprobs: Vec::new() };
            self.input(node, Input::Run(attempt, NodeEvent::Answer(epoch, key, AnswerEvent::Token(token))));
            if is_last {
                let event = finished(FinishReason::Length);
                self.input(node, Input::Run(attempt, NodeEvent::Answer(epoch, key, event)));
            }
        }
        match next {
            Ok(next) => self.own_later(node, next.unwrap_or(STEP) * slowness, Own::Step(attempt)),
            Err(error) => self.violate(format!("no rank can apply a plan of {}: {error}", name(node))),
        }
    }

    /// Whether a rank of the replica is slow.
    fn is_slow(&self, node: usize) -> bool {
        let run = self.machines[node].process.as_ref().and_then(|process| process.run.as_ref());
        let members = run.into_iter().flat_map(|run| {
            run.ranks.values().filter_map(|linked| self.named(&run.topology.members[linked.member.index()].name))
        });
        members.chain([node]).any(|one| self.now < self.machines[one].slow_until)
    }

    /// A link between two machines, for a reset.
    pub(crate) fn link_between(&self, one: usize, two: usize, is_data: bool) -> Option<u64> {
        let run = self.machines[one].process.as_ref()?.run.as_ref()?;
        let linked = run
            .ranks
            .values()
            .find(|linked| self.named(&run.topology.members[linked.member.index()].name) == Some(two))?;
        if is_data { linked.pair.data } else { linked.pair.control }
    }

    /// All connections of a machine but the links of engines.
    pub(crate) fn sessions_of(&self, node: usize) -> Vec<u64> {
        let mut links: BTreeSet<u64> = BTreeSet::new();
        for process in self.machines.iter().filter_map(|machine| machine.process.as_ref()) {
            let opening = process.opening.iter().flat_map(|opening| opening.links.values());
            let running = process.run.iter().flat_map(|run| run.ranks.values().map(|linked| &linked.pair));
            links.extend(opening.chain(running).flat_map(|pair| pair.data.iter().chain(&pair.control)));
            links.extend(process.run.iter().flat_map(|run| run.across.values()));
        }
        let open = self.network.connections.iter();
        open.filter(|(number, one)| one.ends.iter().any(|end| end.node == node) && !links.contains(number))
            .map(|(number, _)| *number)
            .collect()
    }

    /// This daemon's end of a connection.
    pub(crate) fn own_end(&self, node: usize) -> Option<End> {
        Some(End { node, life: self.life(node)? })
    }
}

fn finished(reason: FinishReason) -> AnswerEvent {
    let times = RequestTimes::default();
    AnswerEvent::Finished(Box::new(Finished { reason, times, ranks: Vec::new(), sampling_rounds: 0 }))
}
