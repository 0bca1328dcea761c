//! Tokens that are matched in a text before anything else: user-defined tokens always, control tokens on demand. The
//! leftmost match wins, of several the longest.

use super::texts::Texts;

/// A set of tokens to match.
pub(super) struct Specials {
    /// Sorted by text.
    ids: Vec<u32>,
    /// Those that take the white space behind them. Sorted.
    stripping: Vec<u32>,
    /// Whether some token begins with this byte.
    begins: [bool; 256],
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Text(&'a str),
    Token(u32),
}

impl Specials {
    /// The tokens `ids` of `texts`. Skips empty texts, which match everywhere, texts that are not UTF-8, which match
    /// nowhere, and duplicates.
    pub(super) fn new(texts: &Texts, ids: impl Iterator<Item = u32>) -> Self {
        let text = |id: u32| texts.get(id as usize).unwrap_or_default();
        let mut ids: Vec<u32> =
            ids.filter(|&id| !text(id).is_empty() && std::str::from_utf8(text(id)).is_ok()).collect();
        ids.sort_by_key(|&id| (text(id), id));
        ids.dedup_by_key(|id| text(*id));
        let mut begins = [false; 256];
        for &id in &ids {
            begins[usize::from(text(id)[0])] = true;
        }
        Self { ids, stripping: Vec::new(), begins }
    }

    /// With `stripping`, which is sorted, as the tokens that take the white space behind them.
    pub(super) fn strip_after(self, stripping: Vec<u32>) -> Self {
        Self { stripping, ..self }
    }

    /// Splits `text` into special tokens and the text between them; no text part is empty.
    pub(super) fn split<'a>(&self, texts: &Texts, text: &'a str) -> Vec<Part<'a>> {
        let bytes = text.as_bytes();
        let mut parts = Vec::new();
        let (mut from, mut at) = (0, 0);
        while at < bytes.len() {
            let found = self.begins[usize::from(bytes[at])].then(|| self.longest(texts, &bytes[at..])).flatten();
            let Some((id, length)) = found else {
                at += 1;
                continue;
            };
            // Valid UTF-8 found within UTF-8 begins and ends at character boundaries.
            if from < at {
                parts.push(Part::Text(&text[from..at]));
            }
            parts.push(Part::Token(id));
            at += length;
            if self.stripping.binary_search(&id).is_ok() {
                // C's `isspace`.
                at += bytes[at..].iter().take_while(|byte| matches!(byte, b'\t'..=b'\r' | b' ')).count();
            }
            from = at;
        }
        if from < bytes.len() {
            parts.push(Part::Text(&text[from..]));
        }
        parts
    }

    /// The longest token that is a prefix of `bytes`, and its length: narrows the sorted list byte by byte.
    fn longest(&self, texts: &Texts, bytes: &[u8]) -> Option<(u32, usize)> {
        let text = |id: u32| texts.get(id as usize).unwrap_or_default();
        let mut left = self.ids.as_slice();
        let mut best = None;
        for (depth, byte) in bytes.iter().enumerate() {
            // All of `left` agree with `bytes` up to `depth` and are longer.
            let start = left.partition_point(|&id| text(id)[depth] < *byte);
            let end = left.partition_point(|&id| text(id)[depth] <= *byte);
            left = &left[start..end];
            let Some((&first, longer)) = left.split_first() else {
                break;
            };
            if text(first).len() == depth + 1 {
                best = Some((first, depth + 1));
                left = longer;
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(tokens: &[&str], text: &str, expected: &[Part]) {
        let texts: Texts = tokens.iter().collect();
        let specials = Specials::new(&texts, 0..tokens.len() as u32);
        assert_eq!(specials.split(&texts, text), expected);
    }

    #[test]
    fn leftmost_then_longest_match_wins() {
        use Part::{Text, Token};
        let tokens = ["<|a|>", "<|a|>b", "<", "", "é", "<|a|>bcd"];
        check(&tokens, "", &[]);
        check(&tokens, "<|a|>", &[Token(0)]);
        check(&tokens, "x<|a|>bc<|a", &[Text("x"), Token(1), Text("c"), Token(2), Text("|a")]);
        check(&tokens, "<<|a|>bcdé", &[Token(2), Token(5), Token(4)]);
        check(&tokens, "è🦙", &[Text("è🦙")]);
    }

    #[test]
    fn stripping_tokens_take_the_white_space_behind_them() {
        use Part::{Text, Token};
        let texts: Texts = ["<a>", "<b>"].iter().collect();
        let specials = Specials::new(&texts, 0..2).strip_after(vec![1]);
        assert_eq!(specials.split(&texts, " <a> <b> \n<b>\u{b}"), [Text(" "), Token(0), Text(" "), Token(1), Token(1)]);
        assert_eq!(specials.split(&texts, "<b>\t é "), [Token(1), Text("é ")]);
        assert_eq!(specials.split(&texts, "<b>\u{a0}"), [Token(1), Text("\u{a0}")]);
    }

    #[test]
    fn of_equal_tokens_the_first_counts() {
        check(&["x", "<s>", "<s>"], "a<s>", &[Part::Text("a"), Part::Token(1)]);
    }
}
