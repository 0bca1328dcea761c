//! Errors of a file's tokenizer. Every message names the key and the next step.

use gguf::GgufError;

use super::{limits::TOKEN_BYTES_MAX, shown};

/// Why a tokenizer was rejected. `key` is the key without `tokenizer.ggml.`, except in `Id`.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A value has the wrong type or is not UTF-8.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// A key is missing.
    #[error("the file has no tokenizer.ggml.{key}; convert the model again")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A tokenizer model that is not supported.
    #[error(
        "tokenizer.ggml.model is `{name}`, but only `llama` (SPM), `gpt2` and `gemma4` (BPE) are supported; use another \
         model"
    )]
    Model {
        /// As the file has it.
        name: String,
    },
    /// A pre-tokenizer that is not supported.
    #[error("tokenizer.ggml.pre is `{name}`, which is not supported; use a model with one of {known}")]
    PreTokenizer {
        /// As the file has it.
        name: String,
        /// The supported names, separated by commas.
        known: String,
    },
    /// An empty list.
    #[error("tokenizer.ggml.{key} is an empty list; convert the model again")]
    Empty {
        /// The list.
        key: &'static str,
    },
    /// A list that is longer than in any known model.
    #[error(
        "tokenizer.ggml.{key} has {length} elements, but at most {most} are supported; the file may be damaged, download it again"
    )]
    TooMany {
        /// The list.
        key: &'static str,
        /// Its length.
        length: usize,
        /// The bound.
        most: usize,
    },
    /// A token or merge that is longer than in any known model.
    #[error(
        "element {index} of tokenizer.ggml.{key} has {length} bytes, but at most {TOKEN_BYTES_MAX} are supported; \
         the file may be damaged, download it again"
    )]
    TooLong {
        /// The list.
        key: &'static str,
        /// Index in the list.
        index: usize,
        /// Length in bytes.
        length: usize,
    },
    /// A list that must have one element per token.
    #[error("tokenizer.ggml.{key} has {length} elements for {vocabulary} tokens; convert the model again")]
    Length {
        /// The list.
        key: &'static str,
        /// Its length.
        length: usize,
        /// Number of tokens.
        vocabulary: usize,
    },
    /// A score that is NaN.
    #[error("the score of token {id} is not a number; convert the model again")]
    Score {
        /// The token.
        id: usize,
    },
    /// An undefined token type.
    #[error("tokenizer.ggml.token_type of token {id} is {number}, but must be 1 to 6; convert the model again")]
    Kind {
        /// The token.
        id: usize,
        /// As the file has it.
        number: i64,
    },
    /// The id of a token that does not exist.
    #[error("{key} is {id}, but the vocabulary has {vocabulary} tokens; convert the model again")]
    Id {
        /// The whole key.
        key: &'static str,
        /// As the file has it.
        id: u64,
        /// Number of tokens.
        vocabulary: usize,
    },
    /// BOS is required but not defined.
    #[error(
        "tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing; convert the model again"
    )]
    NoBos,
    /// Two tokens with the same text.
    #[error("tokens {first} and {second} have the same text `{text}`; convert the model again")]
    Duplicate {
        /// The first token.
        first: u32,
        /// The second token.
        second: u32,
        /// Their text.
        text: String,
    },
    /// A byte token whose text is not a byte.
    #[error("token {id} is a byte token, but its text is `{text}`, not <0x00> to <0xFF>; convert the model again")]
    Byte {
        /// The token.
        id: usize,
        /// Its text.
        text: String,
    },
    /// A merge that is not two texts separated by a space.
    #[error(
        "element {index} of tokenizer.ggml.merges is `{text}`, not two texts separated by one space; convert the model again"
    )]
    Merge {
        /// Index in the list.
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
