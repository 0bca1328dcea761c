//! How much text of a conversation any template renders.
use serde::Deserialize;
use serde_json::value::RawValue;

/// A message of a conversation.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(default)]
    role: String,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

/// A part of a message's content.
#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    text: String,
}

/// Least number of bytes that a template renders from a JSON array of messages: their contents without the spaces
/// around them, which templates often remove. Templates may also drop earlier answers, for example their thinking. 0 if
/// the messages have another form: the template then decides.
pub(super) fn least_bytes(messages: &str) -> usize {
    let messages: Vec<Message<'_>> = serde_json::from_str(messages).unwrap_or_default();
    let rendered = messages.iter().filter(|message| message.role != "assistant").filter_map(|message| message.content);
    rendered.map(content_bytes).sum()
}

fn content_bytes(content: &RawValue) -> usize {
    if let Ok(text) = serde_json::from_str::<String>(content.get()) {
        return text.trim().len();
    }
    let parts: Vec<Part> = serde_json::from_str(content.get()).unwrap_or_default();
    parts.iter().map(|part| part.text.trim().len()).sum()
}
