//! Arguments written as literals of Python (`a=1, b='x', c=[True, None]`) or in Gemma 4's form (`a:1,b:<|"|>x<|"|>`): becomes
//! JSON while the text arrives.
use serde_json::Number;

use super::{
    marks::{Until, until},
    syntax::{NAME_BYTES_MAX, Step},
    values::{push_letters, push_string},
};

/// The mark around a text in Gemma 4's form.
pub(super) const GEMMA_QUOTE: &str = "<|\"|>";
/// Deepest nesting of values.
const DEPTH_MAX: usize = 64;
/// Longest number or word in bytes.
const WORD_BYTES_MAX: usize = 64;

/// How literals are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Keys before `=`, texts between quotation marks.
    Python,
    /// Bare keys before `:`.
    Gemma,
}

/// Reads the arguments of one call, from the letter behind its opening bracket.
#[derive(Debug)]
pub(super) struct Literals {
    dialect: Dialect,
    /// The open brackets, from the outside.
    open: Vec<Bracket>,
    place: LiteralPlace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bracket {
    /// The arguments of the call.
    Call,
    Object,
    /// A list that ends with this letter.
    List(char),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LiteralPlace {
    /// Behind an opening bracket.
    First,
    /// Behind a comma.
    Next,
    /// Before a key.
    Key,
    /// Behind a key.
    Colon,
    /// Before a value.
    Value,
    /// Behind a value.
    Behind,
    /// In a text that ends with this mark, and is a key or a value.
    Text(&'static str, bool),
}

impl Literals {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self { dialect, open: vec![Bracket::Call], place: LiteralPlace::First }
    }

    /// Makes one decision about the text that was not read yet. The opening brace of the arguments is the caller's.
    pub(super) fn step(&mut self, text: &str, out: &mut String) -> Step {
        if let LiteralPlace::Text(quote, is_key) = self.place {
            return self.text(text, quote, is_key, out);
        }
        let rest = text.trim_start();
        let blank = text.len() - rest.len();
        let Some(letter) = rest.chars().next() else { return if blank > 0 { Step::On(blank) } else { Step::Wait } };
        let behind = blank + letter.len_utf8();
        match self.place {
            LiteralPlace::First | LiteralPlace::Next | LiteralPlace::Behind if letter == self.end() => {
                out.push(if matches!(self.open.pop(), Some(Bracket::List(_))) { ']' } else { '}' });
                self.place = LiteralPlace::Behind;
                if self.open.is_empty() { Step::Whole(behind) } else { Step::On(behind) }
            }
            LiteralPlace::First | LiteralPlace::Next => {
                if self.place == LiteralPlace::Next {
                    out.push(',');
                }
                let is_list = matches!(self.open.last(), Some(Bracket::List(_)));
                self.place = if is_list { LiteralPlace::Value } else { LiteralPlace::Key };
                Step::On(blank)
            }
            LiteralPlace::Key => self.key(rest, out).behind(blank),
            LiteralPlace::Colon if letter == self.colon() => {
                out.push(':');
                self.place = LiteralPlace::Value;
                Step::On(behind)
            }
            LiteralPlace::Behind if letter == ',' => {
                self.place = LiteralPlace::Next;
                Step::On(behind)
            }
            LiteralPlace::Value => self.value(rest, letter, out).behind(blank),
            _ => Step::Broken(blank),
        }
    }

    /// The letter that ends the innermost bracket.
    fn end(&self) -> char {
        match (self.open.last(), self.dialect) {
            (Some(Bracket::List(end)), _) => *end,
            (Some(Bracket::Call), Dialect::Python) => ')',
            _ => '}',
        }
    }

    /// The letter between a key and its value.
    fn colon(&self) -> char {
        if self.dialect == Dialect::Python && self.open.len() == 1 { '=' } else { ':' }
    }

    fn key(&mut self, text: &str, out: &mut String) -> Step {
        match quote(text) {
            Quote::Begins(quote) => {
                out.push('"');
                self.place = LiteralPlace::Text(quote, true);
                return Step::On(quote.len());
            }
            Quote::Perhaps => return Step::Wait,
            Quote::None => {}
        }
        let is_bare = self.dialect == Dialect::Gemma || self.open.len() == 1;
        let end = text.find(|letter: char| letter == self.colon() || ",()[]{}\"'".contains(letter));
        match end {
            Some(end) if is_bare && end <= NAME_BYTES_MAX && text[end..].starts_with(self.colon()) => {
                push_string(text[..end].trim(), out);
                self.place = LiteralPlace::Colon;
                Step::On(end)
            }
            None if is_bare && text.len() <= NAME_BYTES_MAX => Step::Wait,
            _ => Step::Broken(0),
        }
    }

    fn value(&mut self, text: &str, letter: char, out: &mut String) -> Step {
        match quote(text) {
            Quote::Begins(quote) => {
                out.push('"');
                self.place = LiteralPlace::Text(quote, false);
                return Step::On(quote.len());
            }
            Quote::Perhaps => return Step::Wait,
            Quote::None => {}
        }
        let bracket = match letter {
            '[' => Bracket::List(']'),
            '(' if self.dialect == Dialect::Python => Bracket::List(')'),
            '{' => Bracket::Object,
            _ => return self.word(text, out),
        };
        if self.open.len() == DEPTH_MAX {
            return Step::Broken(0);
        }
        self.open.push(bracket);
        out.push(if bracket == Bracket::Object { '{' } else { '[' });
        self.place = LiteralPlace::First;
        Step::On(1)
    }

    /// A number or a constant.
    fn word(&mut self, text: &str, out: &mut String) -> Step {
        let end = text.find(|letter: char| letter.is_whitespace() || ",)]}".contains(letter));
        let Some(end) = end.filter(|end| *end <= WORD_BYTES_MAX) else {
            return if text.len() > WORD_BYTES_MAX { Step::Broken(0) } else { Step::Wait };
        };
        match &text[..end] {
            "True" | "true" => out.push_str("true"),
            "False" | "false" => out.push_str("false"),
            "None" | "null" => out.push_str("null"),
            word => match number(word) {
                Some(number) => out.push_str(&number.to_string()),
                None => return Step::Broken(0),
            },
        }
        self.place = LiteralPlace::Behind;
        Step::On(end)
    }

    /// More of a text.
    fn text(&mut self, text: &str, quote: &'static str, is_key: bool, out: &mut String) -> Step {
        let has_escapes = quote != GEMMA_QUOTE;
        let marks = if has_escapes { &[quote, "\\"][..] } else { &[quote] };
        match until(text, marks) {
            Until::Open(0) => Step::Wait,
            Until::Open(certain) | Until::Mark(certain @ 1.., _) => {
                push_letters(&text[..certain], out);
                Step::On(certain)
            }
            Until::Mark(_, mark) if mark == quote => {
                out.push('"');
                self.place = if is_key { LiteralPlace::Colon } else { LiteralPlace::Behind };
                Step::On(mark.len())
            }
            Until::Mark(..) => escape(text, out),
        }
    }
}

/// Whether a text begins in quotation marks.
enum Quote {
    Begins(&'static str),
    Perhaps,
    None,
}

fn quote(text: &str) -> Quote {
    match ["'", "\"", GEMMA_QUOTE].into_iter().find(|quote| text.starts_with(quote)) {
        Some(quote) => Quote::Begins(quote),
        None if GEMMA_QUOTE.starts_with(text) => Quote::Perhaps,
        None => Quote::None,
    }
}

/// A number of Python as JSON.
fn number(word: &str) -> Option<Number> {
    if let Ok(number) = serde_json::from_str(word) {
        return Some(number);
    }
    let plain = word.strip_prefix('+').unwrap_or(word).replace('_', "");
    if !plain.starts_with(|letter: char| letter.is_ascii_digit() || "-.".contains(letter)) {
        return None;
    }
    serde_json::from_str(&plain).ok().or_else(|| Number::from_f64(plain.parse().ok()?))
}

/// An escape sequence of Python or JSON, from its backslash on.
fn escape(text: &str, out: &mut String) -> Step {
    let Some(letter) = text[1..].chars().next() else { return Step::Wait };
    let digits = match letter {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => 0,
    };
    if digits > 0 {
        let Some(code) = text.get(2..2 + digits) else {
            let is_short = text.len() < 2 + digits;
            return if is_short { Step::Wait } else { Step::Broken(0) };
        };
        if !code.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Step::Broken(0);
        }
        if letter == 'u' {
            // Half of a pair may stand here: JSON writes it in the same way.
            out.push_str(&text[..6]);
            return Step::On(6);
        }
        let Some(letter) = u32::from_str_radix(code, 16).ok().and_then(char::from_u32) else { return Step::Broken(0) };
        push_letters(letter.encode_utf8(&mut [0; 4]), out);
        return Step::On(2 + digits);
    }
    match letter {
        'n' | 't' | 'r' | 'b' | 'f' | '\\' | '"' => out.push_str(&text[..2]),
        '\'' | '/' => out.push(letter),
        '\n' => {}
        // In Python, a backslash without an escape sequence stands for itself.
        other => push_letters(&text[..1 + other.len_utf8()], out),
    }
    Step::On(1 + letter.len_utf8())
}
