//! Arguments of calls whose values are written as they are, between marks: becomes JSON by the tool's parameters while the
//! text arrives.
use std::sync::Arc;

use super::ToolSchemas;

/// Writes the arguments of a call.
#[derive(Debug)]
pub(super) struct ArgumentWriter {
    schemas: Arc<ToolSchemas>,
    /// Whether one line end at the beginning and at the end of a value is not part of it.
    has_lines: bool,
    tool: String,
    key: String,
    count: usize,
    /// A value whose type is not text, up to its end; of a text, the possible line end behind it.
    held: String,
    is_text: bool,
    /// Whether the value has begun.
    is_begun: bool,
}

impl ArgumentWriter {
    pub(super) fn new(schemas: Arc<ToolSchemas>, has_lines: bool) -> Self {
        let (tool, key, held) = (String::new(), String::new(), String::new());
        Self { schemas, has_lines, tool, key, count: 0, held, is_text: false, is_begun: false }
    }

    /// Whether the request has such a tool.
    pub(super) fn has(&self, tool: &str) -> bool {
        self.schemas.has(tool)
    }

    /// Begins the arguments of a call.
    pub(super) fn begin(&mut self, tool: &str, out: &mut String) {
        (self.tool, self.count) = (tool.to_owned(), 0);
        out.push('{');
    }

    /// Begins an argument.
    pub(super) fn key(&mut self, key: &str, out: &mut String) {
        if self.count > 0 {
            out.push(',');
        }
        self.count += 1;
        push_string(key, out);
        out.push(':');
        self.is_text = self.schemas.is_text(&self.tool, key);
        (self.key, self.is_begun) = (key.to_owned(), false);
        self.held.clear();
        if self.is_text {
            out.push('"');
        }
    }

    /// Adds text of its value.
    pub(super) fn push(&mut self, text: &str, out: &mut String) {
        self.held.push_str(text);
        if self.held.is_empty() {
            return;
        }
        if self.has_lines && !self.is_begun && self.held.starts_with('\n') {
            self.held.remove(0);
        }
        self.is_begun = true;
        if !self.is_text {
            return;
        }
        let keep = usize::from(self.has_lines && self.held.ends_with('\n'));
        push_letters(&self.held[..self.held.len() - keep], out);
        self.held.drain(..self.held.len() - keep);
    }

    /// Ends the argument.
    pub(super) fn end(&mut self, out: &mut String) {
        if self.is_text {
            out.push('"');
        } else {
            let value = if self.has_lines { self.held.strip_suffix('\n').unwrap_or(&self.held) } else { &self.held };
            out.push_str(&self.schemas.value(value).to_string());
        }
        self.held.clear();
    }

    /// Ends the arguments.
    pub(super) fn close(&mut self, out: &mut String) {
        out.push('}');
    }
}

/// Appends a string as JSON.
pub(super) fn push_string(text: &str, out: &mut String) {
    out.push('"');
    push_letters(text, out);
    out.push('"');
}

/// Appends the letters of a JSON string.
pub(super) fn push_letters(text: &str, out: &mut String) {
    let quoted = serde_json::Value::from(text).to_string();
    out.push_str(&quoted[1..quoted.len() - 1]);
}
