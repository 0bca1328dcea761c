//! The engine's port: the orders it receives and the events it reports. Both speak of token ids only; templates,
//! tokenizing, detokenizing and stop strings belong to the daemon's room of text.
use std::time::Instant;

use common::{fault::Fault, ids::Rank, latency::RequestTimes, sampling::SamplingParameters, tool_use::AnswerGrammar};
use protocol::{
    across::Across,
    bench::BenchLinks,
    message::{Finished, Generate},
};
use telemetry::{KvUse, LinkBench};

use super::RequestKey;

/// A request whose prompt is tokenized and whose grammar is checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// Time of arrival; TTFT counts from here.
    pub received: Instant,
    /// The tokens of its prompt.
    pub prompt: Vec<u32>,
    /// Tokens of an interrupted answer that continues here.
    pub resumed: Vec<u32>,
    /// Whether the resumed tokens already contain the end of the answer: an end token or a stop string.
    pub is_stopped: bool,
    /// Most tokens in the answer, the resumed ones included.
    pub max_tokens: u32,
    /// Whether end tokens are part of the answer instead of its end.
    pub ignores_end: bool,
    /// Sampling parameters.
    pub sampling: SamplingParameters,
    /// Most speculative tokens in one step.
    pub drafts_max: u16,
    /// The checked constraint on its answer.
    pub grammar: Option<AnswerGrammar>,
}

impl Prepared {
    /// The part of a request that the engine needs, with the tokens of its prompt.
    pub fn new(received: Instant, generate: &Generate, prompt: Vec<u32>, is_stopped: bool) -> Self {
        Self {
            received,
            prompt,
            resumed: generate.resumed.clone(),
            is_stopped,
            max_tokens: generate.max_tokens,
            ignores_end: generate.ignores_end,
            sampling: generate.sampling.clone(),
            drafts_max: generate.drafts_max,
            grammar: generate.grammar.clone().map(AnswerGrammar::Whole),
        }
    }
}

/// An order to an engine.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineOrder {
    /// Run a request.
    Begin(RequestKey, Box<Prepared>),
    /// A request was cancelled during preparation: it never begins, and finishes as cancelled.
    Withdrawn(RequestKey),
    /// End a request; it finishes as cancelled.
    Cancel(RequestKey),
    /// A message from the head of another group.
    Across(u16, Across),
    /// Another group is lost.
    AcrossLost(u16),
    /// Benchmark all-reduces between the ranks of the stage.
    BenchLinks(RequestKey, BenchLinks),
    /// Stop the engine.
    Stop,
}

/// An event of an engine.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineEvent {
    /// An event of one request.
    Request(RequestKey, RequestEvent),
    /// An event of the whole replica.
    Replica(ReplicaEvent),
}

/// Events of a request, in this order; the last one is `Finished`, `LinksBenched` or `Refused`.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestEvent {
    /// The engine accepted it.
    Started,
    /// It has a slot and KV memory for its tokens, and starts to compute.
    Dispatched,
    /// Log probabilities of tokens of its prompt, in order, from the second token on.
    Scored(Vec<ScoredToken>),
    /// The embedding of its prompt.
    Embedded(Vec<f32>),
    /// A token of its answer.
    Token(SampledToken),
    /// It ended.
    Finished(Box<Finished>),
    /// It was a benchmark: all-reduces were timed.
    LinksBenched(LinkBench),
    /// It cannot be run.
    Refused(Fault),
}

/// A token of a prompt with the log probabilities at its position.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredToken {
    /// Its id.
    pub id: u32,
    /// The most probable tokens there and this one, with their natural-log probabilities.
    pub top_logprobs: Vec<(u32, f32)>,
}

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// Its id.
    pub id: u32,
    /// Whether the answer ends with it, because of a limit.
    pub is_last: bool,
    /// The most probable tokens with their natural-log probabilities, if requested.
    pub top_logprobs: Vec<(u32, f32)>,
    /// Times of the request up to this token.
    pub times: RequestTimes,
    /// Second and further rounds of distributed sampling up to this token.
    pub sampling_rounds: u32,
}

/// Events of a replica.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplicaEvent {
    /// The number of KV blocks in use changed.
    Kv(KvUse),
    /// A message for the head of another group.
    Across(u16, Across),
    /// The engine failed; `rank` is the lost rank, if one was lost.
    Broken {
        /// The lost rank.
        rank: Option<Rank>,
        /// The reason, for the log.
        reason: String,
    },
    /// The engine failed: the model's file cannot be read, or its content has changed.
    Unreadable(String),
}
