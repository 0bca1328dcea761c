//! A scripted node for tests: a task that speaks the protocol and follows its script. It computes nothing.
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use assignment::fixtures::idle_report;
use common::{
    changes::TemplateChanges,
    chat::{AnswerForm, FinishReason},
    fault::{Fault, FaultClass, FaultKind},
    ids::{ContentRoot, Epoch, MemberIndex, ModelIdentity},
    latency::RequestTimes,
    units::{Bytes, Nanoseconds},
};
use protocol::{
    connection::{Arrived, Door, receive_hello, send_welcome},
    handshake::{Identity, Welcome},
    inspect::{Inspect, Inspected, LogLevel, LogLine, LogLines},
    kv::KvResponse,
    message::{Finished, ModelCard, Prepare, Request, RequestBody, Response, ResponseBody, TokenEvent, TokenLogprob},
    messages::{MessageReader, MessageWriter, split},
    models::{ModelsRequest, ModelsResponse},
    noise::{key::Role, keyring::Keyring},
    recovery::{RecoveryAnswer, RecoveryAsk, Standing},
};
use telemetry::{
    BenchFound, BenchProgress, KernelBench, LoadProgress, NodeReport, NodeState, PhaseTotals, RankTotals, StoreCleared,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};
use topology::{Rolling, Topology};

/// How a node handles a generation.
#[derive(Clone, Debug, Default)]
pub(crate) enum Generation {
    /// Sends this many tokens, then the end.
    #[default]
    Tokens,
    /// Sends tokens, then nothing until it is cancelled.
    UntilCancelled,
    /// Sends tokens, then closes the connection.
    Closes,
    /// Sends tokens, then a fault.
    Fails(Fault),
    /// Like `Fails` for the first request, like `Tokens` for later ones.
    FailsOnce(Fault),
}

/// The behaviour of a node. The default node does everything right.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    /// The epoch of the last assignment.
    pub(crate) epoch: u64,
    /// Refuses the handshake.
    pub(crate) welcome: Option<FaultKind>,
    /// The content of its model file.
    pub(crate) content: u8,
    /// Refuses to prepare.
    pub(crate) prepare: Option<FaultKind>,
    /// Refuses every prepare but the first.
    pub(crate) refuses_later: bool,
    /// Reports load progress forever.
    pub(crate) loads_on: bool,
    /// Refuses to commit.
    pub(crate) commit: Option<FaultKind>,
    /// Cannot store lists of excluded nodes, because its disk is full.
    pub(crate) keeps_no_list: bool,
    /// Accepts requests and never answers.
    pub(crate) is_mute: bool,
    /// How it handles a generation.
    pub(crate) generation: Generation,
    /// Lines that its log has dropped.
    pub(crate) lines_dropped: u64,
}

/// The first tokens of every generation.
pub(crate) const TOKENS: [(u32, &str); 3] = [(10, "O "), (11, "Rom"), (12, "eo")];

/// A running fake node.
#[derive(Debug)]
pub(crate) struct FakeNode {
    /// Its `ADDRESS:PORT`.
    pub(crate) address: String,
    state: Arc<FakeState>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct FakeState {
    name: String,
    script: Script,
    report: Mutex<NodeReport>,
    prepared: Mutex<Option<Prepare>>,
    asked: watch::Sender<Vec<&'static str>>,
}

impl FakeNode {
    /// Starts a node on a free loopback port.
    pub(crate) async fn start(name: &str, script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
        let address = listener.local_addr().expect("a bound listener has an address").to_string();
        let report = NodeReport { epoch: Epoch(script.epoch), ..idle_report(name) };
        let (report, prepared, asked) = (Mutex::new(report), Mutex::default(), watch::Sender::new(Vec::new()));
        let state = Arc::new(FakeState { name: name.into(), script, report, prepared, asked });
        let accepting = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&accepting).session(stream));
            }
        });
        Self { address, state, task }
    }

    /// The requests that it received, in order, without reports.
    pub(crate) fn asked(&self) -> Vec<&'static str> {
        self.state.asked.borrow().iter().copied().filter(|what| *what != "report").collect()
    }

    /// Sets the number of running requests in later reports.
    pub(crate) fn runs(&self, requests: u32) {
        self.state.report.lock().expect("the lock is not poisoned").requests = requests;
    }

    /// Waits until it receives a request of this kind.
    pub(crate) async fn await_asked(&self, what: &'static str) {
        let mut asked = self.state.asked.subscribe();
        asked.wait_for(|asked| asked.contains(&what)).await.expect("the node runs");
    }

    /// Waits until it receives a request of the second kind after one of the first kind.
    pub(crate) async fn await_asked_after(&self, first: &'static str, then: &'static str) {
        let mut asked = self.state.asked.subscribe();
        asked
            .wait_for(|asked| asked.iter().skip_while(|what| **what != first).any(|what| *what == then))
            .await
            .expect("the node runs");
    }

    /// Serves a topology from now on, with or without automatic recovery.
    pub(crate) fn serves(&self, topology: &Topology, member: u16, recovers: bool) {
        let mut report = lock(&self.state.report);
        (report.state, report.epoch, report.recovers) = (NodeState::Ready, Epoch(7), recovers);
        report.topology = Some((topology.clone(), topology.hash(), MemberIndex(member)));
    }

    /// Loses the topology that it runs.
    pub(crate) fn forget(&self) {
        *lock(&self.state.report) = NodeReport { epoch: Epoch(41), ..idle_report(&self.state.name) };
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeState {
    fn identity(&self) -> Identity {
        let machine = format!("machine of {}", self.name);
        Identity { name: self.name.clone(), build: "0".into(), numeric: 1, machine, cores: vec![0, 1, 2, 3] }
    }

    async fn session(self: Arc<Self>, stream: TcpStream) -> Option<()> {
        let door = Door { name: &self.name, keyring: &Keyring::empty(Role::Node), is_pairing: &|| false };
        let Arrived::Hello(mut connection, _) = receive_hello(stream, door).await.ok()? else { return None };
        if let Some(kind) = self.script.welcome.clone() {
            send_welcome(&mut connection, &Welcome::Refused(Fault::new(&self.name, kind))).await.ok()?;
            return None;
        }
        send_welcome(&mut connection, &Welcome::Accepted(self.identity())).await.ok()?;
        let (reader, writer) = split(connection);
        self.serve(reader, writer).await
    }

    async fn serve(&self, mut reader: MessageReader, mut writer: MessageWriter) -> Option<()> {
        while let Some(Request { id, body }) = reader.receive::<Request>().await.ok()? {
            let name = body.name();
            self.asked.send_modify(|asked| asked.push(name));
            if self.script.is_mute {
                continue;
            }
            for body in self.answers(body) {
                writer.send(&Response { id, body }).await.ok()?;
            }
            let closes = name == "generate" && matches!(self.script.generation, Generation::Closes);
            if closes || name == "restart" {
                return None;
            }
        }
        None
    }

    fn answers(&self, body: RequestBody) -> Vec<ResponseBody> {
        let no = |kind: &FaultKind| vec![ResponseBody::Failed(Fault::new(&self.name, kind.clone()))];
        match body {
            RequestBody::Report | RequestBody::Watch { .. } => {
                vec![ResponseBody::Report(Box::new(lock(&self.report).clone()))]
            }
            RequestBody::Identify { model } => vec![ResponseBody::Model(card(model))],
            RequestBody::Models(ask) if matches!(*ask, ModelsRequest::Content { .. }) => {
                let root = ContentRoot([self.script.content; 32]);
                vec![ResponseBody::Models(Box::new(ModelsResponse::Content(root)))]
            }
            RequestBody::Models(_) => {
                vec![ResponseBody::Models(Box::new(ModelsResponse::Listed(Vec::new())))]
            }
            RequestBody::Prepare(prepare) => self.prepare(*prepare),
            RequestBody::Commit { .. } => match (&self.script.commit, lock(&self.prepared).take()) {
                (Some(kind), _) => no(kind),
                (None, None) => no(&FaultKind::NotPrepared { epoch: Epoch(0) }),
                (None, Some(prepare)) => {
                    let mut report = lock(&self.report);
                    report.state = NodeState::Ready;
                    report.topology = Some((prepare.topology.clone(), prepare.topology.hash(), prepare.member));
                    report.desired = prepare.desired.clone();
                    vec![ResponseBody::Committed]
                }
            },
            RequestBody::Abort { .. } => {
                lock(&self.prepared).take();
                vec![ResponseBody::Aborted]
            }
            RequestBody::Generate(generate) => self.generation(generate.resumed.len()),
            RequestBody::Restart => {
                let mut report = lock(&self.report);
                (report.instance, report.state, report.topology) = (report.instance + 1, NodeState::Idle, None);
                vec![ResponseBody::Restarting]
            }
            RequestBody::Exclude(_) if self.script.keeps_no_list => {
                no(&FaultKind::StateUnwritable { reason: "no space left".into() })
            }
            RequestBody::Exclude(list) => {
                lock(&self.report).exclusions.merge(&list);
                vec![ResponseBody::Excluded]
            }
            RequestBody::Inspect(ask) => vec![ResponseBody::Inspected(Box::new(self.inspected(&ask)))],
            RequestBody::CancelRunning { number: 7 } => vec![ResponseBody::Cancelling],
            RequestBody::CancelRunning { number } => {
                no(&FaultKind::ParameterInvalid { reason: format!("no request {number} runs here") })
            }
            RequestBody::Records => vec![ResponseBody::Records(Vec::new())],
            RequestBody::Bench(_) => {
                let progress = BenchProgress { step: 1, steps: 1, what: "Q4_0 of scalar".into() };
                let found = KernelBench { threads: 1, tables: Vec::new() };
                vec![ResponseBody::Benching(progress), ResponseBody::Benched(BenchFound::Kernels(found))]
            }
            RequestBody::BenchLinks(_) => no(&FaultKind::NoLinks),
            RequestBody::Text(_) => no(&FaultKind::NotHead),
            RequestBody::Neighbours(_) | RequestBody::Unload(_) => vec![ResponseBody::Done],
            RequestBody::Kv(_) => vec![ResponseBody::Kv(Box::new(KvResponse::Written))],
            RequestBody::ClearStore => {
                vec![ResponseBody::StoreCleared(StoreCleared { files: 3, bytes: Bytes(3 << 20) })]
            }
            RequestBody::Recovery(ask) => vec![self.recovery(*ask)],
            RequestBody::Rekey(_) | RequestBody::RekeyWrapped(_) => {
                vec![ResponseBody::Rekeyed { fingerprint: String::new() }]
            }
            RequestBody::Cancel => vec![ResponseBody::Finished(finished(FinishReason::Cancelled))],
        }
    }

    fn prepare(&self, prepare: Prepare) -> Vec<ResponseBody> {
        let no = |kind: &FaultKind| vec![ResponseBody::Failed(Fault::new(&self.name, kind.clone()))];
        let seen = lock(&self.report).epoch;
        if prepare.seen != seen {
            return no(&FaultKind::EpochMoved { expected: prepare.seen, actual: seen });
        }
        if let Some(kind) = &self.script.prepare {
            return no(kind);
        }
        if self.script.refuses_later && lock(&self.report).topology.is_some() {
            return no(&FaultKind::Draining);
        }
        lock(&self.report).epoch = prepare.epoch;
        *lock(&self.prepared) = Some(prepare);
        let half = LoadProgress { done: Bytes(1), total: Bytes(2) };
        let prepared = (!self.script.loads_on).then_some(ResponseBody::Prepared);
        std::iter::once(ResponseBody::Loading(half)).chain(prepared).collect()
    }

    /// Answers recovery requests: stores rolling restarts and reports its state.
    fn recovery(&self, ask: RecoveryAsk) -> ResponseBody {
        let mut report = lock(&self.report);
        ResponseBody::Recovery(match ask {
            RecoveryAsk::Rolling(rolling) => {
                Rolling::merge(&mut report.rolling, &rolling);
                RecoveryAnswer::Learned
            }
            _ => RecoveryAnswer::Standing(Box::new(Standing {
                name: report.name.clone(),
                instance: report.instance,
                state: report.state,
                epoch: report.epoch,
                committed: None,
                accepted: false,
                forgets: false,
                unloaded: None,
                idle: None,
                free: Bytes(0),
                shard: Bytes(0),
                supervised: report.supervised,
                takes_over: false,
                exclusions: report.exclusions.clone(),
                rolling: report.rolling.clone(),
                heard: Vec::new(),
                busy: None,
                slow: None,
                trouble: None,
            })),
        })
    }

    fn inspected(&self, ask: &Inspect) -> Inspected {
        match ask {
            Inspect::Log { after, level } => {
                let lines = log().into_iter().filter(|line| line.number > *after && line.level >= *level).collect();
                let missed = if *after == 0 { self.script.lines_dropped } else { 0 };
                Inspected::Log(LogLines { lines, missed, next: 2, more: false })
            }
            Inspect::Settings => Inspected::Settings("name = \"pi1\"\n".into()),
        }
    }

    fn generation(&self, resumed: usize) -> Vec<ResponseBody> {
        let (form, changes) = (AnswerForm::default(), TemplateChanges::default());
        let mut answers = vec![ResponseBody::Started { prompt_token_ids: vec![1, 2], form, changes }];
        answers.extend(TOKENS.into_iter().skip(resumed).map(|(id, text)| {
            let logprobs = vec![TokenLogprob { id: 10, text: "O ".into(), logprob: -0.5, bytes: Vec::new() }];
            ResponseBody::Token(TokenEvent { id: Some(id), text: text.into(), logprobs })
        }));
        match &self.script.generation {
            Generation::FailsOnce(fault)
                if self.asked.borrow().iter().filter(|what| **what == "generate").count() == 1 =>
            {
                answers.truncate(2);
                answers.push(ResponseBody::Failed(fault.clone()));
            }
            Generation::Tokens | Generation::FailsOnce(_) => {
                // Text that was held back arrives without a token.
                let rest = TokenEvent { id: None, text: "!".into(), logprobs: Vec::new() };
                answers.push(ResponseBody::Token(rest));
                answers.push(ResponseBody::Finished(finished(FinishReason::Length)));
            }
            Generation::UntilCancelled | Generation::Closes => {}
            Generation::Fails(fault) => {
                if fault.kind.class() == FaultClass::Lost {
                    lock(&self.report).state = NodeState::Faulted;
                }
                answers.push(ResponseBody::Failed(fault.clone()));
            }
        }
        answers
    }
}

fn card(model: String) -> ModelCard {
    ModelCard { model, identity: ModelIdentity([7; 32]), ..crate::fixtures::card() }
}

/// The log of every fake node.
fn log() -> Vec<LogLine> {
    let line = |number, level, text: &str| LogLine { number, unix_ms: 1000 * number, level, text: text.into() };
    vec![line(1, LogLevel::Info, "idle -> loading"), line(2, LogLevel::Warn, "the processor has 84.0 C")]
}

/// The end of a generation of [`TOKENS`] on two ranks.
pub(crate) fn finished(reason: FinishReason) -> Finished {
    let ms = |ms: u64| Nanoseconds(ms * 1_000_000);
    let times = RequestTimes {
        dispatched: ms(1),
        first_token: ms(11),
        last_token: ms(31),
        prompt_tokens: 2,
        sampled_tokens: 3,
        ..RequestTimes::default()
    };
    let decode = PhaseTotals {
        steps: 2,
        tokens: 2,
        compute: ms(12),
        wait: ms(5),
        wire: ms(3),
        bubble: Nanoseconds(0),
        threads: Nanoseconds(0),
        bytes_sent: 24_576,
        messages_sent: 24,
    };
    let totals = RankTotals { prefill: PhaseTotals::default(), decode };
    Finished { reason, times, ranks: vec![totals; 2], sampling_rounds: 0 }
}
