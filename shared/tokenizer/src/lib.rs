//! Tokenizers from GGUF metadata: SPM and BPE, special tokens, and streaming detokenization. Pure: tables
//! in, ids or text out. Nothing fails once a file is accepted, except the chat templates of `template`.
pub mod answer;
mod bpe;
mod character;
mod error;
mod limits;
mod merge;
mod one_line;
mod overlap;
mod pretokenizer;
mod rule;
mod special;
mod spelling;
mod spm;
mod stream;
pub mod template;
#[cfg(test)]
mod tests;
mod texts;

mod vocabulary;

use bpe::Bpe;
use gguf::Metadata;
use pretokenizer::Spelling;
use special::{Part, Specials};
use spm::Spm;
use texts::Index;

pub use error::TokenizerError;
pub use limits::{MERGES_MAX, SUPPRESSED_MAX, TOKEN_BYTES_MAX, VOCABULARY_LENGTH_MAX};
pub use overlap::overlap;
pub use stream::Detokenizer;
pub use texts::Texts;
pub use vocabulary::{Kind, Model, Vocabulary};

/// Special tokens that end a generation even if no key of the file declares them (llama.cpp, `llama_vocab::impl::load`).
const END_TEXTS: &[&str] = &[
    "</s>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<eos>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<|flush|>",
    "<|calls|>",
    "<turn|>",
    "<|tool_response>",
    "_<EOT>",
    "[e~[",
    // Fill-in-the-middle: padding, and the beginning of another repository or file.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Tokens that end no generation in a vocabulary that has all of some others: there they end a part of an answer.
const NO_END_BESIDE: &[(&str, &[&str])] = &[
    ("<|end|>", &["<|return|>", "<|call|>"]),
    ("<|end|>", &["<|calls|>", "<|flush|>"]),
    ("</s>", &["<|tool_response>"]),
];

/// Phi-3's special tokens that do not take the white space behind them (llama.cpp, `llama_vocab::impl::load`).
const NO_STRIP_TEXTS: &[&str] = &["<unk>", "<s>", "<|endoftext|>"];

/// Longest part of a text from a file that a message shows, in characters.
const SHOWN_MAX: usize = 60;

/// A text from a file, made safe for messages.
fn shown(text: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(text).chars().take(SHOWN_MAX).collect();
    text.escape_debug().to_string()
}

/// The index of the tokens that are text: those for which `is_text` is true.
fn index_tokens(tokens: &Texts, is_text: impl Fn(usize) -> bool) -> Result<Index, TokenizerError> {
    // Converters leave unused ids empty; there may be many.
    let texts = || tokens.iter().enumerate().filter(|&(id, text)| !text.is_empty() && is_text(id));
    let mut index = Index::with_room(texts().count());
    for (id, text) in texts() {
        let second = id as u32;
        index.insert(tokens, second).map_err(|first| TokenizerError::Duplicate { first, second, text: shown(text) })?;
    }
    Ok(index)
}

enum Algorithm {
    Spm(Spm),
    Bpe(Bpe),
}

/// The tokenizer of a model. Shared between threads; encoding is deterministic.
pub struct Tokenizer {
    algorithm: Algorithm,
    /// SPM: as in the file. BPE: decoded bytes of normal tokens, others and Gemma 4's as in the file. `[vocabulary]`
    tokens: Texts,
    kinds: Vec<Kind>,
    /// Always matched.
    user_defined: Specials,
    /// User-defined and control tokens, matched if special tokens are parsed.
    special: Specials,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    /// Whether normal tokens have `▁` for a space.
    escapes_spaces: bool,
    /// End tokens, sorted.
    ends: Vec<u32>,
    suppressed: Vec<u32>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("tokens", &self.vocabulary_length()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Creates the tokenizer that the metadata of a file describes.
    ///
    /// # Errors
    /// Any defect of the metadata, see `Vocabulary::from_metadata` and `Tokenizer::new`.
    pub fn from_metadata(metadata: Metadata<'_>) -> Result<Self, TokenizerError> {
        Self::new(Vocabulary::from_metadata(metadata)?)
    }

    /// Compiles a vocabulary. If `strips_after_special` is set, special tokens but `<unk>`, `<s>` and `<|endoftext|>`
    /// take the white space behind them.
    ///
    /// # Errors
    /// An unsupported pre-tokenizer, two text tokens with the same text, an invalid merge, or a byte token without a
    /// byte.
    ///
    /// # Panics
    /// If the lists of `vocabulary` differ in length; those of `Vocabulary::from_metadata` never do.
    pub fn new(vocabulary: Vocabulary) -> Result<Self, TokenizerError> {
        let length = vocabulary.tokens.len();
        assert_eq!(vocabulary.kinds.len(), length, "a kind for every token");
        let (algorithm, tokens) = match vocabulary.model {
            Model::Spm => {
                assert_eq!(vocabulary.scores.len(), length, "a score for every token");
                let spm = Spm::new(&vocabulary)?;
                (Algorithm::Spm(spm), vocabulary.tokens)
            }
            Model::Bpe => {
                let (bpe, tokens) = Bpe::new(&vocabulary)?;
                (Algorithm::Bpe(bpe), tokens)
            }
        };
        let escapes_spaces = match &algorithm {
            Algorithm::Spm(_) => true,
            Algorithm::Bpe(bpe) => bpe.spelling() == Spelling::Plain,
        };
        let kinds = vocabulary.kinds;
        let of_kinds = |wanted: &'static [Kind]| (0..length as u32).filter(|&id| wanted.contains(&kinds[id as usize]));
        let named = [vocabulary.eos, vocabulary.eot, vocabulary.eom].into_iter().chain(vocabulary.fim_ends);
        let text = |id: u32| tokens.get(id as usize).unwrap_or_default();
        let by_text = of_kinds(&[Kind::Control, Kind::UserDefined])
            .filter(|&id| END_TEXTS.iter().any(|end| end.as_bytes() == text(id)));
        let mut ends: Vec<u32> = named.flatten().chain(by_text).collect();
        for (end, others) in NO_END_BESIDE {
            if others.iter().all(|other| ends.iter().any(|id| text(*id) == other.as_bytes())) {
                ends.retain(|id| text(*id) != end.as_bytes());
            }
        }
        ends.sort_unstable();
        ends.dedup();
        const SPECIAL: &[Kind] = &[Kind::UserDefined, Kind::Control, Kind::Unknown];
        let stripping: Vec<u32> = of_kinds(SPECIAL)
            .filter(|&id| vocabulary.strips_after_special && NO_STRIP_TEXTS.iter().all(|t| t.as_bytes() != text(id)))
            .collect();
        Ok(Self {
            user_defined: Specials::new(&tokens, of_kinds(&[Kind::UserDefined])).strip_after(stripping.clone()),
            special: Specials::new(&tokens, of_kinds(SPECIAL)).strip_after(stripping),
            escapes_spaces,
            suppressed: vocabulary.suppressed,
            bos: vocabulary.bos,
            eos: vocabulary.eos,
            add_bos: vocabulary.add_bos,
            add_eos: vocabulary.add_eos,
            add_space_prefix: vocabulary.add_space_prefix,
            ends,
            algorithm,
            tokens,
            kinds,
        })
    }

    /// The ids of a text. With `bos`, a BOS comes first if the model expects one. With `parse_special`, the texts of
    /// control tokens become these tokens: for templates, never for user input. O(n log n).
    pub fn encode(&self, text: &str, bos: bool, parse_special: bool) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if bos && self.add_bos {
            ids.extend(self.bos);
        }
        let specials = if parse_special { &self.special } else { &self.user_defined };
        for part in specials.split(&self.tokens, text) {
            match (part, &self.algorithm) {
                (Part::Token(id), _) => ids.push(id),
                (Part::Text(text), Algorithm::Spm(spm)) => {
                    spm.encode(&self.tokens, text, &mut ids);
                }
                (Part::Text(text), Algorithm::Bpe(bpe)) => bpe.encode(&self.tokens, text, &mut ids),
            }
        }
        ids
    }

    /// The text of ids from its beginning: as `stream`, without the space that SPM puts before a text.
    pub fn decode(&self, ids: &[u32], special: bool) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            self.append_piece(id, special, &mut bytes);
        }
        let is_spm = matches!(self.algorithm, Algorithm::Spm(_));
        let begins_with_text = ids
            .iter()
            .map(|&id| self.kinds.get(id as usize))
            .find(|kind| special || !matches!(kind, Some(Kind::Control | Kind::Unknown)))
            .is_some_and(|kind| matches!(kind, Some(Kind::Normal | Kind::Unused)));
        let text = match bytes.strip_prefix(b" ") {
            Some(rest) if is_spm && self.add_space_prefix && begins_with_text => rest,
            _ => &bytes,
        };
        String::from_utf8_lossy(text).into_owned()
    }

    /// The bytes that a token renders to, possibly part of a character. Control and unknown tokens render to nothing
    /// unless `special` is set, ids beyond the vocabulary always do.
    pub fn piece(&self, id: u32, special: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_piece(id, special, &mut bytes);
        bytes
    }

    /// As [`Self::piece`], appended to a buffer: does not allocate if the buffer has room.
    pub fn append_piece(&self, id: u32, special: bool, bytes: &mut Vec<u8>) {
        let (Some(text), Some(kind)) = (self.tokens.get(id as usize), self.kinds.get(id as usize)) else { return };
        match kind {
            Kind::Control | Kind::Unknown if !special => {}
            Kind::Byte => match spelling::byte_of(text) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(text),
            },
            Kind::Normal | Kind::Unused if self.escapes_spaces => spelling::unescape(text, bytes),
            _ => bytes.extend_from_slice(text),
        }
    }

    /// A detokenizer for tokens that continue a prompt.
    pub fn stream(&self) -> Detokenizer {
        Detokenizer::default()
    }

    /// Number of tokens.
    pub fn vocabulary_length(&self) -> usize {
        self.tokens.len()
    }

    /// The token that begins a text, if defined.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text, if defined.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The token that follows a text whose embedding is computed, if the model expects one.
    pub fn text_end(&self) -> Option<u32> {
        self.eos.filter(|_| self.add_eos)
    }

    /// Whether generation stops at this token: EOS, EOT, EOM, and control tokens whose text is known to end a turn.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// The control token with this text, if there is one.
    pub fn control_token(&self, text: &str) -> Option<u32> {
        let found = self.special.split(&self.tokens, text);
        let [Part::Token(id)] = found[..] else { return None };
        (self.kinds.get(id as usize) == Some(&Kind::Control)).then_some(id)
    }

    /// The tokens that the model must not generate, at most [`SUPPRESSED_MAX`].
    pub fn suppressed(&self) -> &[u32] {
        &self.suppressed
    }
}
