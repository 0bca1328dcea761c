//! Chat templates, which are programs from a file, with conversations. Parts divided by zero bytes: template, messages,
//! tools, variables, template for conversations with tools.
#![no_main]
use bramble_fuzz::{cut::Input, panics};
use common::chat::Chat;
use libfuzzer_sys::{Corpus, fuzz_target};
use tokenizer::template::ChatTemplate;

/// Without messages, these.
const MESSAGES: &str = r#"[{"role":"system","content":"S"},{"role":"user","content":"a b"},{"role":"assistant","content":"","reasoning_content":"r","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":{"a":1,"b":[true,null,"x"]}}}]},{"role":"tool","tool_call_id":"c","content":"7"},{"role":"user","content":[{"type":"text","text":"d"}]}]"#;
const TOOLS: &str = r#"[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}]"#;

fn or(given: String, usual: &str) -> String {
    if given.is_empty() { usual.to_owned() } else { given }
}

fuzz_target!(
    init: {
        panics::are_caught_in(&["minijinja"]);
    },
    |data: &[u8]| -> Corpus {
    let mut input = Input(data);
    let flags = input.byte();
    let (template, messages, tools) = (input.text(), input.text(), input.text());
    let (variables, tool_use) = (input.text(), input.text());
    // Loops within loops use all fuel that a template has, which takes longer than an input may.
    if template.matches("for ").count() + template.matches("recursive").count() > 8 || template.len() > 1 << 15 {
        return Corpus::Reject;
    }
    let tool_use = (!tool_use.is_empty()).then_some(tool_use);
    let compiled = ChatTemplate::new(&template, tool_use.as_deref(), "<s>".into(), "</s>".into());
    let Ok(compiled) = compiled else { return Corpus::Keep };
    let _ = (compiled.format().thinks(&template), compiled.begins_with_bos(&template));
    let chat = Chat {
        messages: or(messages, MESSAGES),
        tools: (flags & 1 != 0).then(|| or(tools, TOOLS)),
        variables: (!variables.is_empty()).then_some(variables),
        is_continued: flags & 2 != 0,
    };
    if let Ok(text) = compiled.render(&chat, 1_800_000_000 + u64::from(flags) * 86_400) {
        let format = compiled.format();
        let _ = (format.thinking_behind(&text), format.thinking_within(&text));
    }
    Corpus::Keep
});
