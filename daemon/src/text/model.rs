//! What preparing a request needs to know of the model that runs: its tokenizer, its template as text, its bounds.
use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use shared::{
    gguf::GgufFile,
    protocol::{error::FaultKind, message::ToolFormat},
    tokenizer::{
        Tokenizer,
        template::{TemplateError, TemplateSource},
    },
};

use super::refused;
use crate::engine::{grammar::check_vocabulary, plan::Limits};

/// Bytes that a token stands for at least, where the vocabulary has only shorter ones: an unknown character is one token.
const TOKEN_BYTES_LEAST: usize = 4;

/// A model as far as texts are concerned.
#[derive(Debug)]
pub struct ModelText {
    /// Its name, for faults.
    pub name: String,
    /// Its file, which a child reads for long texts.
    pub path: PathBuf,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its templates, if there are any and they can be compiled.
    pub template: Result<Option<TemplateSource>, TemplateError>,
    /// Most tokens of a sequence.
    pub context_length: usize,
    vocabulary_length: usize,
    /// Bytes of the longest token.
    longest: usize,
    constrains: OnceLock<Result<(), String>>,
}

impl ModelText {
    /// The texts of a file, whose templates are not compiled yet.
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
        Self { name, path, tokenizer, template, context_length, vocabulary_length, longest, constrains }
    }

    /// How calls of tools look in answers.
    pub fn tool_format(&self) -> ToolFormat {
        let source = self.template.as_ref().ok().and_then(Option::as_ref);
        source.map_or(ToolFormat::None, TemplateSource::tool_format)
    }

    /// The templates.
    ///
    /// # Errors
    /// There are none, or they are broken.
    pub fn template(&self) -> Result<&TemplateSource, FaultKind> {
        let source = self.template.as_ref().map_err(|error| refused(error.to_string()))?;
        source.as_ref().ok_or(FaultKind::NoTemplate)
    }

    /// Whether a text cannot fit the context, seen before it is tokenized: no token stands for more bytes than the longest.
    ///
    /// # Errors
    /// It cannot.
    pub fn check_length(&self, bytes: usize) -> Result<(), FaultKind> {
        let least = bytes.div_ceil(self.longest);
        if least > self.context_length {
            return Err(FaultKind::PromptTooLong { tokens: least as u32, context: self.context_length as u32 });
        }
        Ok(())
    }

    /// Whether answers can be constrained at all; found out once.
    ///
    /// # Errors
    /// The vocabulary is beyond what can be followed.
    pub fn check_vocabulary(&self) -> Result<(), FaultKind> {
        let checked = self.constrains.get_or_init(|| check_vocabulary(&self.tokenizer, self.vocabulary_length));
        checked.clone().map_err(refused)
    }
}
