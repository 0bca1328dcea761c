//! Requests of clients to a head about the texts of its model: tokens of a text or a conversation, the text of tokens,
//! a rendered conversation. Since wire version 11.
use common::{changes::TemplateChanges, chat::Chat};
use serde::{Deserialize, Serialize};

/// A question about texts, answered without the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TextRequest {
    /// The tokens of a text. Answered by `Tokens`.
    Tokenize {
        /// The text.
        text: String,
        /// Begin with BOS if the model expects it.
        bos: bool,
        /// Texts of special tokens become these tokens.
        special: bool,
        /// Return the bytes of each token, too.
        with_pieces: bool,
    },
    /// The tokens of a conversation as the model receives it. Answered by `Tokens`.
    TokenizeChat {
        /// The conversation.
        chat: Box<Chat>,
        /// Return the bytes of each token, too.
        with_pieces: bool,
    },
    /// The text of tokens, special ones included. Answered by `Text`.
    Detokenize(Vec<u32>),
    /// A conversation as the model's template writes it. Answered by `Text`.
    Render(Box<Chat>),
    /// The model's templates and the texts of its BOS and EOS. Answered by `Described`.
    Describe,
}

/// The answer to a [`TextRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TextResponse {
    /// Tokens.
    Tokens {
        /// Their ids.
        ids: Vec<u32>,
        /// The bytes of each, possibly part of a character; empty unless asked for.
        pieces: Vec<Vec<u8>>,
    },
    /// A text.
    Text {
        /// The text itself.
        text: String,
        /// What was changed in a conversation for the model's chat template.
        #[serde(default, with = "common::version::since_16")]
        changes: TemplateChanges,
    },
    /// Texts of the model.
    Described(ModelTexts),
}

/// Texts that belong to a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelTexts {
    /// The chat template, if there is one that can be used.
    pub template: Option<String>,
    /// The template for conversations with tools, if it differs.
    pub template_with_tools: Option<String>,
    /// The text of BOS; may be empty.
    pub bos: String,
    /// The text of EOS; may be empty.
    pub eos: String,
}

impl TextRequest {
    /// Bytes of its texts, or four bytes per token.
    pub fn byte_count(&self) -> usize {
        match self {
            Self::Tokenize { text, .. } => text.len(),
            Self::TokenizeChat { chat, .. } | Self::Render(chat) => chat.byte_count(),
            Self::Detokenize(tokens) => 4 * tokens.len(),
            Self::Describe => 0,
        }
    }
}

impl TextResponse {
    /// Bytes that it takes in memory, roughly.
    pub fn byte_count(&self) -> usize {
        match self {
            Self::Tokens { ids, pieces } => 4 * ids.len() + pieces.iter().map(|piece| piece.len() + 24).sum::<usize>(),
            Self::Text { text, .. } => text.len(),
            Self::Described(ModelTexts { template, template_with_tools, .. }) => {
                [template, template_with_tools].into_iter().flatten().map(String::len).sum()
            }
        }
    }
}
