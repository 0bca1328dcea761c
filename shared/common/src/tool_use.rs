//! The tools that an answer may call, and the constraint that a head makes of them in the syntax of its model.
use serde::{Deserialize, Serialize};

use crate::chat::{Grammar, Thinking};

/// The tools of a request, as far as they constrain its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolUse {
    /// A JSON array of objects with `name` and `parameters`, the schema of the arguments.
    pub tools: String,
    /// Whether the answer must call one of them.
    pub is_required: bool,
    /// Whether it calls at most one.
    pub is_one: bool,
    /// Whether the answer continues the last message of its prompt.
    pub is_continued: bool,
}

/// A part of a mark in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MarkPart {
    /// A control token.
    Token(u32),
    /// Text, however it is divided into tokens.
    Text(String),
}

/// A mark in an answer: its parts in order.
pub type Mark = Vec<MarkPart>;

/// The constraint on the calls of an answer. Ranks find from the answer's own tokens where it begins to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallGrammar {
    /// The grammar in llguidance's form of Lark. If calls are not required, it begins with the last part of a trigger;
    /// otherwise with a thought, the end of one, or a call.
    pub lark: String,
    /// The control tokens in it.
    pub controls: Vec<u32>,
    /// Whether the answer must call a tool.
    pub is_required: bool,
    /// Where the answer thinks: a thought is free.
    pub thinking: Thinking,
    /// Before a thought.
    pub thought_begin: Mark,
    /// Behind a thought; its last part begins the grammar.
    pub thought_end: Mark,
    /// Whether a trigger ends a thought, too.
    pub ends_thoughts: bool,
    /// The marks from which on the grammar holds.
    pub triggers: Vec<Mark>,
    /// Whether triggers count only at the beginning, behind white space or this mark.
    pub first: Option<Mark>,
    /// The end of the prompt, with which a trigger may begin.
    pub lead: Mark,
}

/// The constraint on an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AnswerGrammar {
    /// All of it.
    Whole(Grammar),
    /// Its calls.
    Calls(Box<CallGrammar>),
}

impl From<Grammar> for AnswerGrammar {
    fn from(grammar: Grammar) -> Self {
        Self::Whole(grammar)
    }
}
