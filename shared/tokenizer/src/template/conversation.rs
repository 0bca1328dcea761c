//! A conversation in the format of the OpenAI API, prepared for templates: text parts joined, arguments of tool calls
//! as objects.
use common::chat::Chat;
use serde_json::{Map, Value, json};

use super::{TemplateError, refused::Change};
use crate::answer::ChatFormat;

/// Most messages of a conversation.
const MESSAGES_MAX: usize = 16 << 10;

/// Stands at the end of a message that the answer continues while it is rendered. A template that trims contents removes the
/// blank.
const MARK: &str = "BRAMBLE_CONTINUES_HERE ";

/// The variables of a template.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    /// Whether the answer continues the last message.
    pub(super) is_continued: bool,
    pub(super) messages: Vec<Value>,
    pub(super) tools: Option<Vec<Value>>,
}

/// How a conversation presents tools and their calls to a template.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Arguments are objects, as most templates expect, not JSON texts.
    has_objects: bool,
    /// A message with calls has a content, if only an empty one.
    has_content: bool,
    /// A tool has a description and parameters, if only empty ones.
    has_schemas: bool,
}

impl Form {
    /// What most templates expect.
    pub(super) const USUAL: Self = Self { has_objects: true, has_content: false, has_schemas: false };

    /// The other forms of a conversation, in the order in which they are tried: none if it has neither tools nor calls.
    pub(super) fn others(chat: &Chat) -> impl Iterator<Item = Self> {
        let (has_calls, has_tools) = (chat.messages.contains("\"tool_calls\""), chat.tools.is_some());
        let of =
            |has_content, has_schemas| [true, false].map(|has_objects| Self { has_objects, has_content, has_schemas });
        let [_, texts] = of(false, false);
        let [with_content, with_content_texts] = of(true, false);
        let [filled, filled_texts] = of(true, true);
        let calls = [texts, with_content, with_content_texts].into_iter().filter(move |_| has_calls);
        let tools = std::iter::once(filled).filter(move |_| has_tools);
        let both = std::iter::once(filled_texts).filter(move |_| has_tools && has_calls);
        calls.chain(tools).chain(both)
    }
}

/// What a template expects of messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Customs {
    /// It reads messages with calls and without content.
    takes_no_content: bool,
    /// It asks whether there is content, and may write calls only where there is none (DeepSeek R1).
    asks_for_content: bool,
    /// It takes the tools from the system message, as a JSON text (Phi 4 mini).
    has_tools_in_system: bool,
    thoughts: Thoughts,
}

/// Where a template looks for the thought of an earlier answer.
#[derive(Clone, Copy, Debug)]
enum Thoughts {
    /// In `reasoning_content`, if anywhere.
    Reasoning,
    /// In `thinking`; next to calls, instead of the content (gpt-oss, LFM2.5).
    Field,
    /// In a part of the content (Ministral 3).
    Part,
}

/// Whether a template asks whether a message has content.
fn asks_for_content(template: &str) -> bool {
    let words: String = template.chars().filter(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    ["contentisnotnone", "contentisnone"].iter().any(|test| words.contains(test))
}

impl Customs {
    /// The customs of templates with this text.
    pub(super) fn of(template: &str) -> Self {
        let has = |parts: [&str; 2]| parts.iter().any(|part| template.contains(part));
        let thoughts = if has(["block['thinking']", "block[\"thinking\"]"]) {
            Thoughts::Part
        } else if has([".thinking", "\"thinking\" in"]) {
            Thoughts::Field
        } else {
            Thoughts::Reasoning
        };
        let has_tools_in_system = has(["message['tools']", "message[\"tools\"]"]);
        let asks_for_content = asks_for_content(template);
        // Other templates would write "None".
        let takes_no_content = asks_for_content || template.contains("tool_calls");
        Self { takes_no_content, asks_for_content, has_tools_in_system, thoughts }
    }

    /// Moves the thought of an assistant's message to where the template looks for it.
    fn place_thought(self, message: &mut Map<String, Value>) {
        let names = ["reasoning_content", "reasoning", "thinking"];
        let thought = names.iter().find_map(|name| message.get(*name)?.as_str().filter(|text| !text.is_empty()));
        let Some(thought) = thought.map(str::to_owned) else { return };
        if message.get("role").is_none_or(|role| role != "assistant") {
            return;
        }
        names.iter().for_each(|name| drop(message.remove(*name)));
        let has_calls = has_calls(message);
        match self.thoughts {
            Thoughts::Reasoning => {
                message.insert("reasoning_content".into(), thought.into());
            }
            Thoughts::Field => {
                message.insert("thinking".into(), thought.into());
                if has_calls {
                    message.insert("content".into(), "".into());
                }
            }
            Thoughts::Part => {
                let text = message.get("content").and_then(Value::as_str).unwrap_or_default();
                let mut parts = vec![json!({"type": "thinking", "thinking": thought})];
                if !text.is_empty() {
                    parts.push(json!({"type": "text", "text": text}));
                }
                message.insert("content".into(), parts.into());
            }
        }
    }
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, TemplateError> {
    Err(TemplateError::Conversation(reason.into()))
}

impl Conversation {
    /// Reads messages and tools.
    pub(super) fn read(chat: &Chat, customs: Customs, form: Form) -> Result<Self, TemplateError> {
        let messages = list(&chat.messages, "messages")?;
        if messages.is_empty() || messages.len() > MESSAGES_MAX {
            let count = messages.len();
            return refuse(format!("{count} messages; a conversation has 1 to {MESSAGES_MAX}"));
        }
        let messages = messages.into_iter().enumerate();
        let messages = messages.map(|(index, message)| read_message(index, message, customs));
        let mut messages: Vec<Value> = messages.collect::<Result<_, _>>()?;
        for arguments in messages.iter_mut().filter(|_| form.has_objects).flat_map(arguments) {
            if let Some(object) = arguments.as_str().and_then(object) {
                *arguments = Value::Object(object);
            }
        }
        let mut tools = chat.tools.as_ref().map(|tools| list(tools, "tools")).transpose()?;
        if let Some(index) = tools.iter().flatten().position(|tool| !tool.is_object()) {
            return refuse(format!("tools[{index}] is not an object"));
        }
        if form.has_content {
            messages.iter_mut().for_each(|message| fill(message, "content", "".into()));
        }
        if form.has_schemas {
            tools.iter_mut().flatten().filter_map(|tool| tool.get_mut("function")).for_each(|function| {
                fill(function, "description", "".into());
                fill(function, "parameters", json!({"type": "object"}));
                let parameters = function.get_mut("parameters").into_iter();
                parameters.for_each(|parameters| fill(parameters, "properties", json!({})));
            });
        }
        let tools = tools.filter(|tools| !tools.is_empty());
        if let Some(tools) = tools.as_ref().filter(|_| customs.has_tools_in_system) {
            if messages[0]["role"] != "system" {
                messages.insert(0, json!({"role": "system", "content": ""}));
            }
            let functions: Vec<&Value> = tools.iter().map(|tool| tool.get("function").unwrap_or(tool)).collect();
            messages[0]["tools"] = json!(functions).to_string().into();
        }
        Ok(Self { is_continued: chat.is_continued, messages, tools })
    }

    /// The conversation with these changes; `None`: they change nothing.
    pub(super) fn changed(&self, changes: &[Change]) -> Option<Self> {
        let mut changed = self.clone();
        changes.iter().for_each(|change| change.apply(&mut changed.messages));
        (changed.messages != self.messages).then_some(changed)
    }

    /// A short conversation with a call of a tool of this name, with or without text before it. Nothing else depends on
    /// the name.
    pub(super) fn sample(customs: Customs, name: &str, has_tools: bool, has_text: bool) -> Self {
        let content: Value = match has_text {
            true => "c".into(),
            false if customs.takes_no_content => Value::Null,
            false => "".into(),
        };
        let call = json!({"id": "abcdefgh1", "type": "function", "function": {"name": name, "arguments": {}}});
        let messages = vec![
            json!({"role": "user", "content": "a"}),
            json!({"role": "assistant", "content": content, "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": "abcdefgh1", "name": "look", "content": "b"}),
        ];
        let parameters = json!({"type": "object", "properties": {}});
        let function = json!({"name": "other", "description": "", "parameters": parameters});
        let tools = has_tools.then(|| vec![json!({"type": "function", "function": function})]);
        Self { is_continued: false, messages, tools }
    }

    /// Whether earlier answers have calls with or without text before them.
    pub(super) fn has_calls(&self, has_text: bool) -> bool {
        self.earlier().iter().any(|message| calls(message).is_some() && self::has_text(message) == has_text)
    }

    /// The messages but one that the answer continues.
    fn earlier(&self) -> &[Value] {
        &self.messages[..self.messages.len() - usize::from(self.is_continued)]
    }

    /// The conversation with earlier calls as text of their messages; `None`: that is not possible in this format.
    pub(super) fn with_written_calls(&self, format: &ChatFormat) -> Option<Self> {
        let mut written = self.clone();
        for (message, earlier) in written.messages.iter_mut().zip(self.earlier()) {
            let (Value::Object(message), Some(calls)) = (message, calls(earlier)) else { continue };
            let calls = format.write(calls)?;
            let content = match earlier.get("content") {
                Some(Value::String(text)) if !text.is_empty() => format!("{text}\n{calls}"),
                None | Some(Value::Null | Value::String(_)) => calls,
                Some(_) => return None,
            };
            message.insert("content".into(), content.into());
            message.retain(|name, _| name != "tool_calls");
        }
        Some(written)
    }

    /// Whether the first message is a system message.
    pub(super) fn begins_with_system(&self) -> bool {
        self.messages.first().is_some_and(|message| message["role"] == "system")
    }

    /// Whether a rendered text lacks one of several system messages: some templates read only the first one.
    pub(super) fn lacks_system(&self, rendered: &str) -> bool {
        let mut rest = rendered;
        let systems: Vec<&Value> = self.messages.iter().filter(|message| message["role"] == "system").collect();
        systems.len() > 1
            && !systems.iter().all(|system| {
                let text = system["content"].as_str().unwrap_or_default().trim();
                let found = rest.find(text);
                found.inspect(|at| rest = &rest[at + text.len()..]).is_some()
            })
    }

    /// The field of the last message that the answer continues.
    fn begun(&self) -> Option<(&'static str, &str)> {
        let last = self.messages.last().filter(|message| message["role"] == "assistant")?;
        let fields = ["content", "reasoning_content", "thinking"]
            .iter()
            .filter_map(|field| Some((*field, last[*field].as_str()?)));
        fields.into_iter().find(|(_, text)| !text.trim().is_empty())
    }

    /// The conversation with a mark where the answer continues it; `None`: it begins a message.
    pub(super) fn marked(&self) -> Result<Option<Self>, TemplateError> {
        if !self.is_continued {
            return Ok(None);
        }
        let Some((field, begun)) = self.begun() else {
            return refuse(
                "there is no text to continue: end the messages with one of the assistant's that has content",
            );
        };
        let (mut marked, begun) = (self.clone(), format!("{begun}{MARK}"));
        if let Some(last) = marked.messages.last_mut() {
            last[field] = begun.into();
        }
        Ok(Some(marked))
    }

    /// A text that was rendered without the mark up to the end of the last message, for templates that do not render the mark.
    /// Templates trim contents.
    pub(super) fn cut(&self, mut text: String) -> Result<String, TemplateError> {
        let begun = self.begun().map_or("", |(_, begun)| begun);
        let found = [begun, begun.trim()].iter().find_map(|begun| Some(text.rfind(begun)? + begun.len()));
        let Some(end) = found else {
            return refuse("the model's chat template changes the last message, so that it cannot be continued");
        };
        text.truncate(end);
        Ok(text)
    }
}

/// A rendered text up to the mark; `None` if the template left it out.
pub(super) fn before_mark(mut text: String) -> Option<String> {
    let at = text.rfind(MARK.trim_end())?;
    let is_trimmed = !text[at..].starts_with(MARK);
    text.truncate(at);
    if is_trimmed {
        text.truncate(text.trim_end().len());
    }
    Some(text)
}

/// The variables of a conversation.
pub(super) fn variables(chat: &Chat) -> Result<Map<String, Value>, TemplateError> {
    let Some(text) = &chat.variables else { return Ok(Map::new()) };
    serde_json::from_str(text).or_else(|error| refuse(format!("the variables are not a JSON object: {error}")))
}

fn list(text: &str, what: &str) -> Result<Vec<Value>, TemplateError> {
    match serde_json::from_str(text) {
        Ok(Value::Array(list)) => Ok(list),
        Ok(_) => refuse(format!("{what} is not an array")),
        Err(error) => refuse(format!("{what} is not valid JSON: {error}")),
    }
}

fn read_message(index: usize, message: Value, customs: Customs) -> Result<Value, TemplateError> {
    let Value::Object(mut message) = message else { return refuse(format!("messages[{index}] is not an object")) };
    let Some(Value::String(role)) = message.get_mut("role") else {
        return refuse(format!("messages[{index}] has no role"));
    };
    // gpt-oss reads both alike at the beginning, and only there; no other model has been trained with this role.
    if role == "developer" {
        *role = "system".into();
    }
    // Libraries write null or an empty list, and templates ask only whether there is a list.
    message.retain(|name, value| {
        name != "tool_calls" || !(value.is_null() || value.as_array().is_some_and(Vec::is_empty))
    });
    read_content(index, &mut message)?;
    if !customs.takes_no_content && message.get("content").is_none_or(Value::is_null) {
        message.insert("content".into(), "".into());
    }
    // Clients write an empty content next to calls, and some APIs have no other form. The calls would be left out.
    let is_empty = message.get("content").and_then(Value::as_str).is_some_and(str::is_empty);
    if customs.asks_for_content && is_empty && has_calls(&message) {
        message.insert("content".into(), Value::Null);
    }
    customs.place_thought(&mut message);
    Ok(Value::Object(message))
}

/// Content is a text, or parts that are texts and are joined with line breaks. Only a message with tool calls may have
/// none.
fn read_content(index: usize, message: &mut Map<String, Value>) -> Result<(), TemplateError> {
    let parts = match message.get("content") {
        Some(Value::String(_)) => return Ok(()),
        None | Some(Value::Null) if has_calls(message) => return Ok(()),
        Some(Value::Array(parts)) => parts,
        _ => return refuse(format!("messages[{index}].content is neither a text nor a list of parts")),
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (place, part) in parts.iter().enumerate() {
        let kind = part.get("type").and_then(Value::as_str);
        let text = part.get("text").and_then(Value::as_str).filter(|_| kind == Some("text"));
        let Some(text) = text else {
            let kind: String = kind.unwrap_or("unknown").chars().take(60).collect();
            return refuse(format!("messages[{index}].content[{place}] is of type {kind:?}; only text is supported"));
        };
        texts.push(text);
    }
    let text = texts.join("\n");
    message.insert("content".into(), Value::String(text));
    Ok(())
}

/// Sets a field of an object that is missing or null.
fn fill(object: &mut Value, field: &str, value: Value) {
    if let Value::Object(object) = object
        && object.get(field).is_none_or(Value::is_null)
    {
        object.insert(field.to_owned(), value);
    }
}

/// Arguments as an object. Clients write those of a function without parameters in several ways.
fn object(text: &str) -> Option<Map<String, Value>> {
    match text.trim() {
        "" | "null" | "[]" => Some(Map::new()),
        text => serde_json::from_str(text).ok(),
    }
}

/// Whether a message has calls.
fn has_calls(message: &Map<String, Value>) -> bool {
    message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty())
}

/// Whether a message has content that is not empty.
fn has_text(message: &Value) -> bool {
    message.get("content").is_some_and(|content| content.as_str().map_or(!content.is_null(), |text| !text.is_empty()))
}

/// The calls of a message, if it has any.
fn calls(message: &Value) -> Option<&[Value]> {
    message.get("tool_calls")?.as_array().map(Vec::as_slice).filter(|calls| !calls.is_empty())
}

/// The arguments of a message's tool calls.
fn arguments(message: &mut Value) -> impl Iterator<Item = &mut Value> {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    calls.into_iter().flatten().filter_map(|call| call.get_mut("function")?.get_mut("arguments"))
}
