//! Byte-level BPE (`tokenizer.ggml.model = gpt2`): the pre-tokenizer splits the text into words, and the bytes of a
//! word are merged by the list of merges. Files encode bytes as characters (GPT-2's alphabet); this module uses bytes.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::merge::Merger;
use super::pretokenizer::{self, PreTokenizer};
use super::texts::{Index, Texts};
use super::vocabulary::{Kind, Vocabulary};
use super::{TokenizerError, index_tokens, shown};

/// The compiled tables.
pub(super) struct Bpe {
    pre: &'static PreTokenizer,
    index: Index,
    /// (left, right) to (index in the list, resulting token).
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Token of each byte.
    bytes: [Option<u32>; 256],
    /// Used for a byte that has no token.
    unknown: Option<u32>,
}

impl Bpe {
    /// The tables, and the tokens, with the text of normal tokens decoded to bytes.
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<(Self, Texts), TokenizerError> {
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
        let mut merges = HashMap::new();
        for (rank, merge) in vocabulary.merges.iter().enumerate() {
            let (left, right) =
                halves(merge).ok_or_else(|| TokenizerError::Merge { index: rank, text: shown(merge) })?;
            // Skip merges of or to non-text tokens: user-defined tokens were matched before the merges.
            let (Some(left), Some(right)) = (alphabet.bytes(left), alphabet.bytes(right)) else {
                continue;
            };
            let find = |text: &[u8]| index.find(&tokens, text);
            let ids = (find(&left), find(&right), find(&[left, right].concat()));
            if let (Some(left), Some(right), Some(both)) = ids {
                // Of equal pairs the first wins.
                merges.entry((left, right)).or_insert((rank as u32, both));
            }
        }
        let bpe = Self {
            pre: pretokenizer::find(&vocabulary.pre)?,
            merges,
            bytes: std::array::from_fn(|byte| index.find(&tokens, &[byte as u8])),
            unknown: vocabulary.unknown,
            index,
        };
        Ok((bpe, tokens))
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, tokens: &Texts, text: &str, ids: &mut Vec<u32>) {
        let mut merger = Merger::new();
        self.pre.split(text, |word| {
            if self.pre.whole_words_first
                && let Some(id) = self.index.find(tokens, word.as_bytes())
            {
                ids.push(id);
                return;
            }
            for byte in word.bytes() {
                merger.push(1, self.bytes[usize::from(byte)].or(self.unknown));
            }
            merger.run(
                |left, right| {
                    let (rank, both) = *self.merges.get(&(left.id?, right.id?))?;
                    Some((Reverse(rank), both))
                },
                |symbol| ids.extend(symbol.id),
            );
        });
    }
}

/// The halves of a merge `A B`.
fn halves(merge: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut halves = merge.split(|&byte| byte == b' ');
    match (halves.next(), halves.next(), halves.next()) {
        (Some(left), Some(right), None) if !left.is_empty() && !right.is_empty() => Some((left, right)),
        _ => None,
    }
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
}
