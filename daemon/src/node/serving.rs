//! Requests of a running topology, and the faults that break it.
use std::time::Duration;

use common::{
    chat::{GRAMMAR_BYTES_MAX, Grammar, PROMPT_BYTES_MAX},
    fault::{Fault, FaultKind, Loss},
    ids::{Epoch, Rank},
    planted::{Planted, is_planted},
};
use engine::RequestKey;
use engine::port::ReplicaEvent;
use protocol::{
    across::Across,
    bench::BenchLinks,
    message::{Generate, ResponseBody, STOP_BYTES_MAX, STOP_STRINGS_MAX},
    texts::TextRequest,
};
use topology::{Role, Topology};

use super::{
    event::{EngineCommand, ReplyTo, SessionId},
    machine::{Node, Phase, QUEUE_MAX, RunningTopology},
    requests::NewRequest,
};
use crate::{
    node::effect::{Effect, EngineEffect, ModelEffect},
    text::AnswerEvent,
};

/// A second unreadable part of a model file within this time means that the file is damaged.
const UNREADABLE: Duration = Duration::from_secs(3600);

impl Node {
    /// The topology, if it accepts new requests.
    fn serving(&self) -> Result<&RunningTopology, FaultKind> {
        let state = self.state();
        if self.draining.is_some() {
            return Err(FaultKind::Draining);
        }
        let Some(running) = self.running.as_ref().filter(|running| running.fault.is_none()) else {
            return Err(FaultKind::NotServing { state: state.name().into() });
        };
        if !running.assignment.place().is_head() {
            return Err(FaultKind::NotHead);
        }
        if running.peer_drains.is_some() {
            return Err(FaultKind::Draining);
        }
        // An excluded member's topology is about to be replaced: running requests may finish, new ones are refused.
        self.check_replica(running.assignment.replica())?;
        if running.requests.len() >= QUEUE_MAX && !is_planted(Planted::QueueUnbounded) {
            return Err(FaultKind::QueueFull { limit: QUEUE_MAX as u32 });
        }
        Ok(running)
    }

    pub(super) fn check_generate(&self, generate: &Generate) -> Result<(), FaultKind> {
        let running = self.serving()?;
        if running.assignment.place().role == Role::Prefill {
            return Err(FaultKind::OnlyPrefills);
        }
        let served = &running.assignment.topology;
        if is_planted(Planted::PromptLogged) {
            tracing::info!("a request begins: {:?}", generate.prompt);
        }
        let other = generate.model.as_ref().filter(|model| model.differs(&served.roots()));
        if let Some(expected) = other.filter(|_| !is_planted(Planted::ModelUnchecked)) {
            let (model, actual) = (served.model.clone(), served.roots());
            return Err(FaultKind::ModelReplaced { model, expected: expected.clone(), actual: actual.into() });
        }
        let invalid = |reason: String| Err(FaultKind::ParameterInvalid { reason });
        if generate.prompt.byte_count() > PROMPT_BYTES_MAX {
            return invalid(format!(
                "the prompt has {} bytes, the maximum is {PROMPT_BYTES_MAX}",
                generate.prompt.byte_count()
            ));
        }
        let schema = generate.grammar.as_ref().map_or(0, Grammar::byte_count);
        if schema > GRAMMAR_BYTES_MAX {
            return invalid(format!("the schema has {schema} bytes, the maximum is {GRAMMAR_BYTES_MAX}"));
        }
        let tools = generate.tool_use.as_ref().map_or(0, |tool_use| tool_use.tools.len());
        if tools > GRAMMAR_BYTES_MAX {
            return invalid(format!("the tools have {tools} bytes, the maximum is {GRAMMAR_BYTES_MAX}"));
        }
        if generate.resumed.len() > generate.max_tokens as usize {
            return invalid(format!(
                "{} tokens are resumed, but max_tokens is {}",
                generate.resumed.len(),
                generate.max_tokens
            ));
        }
        if generate.max_tokens == 0 {
            return invalid("max_tokens is 0; ask for at least one token".into());
        }
        if generate.stop.len() > STOP_STRINGS_MAX || generate.stop.iter().any(|stop| stop.len() > STOP_BYTES_MAX) {
            return invalid(format!("at most {STOP_STRINGS_MAX} stop strings of {STOP_BYTES_MAX} bytes"));
        }
        generate.sampling.check().map_err(|error| FaultKind::ParameterInvalid { reason: error.to_string() })
    }

    /// Questions about texts are answered by heads that serve, within the bounds of prompts.
    pub(super) fn check_text(&self, request: &TextRequest) -> Result<(), FaultKind> {
        self.serving()?;
        let bytes = request.byte_count();
        if bytes > PROMPT_BYTES_MAX {
            let reason = format!("the text has {bytes} bytes, the maximum is {PROMPT_BYTES_MAX}");
            return Err(FaultKind::ParameterInvalid { reason });
        }
        Ok(())
    }

    /// All-reduces are timed on idle links. A request that arrives meanwhile waits until the benchmark ends.
    pub(super) fn check_bench_links(&self, wanted: &BenchLinks) -> Result<(), FaultKind> {
        let running = self.serving()?;
        if running.assignment.place().group.len() < 2 {
            return Err(FaultKind::NoLinks);
        }
        if !running.requests.is_empty() {
            return Err(FaultKind::RequestsRun { count: running.requests.len() as u32 });
        }
        wanted.check().map_err(|reason| FaultKind::ParameterInvalid { reason })
    }

    /// Sends a command to the engine that ends with an answer, and records the request.
    pub(super) fn start(&mut self, new: NewRequest, command: impl FnOnce(RequestKey) -> EngineCommand) -> Vec<Effect> {
        let Some(running) = &mut self.running else { return Vec::new() };
        let ReplyTo { session, id } = new.to;
        if running.requests.key(session, id).is_some() {
            let reason = format!("request id {id} is in use on this session");
            return self.refuse(session, id, FaultKind::ParameterInvalid { reason });
        }
        let key = running.requests.add(new);
        self.requests_begun = key.0;
        vec![Effect::Engine(EngineEffect::Command(command(key)))]
    }

    /// An event of a request.
    pub(super) fn answer(&mut self, epoch: Epoch, key: RequestKey, event: AnswerEvent) -> Vec<Effect> {
        let Some(running) = self.running.as_mut().filter(|running| running.engine == epoch) else {
            return Vec::new();
        };
        let requests = &mut running.requests;
        let effect = match event {
            AnswerEvent::Started { prompt, form, changes } => {
                requests.respond(key, ResponseBody::Started { prompt_token_ids: prompt, form, changes })
            }
            AnswerEvent::Dispatched => {
                requests.dispatched(key);
                None
            }
            AnswerEvent::Scored(tokens) => requests.respond(key, ResponseBody::Scored(tokens)),
            AnswerEvent::Embedded(values) => requests.respond(key, ResponseBody::Embedded(values)),
            AnswerEvent::Token(token) => {
                self.tokens += u64::from(token.id.is_some());
                requests.respond(key, ResponseBody::Token(token))
            }
            AnswerEvent::Finished(finished) => requests.end(key, ResponseBody::Finished(*finished)),
            AnswerEvent::LinksBenched(found) => requests.end(key, ResponseBody::BenchedLinks(found)),
            AnswerEvent::Refused(fault) => requests.end(key, ResponseBody::Failed(fault)),
        };
        let mut effects: Vec<Effect> = effect.into_iter().collect();
        effects.extend(self.leave_if_drained());
        effects
    }

    /// An event of the engine that concerns no single request.
    pub(super) fn engine(&mut self, epoch: Epoch, event: ReplicaEvent) -> Vec<Effect> {
        let Some(running) = self.running.as_mut().filter(|running| running.engine == epoch) else {
            return Vec::new();
        };
        match event {
            ReplicaEvent::Kv(kv) => {
                running.kv = Some(kv);
                self.leave_if_drained()
            }
            ReplicaEvent::Across(replica, message) => {
                let mut effects = vec![Effect::Engine(EngineEffect::SendAcross(replica, message))];
                effects.extend(self.leave_if_drained());
                effects
            }
            ReplicaEvent::Broken { rank: Some(rank), .. } if !is_planted(Planted::BrokenLinkIsInternal) => {
                self.peer_lost(epoch, rank, Loss::Reset)
            }
            ReplicaEvent::Broken { reason, .. } => {
                let fault = self.fault_here(FaultKind::Internal { reason });
                self.break_down(fault)
            }
            ReplicaEvent::Unreadable(reason) => {
                let Topology { model, draft, .. } = running.assignment.topology.clone();
                let files = [model.clone()].into_iter().chain(draft.map(|draft| draft.model));
                // Once, it may have been the connection of the disk; hashing a large file takes minutes.
                let is_again = self.unreadable.replace(self.now).is_some_and(|last| self.now < last + UNREADABLE);
                let files = files.filter(|_| is_again);
                let mut effects: Vec<Effect> =
                    files.map(|model| Effect::Model(ModelEffect::Distrust { model })).collect();
                effects.extend(self.break_down(self.fault_here(FaultKind::ModelInvalid { model, reason })));
                effects
            }
        }
    }

    /// A message of another group's head, or its loss.
    pub(super) fn across(&mut self, epoch: Epoch, replica: u16, message: Option<Across>) -> Vec<Effect> {
        let running = self.running.as_ref().filter(|running| running.engine == epoch && running.fault.is_none());
        let Some(running) = running else { return Vec::new() };
        let takes_asks = self.draining.is_none()
            && running.peer_drains.is_none()
            && running.assignment.place().role == Role::Prefill;
        match message {
            Some(Across::Ask(ask)) if !takes_asks => {
                vec![Effect::Engine(EngineEffect::SendAcross(replica, Across::Refused { transfer: ask.transfer }))]
            }
            Some(message) => vec![Effect::Engine(EngineEffect::Command(EngineCommand::Across(replica, message)))],
            None => vec![Effect::Engine(EngineEffect::Command(EngineCommand::AcrossLost(replica)))],
        }
    }

    pub(super) fn peer_lost(&mut self, epoch: Epoch, rank: Rank, how: Loss) -> Vec<Effect> {
        let Some(running) = self.running.as_ref().filter(|running| running.engine == epoch) else {
            return Vec::new();
        };
        let member = running.assignment.topology.peer(running.assignment.member, rank);
        let fault = Fault::new(member.map_or("?", |member| &member.name), FaultKind::NodeLost { how });
        self.break_down(fault)
    }

    /// A rank reports that the topology broke there. Its links to this node are intact, so this node may not notice by
    /// itself.
    pub(super) fn peer_failed(&mut self, epoch: Epoch, reporter: Rank, failed: Rank, how: Loss) -> Vec<Effect> {
        let how = if reporter == failed { Loss::Stalled } else { how };
        self.peer_lost(epoch, failed, how)
    }

    /// Breaks the topology: every request fails once, with the fault; the engine ends its waits.
    pub(super) fn break_down(&mut self, fault: Fault) -> Vec<Effect> {
        // The others continued without this excluded node: nothing is broken.
        if self.exclusions.of(&self.name, "").is_some_and(|entry| !entry.is_cordon)
            && let Some(mut running) = self.running.take_if(|running| running.fault.is_none())
        {
            let mut effects = running.requests.fail_all(&fault);
            effects.push(Effect::Engine(EngineEffect::Stop(running.engine)));
            effects.extend(self.leave_if_drained());
            return effects;
        }
        let Some(running) = self.running.as_mut().filter(|running| running.fault.is_none()) else { return Vec::new() };
        let mut effects = running.requests.fail_all(&fault);
        let mut members = running.assignment.replica().iter();
        let lost = members.position(|member| member.name == fault.node);
        let lost = lost.map_or(running.assignment.place().rank, |rank| Rank(rank as u16));
        effects.push(Effect::Engine(EngineEffect::AnnounceFault(running.engine, lost)));
        effects.push(Effect::Engine(EngineEffect::Abort(running.engine)));
        running.fault = Some(fault);
        effects.extend(self.leave_if_drained());
        effects
    }

    pub(super) fn session_closed(&mut self, session: SessionId) -> Vec<Effect> {
        let mut effects = self.cancel_bench(session, None);
        // A console's commit continues, because the other nodes switch too. A prepare whose console is gone is aborted,
        // and so are the links of a recovery whose leader is lost, because no link to it will come.
        let is_abandoned = self.open.as_ref().is_some_and(|open| {
            let is_patient = !open.again || is_planted(Planted::PatientAbort);
            open.session == session && !(is_patient && matches!(open.phase, Phase::Connecting { .. }))
        });
        if is_abandoned {
            effects.extend(self.give_up());
        }
        effects.extend(self.cancel_all(session));
        effects
    }

    pub(super) fn session_slow(&mut self, session: SessionId) -> Vec<Effect> {
        let fault = self.fault_here(FaultKind::SlowReader);
        let mut effects = self.cancel_bench(session, None);
        let Some(running) = &mut self.running else { return effects };
        let keys = running.requests.keys_of(session);
        for key in keys {
            effects.extend(running.requests.end(key, ResponseBody::Failed(fault.clone())));
            effects.push(Effect::Engine(EngineEffect::Command(EngineCommand::Cancel(key))));
        }
        effects
    }

    pub(super) fn cancel_all(&mut self, session: SessionId) -> Vec<Effect> {
        let Some(running) = &mut self.running else { return Vec::new() };
        let keys = running.requests.keys_of(session);
        let cancels = keys.into_iter().map(|key| {
            running.requests.forget(key);
            Effect::Engine(EngineEffect::Command(EngineCommand::Cancel(key)))
        });
        let mut effects: Vec<Effect> = cancels.collect();
        effects.extend(self.leave_if_drained());
        effects
    }
}
