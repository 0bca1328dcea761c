//! SentencePiece (`tokenizer.ggml.model = llama`): a text becomes characters, neighbours are merged into the token with
//! the highest score, leftmost first; remaining non-tokens become bytes. A text is not split into words: a merge may
//! span spaces, so the whole text is one heap.

use super::merge::Merger;
use super::texts::{Index, Texts};
use super::vocabulary::{Kind, Vocabulary};
use super::{TokenizerError, index_tokens};

/// Represents a space in the texts of tokens (U+2581).
pub(super) const SPACE: &str = "▁";

/// The compiled tables.
pub(super) struct Spm {
    index: Index,
    /// Priorities of normal tokens, by their text as in the file. `[vocabulary]`
    priorities: Vec<i32>,
    /// Token of each byte, by kind `Byte`.
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    add_space_prefix: bool,
    longest: usize,
}

impl Spm {
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<Self, TokenizerError> {
        // Control, unknown and byte tokens are not text: the text `<s>` must not become the token.
        let index = index_tokens(&vocabulary.tokens, |id| {
            matches!(vocabulary.kinds[id], Kind::Normal | Kind::Unused | Kind::UserDefined)
        })?;
        let mut bytes = [None; 256];
        for (id, text) in vocabulary.tokens.iter().enumerate() {
            if vocabulary.kinds[id] == Kind::Byte {
                let byte = byte_of(text).ok_or_else(|| TokenizerError::byte(id, text))?;
                bytes[usize::from(byte)].get_or_insert(id as u32);
            }
        }
        Ok(Self {
            index,
            priorities: vocabulary.scores.iter().copied().map(in_order).collect(),
            bytes,
            unknown: vocabulary.unknown,
            add_space_prefix: vocabulary.add_space_prefix,
            longest: vocabulary.tokens.iter().map(<[u8]>::len).max().unwrap_or(0),
        })
    }

    /// Appends the tokens of `text`, which begins the whole text or follows a special token: as in llama.cpp, a space
    /// is prepended in both cases.
    pub(super) fn encode(&self, tokens: &Texts, text: &str, ids: &mut Vec<u32>) {
        let mut escaped = String::with_capacity(text.len() + text.len() / 2);
        if self.add_space_prefix {
            escaped.push_str(SPACE);
        }
        for part in text.split_inclusive(' ') {
            match part.strip_suffix(' ') {
                Some(word) => escaped.extend([word, SPACE]),
                None => escaped.push_str(part),
            }
        }
        let bytes = escaped.as_bytes();
        let mut merger = Merger::new();
        for (at, character) in escaped.char_indices() {
            let length = character.len_utf8();
            merger.push(length, self.index.find(tokens, &bytes[at..at + length]));
        }
        merger.run(
            |left, right| {
                let length = left.length + right.length;
                if length > self.longest {
                    return None;
                }
                let id = self.index.find(tokens, &bytes[left.start..left.start + length])?;
                Some((self.priorities[id as usize], id))
            },
            |symbol| match symbol.id {
                Some(id) => ids.push(id),
                None => self.fall_back(&bytes[symbol.start..symbol.start + symbol.length], ids),
            },
        );
    }

    /// A character that is not a token: its bytes, or one unknown token if a byte has none.
    fn fall_back(&self, character: &[u8], ids: &mut Vec<u32>) {
        let before = ids.len();
        for &byte in character {
            match self.bytes[usize::from(byte)] {
                Some(id) => ids.push(id),
                None => {
                    ids.truncate(before);
                    ids.extend(self.unknown);
                    return;
                }
            }
        }
    }
}

/// Appends the text of a token with spaces for `▁`.
pub(super) fn unescape(text: &[u8], bytes: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let (byte, left) = rest.strip_prefix(SPACE.as_bytes()).map_or((first, after), |left| (b' ', left));
        bytes.push(byte);
        rest = left;
    }
}

/// The byte that a text `<0xNN>` represents.
pub(super) fn byte_of(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if digits.len() != 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// An integer with the same order as the score; -0 and 0 are equal. The score is never NaN.
fn in_order(score: f32) -> i32 {
    let bits = (score + 0.0).to_bits() as i32;
    if bits < 0 { bits ^ i32::MAX } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_order_as_scores_do() {
        let scores = [f32::NEG_INFINITY, -1e9, -2.5, -1.0, -1e-40, 0.0, 1e-40, 3.0, f32::INFINITY];
        assert!(scores.is_sorted_by(|a, b| in_order(*a) < in_order(*b)));
        assert_eq!(in_order(-0.0), in_order(0.0));
    }

    #[test]
    fn only_two_hexadecimal_digits_are_a_byte() {
        assert_eq!(byte_of(b"<0x0A>"), Some(10));
        assert_eq!(byte_of(b"<0xff>"), Some(255));
        for bad in ["", "<0x>", "<0x1>", "<0x123>", "<0x+1>", "<0xG1>", "0x11", "<0x11", "<0x\u{e9}>"] {
            assert_eq!(byte_of(bad.as_bytes()), None, "{bad}");
        }
    }
}
