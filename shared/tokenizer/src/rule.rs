//! The rules of pre-tokenizers, each equivalent to the regular expression in its comment. A rule splits a piece at its
//! matches; the text between two matches stays one piece. Linear in the piece.

use super::character::Character;

/// One way to split a piece of text.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// The rules of cl100k and later.
    Words(Words),
    /// ``[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``
    DeepSeekWords,
    /// `\p{N}{1,most}`
    Numbers { most: usize },
    /// `[0-9][0-9][0-9]`
    ThreeDigits,
    /// `C` for a class of characters
    Each(fn(&Character) -> bool),
    /// `C+`
    Run(fn(&Character) -> bool),
    /// `\s?C+`
    RunAfterSpace(fn(&Character) -> bool),
    /// `\s+$`
    TrailingSpace,
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|LETTERS|\p{N}{1,digits_max}| ?[^\s\p{L}\p{N}]+[AFTER]*|\s*[\r\n]+|\s+(?!\S)|\s+`
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    /// Whether the first alternative is included.
    pub(super) contractions: bool,
    pub(super) letters: Letters,
    pub(super) digits_max: usize,
    /// Characters that belong to the punctuation before them.
    pub(super) after_punctuation: &'static str,
}

/// The letters that form a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Letters {
    /// `[^\r\n\p{L}\p{N}]?\p{L}+`
    Plain,
    /// `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+`, and marks are not punctuation
    WithMarks,
    /// `[^\r\n\p{L}\p{N}]?U*L+S?|[^\r\n\p{L}\p{N}]?U+L*S?` where U is `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, L is
    /// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]` and S, if there are contractions, `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
    Cased { contractions: bool },
}

impl Rule {
    /// Splits `piece`: passes the end of each part to `end` in order; the last one is the end of the piece.
    pub(super) fn cut(&self, piece: &[Character], mut end: impl FnMut(usize)) {
        let trailing = piece.len() - run_back(piece, Character::is_space);
        let mut at = 0;
        let mut unmatched = false;
        while at < piece.len() {
            let length = match self {
                Self::TrailingSpace if at == trailing => piece.len() - at,
                Self::TrailingSpace => 0,
                rule => rule.length(&piece[at..]),
            };
            if length == 0 {
                unmatched = true;
                at += 1;
                continue;
            }
            if unmatched {
                end(at);
                unmatched = false;
            }
            at += length;
            end(at);
        }
        if unmatched {
            end(at);
        }
    }

    /// Length of the match at the beginning of `text`, 0 for none.
    fn length(&self, text: &[Character]) -> usize {
        match self {
            Self::Gpt2 => gpt2(text),
            Self::Words(words) => words.length(text),
            Self::DeepSeekWords => deepseek_words(text),
            Self::Numbers { most } => run_to(text, *most, Character::is_number),
            Self::ThreeDigits => {
                let digits = text.iter().take(3).filter(|c| c.value.is_ascii_digit());
                if digits.count() == 3 { 3 } else { 0 }
            }
            Self::Each(class) => usize::from(text.first().is_some_and(class)),
            Self::Run(class) => run(text, class),
            Self::RunAfterSpace(class) => prefixed(text, Character::is_space, class),
            Self::TrailingSpace => unreachable!("handled by `cut`: it depends on the whole piece"),
        }
    }
}

impl Words {
    fn length(&self, text: &[Character]) -> usize {
        let may_precede = |c: &Character| !c.is_newline() && !c.is_letter() && !c.is_number();
        if self.contractions {
            let length = contraction(text, u8::to_ascii_lowercase);
            if length > 0 {
                return length;
            }
        }
        let letters = match self.letters {
            Letters::Plain => prefixed(text, may_precede, Character::is_letter),
            Letters::WithMarks => prefixed(text, may_precede, |c| c.is_letter() || c.is_mark()),
            Letters::Cased { contractions } => cased(text, may_precede, contractions),
        };
        if letters > 0 {
            return letters;
        }
        let number = run_to(text, self.digits_max, Character::is_number);
        if number > 0 {
            return number;
        }
        let marks_are_letters = self.letters == Letters::WithMarks;
        let other = prefixed(text, is_blank, |c| is_other(c) && !(marks_are_letters && c.is_mark()));
        if other > 0 {
            return other + run(&text[other..], |c| c.is_one_of(self.after_punctuation));
        }
        space(text)
    }
}

fn gpt2(text: &[Character]) -> usize {
    let alternatives = [
        contraction(text, |&byte| byte),
        prefixed(text, is_blank, Character::is_letter),
        prefixed(text, is_blank, Character::is_number),
        prefixed(text, is_blank, is_other),
        space_before_word(text, run(text, Character::is_space)),
    ];
    alternatives.into_iter().find(|&length| length > 0).unwrap_or(0)
}

fn deepseek_words(text: &[Character]) -> usize {
    let [first, rest @ ..] = text else { return 0 };
    if first.value.is_ascii_punctuation() {
        let word = run(rest, |c| c.value.is_ascii_alphabetic());
        if word > 0 {
            return 1 + word;
        }
    }
    let is_mark_of_speech = |c: &Character| c.is_punctuation() || c.is_symbol();
    let word = prefixed(
        text,
        |c| !c.is_newline() && !c.is_letter() && !is_mark_of_speech(c),
        |c| c.is_letter() || c.is_mark(),
    );
    if word > 0 {
        return word;
    }
    let other = prefixed(text, is_blank, is_mark_of_speech);
    if other > 0 {
        return other + run(&text[other..], Character::is_newline);
    }
    space(text)
}

fn is_blank(c: &Character) -> bool {
    c.value == ' '
}

/// `[^\s\p{L}\p{N}]`
fn is_other(c: &Character) -> bool {
    !c.is_space() && !c.is_letter() && !c.is_number()
}

/// `C*`
fn run(text: &[Character], class: impl Fn(&Character) -> bool) -> usize {
    text.iter().position(|c| !class(c)).unwrap_or(text.len())
}

/// `C{0,most}`
fn run_to(text: &[Character], most: usize, class: impl Fn(&Character) -> bool) -> usize {
    run(&text[..text.len().min(most)], class)
}

/// `C*$`
fn run_back(text: &[Character], class: impl Fn(&Character) -> bool) -> usize {
    text.iter().rev().position(|c| !class(c)).unwrap_or(text.len())
}

/// `P?C+`; a character of both classes may match alone.
fn prefixed(text: &[Character], prefix: impl Fn(&Character) -> bool, class: impl Fn(&Character) -> bool) -> usize {
    if text.first().is_some_and(prefix) {
        let after = run(&text[1..], &class);
        if after > 0 {
            return 1 + after;
        }
    }
    run(text, class)
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, with the letters mapped by `fold`.
fn contraction(text: &[Character], fold: impl Fn(&u8) -> u8) -> usize {
    if text.first().is_none_or(|c| c.value != '\'') {
        return 0;
    }
    let letter = |at: usize| {
        let byte = u8::try_from(text.get(at)?.value).ok()?;
        Some(fold(&byte))
    };
    match (letter(1), letter(2)) {
        (Some(b's' | b't' | b'm' | b'd'), _) => 2,
        (Some(b'r' | b'v'), Some(b'e')) | (Some(b'l'), Some(b'l')) => 3,
        _ => 0,
    }
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`
fn space(text: &[Character]) -> usize {
    let length = run(text, Character::is_space);
    match text[..length].iter().rposition(Character::is_newline) {
        Some(last) => last + 1,
        None => space_before_word(text, length),
    }
}

/// `\s+(?!\S)|\s+` for a run of `length`: the last space belongs to the following word, unless it is the only one.
fn space_before_word(text: &[Character], length: usize) -> usize {
    if length > 1 && length < text.len() { length - 1 } else { length }
}

/// See `Letters::Cased`.
fn cased(text: &[Character], may_precede: impl Fn(&Character) -> bool, contractions: bool) -> usize {
    let has_prefix = text.first().is_some_and(may_precede);
    let starts: &[usize] = if has_prefix { &[1, 0] } else { &[0] };
    let capitalised = starts.iter().map(|&start| (start, upper_then_lower(&text[start..])));
    let shouted = starts.iter().map(|&start| {
        let upper = run(&text[start..], Character::is_upper);
        (start, upper)
    });
    let Some((start, letters)) = capitalised.chain(shouted).find(|&(_, letters)| letters > 0) else {
        return 0;
    };
    let end = start + letters;
    let suffix = if contractions { contraction(&text[end..], u8::to_ascii_lowercase) } else { 0 };
    end + suffix
}

/// `U*L+`. Letters without case are in both classes, so the upper-case part may have to backtrack. `U+L*` is only tried
/// if this fails, and then no `L` follows the upper-case part.
fn upper_then_lower(text: &[Character]) -> usize {
    let upper = run(text, Character::is_upper);
    let lower = run(&text[upper..], Character::is_lower);
    if lower > 0 {
        return upper + lower;
    }
    let last = text[..upper].iter().rposition(Character::is_lower);
    last.map_or(0, |last| last + 1)
}
