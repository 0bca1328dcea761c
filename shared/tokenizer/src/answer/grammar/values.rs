//! Values of arguments that are written as they are, without quotation marks: which texts a schema allows.
use serde_json::Value;

use super::lark::{Lark, Text, TextBody, literal};

/// Longest repetition of letters in a grammar.
const LETTERS_MAX: u64 = 10_000;

/// Which texts a schema allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TextForm {
    Any,
    /// These.
    Some(Vec<String>),
    Body(TextBody),
}

impl TextForm {
    /// That of a schema whose values are texts.
    pub(super) fn of(schema: &Value, lark: &mut Lark<'_>) -> Self {
        if let Some(texts) = constants(schema) {
            let texts = texts.iter().filter_map(|text| text.as_str().map(str::to_owned));
            return Self::Some(texts.collect());
        }
        let length = |keyword: &str| schema.get(keyword).and_then(Value::as_u64);
        let (least, most) = (length("minLength"), length("maxLength"));
        let pattern = schema.get("pattern").and_then(Value::as_str);
        if least.is_none() && most.is_none() && pattern.is_none() {
            return Self::Any;
        }
        let least = least.unwrap_or_default().min(LETTERS_MAX);
        let most = most.filter(|most| *most <= LETTERS_MAX).map(|most| most.max(least).max(1).to_string());
        let mut body = format!("/.{{{},{}}}/s", least.max(1), most.unwrap_or_default());
        if let Some(pattern) = pattern {
            body.push_str(&format!(" & ({})", searched(pattern)));
        }
        Self::Body(TextBody { terminal: lark.terminal(&body), may_be_empty: least == 0 && pattern.is_none() })
    }

    /// A text of this form up to a mark, without others; `around` is before and behind one that is constrained.
    pub(super) fn until(&self, text: Text<'_>, lark: &mut Lark<'_>) -> String {
        match self {
            Self::Any => lark.text(text),
            Self::Body(body) => lark.text(Text { body: Some(body), ..text }),
            Self::Some(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                let around = if text.around.is_empty() { String::new() } else { literal(text.around) };
                let end = lark.marked(text.end);
                lark.rule(&format!("{around} ({}) {around} {end}", texts.join(" | ")))
            }
        }
    }
}

/// The values that a schema lists.
pub(super) fn constants(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// A terminal for the texts in which a pattern is found.
fn searched(pattern: &str) -> String {
    let (begin, rest) = pattern.strip_prefix('^').map_or(("ANY? ", pattern), |rest| ("", rest));
    let (end, rest) = match rest.strip_suffix('$') {
        Some(inner) if !inner.ends_with('\\') => ("", inner),
        _ => (" ANY?", rest),
    };
    let mut escaped = String::new();
    let mut is_escape = false;
    for letter in rest.chars() {
        if letter == '/' && !is_escape {
            escaped.push('\\');
        }
        is_escape = letter == '\\' && !is_escape;
        escaped.push(letter);
    }
    let body = if escaped.is_empty() { "\"\"".to_owned() } else { format!("/({escaped})/") };
    format!("{begin}{body}{end}")
}
