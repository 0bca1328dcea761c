//! Options for reading answers: tool calls, thoughts, log probabilities.
use std::sync::Arc;

use tokenizer::answer::ToolSchemas;

/// Which tool calls to look for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tools {
    /// Whether the request has tools.
    pub(super) are_given: bool,
    /// Whether the answer must call a tool: in the model's own syntax if the head constrains that, otherwise as a JSON
    /// object and nothing else.
    pub(super) are_forced: bool,
    /// Whether at most one call is allowed.
    pub(super) is_one: bool,
}

/// Which parts of an answer a request wants to receive separately.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    /// Which tool calls to look for.
    pub(super) tools: Tools,
    /// The tools' parameters.
    pub(super) schemas: Arc<ToolSchemas>,
    /// Whether thoughts are no content.
    pub(super) has_thoughts: bool,
    /// Whether the answer has a format: it begins at once, unless the head leaves room for calls next to it.
    pub(super) is_formatted: bool,
    /// Number of most probable tokens to show for each token; `None`: no log probabilities.
    pub(super) logprobs: Option<usize>,
    /// Whether the ids of tokens are shown.
    pub(super) shows_ids: bool,
    /// Whether only the prompt is wanted: the token that a head samples is left out.
    pub(super) is_prompt_only: bool,
}
