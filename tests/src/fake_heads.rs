//! Fake heads for a gateway under test: they speak the protocol, report one topology and treat requests according to a
//! script. They compute nothing.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use assignment::fixtures::idle_report;
use common::{
    changes::TemplateChanges,
    chat::{AnswerForm, FinishReason, Thinking, ToolFormat},
    ids::{Epoch, MemberIndex, ModelIdentity},
    latency::RequestTimes,
};
use protocol::{
    NUMERIC_VERSION,
    connection::{Arrived, Door, receive_hello, send_welcome},
    handshake::{Identity, Welcome},
    message::{Finished, Generate, Prompt, Request, RequestBody, Response, ResponseBody, TokenEvent},
    messages::{MessageWriter, split},
    noise::{key::Role, keyring::Keyring},
};
use telemetry::{NodeReport, NodeState};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};
use topology::{Layout, Member, Topology};

use crate::{
    obedient,
    tool_answers::{TOOL_ANSWERS, ToolAnswer},
};

/// How a head treats a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Sends this many tokens and closes the connection, like a process that dies.
    DiesAfter(u32),
    /// Sends this many tokens, then reports that an operator cancelled the request.
    IsCancelledAfter(u32),
    /// Sends all tokens.
    Answers,
    /// Sends all tokens, each text one token late, and the rest of it with the last token: the end of a text may belong to a
    /// stop string.
    HoldsBack,
    /// Takes the request and sends nothing.
    Waits,
    /// Says this text, a letter a token, as a model that calls tools with tags and thinks from the prompt's end on.
    Says(&'static str),
    /// Answers a conversation whose first message is the number of one of [`TOOL_ANSWERS`], a letter a token, and one
    /// with the result of a tool by "7 degrees."; `dies` closes the connection
    /// in the middle of a call.
    CallsTools {
        /// Whether it breaks off.
        dies: bool,
    },
    /// Thinks until the thought is ended for it, then answers "Done.".
    Thinks,
    /// Says or calls as the user asks, see [`obedient`](crate::obedient).
    Obeys,
}

/// The tokens that end a thought.
const THOUGHT_END: [u32; 2] = [9007, 9008];

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
        unload_after: None,
        draft: None,
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
        recovers: true,
        state: NodeState::Ready,
        epoch: Epoch(3),
        topology: Some((topology.clone(), topology.hash(), member)),
        ..idle_report(name)
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
        let is_started = bodies.iter().any(|body| matches!(body, ResponseBody::Started { .. }));
        let is_ended = bodies.iter().any(|body| matches!(body, ResponseBody::Finished(_)));
        let dies = is_started && !is_ended;
        for body in bodies {
            writer.send(&Response { id, body }).await.ok()?;
        }
        (!dies).then_some(())
    }

    fn tokens(&self, generate: &Generate) -> Vec<ResponseBody> {
        let resumed = generate.resumed.len() as u32;
        let has_ended = generate.resumed.windows(2).any(|two| two == THOUGHT_END);
        let (count, end) = match self.script {
            Script::DiesAfter(count) => (count, None),
            Script::IsCancelledAfter(count) => (count, Some(FinishReason::Cancelled)),
            Script::Answers | Script::HoldsBack => (generate.max_tokens - resumed, Some(FinishReason::Length)),
            Script::Says(text) => (text.chars().count() as u32 - resumed, Some(FinishReason::Stop)),
            Script::CallsTools { .. } => return tool_answer(self.script, generate),
            Script::Obeys => return obeyed(generate),
            Script::Waits => return Vec::new(),
            Script::Thinks if has_ended => (1, Some(FinishReason::Stop)),
            Script::Thinks => (generate.max_tokens - resumed, Some(FinishReason::Length)),
        };
        let (tool_format, thinking) = match self.script {
            Script::Says(_) | Script::Thinks => (ToolFormat::Xml, Thinking::Open),
            _ => (ToolFormat::None, Thinking::None),
        };
        let changes = match generate.prompt {
            Prompt::Chat(_) => TemplateChanges::SYSTEMS_JOINED,
            // No conversation, or one that another head has rendered.
            Prompt::Text(_) | Prompt::Tokens(_) => TemplateChanges::default(),
        };
        let started = ResponseBody::Started {
            prompt_token_ids: vec![1, 2],
            form: AnswerForm { tool_format, thinking, thought_end: THOUGHT_END.to_vec(), ..AnswerForm::default() },
            changes,
        };
        std::iter::once(started)
            .chain((resumed..resumed + count).map(|number| {
                let text = match self.script {
                    Script::Thinks if has_ended => "Done.".into(),
                    Script::Says(text) => text.chars().nth(number as usize).into_iter().collect(),
                    Script::HoldsBack => {
                        let from = number.saturating_sub(1);
                        let to = if number + 1 == resumed + count { number + 1 } else { number };
                        (from..to).map(|number| format!("t{number} ")).collect()
                    }
                    _ => format!("t{number} ").into(),
                };
                ResponseBody::Token(TokenEvent { id: Some(number), text, logprobs: Vec::new() })
            }))
            .chain(end.map(finished))
            .collect()
    }
}

/// The responses of a model that says or calls as the user asks.
fn obeyed(generate: &Generate) -> Vec<ResponseBody> {
    let letters: Vec<char> = match &generate.prompt {
        Prompt::Chat(chat) => obedient::answer(&chat.messages).chars().collect(),
        _ => obedient::GREETING.chars().collect(),
    };
    let thinking = Thinking::Marked;
    let form = AnswerForm { tool_format: ToolFormat::Hermes, thinking, ..AnswerForm::default() };
    let changes = TemplateChanges::default();
    let started = ResponseBody::Started { prompt_token_ids: vec![1, 2], form, changes };
    let tokens = (generate.resumed.len()..letters.len()).map(|at| {
        let text = letters[at].to_string().into();
        ResponseBody::Token(TokenEvent { id: Some(at as u32), text, logprobs: Vec::new() })
    });
    std::iter::once(started).chain(tokens).chain([finished(FinishReason::Stop)]).collect()
}

/// The responses to a request of a conversation with tools.
fn tool_answer(script: Script, generate: &Generate) -> Vec<ResponseBody> {
    let (number, has_result) = match &generate.prompt {
        // The number of a resumed answer is that of its prompt.
        Prompt::Tokens(tokens) => (tokens[0] as usize, false),
        Prompt::Chat(chat) => {
            let messages: serde_json::Value = serde_json::from_str(&chat.messages).expect("messages are JSON");
            let number = messages[0]["content"].as_str().and_then(|text| text.parse().ok()).expect("a number");
            (number, messages.as_array().is_some_and(|list| list.iter().any(|message| message["role"] == "tool")))
        }
        Prompt::Text(_) => panic!("a conversation"),
    };
    let ToolAnswer { format, thinking, text } = TOOL_ANSWERS[number];
    let (text, thinking) = if has_result { ("7 degrees.", Thinking::None) } else { (text, thinking) };
    let letters: Vec<char> = text.chars().collect();
    let breaks_off = script == Script::CallsTools { dies: true } && !has_result && generate.resumed.is_empty();
    // In the middle of the argument.
    let middle = text.find("Oslo").map_or(0, |at| text[..at].chars().count() + 2);
    let end = if breaks_off { middle } else { letters.len() };
    let form = AnswerForm { tool_format: format, thinking, ..AnswerForm::default() };
    let changes = TemplateChanges::default();
    let started = ResponseBody::Started { prompt_token_ids: vec![number as u32], form, changes };
    let tokens = (generate.resumed.len()..end).map(|at| {
        let text = letters[at].to_string().into();
        ResponseBody::Token(TokenEvent { id: Some(at as u32), text, logprobs: Vec::new() })
    });
    let finished = (!breaks_off).then(|| finished(FinishReason::Stop));
    std::iter::once(started).chain(tokens).chain(finished).collect()
}
