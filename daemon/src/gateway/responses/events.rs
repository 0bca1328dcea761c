//! Writes the events of a response, or the whole response. Pure.
use serde_json::{Map, Value, json};

use crate::gateway::{
    blocks::{Block, Blocks, Change},
    choice::ChoicePart,
    error::ApiError,
    object::Usage,
    writer::Tally,
};

/// Writes one response.
pub(super) struct ResponseWriter {
    /// Digits in the ids of the response and of its items.
    digits: String,
    /// Seconds since 1970.
    created: u64,
    model: String,
    /// Fields of the request that the response repeats.
    echo: Map<String, Value>,
    blocks: Blocks,
    /// Number of events so far.
    sequence: u64,
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    })
}

fn item_id(digits: &str, index: usize, block: &Block) -> String {
    let prefix = match block {
        Block::Thought(_) => "rs",
        Block::Text(_) => "msg",
        Block::Call { .. } => "fc",
    };
    format!("{prefix}_{digits}_{index}")
}

fn call_id(digits: &str, index: usize) -> String {
    format!("call_{digits}_{index}")
}

/// The part of an item of thoughts or text.
fn part(block: &Block, text: &str) -> Value {
    match block {
        Block::Thought(_) => json!({"type": "reasoning_text", "text": text}),
        _ => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
    }
}

/// An item of the output; `status` is in_progress at its beginning, when it is empty.
fn item(digits: &str, index: usize, block: &Block, status: &str) -> Value {
    let id = item_id(digits, index, block);
    let is_empty = status == "in_progress";
    let parts = |text: &str| if is_empty { json!([]) } else { json!([part(block, text)]) };
    match block {
        Block::Thought(text) => {
            json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": parts(text)})
        }
        Block::Text(text) => {
            json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": parts(text)})
        }
        Block::Call { name, arguments } => {
            let arguments = if is_empty { "" } else { arguments };
            json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id(digits, index), "name": name,
                "arguments": arguments,
            })
        }
    }
}

/// The events for a step; `status` is that of an item that ends.
fn events(digits: &str, index: usize, block: &Block, change: Change, status: &str) -> Vec<Value> {
    let id = item_id(digits, index, block);
    let event = |kind: &str, more: Value| {
        let mut event = json!({"type": format!("response.{kind}"), "item_id": id, "output_index": index});
        if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
            event.extend(more);
        }
        event
    };
    let of_item = |kind: &str, status: &str| {
        let item = item(digits, index, block, status);
        json!({"type": format!("response.output_item.{kind}"), "output_index": index, "item": item})
    };
    let (name, text) = match block {
        Block::Thought(text) => ("reasoning_text", text),
        Block::Text(text) => ("output_text", text),
        Block::Call { arguments, .. } => ("function_call_arguments", arguments),
    };
    match (block, change) {
        // An event cannot take a call back; it is not in the whole response.
        (_, Change::Broke) => vec![of_item("done", "incomplete")],
        (Block::Call { .. }, Change::Opened) => vec![of_item("added", "in_progress")],
        (Block::Call { .. }, Change::Grew(delta)) => vec![event(&format!("{name}.delta"), json!({"delta": delta}))],
        (Block::Call { name: called, .. }, Change::Closed) => {
            vec![event(&format!("{name}.done"), json!({"name": called, "arguments": text})), of_item("done", status)]
        }
        (_, Change::Opened) => vec![
            of_item("added", "in_progress"),
            event("content_part.added", json!({"content_index": 0, "part": part(block, "")})),
        ],
        (_, Change::Grew(delta)) => {
            vec![event(&format!("{name}.delta"), json!({"content_index": 0, "delta": delta, "logprobs": []}))]
        }
        (_, Change::Closed) => vec![
            event(&format!("{name}.done"), json!({"content_index": 0, "text": text, "logprobs": []})),
            event("content_part.done", json!({"content_index": 0, "part": part(block, text)})),
            of_item("done", status),
        ],
    }
}

impl ResponseWriter {
    /// Creates a writer; `digits` identify the response.
    pub(super) fn new(digits: String, created: u64, echo: Map<String, Value>) -> Self {
        Self { digits, created, model: String::new(), echo, blocks: Blocks::default(), sequence: 0 }
    }

    pub(super) fn id(&self) -> String {
        format!("resp_{}", self.digits)
    }

    /// Takes the name of the model.
    pub(super) fn begin(&mut self, model: &str) {
        self.model = model.into();
    }

    fn status(&self) -> &'static str {
        match self.blocks.finish {
            None => "in_progress",
            Some("length") => "incomplete",
            Some(_) => "completed",
        }
    }

    /// The response as it is now.
    pub(super) fn object(&self, tally: &Tally) -> Value {
        let status = self.status();
        let last = self.blocks.list().last().map(|(index, _)| index);
        let output: Vec<Value> = self
            .blocks
            .list()
            .map(|(index, block)| {
                let is_cut = status == "incomplete" && last == Some(index);
                item(&self.digits, index, block, if is_cut { "incomplete" } else { "completed" })
            })
            .collect();
        let is_over = status != "in_progress";
        let mut object = json!({
            "id": self.id(), "object": "response", "created_at": self.created, "status": status, "background": false,
            "error": null, "incomplete_details": null, "instructions": null, "max_output_tokens": null,
            "metadata": {}, "model": self.model, "output": output, "parallel_tool_calls": true,
            "previous_response_id": null, "reasoning": {"effort": null, "summary": null}, "store": true,
            "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
            "top_p": 1.0, "truncation": "disabled", "usage": is_over.then(|| usage(tally.usage)), "user": null,
        });
        for (name, value) in self.echo.iter().filter(|(_, value)| !value.is_null()) {
            object[name] = value.clone();
        }
        if status == "incomplete" {
            object["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        object
    }

    /// The answer as a message of a chat; nothing if it is empty.
    pub(super) fn message(&self) -> Option<Value> {
        let (mut thoughts, mut texts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for (index, block) in self.blocks.list() {
            match block {
                Block::Thought(text) => thoughts.push(text.as_str()),
                Block::Text(text) => texts.push(text.as_str()),
                Block::Call { name, arguments } => calls.push(json!({
                    "id": call_id(&self.digits, index),
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                })),
            }
        }
        let mut message = json!({"role": "assistant", "content": texts.join("\n")});
        if !thoughts.is_empty() {
            message["reasoning_content"] = thoughts.join("\n").into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        self.blocks.list().next().map(|_| message)
    }

    fn numbered(&mut self, mut events: Vec<Value>) -> Vec<Value> {
        for event in &mut events {
            event["sequence_number"] = self.sequence.into();
            self.sequence += 1;
        }
        events
    }

    /// The events for a part.
    pub(super) fn stream(&mut self, part: ChoicePart, tally: &Tally) -> Vec<Value> {
        if matches!(part, ChoicePart::Started) {
            let response = self.object(tally);
            let event = |kind: &str| json!({"type": kind, "response": response});
            return self.numbered(vec![event("response.created"), event("response.in_progress")]);
        }
        let status = if matches!(part, ChoicePart::End("length", _)) { "incomplete" } else { "completed" };
        let mut found = Vec::new();
        let digits = &self.digits;
        self.blocks.take(part, |index, block, change| found.extend(events(digits, index, block, change, status)));
        self.numbered(found)
    }

    /// An event during a long silence: Codex gives up after five minutes without one.
    pub(super) fn alive(&mut self, tally: &Tally) -> Option<Value> {
        let response = self.object(tally);
        self.numbered(vec![json!({"type": "response.in_progress", "response": response})]).pop()
    }

    /// The last event.
    pub(super) fn finish(&mut self, tally: &Tally) -> Vec<Value> {
        let response = self.object(tally);
        self.numbered(vec![json!({"type": format!("response.{}", self.status()), "response": response})])
    }

    /// The last event of a response that failed. Codex sends the request again unless the code is one of a few.
    pub(super) fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        let mut response = self.object(&Tally::default());
        response["status"] = "failed".into();
        let code = if error.is_final { "invalid_prompt" } else { error.code.as_str() };
        response["error"] = json!({"code": code, "message": error.message()});
        self.numbered(vec![json!({"type": "response.failed", "response": response})])
    }

    /// Takes a part for the whole response.
    pub(super) fn keep(&mut self, part: ChoicePart) {
        self.blocks.take(part, |_, _, _| {});
    }
}
