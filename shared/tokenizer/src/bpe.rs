//! BPE (`tokenizer.ggml.model = gpt2`, `gemma4`): the pre-tokenizer splits the text into words, and the units of a word
//! are merged by the list of merges. Units are bytes, which files encode as characters (GPT-2's alphabet), or, in Gemma
//! 4's vocabulary, characters.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::merge::Merger;
use super::pretokenizer::{self, PreTokenizer, Spelling};
use super::spelling::{self, ByteTokens};
use super::texts::{Index, Texts};
use super::vocabulary::{Kind, Vocabulary};
use super::{TokenizerError, index_tokens, shown};

/// (left, right) to (index in the list, resulting token).
type Merges = HashMap<(u32, u32), (u32, u32)>;

/// The compiled tables.
pub(super) struct Bpe {
    pre: &'static PreTokenizer,
    index: Index,
    merges: Merges,
    bytes: ByteTokens,
}

impl Bpe {
    /// The tables, and the tokens, with the text of normal tokens decoded to bytes.
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<(Self, Texts), TokenizerError> {
        let pre = pretokenizer::find(&vocabulary.pre)?;
        let (tokens, index) = match pre.spelling {
            Spelling::Alphabet => decode(vocabulary)?,
            Spelling::Plain => {
                // As in SPM: the text `<bos>` must not become the token.
                let index = index_tokens(&vocabulary.tokens, |id| {
                    matches!(vocabulary.kinds[id], Kind::Normal | Kind::Unused | Kind::UserDefined)
                })?;
                (vocabulary.tokens.clone(), index)
            }
        };
        let bytes = match pre.spelling {
            Spelling::Alphabet => {
                let tokens = std::array::from_fn(|byte| index.find(&tokens, &[byte as u8]));
                ByteTokens::new(tokens, vocabulary.unknown)
            }
            Spelling::Plain => ByteTokens::of_kind(vocabulary)?,
        };
        let merges = compile_merges(vocabulary, pre.spelling, &index, &tokens)?;
        Ok((Self { pre, index, merges, bytes }, tokens))
    }

    /// How tokens spell text.
    pub(super) fn spelling(&self) -> Spelling {
        self.pre.spelling
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, tokens: &Texts, text: &str, ids: &mut Vec<u32>) {
        let mut escaped = String::new();
        let text = match self.pre.spelling {
            Spelling::Alphabet => text,
            Spelling::Plain => {
                spelling::escape(text, &mut escaped);
                &escaped
            }
        };
        let mut merger = Merger::new();
        self.pre.split(text, |word| {
            let bytes = word.as_bytes();
            if self.pre.takes_whole(word)
                && let Some(id) = self.index.find(tokens, bytes)
            {
                ids.push(id);
                return;
            }
            match self.pre.spelling {
                Spelling::Alphabet => bytes.iter().for_each(|&byte| merger.push(1, self.bytes.get(byte))),
                Spelling::Plain => word.char_indices().for_each(|(at, character)| {
                    let length = character.len_utf8();
                    merger.push(length, self.index.find(tokens, &bytes[at..at + length]));
                }),
            }
            merger.run(
                |left, right| {
                    let (rank, both) = *self.merges.get(&(left.id?, right.id?))?;
                    Some((Reverse(rank), both))
                },
                |symbol| match symbol.id {
                    Some(id) => ids.push(id),
                    None => self.bytes.spell(&bytes[symbol.start..symbol.start + symbol.length], ids),
                },
            );
        });
    }
}

/// The tokens with the text of normal ones decoded from GPT-2's alphabet, and their index.
fn decode(vocabulary: &Vocabulary) -> Result<(Texts, Index), TokenizerError> {
    let alphabet = Alphabet::new();
    let mut tokens = Texts::with_room(vocabulary.tokens.len());
    // Not every text is in the alphabet: such a token is rendered unchanged and never matched.
    let mut is_found = Vec::with_capacity(vocabulary.tokens.len());
    for (id, text) in vocabulary.tokens.iter().enumerate() {
        let decoded =
            matches!(vocabulary.kinds[id], Kind::Normal | Kind::Unused).then(|| alphabet.bytes(text)).flatten();
        is_found.push(decoded.is_some());
        tokens.push(decoded.as_deref().unwrap_or(text));
    }
    let index = index_tokens(&tokens, |id| is_found[id])?;
    Ok((tokens, index))
}

/// The merges of a file by the tokens that they merge.
fn compile_merges(
    vocabulary: &Vocabulary,
    spelling: Spelling,
    index: &Index,
    tokens: &Texts,
) -> Result<Merges, TokenizerError> {
    let alphabet = Alphabet::new();
    let mut merges = HashMap::new();
    for (rank, merge) in vocabulary.merges.iter().enumerate() {
        let halves = match spelling {
            Spelling::Alphabet => halves(merge),
            Spelling::Plain => plain_halves(merge),
        };
        let (left, right) = halves.ok_or_else(|| TokenizerError::Merge { index: rank, text: shown(merge) })?;
        let decode = |half: &[u8]| match spelling {
            Spelling::Alphabet => alphabet.bytes(half),
            Spelling::Plain => Some(half.to_vec()),
        };
        // Skip merges of or to non-text tokens: user-defined tokens were matched before the merges.
        let (Some(left), Some(right)) = (decode(left), decode(right)) else {
            continue;
        };
        let find = |text: &[u8]| index.find(tokens, text);
        let ids = (find(&left), find(&right), find(&[left, right].concat()));
        if let (Some(left), Some(right), Some(both)) = ids {
            // Of equal pairs the first wins.
            merges.entry((left, right)).or_insert((rank as u32, both));
        }
    }
    Ok(merges)
}

/// The halves of a merge `A B`.
fn halves(merge: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut halves = merge.split(|&byte| byte == b' ');
    match (halves.next(), halves.next(), halves.next()) {
        (Some(left), Some(right), None) if !left.is_empty() && !right.is_empty() => Some((left, right)),
        _ => None,
    }
}

/// The halves of a merge `A B` of plain text, where `A` may begin with a space.
fn plain_halves(merge: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = 1 + merge.get(1..)?.iter().position(|&byte| byte == b' ')?;
    let (left, right) = (&merge[..at], &merge[at + 1..]);
    (!right.is_empty()).then_some((left, right))
}

/// GPT-2's alphabet: a printable character for each byte. Printable Latin-1 characters represent themselves, the other
/// bytes are U+0100 and up.
struct Alphabet(HashMap<char, u8>);

impl Alphabet {
    fn new() -> Self {
        let mut next = 0x100;
        Self(
            (0..=255)
                .map(|byte| match byte {
                    b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
                    _ => {
                        next += 1;
                        char::from_u32(next - 1).expect("U+0100..U+0143 are characters")
                    }
                })
                .zip(0..=255)
                .collect(),
        )
    }

    /// The bytes that a text represents, if all its characters are in the alphabet.
    fn bytes(&self, text: &[u8]) -> Option<Vec<u8>> {
        let text = std::str::from_utf8(text).ok()?;
        text.chars().map(|c| self.0.get(&c).copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_a_character_for_every_byte() {
        let alphabet = Alphabet::new();
        assert_eq!(alphabet.0.len(), 256);
        assert_eq!(alphabet.bytes("ĠaĊÃ©".as_bytes()), Some(" a\né".as_bytes().to_vec()));
        assert_eq!(alphabet.bytes("a b".as_bytes()), None);
        assert_eq!(alphabet.bytes(b"\xff"), None);
    }

    #[test]
    fn a_merge_is_two_texts_with_one_space() {
        assert_eq!(halves(b"a b"), Some((&b"a"[..], &b"b"[..])));
        for bad in ["", " ", "a", "a ", " b", "a b c", "a  b", " a b"] {
            assert_eq!(halves(bad.as_bytes()), None, "{bad:?}");
        }
    }
    #[test]
    fn a_plain_merge_is_cut_at_its_first_space_but_one() {
        assert_eq!(plain_halves("▁ a".as_bytes()), Some(("▁".as_bytes(), &b"a"[..])));
        assert_eq!(plain_halves(b"  b"), Some((&b" "[..], &b"b"[..])));
        assert_eq!(plain_halves(b"a b c"), Some((&b"a"[..], &b"b c"[..])));
        for bad in ["", " ", "a", "a ", " b", "ab"] {
            assert_eq!(plain_halves(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
