//! Schemas of structured output and of tools: checked, compiled by the constraint library and tried on bytes.
#![no_main]
use bramble_fuzz::{cut::Input, panics};
use common::{
    chat::{Grammar, Thinking, ToolFormat},
    tool_use::ToolUse,
};
use engine::structured_output::{TRIAL_CONTROLS, check, check_calls, check_parameters};
use libfuzzer_sys::fuzz_target;
use tokenizer::answer::{ChatFormat, GrammarTool, GrammarUse, call_grammar};

const FORMATS: [ToolFormat; 8] = [
    ToolFormat::Llama3,
    ToolFormat::Hermes,
    ToolFormat::Xml,
    ToolFormat::Lfm2,
    ToolFormat::Gemma,
    ToolFormat::Harmony,
    ToolFormat::Mistral,
    ToolFormat::DeepSeek,
];

fuzz_target!(
    init: {
        panics::are_caught_in(&["llguidance", "derivre", "toktrie"]);
    },
    |data: &[u8]| {
    let mut input = Input(data);
    let (flags, schema) = (input.byte(), input.text());
    let Ok(value) = serde_json::from_str(&schema) else { return };
    if check_parameters(&value).is_err() {
        return;
    }
    if flags & 1 == 0 {
        let _ = check(&Grammar::JsonSchema(schema));
        return;
    }
    let tools = serde_json::json!([{"name": "f", "parameters": value}]).to_string();
    let Some(tools) = GrammarTool::read(&ToolUse { tools, ..ToolUse::default() }) else { return };
    let how = GrammarUse { is_required: flags & 2 != 0, is_one: flags & 4 != 0, thinking: Thinking::None };
    let row = ChatFormat::of(FORMATS[usize::from(flags >> 4) % FORMATS.len()]);
    let control = |_: &str| Some(TRIAL_CONTROLS);
    if let Some(calls) = call_grammar(row, &tools, how, &control) {
        let _ = check_calls(&calls);
    }
});
