//! Fake heads for a gateway under test: they speak the protocol, report one topology and treat requests according to a
//! script. They compute nothing.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::{
    chat::{FinishReason, Thinking, ToolFormat},
    ids::{Epoch, MemberIndex, ModelIdentity},
    latency::RequestTimes,
    units::Bytes,
};
use protocol::{
    NUMERIC_VERSION,
    connection::{Arrived, Door, receive_hello, send_welcome},
    handshake::{Identity, Welcome},
    message::{Finished, Generate, Request, RequestBody, Response, ResponseBody, TokenEvent},
    messages::{MessageWriter, split},
    noise::{key::Role, keyring::Keyring},
};
use telemetry::{Health, NodeReport, NodeState};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};
use topology::{Exclusions, Layout, Member, Topology};

/// How a head treats a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Sends this many tokens and closes the connection, like a process that dies.
    DiesAfter(u32),
    /// Sends this many tokens, then reports that an operator cancelled the request.
    IsCancelledAfter(u32),
    /// Sends all tokens.
    Answers,
    /// Says this text, a letter a token, as a model that calls tools with tags and thinks from the prompt's end on.
    Says(&'static str),
}

/// The heads of one topology, one per replica.
#[derive(Debug)]
pub struct FakeHeads {
    /// `ADDRESS:PORT` of each head.
    pub addresses: Vec<String>,
    asked: Arc<Mutex<Vec<Generate>>>,
    _runtime: Runtime,
}

/// One fake head.
#[derive(Debug)]
struct Head {
    name: String,
    script: Script,
    report: NodeReport,
    asked: Arc<Mutex<Vec<Generate>>>,
}

impl FakeHeads {
    /// Starts a head for each script on free loopback ports.
    ///
    /// # Panics
    /// If no port is free.
    pub fn start(scripts: &[Script]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("create a runtime");
        let listeners: Vec<TcpListener> = scripts
            .iter()
            .map(|_| runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("bind to loopback"))
            .collect();
        let addresses: Vec<String> = listeners
            .iter()
            .map(|listener| listener.local_addr().expect("the listener is bound").to_string())
            .collect();
        let (topology, asked) = (topology(&addresses), Arc::<Mutex<Vec<Generate>>>::default());
        for (index, (listener, script)) in listeners.into_iter().zip(scripts).enumerate() {
            let name = topology.members[index].name.clone();
            let report = report(&name, &topology, MemberIndex(index as u16));
            let head = Arc::new(Head { name, script: *script, report, asked: Arc::clone(&asked) });
            runtime.spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(Arc::clone(&head).session(stream));
                }
            });
        }
        Self { addresses, asked, _runtime: runtime }
    }

    /// The requests that reached a head, in order.
    pub fn asked(&self) -> Vec<Generate> {
        lock(&self.asked).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn topology(addresses: &[String]) -> Topology {
    let topology = Topology {
        layout: Layout { replicas: addresses.len() as u16, ..Layout::tensor_parallel(1) },
        members: addresses
            .iter()
            .enumerate()
            .map(|(index, address)| Member {
                name: format!("head{index}"),
                address: address.clone(),
                weight: 1,
                layers: 0..2,
                cores: Vec::new(),
                threads: 1,
                spin: false,
            })
            .collect(),
        model: "fake.gguf".into(),
        identity: ModelIdentity([7; 32]),
        content: None,
        kv: Default::default(),
        exchange: Default::default(),
        collective: Default::default(),
        context_length: 256,
        slots: 4,
    };
    topology.check().expect("gateways accept only valid topologies");
    topology
}

fn report(name: &str, topology: &Topology, member: MemberIndex) -> NodeReport {
    NodeReport {
        name: name.into(),
        instance: 1,
        supervised: true,
        recovers: true,
        unix_ms: 0,
        build: "0".into(),
        kernels: "scalar".into(),
        state: NodeState::Ready,
        epoch: Epoch(3),
        topology: Some((topology.clone(), topology.hash(), member)),
        fault: None,
        load: None,
        shard: Bytes(0),
        memory_resident: Bytes(1 << 20),
        health: Health::default(),
        requests: 0,
        tokens: 0,
        traces: Vec::new(),
        layers: Vec::new(),
        lateness: Vec::new(),
        hops: Vec::new(),
        desired: None,
        collectives: None,
        kv: None,
        exclusions: Exclusions::default(),
        rolling: None,
        measured: Default::default(),
    }
}

fn finished(reason: FinishReason) -> ResponseBody {
    let times = RequestTimes::default();
    ResponseBody::Finished(Finished { reason, times, ranks: Vec::new(), sampling_rounds: 0 })
}

impl Head {
    async fn session(self: Arc<Self>, stream: TcpStream) -> Option<()> {
        let door = Door { name: &self.name, keyring: &Keyring::empty(Role::Node), is_pairing: &|| false };
        let Arrived::Hello(mut connection, _) = receive_hello(stream, door).await.ok()? else { return None };
        let (name, build, machine) = (self.name.clone(), "0".into(), "m".into());
        let identity = Identity { name, build, numeric: NUMERIC_VERSION, machine, cores: Vec::new() };
        send_welcome(&mut connection, &Welcome::Accepted(identity)).await.ok()?;
        let (mut reader, mut writer) = split(connection);
        while let Some(request) = reader.receive::<Request>().await.ok()? {
            self.answer(request, &mut writer).await?;
        }
        None
    }

    /// Answers one request; `None` ends the session.
    async fn answer(&self, Request { id, body }: Request, writer: &mut MessageWriter) -> Option<()> {
        let bodies = match body {
            // Watched nodes report repeatedly; one report per request is enough here.
            RequestBody::Watch { .. } => {
                let reason = "watches".into();
                vec![ResponseBody::Failed(common::fault::Fault::new(
                    &self.name,
                    common::fault::FaultKind::Full { what: reason, limit: 0 },
                ))]
            }
            RequestBody::Report => vec![ResponseBody::Report(Box::new(self.report.clone()))],
            RequestBody::Generate(generate) => {
                lock(&self.asked).push((*generate).clone());
                self.tokens(&generate)
            }
            _ => Vec::new(),
        };
        let dies = bodies.iter().any(|body| matches!(body, ResponseBody::Started { .. }))
            && matches!(self.script, Script::DiesAfter(_));
        for body in bodies {
            writer.send(&Response { id, body }).await.ok()?;
        }
        (!dies).then_some(())
    }

    fn tokens(&self, generate: &Generate) -> Vec<ResponseBody> {
        let resumed = generate.resumed.len() as u32;
        let (count, end) = match self.script {
            Script::DiesAfter(count) => (count, None),
            Script::IsCancelledAfter(count) => (count, Some(FinishReason::Cancelled)),
            Script::Answers => (generate.max_tokens - resumed, Some(FinishReason::Length)),
            Script::Says(text) => (text.chars().count() as u32 - resumed, Some(FinishReason::Stop)),
        };
        let (tool_format, thinking) = match self.script {
            Script::Says(_) => (ToolFormat::Xml, Thinking::Open),
            _ => (ToolFormat::None, Thinking::None),
        };
        let started = ResponseBody::Started { prompt_token_ids: vec![1, 2], tool_format, thinking };
        std::iter::once(started)
            .chain((resumed..resumed + count).map(|number| {
                let text = match self.script {
                    Script::Says(text) => text.chars().nth(number as usize).into_iter().collect(),
                    _ => format!("t{number} ").into(),
                };
                ResponseBody::Token(TokenEvent { id: Some(number), text, logprobs: Vec::new() })
            }))
            .chain(end.map(finished))
            .collect()
    }
}
