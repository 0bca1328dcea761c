//! Converts the body of a message to that of a chat. Pure.
use serde_json::{Map, Value, json};

use crate::gateway::{
    conversation::{left_out, text_with},
    error::ApiError,
    typed_json::{Fields, brief},
};

/// All fields that are used; others, such as `metadata`, are not even built.
pub(super) const FIELDS: [&str; 14] = [
    "max_tokens",
    "messages",
    "model",
    "output_config",
    "output_format",
    "stop_sequences",
    "stream",
    "system",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
];

/// Fields that chats have, too.
const SHARED: [&str; 6] = ["max_tokens", "model", "stream", "temperature", "top_k", "top_p"];

/// The fields of the chat.
///
/// # Errors
/// The first invalid field.
pub(super) fn chat(mut given: Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    let mut chat = Map::new();
    for name in SHARED {
        chat.extend(given.remove(name).map(|value| (name.to_owned(), value)));
    }
    let mut messages = Vec::new();
    if let Some(system) = Fields(&given).get("system") {
        messages.push(json!({"role": "system", "content": without_attribution(&text("system", system)?)}));
    }
    let turns = given.remove("messages").and_then(|mut turns| turns.as_array_mut().map(std::mem::take));
    let Some(turns) = turns.filter(|turns| !turns.is_empty()) else {
        let message = "messages must be a list of at least one message with role and content";
        return Err(ApiError::invalid("messages", message));
    };
    for (index, turn) in turns.into_iter().enumerate() {
        add_turn(index, turn, &mut messages)?;
    }
    // The answer continues a last message of the assistant's.
    let last = messages.last().filter(|last| last["role"] == "assistant" && last.get("tool_calls").is_none());
    if last.is_some_and(|last| last["content"].as_str().is_some_and(|text| !text.trim().is_empty())) {
        chat.insert("continue_final_message".into(), true.into());
    }
    chat.insert("messages".into(), messages.into());
    if let Some(stops) = given.remove("stop_sequences") {
        chat.insert("stop".into(), stops);
    }
    tools(Fields(&given), &mut chat)?;
    thinking(Fields(&given), &mut chat)?;
    output(Fields(&given), &mut chat)?;
    Ok(chat)
}

/// A system prompt without Claude Code's line for Anthropic's billing. It differs in each request, and nothing behind it could
/// be used again.
fn without_attribution(system: &str) -> String {
    system.split_inclusive('\n').filter(|line| !line.starts_with("x-anthropic-billing-header:")).collect()
}

/// The text of a string or of blocks of text; blocks are paragraphs.
fn text(param: &str, content: &Value) -> Result<String, ApiError> {
    text_with(param, content, |block| Err(refused(param, block)))
}

/// The text of a tool's result. What the model cannot read is left out: the conversation could not continue otherwise.
fn result(param: &str, block: &Value) -> Result<String, ApiError> {
    let content = match &block["content"] {
        Value::Null => String::new(),
        content => text_with(param, content, |block| Ok(left_out(block)))?,
    };
    let is_named = content.get(..5).is_some_and(|begin| begin.eq_ignore_ascii_case("error"));
    Ok(if block["is_error"] == true && !is_named { format!("Error: {content}") } else { content })
}

/// A block that the model cannot read.
fn refused(param: &str, block: &Value) -> ApiError {
    let kind: String = block["type"].as_str().unwrap_or("unknown").chars().take(60).collect();
    let message = format!("{param} has a block of type {kind}; use text, tool_use, tool_result and thinking");
    ApiError::invalid(param, message)
}

/// Adds a turn: results of tools are messages of their own, before the text that follows them.
fn add_turn(index: usize, mut turn: Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let param = format!("messages[{index}].content");
    let role = turn["role"].as_str().unwrap_or_default().to_owned();
    if !["user", "assistant", "system"].contains(&role.as_str()) {
        let param = format!("messages[{index}].role");
        return Err(ApiError::invalid(&param, format!("{param} must be user or assistant")));
    }
    let content = turn.get_mut("content").map(Value::take).unwrap_or_default();
    let Value::Array(blocks) = content else {
        messages.push(json!({"role": role, "content": text(&param, &content)?}));
        return Ok(());
    };
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    let count = messages.len();
    for block in &blocks {
        match (block["type"].as_str(), role.as_str()) {
            (Some("text"), _) => texts.push(block["text"].as_str().ok_or_else(|| refused(&param, block))?),
            (Some("tool_result"), "user") => {
                let content = result(&param, block)?;
                messages.push(json!({"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}));
            }
            (Some("tool_use"), "assistant") => calls.push(json!({
                "id": block["id"],
                "type": "function",
                "function": {"name": block["name"], "arguments": block["input"].to_string()},
            })),
            (Some("thinking"), "assistant") => thoughts.extend(block["thinking"].as_str()),
            // Only Anthropic's servers can read it.
            (Some("redacted_thinking"), "assistant") => {}
            _ => return Err(refused(&param, block)),
        }
    }
    let has_results = messages.len() > count;
    if role == "user" && texts.is_empty() && has_results {
        return Ok(());
    }
    let mut message = json!({"role": role, "content": texts.join("\n")});
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.join("\n").into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    messages.push(message);
    Ok(())
}

fn tools(given: Fields<'_>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let list = match given.get("tools") {
        None => Vec::new(),
        Some(Value::Array(list)) => {
            list.iter().enumerate().map(|(index, value)| tool(index, value)).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(ApiError::invalid("tools", format!("tools is {}, it must be a list", brief(other)))),
    };
    if !list.is_empty() {
        chat.insert("tools".into(), list.into());
    }
    let Some(choice) = given.object("tool_choice")? else { return Ok(()) };
    let chosen = match choice.text("type")? {
        Some(kind @ ("auto" | "any" | "none")) => json!(kind),
        Some("tool") => json!({"type": "function", "function": {"name": choice.text("name")?}}),
        _ => return Err(ApiError::invalid("tool_choice", "tool_choice.type must be auto, any, tool or none")),
    };
    chat.insert("tool_choice".into(), chosen);
    if choice.flag("disable_parallel_tool_use")? {
        chat.insert("parallel_tool_calls".into(), false.into());
    }
    Ok(())
}

fn tool(index: usize, tool: &Value) -> Result<Value, ApiError> {
    if let Some(kind) = tool["type"].as_str().filter(|kind| *kind != "custom") {
        let param = format!("tools[{index}].type");
        let kind: String = kind.chars().take(60).collect();
        let message = format!("{param} {kind} names a tool of Anthropic's servers; describe it with input_schema");
        return Err(ApiError::invalid(&param, message));
    }
    let function = json!({
        "name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"], "strict": tool["strict"],
    });
    let function: Map<String, Value> =
        function.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()).map(owned).collect();
    Ok(json!({"type": "function", "function": function}))
}

fn owned(field: (&String, &Value)) -> (String, Value) {
    (field.0.clone(), field.1.clone())
}

fn thinking(given: Fields<'_>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(thinking) = given.object("thinking")? else { return Ok(()) };
    let thinks = match thinking.text("type")? {
        Some("enabled" | "adaptive") => true,
        Some("disabled") => false,
        _ => return Err(ApiError::invalid("thinking", "thinking.type must be enabled, disabled or adaptive")),
    };
    chat.insert("enable_thinking".into(), thinks.into());
    if let Some(budget) = thinking.get("budget_tokens").filter(|_| thinks) {
        chat.insert("thinking_budget".into(), budget.clone());
    }
    Ok(())
}

fn output(given: Fields<'_>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let config = given.object("output_config")?;
    if let Some(effort) = config.and_then(|config| config.get("effort")) {
        chat.insert("reasoning_effort".into(), effort.clone());
    }
    let format = match config.and_then(|config| config.get("format")).or(given.get("output_format")) {
        None => return Ok(()),
        Some(format) if format["type"] == "json_schema" => format,
        Some(_) => return Err(ApiError::invalid("output_config", "output_config.format.type must be json_schema")),
    };
    let form = json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": format["schema"]}});
    chat.insert("response_format".into(), form);
    Ok(())
}
