//! Questions of clients about the model's texts: they need the tokenizer and the templates, but no engine.
use common::{changes::TemplateChanges, chat::PROMPT_BYTES_MAX, fault::FaultKind};
use protocol::{
    message::MESSAGE_BYTES_MAX,
    texts::{ModelTexts, TextRequest, TextResponse},
};
use tokenizer::template::Rendered;

use super::{ModelText, Preparer, TextWork, Unprepared, prepare::SMALL_BYTES_MAX, refused};

/// Room in a message for everything around an answer's texts.
const AROUND_BYTES: usize = 1 << 10;

impl<W: TextWork> Preparer<W> {
    /// Answers a question about texts; `now` in seconds since 1970.
    ///
    /// # Errors
    /// The reason why it cannot be answered.
    pub fn answer(&mut self, request: &TextRequest, now: u64) -> Result<TextResponse, Unprepared> {
        let (ids, with_pieces) = match request {
            TextRequest::Tokenize { text, bos, special, with_pieces } => {
                self.model.check_length(text.len())?;
                let ids = if text.len() <= SMALL_BYTES_MAX {
                    self.model.tokenizer.encode(text, *bos, *special)
                } else {
                    self.long_text(text, *bos, *special)?
                };
                (ids, *with_pieces)
            }
            TextRequest::TokenizeChat { chat, with_pieces } => {
                self.check_contents(&chat.messages)?;
                (self.chat(chat, now)?.ids, *with_pieces)
            }
            TextRequest::Detokenize(ids) => {
                let (text, changes) = (self.model.detokenize(ids)?, TemplateChanges::default());
                return Ok(TextResponse::Text { text, changes });
            }
            TextRequest::Render(chat) => {
                self.model.template()?;
                let Rendered { text, changes } = self.work.render(chat, now)?;
                check_bytes(text.len())?;
                return Ok(TextResponse::Text { text, changes });
            }
            TextRequest::Describe => return Ok(TextResponse::Described(self.model.describe())),
        };
        let mut bytes = 5 * ids.len();
        let mut pieces = Vec::new();
        for id in ids.iter().take_while(|_| with_pieces) {
            let piece = self.model.tokenizer.piece(*id, true);
            bytes += piece.len() + 2;
            check_bytes(bytes)?;
            pieces.push(piece);
        }
        check_bytes(bytes)?;
        Ok(TextResponse::Tokens { ids, pieces })
    }
}

/// Refuses an answer that no message has room for.
fn check_bytes(bytes: usize) -> Result<(), FaultKind> {
    if bytes > MESSAGE_BYTES_MAX - AROUND_BYTES {
        return Err(refused(format!(
            "the answer has {bytes} bytes or more, at most {MESSAGE_BYTES_MAX}; ask for less"
        )));
    }
    Ok(())
}

impl ModelText {
    /// The text of tokens, special ones included.
    fn detokenize(&self, ids: &[u32]) -> Result<String, FaultKind> {
        let (mut bytes, mut piece) = (0, Vec::new());
        for id in ids {
            if *id as usize >= self.tokenizer.vocabulary_length() {
                let length = self.tokenizer.vocabulary_length();
                return Err(refused(format!("token id {id} is beyond the vocabulary of {length}; send other ids")));
            }
            piece.clear();
            self.tokenizer.append_piece(*id, true, &mut piece);
            bytes += piece.len();
            if bytes > PROMPT_BYTES_MAX {
                return Err(refused(format!(
                    "the text of {} tokens has more than {PROMPT_BYTES_MAX} bytes; send fewer",
                    ids.len()
                )));
            }
        }
        Ok(self.tokenizer.decode(ids, true))
    }

    /// Texts of the model that clients ask for.
    fn describe(&self) -> ModelTexts {
        let piece = |id: Option<u32>| {
            id.map_or_else(String::new, |id| String::from_utf8_lossy(&self.tokenizer.piece(id, true)).into_owned())
        };
        let source = self.template.as_ref().ok().and_then(Option::as_ref);
        ModelTexts {
            template: source.map(|source| source.plain.clone()),
            template_with_tools: source.and_then(|source| source.tool_use.clone()),
            bos: piece(self.tokenizer.bos()),
            eos: piece(self.tokenizer.eos()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use common::chat::Chat;

    use super::*;
    use crate::text::{inline::Inline, prepare::tests::model};

    fn preparer() -> Preparer<Inline> {
        let model = model();
        let source = model.template.as_ref().ok().cloned().flatten();
        let inline = Inline::new(source, model.path.clone(), Some(Arc::clone(&model.tokenizer)));
        Preparer::new(Arc::new(model), inline)
    }

    fn tokenize(text: &str, with_pieces: bool) -> TextRequest {
        TextRequest::Tokenize { text: text.into(), bos: true, special: true, with_pieces }
    }

    #[test]
    fn tokens_with_their_bytes_give_the_text_back() {
        let mut preparer = preparer();
        let text = "But soft! \u{1f319}";
        let Ok(TextResponse::Tokens { ids, pieces }) = preparer.answer(&tokenize(text, true), 0) else {
            panic!("tokens")
        };
        assert_eq!(ids, preparer.model.tokenizer.encode(text, true, true));
        assert_eq!(ids.len(), pieces.len());
        let Ok(TextResponse::Text { text: found, .. }) = preparer.answer(&TextRequest::Detokenize(ids.clone()), 0)
        else {
            panic!("a text")
        };
        assert!(found.ends_with(text), "{found}");
        let plain = preparer.answer(&tokenize(text, false), 0);
        assert_eq!(plain, Ok(TextResponse::Tokens { ids, pieces: Vec::new() }));
    }

    #[test]
    fn conversation_is_rendered_and_tokenized_like_a_prompt() {
        let mut preparer = preparer();
        let messages = r#"[{"role": "user", "content": "But soft!"}]"#.into();
        let chat = Box::new(Chat { messages, ..Chat::default() });
        let rendered = TextResponse::Text { text: "But soft!".into(), changes: TemplateChanges::default() };
        assert_eq!(preparer.answer(&TextRequest::Render(chat.clone()), 0), Ok(rendered));
        let ids = preparer.chat(&chat, 0).expect("tokens").ids;
        let asked = TextRequest::TokenizeChat { chat, with_pieces: false };
        assert_eq!(preparer.answer(&asked, 0), Ok(TextResponse::Tokens { ids, pieces: Vec::new() }));
        let Ok(TextResponse::Described(texts)) = preparer.answer(&TextRequest::Describe, 0) else { panic!("texts") };
        assert!(texts.template.is_some_and(|template| template.contains("m.content")));
    }

    #[test]
    fn hostile_tokens_and_texts_are_refused() {
        let mut preparer = preparer();
        let beyond = preparer.answer(&TextRequest::Detokenize(vec![u32::MAX]), 0).expect_err("no such token");
        assert!(matches!(&beyond, Unprepared::Refused(kind) if kind.to_string().contains("4294967295")), "{beyond:?}");
        let longest = (0..preparer.model.tokenizer.vocabulary_length() as u32)
            .max_by_key(|id| preparer.model.tokenizer.piece(*id, true).len())
            .expect("tokens");
        let count = PROMPT_BYTES_MAX / preparer.model.tokenizer.piece(longest, true).len() + 1;
        assert!(preparer.answer(&TextRequest::Detokenize(vec![longest; count]), 0).is_err());
        let long = preparer.answer(&tokenize(&"x\n".repeat(1 << 20), false), 0);
        assert!(matches!(long, Err(Unprepared::Refused(FaultKind::PromptTooLong { .. }))), "{long:?}");
    }
}
