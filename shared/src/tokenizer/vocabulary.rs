//! What the metadata of a file says of its tokenizer, checked: lengths agree, ids exist, kinds are known.
//! Does not tokenize; `Tokenizer::new` compiles it.

use super::texts::Texts;
use super::{TokenizerError, pretokenizer, shown};
use crate::gguf::{GgufError, Metadata};

/// Most tokens of a vocabulary; the largest in use has 0.3 million.
pub const VOCABULARY_LENGTH_MAX: usize = 1 << 22;
/// Most merges of a byte-level BPE vocabulary; the largest in use has 0.5 million.
pub const MERGES_MAX: usize = 1 << 23;
/// Longest token or merge in bytes; the longest in use has about 1000 (runs of spaces).
pub const TOKEN_BYTES_MAX: usize = 4096;

/// How a text becomes tokens: `tokenizer.ggml.model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// `llama`: SentencePiece, pairs merged by the score of what they make, bytes for what is no token.
    Spm,
    /// `gpt2`: byte-level BPE, words cut by a pre-tokenizer, pairs merged by their place in a list.
    Bpe,
}

/// What a token is for: `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Normal,
    /// Stands for what cannot be written.
    Unknown,
    /// A mark for the model, never text: found in a text only on demand, rendered only on demand.
    Control,
    /// Text that is always one token, found before anything else.
    UserDefined,
    /// Text of which the training saw nothing.
    Unused,
    /// One byte, written `<0xNN>`.
    Byte,
}

impl Kind {
    fn from_number(number: i64) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// The tokenizer of a file as its metadata has it. Texts are as in the file: SPM with `▁` for a space, BPE in the
/// byte alphabet of GPT-2.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// How a text becomes tokens.
    pub model: Model,
    /// Name of the pre-tokenizer (BPE). A file without `tokenizer.ggml.pre` has `default`: like llama.cpp, it gets the
    /// rules that llama.cpp gives to that name, which may not be those that the model was trained with.
    pub pre: String,
    /// `[vocabulary]`
    pub tokens: Texts,
    /// SPM: `[vocabulary]`, the greater is merged first, none is NaN. BPE: empty.
    pub scores: Vec<f32>,
    /// `[vocabulary]`
    pub kinds: Vec<Kind>,
    /// BPE: `A B`, the most urgent first. SPM: empty.
    pub merges: Texts,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn.
    pub eot: Option<u32>,
    /// Ends a message.
    pub eom: Option<u32>,
    /// Stands for what cannot be written.
    pub unknown: Option<u32>,
    /// Whether the model wants `bos` before a text; then there is one.
    pub add_bos: bool,
    /// Whether the model was trained with `eos` after a text. A prompt is to be continued, so `encode` never adds it.
    pub add_eos: bool,
    /// SPM: whether a space is put before a text that begins without one.
    pub add_space_prefix: bool,
}

impl Vocabulary {
    /// Reads and checks the keys `tokenizer.ggml.*`.
    ///
    /// # Errors
    /// Every defect by name: a key that is missing or of another type, lists whose lengths differ, an id beyond the
    /// vocabulary, a model, pre-tokenizer or kind of token that is not known.
    pub fn from_metadata(metadata: Metadata<'_>) -> Result<Self, TokenizerError> {
        let keys = Keys(metadata);
        let model = match keys.required("model", metadata.text("tokenizer.ggml.model"))? {
            "llama" => Model::Spm,
            "gpt2" => Model::Bpe,
            other => {
                return Err(TokenizerError::Model { name: shown(other.as_bytes()) });
            }
        };
        let pre = metadata.text("tokenizer.ggml.pre")?.unwrap_or("default");
        let tokens = keys.tokens()?;
        let (scores, merges) = match model {
            Model::Spm => (keys.scores(tokens.len())?, Texts::default()),
            Model::Bpe => (Vec::new(), keys.merges()?),
        };
        let add_bos_by_default = match model {
            Model::Spm => true,
            Model::Bpe => pretokenizer::find(pre)?.add_bos,
        };
        let kinds = keys.kinds(model, tokens.len())?;
        // SentencePiece has always numbered these so; old files do not say it.
        let usual = |id: u32| (model == Model::Spm && (id as usize) < tokens.len()).then_some(id);
        let id = |key: &'static str| keys.id(key, tokens.len());
        let bos = id("tokenizer.ggml.bos_token_id")?.or(usual(1));
        let add_bos = metadata.flag("tokenizer.ggml.add_bos_token")?;
        if add_bos == Some(true) && bos.is_none() {
            return Err(TokenizerError::NoBos);
        }
        Ok(Self {
            model,
            pre: pre.to_owned(),
            bos,
            eos: id("tokenizer.ggml.eos_token_id")?.or(usual(2)),
            eot: id("tokenizer.ggml.eot_token_id")?,
            eom: id("tokenizer.ggml.eom_token_id")?,
            unknown: id("tokenizer.ggml.unknown_token_id")?.or(usual(0)),
            add_bos: add_bos.unwrap_or(add_bos_by_default && bos.is_some()),
            add_eos: metadata.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
            add_space_prefix: metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(model == Model::Spm),
            tokens,
            scores,
            kinds,
            merges,
        })
    }
}

/// The lists of a tokenizer's metadata, each with its checks.
struct Keys<'a>(Metadata<'a>);

impl Keys<'_> {
    fn required<T>(&self, key: &'static str, value: Result<Option<T>, GgufError>) -> Result<T, TokenizerError> {
        value?.ok_or(TokenizerError::Missing { key })
    }

    fn tokens(&self) -> Result<Texts, TokenizerError> {
        let tokens = self.required("tokens", self.0.texts("tokenizer.ggml.tokens"))?;
        if tokens.len() == 0 {
            return Err(TokenizerError::Empty { key: "tokens" });
        }
        bounded("tokens", tokens, VOCABULARY_LENGTH_MAX)
    }

    fn merges(&self) -> Result<Texts, TokenizerError> {
        let merges = self.required("merges", self.0.texts("tokenizer.ggml.merges"))?;
        bounded("merges", merges, MERGES_MAX)
    }

    fn scores(&self, vocabulary: usize) -> Result<Vec<f32>, TokenizerError> {
        let scores = self.required("scores", self.0.floats("tokenizer.ggml.scores"))?;
        same_length("scores", scores.len(), vocabulary)?;
        match scores.iter().position(|score| score.is_nan()) {
            Some(id) => Err(TokenizerError::Score { id }),
            None => Ok(scores),
        }
    }

    fn kinds(&self, model: Model, vocabulary: usize) -> Result<Vec<Kind>, TokenizerError> {
        let numbers = match self.0.integers("tokenizer.ggml.token_type")? {
            Some(numbers) => numbers,
            None if model == Model::Bpe => return Ok(vec![Kind::Normal; vocabulary]),
            None => return Err(TokenizerError::Missing { key: "token_type" }),
        };
        same_length("token_type", numbers.len(), vocabulary)?;
        let kind = |(id, &number)| Kind::from_number(number).ok_or(TokenizerError::Kind { id, number });
        numbers.iter().enumerate().map(kind).collect()
    }

    fn id(&self, key: &'static str, vocabulary: usize) -> Result<Option<u32>, TokenizerError> {
        match self.0.unsigned(key)? {
            Some(id) if id >= vocabulary as u64 => Err(TokenizerError::Id { key, id, vocabulary }),
            // Fits: a vocabulary has at most VOCABULARY_LENGTH_MAX tokens.
            id => Ok(id.map(|id| id as u32)),
        }
    }
}

fn bounded<'a>(
    key: &'static str,
    texts: impl ExactSizeIterator<Item = &'a [u8]>,
    most: usize,
) -> Result<Texts, TokenizerError> {
    let length = texts.len();
    if length > most {
        return Err(TokenizerError::TooMany { key, length, most });
    }
    let mut list = Texts::with_room(length);
    for (index, text) in texts.enumerate() {
        if text.len() > TOKEN_BYTES_MAX {
            let length = text.len();
            return Err(TokenizerError::TooLong { key, index, length });
        }
        list.push(text);
    }
    Ok(list)
}

fn same_length(key: &'static str, length: usize, vocabulary: usize) -> Result<(), TokenizerError> {
    if length != vocabulary {
        return Err(TokenizerError::Length { key, length, vocabulary });
    }
    Ok(())
}
