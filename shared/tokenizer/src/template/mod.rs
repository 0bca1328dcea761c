//! Chat templates: from a conversation to the prompt format of the model. Templates are programs from a file: length,
//! steps and output are bounded, they can access only the conversation, and their own refusals are reported with their
//! text.
mod attempts;
mod conversation;
mod date;
mod json;
mod python;
mod refused;
mod rendering;

use std::{collections::HashSet, sync::OnceLock};

use attempts::Accepted;
use common::{
    changes::TemplateChanges,
    chat::{Chat, PROMPT_BYTES_MAX},
};
use conversation::{Conversation, Customs, Form};
use gguf::{GgufError, Metadata};
use minijinja::{Environment, Error, UndefinedBehavior, syntax::SyntaxConfig};
use refused::Change;
use rendering::Rendering;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use crate::{Tokenizer, answer::ChatFormat};

/// Longest template in bytes; the longest in use has about 20 kB.
pub const TEMPLATE_BYTES_MAX: usize = 256 << 10;
/// Longest rendered conversation in bytes.
pub const CONVERSATION_BYTES_MAX: usize = 2 * PROMPT_BYTES_MAX;
/// Maximum number of instructions of a template; a message takes about a hundred.
const FUEL: u64 = 4_000_000;
/// Maximum nesting of macros, loops and blocks.
const DEPTH_MAX: usize = 100;

const PLAIN: &str = "default";
const WITH_TOOLS: &str = "tool_use";

/// Why a conversation cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The file's metadata or its template is invalid.
    #[error("the model's chat template cannot be used: {0}")]
    Broken(String),
    /// The template raised an exception; its text.
    #[error("the model's chat template refuses the conversation: {0}")]
    Refused(String),
    /// The template fails or takes too long.
    #[error("the model's chat template fails on this conversation: {0}")]
    Failed(String),
    /// The conversation is invalid.
    #[error("{0}")]
    Conversation(String),
    /// The result is longer than [`CONVERSATION_BYTES_MAX`].
    #[error("the conversation is longer than {CONVERSATION_BYTES_MAX} bytes")]
    TooLong,
}

/// The sources of a file's chat templates. They are untrusted programs: compiling or running them may abort the process
/// or exhaust its memory, because a limit on steps does not limit bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateSource {
    /// For all conversations, or for those without tools.
    pub plain: String,
    /// For conversations with tools, if it differs.
    pub tool_use: Option<String>,
    /// The text of BOS; may be empty.
    pub bos: String,
    /// The text of EOS; may be empty.
    pub eos: String,
}

impl TemplateSource {
    /// The templates of a file, if it has any.
    ///
    /// # Errors
    /// A template is not a text, or too long.
    pub fn from_metadata(metadata: Metadata<'_>, tokenizer: &Tokenizer) -> Result<Option<Self>, TemplateError> {
        let text = |key: &str| metadata.text(key).map_err(|error: GgufError| TemplateError::Broken(error.to_string()));
        let tool_use = text("tokenizer.chat_template.tool_use")?;
        let plain = text("tokenizer.chat_template")?.or(text("tokenizer.chat_template.default")?);
        let Some(plain) = plain.or(tool_use) else { return Ok(None) };
        [Some(plain), tool_use].into_iter().flatten().try_for_each(check_length)?;
        let piece = |id: Option<u32>| {
            id.map_or(String::new(), |id| String::from_utf8_lossy(&tokenizer.piece(id, true)).into_owned())
        };
        let (bos, eos) = (piece(tokenizer.bos()), piece(tokenizer.eos()));
        Ok(Some(Self { plain: plain.into(), tool_use: tool_use.map(Into::into), bos, eos }))
    }

    /// The chat format that they are written for.
    pub fn format(&self) -> &'static ChatFormat {
        ChatFormat::detect(self.tool_use.as_deref().unwrap_or(&self.plain))
    }

    /// Whether answers think: a template has the marks of thoughts.
    pub fn thinks(&self) -> bool {
        [Some(&self.plain), self.tool_use.as_ref()].into_iter().flatten().any(|text| self.format().thinks(text))
    }

    /// Whether a rendered text begins with BOS, so that no other BOS is added.
    pub fn begins_with_bos(&self, text: &str) -> bool {
        !self.bos.is_empty() && text.starts_with(&self.bos)
    }
}

fn check_length(text: &str) -> Result<(), TemplateError> {
    if text.len() > TEMPLATE_BYTES_MAX {
        let length = text.len();
        return Err(TemplateError::Broken(format!(
            "it has {length} bytes, but at most {TEMPLATE_BYTES_MAX} are supported"
        )));
    }
    Ok(())
}

/// A conversation as the template writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendered {
    /// The prompt before the answer, with special tokens as text.
    pub text: String,
    /// Changes without which the template would refuse the conversation or leave out a part.
    pub changes: TemplateChanges,
}

/// The chat templates of a model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Whether there is a separate template for conversations with tools.
    has_tool_use: bool,
    customs: Customs,
    /// Whether earlier calls are written, without tools and with them, and in each case without text before the call
    /// and with it; unknown until it matters.
    writes_calls: [[OnceLock<bool>; 2]; 2],
    /// Whether it has a variable `thinking` in place of `enable_thinking` (Granite 3, DeepSeek V3.1).
    has_short_switch: bool,
    bos: String,
    eos: String,
    format: &'static ChatFormat,
}

impl ChatTemplate {
    /// Compiles the templates of a file, if it has any.
    ///
    /// # Errors
    /// The template is not a text, too long, or cannot be compiled.
    pub fn from_metadata(metadata: Metadata<'_>, tokenizer: &Tokenizer) -> Result<Option<Self>, TemplateError> {
        TemplateSource::from_metadata(metadata, tokenizer)?.map(|source| Self::compile(&source)).transpose()
    }

    /// Compiles the templates of a file.
    ///
    /// # Errors
    /// A template is too long or cannot be compiled.
    pub fn compile(source: &TemplateSource) -> Result<Self, TemplateError> {
        let TemplateSource { plain, tool_use, bos, eos } = source;
        Self::new(plain, tool_use.as_deref(), bos.clone(), eos.clone())
    }

    /// Compiles a template, and optionally another one for conversations with tools.
    ///
    /// # Errors
    /// A template is too long or cannot be compiled.
    pub fn new(plain: &str, tool_use: Option<&str>, bos: String, eos: String) -> Result<Self, TemplateError> {
        let broken = |error: Error| TemplateError::Broken(error.to_string());
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(broken)?;
        environment.set_syntax(syntax);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEPTH_MAX);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        python::adapt(&mut environment);
        environment.add_function("raise_exception", rendering::raise_exception);
        environment.add_filter("tojson", json::tojson);
        let mut variables = HashSet::new();
        for (name, text) in [(PLAIN, Some(plain)), (WITH_TOOLS, tool_use)] {
            let Some(text) = text else { continue };
            check_length(text)?;
            environment.add_template_owned(name, prepare(text)).map_err(broken)?;
            variables.extend(environment.get_template(name).map_err(broken)?.undeclared_variables(false));
        }
        let has_short_switch = variables.contains("thinking") && !variables.contains("enable_thinking");
        let texts = [plain, tool_use.unwrap_or_default()];
        let customs = Customs::of(&texts.concat());
        let format = ChatFormat::detect(tool_use.unwrap_or(plain));
        let writes_calls = Default::default();
        let has_tool_use = tool_use.is_some();
        Ok(Self { environment, has_tool_use, customs, writes_calls, has_short_switch, bos, eos, format })
    }

    /// The chat format that the template is written for.
    pub fn format(&self) -> &'static ChatFormat {
        self.format
    }

    /// The prompt before the answer, with special tokens as text. `now` is in seconds since 1970 (UTC), for templates
    /// that include the date. The conversation's variables do not replace those that every template has.
    ///
    /// # Errors
    /// The conversation is invalid, or the template refuses it or fails.
    pub fn render(&self, chat: &Chat, now: u64) -> Result<String, TemplateError> {
        Ok(self.render_with_changes(chat, now)?.text)
    }

    /// The same text, and how the conversation was changed for it.
    ///
    /// # Errors
    /// The conversation is invalid, or the template refuses it or fails.
    pub fn render_with_changes(&self, chat: &Chat, now: u64) -> Result<Rendered, TemplateError> {
        let mut variables = conversation::variables(chat)?;
        if self.has_short_switch
            && let Some(thinks) = variables.get("enable_thinking").cloned()
        {
            variables.entry("thinking").or_insert(thinks);
        }
        let rendering = Rendering { template: self, variables: &variables, now };
        let (usual, of_calls) = self.read(chat, Form::USUAL)?;
        let first = rendering.begin(&usual);
        let other = match &first {
            // No template declares the form that it expects. Calls may be text in one form and missing in another.
            Err(TemplateError::Failed(_)) => Form::others(chat).find_map(|form| {
                let (conversation, changes) = self.read(chat, form).ok()?;
                Some(Rendered { text: rendering.begin(&conversation).ok()?, changes })
            }),
            Ok(text) if usual.lacks_system(text) => {
                let change = Change::LaterSystems;
                let text = usual.changed(&[change]).and_then(|changed| rendering.begin(&changed).ok());
                text.map(|text| Rendered { text, changes: of_calls.union(change.reported()) })
            }
            Err(TemplateError::Refused(reason)) => {
                let accepted = attempts::accepted(&usual, reason, |changed| rendering.begin(changed));
                accepted.map(|Accepted { text, changes }| {
                    let changes = changes.into_iter().map(Change::reported).fold(of_calls, TemplateChanges::union);
                    Rendered { text, changes }
                })
            }
            _ => None,
        };
        match other {
            Some(other) => Ok(other),
            None => Ok(Rendered { text: first?, changes: of_calls }),
        }
    }

    /// The conversation in a form, and its change: calls that the template does not write become text of their
    /// messages, if this crate can write them.
    fn read(&self, chat: &Chat, form: Form) -> Result<(Conversation, TemplateChanges), TemplateError> {
        let conversation = Conversation::read(chat, self.customs, form)?;
        let has_tools = conversation.tools.is_some();
        let is_written = [false, true]
            .into_iter()
            .all(|has_text| !conversation.has_calls(has_text) || self.writes_calls(has_tools, has_text));
        if is_written {
            return Ok((conversation, TemplateChanges::default()));
        }
        match conversation.with_written_calls(self.format) {
            Some(written) => Ok((written, TemplateChanges::CALLS_AS_TEXT)),
            None => Ok((conversation, TemplateChanges::CALLS_LEFT_OUT)),
        }
    }

    /// Whether the name of a call changes the text of a short conversation. A template that refuses that is left alone.
    fn writes_calls(&self, has_tools: bool, has_text: bool) -> bool {
        *self.writes_calls[usize::from(has_tools)][usize::from(has_text)].get_or_init(|| {
            let rendering = Rendering { template: self, variables: &Map::new(), now: 0 };
            let [one, other] = ["look", "wait"]
                .map(|name| rendering.run(&Conversation::sample(self.customs, name, has_tools, has_text)));
            one.is_err() || one != other
        })
    }

    /// Whether a rendered text begins with BOS, so that no other BOS is added.
    pub fn begins_with_bos(&self, text: &str) -> bool {
        !self.bos.is_empty() && text.starts_with(&self.bos)
    }
}

/// Rewrites constructs that Python's Jinja and its extensions treat differently: tags that mark the assistant's text
/// for training are removed, and within a tag a backslash before a line end removes both from a string.
fn prepare(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((begin, close)) = next_tag(rest) {
        // The end may not overlap the beginning, as in `{%}`.
        let Some(end) = rest[begin + 2..].find(close).map(|end| begin + 2 + end) else { break };
        let tag = &rest[begin + 2..end];
        out.push_str(&rest[..begin]);
        if close == "#}" {
            out.push_str(&rest[begin..end + 2]);
        } else if close == "%}"
            && matches!(tag.trim_matches(['-', '+', ' ', '\n', '\t']), "generation" | "endgeneration")
        {
            // A comment strips the same white space.
            let mark = |is_there: bool| if is_there { "-" } else { "" };
            let (before, behind) = (mark(tag.starts_with('-')), mark(tag.ends_with('-')));
            out.push_str(&format!("{{#{before} {behind}#}}"));
        } else {
            push_joined(&mut out, &rest[begin..end + 2]);
        }
        rest = &rest[end + 2..];
    }
    out.push_str(rest);
    out
}

/// Offset of the next tag or comment, and its closing delimiter.
fn next_tag(text: &str) -> Option<(usize, &'static str)> {
    let tags = [("{%", "%}"), ("{{", "}}"), ("{#", "#}")];
    tags.iter().filter_map(|(open, close)| Some((text.find(open)?, *close))).min()
}

/// Appends a tag without its backslash-escaped line ends.
fn push_joined(out: &mut String, tag: &str) {
    for line in tag.split_inclusive('\n') {
        let text = line.strip_suffix('\n').unwrap_or(line);
        let backslashes = text.len() - text.trim_end_matches('\\').len();
        let is_joined = line.ends_with('\n') && backslashes % 2 == 1;
        out.push_str(if is_joined { &text[..text.len() - 1] } else { line });
    }
}

#[cfg(test)]
mod tests;
