//! SentencePiece (`tokenizer.ggml.model = llama`): a text becomes characters, neighbours are merged into the token with
//! the highest score, leftmost first; remaining non-tokens become bytes. A text is not split into words: a merge may
//! span spaces, so the whole text is one heap.

use super::merge::Merger;
use super::spelling::{self, ByteTokens};
use super::texts::{Index, Texts};
use super::vocabulary::{Kind, Vocabulary};
use super::{TokenizerError, index_tokens};

/// The compiled tables.
pub(super) struct Spm {
    index: Index,
    /// Priorities of normal tokens, by their text as in the file. `[vocabulary]`
    priorities: Vec<i32>,
    bytes: ByteTokens,
    add_space_prefix: bool,
    longest: usize,
}

impl Spm {
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<Self, TokenizerError> {
        // Control, unknown and byte tokens are not text: the text `<s>` must not become the token.
        let index = index_tokens(&vocabulary.tokens, |id| {
            matches!(vocabulary.kinds[id], Kind::Normal | Kind::Unused | Kind::UserDefined)
        })?;
        Ok(Self {
            index,
            priorities: vocabulary.scores.iter().copied().map(in_order).collect(),
            bytes: ByteTokens::of_kind(vocabulary)?,
            add_space_prefix: vocabulary.add_space_prefix,
            longest: vocabulary.tokens.iter().map(<[u8]>::len).max().unwrap_or(0),
        })
    }

    /// Appends the tokens of `text`, which begins the whole text or follows a special token: as in llama.cpp, a space
    /// is prepended in both cases.
    pub(super) fn encode(&self, tokens: &Texts, text: &str, ids: &mut Vec<u32>) {
        let mut escaped = String::new();
        if self.add_space_prefix {
            escaped.push_str(spelling::SPACE);
        }
        spelling::escape(text, &mut escaped);
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
                None => self.bytes.spell(&bytes[symbol.start..symbol.start + symbol.length], ids),
            },
        );
    }
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
}
