//! A conversation with a model as plain values: its turns, the request for the next answer, how an answer is read, and
//! its forms as Markdown and JSON. Shared by the dashboard and `console run`. Pure.
mod reading;

use std::fmt::Write;

use common::{
    chat::{FinishReason, PROMPT_BYTES_MAX},
    latency::RequestTimes,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::reading::{AnswerBlock, AnswerText, blocks, read};

/// Format of a stored conversation.
pub const VERSION: u32 = 1;
/// Most turns of a conversation.
pub const TURNS_MAX: usize = 1000;
/// Longest system prompt in bytes.
pub const SYSTEM_BYTES_MAX: usize = 64 << 10;
/// Longest title in bytes.
pub const TITLE_BYTES_MAX: usize = 120;
/// Longest id in bytes.
const ID_BYTES_MAX: usize = 64;
/// Longest title taken from the first prompt, in characters.
const TITLE_CHARACTERS: usize = 48;

/// A conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conversation {
    /// [`VERSION`].
    pub version: u32,
    /// The name of its file, without the suffix.
    pub id: String,
    /// The title that the user gave it; empty = the beginning of the first prompt.
    #[serde(default)]
    pub title: String,
    /// The system prompt; empty = none.
    #[serde(default)]
    pub system: String,
    /// Time of the last change in milliseconds since 1970.
    #[serde(default)]
    pub changed_ms: u64,
    /// Prompts with their answers.
    #[serde(default)]
    pub turns: Vec<ChatTurn>,
}

/// A prompt and its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChatTurn {
    /// The user's text.
    pub prompt: String,
    /// The answer; `None` while it is awaited, or if the prompt was never sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<ChatAnswer>,
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChatAnswer {
    /// The model that wrote it.
    #[serde(default)]
    pub model: String,
    /// What the model thought first. Not sent again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thought: String,
    /// The text, with its tool calls.
    #[serde(default)]
    pub text: String,
    /// Its figures in one line.
    #[serde(default)]
    pub figures: String,
    /// Why it failed, and the next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl ChatTurn {
    /// Whether the prompt has an answer that the model should see in later turns.
    fn is_answered(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| !answer.text.is_empty())
    }

    /// Whether the prompt should be sent again.
    pub fn is_open(&self) -> bool {
        self.answer.as_ref().is_none_or(|answer| answer.failure.is_some())
    }
}

impl Conversation {
    /// A conversation without turns.
    pub fn new(id: String, system: String) -> Self {
        Self { version: VERSION, id, system, ..Self::default() }
    }

    /// The title to show: the user's, or the beginning of the first prompt.
    pub fn title(&self) -> String {
        if !self.title.is_empty() {
            return self.title.clone();
        }
        let first = self.turns.first().map_or("", |turn| turn.prompt.trim());
        let line = first.lines().next().unwrap_or_default();
        let title: String = line.chars().take(TITLE_CHARACTERS).collect();
        match (title.is_empty(), title.len() < first.len()) {
            (true, _) => "new conversation".to_owned(),
            (false, true) => format!("{title}…"),
            (false, false) => title,
        }
    }

    /// The messages of a request for an answer to the last prompt, as a JSON list. Prompts without an answer are left
    /// out, because templates expect user and assistant to alternate.
    ///
    /// # Errors
    /// The conversation is too long for a request, or has no prompt.
    pub fn messages(&self) -> Result<String, String> {
        self.check_turns().map_err(|reason| format!("the conversation {reason}"))?;
        let mut messages = Vec::new();
        if !self.system.is_empty() {
            messages.push(message("system", &self.system));
        }
        let (last, earlier) = self.turns.split_last().ok_or("the conversation has no prompt")?;
        for turn in earlier.iter().filter(|turn| turn.is_answered()) {
            messages.push(message("user", &turn.prompt));
            messages.push(message("assistant", turn.answer.as_ref().map_or("", |answer| answer.text.as_str())));
        }
        messages.push(message("user", &last.prompt));
        let text = Value::Array(messages).to_string();
        if text.len() <= PROMPT_BYTES_MAX {
            return Ok(text);
        }
        Err(format!("the conversation is longer than {PROMPT_BYTES_MAX} bytes"))
    }

    /// Checks a conversation that was read from a file, or will be written to one.
    ///
    /// # Errors
    /// It is invalid; the text gives the reason and follows "the conversation" or the name of its file.
    pub fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("has version {}, this console reads version {VERSION}", self.version));
        }
        if !is_id(&self.id) {
            return Err("has an invalid id".to_owned());
        }
        self.check_turns()?;
        let texts = [("title", &self.title, TITLE_BYTES_MAX), ("system prompt", &self.system, SYSTEM_BYTES_MAX)];
        match texts.iter().find(|(_, text, most)| text.len() > *most) {
            Some((name, text, most)) => {
                Err(format!("has a {name} of {} bytes, at most {most} are allowed", text.len()))
            }
            None => Ok(()),
        }
    }

    fn check_turns(&self) -> Result<(), String> {
        let count = self.turns.len();
        if count <= TURNS_MAX { Ok(()) } else { Err(format!("has {count} turns, at most {TURNS_MAX} are allowed")) }
    }

    /// The conversation as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n", self.title());
        if !self.system.is_empty() {
            let _ = write!(text, "\nSystem prompt: {}\n", self.system);
        }
        for turn in &self.turns {
            let _ = write!(text, "\n## You\n\n{}\n", turn.prompt.trim_end());
            let Some(answer) = &turn.answer else { continue };
            let model = if answer.model.is_empty() { "Model" } else { &answer.model };
            let _ = write!(text, "\n## {model}\n");
            if !answer.thought.is_empty() {
                let quoted: Vec<String> = answer.thought.lines().map(|line| format!("> {line}")).collect();
                let _ = write!(text, "\n{}\n", quoted.join("\n"));
            }
            if !answer.text.is_empty() {
                let _ = write!(text, "\n{}\n", answer.text.trim_end());
            }
            if let Some(failure) = &answer.failure {
                let _ = write!(text, "\nFailed: {failure}\n");
            }
            if !answer.figures.is_empty() {
                let _ = write!(text, "\n*{}*\n", answer.figures);
            }
        }
        text
    }

    /// The conversation as JSON, as it is stored.
    pub fn json(&self) -> String {
        format!("{:#}\n", json!(self))
    }
}

/// Whether a text is valid as the id of a conversation, and therefore as a file name.
pub fn is_id(text: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn message(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

/// The figures of an answer in one line: tokens, speed, time to first token and how it ended.
pub fn figures(times: &RequestTimes, reason: FinishReason) -> String {
    let end = match reason {
        FinishReason::Stop => "complete",
        FinishReason::Length => "max tokens reached",
        FinishReason::Context => "context full",
        FinishReason::Cancelled => "stopped",
    };
    let tokens = times.sampled_tokens;
    if tokens == 0 {
        return end.to_owned();
    }
    let plural = if tokens == 1 { "" } else { "s" };
    let (speed, first) = (times.decode_tokens_per_second(), times.ttft_ms());
    let speed = if speed > 0.0 { format!(", {speed:.1} tok/s") } else { String::new() };
    format!("{tokens} token{plural}{speed}, first token after {first:.0} ms, {end}")
}

#[cfg(test)]
mod tests;
