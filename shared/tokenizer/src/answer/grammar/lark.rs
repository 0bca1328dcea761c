//! Writes a grammar: rules with numbered names, literals, marks, and text up to a mark.
use common::{
    chat::GRAMMAR_BYTES_MAX,
    tool_use::{Mark, MarkPart},
};
use serde_json::{Value, json};

/// White space between the parts of a JSON value, as elsewhere in structured output.
const WHITE_SPACE: &str = r"(\n[ \t]{0,16}| {1,2})";
/// Texts of Python between either quotation marks, and numbers that every parser can hold.
const LITERALS: &str = r#"PYTHON_TEXT: /"([^"\\\x00-\x1f]|\\["\\nrt])*"/
PYTHON_TEXT_1: /'([^'\\\x00-\x1f]|\\['\\nrt])*'/
INTEGER: /-?(0|[1-9][0-9]{0,17})/
NUMBER: /-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?/
"#;

/// A grammar that is being written. It has the rules `gap` (up to eight blanks), `nl` and `sp` (at most one), and the
/// terminal `ANY`.
pub(super) struct Lark<'a> {
    text: String,
    count: usize,
    /// Marks that may be control tokens.
    marks: &'static [&'static str],
    control: &'a dyn Fn(&str) -> Option<u32>,
    controls: Vec<u32>,
}

/// A text that a mark ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Text<'t> {
    /// The mark behind it.
    pub(super) end: &'t str,
    /// What it must not contain besides.
    pub(super) without: &'t [&'t str],
    /// Another constraint on it.
    pub(super) body: Option<&'t TextBody>,
    /// Before and behind a constrained text.
    pub(super) around: &'t str,
}

/// A constraint on a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextBody {
    /// A terminal that it matches unless it is empty.
    pub(super) terminal: String,
    pub(super) may_be_empty: bool,
}

impl<'a> Lark<'a> {
    pub(super) fn new(marks: &'static [&'static str], control: &'a dyn Fn(&str) -> Option<u32>) -> Self {
        let text =
            "KEY: /[A-Za-z_][A-Za-z0-9_]{0,63}/\nANY: /.+/s\nGAP: /[ \\n]{1,8}/\ngap: GAP?\nnl: \"\\n\"?\nsp: \" \"?\n"
                .to_owned();
        Self { text, count: 0, marks, control, controls: Vec::new() }
    }

    /// Whether the grammar is too large: then nothing more is written.
    pub(super) fn is_full(&self) -> bool {
        self.text.len() > GRAMMAR_BYTES_MAX
    }

    /// A rule that has not been written yet.
    pub(super) fn name(&mut self) -> String {
        self.count += 1;
        format!("r{}", self.count)
    }

    /// Writes a rule under a new name.
    pub(super) fn rule(&mut self, body: &str) -> String {
        let name = self.name();
        self.define(&name, body);
        name
    }

    /// Writes a rule under a name.
    pub(super) fn define(&mut self, name: &str, body: &str) {
        if !self.is_full() {
            self.text.push_str(&format!("{name}: {body}\n"));
        }
    }

    /// Writes a terminal under a new name.
    pub(super) fn terminal(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("T{}", self.count);
        self.define(&name, body);
        name
    }

    /// Writes the terminals of literals.
    pub(super) fn literals(&mut self) {
        self.text.push_str(LITERALS);
    }

    /// Writes the rule with which the grammar begins.
    pub(super) fn start(&mut self, body: &str) {
        self.define("start", body);
    }

    /// The grammar and its control tokens.
    pub(super) fn finish(mut self) -> (String, Vec<u32>) {
        self.controls.sort_unstable();
        self.controls.dedup();
        (self.text, self.controls)
    }

    /// Whether the vocabulary has a control token with this text.
    pub(super) fn is_control(&self, text: &str) -> bool {
        self.marks.contains(&text) && (self.control)(text).is_some()
    }

    /// A text as a mark, in which control tokens stand for themselves.
    pub(super) fn mark(&self, text: &str) -> Mark {
        let (mut mark, mut rest) = (Mark::new(), text);
        while !rest.is_empty() {
            let found = self.marks.iter().filter_map(|mark| Some((rest.find(mark)?, *mark, (self.control)(mark)?)));
            let found = found.min_by_key(|found| (found.0, std::cmp::Reverse(found.1.len())));
            let (at, token) = found.map_or((rest.len(), None), |found| (found.0, Some(found)));
            if at > 0 {
                mark.push(MarkPart::Text(rest[..at].to_owned()));
            }
            rest = &rest[at..];
            if let Some((_, text, id)) = token {
                mark.push(MarkPart::Token(id));
                rest = &rest[text.len()..];
            }
        }
        mark
    }

    /// A mark as part of a rule.
    pub(super) fn term(&mut self, mark: &Mark) -> String {
        let parts: Vec<String> = mark.iter().map(|part| self.part(part)).collect();
        parts.join(" ")
    }

    /// A text with its control tokens as part of a rule.
    pub(super) fn marked(&mut self, text: &str) -> String {
        let mark = self.mark(text);
        self.term(&mark)
    }

    fn part(&mut self, part: &MarkPart) -> String {
        match part {
            MarkPart::Token(id) => {
                self.controls.push(*id);
                format!("<[{id}]>")
            }
            MarkPart::Text(text) => literal(text),
        }
    }

    /// The last part of a mark, behind any text that its first token may have.
    pub(super) fn last_part(&mut self, mark: &Mark) -> String {
        match mark.last() {
            Some(part @ MarkPart::Token(_)) => {
                let token = self.part(part);
                format!("ANY? {token}")
            }
            Some(MarkPart::Text(text)) => {
                let name = self.name();
                self.define(&format!("{name}[lazy]"), &format!("ANY? {}", literal(text)));
                name
            }
            None => String::new(),
        }
    }

    /// A text up to the end of the mark behind it.
    pub(super) fn text(&mut self, text: Text<'_>) -> String {
        let Text { end, without, body, around } = text;
        let is_control = self.is_control(end);
        // The parser sees a control token as text.
        let own = is_control.then_some(end);
        let without: Vec<String> = without.iter().copied().chain(own).map(literal).collect();
        let mut letters = body.map_or("ANY", |body| &body.terminal).to_owned();
        if !without.is_empty() {
            letters = format!("({letters}) & ~(ANY? ({}) ANY?)", without.join(" | "));
        }
        let letters = self.terminal(&letters);
        let optional = if body.is_none_or(|body| body.may_be_empty) { "?" } else { "" };
        let around = if body.is_none() || around.is_empty() { String::new() } else { literal(around) };
        let (body, end) = (format!("{around} {letters}{optional} {around}"), self.marked(end));
        if is_control {
            return format!("{body} {end}");
        }
        let name = self.name();
        self.define(&format!("{name}[lazy]"), &format!("{body} {end}"));
        name
    }

    /// A JSON value of this schema.
    pub(super) fn json(&mut self, schema: &Value) -> String {
        self.rule(&format!("%json {}", spaced(schema.clone())))
    }
}

/// A text as a literal.
pub(super) fn literal(text: &str) -> String {
    // The only character that JSON does not escape and Lark does not take.
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A schema with the usual white space.
fn spaced(mut schema: Value) -> Value {
    if let Value::Object(map) = &mut schema {
        map.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITE_SPACE }));
    }
    schema
}
