//! Converts bodies of Ollama's API to those of chats and completions. Pure.
use protocol::{message::Prompt, models::plain_name};
use serde_json::{Map, Value, json};

use crate::gateway::{
    error::ApiError,
    request::Kind,
    typed_json::{Fields, brief},
};

/// All fields that are used; others, such as `keep_alive`, are not even built.
pub(super) const FIELDS: [&str; 14] = [
    "context", "format", "images", "messages", "model", "name", "options", "prompt", "raw", "stream", "suffix",
    "system", "think", "tools",
];

/// Options with the same meaning as the field of that name in chats.
const OPTIONS: [&str; 9] = [
    "frequency_penalty",
    "min_p",
    "presence_penalty",
    "repeat_penalty",
    "seed",
    "stop",
    "temperature",
    "top_k",
    "top_p",
];

/// A request as a chat or a completion.
#[derive(Debug)]
pub(super) struct OllamaRequest {
    pub(super) kind: Kind,
    /// The fields of the chat or the completion.
    pub(super) chat: Map<String, Value>,
    /// The prompt of a completion.
    pub(super) prompts: Vec<Prompt>,
    /// The client's name for the model.
    pub(super) name: Option<String>,
}

/// Converts a chat.
///
/// # Errors
/// The first invalid field.
pub(super) fn chat(mut given: Map<String, Value>) -> Result<OllamaRequest, ApiError> {
    let turns = match given.remove("messages") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(turns)) => turns,
        Some(other) => {
            return Err(ApiError::invalid("messages", format!("messages is {}, it must be a list", brief(&other))));
        }
    };
    let mut messages = Vec::new();
    let mut unanswered: Vec<(String, String)> = Vec::new();
    for (index, turn) in turns.iter().enumerate() {
        messages.push(message(index, turn, &mut unanswered)?);
    }
    let fields = Fields(&given);
    let (mut chat, name) = common(fields)?;
    if let Some(tools) = fields.get("tools").filter(|tools| tools.as_array().is_none_or(|list| !list.is_empty())) {
        chat.insert("tools".into(), tools.clone());
    }
    chat.insert("messages".into(), messages.into());
    Ok(OllamaRequest { kind: Kind::Chat, chat, prompts: Vec::new(), name })
}

/// Converts a completion: a chat of one turn, or a plain prompt if it is raw.
///
/// # Errors
/// The first invalid field.
pub(super) fn generate(given: Map<String, Value>) -> Result<OllamaRequest, ApiError> {
    let fields = Fields(&given);
    let (mut chat, name) = common(fields)?;
    if fields.text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::invalid("suffix", "suffix is not supported; leave it out"));
    }
    check_images("images", fields.get("images"))?;
    if fields.get("context").is_some_and(|context| context.as_array().is_none_or(|ids| !ids.is_empty())) {
        let message = "context is not supported: answers have none; send the conversation to /api/chat";
        return Err(ApiError::invalid("context", message));
    }
    let prompt = fields.text("prompt")?.unwrap_or_default();
    if fields.flag("raw")? {
        let prompts = (!prompt.is_empty()).then(|| Prompt::Text(prompt.into()));
        return Ok(OllamaRequest { kind: Kind::Completion, chat, prompts: prompts.into_iter().collect(), name });
    }
    let mut messages = Vec::new();
    if !prompt.is_empty() {
        let system = fields.text("system")?.filter(|system| !system.is_empty());
        messages.extend(system.map(|system| json!({"role": "system", "content": system})));
        messages.push(json!({"role": "user", "content": prompt}));
    }
    chat.insert("messages".into(), messages.into());
    Ok(OllamaRequest { kind: Kind::Chat, chat, prompts: Vec::new(), name })
}

/// The name of the model without the tag that Ollama adds by default, and the client's.
pub(super) fn model(given: Fields<'_>) -> Result<(Option<String>, Option<String>), ApiError> {
    let name = given.text("model")?.or(given.text("name")?).map(str::to_owned);
    let plain = name.as_deref().map(|name| plain_name(name).to_owned());
    Ok((plain, name))
}

/// Fields that both kinds of requests have, and the client's name for the model.
fn common(given: Fields<'_>) -> Result<(Map<String, Value>, Option<String>), ApiError> {
    let mut chat = Map::new();
    let (plain, name) = model(given)?;
    chat.extend(plain.map(|model| ("model".to_owned(), model.into())));
    let is_streamed = given.get("stream").is_none() || given.flag("stream")?;
    chat.insert("stream".into(), is_streamed.into());
    // Ollama's answers have no limit by default; 0, -1 and -2 are its words for that.
    chat.insert("max_tokens".into(), json!(-1));
    if let Some(options) = given.object("options")? {
        for name in OPTIONS {
            chat.extend(options.get(name).map(|value| (name.to_owned(), value.clone())));
        }
        if let Some(most) = options.get("num_predict").filter(|most| most.as_i64().is_none_or(|most| most > 0)) {
            chat.insert("max_tokens".into(), most.clone());
        }
    }
    match given.get("think") {
        None => {}
        Some(Value::Bool(thinks)) => drop(chat.insert("enable_thinking".into(), (*thinks).into())),
        Some(Value::String(effort)) => {
            chat.insert("enable_thinking".into(), true.into());
            chat.insert("reasoning_effort".into(), effort.clone().into());
        }
        Some(other) => {
            let message = format!("think is {}, it must be true, false, low, medium or high", brief(other));
            return Err(ApiError::invalid("think", message));
        }
    }
    match given.get("format") {
        None => {}
        Some(Value::String(format)) if format.is_empty() => {}
        Some(Value::String(format)) if format == "json" => {
            chat.insert("response_format".into(), json!({"type": "json_object"}));
        }
        Some(schema @ Value::Object(_)) => {
            chat.insert("response_format".into(), json!({"type": "json_object", "schema": schema}));
        }
        Some(other) => {
            return Err(ApiError::invalid(
                "format",
                format!("format is {}, it must be json or a schema", brief(other)),
            ));
        }
    }
    Ok((chat, name))
}

fn check_images(param: &str, images: Option<&Value>) -> Result<(), ApiError> {
    match images.filter(|images| images.as_array().is_none_or(|list| !list.is_empty())) {
        None => Ok(()),
        Some(_) => Err(ApiError::invalid(param, format!("{param} is not supported; the model accepts only text"))),
    }
}

/// A message of the chat. Calls have no ids here, so they get some; a result belongs to the first call in `unanswered`
/// with its name.
fn message(index: usize, turn: &Value, unanswered: &mut Vec<(String, String)>) -> Result<Value, ApiError> {
    check_images(&format!("messages[{index}].images"), turn.get("images").filter(|images| !images.is_null()))?;
    let content = turn.get("content").filter(|content| !content.is_null()).cloned().unwrap_or_else(|| "".into());
    let mut message = json!({"role": turn["role"], "content": content});
    if let Some(thought) = turn["thinking"].as_str().filter(|thought| !thought.is_empty()) {
        message["reasoning_content"] = thought.into();
    }
    let calls = turn["tool_calls"].as_array().filter(|calls| !calls.is_empty());
    if let Some(calls) = calls {
        unanswered.clear();
        let mut list = Vec::new();
        for (number, call) in calls.iter().enumerate() {
            let name = call["function"]["name"].as_str().unwrap_or_default();
            let id = call["id"].as_str().map_or_else(|| format!("call_{index}_{number}"), Into::into);
            let arguments = match &call["function"]["arguments"] {
                Value::String(text) => text.clone(),
                Value::Null => "{}".into(),
                other => other.to_string(),
            };
            list.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}));
            unanswered.push((name.into(), id));
        }
        message["tool_calls"] = list.into();
    }
    if turn["role"] == "tool" {
        let name = turn["tool_name"].as_str().or(turn["name"].as_str());
        let at = unanswered.iter().position(|call| name.is_none_or(|name| name == call.0));
        let id = at.map(|at| unanswered.remove(at).1);
        message["tool_call_id"] = turn["tool_call_id"].as_str().map(Into::into).or(id).into();
        if let Some(name) = name {
            message["name"] = name.into();
        }
    }
    Ok(message)
}
