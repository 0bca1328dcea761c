//! Messages after the handshake: requests and responses of consoles, heartbeats of ranks. Data frames are in `frame`.
use common::{
    changes::TemplateChanges,
    chat::{AnswerForm, Chat, FinishReason, Grammar},
    fault::{Fault, FaultKind},
    ids::{Epoch, MemberIndex, ModelIdentity, ModelRoots, Rank, RequestId, TopologyHash},
    latency::RequestTimes,
    sampling::{OpenParameter, SamplingParameters},
    tool_use::ToolUse,
    units::{Bytes, Nanoseconds},
};
use compact_str::CompactString;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use telemetry::{BenchFound, BenchProgress, LinkBench, LoadProgress, NodeReport, RankTotals, StoreCleared, SyncRecord};
use topology::{
    Exclusions, Topology,
    sizes::{ModelSizes, OlderSizes},
};

use crate::{
    bench::{Bench, BenchLinks},
    inspect::{Inspect, Inspected},
    kv::{KvRequest, KvResponse},
    models::{ModelsRequest, ModelsResponse},
    pairing::{Rekey, WrappedKey},
    recovery::{RecoveryAnswer, RecoveryAsk},
    texts::{TextRequest, TextResponse},
};

/// Longest message between console and daemon, or between the control ends of two ranks.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Most stop strings.
pub const STOP_STRINGS_MAX: usize = 16;
/// Longest stop string in bytes.
pub const STOP_BYTES_MAX: usize = 256;
/// Shortest interval between reports, in milliseconds.
pub const REPORT_INTERVAL_MS_MIN: u32 = 50;

/// A console's request. Responses carry the same id; a `Generate` or a `Bench` is cancelled by a `Cancel` with its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the console, unique within its session.
    pub id: RequestId,
    /// The request itself.
    pub body: RequestBody,
}

/// The requests of a console.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RequestBody {
    /// Return one report. From the session that has prepared a shard, it also extends the lease of that shard.
    Report,
    /// Send reports at an interval until the session ends.
    Watch {
        /// Time between two reports.
        interval_ms: u32,
    },
    /// Return identity and shape of a model file.
    Identify {
        /// File name below the node's model folders.
        model: String,
    },
    /// Load a shard and promise to commit. Answered by `Loading` repeatedly and `Prepared` at the end.
    Prepare(Box<Prepare>),
    /// Switch to the prepared topology. Answered by `Committed` once the links to all ranks are open.
    Commit {
        /// The prepared epoch.
        epoch: Epoch,
        /// The prepared topology.
        hash: TopologyHash,
    },
    /// Discard the prepared topology.
    Abort {
        /// The prepared epoch.
        epoch: Epoch,
        /// The prepared topology.
        hash: TopologyHash,
    },
    /// Complete a prompt (heads only).
    Generate(Box<Generate>),
    /// Cancel the `Generate` or the `Bench` with the same id.
    Cancel,
    /// Drain, then exit to be restarted by the supervisor. Answered by `Restarting`.
    Restart,
    /// Store an operator's exclusions and inclusions of nodes. Answered by `Excluded` once they are on disk.
    Exclude(Exclusions),
    /// Benchmark this machine, which must hold no topology. Answered by `Benching` repeatedly and `Benched` at the end.
    Bench(Box<Bench>),
    /// Return the latest all-reduces individually. Answered by `Records`.
    Records,
    /// Inspect or change model files.
    Models(Box<ModelsRequest>),
    /// Install the cluster's next key. Answered by `Rekeyed` once it is on disk.
    Rekey(Box<Rekey>),
    /// Time all-reduces of the head's stage while no request is running (heads only). Answered by `BenchedLinks`.
    BenchLinks(BenchLinks),
    /// Recovery, between nodes and from consoles that assist. Answered by `Recovery`.
    Recovery(Box<RecoveryAsk>),
    /// Return log lines or settings of the node. Answered by `Inspected`.
    Inspect(Inspect),
    /// Cancel a request of any requester (heads only). Answered by `Cancelling`.
    CancelRunning {
        /// Its number, as in reports.
        number: u64,
    },
    /// As `Rekey`, wrapped under the current key. Since wire version 5.
    RekeyWrapped(Box<WrappedKey>),
    /// Tokenize, detokenize or render (heads only). Answered by `Text`. Since wire version 11.
    Text(Box<TextRequest>),
    /// Remember the addresses of other nodes of the cluster, for gateways. Answered by `Done` once they are on disk. Since
    /// wire version 12.
    Neighbours(Vec<String>),
    /// Unload the shard and forget its topology, also for recovery. Answered by `Done` once on disk. Since wire version 12.
    Unload(Unload),
    /// Read or keep keys and values of other nodes (nodes only). Answered by `Kv`. Since wire version 14.
    Kv(Box<KvRequest>),
    /// Delete the stored keys and values. Answered by `StoreCleared`. Since wire version 14.
    ClearStore,
}

/// The first phase of an assignment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prepare {
    /// The node's epoch as the console last read it.
    pub seen: Epoch,
    /// The new epoch: one more than the highest epoch of all nodes.
    pub epoch: Epoch,
    /// The topology.
    pub topology: Topology,
    /// The member index of the receiving node.
    pub member: MemberIndex,
    /// The topology that the operator requested, if `topology` is a reduced form of it.
    #[serde(default, with = "common::version::since_5")]
    pub desired: Option<Box<Topology>>,
    /// Handling of the running shard.
    #[serde(default, with = "common::version::since_5")]
    pub previous: Previous,
}

/// A topology to unload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unload {
    /// Its epoch, or a later one: a failed assignment raises the epoch of nodes.
    pub epoch: Epoch,
    /// Its hash.
    pub hash: TopologyHash,
    /// Whether a head with running requests refuses.
    pub if_idle: bool,
}

/// Handling of the shard that a node is running when it prepares another topology. All ranks of a replica receive the
/// same value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Previous {
    /// It serves until the commit; the next shard is loaded next to it.
    #[default]
    Serves,
    /// It stays: its replica does not change, and all of its ranks are serving.
    Stays,
    /// It is unloaded first, because memory cannot hold both.
    Leaves,
}

/// A prompt to complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generate {
    /// The prompt.
    pub prompt: Prompt,
    /// Tokens of the answer that were already sampled, on another replica or before a loss: they are processed with the
    /// prompt and not sent again. Text, stop strings and random numbers continue as if they had been sampled here.
    pub resumed: Vec<u32>,
    /// Most tokens of the answer, including `resumed`.
    pub max_tokens: u32,
    /// Sampling parameters.
    pub sampling: SamplingParameters,
    /// Texts that end the generation; they are not part of the answer.
    pub stop: Vec<String>,
    /// Required structure of the answer.
    pub grammar: Option<Grammar>,
    /// Most speculative tokens per step; 0 disables speculation. The sampled tokens are the same either way.
    pub drafts_max: u16,
    /// Continue after an end token, until `max_tokens` is reached.
    pub ignores_end: bool,
    /// The model that the answer belongs to; a node that serves another model rejects the request. `None` means any.
    #[serde(default, with = "common::version::since_5")]
    pub model: Option<Box<ModelRoots>>,
    /// Whether the control tokens that mark the parts of an answer in the model's chat format become text.
    #[serde(default, with = "common::version::since_11")]
    pub shows_marks: bool,
    /// Sampling parameters that the client left open: a default of the model's file replaces them.
    #[serde(default, with = "common::version::since_11")]
    pub open: Vec<OpenParameter>,
    /// The tools that the answer may call: a head constrains calls in the syntax of its model. If it cannot, `grammar`
    /// holds, which is plain JSON of a required call. If no call is required, `grammar` is what the answer may be instead.
    #[serde(default, with = "common::version::since_12")]
    pub tool_use: Option<Box<ToolUse>>,
}

/// The text before an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Prompt {
    /// Raw text; the tokenizer adds BOS if the model expects it.
    Text(String),
    /// Token ids, used unchanged.
    Tokens(Vec<u32>),
    /// A conversation, which the head renders with the model's chat template.
    Chat(Box<Chat>),
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
    /// The raw text, if the prompt is a text.
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Bytes of its texts, or four bytes per token.
    pub fn byte_count(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(tokens) => 4 * tokens.len(),
            Self::Chat(chat) => chat.byte_count(),
        }
    }
}

impl Generate {
    /// A request for a complete answer, without resumed tokens, grammar or speculation.
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
            shows_marks: false,
            open: Vec::new(),
            tool_use: None,
        }
    }
}

/// A node's response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// The request's id.
    pub id: RequestId,
    /// The response itself.
    pub body: ResponseBody,
}

/// The responses of a node.
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
    /// The prepared topology was discarded.
    Aborted,
    /// The request has started.
    Started {
        /// The prompt's tokens.
        prompt_token_ids: Vec<u32>,
        /// How to read the answer.
        form: AnswerForm,
        /// What was changed in the conversation for the model's chat template.
        #[serde(default, with = "common::version::since_16")]
        changes: TemplateChanges,
    },
    /// A token was sampled.
    Token(TokenEvent),
    /// The request is done.
    Finished(Finished),
    /// The request failed.
    Failed(Fault),
    /// The node is draining and will exit.
    Restarting,
    /// The list is on disk.
    Excluded,
    /// Progress of a benchmark.
    Benching(BenchProgress),
    /// The results of a benchmark.
    Benched(BenchFound),
    /// The latest all-reduces of this rank, oldest first.
    Records(Vec<SyncRecord>),
    /// The times of all-reduces on the links.
    BenchedLinks(LinkBench),
    /// The answer to `Recovery`.
    Recovery(RecoveryAnswer),
    /// The requested log lines or settings.
    Inspected(Box<Inspected>),
    /// The engine was instructed to end the request.
    Cancelling,
    /// The response about model files.
    Models(Box<ModelsResponse>),
    /// The new key is in effect.
    Rekeyed {
        /// Its fingerprint.
        fingerprint: String,
    },
    /// The answer to `Text`.
    Text(Box<TextResponse>),
    /// The next tokens of a prompt with their log probabilities, before the first token of the answer; the first token of the
    /// prompt has none. Their texts are those of single tokens. Since wire version 11.
    Scored(Vec<TokenEvent>),
    /// The embedding of a prompt, of Euclidean length 1. Since wire version 11.
    Embedded(Vec<f32>),
    /// The request was carried out. Since wire version 12.
    Done,
    /// The answer to `Kv`. Since wire version 14.
    Kv(Box<KvResponse>),
    /// What `ClearStore` deleted. Since wire version 14.
    StoreCleared(StoreCleared),
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
    /// Bytes of the weights, by layer.
    pub layer_bytes: Vec<Bytes>,
    /// Bytes of the output matrix.
    pub output_bytes: Bytes,
    /// Its sizes for peers of versions 4 and 5.
    pub older: OlderSizes,
    /// Sizes for predicting memory and time; see [`Self::sizes`]. Since wire version 6.
    #[serde(default, with = "described")]
    pub sizes: Option<Box<ModelSizes>>,
}

impl ModelCard {
    /// Sizes for predicting memory and time, plausible ones.
    ///
    /// # Errors
    /// The description has options of a later build, or its numbers are implausible.
    pub fn sizes(&self) -> Result<ModelSizes, FaultKind> {
        let invalid = |reason: String| FaultKind::ModelInvalid { model: self.model.clone(), reason };
        let sizes = match &self.sizes {
            Some(sizes) => (**sizes).clone(),
            None => self.older.sizes().map_err(|error| invalid(error.to_string()))?,
        };
        if sizes.is_sound() { Ok(sizes) } else { Err(invalid("its sizes are implausible".into())) }
    }
}

/// A model's sizes as JSON, absent for a peer of an older version: a description that has options of a later build is
/// read as none, and the rest of the message stays readable.
mod described {
    use serde::{Deserializer, Serializer, ser::Error};
    use topology::sizes::ModelSizes;

    pub(super) fn serialize<S: Serializer>(sizes: &Option<Box<ModelSizes>>, serializer: S) -> Result<S::Ok, S::Error> {
        let text = sizes.as_ref().map(serde_json::to_string).transpose().map_err(S::Error::custom)?;
        common::version::since_6::serialize(&text, serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<ModelSizes>>, D::Error> {
        let text: Option<String> = common::version::since_6::deserialize(deserializer)?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenEvent {
    /// Its id; `None` if only held-back text follows.
    pub id: Option<u32>,
    /// Text that this token completes; empty while a character is incomplete. Short texts need no heap: the engine
    /// allocates nothing per token.
    pub text: CompactString,
    /// The most probable tokens, if requested.
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
    /// Its bytes if they are not those of the text: it is a part of a character.
    #[serde(default, with = "common::version::since_11")]
    pub bytes: Vec<u8>,
}

/// The end of a generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// The reason.
    pub reason: FinishReason,
    /// Times of the request.
    pub times: RequestTimes,
    /// Time of the request's steps by rank and cause.
    pub ranks: Vec<RankTotals>,
    /// Second and further rounds of distributed sampling.
    pub sampling_rounds: u32,
}

/// The heartbeat between the control ends of two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// A number that changes with every piece of work; unchanged while busy and not waiting means stalled.
    pub progress: u64,
    /// Whether the sender's engine has work.
    pub busy: bool,
    /// Whether it is waiting for another rank.
    pub waiting: bool,
    /// Whether the sender is draining and wants to leave.
    pub draining: bool,
    /// Whether the sender leaves now.
    pub leaving: bool,
    /// The lost rank if the sender's topology is broken, or its own rank if it failed by itself.
    #[serde(default, with = "common::version::since_5")]
    pub failed: Option<Rank>,
    /// Send time by the sender's clock; 0 if not reported.
    #[serde(default, with = "common::version::since_5")]
    pub sent: Nanoseconds,
    /// The latest heartbeat from the receiver: its send time by the receiver's clock, and its arrival time by the
    /// sender's clock.
    #[serde(default, with = "common::version::since_5")]
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
/// Bytes that are not such a message, or trailing bytes.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FaultKind> {
    crate::handshake::decode(body)
}
