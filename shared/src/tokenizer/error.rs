//! What can be wrong with the tokenizer of a file. Every message names the key and the next step.

use super::{shown, vocabulary::TOKEN_BYTES_MAX};
use crate::gguf::GgufError;

/// Why a tokenizer was refused. `key` is the key without `tokenizer.ggml.`, except in `Id`.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A value has the wrong type or is no UTF-8.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// A key is not there.
    #[error("the file has no tokenizer.ggml.{key}; convert the model again")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A kind of tokenizer that is not built.
    #[error("tokenizer.ggml.model is `{name}`; known are `llama` (SPM) and `gpt2` (BPE): use a model of these")]
    Model {
        /// As the file has it.
        name: String,
    },
    /// Rules to cut words that are not built.
    #[error("tokenizer.ggml.pre is `{name}`, which is not known; known are {known}: use a model of these")]
    PreTokenizer {
        /// As the file has it.
        name: String,
        /// The names that are known, separated by commas.
        known: String,
    },
    /// A list without an element.
    #[error("tokenizer.ggml.{key} is an empty list; convert the model again")]
    Empty {
        /// The list.
        key: &'static str,
    },
    /// A list that is longer than any real one.
    #[error(
        "tokenizer.ggml.{key} has {length} elements, at most {most} are read; the file may be damaged, download it again"
    )]
    TooMany {
        /// The list.
        key: &'static str,
        /// Its length.
        length: usize,
        /// The bound.
        most: usize,
    },
    /// A token or merge that is longer than any real one.
    #[error(
        "element {index} of tokenizer.ggml.{key} has {length} bytes, at most {TOKEN_BYTES_MAX} are read; \
         the file may be damaged, download it again"
    )]
    TooLong {
        /// The list.
        key: &'static str,
        /// Place in it.
        index: usize,
        /// Length in bytes.
        length: usize,
    },
    /// A list that should have an element for every token.
    #[error("tokenizer.ggml.{key} has {length} elements for {vocabulary} tokens; convert the model again")]
    Length {
        /// The list.
        key: &'static str,
        /// Its length.
        length: usize,
        /// Number of tokens.
        vocabulary: usize,
    },
    /// A score that has no order.
    #[error("the score of token {id} is not a number; convert the model again")]
    Score {
        /// The token.
        id: usize,
    },
    /// A kind of token that does not exist.
    #[error("tokenizer.ggml.token_type of token {id} is {number}, known are 1 to 6; convert the model again")]
    Kind {
        /// The token.
        id: usize,
        /// As the file has it.
        number: i64,
    },
    /// The id of a token that does not exist.
    #[error("{key} is {id}, the vocabulary has {vocabulary} tokens; convert the model again")]
    Id {
        /// The whole key.
        key: &'static str,
        /// As the file has it.
        id: u64,
        /// Number of tokens.
        vocabulary: usize,
    },
    /// BOS is asked for and does not exist.
    #[error(
        "tokenizer.ggml.add_bos_token is true and there is no tokenizer.ggml.bos_token_id; convert the model again"
    )]
    NoBos,
    /// Two tokens for one text.
    #[error("tokens {first} and {second} have the same text `{text}`; convert the model again")]
    Duplicate {
        /// The one that came first.
        first: u32,
        /// The other.
        second: u32,
        /// The text of both.
        text: String,
    },
    /// A byte token whose text names no byte.
    #[error("token {id} is a byte and its text is `{text}`, not <0x00> to <0xFF>; convert the model again")]
    Byte {
        /// The token.
        id: usize,
        /// Its text.
        text: String,
    },
    /// A merge that is not two texts with a space between.
    #[error(
        "element {index} of tokenizer.ggml.merges is `{text}`, not two texts with one space between; convert the model again"
    )]
    Merge {
        /// Place in the list.
        index: usize,
        /// As the file has it.
        text: String,
    },
}

impl TokenizerError {
    pub(super) fn byte(id: usize, text: &[u8]) -> Self {
        Self::Byte { id, text: shown(text) }
    }
}
