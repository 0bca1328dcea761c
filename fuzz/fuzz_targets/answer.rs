//! Thoughts and tool calls in the text of an answer, in pieces as a stream delivers them, for every chat format; and the
//! grammar that holds an answer to these calls.
#![no_main]
use std::{collections::BTreeMap, sync::Arc};

use bramble_fuzz::{
    cut::{Input, pieces},
    memory::bounded,
};
use common::{
    chat::{Thinking, ToolFormat},
    tool_use::ToolUse,
};
use libfuzzer_sys::fuzz_target;
use tokenizer::answer::{AnswerParser, AnswerPart, ChatFormat, GrammarTool, GrammarUse, ToolSchemas, call_grammar};

const FORMATS: [ToolFormat; 13] = [
    ToolFormat::None,
    ToolFormat::Llama3,
    ToolFormat::Hermes,
    ToolFormat::Xml,
    ToolFormat::Keyed,
    ToolFormat::Lfm2,
    ToolFormat::Olmo,
    ToolFormat::Gemma,
    ToolFormat::Harmony,
    ToolFormat::Mistral,
    ToolFormat::Listed,
    ToolFormat::Capitals,
    ToolFormat::DeepSeek,
];
const THINKING: [Thinking; 3] = [Thinking::None, Thinking::Marked, Thinking::Open];
const TOOLS: &str = r#"[{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"},"c":{"type":"array","items":{"type":"object"}}},"required":["a"]}},{"name":"get.it"}]"#;

/// What a client receives, independent of how the text was cut: thoughts, content, the other parts in order, and the
/// arguments of each call.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    thoughts: String,
    content: String,
    others: Vec<String>,
    arguments: BTreeMap<usize, String>,
}

fn shown(parts: &[AnswerPart]) -> Shown {
    let mut shown = Shown::default();
    for part in parts {
        match part {
            AnswerPart::Thought(more) => shown.thoughts.push_str(more),
            AnswerPart::Content(more) => shown.content.push_str(more),
            AnswerPart::Arguments { index, text } => shown.arguments.entry(*index).or_default().push_str(text),
            other => shown.others.push(format!("{other:?}")),
        }
    }
    // How much of a broken call's arguments was certain depends on when the call broke.
    for part in parts {
        if let AnswerPart::Broken { index } = part {
            shown.arguments.remove(index);
        }
    }
    shown
}

fn parse(format: ToolFormat, thinking: Thinking, schemas: Option<Arc<ToolSchemas>>, cut: &[&str]) -> Vec<AnswerPart> {
    let mut parser = AnswerParser::new(format, thinking, schemas);
    let mut parts = Vec::new();
    for piece in cut {
        parts.extend(parser.push(piece));
        let _ = (parser.thinks(), parser.may_think());
    }
    parts.extend(parser.finish());
    parts
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let (format, flags, seed) = (input.byte(), input.byte(), input.byte());
    let format = FORMATS[usize::from(format) % FORMATS.len()];
    let thinking = THINKING[usize::from(flags >> 4) % THINKING.len()];
    let (text, tools) = (input.text(), input.text());
    let tools = if tools.is_empty() { TOOLS.to_owned() } else { tools };
    let read = serde_json::from_str::<Vec<serde_json::Value>>(&tools).unwrap_or_default();
    let schemas = (flags & 1 != 0).then(|| Arc::new(ToolSchemas::read(&read)));
    let room = 64 * text.len() + (1 << 18);
    let whole = bounded(room, || parse(format, thinking, schemas.clone(), &[&text]));
    let cut = bounded(room, || parse(format, thinking, schemas, &pieces(&text, seed)));
    assert_eq!(shown(&whole), shown(&cut), "how a text is cut changes its parts");
    let tool_use = ToolUse { tools, ..ToolUse::default() };
    let Some(tools) = GrammarTool::read(&tool_use) else { return };
    let how = GrammarUse { is_required: flags & 2 != 0, is_one: flags & 4 != 0, thinking };
    let control = |text: &str| (flags & 8 != 0).then(|| 300 + text.len() as u32);
    let _ = call_grammar(ChatFormat::of(format), &tools, how, &control);
});
