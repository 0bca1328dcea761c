//! Writes the records of a chat or a completion, or one object. Pure.
use common::{
    calendar::{DAY_SECONDS, civil, time_of_day},
    latency::RequestTimes,
};
use serde_json::{Value, json};

use crate::gateway::{
    blocks::{Block, Blocks, Change},
    choice::ChoicePart,
    error::ApiError,
    writer::{Framing, Tally, Writer},
};

/// Where the text of an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// In a message, as in /api/chat.
    Message,
    /// In the record itself, as in /api/generate.
    Response,
}

/// Writes one answer.
pub(super) struct RecordWriter {
    shape: Shape,
    /// The client's name for the model, or the served one's.
    name: Option<String>,
    /// Of the request.
    id: String,
    created_at: String,
    blocks: Blocks,
    times: RequestTimes,
}

/// `2026-11-22T08:43:00Z`.
pub(super) fn timestamp(seconds: u64) -> String {
    let (year, month, day) = civil(seconds / DAY_SECONDS);
    format!("{year}-{month:02}-{day:02}T{}Z", time_of_day(seconds))
}

/// The name of a served model as Ollama shows it.
pub(super) fn shown_name(model: &str) -> String {
    format!("{}:latest", model.strip_suffix(".gguf").unwrap_or(model))
}

impl RecordWriter {
    /// Creates a writer for the request with this id; `created` counts seconds since 1970.
    pub(super) fn new(shape: Shape, name: Option<String>, id: &str, created: u64) -> Self {
        let (created_at, times) = (timestamp(created), RequestTimes::default());
        Self { shape, name, id: id.into(), created_at, blocks: Blocks::default(), times }
    }

    fn record(&self, thought: &str, text: &str, calls: Vec<Value>) -> Value {
        let mut record = json!({"model": self.name, "created_at": self.created_at, "done": false});
        match self.shape {
            Shape::Message => {
                let mut message = json!({"role": "assistant", "content": text});
                if !thought.is_empty() {
                    message["thinking"] = thought.into();
                }
                if !calls.is_empty() {
                    message["tool_calls"] = calls.into();
                }
                record["message"] = message;
            }
            Shape::Response => {
                record["response"] = text.into();
                if !thought.is_empty() {
                    record["thinking"] = thought.into();
                }
            }
        }
        record
    }

    /// The object for a request that only loads the model.
    pub(super) fn loaded(&mut self) -> Value {
        let mut record = self.record("", "", Vec::new());
        (record["done"], record["done_reason"]) = (true.into(), "load".into());
        record
    }

    /// Ends a record with the reason and the times of the answer, in nanoseconds.
    fn ended(&self, mut record: Value, tally: &Tally) -> Value {
        let RequestTimes { dispatched, first_token, last_token, .. } = self.times;
        let reason = if self.blocks.finish == Some("length") { "length" } else { "stop" };
        let (done, total) = (json!(true), tally.elapsed.as_nanos() as u64);
        (record["done"], record["done_reason"]) = (done, reason.into());
        record["total_duration"] = total.into();
        record["load_duration"] = 0.into();
        record["prompt_eval_count"] = tally.usage.prompt.into();
        record["prompt_eval_duration"] = first_token.0.saturating_sub(dispatched.0).into();
        record["eval_count"] = tally.usage.completion.into();
        record["eval_duration"] = last_token.0.saturating_sub(first_token.0).into();
        record
    }

    fn learn(&mut self, part: &ChoicePart) {
        if let ChoicePart::End(_, ended) = part {
            self.times = ended.finished.times;
        }
    }
}

/// A call; its arguments are an object.
fn call(id: &str, number: usize, name: &str, arguments: &str) -> Value {
    // Arguments of a call that was cut off are no JSON.
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!({}));
    json!({"id": format!("call_{id}_{number}"), "function": {"index": number, "name": name, "arguments": arguments}})
}

impl Writer for RecordWriter {
    fn framing(&self) -> Framing {
        Framing::Lines
    }

    fn prompt_field(&self) -> &'static str {
        match self.shape {
            Shape::Message => "messages",
            Shape::Response => "prompt",
        }
    }

    fn begin(&mut self, model: &str, _: &str) {
        self.name.get_or_insert_with(|| shown_name(model));
    }

    fn stream(&mut self, _: usize, part: ChoicePart, _: &Tally) -> Vec<Value> {
        self.learn(&part);
        let calls_before = self.blocks.list().filter(|(_, block)| matches!(block, Block::Call { .. })).count();
        let mut steps = Vec::new();
        self.blocks.take(part, |_, block, change| match (block, change) {
            (Block::Thought(_), Change::Grew(text)) => steps.push((text, String::new(), None)),
            (Block::Text(_), Change::Grew(text)) => steps.push((String::new(), text, None)),
            (Block::Call { name, arguments }, Change::Closed) => {
                steps.push((String::new(), String::new(), Some((name.clone(), arguments.clone()))));
            }
            _ => {}
        });
        let mut records = Vec::new();
        for (thought, text, called) in steps {
            // Only the last call before this part may end with it.
            let number = calls_before.saturating_sub(1);
            let calls = called.map(|(name, arguments)| call(&self.id, number, &name, &arguments)).into_iter().collect();
            records.push(self.record(&thought, &text, calls));
        }
        records
    }

    fn finish(&mut self, tally: &Tally) -> Vec<Value> {
        vec![self.ended(self.record("", "", Vec::new()), tally)]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        vec![super::error(error)]
    }

    fn keep(&mut self, _: usize, part: ChoicePart) {
        self.learn(&part);
        self.blocks.take(part, |_, _, _| {});
    }

    fn whole(&mut self, tally: &Tally) -> Value {
        let (mut thought, mut text, mut calls) = (String::new(), String::new(), Vec::new());
        for (_, block) in self.blocks.list() {
            match block {
                Block::Thought(more) => thought.push_str(more),
                Block::Text(more) => text.push_str(more),
                Block::Call { name, arguments } => calls.push(call(&self.id, calls.len(), name, arguments)),
            }
        }
        self.ended(self.record(&thought, &text, calls), tally)
    }
}
