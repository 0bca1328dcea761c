//! Benches: one at a time, only while nothing else is here. An assignment, a drain or the end of its session ends one: a
//! bench is a question, an assignment is what the node is for.
use shared::{
    ids::RequestId,
    protocol::{
        bench::Bench,
        error::{Fault, FaultKind},
        message::ResponseBody,
    },
    telemetry::{BenchFound, BenchProgress},
};

use super::{
    event::{BenchKey, Effect, SessionId},
    machine::Node,
};

/// A bench that runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Running {
    key: BenchKey,
    session: SessionId,
    id: RequestId,
    by: String,
}

/// The bench of a node, and the number of the latest.
#[derive(Debug, Default)]
pub(super) struct Benches {
    latest: u64,
    running: Option<Running>,
}

impl Benches {
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

impl Node {
    fn check_bench(&self, bench: &Bench) -> Result<(), FaultKind> {
        if self.draining.is_some() {
            return Err(FaultKind::Draining);
        }
        if let Some(running) = &self.benches.running {
            return Err(FaultKind::BenchRuns { by: running.by.clone() });
        }
        if self.open.is_some() || self.running.is_some() {
            return Err(FaultKind::NotIdle { state: self.state().name().into() });
        }
        bench.check().map_err(|reason| FaultKind::ParameterInvalid { reason })
    }

    pub(super) fn bench(&mut self, (session, id): (SessionId, RequestId), by: String, bench: Bench) -> Vec<Effect> {
        if let Err(kind) = self.check_bench(&bench) {
            return self.refuse(session, id, kind);
        }
        self.benches.latest += 1;
        let key = BenchKey(self.benches.latest);
        self.benches.running = Some(Running { key, session, id, by });
        vec![Effect::Bench(key, Box::new(bench))]
    }

    pub(super) fn bench_progress(&self, key: BenchKey, progress: BenchProgress) -> Vec<Effect> {
        let running = self.benches.running.iter().filter(|running| running.key == key);
        let body = |running: &Running| {
            let Running { session, id, .. } = *running;
            Effect::Respond { session, id, body: ResponseBody::Benching(progress.clone()) }
        };
        running.map(body).collect()
    }

    pub(super) fn bench_ended(&mut self, key: BenchKey, result: Result<BenchFound, Fault>) -> Vec<Effect> {
        let Some(Running { session, id, .. }) = self.benches.running.take_if(|running| running.key == key) else {
            return Vec::new();
        };
        vec![Effect::Respond { session, id, body: result.map_or_else(ResponseBody::Failed, ResponseBody::Benched) }]
    }

    /// Ends the bench, if one runs; who asked for it hears why.
    pub(super) fn end_bench(&mut self, kind: FaultKind) -> Vec<Effect> {
        let Some(Running { key, session, id, .. }) = self.benches.running.take() else { return Vec::new() };
        let body = ResponseBody::Failed(self.fault_here(kind));
        vec![Effect::StopBench(key), Effect::Respond { session, id, body }]
    }

    /// Who asked for it wants it no more.
    pub(super) fn cancel_bench(&mut self, session: SessionId, id: Option<RequestId>) -> Vec<Effect> {
        let is_it = |running: &&Running| running.session == session && id.is_none_or(|id| running.id == id);
        let by = self.benches.running.as_ref().filter(is_it).map(|running| running.by.clone());
        by.map_or_else(Vec::new, |by| self.end_bench(FaultKind::BenchCancelled { by }))
    }
}
