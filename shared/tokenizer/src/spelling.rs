//! How SentencePiece writes text in tokens, which SPM and Gemma 4's BPE share: U+2581 for a space, and `<0xNN>` for a
//! byte of a character that is no token.

use super::TokenizerError;
use super::vocabulary::{Kind, Vocabulary};

/// Represents a space in the texts of tokens (U+2581).
pub(super) const SPACE: &str = "▁";

/// Appends `text` with `▁` for every space.
pub(super) fn escape(text: &str, escaped: &mut String) {
    escaped.reserve(text.len() + text.len() / 2);
    for part in text.split_inclusive(' ') {
        match part.strip_suffix(' ') {
            Some(word) => escaped.extend([word, SPACE]),
            None => escaped.push_str(part),
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

/// The tokens of text that is no token.
pub(super) struct ByteTokens {
    tokens: [Option<u32>; 256],
    unknown: Option<u32>,
}

impl ByteTokens {
    pub(super) fn new(tokens: [Option<u32>; 256], unknown: Option<u32>) -> Self {
        Self { tokens, unknown }
    }

    /// The tokens of kind `Byte`.
    pub(super) fn of_kind(vocabulary: &Vocabulary) -> Result<Self, TokenizerError> {
        let mut tokens = [None; 256];
        for (id, text) in vocabulary.tokens.iter().enumerate() {
            if vocabulary.kinds[id] == Kind::Byte {
                let byte = byte_of(text).ok_or_else(|| TokenizerError::byte(id, text))?;
                tokens[usize::from(byte)].get_or_insert(id as u32);
            }
        }
        Ok(Self::new(tokens, vocabulary.unknown))
    }

    /// The token of a byte.
    pub(super) fn get(&self, byte: u8) -> Option<u32> {
        self.tokens[usize::from(byte)]
    }

    /// Appends the tokens of a character's bytes, or one unknown token if a byte has none.
    pub(super) fn spell(&self, character: &[u8], ids: &mut Vec<u32>) {
        let before = ids.len();
        for &byte in character {
            let Some(id) = self.get(byte) else {
                ids.truncate(before);
                ids.extend(self.unknown);
                return;
            };
            ids.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_hexadecimal_digits_are_a_byte() {
        assert_eq!(byte_of(b"<0x0A>"), Some(10));
        assert_eq!(byte_of(b"<0xff>"), Some(255));
        for bad in ["", "<0x>", "<0x1>", "<0x123>", "<0x+1>", "<0xG1>", "0x11", "<0x11", "<0x\u{e9}>"] {
            assert_eq!(byte_of(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn spaces_come_back_from_their_escapes() {
        for (text, escaped) in [("", ""), (" ", "▁"), ("a  b ", "a▁▁b▁"), ("\u{a0}\t", "\u{a0}\t")] {
            let (mut found, mut bytes) = (String::new(), Vec::new());
            escape(text, &mut found);
            unescape(escaped.as_bytes(), &mut bytes);
            assert_eq!((found.as_str(), bytes.as_slice()), (escaped, text.as_bytes()));
        }
    }
}
