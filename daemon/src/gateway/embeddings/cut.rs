//! Cuts a text to what the model takes, as Ollama does unless a client forbids it.
use common::ids::ModelRoots;
use protocol::texts::TextRequest;

use crate::gateway::{
    Gateway,
    error::{ApiError, PromptExcess},
};

/// Tokens of a prompt that its text does not have: the first and the last one.
const AROUND: usize = 2;

/// Most tokens of a text after an attempt with at most `before` of them.
pub(super) fn next_most(before: usize, PromptExcess { tokens, context }: PromptExcess) -> usize {
    // The text of tokens may have more tokens than these.
    before.saturating_sub(tokens.saturating_sub(context)).min(context.saturating_sub(AROUND))
}

/// The beginning of a text with at most `most` tokens.
///
/// # Errors
/// No head answers.
pub(super) async fn cut(gateway: &Gateway, model: &ModelRoots, text: &str, most: usize) -> Result<String, ApiError> {
    let mut text = text;
    let ids = loop {
        let request = TextRequest::Tokenize { text: text.to_owned(), bos: false, special: true, with_pieces: false };
        match gateway.tokens(model, request).await {
            Ok((ids, _)) => break ids,
            // A head counts the tokens only of texts that are not much longer than the context.
            Err(error) => match error.excess() {
                Some(excess) => text = shorter(text, excess),
                None => return Err(error),
            },
        }
    };
    let text = gateway.text_of(model, ids.into_iter().take(most).collect()).await?;
    // The cut may be within a character.
    Ok(text.trim_end_matches('\u{fffd}').to_owned())
}

/// A shorter beginning of a text that has too many tokens. It still has enough of them: the excess counts all tokens of
/// the text, or fewer.
fn shorter(text: &str, PromptExcess { tokens, context }: PromptExcess) -> &str {
    let bytes = text.len() * context / tokens.max(context + 1);
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_shorter_until_they_fit() {
        let excess = |tokens: usize, context: usize| PromptExcess { tokens, context };
        assert_eq!(next_most(usize::MAX, excess(9000, 8192)), 8190);
        assert_eq!(next_most(8190, excess(8195, 8192)), 8187, "their text has more tokens");
        assert_eq!(next_most(8190, excess(8192, 128)), 126, "a smaller limit");
        assert_eq!(next_most(1, excess(9, 1)), 0);
        let text = "é".repeat(100);
        let mut rest = text.as_str();
        for tokens in [200, 100, 51, 50] {
            let next = shorter(rest, excess(tokens, 50));
            assert!(next.len() < rest.len() && text.starts_with(next), "{tokens}");
            rest = next;
        }
        assert_eq!(shorter("a", excess(9, 8)), "");
    }
}
