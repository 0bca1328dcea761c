//! Items of an input as messages of a chat: one turn of the assistant may be several items. Pure.
use serde_json::{Value, json};

use crate::gateway::{
    conversation::{left_out, text_with},
    error::ApiError,
    typed_json::brief,
};

/// Adds an item to the conversation.
///
/// # Errors
/// The model cannot read it.
pub(super) fn add_item(index: usize, item: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let param = format!("input[{index}]");
    match item["type"].as_str() {
        None | Some("message") => add_message(&param, item, messages),
        Some("function_call") => {
            let call = json!({
                "id": item["call_id"],
                "type": "function",
                "function": {"name": item["name"], "arguments": item["arguments"]},
            });
            let turn = assistant(messages);
            match turn["tool_calls"].as_array_mut() {
                Some(calls) => calls.push(call),
                None => turn["tool_calls"] = json!([call]),
            }
            Ok(())
        }
        Some("function_call_output") => {
            let output = text_with(&format!("{param}.output"), &item["output"], |part| Ok(left_out(part)))?;
            messages.push(json!({"role": "tool", "tool_call_id": item["call_id"], "content": output}));
            Ok(())
        }
        Some("reasoning") => {
            // A summary stands for thoughts that the client did not receive.
            let lists = [&item["content"], &item["summary"]];
            let texts = lists.iter().filter_map(|list| list.as_array()).find(|list| !list.is_empty());
            let texts: Vec<&str> = texts.into_iter().flatten().filter_map(|part| part["text"].as_str()).collect();
            if !texts.is_empty() {
                assistant(messages)["reasoning_content"] = texts.join("\n").into();
            }
            Ok(())
        }
        Some(kind) => {
            let kind: String = kind.chars().take(60).collect();
            let message = format!(
                "{param} is of type {kind}, which is not supported; use message, function_call, function_call_output and \
                 reasoning"
            );
            Err(ApiError::invalid(&format!("{param}.type"), message))
        }
    }
}

/// The assistant's turn at the end of the conversation.
fn assistant(messages: &mut Vec<Value>) -> &mut Value {
    if messages.last().is_none_or(|last| last["role"] != "assistant") {
        messages.push(json!({"role": "assistant", "content": ""}));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

fn add_message(param: &str, item: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let role = item["role"].as_str().unwrap_or_default();
    if !["user", "system", "developer", "assistant"].contains(&role) {
        let param = format!("{param}.role");
        return Err(ApiError::invalid(&param, format!("{param} must be user, assistant, system or developer")));
    }
    let content = text(&format!("{param}.content"), &item["content"])?;
    // The thoughts before it belong to the same turn.
    let has_only_thoughts = messages.last().is_some_and(|last| {
        last["role"] == "assistant" && last["content"] == "" && last.get("reasoning_content").is_some()
    });
    if role == "assistant" && has_only_thoughts {
        assistant(messages)["content"] = content.into();
    } else {
        messages.push(json!({"role": role, "content": content}));
    }
    Ok(())
}

/// The text of a string or of parts of text.
fn text(param: &str, content: &Value) -> Result<String, ApiError> {
    text_with(param, content, |part| {
        let kind = brief(&part["type"]);
        Err(ApiError::invalid(param, format!("{param} has a part of type {kind}; the model accepts only text")))
    })
}
