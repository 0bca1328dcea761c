//! A character with its Unicode classes, as needed by the rules of the pre-tokenizers. The general category comes from
//! `unicode-properties`: std's `is_alphabetic` counts marks and numbers as letters.

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// A character and its class.
#[derive(Clone, Copy)]
pub(super) struct Character {
    pub(super) value: char,
    category: GeneralCategory,
}

impl Character {
    pub(super) fn new(value: char) -> Self {
        Self { value, category: value.general_category() }
    }

    pub(super) fn is_one_of(&self, characters: &str) -> bool {
        characters.contains(self.value)
    }

    /// `[\r\n]`
    pub(super) fn is_newline(&self) -> bool {
        matches!(self.value, '\r' | '\n')
    }

    /// `\s`
    pub(super) fn is_space(&self) -> bool {
        self.value.is_whitespace()
    }

    /// `\p{L}`
    pub(super) fn is_letter(&self) -> bool {
        use GeneralCategory as G;
        matches!(
            self.category,
            G::UppercaseLetter | G::LowercaseLetter | G::TitlecaseLetter | G::ModifierLetter | G::OtherLetter
        )
    }

    /// `\p{M}`
    pub(super) fn is_mark(&self) -> bool {
        use GeneralCategory as G;
        matches!(self.category, G::NonspacingMark | G::SpacingMark | G::EnclosingMark)
    }

    /// `\p{N}`
    pub(super) fn is_number(&self) -> bool {
        use GeneralCategory as G;
        matches!(self.category, G::DecimalNumber | G::LetterNumber | G::OtherNumber)
    }

    /// `\p{P}`
    pub(super) fn is_punctuation(&self) -> bool {
        use GeneralCategory as G;
        matches!(
            self.category,
            G::ConnectorPunctuation
                | G::DashPunctuation
                | G::OpenPunctuation
                | G::ClosePunctuation
                | G::InitialPunctuation
                | G::FinalPunctuation
                | G::OtherPunctuation
        )
    }

    /// `\p{S}`
    pub(super) fn is_symbol(&self) -> bool {
        use GeneralCategory as G;
        matches!(self.category, G::MathSymbol | G::CurrencySymbol | G::ModifierSymbol | G::OtherSymbol)
    }

    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`: allowed in the upper-case beginning of a word.
    pub(super) fn is_upper(&self) -> bool {
        self.is_mark() || self.is_letter() && self.category != GeneralCategory::LowercaseLetter
    }

    /// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`: allowed in the lower-case rest of a word.
    pub(super) fn is_lower(&self) -> bool {
        use GeneralCategory as G;
        self.is_mark() || self.is_letter() && !matches!(self.category, G::UppercaseLetter | G::TitlecaseLetter)
    }

    /// The ideographs and syllables of deepseek-llm: `[一-龥ࠀ-一가-퟿]`.
    pub(super) fn is_deepseek_ideograph(&self) -> bool {
        matches!(self.value, '\u{800}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7ff}')
    }

    /// The letters of deepseek-llm: cased letters as its authors listed them.
    pub(super) fn is_deepseek_letter(&self) -> bool {
        let code = self.value as u32;
        let after = DEEPSEEK_LETTERS.partition_point(|&(first, _)| first <= code);
        after > 0 && code <= DEEPSEEK_LETTERS[after - 1].1
    }
}

/// First and last of each range, sorted.
#[rustfmt::skip]
const DEEPSEEK_LETTERS: &[(u32, u32)] = &[
    (0x41, 0x5a), (0x61, 0x7a), (0xb5, 0xb5), (0xc0, 0xd6), (0xd8, 0xf6), (0xf8, 0x1ba), (0x1bc, 0x1bf),
    (0x1c4, 0x293), (0x295, 0x2af), (0x370, 0x373), (0x376, 0x377), (0x37b, 0x37d), (0x37f, 0x37f), (0x386, 0x386),
    (0x388, 0x38a), (0x38c, 0x38c), (0x38e, 0x3a1), (0x3a3, 0x3f5), (0x3f7, 0x481), (0x48a, 0x52f), (0x531, 0x556),
    (0x10a0, 0x10c5), (0x13a0, 0x13f5), (0x13f8, 0x13fd), (0x1c90, 0x1cba), (0x1cbd, 0x1cbf), (0x1d00, 0x1d2b),
    (0x1d6b, 0x1d77), (0x1d79, 0x1d9a), (0x1e00, 0x1f15), (0x1f18, 0x1f1d), (0x1f20, 0x1f45), (0x1f48, 0x1f4d),
    (0x1f50, 0x1f57), (0x1f59, 0x1f59), (0x1f5b, 0x1f5b), (0x1f5d, 0x1f5d), (0x1f5f, 0x1f7d), (0x1f80, 0x1fb4),
    (0x1fb6, 0x1fbc), (0x1fbe, 0x1fbe), (0x1fc2, 0x1fc4), (0x1fc6, 0x1fcc), (0x1fd0, 0x1fd3), (0x1fd6, 0x1fdb),
    (0x1fe0, 0x1fec), (0x1ff2, 0x1ff4), (0x1ff6, 0x1ffc), (0x2102, 0x2102), (0x2107, 0x2107), (0x210a, 0x2113),
    (0x2115, 0x2115), (0x2119, 0x211d), (0x2124, 0x2124), (0x2126, 0x2126), (0x2128, 0x2128), (0x212a, 0x212d),
    (0x212f, 0x2134), (0x2139, 0x2139), (0x213c, 0x213f), (0x2145, 0x2149), (0x214e, 0x214e), (0x2183, 0x2184),
    (0x2c00, 0x2c7b), (0x2c7e, 0x2ce4), (0x2ceb, 0x2cee), (0x2cf2, 0x2cf3), (0xa640, 0xa66d), (0xa680, 0xa69b),
    (0xa722, 0xa76f), (0xa771, 0xa787), (0xa78b, 0xa78e), (0xab70, 0xabbf), (0xfb00, 0xfb06), (0xfb13, 0xfb17),
    (0xff21, 0xff3a), (0xff41, 0xff5a), (0x10400, 0x1044f), (0x104b0, 0x104d3), (0x104d8, 0x104fb),
    (0x10c80, 0x10cb2), (0x10cc0, 0x10cf2), (0x118a0, 0x118df), (0x1e900, 0x1e943),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepseek_table_is_sorted_and_has_letters_only() {
        assert!(DEEPSEEK_LETTERS.is_sorted_by(|a, b| a.0 <= a.1 && a.1 < b.0));
        for (first, last) in DEEPSEEK_LETTERS {
            for character in (*first..=*last).filter_map(char::from_u32).map(Character::new) {
                assert!(character.is_deepseek_letter() && character.is_letter(), "{:?}", character.value);
            }
        }
        for other in ['@', '[', '\u{aa}', '\u{1d400}', '中', '1', '\u{1e944}'] {
            assert!(!Character::new(other).is_deepseek_letter(), "{other:?}");
        }
    }
}
