//! Benchmarks: one at a time, on an idle node. Link benchmarks also run on a node that serves a topology, as long as it
//! runs no request. An assignment, a request, a drain or the end of the session cancels a benchmark.
use common::{
    fault::{Fault, FaultKind},
    ids::RequestId,
};
use protocol::{bench::Bench, message::ResponseBody};
use telemetry::{BenchFound, BenchProgress};

use super::{
    event::{BenchKey, ReplyTo, SessionId},
    machine::Node,
};
use crate::node::benches::RunningBench;
use crate::node::effect::{BenchEffect, Effect, SessionEffect};

impl Node {
    /// Refuses operations that would disturb a running benchmark.
    pub fn check_benching(&self) -> Result<(), FaultKind> {
        let running = self.benches.running.as_ref();
        running.map_or(Ok(()), |running| Err(FaultKind::BenchRuns { by: running.by.clone() }))
    }

    fn check_bench(&self, bench: &Bench) -> Result<(), FaultKind> {
        if self.draining.is_some() {
            return Err(FaultKind::Draining);
        }
        self.check_benching()?;
        let is_free = match (bench, &self.running) {
            (Bench::Network(_), Some(running)) if !running.requests.is_empty() => {
                return Err(FaultKind::RequestsRun { count: running.requests.len() as u32 });
            }
            (Bench::Network(_), _) => true,
            (_, running) => running.is_none(),
        };
        if self.serves() {
            self.check_assigning()?;
        }
        if self.open.is_some() || !is_free {
            return Err(FaultKind::NotIdle { state: self.state().name().into() });
        }
        bench.check().map_err(|reason| FaultKind::ParameterInvalid { reason })
    }

    pub(super) fn bench(&mut self, to: ReplyTo, by: String, bench: Bench) -> Vec<Effect> {
        let ReplyTo { session, id } = to;
        if let Err(kind) = self.check_bench(&bench) {
            return self.refuse(session, id, kind);
        }
        self.benches.latest += 1;
        let key = BenchKey(self.benches.latest);
        self.benches.running = Some(RunningBench { key, session, id, by });
        vec![Effect::Bench(BenchEffect::Start(key, Box::new(bench)))]
    }

    pub(super) fn bench_progress(&self, key: BenchKey, progress: BenchProgress) -> Vec<Effect> {
        let running = self.benches.running.iter().filter(|running| running.key == key);
        let respond = running.map(|running| {
            let RunningBench { session, id, .. } = *running;
            Effect::Session(SessionEffect::Respond { session, id, body: ResponseBody::Benching(progress.clone()) })
        });
        respond.collect()
    }

    pub(super) fn bench_ended(&mut self, key: BenchKey, result: Result<BenchFound, Fault>) -> Vec<Effect> {
        let Some(RunningBench { session, id, .. }) = self.benches.running.take_if(|running| running.key == key) else {
            return Vec::new();
        };
        vec![Effect::Session(SessionEffect::Respond {
            session,
            id,
            body: result.map_or_else(ResponseBody::Failed, ResponseBody::Benched),
        })]
    }

    /// Ends the running benchmark, if any, and sends the fault to the session that requested it.
    pub(super) fn end_bench(&mut self, kind: FaultKind) -> Vec<Effect> {
        let Some(RunningBench { key, session, id, .. }) = self.benches.running.take() else { return Vec::new() };
        let body = ResponseBody::Failed(self.fault_here(kind));
        vec![Effect::Bench(BenchEffect::Stop(key)), Effect::Session(SessionEffect::Respond { session, id, body })]
    }

    /// Cancels a benchmark on request of the session that started it.
    pub(super) fn cancel_bench(&mut self, session: SessionId, id: Option<RequestId>) -> Vec<Effect> {
        match &self.benches.running {
            Some(running) if running.session == session && id.is_none_or(|id| running.id == id) => {
                let by = running.by.clone();
                self.end_bench(FaultKind::BenchCancelled { by })
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use collectives::Algorithm;
    use common::ids::Epoch;
    use protocol::{
        bench::{BENCH_REPEATS_MAX, BenchKernels, BenchLinks},
        message::RequestBody,
        network::{BenchNetwork, Neighbour},
    };
    use telemetry::{KernelBench, NodeState};
    use topology::Topology;

    use super::*;
    use crate::node::{
        Event,
        effect::{AssignmentEffect, EngineEffect},
        tests::{CONSOLE, OTHER, ask, failure, generate, node, prepare, prepare_of, running, topology},
    };

    fn bench() -> Bench {
        Bench::Kernels(BenchKernels {
            model: None,
            threads: 1,
            formats: Vec::new(),
            tables: Vec::new(),
            tokens: Vec::new(),
            rows: 16,
            columns: 256,
            repeats: 1,
        })
    }

    fn asked(node: &mut Node, session: SessionId) -> Vec<Effect> {
        ask(node, session, 7, RequestBody::Bench(Box::new(bench())))
    }

    fn benching() -> Node {
        let mut node = node();
        assert_eq!(asked(&mut node, CONSOLE), [Effect::Bench(BenchEffect::Start(BenchKey(1), Box::new(bench())))]);
        assert_eq!(node.state(), NodeState::Benching);
        node
    }

    fn found() -> BenchFound {
        BenchFound::Kernels(KernelBench { threads: 1, tables: Vec::new() })
    }

    #[test]
    fn bench_reports_progress_and_end_to_its_session() {
        let mut node = benching();
        let progress = BenchProgress { step: 1, steps: 2, what: "prefill".into() };
        let told = node.handle(Event::BenchProgress(BenchKey(1), progress.clone()));
        let body = ResponseBody::Benching(progress.clone());
        assert_eq!(told, [Effect::Session(SessionEffect::Respond { session: CONSOLE, id: RequestId(7), body })]);
        let ended = node.handle(Event::BenchEnded(BenchKey(1), Ok(found())));
        let body = ResponseBody::Benched(found());
        assert_eq!(ended, [Effect::Session(SessionEffect::Respond { session: CONSOLE, id: RequestId(7), body })]);
        assert_eq!(node.state(), NodeState::Idle);
        assert_eq!(node.handle(Event::BenchProgress(BenchKey(1), progress)), []);
        assert_eq!(asked(&mut node, OTHER), [Effect::Bench(BenchEffect::Start(BenchKey(2), Box::new(bench())))]);
        assert_eq!(node.handle(Event::BenchEnded(BenchKey(1), Ok(found()))), [], "that was the previous benchmark");
    }

    #[test]
    fn only_an_idle_node_runs_one_bench_at_a_time() {
        let refused = |node: &mut Node| failure(&asked(node, OTHER)).cloned();
        let mut serving = running();
        assert_eq!(refused(&mut serving), Some(FaultKind::NotIdle { state: "ready".into() }));
        let mut loading = node();
        prepare(&mut loading, CONSOLE, 3, 4);
        assert_eq!(refused(&mut loading), Some(FaultKind::NotIdle { state: "loading".into() }));
        assert_eq!(refused(&mut benching()), Some(FaultKind::BenchRuns { by: "console 1".into() }));
        let mut draining = running();
        ask(&mut draining, CONSOLE, 1, RequestBody::Restart);
        assert_eq!(refused(&mut draining), Some(FaultKind::Draining));
        let mut node = node();
        let Bench::Kernels(mut kernels) = bench() else { panic!("a benchmark of kernels") };
        kernels.repeats = BENCH_REPEATS_MAX + 1;
        let effects = ask(&mut node, CONSOLE, 1, RequestBody::Bench(Box::new(Bench::Kernels(kernels))));
        assert!(
            matches!(failure(&effects), Some(FaultKind::ParameterInvalid { reason }) if reason.contains("repeats"))
        );
        assert_eq!(node.state(), NodeState::Idle);
    }

    #[test]
    fn bench_ends_on_cancel_session_end_or_drain() {
        let stop = Effect::Bench(BenchEffect::Stop(BenchKey(1)));
        let mut cancelled = benching();
        assert_eq!(ask(&mut cancelled, OTHER, 7, RequestBody::Cancel), [], "another session's id");
        assert_eq!(ask(&mut cancelled, CONSOLE, 8, RequestBody::Cancel), [], "another id");
        let effects = ask(&mut cancelled, CONSOLE, 7, RequestBody::Cancel);
        assert!(effects.contains(&stop) && matches!(failure(&effects), Some(FaultKind::BenchCancelled { .. })));
        assert_eq!(cancelled.state(), NodeState::Idle);
        let mut closed = benching();
        assert_eq!(closed.handle(Event::SessionClosed(OTHER)), []);
        assert!(closed.handle(Event::SessionClosed(CONSOLE)).contains(&stop));
        let mut slow = benching();
        assert!(slow.handle(Event::SessionSlow(CONSOLE)).contains(&stop));
        let mut drained = benching();
        let effects = drained.handle(Event::Terminate { now: Duration::ZERO });
        assert!(matches!(failure(&effects), Some(FaultKind::DrainEnded)), "{effects:?}");
        assert!(effects.contains(&stop) && effects.last() == Some(&Effect::Exit(0)));
    }

    #[test]
    fn request_cancels_link_bench_of_serving_node() {
        let peer = Neighbour { name: "pi2".into(), address: "10.0.0.2:9999".into() };
        let links =
            || Bench::Network(BenchNetwork { peers: vec![peer.clone()], pings: 1, stream_ms: 5, incast: false });
        let ask_links = |node: &mut Node| ask(node, OTHER, 7, RequestBody::Bench(Box::new(links())));
        let mut node = running();
        assert_eq!(ask_links(&mut node), [Effect::Bench(BenchEffect::Start(BenchKey(1), Box::new(links())))]);
        assert_eq!(node.state(), NodeState::Ready, "the node keeps serving");
        let effects = generate(&mut node, CONSOLE, 3);
        assert_eq!(effects[0], Effect::Bench(BenchEffect::Stop(BenchKey(1))));
        assert!(matches!(failure(&effects[1..2]), Some(FaultKind::BenchSuperseded { .. })), "{effects:?}");
        assert!(matches!(effects[2..], [Effect::Engine(EngineEffect::Command(_))]), "{effects:?}");
        assert_eq!(failure(&ask_links(&mut node)), Some(&FaultKind::RequestsRun { count: 1 }));
    }

    #[test]
    fn open_assignment_of_serving_node_refuses_benches_by_name() {
        let mut node = running();
        let next = Topology { slots: 1, ..topology(2) };
        prepare_of(&mut node, OTHER, (4, 5), next);
        assert_eq!(node.state(), NodeState::Ready, "it serves while it loads");
        let refused = asked(&mut node, CONSOLE);
        assert!(matches!(failure(&refused), Some(FaultKind::PrepareOpen { epoch: Epoch(5), .. })), "{refused:?}");
        assert!(matches!(node.check_assigning(), Err(FaultKind::PrepareOpen { .. })));
    }

    #[test]
    fn timing_all_reduces_ends_a_link_bench() {
        let peer = Neighbour { name: "pi2".into(), address: "10.0.0.2:9999".into() };
        let links = BenchNetwork { peers: vec![peer], pings: 1, stream_ms: 5, incast: false };
        let mut node = running();
        ask(&mut node, OTHER, 7, RequestBody::Bench(Box::new(Bench::Network(links))));
        assert!(matches!(node.check_benching(), Err(FaultKind::BenchRuns { by }) if by == "console 2"));
        let wanted = BenchLinks { tokens: vec![1], algorithms: vec![Algorithm::Direct], repeats: 5 };
        let effects = ask(&mut node, CONSOLE, 8, RequestBody::BenchLinks(wanted));
        assert_eq!(effects[0], Effect::Bench(BenchEffect::Stop(BenchKey(1))));
        assert!(matches!(failure(&effects[1..2]), Some(FaultKind::BenchSuperseded { .. })), "{effects:?}");
        assert!(matches!(effects[2..], [Effect::Engine(EngineEffect::Command(_))]), "{effects:?}");
        assert_eq!(node.check_benching(), Ok(()));
    }

    #[test]
    fn assignment_ends_a_bench_unless_it_is_refused() {
        let mut node = benching();
        assert!(failure(&prepare(&mut node, OTHER, 2, 4)).is_some(), "the epoch has moved");
        assert_eq!(node.state(), NodeState::Benching);
        let effects = prepare(&mut node, OTHER, 3, 4);
        let by = "console 2".to_owned();
        let body = ResponseBody::Failed(node.fault_here(FaultKind::BenchSuperseded { by }));
        let stopped = [
            Effect::Bench(BenchEffect::Stop(BenchKey(1))),
            Effect::Session(SessionEffect::Respond { session: CONSOLE, id: RequestId(7), body }),
        ];
        assert_eq!(effects[..2], stopped, "stopped before anything is loaded");
        assert!(
            matches!(&effects[2..], [Effect::Assignment(AssignmentEffect::Load(prepare))] if prepare.epoch == Epoch(4)),
            "{effects:?}"
        );
        assert_eq!(node.state(), NodeState::Loading);
        assert_eq!(node.handle(Event::BenchEnded(BenchKey(1), Ok(found()))), []);
    }
}
