//! How byte-level BPE splits a text into words: the table of pre-tokenizers by their GGUF name (`tokenizer.ggml.pre`).
//! A new pre-tokenizer is one entry here; the rules, each with its equivalent regular expression, are in `rule.rs`.

use super::TokenizerError;
use super::character::Character;
use super::rule::{Letters, Rule, Words};

/// A way to split a text into words.
#[derive(Debug)]
pub(super) struct PreTokenizer {
    /// Applied one after another, each to the pieces of the previous rule.
    rules: &'static [Rule],
    whole: Whole,
    pub(super) bos: Bos,
    pub(super) spelling: Spelling,
}

/// Words that are used whole if they are tokens, without applying merges.
#[derive(Debug)]
enum Whole {
    None,
    Newlines,
    All,
}

/// Whether a text begins with BOS.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Bos {
    /// Only if the file specifies it.
    No,
    /// Unless the file denies it.
    Yes,
    /// Even if the file denies it: early files of the model do, by mistake.
    Always,
}

/// How tokens spell text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// In GPT-2's alphabet: a character for each byte.
    Alphabet,
    /// As SentencePiece: as it is, but with `▁` for a space, and bytes as `<0xNN>`.
    Plain,
}

const fn plain(rules: &'static [Rule]) -> PreTokenizer {
    PreTokenizer { rules, whole: Whole::None, bos: Bos::No, spelling: Spelling::Alphabet }
}

/// The rules of cl100k; the entries override the differences between models.
const CL100K: Words = Words { contractions: true, letters: Letters::Plain, digits_max: 3, after_punctuation: "\r\n" };
/// The rules of o200k.
const O200K: Words = Words {
    contractions: false,
    letters: Letters::Cased { contractions: true },
    digits_max: 3,
    after_punctuation: "\r\n/",
};

static DEFAULT: PreTokenizer = plain(&[
    Rule::Run(|c| c.is_punctuation() || c.is_one_of("$+<=>^~|")),
    Rule::Gpt2,
    Rule::Run(Character::is_number),
    Rule::ThreeDigits,
]);
static GPT_2: PreTokenizer = plain(&[Rule::Gpt2]);
static STARCODER: PreTokenizer = plain(&[Rule::Numbers { most: 1 }, Rule::Gpt2]);
static FALCON: PreTokenizer =
    plain(&[Rule::Run(|c| c.is_punctuation() || c.is_one_of("$+<=>^~|`")), Rule::Gpt2, Rule::ThreeDigits]);
static LLAMA_3: PreTokenizer = PreTokenizer { whole: Whole::All, bos: Bos::Yes, ..plain(&[Rule::Words(CL100K)]) };
static DBRX: PreTokenizer = plain(&[Rule::Words(CL100K)]);
static GLM_4: PreTokenizer = PreTokenizer { whole: Whole::All, ..plain(&[Rule::Words(CL100K)]) };
static QWEN_2: PreTokenizer = plain(&[Rule::Words(Words { digits_max: 1, ..CL100K })]);
static QWEN_35: PreTokenizer = plain(&[Rule::Words(Words { digits_max: 1, letters: Letters::WithMarks, ..CL100K })]);
static SEED_CODER: PreTokenizer = plain(&[Rule::Words(Words { digits_max: 1, after_punctuation: "", ..CL100K })]);
static MINICPM_5: PreTokenizer = PreTokenizer {
    whole: Whole::All,
    ..plain(&[Rule::Numbers { most: 3 }, Rule::Words(Words { digits_max: usize::MAX, ..CL100K })])
};
static TEKKEN: PreTokenizer = PreTokenizer {
    whole: Whole::All,
    bos: Bos::Yes,
    ..plain(&[Rule::Words(Words { letters: Letters::Cased { contractions: false }, digits_max: 1, ..O200K })])
};
static GPT_4O: PreTokenizer = plain(&[Rule::Words(O200K)]);
static DEEPSEEK_LLM: PreTokenizer = plain(&[
    Rule::Each(Character::is_newline),
    Rule::RunAfterSpace(Character::is_deepseek_letter),
    Rule::RunAfterSpace(
        |c| matches!(c.value, '!'..='/' | ':'..='~' | '！'..='／' | '：'..='～' | '‘'..='‟' | '\u{3000}'..='。'),
    ),
    Rule::TrailingSpace,
    Rule::Run(Character::is_deepseek_ideograph),
    Rule::Run(Character::is_number),
]);
static DEEPSEEK_CODER: PreTokenizer = plain(&[
    Rule::Each(Character::is_newline),
    Rule::RunAfterSpace(Character::is_letter),
    Rule::RunAfterSpace(Character::is_punctuation),
    Rule::Run(Character::is_deepseek_ideograph),
    Rule::Each(Character::is_number),
]);
static DEEPSEEK_V3: PreTokenizer = plain(&[
    Rule::Numbers { most: 3 },
    Rule::Run(|c| matches!(c.value, '\u{4e00}'..='\u{9fa5}' | '\u{3040}'..='\u{30ff}')),
    Rule::DeepSeekWords,
]);
static GEMMA_4: PreTokenizer = PreTokenizer {
    whole: Whole::Newlines,
    bos: Bos::Always,
    spelling: Spelling::Plain,
    ..plain(&[Rule::Run(|c| c.value == '\n')])
};

/// All supported names and their pre-tokenizers.
static TABLE: &[(&str, &PreTokenizer)] = &[
    ("default", &DEFAULT),
    ("gpt-2", &GPT_2),
    ("phi-2", &GPT_2),
    ("mpt", &GPT_2),
    ("olmo", &GPT_2),
    ("jais", &GPT_2),
    ("trillion", &GPT_2),
    ("exaone4", &GPT_2),
    ("gigachat", &GPT_2),
    ("mellum", &GPT_2),
    ("a.x-4.0", &GPT_2),
    ("granite-docling", &GPT_2),
    ("starcoder", &STARCODER),
    ("refact", &STARCODER),
    ("command-r", &STARCODER),
    ("smollm", &STARCODER),
    ("codeshell", &STARCODER),
    ("exaone", &STARCODER),
    ("minerva-7b", &STARCODER),
    ("mellum2", &STARCODER),
    ("falcon", &FALCON),
    ("llama-bpe", &LLAMA_3),
    ("llama3", &LLAMA_3),
    ("llama-v3", &LLAMA_3),
    ("falcon3", &LLAMA_3),
    ("falcon-h1", &LLAMA_3),
    ("pixtral", &LLAMA_3),
    ("midm-2.0", &LLAMA_3),
    ("lfm2", &LLAMA_3),
    ("dbrx", &DBRX),
    ("smaug-bpe", &DBRX),
    ("chatglm-bpe", &DBRX),
    ("glm4", &GLM_4),
    ("glm5", &GLM_4),
    ("qwen2", &QWEN_2),
    ("deepseek-r1-qwen", &QWEN_2),
    ("kormo", &QWEN_2),
    ("megrez", &QWEN_2),
    ("stablelm2", &QWEN_2),
    ("hunyuan", &QWEN_2),
    ("solar-open", &QWEN_2),
    ("grok-2", &QWEN_2),
    ("bailingmoe", &QWEN_2),
    ("bailingmoe2", &QWEN_2),
    ("llada-moe", &QWEN_2),
    ("qwen35", &QWEN_35),
    ("seed-coder", &SEED_CODER),
    ("minicpm5", &MINICPM_5),
    ("tekken", &TEKKEN),
    ("gpt-4o", &GPT_4O),
    ("llama4", &GPT_4O),
    ("kanana2", &GPT_4O),
    ("minimax-m2", &GPT_4O),
    ("deepseek-llm", &DEEPSEEK_LLM),
    ("deepseek-coder", &DEEPSEEK_CODER),
    ("deepseek-v3", &DEEPSEEK_V3),
    ("hunyuan-dense", &DEEPSEEK_V3),
    ("joyai-llm", &DEEPSEEK_V3),
    ("gemma4", &GEMMA_4),
];

/// The pre-tokenizer of a name. An unsupported name is rejected with the supported ones, because other rules would
/// silently give wrong tokens.
pub(super) fn find(name: &str) -> Result<&'static PreTokenizer, TokenizerError> {
    let entry = TABLE.iter().find(|(known, _)| *known == name);
    entry.map(|(_, rules)| *rules).ok_or_else(|| TokenizerError::PreTokenizer {
        name: super::shown(name.as_bytes()),
        known: TABLE.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", "),
    })
}

impl PreTokenizer {
    /// Whether this word is used whole if it is a token, without applying merges.
    pub(super) fn takes_whole(&self, word: &str) -> bool {
        match self.whole {
            Whole::None => false,
            // A word has either newlines only or none.
            Whole::Newlines => word.starts_with('\n'),
            Whole::All => true,
        }
    }

    /// Passes the words of `text` to `word` in order; their concatenation is the text. Linear in the text.
    pub(super) fn split<'a>(&self, text: &'a str, mut word: impl FnMut(&'a str)) {
        let characters: Vec<Character> = text.chars().map(Character::new).collect();
        let mut ends = vec![characters.len()];
        for rule in self.rules {
            let mut next = Vec::with_capacity(ends.len());
            let mut start = 0;
            for end in ends {
                rule.cut(&characters[start..end], |length| next.push(start + length));
                start = end;
            }
            ends = next;
        }
        let (mut start, mut rest) = (0, text);
        for end in ends {
            let length = characters[start..end].iter().map(|c| c.value.len_utf8()).sum();
            let (piece, after) = rest.split_at(length);
            if !piece.is_empty() {
                word(piece);
            }
            (start, rest) = (end, after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let mut words = Vec::new();
        find(name).expect("the name is known").split(text, |word| words.push(word));
        words
    }

    /// The file has one line per text: name, text and words, tab-separated with JSON-like escapes; generated by
    /// `splits.py` in the same folder with the regular expressions of the models.
    #[test]
    fn words_are_those_of_the_regular_expressions() {
        let vectors = include_str!("../../../tests/fixtures/vocab/splits.tsv");
        let mut checked = std::collections::HashMap::new();
        for line in vectors.lines().filter(|line| !line.starts_with('#')) {
            let (name, expected) = line.split_once('\t').expect("name, words");
            let expected: Vec<String> = expected
                .split('\t')
                .map(|text| {
                    text.split('\\').enumerate().fold(String::new(), |text, (index, part)| {
                        if index == 0 {
                            return text + part;
                        }
                        let (code, rest) = part.split_once(';').expect("\\HEX;");
                        let code = u32::from_str_radix(code, 16).expect("\\HEX;");
                        text + &char::from_u32(code).expect("a character").to_string() + rest
                    })
                })
                .collect();
            let text = expected.concat();
            assert_eq!(words(name, &text), expected, "{name}: {text:?}");
            *checked.entry(name).or_insert(0) += 1;
        }
        let mut rules: Vec<_> = TABLE.iter().map(|(_, rules)| std::ptr::from_ref(*rules)).collect();
        rules.dedup();
        assert_eq!(checked.len(), rules.len(), "{checked:?}");
        assert!(checked.values().all(|&count| count >= 20), "{checked:?}");
    }

    #[test]
    fn an_empty_text_has_no_words() {
        for (name, _) in TABLE {
            assert_eq!(words(name, ""), [""; 0], "{name}");
        }
    }

    /// Reveals anything slower than linear time: a square would be 10^10 here.
    #[test]
    fn long_runs_of_anything_come_back_whole() {
        for (name, _) in TABLE {
            for unit in [" ", "a", "A", "中", "\u{301}", "1", "!", "\n", " \n", "中A", "\u{301}A", "'", " !", "\u{7}"]
            {
                let text = unit.repeat(100_000) + "x";
                assert_eq!(words(name, &text).concat(), text, "{name}: {unit:?}");
            }
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let message = find("qwen9").expect_err("unknown").to_string();
        assert!(message.contains("qwen9") && message.contains("qwen35, "), "{message}");
        assert!(find("").is_err());
    }
}
