//! Messages and tools of a chat request: the head's template interprets them, so only their shape is checked here.
//! Pure.
use common::chat::{Chat, Grammar, PROMPT_BYTES_MAX};
use serde_json::{Map, Value};

use super::{
    error::ApiError,
    schemas::{self, parameters},
    typed_json::brief,
};

/// Takes messages and tools, unchanged, from the fields of a body, with the grammar of a required tool call.
///
/// # Errors
/// The first invalid part.
pub(super) fn read(object: &mut Map<String, Value>) -> Result<(Chat, Option<Grammar>), ApiError> {
    let messages = object.remove("messages").unwrap_or(Value::Null);
    let Some(list) = messages.as_array().filter(|list| !list.is_empty()) else {
        return Err(ApiError::invalid(
            "messages",
            "messages must be a list of at least one message with role and content",
        ));
    };
    for (index, message) in list.iter().enumerate() {
        let role = message.get("role").and_then(Value::as_str);
        if role.is_none_or(str::is_empty) {
            let param = format!("messages[{index}].role");
            return Err(ApiError::invalid(&param, format!("{param} is missing; give system, user, assistant or tool")));
        }
        check_content(index, message)?;
    }
    let messages = messages.to_string();
    check_conversation(messages.len())?;
    let list = match object.remove("tools").filter(|tools| !tools.is_null()) {
        None => Vec::new(),
        Some(Value::Array(list)) => list,
        Some(other) => {
            return Err(ApiError::invalid("tools", format!("tools is {}, it must be a list", brief(&other))));
        }
    };
    let choice = object.get("tool_choice").filter(|choice| !choice.is_null());
    let list = chosen(list, choice)?;
    let is_forced = choice.is_some_and(|choice| choice.is_object() || choice == "required");
    if is_forced && list.is_empty() {
        return Err(ApiError::invalid(
            "tool_choice",
            "tool_choice requires a call, but there are no tools; give tools",
        ));
    }
    if list.is_empty() || choice.is_some_and(|choice| choice == "none") {
        return Ok((Chat { messages, tools: None }, None));
    }
    let grammar = is_forced.then(|| Grammar::JsonSchema(call_schema(&list).to_string()));
    let tools = Value::Array(list).to_string();
    check_conversation(messages.len() + tools.len())?;
    Ok((Chat { messages, tools: Some(tools) }, grammar))
}

/// Checks the limit that every node has on conversations.
fn check_conversation(bytes: usize) -> Result<(), ApiError> {
    let is_good = bytes <= PROMPT_BYTES_MAX;
    if is_good { Ok(()) } else { Err(ApiError::prompt_too_large("messages", bytes, PROMPT_BYTES_MAX)) }
}

/// JSON schema of a call of one of the tools.
fn call_schema(tools: &[Value]) -> Value {
    let functions = tools.iter().map(|tool| &tool["function"]);
    schemas::call(
        functions.map(|function| (function["name"].clone(), parameters(function.get("parameters")))).collect(),
    )
}

/// Checks for text, parts of text, or nothing if the message has tool calls instead.
fn check_content(index: usize, message: &Value) -> Result<(), ApiError> {
    let param = format!("messages[{index}].content");
    match message.get("content").unwrap_or(&Value::Null) {
        Value::String(_) => Ok(()),
        Value::Null if message.get("tool_calls").is_some() || message.get("function_call").is_some() => Ok(()),
        Value::Array(parts) => {
            if parts.iter().all(|part| {
                part.is_object() && part.get("type").and_then(Value::as_str).is_none_or(|kind| kind == "text")
            }) {
                return Ok(());
            }
            Err(ApiError::invalid(&param, format!("{param} has a part that is not text; the model accepts only text")))
        }
        other => Err(ApiError::invalid(&param, format!("{param} is {}, it must be a string", brief(other)))),
    }
}

/// The tools that may be called: only one, if the client names it.
fn chosen(list: Vec<Value>, choice: Option<&Value>) -> Result<Vec<Value>, ApiError> {
    let name = |tool: &Value| tool.get("function")?.get("name")?.as_str().map(str::to_owned);
    if let Some(index) = list.iter().position(|tool| name(tool).is_none()) {
        let param = format!("tools[{index}].function.name");
        return Err(ApiError::invalid(
            &param,
            format!("{param} is missing; describe each tool as a function with a name"),
        ));
    }
    let Some(wanted) = choice.and_then(name) else { return Ok(list) };
    let found: Vec<Value> = list.into_iter().filter(|tool| name(tool).as_deref() == Some(&wanted)).collect();
    if found.is_empty() {
        return Err(ApiError::invalid(
            "tool_choice",
            format!("tool_choice names {wanted:?}, which is not among the tools"),
        ));
    }
    Ok(found)
}
