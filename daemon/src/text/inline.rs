//! Does the work in the calling process: in the child, and in tests of the engine.
use std::{path::PathBuf, sync::Arc};

use common::{
    chat::{Chat, Grammar},
    fault::FaultKind,
    tool_use::CallGrammar,
};
use engine::structured_output;
use gguf::GgufFile;
use tokenizer::{
    Tokenizer,
    template::{ChatTemplate, Rendered, TemplateError, TemplateSource},
};

use super::{TextWork, Unprepared, refused};

/// A template and a tokenizer, created on first use.
#[derive(Debug)]
pub struct Inline {
    source: Option<TemplateSource>,
    template: Option<Result<ChatTemplate, TemplateError>>,
    path: PathBuf,
    tokenizer: Option<Arc<Tokenizer>>,
}

impl Inline {
    /// Creates the work for a model; nothing is compiled or read yet.
    pub fn new(source: Option<TemplateSource>, path: PathBuf, tokenizer: Option<Arc<Tokenizer>>) -> Self {
        Self { source, template: None, path, tokenizer }
    }

    /// Compiles the template.
    ///
    /// # Errors
    /// The template cannot be compiled, or there is none.
    pub fn template(&mut self) -> Result<&ChatTemplate, FaultKind> {
        let source = self.source.as_ref().ok_or(FaultKind::NoTemplate)?;
        let template = self.template.get_or_insert_with(|| ChatTemplate::compile(source));
        template.as_ref().map_err(|error| refused(error.to_string()))
    }

    /// Whether the tokenizer is loaded.
    pub fn has_tokenizer(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// Reads the tokenizer from the model's file, if it is not loaded.
    ///
    /// # Errors
    /// The file changed.
    pub fn read_tokenizer(&mut self) -> Result<(), FaultKind> {
        if self.tokenizer.is_none() {
            let failed = |reason: String| FaultKind::Internal { reason };
            let file = GgufFile::open(&self.path).map_err(|error| failed(error.to_string()))?;
            let tokenizer = Tokenizer::from_metadata(file.metadata()).map_err(|error| failed(error.to_string()))?;
            self.tokenizer = Some(Arc::new(tokenizer));
        }
        Ok(())
    }
}

impl TextWork for Inline {
    fn render(&mut self, chat: &Chat, now: u64) -> Result<Rendered, Unprepared> {
        let rendered = self.template()?.render_with_changes(chat, now);
        Ok(rendered.map_err(|error| refused(error.to_string()))?)
    }

    fn check(&mut self, grammar: &Grammar) -> Result<(), Unprepared> {
        Ok(structured_output::check(grammar).map_err(refused)?)
    }

    fn check_calls(&mut self, calls: &CallGrammar) -> Result<(), Unprepared> {
        Ok(structured_output::check_calls(calls).map_err(refused)?)
    }

    fn encode(&mut self, text: &str, bos: bool, special: bool) -> Result<Vec<u32>, Unprepared> {
        self.read_tokenizer()?;
        Ok(self.tokenizer.as_ref().map_or(Vec::new(), |tokenizer| tokenizer.encode(text, bos, special)))
    }
}
