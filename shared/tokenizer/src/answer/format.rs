//! The chat formats, one row each: how to find it by a chat template, which control tokens its answers need as text, where
//! they think, and how they write calls. The first row whose marks a template has is its format.
use std::sync::Arc;

use common::chat::{Thinking, ToolFormat};

use super::{
    ToolSchemas,
    either::EitherCalls,
    gemma::GemmaCalls,
    json::{JsonCalls, JsonMarks},
    keyed::KeyedCalls,
    named::{EachMarks, NameMarks, NamedCalls},
    pythonic::{ListMarks, PythonicCalls},
    syntax::CallSyntax,
    tags::TagCalls,
};

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct ChatFormat {
    /// The format as nodes name it to each other.
    pub format: ToolFormat,
    /// Texts that a template of this format has: all of them.
    pub detect: &'static [&'static str],
    /// Control tokens that answers need as text, because these separate the parts.
    pub preserved: &'static [&'static str],
    /// The marks of thoughts.
    pub thinking: ThinkingMarks,
    /// How calls are written.
    pub calls: Calls,
    /// The turn of the answer that its templates may leave out.
    pub left_out: Option<TurnMarks>,
}

/// The turn of an answer where a template may leave it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnMarks {
    /// The end of a text without it.
    pub before: &'static str,
    /// Its beginning, which completes that text.
    pub begin: &'static str,
}

/// The marks around a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThinkingMarks {
    /// Before it.
    pub begin: &'static str,
    /// Behind it.
    pub end: &'static str,
    /// The text that ends a thought before its time and begins the answer.
    pub close: &'static str,
    /// The mark of a call that ends it, too, because some models leave out its end.
    pub call: Option<&'static str>,
    /// Thoughts come behind text of the answer, too, and an end without a beginning means nothing.
    pub returns: bool,
}

/// How a format writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// It has none.
    None,
    /// JSON objects with a name and arguments.
    Json(JsonMarks),
    /// Tags with a parameter each.
    Tags,
    /// Pairs of keys and values.
    Keyed,
    /// A name and a JSON object.
    Named(NameMarks),
    /// Function calls of Python.
    Pythonic(ListMarks),
    /// Gemma 4's form.
    Gemma,
    /// Messages to functions.
    Harmony,
}

const THINK: ThinkingMarks =
    ThinkingMarks { begin: "<think>", end: "</think>", close: "\n</think>\n\n", call: None, returns: false };
const THINK_OR_CALL: ThinkingMarks = ThinkingMarks { call: Some("<tool_call>"), ..THINK };
const BRACKETS: ThinkingMarks = ThinkingMarks { begin: "[THINK]", end: "[/THINK]", close: "[/THINK]", ..THINK };
const CHANNELS: ThinkingMarks =
    ThinkingMarks { begin: "<|channel>thought", end: "<channel|>", close: "\n<channel|>", call: None, returns: true };
const ANALYSIS: ThinkingMarks = ThinkingMarks {
    begin: "<|channel|>analysis<|message|>",
    end: "<|end|>",
    close: "<|end|><|start|>assistant<|channel|>final<|message|>",
    ..THINK
};

const OBJECTS: JsonMarks =
    JsonMarks { open: &["<tool_call>"], close: Some("</tool_call>"), has_lists: false, is_closed: true };
const BARE: JsonMarks = JsonMarks { open: &[], close: None, has_lists: false, is_closed: false };
/// Granite 3 has no mark behind its calls.
const LISTED: JsonMarks = JsonMarks {
    open: &["<|tool_call|>", "functools"],
    close: Some("<|/tool_call|>"),
    has_lists: true,
    is_closed: false,
};
const CAPITALS: JsonMarks =
    JsonMarks { open: &["<TOOLCALL>"], close: Some("</TOOLCALL>"), has_lists: true, is_closed: true };
const MISTRAL: NameMarks = NameMarks { open: &["[TOOL_CALLS]"], separators: &["[CALL_ID]", "[ARGS]"], each: None };
const DEEPSEEK: NameMarks = NameMarks {
    open: &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
    separators: &["<｜tool▁sep｜>"],
    each: Some(EachMarks {
        open: "<｜tool▁call▁begin｜>",
        close: "<｜tool▁call▁end｜>",
        close_all: "<｜tool▁calls▁end｜>",
    }),
};
const LFM2: ListMarks = ListMarks { open: &["<|tool_call_start|>"], close: "<|tool_call_end|>", is_bracketed: true };
const OLMO: ListMarks = ListMarks { open: &["<function_calls>"], close: "</function_calls>", is_bracketed: false };

const ROW: ChatFormat = ChatFormat {
    format: ToolFormat::None,
    detect: &[],
    preserved: &["<think>", "</think>"],
    thinking: THINK,
    calls: Calls::None,
    left_out: None,
};
/// LFM2 has calls with and without a list of tools in its templates.
const LFM2_ROW: ChatFormat = ChatFormat {
    format: ToolFormat::Lfm2,
    preserved: &["<|tool_call_start|>", "<|tool_call_end|>", "<think>", "</think>"],
    calls: Calls::Pythonic(LFM2),
    ..ROW
};
const LLAMA3_ROW: ChatFormat = ChatFormat { format: ToolFormat::Llama3, calls: Calls::Json(BARE), ..ROW };
const LISTED_ROW: ChatFormat = ChatFormat {
    format: ToolFormat::Listed,
    preserved: &["<|tool_call|>", "<|/tool_call|>", "<think>", "</think>"],
    calls: Calls::Json(LISTED),
    ..ROW
};

/// All formats, in the order in which they are sought.
pub const CHAT_FORMATS: [ChatFormat; 17] = [
    ChatFormat {
        format: ToolFormat::Harmony,
        detect: &["<|channel|>"],
        preserved: &["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"],
        thinking: ANALYSIS,
        calls: Calls::Harmony,
        ..ROW
    },
    ChatFormat {
        format: ToolFormat::Mistral,
        detect: &["[TOOL_CALLS]"],
        preserved: &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"],
        thinking: BRACKETS,
        calls: Calls::Named(MISTRAL),
        ..ROW
    },
    ChatFormat {
        format: ToolFormat::Gemma,
        detect: &["<|tool_call>call:"],
        preserved: &["<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>"],
        thinking: CHANNELS,
        calls: Calls::Gemma,
        // Behind a call with text.
        left_out: Some(TurnMarks { before: "<turn|>\n", begin: "<|turn>model\n" }),
    },
    ChatFormat { detect: &["<|tool_list_start|>"], ..LFM2_ROW },
    ChatFormat { detect: &["<|tool_call_start|>"], ..LFM2_ROW },
    ChatFormat { detect: &["List of tools: ["], ..LFM2_ROW },
    ChatFormat {
        format: ToolFormat::DeepSeek,
        detect: &["<｜tool▁calls▁begin｜>"],
        preserved: &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
            "<think>",
            "</think>",
        ],
        calls: Calls::Named(DEEPSEEK),
        ..ROW
    },
    ChatFormat {
        format: ToolFormat::Xml,
        detect: &["<tool_call>", "<function=", "<parameter="],
        preserved: &["<tool_call>", "</tool_call>", "<think>", "</think>"],
        thinking: THINK_OR_CALL,
        calls: Calls::Tags,
        ..ROW
    },
    ChatFormat {
        format: ToolFormat::Keyed,
        detect: &["<arg_key>", "<arg_value>"],
        preserved: &[
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
            "<think>",
            "</think>",
        ],
        thinking: THINK_OR_CALL,
        calls: Calls::Keyed,
        ..ROW
    },
    ChatFormat {
        format: ToolFormat::Hermes,
        detect: &["<tool_call>"],
        preserved: &["<tool_call>", "</tool_call>", "<think>", "</think>"],
        thinking: THINK_OR_CALL,
        calls: Calls::Json(OBJECTS),
        ..ROW
    },
    ChatFormat { format: ToolFormat::Capitals, detect: &["<TOOLCALL>"], calls: Calls::Json(CAPITALS), ..ROW },
    ChatFormat { format: ToolFormat::Olmo, detect: &["<function_calls>"], calls: Calls::Pythonic(OLMO), ..ROW },
    ChatFormat { detect: &["<|tool_call|>"], ..LISTED_ROW },
    ChatFormat { detect: &["<|tool|>"], calls: Calls::Json(JsonMarks { is_closed: true, ..LISTED }), ..LISTED_ROW },
    ChatFormat { detect: &["<|python_tag|>"], ..LLAMA3_ROW },
    ChatFormat { detect: &["ipython"], ..LLAMA3_ROW },
    ChatFormat { detect: &["<|start_header_id|>", "\"parameters\":"], ..LLAMA3_ROW },
];

impl ChatFormat {
    /// The format that a template is written for.
    pub fn detect(template: &str) -> &'static Self {
        CHAT_FORMATS.iter().find(|row| row.matches(template)).unwrap_or(&ROW)
    }

    fn matches(&self, template: &str) -> bool {
        self.detect.iter().all(|part| template.contains(part))
    }

    /// The row of a format.
    pub fn of(format: ToolFormat) -> &'static Self {
        CHAT_FORMATS.iter().find(|row| row.format == format).unwrap_or(&ROW)
    }

    /// Where an answer to a prompt that ends with `tail` thinks, if the template has the marks of thoughts.
    pub fn thinking_behind(&self, tail: &str) -> Thinking {
        if tail.trim_end().ends_with(self.thinking.begin) { Thinking::Open } else { Thinking::Marked }
    }

    /// Where an answer thinks that continues a message at the end of `prompt`: inside if its last thought has no end.
    pub fn thinking_within(&self, prompt: &str) -> Thinking {
        let ThinkingMarks { begin, end, .. } = self.thinking;
        let is_open = prompt.rfind(begin).is_some_and(|at| !prompt[at + begin.len()..].contains(end));
        if is_open { Thinking::Open } else { Thinking::None }
    }

    /// Whether a template has the marks of this format's thoughts.
    pub fn thinks(&self, template: &str) -> bool {
        self.format == ToolFormat::Harmony
            || [self.thinking.begin, self.thinking.end].iter().any(|mark| template.contains(mark))
    }

    /// A parser for calls of a request with these tools, in an answer that may be a value instead.
    pub(super) fn syntax(&self, schemas: Arc<ToolSchemas>, may_be_value: bool) -> Option<Box<dyn CallSyntax>> {
        match self.calls {
            Calls::None | Calls::Harmony => None,
            // Without marks, only the name distinguishes a call from a value.
            Calls::Json(marks) if marks.open.is_empty() && may_be_value => {
                Some(Box::new(JsonCalls::of_tools(marks, schemas)))
            }
            Calls::Json(marks) => Some(Box::new(JsonCalls::new(marks))),
            Calls::Tags => Some(Box::new(TagCalls::new(schemas))),
            Calls::Keyed => Some(Box::new(KeyedCalls::new(schemas))),
            Calls::Named(marks) => Some(Box::new(EitherCalls::new(NamedCalls::new(marks), None))),
            Calls::Pythonic(marks) => Some(Box::new(EitherCalls::new(PythonicCalls::new(marks), Some(marks.close)))),
            Calls::Gemma => Some(Box::new(GemmaCalls::new())),
        }
    }
}
