//! The engine's port: the orders it receives. It works on token ids; templates, tokenizers and unchecked schemas stay
//! in `text`.
use std::{sync::Arc, time::Instant};

use common::{chat::ToolFormat, fault::Fault, ids::Rank};
use protocol::{
    across::Across,
    bench::BenchLinks,
    message::{Finished, Generate, TokenEvent},
};
use telemetry::{KvUse, LinkBench};

use super::RequestKey;

/// A request whose prompt is tokenized and whose grammar is checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// Time of arrival; TTFT counts from here.
    pub received: Instant,
    /// The request.
    pub generate: Arc<Generate>,
    /// The tokens of its prompt.
    pub prompt: Vec<u32>,
    /// Format of tool calls in its answers.
    pub tool_format: ToolFormat,
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

/// Events of an engine.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// A request was accepted.
    Started(RequestKey, Vec<u32>, ToolFormat),
    /// It has a slot and KV memory for its tokens, and starts to compute.
    Dispatched(RequestKey),
    /// A token.
    Token(RequestKey, TokenEvent),
    /// A request ended.
    Finished(RequestKey, Box<Finished>),
    /// The number of KV blocks in use changed.
    Kv(KvUse),
    /// All-reduces were timed.
    LinksBenched(RequestKey, LinkBench),
    /// A message for the head of another group.
    Across(u16, Across),
    /// A request cannot be run.
    Refused(RequestKey, Fault),
    /// The engine failed; `rank` is the lost rank, if one was lost.
    Broken {
        /// The lost rank.
        rank: Option<Rank>,
        /// What happened, for the log.
        reason: String,
    },
    /// The engine failed: the model's file cannot be read, or its content has changed.
    Unreadable(String),
}
