//! The tokenizer metadata of a file, checked: lengths agree, ids exist, kinds are known. Does not tokenize;
//! `Tokenizer::new` compiles it.
use gguf::{GgufError, Metadata};

use super::pretokenizer::{self, Bos};
use super::texts::Texts;
use super::{TokenizerError, shown};
use crate::limits::{MERGES_MAX, SUPPRESSED_MAX, TOKEN_BYTES_MAX, VOCABULARY_LENGTH_MAX};

/// The tokenizer model: `tokenizer.ggml.model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// `llama`: SentencePiece; pairs are merged by the score of the result, non-tokens become bytes.
    Spm,
    /// `gpt2`, `gemma4`: BPE; a pre-tokenizer splits words, pairs are merged in the order of a list.
    Bpe,
}

/// The type of a token: `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text.
    Normal,
    /// Represents text that cannot be encoded.
    Unknown,
    /// A marker for the model, never text: matched and rendered only on demand.
    Control,
    /// Text that is always one token, matched before anything else.
    UserDefined,
    /// Text that did not occur in training.
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

/// The tokenizer metadata of a file. Texts are as in the file: SPM and Gemma 4 with `▁` for a space, other BPE in GPT-2's
/// byte alphabet.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// The tokenizer model.
    pub model: Model,
    /// Name of the pre-tokenizer (BPE). A file without `tokenizer.ggml.pre` has `default`: as in llama.cpp, it uses
    /// llama.cpp's rules for that name, which may differ from those used in training.
    pub pre: String,
    /// `[vocabulary]`
    pub tokens: Texts,
    /// SPM: `[vocabulary]`, higher scores are merged first, none is NaN. BPE: empty.
    pub scores: Vec<f32>,
    /// `[vocabulary]`
    pub kinds: Vec<Kind>,
    /// BPE: `A B`, the highest priority first. SPM: empty.
    pub merges: Texts,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn.
    pub eot: Option<u32>,
    /// Ends a message.
    pub eom: Option<u32>,
    /// Fill-in-the-middle: padding, the beginning of another repository, and of another file. They end a completion.
    pub fim_ends: [Option<u32>; 3],
    /// Represents text that cannot be encoded.
    pub unknown: Option<u32>,
    /// Whether the model expects `bos` before a text; implies that `bos` is set.
    pub add_bos: bool,
    /// Whether the model was trained with `eos` after a text. `encode` never adds it, because a prompt is to be
    /// continued.
    pub add_eos: bool,
    /// SPM: whether to prepend a space to a text that begins without one.
    pub add_space_prefix: bool,
    /// Whether special tokens take the white space behind them, see [`Tokenizer::new`](super::Tokenizer::new).
    pub strips_after_special: bool,
    /// Tokens that the model must not generate.
    pub suppressed: Vec<u32>,
}

impl Vocabulary {
    /// Reads and checks the keys `tokenizer.ggml.*`.
    ///
    /// # Errors
    /// Any defect by name: a key that is missing or has another type, lists whose lengths differ, an id beyond the
    /// vocabulary, an unknown model, pre-tokenizer or token type.
    pub fn from_metadata(metadata: Metadata<'_>) -> Result<Self, TokenizerError> {
        let keys = Keys(metadata);
        let pre = metadata.text("tokenizer.ggml.pre")?.unwrap_or("default");
        let (model, pre) = match keys.required("model", metadata.text("tokenizer.ggml.model"))? {
            "llama" => (Model::Spm, pre),
            "gpt2" => (Model::Bpe, pre),
            "gemma4" => (Model::Bpe, "gemma4"),
            other => {
                return Err(TokenizerError::Model { name: shown(other.as_bytes()) });
            }
        };
        let tokens = keys.tokens()?;
        let (scores, merges) = match model {
            Model::Spm => (keys.scores(tokens.len())?, Texts::default()),
            Model::Bpe => (Vec::new(), keys.merges()?),
        };
        let rule = match model {
            Model::Spm => &Bos::Yes,
            Model::Bpe => &pretokenizer::find(pre)?.bos,
        };
        let kinds = keys.kinds(model, tokens.len())?;
        // SentencePiece always numbers these tokens like this; old files do not store it.
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
            // These are optional: one beyond the vocabulary is no reason to refuse the file.
            fim_ends: [
                id("tokenizer.ggml.fim_pad_token_id").ok().flatten(),
                id("tokenizer.ggml.fim_rep_token_id").ok().flatten(),
                id("tokenizer.ggml.fim_sep_token_id").ok().flatten(),
            ],
            unknown: id("tokenizer.ggml.unknown_token_id")?.or(usual(0)),
            add_bos: match rule {
                Bos::No => add_bos.unwrap_or(false),
                Bos::Yes => add_bos.unwrap_or(bos.is_some()),
                Bos::Always => bos.is_some(),
            },
            add_eos: metadata.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
            add_space_prefix: metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(model == Model::Spm),
            // Only the name distinguishes the files of these models (llama.cpp, `llama_vocab::impl::load`).
            strips_after_special: metadata.text("general.name").ok().flatten().is_some_and(|name| {
                let name = name.to_ascii_lowercase();
                name.contains("phi-3") || name.contains("phi3")
            }),
            suppressed: keys.suppressed(tokens.len())?,
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
        numbers
            .iter()
            .enumerate()
            .map(|(id, &number)| Kind::from_number(number).ok_or(TokenizerError::Kind { id, number }))
            .collect()
    }

    /// As llama.cpp, skips ids beyond the vocabulary.
    fn suppressed(&self, vocabulary: usize) -> Result<Vec<u32>, TokenizerError> {
        let ids = self.0.integers("tokenizer.ggml.suppress_tokens")?.unwrap_or_default();
        if ids.len() > SUPPRESSED_MAX {
            let length = ids.len();
            return Err(TokenizerError::TooMany { key: "suppress_tokens", length, most: SUPPRESSED_MAX });
        }
        let ids = ids.into_iter().filter_map(|id| u32::try_from(id).ok());
        Ok(ids.filter(|&id| (id as usize) < vocabulary).collect())
    }

    fn id(&self, key: &'static str, vocabulary: usize) -> Result<Option<u32>, TokenizerError> {
        match self.0.unsigned(key)? {
            Some(id) if id >= vocabulary as u64 => Err(TokenizerError::Id { key, id, vocabulary }),
            // Cannot truncate: a vocabulary has at most VOCABULARY_LENGTH_MAX tokens.
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
