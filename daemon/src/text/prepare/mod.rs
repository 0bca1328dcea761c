//! The steps from a request to its tokens, cheapest refusal first. Recent work is cached: a request for several choices
//! arrives as that many requests with one prompt.
mod contents;

use std::sync::Arc;

use common::{
    chat::{Chat, Grammar},
    fault::FaultKind,
};
use protocol::message::{Generate, Prompt};
use tokenizer::template::Rendered;

use super::{
    Answers, ModelText, PromptTokens, TextWork, Unprepared,
    memory::{Key, Memory},
};

/// Longest text in bytes that is tokenized directly: some 10 ms on a Pi.
pub(super) const SMALL_BYTES_MAX: usize = 32 << 10;

/// Bytes per token of the context in the part of a text that is tokenized first. Usual texts have 3 to 5.
const BEGINNING_BYTES_PER_TOKEN: usize = 8;

/// Prepares requests; dangerous work is delegated to `W`.
#[derive(Debug)]
pub struct Preparer<W> {
    pub(super) model: Arc<ModelText>,
    pub(super) memory: Arc<Memory>,
    pub(super) work: W,
}

impl<W: TextWork> Preparer<W> {
    /// Creates a preparer with a cache of its own.
    pub fn new(model: Arc<ModelText>, work: W) -> Self {
        Self { model, memory: Arc::default(), work }
    }

    /// An empty set of answers of the same model.
    pub fn answers(&self) -> Answers {
        Answers::new(&self.model)
    }

    /// The tokens of a request's prompt, after its grammar was checked; `now` in seconds since 1970.
    ///
    /// # Errors
    /// The reason why the request cannot be run.
    pub fn prepare(&mut self, generate: &Generate, now: u64) -> Result<PromptTokens, Unprepared> {
        match &generate.prompt {
            Prompt::Tokens(tokens) if tokens.len() > self.model.context_length => {
                let (tokens, context) = (tokens.len() as u32, self.model.context_length as u32);
                return Err(FaultKind::PromptTooLong { tokens, context }.into());
            }
            Prompt::Text(text) => self.model.check_length(text.len())?,
            Prompt::Chat(chat) => self.check_contents(&chat.messages)?,
            Prompt::Tokens(_) => {}
        }
        self.check_calls(generate)?;
        if let Some(grammar) = generate.grammar.as_ref().filter(|_| !self.demands_call(generate)) {
            self.check(grammar)?;
        }
        self.check_both(generate)?;
        match &generate.prompt {
            Prompt::Tokens(tokens) => Ok(tokens.clone().into()),
            Prompt::Text(text) => {
                let mut ids = self.text(text)?;
                let end = self.model.tokenizer.text_end().filter(|end| ids.last() != Some(end));
                ids.extend(end.filter(|_| generate.sampling.embeds));
                Ok(ids.into())
            }
            Prompt::Chat(chat) => self.chat(chat, now),
        }
    }

    /// Checks before rendering whether the contents of a conversation may fit the context.
    pub(super) fn check_contents(&self, messages: &str) -> Result<(), FaultKind> {
        // Most conversations could fit even with their punctuation, and are not parsed here.
        self.model.check_length(messages.len()).or_else(|_| self.model.check_length(contents::least_bytes(messages)))
    }

    /// Whether the form of a request's answer needs no further check.
    pub(super) fn knows_form(&self, generate: &Generate) -> bool {
        let is_known = match &generate.grammar {
            Some(Grammar::JsonSchema(schema)) if !self.demands_call(generate) => {
                self.memory.schema(&Key::of(&["schema", schema])).is_some()
            }
            _ => true,
        };
        is_known && self.knows_calls(generate)
    }

    fn check(&mut self, grammar: &Grammar) -> Result<(), Unprepared> {
        self.model.check_vocabulary()?;
        let Grammar::JsonSchema(schema) = grammar else { return Ok(()) };
        let key = Key::of(&["schema", schema]);
        if let Some(known) = self.memory.schema(&key) {
            return Ok(known?);
        }
        let checked = self.work.check(grammar);
        self.memory.keep_schema(key, &checked);
        checked
    }

    fn text(&mut self, text: &str) -> Result<Vec<u32>, Unprepared> {
        if text.len() <= SMALL_BYTES_MAX {
            return Ok(self.model.tokenizer.encode(text, true, true));
        }
        let found = self.once(Key::of(&["text", text]), |preparer| Ok(preparer.long_text(text, true, true)?.into()));
        Ok(found?.ids)
    }

    pub(super) fn chat(&mut self, chat: &Chat, now: u64) -> Result<PromptTokens, Unprepared> {
        // Every field, as each changes the text or its refusal.
        let Chat { messages, tools, variables, is_continued } = chat;
        let [tools, variables] = [tools, variables].map(|text| text.as_deref().unwrap_or_default());
        let key = Key::of(&[if *is_continued { "continued" } else { "chat" }, messages, tools, variables]);
        self.once(key, |preparer| {
            let model = Arc::clone(&preparer.model);
            let template = model.template()?;
            let Rendered { text, changes } = preparer.work.render(chat, now)?;
            model.check_length(text.len())?;
            let bos = !template.begins_with_bos(&text);
            let ids = if text.len() <= SMALL_BYTES_MAX {
                model.tokenizer.encode(&text, bos, true)
            } else {
                preparer.long_text(&text, bos, true)?
            };
            Ok(PromptTokens { ids, changes })
        })
    }

    /// Tokenizes a long text. If it is much longer than the context usually holds, its beginning decides first, so that
    /// the work is bounded by the context.
    pub(super) fn long_text(&mut self, text: &str, bos: bool, special: bool) -> Result<Vec<u32>, Unprepared> {
        let context = self.model.context_length;
        let most = context.saturating_mul(BEGINNING_BYTES_PER_TOKEN).max(SMALL_BYTES_MAX);
        if text.len() > 2 * most {
            let beginning = &text[..text.floor_char_boundary(most)];
            let tokens = self.work.encode(beginning, bos, special)?.len();
            // At the cut, the tokens may differ from those of the whole text.
            if tokens > context + context / 8 {
                return Err(FaultKind::PromptTooLong { tokens: tokens as u32, context: context as u32 }.into());
            }
        }
        self.work.encode(text, bos, special)
    }

    /// The tokens of a prompt, from the cache or computed now.
    fn once(
        &mut self,
        key: Key,
        work: impl FnOnce(&mut Self) -> Result<PromptTokens, Unprepared>,
    ) -> Result<PromptTokens, Unprepared> {
        if let Some(known) = self.memory.prompt(&key) {
            return Ok((*known?).clone());
        }
        let found = work(self);
        self.memory.keep_prompt(key, &found);
        found
    }
}

#[cfg(test)]
pub(super) mod tests;
