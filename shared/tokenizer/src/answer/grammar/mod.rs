//! The grammar of a format's calls, made from its row and the tools of a request: the parser of the same row reads all that
//! it allows. In llguidance's form of Lark.
mod lark;
mod literals;
mod objects;
mod syntax;
mod values;

use common::{
    chat::Thinking,
    tool_use::{CallGrammar, Mark, ToolUse},
};
use serde_json::{Map, Value, json};

use self::lark::Lark;
use super::{ChatFormat, format::Calls};

/// Most tools of a grammar.
pub const GRAMMAR_TOOLS_MAX: usize = 256;

/// A tool, as far as it constrains calls.
#[derive(Clone, Debug, PartialEq)]
pub struct GrammarTool {
    /// Its name.
    pub name: String,
    /// The schema of its arguments; `None`: any object.
    pub parameters: Option<Value>,
}

impl GrammarTool {
    /// Reads the tools of a request; `None` if there are none, or too many.
    pub fn read(tool_use: &ToolUse) -> Option<Vec<Self>> {
        let tools: Vec<Map<String, Value>> = serde_json::from_str(&tool_use.tools).ok()?;
        let tools = tools.into_iter().map(|mut tool| {
            let name = tool.get("name")?.as_str().filter(|name| !name.is_empty())?.to_owned();
            Some(Self { name, parameters: tool.remove("parameters").filter(Value::is_object) })
        });
        let tools: Vec<Self> = tools.collect::<Option<_>>()?;
        (1..=GRAMMAR_TOOLS_MAX).contains(&tools.len()).then_some(tools)
    }

    /// The schema of its arguments as JSON.
    fn schema(&self) -> Value {
        self.parameters.clone().unwrap_or_else(|| json!({"type": "object"}))
    }
}

/// What a grammar of calls depends on, other than the format and the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrammarUse {
    /// Whether an answer must call a tool.
    pub is_required: bool,
    /// Whether it calls at most one.
    pub is_one: bool,
    /// Where it thinks.
    pub thinking: Thinking,
}

/// The grammar of calls of these tools. `control` finds the control token with a text. `None` if the format has no calls,
/// cannot write a name in one of them, or if the grammar is too large.
pub fn call_grammar(
    row: &ChatFormat,
    tools: &[GrammarTool],
    how: GrammarUse,
    control: &dyn Fn(&str) -> Option<u32>,
) -> Option<CallGrammar> {
    grammar_of(row, tools, how, None, control)
}

/// The grammar of an answer that calls tools or is a JSON value of this schema; it must do one of both.
pub fn call_or_value_grammar(
    row: &ChatFormat,
    tools: &[GrammarTool],
    how: GrammarUse,
    schema: &Value,
    control: &dyn Fn(&str) -> Option<u32>,
) -> Option<CallGrammar> {
    grammar_of(row, tools, GrammarUse { is_required: true, ..how }, Some(schema), control)
}

/// `value` is the schema of a value that may stand in place of a required call.
fn grammar_of(
    row: &ChatFormat,
    tools: &[GrammarTool],
    how: GrammarUse,
    value: Option<&Value>,
    control: &dyn Fn(&str) -> Option<u32>,
) -> Option<CallGrammar> {
    let mut lark = Lark::new(row.preserved, control);
    let GrammarUse { is_required, is_one, thinking } = how;
    let syntax = syntax::written(row.calls, tools, is_one, &mut lark)?;
    let (thought_begin, thought_end) = (lark.mark(row.thinking.begin), lark.mark(row.thinking.end));
    let triggers: Vec<Mark> = syntax.calls.iter().map(|call| lark.mark(call.mark)).collect();
    let triggered: Vec<String> =
        triggers.iter().zip(&syntax.calls).map(|pair| format!("{} {}", lark.last_part(pair.0), pair.1.rest)).collect();
    let triggered = lark.rule(&triggered.join(" | "));
    let ends_thoughts = row.thinking.call.is_some();
    if is_required {
        let is_bare = matches!(row.calls, Calls::Json(marks) if marks.open.is_empty());
        let mut calls: Vec<String> = if value.is_some() && is_bare {
            syntax::call_values(tools, &mut lark)
        } else {
            let usual = syntax.calls.iter().filter(|call| call.is_usual);
            let usual = usual.map(|call| format!("{} {}", lark.marked(call.mark), call.rest));
            usual.chain(syntax.begun.clone()).collect()
        };
        calls.extend(value.map(|schema| format!("{} {}", syntax.header, lark.json(schema))));
        let calls = lark.rule(&calls.join(" | "));
        let begin = lark.term(&thought_begin);
        let end = lark.last_part(&thought_end);
        let mut thought = format!("{end} gap {calls}");
        if ends_thoughts {
            thought.push_str(&format!(" | {triggered}"));
        }
        let thought = lark.rule(&thought);
        lark.start(&match thinking {
            Thinking::None => format!("gap {calls}"),
            Thinking::Marked => format!("gap {begin} {thought} | gap {calls}"),
            Thinking::Open => thought,
        });
    } else {
        lark.start(&triggered);
    }
    let lead = lark.mark(syntax.lead);
    let first = syntax.first.map(|mark| lark.mark(mark));
    // A header can only stand between messages: no thought has it.
    let thinking = if !is_required && !syntax.lead.is_empty() { Thinking::None } else { thinking };
    if lark.is_full() {
        return None;
    }
    let (lark, controls) = lark.finish();
    Some(CallGrammar {
        lark,
        controls,
        is_required,
        thinking,
        thought_begin,
        thought_end,
        ends_thoughts,
        triggers,
        first,
        lead,
    })
}
