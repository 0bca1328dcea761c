//! Messages of a chat request: the head's template interprets them, so only their shape is checked here, and what
//! clients of other servers send is converted to the form that templates expect. Pure.
use common::{
    chat::{Chat, Grammar, PROMPT_BYTES_MAX},
    tool_use::ToolUse,
};
use serde_json::{Map, Value, json};
use tokenizer::answer::ToolSchemas;

use super::{
    calls::{self, Calls},
    error::ApiError,
    schemas::Unenforced,
    thoughts,
    typed_json::{Fields, brief},
};

/// A conversation with its tools.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) chat: Chat,
    /// The parameters of its tools.
    pub(super) schemas: ToolSchemas,
    /// The grammar of a required tool call.
    pub(super) forced: Option<Grammar>,
    /// The constraint on calls, for heads that have it in the syntax of their model.
    pub(super) tool_use: Option<ToolUse>,
    /// What of its schema is not enforced.
    pub(super) unenforced: Unenforced,
    /// Whether calls are written as in OpenAI's older `function_call`.
    pub(super) is_legacy: bool,
}

/// Takes messages and tools from the fields of a body.
///
/// # Errors
/// The first invalid part.
pub(super) fn read(object: &mut Map<String, Value>) -> Result<Conversation, ApiError> {
    let mut messages = object.remove("messages").unwrap_or(Value::Null);
    let Some(list) = messages.as_array_mut().filter(|list| !list.is_empty()) else {
        return Err(ApiError::invalid(
            "messages",
            "messages must be a list of at least one message with role and content",
        ));
    };
    list.iter_mut().enumerate().try_for_each(|(index, message)| straighten(index, message))?;
    let messages = messages.to_string();
    let calls = calls::read(object)?;
    let schemas = ToolSchemas::read(&calls.tools);
    let tools = (!calls.tools.is_empty()).then(|| Value::Array(calls.tools).to_string());
    let fields = Fields(object);
    let is_continued = fields.flag("continue_final_message")?;
    if is_continued && fields.get("add_generation_prompt") == Some(&Value::Bool(true)) {
        let message = "continue_final_message and add_generation_prompt cannot both be true; leave out one of them";
        return Err(ApiError::invalid("continue_final_message", message));
    }
    let chat = Chat { messages, tools, variables: thoughts::variables(fields)?, is_continued };
    check_length(chat.byte_count())?;
    let Calls { grammar: forced, tool_use, unenforced, is_legacy, .. } = calls;
    let tool_use = tool_use.map(|tool_use| ToolUse { is_continued, ..tool_use });
    Ok(Conversation { chat, schemas, forced, tool_use, unenforced, is_legacy })
}

/// Checks the limit that every node has on conversations.
fn check_length(bytes: usize) -> Result<(), ApiError> {
    let is_good = bytes <= PROMPT_BYTES_MAX;
    if is_good { Ok(()) } else { Err(ApiError::prompt_too_large("messages", bytes, PROMPT_BYTES_MAX)) }
}

/// Checks a message and brings older forms into today's.
fn straighten(index: usize, message: &mut Value) -> Result<(), ApiError> {
    let param = format!("messages[{index}].role");
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default().to_owned();
    if role.is_empty() {
        return Err(ApiError::invalid(&param, format!("{param} is missing; give system, user, assistant or tool")));
    }
    if !["system", "developer", "user", "assistant", "tool", "function"].contains(&role.as_str()) {
        let message = format!("{param} is {}; use system, user, assistant or tool", brief(&role.into()));
        return Err(ApiError::invalid(&param, message));
    }
    let Value::Object(fields) = message else { return Ok(()) };
    // The result of a function and its call have the same id in today's form.
    let id = |name: &Value| format!("call_{}", name.as_str().unwrap_or_default()).into();
    if role == "function" {
        let call: Value = id(fields.get("name").unwrap_or(&Value::Null));
        fields.insert("role".into(), "tool".into());
        fields.insert("tool_call_id".into(), call);
    }
    if let Some(call) = fields.get("function_call").filter(|call| call.is_object()).cloned() {
        let call_id: Value = id(&call["name"]);
        fields.retain(|name, _| name != "function_call");
        fields.insert("tool_calls".into(), json!([{"id": call_id, "type": "function", "function": call}]));
    }
    let has_calls = fields.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    let is_empty = fields.get("content").is_none_or(Value::is_null);
    if is_empty && !has_calls && role != "user" && role != "system" && role != "developer" {
        let refusal = fields.get("refusal").filter(|refusal| refusal.is_string()).cloned();
        fields.insert("content".into(), refusal.unwrap_or_else(|| "".into()));
    }
    let is_result = role == "tool" || role == "function";
    if let Some(Value::Array(parts)) = fields.get_mut("content").filter(|_| is_result) {
        for part in parts.iter_mut().filter(|part| part["type"].as_str().is_some_and(|kind| kind != "text")) {
            let text = part_text(part).map_or_else(|| left_out(part), str::to_owned);
            *part = json!({"type": "text", "text": text});
        }
    }
    check_content(index, fields.get_mut("content").unwrap_or(&mut Value::Null), has_calls)
}

/// The text in place of a part of a tool's result that the model cannot read: the conversation goes through it again and
/// again, and could not continue if it were refused.
pub(super) fn left_out(part: &Value) -> String {
    let kind: String = part["type"].as_str().unwrap_or("part").chars().take(60).collect();
    format!("[{kind} left out: this model reads only text]")
}

/// The text of a part, whatever its type.
fn part_text(part: &Value) -> Option<&str> {
    part["text"].as_str().or(part["refusal"].as_str())
}

/// The text of a string, or of parts as paragraphs, with what `other` makes of parts that have none.
///
/// # Errors
/// It is neither, and those of `other`.
pub(super) fn text_with(
    param: &str,
    content: &Value,
    other: impl Fn(&Value) -> Result<String, ApiError>,
) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| match part_text(part) {
                Some(text) => Ok(text.to_owned()),
                None => other(part),
            });
            Ok(texts.collect::<Result<Vec<String>, ApiError>>()?.join("\n"))
        }
        wrong => {
            let message = format!("{param} is {}, it must be a string or a list of parts", brief(wrong));
            Err(ApiError::invalid(param, message))
        }
    }
}

/// Checks for text, parts of text, or nothing if the message has tool calls instead. A refusal is text, too.
fn check_content(index: usize, content: &mut Value, has_calls: bool) -> Result<(), ApiError> {
    let param = format!("messages[{index}].content");
    match content {
        Value::String(_) => Ok(()),
        Value::Null if has_calls => Ok(()),
        Value::Array(parts) => {
            for part in parts.iter_mut() {
                if let Some(refusal) = part.get("refusal").filter(|text| text.is_string()).cloned() {
                    *part = json!({"type": "text", "text": refusal});
                }
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(list: Value) -> Result<Value, ApiError> {
        let mut object = Map::from_iter([("messages".to_owned(), list)]);
        let read = read(&mut object)?;
        Ok(serde_json::from_str(&read.chat.messages).expect("it is JSON"))
    }

    #[test]
    fn empty_turns_and_refusals_are_text() {
        let user = json!({"role": "user", "content": "a"});
        let content = |message: Value| messages(json!([user, message])).map(|list| list[1]["content"].clone());
        let calls = json!([{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
        for (message, expected) in [
            (json!({"role": "assistant", "content": null}), json!("")),
            (json!({"role": "assistant"}), json!("")),
            (json!({"role": "assistant", "content": null, "tool_calls": []}), json!("")),
            (json!({"role": "assistant", "content": null, "tool_calls": calls}), json!(null)),
            (json!({"role": "assistant", "content": null, "refusal": "No."}), json!("No.")),
            (
                json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}),
                json!([{"type": "text", "text": "No."}]),
            ),
            (json!({"role": "tool", "tool_call_id": "x", "content": null}), json!("")),
        ] {
            assert_eq!(content(message.clone()), Ok(expected), "{message}");
        }
        for wrong in [
            json!({"role": "user", "content": null}),
            json!({"role": "system"}),
            json!({"role": "root", "content": "a"}),
        ] {
            assert!(content(wrong.clone()).is_err_and(|error| error.status.as_u16() == 400), "{wrong}");
        }
    }

    #[test]
    fn only_results_of_tools_may_have_parts_that_are_no_text() {
        let content = |role: &str| {
            let image = json!({"type": "image_url", "image_url": {"url": "data:x"}});
            let parts = json!([{"type": "text", "text": "a"}, image]);
            messages(json!([{"role": role, "tool_call_id": "x", "content": parts}]))
        };
        let result = content("tool").expect("it is good");
        assert_eq!(result[0]["content"][1]["text"], "[image_url left out: this model reads only text]");
        for (part, text) in [
            (json!({"type": "input_text", "text": "b"}), "b"),
            (json!({"type": "refusal", "refusal": "No."}), "No."),
            (json!({"type": "input_text", "text": 7}), "[input_text left out: this model reads only text]"),
        ] {
            let result = messages(json!([{"role": "tool", "tool_call_id": "x", "content": [part]}]));
            assert_eq!(result.expect("it is good")[0]["content"], json!([{"type": "text", "text": text}]));
        }
        assert!(content("user").is_err_and(|error| error.status.as_u16() == 400));
    }

    #[test]
    fn older_function_messages_become_calls_and_results() {
        let list = messages(json!([
            {"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "3"},
        ]));
        let list = list.expect("it is good");
        assert_eq!((&list[0]["tool_calls"][0]["function"]["name"], &list[1]["role"]), (&json!("f"), &json!("tool")));
        assert_eq!(list[0]["tool_calls"][0]["id"], list[1]["tool_call_id"]);
        assert_eq!(list[0].get("function_call"), None);
    }
}
