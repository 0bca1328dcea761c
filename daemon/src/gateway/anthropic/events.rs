//! Writes the events of a message, or the whole message. Pure.
use serde_json::{Value, json};

use crate::gateway::{
    blocks::{Block, Blocks, Change},
    choice::ChoicePart,
    error::ApiError,
    object::Usage,
    writer::{Framing, Tally, Writer},
};

/// Writes one message.
pub(super) struct MessageWriter {
    /// Of the request.
    id: String,
    model: String,
    blocks: Blocks,
}

impl MessageWriter {
    pub(super) fn new(request: &str) -> Self {
        Self { id: request.into(), model: String::new(), blocks: Blocks::default() }
    }

    fn message(&self, content: Vec<Value>, usage: Usage) -> Value {
        json!({
            "id": format!("msg_{}", self.id),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": self.stop_reason(),
            "stop_sequence": null,
            "usage": object(usage),
        })
    }

    fn stop_reason(&self) -> Option<&'static str> {
        self.blocks.finish.map(|reason| match reason {
            "tool_calls" => "tool_use",
            "length" if self.blocks.fills_context => "model_context_window_exceeded",
            "length" => "max_tokens",
            _ => "end_turn",
        })
    }
}

/// Usage in the words of this API: tokens of the prompt that were cached are counted apart.
fn object(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    })
}

/// The id of the call in the block at this position.
fn call_id(request: &str, index: usize) -> String {
    format!("toolu_{request}_{index}")
}

/// A block of content; `is_empty`: as at its beginning.
fn content(request: &str, index: usize, block: &Block, is_empty: bool) -> Value {
    let shown = |text: &str| if is_empty { String::new() } else { text.to_owned() };
    match block {
        // There is nothing to sign: the thoughts go back as they are.
        Block::Thought(text) => json!({"type": "thinking", "thinking": shown(text), "signature": ""}),
        Block::Text(text) => json!({"type": "text", "text": shown(text)}),
        Block::Call { name, arguments } => {
            // Arguments of a call that was cut off are no JSON.
            let input = serde_json::from_str(arguments).ok().filter(|_| !is_empty).unwrap_or_else(|| json!({}));
            json!({"type": "tool_use", "id": call_id(request, index), "name": name, "input": input})
        }
    }
}

fn ping() -> Value {
    json!({"type": "ping"})
}

fn event(request: &str, index: usize, block: &Block, change: Change) -> Value {
    match change {
        Change::Opened => {
            json!({"type": "content_block_start", "index": index, "content_block": content(request, index, block, true)})
        }
        Change::Grew(text) => {
            let delta = match block {
                Block::Thought(_) => json!({"type": "thinking_delta", "thinking": text}),
                Block::Text(_) => json!({"type": "text_delta", "text": text}),
                Block::Call { .. } => json!({"type": "input_json_delta", "partial_json": text}),
            };
            json!({"type": "content_block_delta", "index": index, "delta": delta})
        }
        // An event cannot take a call back; the reason of the end is not that of a call.
        Change::Closed | Change::Broke => json!({"type": "content_block_stop", "index": index}),
    }
}

impl Writer for MessageWriter {
    fn framing(&self) -> Framing {
        Framing::Named
    }

    fn prompt_field(&self) -> &'static str {
        "messages"
    }

    fn begin(&mut self, model: &str, _: &str) {
        self.model = model.into();
    }

    fn stream(&mut self, _: usize, part: ChoicePart, tally: &Tally) -> Vec<Value> {
        if matches!(part, ChoicePart::Started) {
            let message = self.message(Vec::new(), tally.usage);
            return vec![json!({"type": "message_start", "message": message}), ping()];
        }
        let mut events = Vec::new();
        let id = &self.id;
        self.blocks.take(part, |index, block, change| events.push(event(id, index, block, change)));
        events
    }

    fn finish(&mut self, tally: &Tally) -> Vec<Value> {
        let delta = json!({"stop_reason": self.stop_reason(), "stop_sequence": null});
        vec![
            json!({"type": "message_delta", "delta": delta, "usage": object(tally.usage)}),
            json!({"type": "message_stop"}),
        ]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        vec![super::error(error)]
    }

    fn alive(&mut self, _: &Tally) -> Option<Value> {
        Some(ping())
    }

    fn keep(&mut self, _: usize, part: ChoicePart) {
        self.blocks.take(part, |_, _, _| {});
    }

    fn whole(&mut self, tally: &Tally) -> Value {
        let content = self.blocks.list().map(|(index, block)| content(&self.id, index, block, false)).collect();
        self.message(content, tally.usage)
    }
}
