//! The chat templates of a llama.cpp checkout against the hashes of the texts that jinja2 renders
//! (`tests/fixtures/templates/collection.py` writes them).
use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context, ensure};
use clap::Parser;
use common::{
    changes::TemplateChanges,
    chat::{Chat, ToolFormat},
    digest::fnv1a,
};
use harness::programs::root;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use tokenizer::template::{ChatTemplate, TemplateError};

/// The time in `render.py`: 2025-11-22 02:08:38 UTC.
const NOW: u64 = 1_763_777_318;
/// Fewest templates of a checkout whose hashes are stored.
const TEMPLATES_MIN: usize = 25;
/// Uses `safe` with `+`, which makes Python escape the rest for HTML.
const ESCAPES: &str = "meetkai-functionary-medium-v3.1";

/// Compare the chat templates of a llama.cpp checkout with jinja2.
#[derive(Debug, Parser)]
struct Arguments {
    /// The checkout
    checkout: PathBuf,
}

/// What jinja2 renders from a template.
#[derive(Deserialize)]
struct Rendered {
    /// Hash of the template.
    source: String,
    /// Conversation, variables, and the hash of the text, the refusal, or null if jinja2 fails.
    texts: Vec<(String, Map<String, Value>, Value)>,
}

fn main() -> anyhow::Result<()> {
    let folder = Arguments::parse().checkout.join("models/templates");
    let conversations: BTreeMap<String, Value> = fixture("conversations.json")?;
    let collection: BTreeMap<String, Rendered> = fixture("collection.json")?;
    let (mut templates, mut texts, mut changed, mut differences) = (0, 0, 0, 0);
    for (name, rendered) in &collection {
        let source = fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap_or_default();
        if hash(&source) != rendered.source || name == ESCAPES {
            println!("{name} is not compared");
            continue;
        }
        templates += 1;
        let template = ChatTemplate::new(&source, None, "<s>".into(), "</s>".into()).context(name.clone())?;
        // Where jinja2 fails, an error and a text are both right.
        for (conversation, variables, expected) in rendered.texts.iter().filter(|text| !text.2.is_null()) {
            // jinja2 got the thought where this template does not look for it.
            if conversation == "reasoned" && source.contains("block['thinking']") {
                continue;
            }
            texts += 1;
            let parts = &conversations[conversation];
            let tools = parts.get("tools").map(Value::to_string);
            let chat = Chat {
                messages: parts["messages"].to_string(),
                tools,
                variables: Some(json!(dated(variables, &source)).to_string()),
                is_continued: false,
            };
            let rendered = template.render_with_changes(&chat, NOW);
            let changes = rendered.as_ref().map(|rendered| rendered.changes).unwrap_or_default();
            if is_explained(changes, expected, &template, &chat, &parts["messages"]) {
                changed += 1;
                println!("{name} takes {conversation} with {changes}");
                continue;
            }
            let found = match rendered.map(|rendered| rendered.text) {
                // Gemma 4's template leaves out the turn of the answer behind a call with text.
                Ok(text) if template.format().format == ToolFormat::Gemma && *expected != hash(&text) => {
                    Value::String(hash(text.strip_suffix("<|turn>model\n").unwrap_or(&text)))
                }
                Ok(text) => Value::String(hash(&text)),
                Err(TemplateError::Refused(reason)) => json!({ "refused": reason }),
                Err(error) => Value::String(error.to_string()),
            };
            if found != *expected {
                differences += 1;
                println!("{name} on {conversation} with {}: {found}", Value::Object(variables.clone()));
            }
        }
    }
    println!("{templates} templates, {texts} texts, {changed} after a change, {differences} differences");
    ensure!(differences == 0, "{differences} texts differ");
    ensure!(
        templates >= TEMPLATES_MIN,
        "the checkout has {templates} of the templates, at least {TEMPLATES_MIN} are needed"
    );
    Ok(())
}

/// Whether these changes explain that Bramble does not write the text of jinja2, which refuses the conversation or writes
/// it without its calls.
fn is_explained(
    changes: TemplateChanges,
    expected: &Value,
    template: &ChatTemplate,
    chat: &Chat,
    messages: &Value,
) -> bool {
    // Bramble, too, leaves out calls whose syntax it does not have.
    if changes.is_empty() || changes == TemplateChanges::CALLS_LEFT_OUT {
        return false;
    }
    if expected["refused"].is_string() {
        return true;
    }
    // A missing content is written in several ways.
    changes == TemplateChanges::CALLS_AS_TEXT
        && ["", "null", "None"].iter().any(|content| {
            let bare = Chat { messages: without_calls(messages, content).to_string(), ..chat.clone() };
            template.render(&bare, NOW).is_ok_and(|text| *expected == hash(&text))
        })
}

/// The messages without their calls, and with this content where they have only calls.
fn without_calls(messages: &Value, content: &str) -> Value {
    let mut messages = messages.clone();
    for message in messages.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        if message.remove("tool_calls").is_some() && message.get("content").is_none_or(Value::is_null) {
            message.insert("content".into(), content.into());
        }
    }
    messages
}

/// The variables, with the date of a template that sets one if it gets none: jinja2 gave it none.
fn dated(variables: &Map<String, Value>, source: &str) -> Map<String, Value> {
    let mut variables = variables.clone();
    if !source.contains("strftime_now") {
        variables.entry("date_string").or_insert_with(|| "26 Jul 2024".into());
    }
    variables
}

fn fixture<T: DeserializeOwned>(name: &str) -> anyhow::Result<T> {
    let path = root().join("tests/fixtures/templates").join(name);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// The hash of a text, as in `collection.py`.
fn hash(text: &str) -> String {
    format!("{:016x}", fnv1a(text))
}
