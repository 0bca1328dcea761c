//! Runs a template on one form of a conversation, within limits on output and with the engine's panics caught.
use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
};

use minijinja::{Error, ErrorKind, Value, context, value::Serde};
use serde_json::Map;

use super::{
    CONVERSATION_BYTES_MAX, ChatTemplate, PLAIN, TemplateError, WITH_TOOLS,
    conversation::{Conversation, before_mark},
    date,
};

/// Prefix that marks an error raised by the template itself.
const REFUSAL: &str = "refused: ";

/// What all renderings of a conversation have in common.
pub(super) struct Rendering<'t> {
    pub(super) template: &'t ChatTemplate,
    /// Those of the conversation.
    pub(super) variables: &'t Map<String, serde_json::Value>,
    /// Seconds since 1970 (UTC).
    pub(super) now: u64,
}

impl Rendering<'_> {
    /// The prompt up to where the answer begins, or continues the last message.
    pub(super) fn begin(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        let Some(marked) = conversation.marked()? else {
            let mut text = self.run(conversation)?;
            if let Some(turn) = self.template.format.left_out.filter(|turn| text.ends_with(turn.before)) {
                text.push_str(turn.begin);
            }
            return Ok(text);
        };
        match before_mark(self.run(&marked)?) {
            Some(begun) => Ok(begun),
            None => conversation.cut(self.run(conversation)?),
        }
    }

    /// The text that the template makes of a conversation.
    pub(super) fn run(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        let failed = |error: Error| TemplateError::Failed(error.to_string());
        let ChatTemplate { environment, has_tool_use, bos, eos, .. } = self.template;
        let (variables, now) = (self.variables, self.now);
        let name = if *has_tool_use && conversation.tools.is_some() { WITH_TOOLS } else { PLAIN };
        let template = environment.get_template(name).map_err(failed)?;
        // As in llama.cpp: templates with a date of their own ask whether it is defined.
        let date_string = match variables.get("date_string").and_then(serde_json::Value::as_str) {
            Some(given) => given.to_owned(),
            None => date::strftime("%d %b %Y", now).unwrap_or_default(),
        };
        let context = context! {
            messages => Value::from(Serde(&conversation.messages)),
            tools => Value::from(Serde(&conversation.tools)),
            add_generation_prompt => !conversation.is_continued,
            bos_token => bos.as_str(),
            eos_token => eos.as_str(),
            date_string => date_string,
            strftime_now => Value::from_function(move |format: String| date::strftime(&format, now)),
            ..Value::from(Serde(variables))
        };
        let mut text = Bounded { text: Vec::new(), is_full: false };
        // The engine panics where a template takes a part of an empty text backwards, for one.
        let rendered = catch_unwind(AssertUnwindSafe(|| template.render_captured_to(context, &mut text).map(|_| ())));
        match rendered {
            _ if text.is_full => Err(TemplateError::TooLong),
            Err(_) => Err(TemplateError::Failed("the template engine panicked".into())),
            Ok(Err(error)) => Err(refusal(&error).unwrap_or_else(|| failed(error))),
            Ok(Ok(())) => String::from_utf8(text.text).map_err(|error| TemplateError::Failed(error.to_string())),
        }
    }
}

/// The function with which templates refuse a conversation.
pub(super) fn raise_exception(text: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{REFUSAL}{text}")))
}

fn refusal(error: &Error) -> Option<TemplateError> {
    let text = error.detail()?.strip_prefix(REFUSAL)?;
    Some(TemplateError::Refused(text.to_owned()))
}

/// Accepts text up to [`CONVERSATION_BYTES_MAX`].
struct Bounded {
    text: Vec<u8>,
    is_full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > CONVERSATION_BYTES_MAX {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
