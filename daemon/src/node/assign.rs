//! Assignments in two phases: prepare (load, persist), commit (switch), and their rollback.
use common::{
    fault::{Fault, FaultKind, Loss},
    ids::{Epoch, MemberIndex, RequestId, TopologyHash},
    planted::{Planted, is_planted},
    units::Bytes,
};
use protocol::message::{Prepare, Previous, ResponseBody};
use telemetry::LoadProgress;
use topology::Topology;

use super::{
    event::{ReplyTo, SessionId},
    machine::{Assignment, Node, OpenAssignment, Phase, RunningTopology},
    requests::Requests,
};
use crate::node::effect::{AssignmentEffect, DiskEffect, Effect, EngineEffect, ReportEffect, SessionEffect};

impl Node {
    pub(super) fn check_prepare(&self, prepare: &Prepare) -> Result<(), FaultKind> {
        if self.draining.is_some() {
            return Err(FaultKind::Draining);
        }
        self.check_reach(prepare.epoch)?;
        let again = prepare.seen == prepare.epoch;
        if let Some(open) = self.open.as_ref().filter(|open| again || !open.again) {
            return Err(self.prepare_open(open));
        }
        if again {
            self.check_again(prepare)?;
        } else if is_planted(Planted::AnyEpochPrepared) {
            return Ok(());
        } else if prepare.seen != self.epoch {
            return Err(FaultKind::EpochMoved { expected: prepare.seen, actual: self.epoch });
        }
        if prepare.epoch <= self.epoch && !again {
            return Err(FaultKind::Superseded { epoch: self.epoch, by: self.latest_by.clone() });
        }
        let invalid = |reason: String| FaultKind::TopologyInvalid { reason };
        prepare.topology.check().map_err(|error| invalid(error.to_string()))?;
        prepare.desired.iter().try_for_each(|one| one.check()).map_err(|error| invalid(error.to_string()))?;
        self.check_members(&prepare.topology.members, again)?;
        let member = prepare.topology.members.get(prepare.member.index());
        if member.is_none_or(|member| member.name != self.name) {
            return Err(invalid(format!("member {} of the topology is not {}", prepare.member, self.name)));
        }
        let stays = prepare.previous == Previous::Stays;
        if stays && self.kept_in(&prepare.topology) != Some(prepare.member) {
            return Err(FaultKind::NotServing { state: self.state().name().into() });
        }
        Ok(())
    }

    /// The fault with which other commands are refused while an assignment is open.
    fn prepare_open(&self, open: &OpenAssignment) -> FaultKind {
        let seconds = match open.phase {
            Phase::Prepared { since } => (since + self.patience.lease).saturating_sub(self.now),
            _ => self.patience.lease,
        };
        let (epoch, by) = (open.assignment.epoch, open.assignment.by.clone());
        FaultKind::PrepareOpen { epoch, by, seconds: seconds.as_secs() as u32 }
    }

    /// Refuses operations that would disturb an open assignment, even one that loads while the previous topology
    /// serves.
    pub fn check_assigning(&self) -> Result<(), FaultKind> {
        self.open.as_ref().map_or(Ok(()), |open| Err(self.prepare_open(open)))
    }

    pub(super) fn prepare(&mut self, session: SessionId, id: RequestId, by: String, prepare: Prepare) -> Vec<Effect> {
        let mut effects = self.end_bench(FaultKind::BenchSuperseded { by: by.clone() });
        let again = prepare.seen == prepare.epoch;
        if again {
            // A node that lost its records must not let an operator use the epoch of a topology that exists.
            self.epoch = self.epoch.max(prepare.epoch);
        }
        if self.open.is_some() {
            let kind = FaultKind::Superseded { epoch: prepare.epoch, by: by.clone() };
            effects.extend(self.fail_open(self.fault_here(kind)));
        }
        // Stop a broken engine first to free its memory for the next one. Groups with roles start together.
        let useless = self.running.take_if(|running| {
            let leaves = prepare.previous == Previous::Leaves || running.fault.is_some();
            leaves || (again && running.assignment.epoch == prepare.epoch)
        });
        if let Some(mut running) = useless {
            let fault = self.fault_here(FaultKind::NodeLost { how: Loss::Left });
            effects.extend(running.requests.fail_all(&fault));
            effects.push(Effect::Engine(EngineEffect::Stop(running.engine)));
        }
        let stays = prepare.previous == Previous::Stays;
        let shard = self.running.as_ref().filter(|_| stays).map(|running| running.assignment.shard);
        let assignment = Assignment {
            epoch: prepare.epoch,
            hash: prepare.topology.hash(),
            topology: prepare.topology.clone(),
            member: prepare.member,
            by,
            shard: shard.unwrap_or_default(),
            desired: prepare.desired.clone(),
        };
        if stays {
            let (phase, epoch, hash) = (Phase::Persisting, assignment.epoch, assignment.hash);
            self.open = Some(OpenAssignment { assignment, session, id, phase, again, keeps: true });
            effects.push(Effect::Disk(DiskEffect::Persist(epoch, hash)));
            return effects;
        }
        let phase = Phase::Loading(LoadProgress::default());
        self.open = Some(OpenAssignment { assignment, session, id, phase, again, keeps: false });
        effects.push(Effect::Assignment(AssignmentEffect::Load(Box::new(prepare))));
        effects
    }

    /// This node's place in `next`, if its running replica is unchanged there and has no fault.
    pub(super) fn kept_in(&self, next: &Topology) -> Option<MemberIndex> {
        let running = self.running.as_ref().filter(|running| running.fault.is_none())?;
        running.assignment.topology.kept_in(running.assignment.member, next)
    }

    /// The open assignment, if it is of this epoch.
    pub(super) fn open_at(&mut self, epoch: Epoch) -> Option<&mut OpenAssignment> {
        self.open.as_mut().filter(|open| open.assignment.epoch == epoch)
    }

    /// Progress that arrives behind the end of its load is ignored.
    pub(super) fn load_progress(&mut self, epoch: Epoch, progress: LoadProgress) -> Vec<Effect> {
        let open = self.open_at(epoch).filter(|open| matches!(open.phase, Phase::Loading(_)));
        let Some(open) = open else { return Vec::new() };
        open.phase = Phase::Loading(progress);
        vec![Effect::respond(open.reply_to(), ResponseBody::Loading(progress))]
    }

    pub(super) fn loaded(&mut self, epoch: Epoch, result: Result<Bytes, Fault>) -> Vec<Effect> {
        let is_kept = self.open.as_ref().is_some_and(|open| open.again && self.is_kept(open));
        let Some(open) = self.open_at(epoch) else { return Vec::new() };
        match result {
            Ok(shard) if is_kept => {
                open.assignment.shard = shard;
                // A record of it may still wait for the disk.
                let answer = Effect::respond_after_writes(open.reply_to(), ResponseBody::Prepared);
                self.prepared(epoch);
                vec![answer]
            }
            Ok(shard) => {
                open.assignment.shard = shard;
                open.phase = Phase::Persisting;
                vec![Effect::Disk(DiskEffect::Persist(epoch, open.assignment.hash))]
            }
            Err(fault) => self.fail_open(fault),
        }
    }

    /// The result of a write; that of an assignment which was abandoned meanwhile is ignored.
    pub(super) fn persisted(&mut self, epoch: Epoch, hash: TopologyHash, result: Result<(), Fault>) -> Vec<Effect> {
        let Some(open) = self.open_at(epoch) else { return Vec::new() };
        if open.phase != Phase::Persisting || open.assignment.hash != hash {
            return Vec::new();
        }
        if let Err(fault) = result {
            return self.fail_open(fault);
        }
        let answer = Effect::respond(open.reply_to(), ResponseBody::Prepared);
        self.prepared(epoch);
        vec![answer]
    }

    /// Answers a request for a report. From the session that has prepared a shard, it is also a sign of life, with which the
    /// lease begins again: other members may load for much longer.
    pub(super) fn report_to(&mut self, session: SessionId, id: RequestId) -> Vec<Effect> {
        if let Some(open) = self.open.as_mut().filter(|open| open.session == session)
            && let Phase::Prepared { since } = &mut open.phase
        {
            *since = self.now;
        }
        vec![Effect::Report(ReportEffect::Current { session, id })]
    }

    fn prepared(&mut self, epoch: Epoch) {
        let Some(open) = self.open.as_mut() else { return };
        open.phase = Phase::Prepared { since: self.now };
        self.latest_by = open.assignment.by.clone();
        self.epoch = self.epoch.max(epoch);
    }

    /// Fails the open assignment: reports the fault to its console and discards the loaded data.
    pub(super) fn fail_open(&mut self, fault: Fault) -> Vec<Effect> {
        let Some(open) = self.open.take() else { return Vec::new() };
        let (session, id) = match open.phase {
            Phase::Connecting { commit } => commit,
            _ => (open.session, open.id),
        };
        let respond = Effect::Session(SessionEffect::Respond { session, id, body: ResponseBody::Failed(fault) });
        vec![respond, Effect::Assignment(AssignmentEffect::Discard(open.assignment.epoch))]
    }

    pub(super) fn give_up(&mut self) -> Vec<Effect> {
        self.open
            .take()
            .map(|open| Effect::Assignment(AssignmentEffect::Discard(open.assignment.epoch)))
            .into_iter()
            .collect()
    }

    pub(super) fn commit(
        &mut self,
        session: SessionId,
        id: RequestId,
        epoch: Epoch,
        hash: TopologyHash,
    ) -> Vec<Effect> {
        let is_prepared = self.open.as_ref().is_some_and(|open| {
            matches!(open.phase, Phase::Prepared { .. })
                && (open.assignment.epoch, open.assignment.hash) == (epoch, hash)
        });
        if !is_prepared {
            let kind = if epoch < self.epoch && !self.holds(epoch, hash) {
                FaultKind::Superseded { epoch: self.epoch, by: self.latest_by.clone() }
            } else {
                FaultKind::NotPrepared { epoch }
            };
            return self.refuse(session, id, kind);
        }
        let mut effects = self.keep_committed();
        if let Some(open) = self.open.take_if(|open| open.keeps) {
            // If the replica has failed since the prepare, recovery restarts it as part of the topology committed here.
            self.running.iter_mut().for_each(|running| running.assignment = open.assignment.clone());
            effects.push(Effect::respond_after_writes(ReplyTo { session, id }, ResponseBody::Committed));
            return effects;
        }
        if let Some(mut running) = self.running.take() {
            let fault = self.fault_here(FaultKind::Superseded { epoch, by: self.latest_by.clone() });
            effects.extend(running.requests.fail_all(&fault));
            effects.push(Effect::Engine(EngineEffect::Stop(running.engine)));
        }
        if let Some(open) = &mut self.open {
            open.phase = Phase::Connecting { commit: (session, id) };
        }
        effects.push(Effect::Assignment(AssignmentEffect::Connect(epoch)));
        effects
    }

    pub(super) fn connected(&mut self, epoch: Epoch, result: Result<(), Fault>) -> Vec<Effect> {
        if self.open_at(epoch).is_none() {
            return Vec::new();
        }
        if let Err(fault) = result {
            return self.fail_open(fault);
        }
        let Some(OpenAssignment { assignment, phase: Phase::Connecting { commit: (session, id) }, .. }) =
            self.open.take()
        else {
            return Vec::new();
        };
        let requests = Requests::new(self.now, self.requests_begun);
        let engine = assignment.epoch;
        self.takes_over = false;
        self.running = Some(RunningTopology { assignment, engine, requests, fault: None, peer_drains: None, kv: None });
        vec![Effect::respond_after_writes(ReplyTo { session, id }, ResponseBody::Committed)]
    }
}

#[cfg(test)]
mod tests {
    use telemetry::NodeState;

    use super::*;
    use crate::node::{
        event::Event,
        tests::{CONSOLE, node, prepare, topology},
    };

    #[test]
    fn progress_behind_the_end_of_its_load_changes_nothing() {
        let mut node = node();
        prepare(&mut node, CONSOLE, 3, 4);
        let progress = LoadProgress { done: Bytes(1), total: Bytes(5) };
        assert_eq!(node.handle(Event::LoadProgress(Epoch(4), progress)).len(), 1, "the console sees it");
        assert_eq!(node.load(), Some(progress));
        node.handle(Event::Loaded(Epoch(4), Ok(Bytes(5))));
        node.handle(Event::Persisted(Epoch(4), topology(2).hash(), Ok(())));
        assert!(node.handle(Event::LoadProgress(Epoch(4), progress)).is_empty());
        assert_eq!((node.state(), node.load()), (NodeState::Prepared, None));
    }
}
