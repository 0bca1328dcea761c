//! The running engine of this node, and the effects on it.
use std::time::Duration;

use common::fault::{Fault, FaultKind};
use engine::port::{EngineEvent, EngineOrder, ReplicaEvent};
use protocol::across::Across;
use smallvec::{SmallVec, smallvec};
use tokio_util::task::TaskTracker;

use super::{context::ending, orders::COMMANDS_MAX, running::RunningEngine};
use crate::{
    node::{Event, effect::EngineEffect, event::EngineCommand},
    text::AnswerEvent,
};

/// Holds the running engine, and tracks stopped ones until they end.
#[derive(Debug)]
pub(super) struct EngineHost {
    /// This node's name, for faults.
    name: String,
    running: Option<RunningEngine>,
    /// The latest run whose death was reported.
    died: Option<u64>,
    /// Engines that were stopped and have not ended yet.
    stopping: TaskTracker,
}

impl EngineHost {
    /// For the node with this name.
    pub(super) fn new(name: String) -> Self {
        Self { name, running: None, died: None, stopping: ending() }
    }

    /// The running engine.
    pub(super) fn running(&self) -> Option<&RunningEngine> {
        self.running.as_ref()
    }

    /// The engines that were stopped and have not ended yet: their shards still occupy memory.
    pub(super) fn stopping(&self) -> &TaskTracker {
        &self.stopping
    }

    /// Whether the engine of this run is the running one.
    pub(super) fn is_run(&self, run: u64) -> bool {
        self.running.as_ref().is_some_and(|running| running.run == run)
    }

    /// The events of an engine for the node, with the text of its tokens; none if the engine is not the running one.
    pub(super) fn translate(&mut self, run: u64, event: EngineEvent) -> SmallVec<[Event; 2]> {
        let Some(running) = self.running.as_mut().filter(|running| running.run == run) else {
            return SmallVec::new();
        };
        let epoch = running.epoch;
        match event {
            EngineEvent::Replica(event) => smallvec![Event::Engine(epoch, event)],
            EngineEvent::Request(key, event) => {
                let events = running.translate(key, event).into_iter();
                events.map(|event| Event::Answer(epoch, key, event)).collect()
            }
        }
    }

    /// Takes over an engine that was started; `is_draining`: this node takes no new work.
    pub(super) fn host(&mut self, engine: RunningEngine, is_draining: bool) {
        if is_draining {
            engine.announce_draining();
        }
        self.running = Some(engine);
    }

    /// Returns an event if a command was refused.
    pub(super) fn perform(&mut self, effect: EngineEffect) -> Option<Event> {
        match effect {
            EngineEffect::Command(command) => return self.command(command),
            // The driver has the sessions that wait for it.
            EngineEffect::Text(..) => {}
            EngineEffect::SendAcross(replica, message) => {
                if let Some(running) = &mut self.running {
                    running.send_across(replica, message);
                }
            }
            EngineEffect::Abort(epoch) => {
                if let Some(running) = self.running.as_ref().filter(|running| running.epoch == epoch) {
                    running.abort();
                }
            }
            EngineEffect::AnnounceFault(epoch, rank) => {
                if let Some(running) = self.running.as_ref().filter(|running| running.epoch == epoch) {
                    running.announce_fault(rank);
                }
            }
            EngineEffect::Stop(epoch) => {
                if let Some(running) = self.running.take_if(|running| running.epoch == epoch) {
                    self.stopping.spawn(running.stop(false));
                }
            }
            EngineEffect::AnnounceDraining => {
                if let Some(running) = &self.running {
                    running.announce_draining();
                }
            }
        }
        None
    }

    /// Sends a command to the running engine. If there is no room, a request is refused to its console and a remote
    /// prefill to its group; a group that floods this one with other messages is disconnected.
    fn command(&mut self, command: EngineCommand) -> Option<Event> {
        let running = self.running.as_mut()?;
        let epoch = running.epoch;
        match running.command(command) {
            Ok(()) => {}
            Err(EngineOrder::Begin(key, _) | EngineOrder::BenchLinks(key, _)) => {
                let fault = Fault::new(&self.name, FaultKind::QueueFull { limit: COMMANDS_MAX as u32 });
                return Some(Event::Answer(epoch, key, AnswerEvent::Refused(fault)));
            }
            Err(EngineOrder::Across(replica, Across::Ask(ask))) => {
                running.send_across(replica, Across::Refused { transfer: ask.transfer });
            }
            Err(EngineOrder::Across(replica, _)) => running.give_up_link(replica),
            Err(
                command @ (EngineOrder::Withdrawn(_)
                | EngineOrder::Cancel(_)
                | EngineOrder::AcrossLost(_)
                | EngineOrder::Stop),
            ) => tracing::error!("cannot queue a command for the engine: {command:?}"),
        }
        None
    }

    /// Sends waiting commands. Returns false if the engine is stalled.
    pub(super) fn tick(&mut self, stall: Duration) -> bool {
        let Some(running) = &mut self.running else { return true };
        running.flush();
        !running.is_stalled(stall)
    }

    /// The event of an engine whose thread has panicked, once.
    pub(super) fn death(&mut self) -> Option<Event> {
        let running = self.running.as_ref().filter(|running| running.has_died())?;
        if self.died.replace(running.run) == Some(running.run) {
            return None;
        }
        let reason = "the engine thread panicked; see its message in the log".into();
        Some(Event::Engine(running.epoch, ReplicaEvent::Broken { rank: None, reason }))
    }

    /// Announces the end to the peers and stops the engine.
    pub(super) async fn end(&mut self) {
        if let Some(running) = self.running.take() {
            running.stop(true).await;
        }
    }
}
