//! The bytes of a model's tokens for structured output, read from its file when the first constrained request arrives.
use std::sync::Arc;

use engine::structured_output::{Job, TokenBytes, TokenText, VocabularySource};
use gguf::GgufFile;
use tokenizer::Tokenizer;

/// Where the ranks of the last stage read the vocabulary of `vocabulary_length` logits; `spawn` runs a slow job on a
/// thread and returns false if it cannot.
pub fn vocabulary(file: Arc<GgufFile>, vocabulary_length: usize, spawn: fn(Job) -> bool) -> VocabularySource {
    let read = Arc::new(move || {
        let tokenizer = Tokenizer::from_metadata(file.metadata()).map_err(|error| error.to_string())?;
        Ok(token_bytes(&tokenizer, vocabulary_length))
    });
    VocabularySource { spawn, read }
}

/// The bytes of all tokens. Logits beyond the tokenizer's vocabulary belong to no token.
pub(super) fn token_bytes(tokenizer: &Tokenizer, vocabulary_length: usize) -> TokenBytes {
    let texts = (0..vocabulary_length as u32).map(|id| match tokenizer.piece(id, false) {
        _ if id as usize >= tokenizer.vocabulary_length() => TokenText::Unused,
        piece if piece.is_empty() => TokenText::Control(tokenizer.piece(id, true)),
        piece => TokenText::Text(piece),
    });
    TokenBytes::new(texts, end_tokens(tokenizer, vocabulary_length))
}

/// The tokens that end an answer.
pub(super) fn end_tokens(tokenizer: &Tokenizer, vocabulary_length: usize) -> Vec<u32> {
    (0..vocabulary_length as u32).filter(|id| tokenizer.is_end(*id)).collect()
}
