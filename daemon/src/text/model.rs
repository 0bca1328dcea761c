//! Properties of the running model that are needed to prepare requests: its tokenizer, its template source, its limits.
use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use common::{
    chat::{AnswerForm, ToolFormat},
    fault::FaultKind,
    sampling::SamplingDefaults,
};
use engine::plan::Limits;
use gguf::{GgufFile, Metadata};
use protocol::message::{Generate, Prompt};
use tokenizer::{
    Tokenizer,
    answer::ChatFormat,
    template::{TemplateError, TemplateSource},
};

use super::{
    refused,
    vocabulary::{end_tokens, token_bytes},
};

/// Minimum for the length in bytes of the longest token: an unknown character is one token even if the vocabulary has
/// only shorter ones.
const TOKEN_BYTES_LEAST: usize = 4;

/// Number of tokens at the end of a prompt that show whether it ends with the beginning of a thought, and white space.
const TAIL_TOKENS: usize = 12;

/// The text-related part of a model.
#[derive(Debug)]
pub struct ModelText {
    /// Its name, for faults.
    pub name: String,
    /// Its file, which a child reads for long texts.
    pub path: PathBuf,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its templates, if it has any that can be compiled.
    pub template: Result<Option<TemplateSource>, TemplateError>,
    /// Most tokens in a sequence.
    pub context_length: usize,
    /// The chat format of its templates.
    pub format: &'static ChatFormat,
    /// The control tokens that mark the parts of its answers, sorted.
    pub marks: Vec<u32>,
    /// Defaults of the file.
    pub sampling: SamplingDefaults,
    /// Whether the templates have marks of thoughts.
    pub(super) thinks: bool,
    /// The tokens that end a thought.
    thought_end: Vec<u32>,
    vocabulary_length: usize,
    /// Bytes of the longest token.
    pub(super) longest: usize,
    constrains: OnceLock<Result<(), String>>,
}

impl ModelText {
    /// Creates it from a file; templates are not compiled yet.
    pub fn new(name: String, path: PathBuf, file: &GgufFile, tokenizer: Arc<Tokenizer>, limits: Limits) -> Self {
        let (mut longest, mut piece) = (TOKEN_BYTES_LEAST, Vec::new());
        for id in 0..tokenizer.vocabulary_length() as u32 {
            piece.clear();
            tokenizer.append_piece(id, true, &mut piece);
            longest = longest.max(piece.len());
        }
        let template = TemplateSource::from_metadata(file.metadata(), &tokenizer);
        let Limits { context_length, vocabulary_length, .. } = limits;
        let constrains = OnceLock::new();
        let source = template.as_ref().ok().and_then(Option::as_ref);
        let thinks = source.is_some_and(TemplateSource::thinks);
        let format = source.map_or(ChatFormat::of(ToolFormat::None), TemplateSource::format);
        let mut marks: Vec<u32> = format.preserved.iter().filter_map(|text| tokenizer.control_token(text)).collect();
        marks.sort_unstable();
        let thought_end = tokenizer.encode(format.thinking.close, false, true);
        Self {
            name,
            path,
            tokenizer,
            template,
            context_length,
            format,
            marks,
            thinks,
            thought_end,
            sampling: sampling_defaults(file.metadata()),
            vocabulary_length,
            longest,
            constrains,
        }
    }

    /// The tokens that end an answer.
    pub fn end_tokens(&self) -> Vec<u32> {
        end_tokens(&self.tokenizer, self.vocabulary_length)
    }

    /// How to read the answer to a prompt with these tokens.
    pub fn form(&self, generate: &Generate, tokens: &[u32]) -> AnswerForm {
        let tool_format = self.format.format;
        if !self.thinks {
            return AnswerForm { tool_format, ..AnswerForm::default() };
        }
        let is_continued = matches!(&generate.prompt, Prompt::Chat(chat) if chat.is_continued)
            || generate.tool_use.as_ref().is_some_and(|tool_use| tool_use.is_continued);
        // An earlier message may be about the marks of thoughts.
        let from = if is_continued {
            tokens.iter().rposition(|id| self.tokenizer.is_end(*id)).map_or(0, |end| end + 1)
        } else {
            tokens.len().saturating_sub(TAIL_TOKENS)
        };
        let mut tail = Vec::new();
        for id in &tokens[from..] {
            self.tokenizer.append_piece(*id, true, &mut tail);
        }
        let tail = String::from_utf8_lossy(&tail);
        let thinking =
            if is_continued { self.format.thinking_within(&tail) } else { self.format.thinking_behind(&tail) };
        AnswerForm { tool_format, thinking, thought_end: self.thought_end.clone(), ..AnswerForm::default() }
    }

    /// The templates.
    ///
    /// # Errors
    /// There are none, or they are invalid.
    pub fn template(&self) -> Result<&TemplateSource, FaultKind> {
        let source = self.template.as_ref().map_err(|error| refused(error.to_string()))?;
        source.as_ref().ok_or(FaultKind::NoTemplate)
    }

    /// Checks, before tokenizing, whether a text may fit the context: no token stands for more bytes than the longest
    /// one.
    ///
    /// # Errors
    /// The text cannot fit.
    pub fn check_length(&self, bytes: usize) -> Result<(), FaultKind> {
        let least = bytes.div_ceil(self.longest);
        if least > self.context_length {
            return Err(FaultKind::PromptTooLong { tokens: least as u32, context: self.context_length as u32 });
        }
        Ok(())
    }

    /// Checks, once, whether answers can be constrained at all.
    ///
    /// # Errors
    /// The vocabulary is not supported by the constraint library.
    pub fn check_vocabulary(&self) -> Result<(), FaultKind> {
        let checked = self.constrains.get_or_init(|| token_bytes(&self.tokenizer, self.vocabulary_length).check());
        checked.clone().map_err(refused)
    }
}

/// The defaults of a file; those of a wrong type are left out, as in llama.cpp.
fn sampling_defaults(metadata: Metadata<'_>) -> SamplingDefaults {
    let number = |key: &str| metadata.float(key).ok().flatten().map(|number| number as f32);
    SamplingDefaults {
        temperature: number("general.sampling.temp"),
        top_k: metadata.unsigned("general.sampling.top_k").ok().flatten().and_then(|count| count.try_into().ok()),
        top_p: number("general.sampling.top_p"),
        min_p: number("general.sampling.min_p"),
        repeat_penalty: number("general.sampling.penalty_repeat"),
    }
}
