//! The parts of a generation request that are not numbers, and the reasons for which an answer ends.
use serde::{Deserialize, Serialize};

/// Longest prompt in bytes.
pub const PROMPT_BYTES_MAX: usize = 2 << 20;

/// Longest schema of a grammar in bytes.
pub const GRAMMAR_BYTES_MAX: usize = 256 << 10;

/// A conversation in the format of the OpenAI API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chat {
    /// A JSON array of messages.
    pub messages: String,
    /// A JSON array of tools.
    pub tools: Option<String>,
    /// A JSON object with variables for the template, such as `enable_thinking`.
    #[serde(default, with = "crate::version::since_10")]
    pub variables: Option<String>,
    /// Whether the answer continues the last message, which is the assistant's.
    #[serde(default, with = "crate::version::since_11")]
    pub is_continued: bool,
}

impl Chat {
    /// Bytes of its texts.
    pub fn byte_count(&self) -> usize {
        let more = [&self.tools, &self.variables].into_iter().flatten().map(String::len);
        self.messages.len() + more.sum::<usize>()
    }
}

/// Required structure of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Grammar {
    /// Any JSON object.
    Json,
    /// JSON that matches a schema (the schema's text).
    JsonSchema(String),
}

/// The chat format of a model: how it writes thoughts and calls of tools, which determines how to find them in an answer.
/// An older peer receives `None` for a format that it does not support: those behind `Hermes` since wire version 10 or 11.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolFormat {
    /// The template has no tools.
    #[default]
    None,
    /// `{"name": .., "parameters": ..}` (Llama 3.1 and later).
    Llama3,
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>` (Hermes, Qwen 2.5 and 3).
    Hermes,
    /// `<tool_call><function=NAME><parameter=P>VALUE</parameter></function></tool_call>` (Qwen3-Coder, Qwen3.5).
    Xml,
    /// `<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>` (GLM 4.5 to 4.7).
    Keyed,
    /// `<|tool_call_start|>[f(a=1)]<|tool_call_end|>` (LFM2).
    Lfm2,
    /// `<function_calls>f(a=1)</function_calls>` (OLMo 3).
    Olmo,
    /// `<|tool_call>call:NAME{a:1}<tool_call|>` (Gemma 4).
    Gemma,
    /// `<|channel|>commentary to=functions.NAME<|message|>{..}<|call|>` (gpt-oss).
    Harmony,
    /// `[TOOL_CALLS]NAME[ARGS]{..}` or `[TOOL_CALLS][{..}]` (Mistral).
    Mistral,
    /// `<|tool_call|>[{..}]` or `functools[{..}]` (Phi-4, Granite 3).
    Listed,
    /// `<TOOLCALL>[{..}]</TOOLCALL>` (Nemotron Nano 2).
    Capitals,
    /// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{..}<｜tool▁call▁end｜>` (DeepSeek).
    DeepSeek,
}

/// Where an answer thinks before it answers: between the marks of its format, usually `<think>` and `</think>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Thinking {
    /// The template has no such marks.
    #[default]
    None,
    /// An answer may begin with a thought.
    Marked,
    /// The prompt ends with the beginning of a thought: the answer begins inside.
    Open,
}

/// How to read an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerForm {
    /// Its chat format.
    #[serde(serialize_with = "crate::older::tell_format")]
    pub tool_format: ToolFormat,
    /// Where it thinks.
    #[serde(default, with = "crate::version::since_10")]
    pub thinking: Thinking,
    /// The tokens that end its thoughts; empty if it does not think.
    #[serde(default, with = "crate::version::since_11")]
    pub thought_end: Vec<u32>,
    /// Whether its calls are constrained in the syntax of its format: a required one is no plain JSON object then.
    #[serde(default, with = "crate::version::since_12")]
    pub has_own_calls: bool,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end token or a stop string was sampled.
    Stop,
    /// `max_tokens` were sampled.
    Length,
    /// The context is full.
    Context,
    /// The request was cancelled.
    Cancelled,
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
