//! The conversation of Anthropic's API as messages of OpenAI's, as far as it counts tokens. Pure.
use protocol::texts::TextRequest;
use serde_json::{Map, Value, json};

use crate::gateway::{
    conversation,
    error::ApiError,
    outline::{Bounds, Outline},
};

/// POST /v1/messages/count_tokens.
///
/// # Errors
/// The conversation is invalid.
pub(super) fn count(body: &[u8], _: Bounds) -> Result<TextRequest, ApiError> {
    let mut given = Outline::read(body)?.values(&["messages", "system", "tools"])?;
    let mut messages = Vec::new();
    if let Some(system) = given.remove("system") {
        messages.push(json!({"role": "system", "content": text_of(&system)}));
    }
    let turns = given.remove("messages").unwrap_or_default();
    turns.as_array().into_iter().flatten().for_each(|turn| add(turn, &mut messages));
    let mut object = Map::from_iter([("messages".to_owned(), Value::Array(messages))]);
    if let Some(tools) = given.remove("tools").as_ref().and_then(Value::as_array) {
        let tools = tools.iter().map(|tool| {
            let function = json!({
                "name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"],
            });
            json!({"type": "function", "function": function})
        });
        object.insert("tools".into(), tools.collect());
    }
    let chat = Box::new(conversation::read(&mut object)?.chat);
    Ok(TextRequest::TokenizeChat { chat, with_pieces: false })
}

/// The text of a string or of a list of blocks.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

/// Adds a turn: its text and calls, and the results of calls, which are messages of their own.
fn add(turn: &Value, messages: &mut Vec<Value>) {
    let (role, content) = (&turn["role"], &turn["content"]);
    let blocks = content.as_array().map_or(&[][..], Vec::as_slice);
    let of_kind = |kind: &'static str| blocks.iter().filter(move |block| block["type"] == kind);
    for result in of_kind("tool_result") {
        let text = text_of(&result["content"]);
        messages.push(json!({"role": "tool", "tool_call_id": result["tool_use_id"], "content": text}));
    }
    let calls: Vec<Value> = of_kind("tool_use")
        .map(|call| {
            let function = json!({"name": call["name"], "arguments": call["input"].to_string()});
            json!({"id": call["id"], "type": "function", "function": function})
        })
        .collect();
    let text = text_of(content);
    if text.is_empty() && calls.is_empty() && of_kind("tool_result").next().is_some() {
        return;
    }
    let mut message = json!({"role": role, "content": text});
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    messages.push(message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_calls_and_results_become_messages() {
        let body = json!({
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": "Oslo?"},
                {"role": "assistant", "content": [
                    {"type": "text", "text": "I look."}, {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
                ]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "4 C"}]},
            ],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        });
        let Ok(TextRequest::TokenizeChat { chat, .. }) = count(body.to_string().as_bytes(), Bounds { context: None })
        else {
            panic!("a conversation")
        };
        let messages: Value = serde_json::from_str(&chat.messages).expect("JSON");
        let roles: Vec<&str> = messages.as_array().expect("a list").iter().filter_map(|m| m["role"].as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        assert_eq!(messages[2]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
        assert!(chat.tools.is_some_and(|tools| tools.contains("\"parameters\"")));
        for wrong in ["{}", "{\"messages\": 1}", "{\"messages\": [{}]}", "[]"] {
            assert!(count(wrong.as_bytes(), Bounds { context: None }).is_err(), "{wrong}");
        }
    }
}
