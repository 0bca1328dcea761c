//! From what a request brings to the prompt's tokens: text, tokens as they are, or a conversation by the model's template.
use std::time::{SystemTime, UNIX_EPOCH};

use shared::{
    protocol::{
        error::FaultKind,
        message::{Prompt, ToolFormat},
    },
    tokenizer::{
        Tokenizer,
        template::{ChatTemplate, TemplateError},
    },
};

/// A model's chat template; `None` where its file has none.
pub type Template = Result<Option<ChatTemplate>, TemplateError>;

/// The tokens of a prompt.
///
/// # Errors
/// A conversation that cannot be written out.
pub fn tokens(prompt: &Prompt, tokenizer: &Tokenizer, template: &Template) -> Result<Vec<u32>, FaultKind> {
    let invalid = |error: &TemplateError| FaultKind::ParameterInvalid { reason: error.to_string() };
    let chat = match prompt {
        Prompt::Text(text) => return Ok(tokenizer.encode(text, true, true)),
        Prompt::Tokens(tokens) => return Ok(tokens.clone()),
        Prompt::Chat(chat) => chat,
    };
    let template = template.as_ref().map_err(invalid)?.as_ref().ok_or(FaultKind::NoTemplate)?;
    // A clock before 1970 is one that was never set.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let text = template.render(chat, now).map_err(|error| invalid(&error))?;
    Ok(tokenizer.encode(&text, !template.begins_with_bos(&text), true))
}

/// How calls of tools look in answers to such a prompt.
pub fn tool_format(template: &Template) -> ToolFormat {
    template.as_ref().ok().and_then(Option::as_ref).map_or(ToolFormat::None, ChatTemplate::tool_format)
}
