//! Messages after the handshake: requests and responses of consoles, heartbeats of ranks. Data frames are in `frame`.
use compact_str::CompactString;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    ids::{Epoch, MemberIndex, ModelIdentity, ModelRoots, Rank, RequestId, TopologyHash},
    latency::RequestTimes,
    protocol::{
        bench::{Bench, BenchLinks},
        error::{Fault, FaultKind},
        inspect::{Inspect, Inspected},
        models::{ModelsRequest, ModelsResponse},
        pairing::{Rekey, WrappedKey},
        recovery::{RecoveryAnswer, RecoveryAsk},
    },
    sampling::SamplingParameters,
    telemetry::{BenchFound, BenchProgress, LinkBench, LoadProgress, NodeReport, RankTotals, SyncRecord},
    topology::{Exclusions, Topology, sizes::ModelSizes},
    units::{Bytes, Nanoseconds},
};

/// Longest message between console and daemon, or between the control ends of two ranks.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Longest prompt in bytes.
pub const PROMPT_BYTES_MAX: usize = 2 << 20;
/// Most stop strings, and the longest of them in bytes.
pub const STOP_STRINGS_MAX: usize = 16;
/// Longest stop string in bytes.
pub const STOP_BYTES_MAX: usize = 256;
/// Longest schema of a grammar in bytes.
pub const GRAMMAR_BYTES_MAX: usize = 256 << 10;
/// Shortest interval between reports, in milliseconds.
pub const REPORT_INTERVAL_MS_MIN: u32 = 50;

/// A console's request. Responses carry the same id; a `Generate` or a `Bench` is cancelled by a `Cancel` with its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the console, unique within its session.
    pub id: RequestId,
    /// What it asks for.
    pub body: RequestBody,
}

/// What a console asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RequestBody {
    /// One report.
    Report,
    /// Reports at an interval until the session ends.
    Watch {
        /// Time between two reports.
        interval_ms: u32,
    },
    /// Identity and shape of a model file.
    Identify {
        /// File name below the node's model folders.
        model: String,
    },
    /// Load a shard and promise to commit. Answered by `Loading` now and then, `Prepared` at the end.
    Prepare(Box<Prepare>),
    /// Switch to what was prepared. Answered by `Committed` once the links to all ranks are open.
    Commit {
        /// The prepared epoch.
        epoch: Epoch,
        /// The prepared topology.
        hash: TopologyHash,
    },
    /// Forget what was prepared.
    Abort {
        /// The prepared epoch.
        epoch: Epoch,
        /// The prepared topology.
        hash: TopologyHash,
    },
    /// Complete a text (heads only).
    Generate(Box<Generate>),
    /// Cancel the `Generate` or the `Bench` with the same id.
    Cancel,
    /// Drain, then end so that the supervisor starts the daemon again. Answered by `Restarting`.
    Restart,
    /// What an operator said about nodes to be out or in. Answered by `Excluded` once it is on disk.
    Exclude(Exclusions),
    /// Measure this machine, which must hold no topology. Answered by `Benching` now and then, `Benched` at the end.
    Bench(Box<Bench>),
    /// The latest all-reduces one by one. Answered by `Records`.
    Records,
    /// Look at model files, or change them.
    Models(Box<ModelsRequest>),
    /// Take the cluster's next key. Answered by `Rekeyed` once it is on disk.
    Rekey(Box<Rekey>),
    /// Time all-reduces of the head's stage while no request runs (heads only). Answered by `BenchedLinks`.
    BenchLinks(BenchLinks),
    /// Of nodes that bring a topology back, and of consoles that help them. Answered by `Recovery`.
    Recovery(Box<RecoveryAsk>),
    /// Look at the node's log or settings. Answered by `Inspected`.
    Inspect(Inspect),
    /// Cancel a request of whoever asked for it (heads only). Answered by `Cancelling`.
    CancelRunning {
        /// Its number, as reports tell it.
        number: u64,
    },
    /// As `Rekey`, under the present key. Since wire version 5.
    RekeyWrapped(Box<WrappedKey>),
}

impl RequestBody {
    /// What it is called in the audit log and in refusals.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Watch { .. } => "watch",
            Self::Identify { .. } => "identify",
            Self::Prepare(_) => "prepare",
            Self::Commit { .. } => "commit",
            Self::Abort { .. } => "abort",
            Self::Generate(_) => "generate",
            Self::Cancel => "cancel",
            Self::Restart => "restart",
            Self::Exclude(_) => "exclude",
            Self::Bench(_) => "bench",
            Self::Records => "records",
            Self::BenchLinks(_) => "bench-links",
            Self::Rekey(_) | Self::RekeyWrapped(_) => "rekey",
            Self::Recovery(_) => "recovery",
            Self::Inspect(_) => "inspect",
            Self::CancelRunning { .. } => "cancel-running",
            Self::Models(request) => request.name(),
        }
    }
}

/// The first phase of an assignment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepare {
    /// The node's epoch as the console read it.
    pub seen: Epoch,
    /// The new epoch: one more than the highest of all nodes.
    pub epoch: Epoch,
    /// The topology.
    pub topology: Topology,
    /// The place of the node that gets this.
    pub member: MemberIndex,
    /// The topology that the operator requested, if `topology` is a reduced form of it.
    #[serde(default, with = "super::version::since_5")]
    pub desired: Option<Box<Topology>>,
    /// What becomes of the running shard.
    #[serde(default, with = "super::version::since_5")]
    pub previous: Previous,
}

/// What becomes of the shard that a node runs when it prepares another topology. All ranks of a replica get the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Previous {
    /// It serves until the commit; the next one is loaded next to it.
    #[default]
    Serves,
    /// It stays: its replica does not change, and all of its ranks serve.
    Stays,
    /// It is unloaded first, because memory does not hold both.
    Leaves,
}

/// A text to complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generate {
    /// What goes before the answer.
    pub prompt: Prompt,
    /// Tokens of the answer that are there already, sampled on another replica or before a loss: they are fed with the prompt and not
    /// told again. Text, stop strings and random numbers go on as if they had been sampled here.
    pub resumed: Vec<u32>,
    /// Most tokens of the answer, `resumed` included.
    pub max_tokens: u32,
    /// How tokens are drawn.
    pub sampling: SamplingParameters,
    /// Texts that end the generation; they are not part of it.
    pub stop: Vec<String>,
    /// What the answer must look like.
    pub grammar: Option<Grammar>,
    /// Most tokens that may be drafted at once; 0: none. Tokens are the same with drafts and without.
    pub drafts_max: u16,
    /// Go on behind a token that ends texts, until the last of `max_tokens`.
    pub ignores_end: bool,
    /// The model that the answer belongs to; a node that serves another one refuses. `None`: any.
    #[serde(default, with = "crate::protocol::version::since_5")]
    pub model: Option<Box<ModelRoots>>,
}

/// What goes before an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Prompt {
    /// Raw text; the tokenizer adds BOS where the model wants it.
    Text(String),
    /// Token ids as they are.
    Tokens(Vec<u32>),
    /// A conversation, which the head writes out with the model's chat template.
    Chat(Box<Chat>),
}

/// A conversation as the OpenAI API has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chat {
    /// A JSON array of messages.
    pub messages: String,
    /// A JSON array of tools.
    pub tools: Option<String>,
}

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Grammar {
    /// Any JSON object.
    Json,
    /// JSON that a schema allows (the schema's text).
    JsonSchema(String),
}

/// How a model's chat template writes calls of tools, which tells how they are found in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolFormat {
    /// It knows no tools.
    #[default]
    None,
    /// `{"name": .., "parameters": ..}` (Llama 3.1 and later).
    Llama3,
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>` (Hermes, Qwen 2.5 and 3).
    Hermes,
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl Prompt {
    /// Raw text, if it is one.
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Bytes of its texts, or four for each token.
    pub fn byte_count(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(tokens) => 4 * tokens.len(),
            Self::Chat(chat) => chat.messages.len() + chat.tools.as_ref().map_or(0, String::len),
        }
    }
}

impl Grammar {
    /// Bytes of its text.
    pub fn byte_count(&self) -> usize {
        match self {
            Self::Json => 0,
            Self::JsonSchema(schema) => schema.len(),
        }
    }
}

impl Generate {
    /// An answer from its beginning, in whatever form it comes.
    pub fn new(prompt: impl Into<Prompt>, max_tokens: u32, sampling: SamplingParameters, stop: Vec<String>) -> Self {
        Self {
            prompt: prompt.into(),
            resumed: Vec::new(),
            max_tokens,
            sampling,
            stop,
            grammar: None,
            drafts_max: u16::MAX,
            ignores_end: false,
            model: None,
        }
    }
}

/// A node's response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The request's id.
    pub id: RequestId,
    /// The answer.
    pub body: ResponseBody,
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ResponseBody {
    /// A report.
    Report(Box<NodeReport>),
    /// A model's identity.
    Model(ModelCard),
    /// Progress of a prepare.
    Loading(LoadProgress),
    /// The shard is loaded, (epoch, hash) are on disk.
    Prepared,
    /// Links are open; the node is ready.
    Committed,
    /// What was prepared is forgotten.
    Aborted,
    /// The request runs.
    Started {
        /// The prompt's tokens.
        prompt_token_ids: Vec<u32>,
        /// How calls of tools look in the answer.
        tool_format: ToolFormat,
    },
    /// A token was sampled.
    Token(TokenEvent),
    /// The request is done.
    Finished(Finished),
    /// The request failed.
    Failed(Fault),
    /// The node drains and will end.
    Restarting,
    /// The list is kept.
    Excluded,
    /// Progress of a bench.
    Benching(BenchProgress),
    /// What a bench found.
    Benched(BenchFound),
    /// The latest all-reduces of this rank, oldest first.
    Records(Vec<SyncRecord>),
    /// What all-reduces take on the links.
    BenchedLinks(LinkBench),
    /// The answer to `Recovery`.
    Recovery(RecoveryAnswer),
    /// What was looked at.
    Inspected(Box<Inspected>),
    /// The engine is told to end the request.
    Cancelling,
    /// About model files.
    Models(Box<ModelsResponse>),
    /// The new key counts.
    Rekeyed {
        /// Its fingerprint.
        fingerprint: String,
    },
}

/// A model file on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// File name.
    pub model: String,
    /// Identity.
    pub identity: ModelIdentity,
    /// Size of all splits.
    pub size: Bytes,
    /// Longest context that the model was trained for.
    pub context_length: u32,
    /// Layers.
    pub block_count: u32,
    /// Length of the hidden vector.
    pub embedding_length: u32,
    /// Query heads.
    pub head_count: u32,
    /// Bytes of the weights of each layer.
    pub layer_bytes: Vec<Bytes>,
    /// Bytes of the output matrix.
    pub output_bytes: Bytes,
    /// What its layers cost.
    pub sizes: ModelSizes,
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenEvent {
    /// Its id; `None` when only text that was held back follows.
    pub id: Option<u32>,
    /// Text that is complete with it; may be empty while a character is incomplete. Short ones need no heap: the engine
    /// allocates nothing for a token.
    pub text: CompactString,
    /// The most probable tokens, if asked for.
    pub logprobs: Vec<TokenLogprob>,
}

/// A token and its natural-log probability over the whole vocabulary, before temperature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Token id.
    pub id: u32,
    /// Its text.
    pub text: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// `max_tokens` were sampled.
    Length,
    /// The context is full.
    Context,
    /// Cancelled.
    Cancelled,
}

/// The end of a generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// When.
    pub times: RequestTimes,
    /// Where the time of the request's steps went, by rank.
    pub ranks: Vec<RankTotals>,
    /// Second and further rounds of sampling.
    pub sampling_rounds: u32,
}

/// What the control ends of two ranks say to each other every heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Collectives that the sender's engine has finished: unmoved while work is under way means stalled.
    pub progress: u64,
    /// Whether the sender's engine has work.
    pub busy: bool,
    /// Whether it waits for another rank: busy, unmoved and not waiting means stalled.
    pub waiting: bool,
    /// The sender takes no new work and wants to leave.
    pub draining: bool,
    /// The sender leaves now.
    pub leaving: bool,
    /// The sender's topology is broken: the rank that it lost, or its own if it failed by itself.
    #[serde(default, with = "crate::protocol::version::since_5")]
    pub failed: Option<Rank>,
    /// When it was sent, by the sender's clock; 0: it tells no time.
    #[serde(default, with = "crate::protocol::version::since_5")]
    pub sent: Nanoseconds,
    /// The latest heartbeat that came from the receiver: when that was sent, by the receiver's clock, and when it came, by the sender's.
    #[serde(default, with = "crate::protocol::version::since_5")]
    pub echo: Option<(Nanoseconds, Nanoseconds)>,
}

/// Encodes the body of a message.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_stdvec(message).expect("messages hold only types that postcard encodes")
}

/// Bytes of a message's body, without encoding it.
pub fn encoded_length<T: Serialize>(message: &T) -> usize {
    let counted = postcard::serialize_with_flavor(message, postcard::ser_flavors::Size::default());
    counted.expect("messages hold only types that postcard encodes")
}

/// Decodes the body of a message.
///
/// # Errors
/// Bytes that are no such message, or bytes left over.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FaultKind> {
    crate::protocol::handshake::decode(body)
}
