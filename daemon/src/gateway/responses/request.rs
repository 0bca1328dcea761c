//! Converts the body of a request for a response to that of a chat. Pure.
use common::chat::PROMPT_BYTES_MAX;
use serde_json::{Map, Value, json};

use super::items::add_item;
use crate::gateway::{
    error::ApiError,
    typed_json::{Fields, brief},
};

/// All fields that are used; others are not even built.
pub(super) const FIELDS: [&str; 19] = [
    "background",
    "conversation",
    "input",
    "instructions",
    "max_output_tokens",
    "metadata",
    "model",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt",
    "reasoning",
    "store",
    "stream",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "user",
];

/// Fields that chats have, too.
const SHARED: [&str; 5] = ["model", "parallel_tool_calls", "stream", "temperature", "top_p"];
/// Fields that the response repeats.
const ECHOED: [&str; 13] = [
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "reasoning",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_p",
    "user",
];

/// A request as a chat.
#[derive(Debug)]
pub(super) struct ResponsesRequest {
    /// The fields of the chat.
    pub(super) chat: Map<String, Value>,
    /// Its messages without the instructions, which a later response does not take over.
    pub(super) messages: Vec<Value>,
    /// The fields that the response repeats.
    pub(super) echo: Map<String, Value>,
}

/// Converts a request; `earlier` is the conversation that it continues, `find` returns the JSON of items of kept responses.
///
/// # Errors
/// The first field that is invalid or not supported, or references to more than a prompt may have.
pub(super) fn translate(
    mut given: Map<String, Value>,
    earlier: Vec<Value>,
    find: impl Fn(&str) -> Option<String>,
) -> Result<ResponsesRequest, ApiError> {
    refuse(Fields(&given))?;
    let (mut messages, mut referred_bytes) = (earlier, 0);
    match given.remove("input") {
        None | Some(Value::Null) if !messages.is_empty() => {}
        Some(Value::String(text)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) => {
            for (index, item) in items.into_iter().enumerate() {
                let item = match referred(&item) {
                    None => item,
                    Some(id) => {
                        let found = find(id).ok_or_else(|| unknown(index, id))?;
                        referred_bytes += found.len();
                        if referred_bytes > PROMPT_BYTES_MAX {
                            return Err(ApiError::prompt_too_large("input", referred_bytes, PROMPT_BYTES_MAX));
                        }
                        serde_json::from_str(&found).map_err(|_| unknown(index, id))?
                    }
                };
                add_item(index, &item, &mut messages)?;
            }
        }
        other => {
            let message =
                format!("input is {}, it must be a string or a list of items", brief(&other.unwrap_or_default()));
            return Err(ApiError::invalid("input", message));
        }
    }
    let fields = Fields(&given);
    let mut chat = Map::new();
    for name in SHARED {
        chat.extend(fields.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    let instructions = fields.text("instructions")?.map(|text| json!({"role": "system", "content": text}));
    chat.insert("messages".into(), instructions.into_iter().chain(messages.iter().cloned()).collect());
    if let Some(most) = fields.get("max_output_tokens") {
        chat.insert("max_tokens".into(), most.clone());
    }
    if let Some(effort) = fields.object("reasoning")?.and_then(|reasoning| reasoning.get("effort")) {
        chat.insert("reasoning_effort".into(), effort.clone());
    }
    tools(fields, &mut chat)?;
    format(fields, &mut chat)?;
    let echo = ECHOED.iter().filter_map(|name| Some(((*name).to_owned(), given.remove(*name)?))).collect();
    Ok(ResponsesRequest { chat, messages, echo })
}

fn referred(item: &Value) -> Option<&str> {
    let is_reference = item["type"] == "item_reference";
    item["id"].as_str().filter(|_| is_reference)
}

fn unknown(index: usize, id: &str) -> ApiError {
    let id: String = id.chars().take(100).collect();
    let message = format!("item {id:?} is not kept on this node (any more); send the item itself");
    ApiError::invalid(&format!("input[{index}].id"), message)
}

fn refuse(given: Fields<'_>) -> Result<(), ApiError> {
    if given.flag("background")? {
        return Err(ApiError::invalid("background", "background is not supported; leave it out and stream the answer"));
    }
    for (name, instead) in [("conversation", "previous_response_id"), ("prompt", "instructions and input")] {
        if given.get(name).is_some() {
            return Err(ApiError::invalid(name, format!("{name} is not supported; use {instead}")));
        }
    }
    Ok(())
}

fn tools(given: Fields<'_>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let list = match given.get("tools") {
        None => return Ok(()),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(ApiError::invalid("tools", format!("tools is {}, it must be a list", brief(other)))),
    };
    let mut tools = Vec::new();
    for (index, tool) in list.iter().enumerate() {
        if tool["type"] != "function" {
            let (param, kind) = (format!("tools[{index}].type"), brief(&tool["type"]));
            let message = format!("{param} is {kind}, which is not supported; only tools of type function are");
            return Err(ApiError::invalid(&param, message));
        }
        let function: Map<String, Value> = ["name", "description", "parameters", "strict"]
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), tool.get(name).filter(|value| !value.is_null())?.clone())))
            .collect();
        tools.push(json!({"type": "function", "function": function}));
    }
    if tools.is_empty() {
        return Ok(());
    }
    chat.insert("tools".into(), tools.into());
    if let Some(choice) = given.get("tool_choice") {
        chat.insert("tool_choice".into(), choice.clone());
    }
    Ok(())
}

/// `text.format` of the request as `response_format` of a chat.
fn format(given: Fields<'_>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(format) = given.object("text")?.map_or(Ok(None), |text| text.object("format"))? else { return Ok(()) };
    let form = match format.text("type")? {
        Some("json_schema") => {
            let Fields(schema) = format;
            json!({"type": "json_schema", "json_schema": schema})
        }
        kind => json!({"type": kind}),
    };
    chat.insert("response_format".into(), form);
    Ok(())
}
