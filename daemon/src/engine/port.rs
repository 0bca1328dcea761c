//! The engine's port: what it is told. It gets token ids; templates, tokenizers and unchecked schemas stay with `text`.
use std::{sync::Arc, time::Instant};

use shared::protocol::{
    across::Across,
    bench::BenchLinks,
    message::{Generate, ToolFormat},
};

use super::RequestKey;

/// A request whose prompt is tokenized and whose grammar is checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// When it came: the time to its first token counts from here.
    pub received: Instant,
    /// What was asked for.
    pub generate: Arc<Generate>,
    /// The tokens of its prompt.
    pub prompt: Vec<u32>,
    /// How calls of tools look in answers to it.
    pub tool_format: ToolFormat,
}

/// What an engine is told.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineOrder {
    /// Run a request.
    Begin(RequestKey, Box<Prepared>),
    /// A request was cancelled while it was prepared: it never comes, and finishes as cancelled.
    Withdrawn(RequestKey),
    /// End a request; it finishes as cancelled.
    Cancel(RequestKey),
    /// The head of another group says something.
    Across(u16, Across),
    /// Another group is gone.
    AcrossLost(u16),
    /// Time all-reduces between the ranks of the stage.
    BenchLinks(RequestKey, BenchLinks),
    /// End the engine.
    Stop,
}
