//! A daemon's driver: processes inputs and effects one after another, while its disk writes in the order of the effects.
use std::{collections::VecDeque, time::Duration};

use common::{
    fault::{Fault, FaultKind},
    ids::RequestId,
    units::Bytes,
};
use daemon::node::{
    SessionId,
    effect::{
        AssignmentEffect, ClusterEffect, DiskEffect, Effect, EngineEffect, PendingAnswer, ReportEffect, SessionEffect,
    },
    event::{EngineCommand, Event as NodeEvent, ExclusionsKept, ReplyTo},
};
use protocol::{
    message::{Prepare, ResponseBody},
    recovery::{RecoveryAnswer, Standing},
};
use telemetry::NodeState;

use super::{
    disk::Entry,
    network::Packet,
    process::{AfterWrite, Input, Opening, Writing},
    world::{Own, World, name},
};

impl World {
    /// Queues an input for the driver and runs the driver.
    pub(super) fn input(&mut self, node: usize, input: Input) {
        if let Some(process) = &mut self.machines[node].process {
            process.inbox.push_back(input);
        }
        self.work(node);
    }

    /// Runs until the queue is empty.
    pub(super) fn work(&mut self, node: usize) {
        loop {
            let Some(process) = &mut self.machines[node].process else { return };
            if process.is_stopped {
                return;
            }
            if let Some(effect) = process.effects.pop_front() {
                self.perform(node, effect);
                continue;
            }
            if process.exits {
                // The daemon ends when its disk has written everything.
                return if process.writes.is_empty() {
                    self.leave(node)
                };
            }
            let event = match process.inbox.pop_front() {
                None => return,
                Some(Input::Look) => {
                    let standing = self.standing(node);
                    let leaves = self.look_at_restart(node, &standing);
                    self.look(node, standing, leaves);
                    continue;
                }
                Some(Input::Run(attempt, _)) if process.run.as_ref().is_none_or(|run| run.attempt != attempt) => {
                    continue;
                }
                Some(Input::Run(_, event) | Input::Event(event)) => event,
            };
            let before = process.node.state();
            let effects = process.node.handle(event);
            process.effects = VecDeque::from(effects);
            let after = process.node.state();
            let fault = process.node.fault();
            let serves = |state| matches!(state, NodeState::Ready | NodeState::Serving);
            if before != after && !(serves(before) && serves(after)) {
                let why = fault.map_or(String::new(), |fault| format!(" ({fault})"));
                self.story.say(self.now, &name(node), || format!("{} -> {}{why}", before.name(), after.name()));
            }
            self.check_node(node);
        }
    }

    fn perform(&mut self, node: usize, effect: Effect) {
        match effect {
            Effect::Session(SessionEffect::Respond { session, id, body }) => self.respond(node, session, id, body),
            Effect::Cluster(ClusterEffect::Standing { session, id, caller }) => {
                if let Some((name, address)) = caller
                    && let Some(process) = &mut self.machines[node].process
                {
                    process.heard.insert(name, address);
                }
                let standing = Box::new(self.standing(node));
                self.respond(node, session, id, ResponseBody::Recovery(RecoveryAnswer::Standing(standing)));
            }
            Effect::Assignment(AssignmentEffect::Load(prepare)) => self.load(node, *prepare),
            Effect::Assignment(AssignmentEffect::Discard(epoch)) => {
                let Some(process) = &mut self.machines[node].process else { return };
                if let Some(opening) = process.opening.take_if(|opening| opening.epoch == epoch) {
                    self.close_opening(node, &opening);
                }
            }
            Effect::Disk(DiskEffect::Persist(epoch, hash)) => {
                let entries = vec![Entry::Record(daemon::node::event::Record::Promise(epoch, hash))];
                self.write(node, entries, AfterWrite::Persisted(epoch, hash));
            }
            Effect::Disk(DiskEffect::KeepExclusions { session, id, list }) => {
                let entries = vec![Entry::Exclusions(list.clone())];
                self.write(node, entries, AfterWrite::Exclusions(session, id, list));
            }
            Effect::Disk(DiskEffect::Write { records, then }) => {
                let entries = records.into_iter().map(Entry::Record).collect();
                self.write(node, entries, AfterWrite::Respond(then));
            }
            Effect::Assignment(AssignmentEffect::Connect(epoch)) => self.connect(node, epoch),
            Effect::Engine(EngineEffect::Command(EngineCommand::Submit(key, generate))) => {
                self.submit(node, key, &generate)
            }
            Effect::Engine(EngineEffect::Command(EngineCommand::Cancel(key))) => {
                self.cancel(node, key);
            }
            Effect::Engine(EngineEffect::AnnounceFault(epoch, rank)) => {
                if let Some(run) = self.run_of(node).filter(|run| run.epoch == epoch) {
                    run.failed.get_or_insert(rank);
                }
            }
            Effect::Engine(EngineEffect::Abort(epoch)) => self.abort(node, epoch),
            Effect::Engine(EngineEffect::Stop(epoch)) => self.stop_run(node, epoch),
            Effect::Engine(EngineEffect::AnnounceDraining) => {
                if let Some(run) = self.run_of(node) {
                    run.draining = true;
                }
            }
            Effect::Report(ReportEffect::Current { session, id }) => {
                if let Some(report) = self.report(node) {
                    self.respond(node, session, id, ResponseBody::Report(Box::new(report)));
                }
            }
            Effect::Exit(_) => {
                self.machines[node].process.iter_mut().for_each(|process| process.exits = true);
            }
            // Not simulated: reports, changes of the key, model files, copies of keys and values, groups with roles and benchmarks.
            Effect::Session(
                SessionEffect::Watch { .. } | SessionEffect::Inspect { .. } | SessionEffect::ClearStore { .. },
            )
            | Effect::Report(ReportEffect::Records { .. })
            | Effect::Cluster(ClusterEffect::Rekey { .. })
            | Effect::Model(_)
            | Effect::Kv(..)
            | Effect::Engine(EngineEffect::SendAcross(..) | EngineEffect::Text(..))
            | Effect::Engine(EngineEffect::Command(
                EngineCommand::Across(..) | EngineCommand::AcrossLost(_) | EngineCommand::BenchLinks(..),
            ))
            | Effect::Bench(_) => {}
        }
    }

    fn load(&mut self, node: usize, prepare: Prepare) {
        let delay = Duration::from_millis(80 + self.random.below(300) as u64);
        let Some(process) = &mut self.machines[node].process else { return };
        process.attempts += 1;
        let attempt = process.attempts;
        process.opening = Some(Opening::new(attempt, prepare));
        self.own_later(node, delay, Own::Loaded(attempt));
    }

    fn write(&mut self, node: usize, entries: Vec<Entry>, then: AfterWrite) {
        let Some(process) = &mut self.machines[node].process else { return };
        process.writes.push_back(Writing { entries, then });
        if process.writes.len() == 1 {
            self.write_next(node);
        }
    }

    /// Lets the disk execute the oldest write.
    fn write_next(&mut self, node: usize) {
        let writing = self.machines[node].process.as_ref().and_then(|process| process.writes.front());
        let Some(is_empty) = writing.map(|writing| writing.entries.is_empty()) else { return };
        let delay = Duration::from_micros(500 + self.random.below(20_000) as u64);
        let stall = self.machines[node].disk.stalls_until.saturating_sub(self.now);
        self.own_later(node, if is_empty { Duration::ZERO } else { delay + stall }, Own::Written);
    }

    /// Called when the disk has synced or has failed.
    pub(super) fn written(&mut self, node: usize) {
        let Some(Writing { entries, then }) =
            self.machines[node].process.as_mut().and_then(|process| process.writes.pop_front())
        else {
            return;
        };
        let result = self.machines[node]
            .disk
            .write(&entries)
            .map_err(|reason| Fault::new(name(node), FaultKind::StateUnwritable { reason }));
        match then {
            AfterWrite::Respond(None) => {}
            AfterWrite::Respond(Some(PendingAnswer { to: ReplyTo { session, id }, body })) => {
                self.respond(node, session, id, result.map_or_else(ResponseBody::Failed, |()| body));
            }
            AfterWrite::Persisted(epoch, hash) => self.next(node, NodeEvent::Persisted(epoch, hash, result)),
            AfterWrite::Exclusions(session, id, list) => {
                let kept = ExclusionsKept { session, id, list, result };
                self.next(node, NodeEvent::ExclusionsKept(kept));
            }
        }
        self.write_next(node);
        self.work(node);
    }

    /// Queues an event that the driver passes to the node before anything else.
    fn next(&mut self, node: usize, event: NodeEvent) {
        if let Some(process) = &mut self.machines[node].process {
            process.inbox.push_front(Input::Event(event));
        }
    }

    pub(super) fn respond(&mut self, node: usize, session: SessionId, id: RequestId, body: ResponseBody) {
        self.check_response(node, session, id, &body);
        let run = self.run_of(node).map(|run| run.number);
        let response = protocol::message::Response { id, body };
        let end = self.network.connections.get(&session.0).and_then(|connection| {
            // In a session with itself, the node answers at the end that was dialled.
            (0..2).rev().find(|end| connection.ends[*end].node == node)
        });
        if let Some(end) = end {
            self.send(session.0, end, Packet::Response(Box::new(response), run));
        }
    }

    /// The standing that a node reports.
    pub(super) fn standing(&self, node: usize) -> Standing {
        let process = self.machines[node].process.as_ref();
        let (state, committed) = process
            .map_or((NodeState::Idle, None), |process| (process.node.state(), process.node.committed().cloned()));
        let of = |pick: &dyn Fn(&super::process::Process) -> bool| process.is_some_and(pick);
        Standing {
            name: name(node),
            instance: process.map_or(0, |process| process.life),
            state,
            epoch: process.map_or_else(Default::default, |process| process.node.known_epoch()),
            committed,
            accepted: of(&|process| process.node.has_accepted()),
            free: Bytes(0),
            shard: Bytes(0),
            supervised: true,
            takes_over: of(&|process| process.node.takes_over()),
            exclusions: process.map_or_else(Default::default, |process| process.node.exclusions().clone()),
            rolling: process.and_then(|process| process.node.rolling().cloned()),
            heard: process.map_or_else(Vec::new, |process| process.heard.clone().into_iter().collect()),
            slow: None,
            busy: None,
            trouble: None,
            forgets: of(&|process| process.node.forgets()),
            unloaded: process.and_then(|process| process.node.unloaded()),
            idle: process.and_then(|process| process.node.idle()),
        }
    }

    /// The daemon exits on its own: it sends a goodbye, its connections close, and its supervisor restarts it.
    fn leave(&mut self, node: usize) {
        self.story.say(self.now, &name(node), || "exits and is restarted".into());
        self.say_goodbye(node);
        // As the daemon does, unless the disk fails.
        let writes = self.machines[node].process.as_mut().map(|process| std::mem::take(&mut process.writes));
        for writing in writes.unwrap_or_default() {
            let _ = self.machines[node].disk.write(&writing.entries);
        }
        self.end_process(node, true);
        self.start_later(node, Duration::from_millis(500));
    }

    /// The machine that listens on an address.
    pub(super) fn index_of(&self, wanted: &str) -> Option<usize> {
        (0..self.machines.len()).find(|node| self.address(*node) == wanted)
    }
}
