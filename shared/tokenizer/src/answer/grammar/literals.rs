//! Values as literals of Python or in Gemma 4's form, by their schemas.
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    lark::{Lark, Text, literal},
    objects::{Member, Property, properties, sequence},
    values::{TextForm, constants},
};
use crate::answer::literal::{Dialect, GEMMA_QUOTE};

/// Deepest nesting of a schema.
const DEPTH_MAX: usize = 32;
/// Number of types that a schema can name.
const KINDS: usize = 7;
/// Keywords of schemas of numbers.
const NUMERIC: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// Keywords of schemas of texts that a JSON string enforces.
const TEXTUAL: [&str; 4] = ["minLength", "maxLength", "pattern", "format"];

/// Writes the rules of one tool's values.
pub(super) struct LiteralRules<'r, 'a> {
    pub(super) lark: &'r mut Lark<'a>,
    dialect: Dialect,
    root: &'r Value,
    /// The rules of definitions.
    definitions: BTreeMap<String, String>,
    any: Option<String>,
}

impl<'r, 'a> LiteralRules<'r, 'a> {
    pub(super) fn new(lark: &'r mut Lark<'a>, dialect: Dialect, root: &'r Value) -> Self {
        Self { lark, dialect, root, definitions: BTreeMap::new(), any: None }
    }

    /// The arguments of the tool between the brackets of its call; `None` if the schema is not supported.
    pub(super) fn arguments(&mut self) -> Option<String> {
        let root = self.root.as_object()?;
        self.members(root, true, DEPTH_MAX)
    }

    fn is_python(&self) -> bool {
        self.dialect == Dialect::Python
    }

    /// The separator of members.
    fn comma(&self) -> &'static str {
        if self.is_python() { "\", \"" } else { "\",\"" }
    }

    /// A value of a schema.
    fn value(&mut self, schema: &Value, depth: usize) -> Option<String> {
        let depth = depth.checked_sub(1).filter(|_| !self.lark.is_full())?;
        let map = match schema {
            Value::Bool(true) => return Some(self.any()),
            Value::Object(map) => map,
            _ => return None,
        };
        if let Some(reference) = map.get("$ref") {
            return self.definition(reference.as_str()?, depth);
        }
        if let Some(values) = constants(schema) {
            let values: Vec<String> = values.iter().map(|value| self.constant(value)).collect::<Option<_>>()?;
            return (!values.is_empty()).then(|| self.lark.rule(&values.join(" | ")));
        }
        if let Some(Value::Array(choices)) = map.get("anyOf").or(map.get("oneOf")) {
            let choices: Vec<String> = choices.iter().map(|choice| self.value(choice, depth)).collect::<Option<_>>()?;
            return (!choices.is_empty()).then(|| self.lark.rule(&choices.join(" | ")));
        }
        if let Some(Value::Array(all)) = map.get("allOf") {
            return if let [one] = &all[..] { self.value(one, depth) } else { None };
        }
        match map.get("type") {
            Some(Value::String(kind)) => self.typed(kind, map, depth),
            // A type that is listed twice would double the rules at each level.
            Some(Value::Array(kinds)) if kinds.len() <= KINDS && is_distinct(kinds) => {
                let kinds: Vec<String> =
                    kinds.iter().map(|kind| self.typed(kind.as_str()?, map, depth)).collect::<Option<_>>()?;
                (!kinds.is_empty()).then(|| self.lark.rule(&kinds.join(" | ")))
            }
            Some(_) => None,
            None if map.contains_key("properties") => self.typed("object", map, depth),
            None if map.contains_key("items") => self.typed("array", map, depth),
            None => Some(self.any()),
        }
    }

    fn typed(&mut self, kind: &str, map: &Map<String, Value>, depth: usize) -> Option<String> {
        Some(match (kind, self.is_python()) {
            ("string", true) => self.python_text(map),
            ("string", false) => self.gemma_text(&Value::Object(map.clone())),
            ("integer" | "number", _) => self.number(kind, map),
            ("boolean", true) => "(\"True\" | \"False\")".into(),
            ("boolean", false) => "(\"true\" | \"false\")".into(),
            ("null", true) => "\"None\"".into(),
            ("null", false) => "\"null\"".into(),
            ("array", _) => self.list(map, depth)?,
            ("object", _) => {
                let members = self.members(map, false, depth)?;
                self.lark.rule(&format!("\"{{\" {members} \"}}\""))
            }
            _ => return None,
        })
    }

    fn python_text(&mut self, map: &Map<String, Value>) -> String {
        let kept = map.iter().filter(|(keyword, _)| TEXTUAL.contains(&keyword.as_str()));
        let mut schema: Map<String, Value> = kept.map(|(keyword, value)| (keyword.clone(), value.clone())).collect();
        if schema.is_empty() {
            return "(PYTHON_TEXT | PYTHON_TEXT_1)".into();
        }
        schema.insert("type".into(), "string".into());
        self.lark.json(&schema.into())
    }

    fn gemma_text(&mut self, schema: &Value) -> String {
        let form = TextForm::of(schema, self.lark);
        let text = form.until(Text { end: GEMMA_QUOTE, ..Text::default() }, self.lark);
        let quote = self.lark.marked(GEMMA_QUOTE);
        self.lark.rule(&format!("{quote} {text}"))
    }

    fn number(&mut self, kind: &str, map: &Map<String, Value>) -> String {
        let kept = map.iter().filter(|(keyword, _)| NUMERIC.contains(&keyword.as_str()));
        let mut schema: Map<String, Value> = kept.map(|(keyword, value)| (keyword.clone(), value.clone())).collect();
        if schema.is_empty() {
            return if kind == "integer" { "INTEGER" } else { "NUMBER" }.into();
        }
        schema.insert("type".into(), kind.into());
        self.lark.json(&schema.into())
    }

    fn list(&mut self, map: &Map<String, Value>, depth: usize) -> Option<String> {
        if map.contains_key("prefixItems") {
            return None;
        }
        let item = match map.get("items") {
            Some(items) => self.value(items, depth)?,
            None => self.any(),
        };
        let count = |keyword: &str| map.get(keyword).and_then(Value::as_u64);
        let (least, most) = (count("minItems").unwrap_or_default(), count("maxItems"));
        let comma = self.comma();
        let most_further = most.map(|most| most.saturating_sub(1));
        let further = match most_further {
            Some(0) => String::new(),
            Some(most) => format!("({comma} {item}){{{},{most}}}", least.saturating_sub(1)),
            None if least > 1 => format!("({comma} {item}){{{},}}", least - 1),
            None => format!("({comma} {item})*"),
        };
        let items = match (least, most) {
            (_, Some(0)) => String::new(),
            (0, _) => format!("({item} {further})?"),
            _ => format!("{item} {further}"),
        };
        Some(self.lark.rule(&format!("\"[\" {items} \"]\"")))
    }

    /// The members of an object, or the arguments of the call.
    fn members(&mut self, map: &Map<String, Value>, is_call: bool, depth: usize) -> Option<String> {
        const UNSUPPORTED: [&str; 5] = ["patternProperties", "allOf", "anyOf", "oneOf", "$ref"];
        if UNSUPPORTED.iter().any(|keyword| map.contains_key(*keyword)) {
            return None;
        }
        let properties = properties(map);
        if properties.is_empty() {
            return self.open_members(map, is_call, depth);
        }
        let mut members = Vec::new();
        for Property { name, schema, is_required } in properties {
            let Some(key) = self.key(&name, is_call) else {
                if is_required {
                    return None;
                }
                continue;
            };
            let value = self.value(&schema, depth)?;
            members.push(Member { term: format!("{key} {value}"), is_required });
        }
        let comma = self.comma();
        Some(sequence(&members, comma, self.lark))
    }

    /// The members of an object whose schema names none.
    fn open_members(&mut self, map: &Map<String, Value>, is_call: bool, depth: usize) -> Option<String> {
        let value = match map.get("additionalProperties") {
            Some(Value::Bool(false)) => return Some("\"\"".into()),
            Some(schema) => self.value(schema, depth)?,
            None => self.any(),
        };
        let key = match (self.is_python(), is_call) {
            (true, true) => "KEY \"=\"",
            (true, false) => "PYTHON_TEXT \": \"",
            (false, _) => "KEY \":\"",
        };
        let comma = self.comma();
        let member = self.lark.rule(&format!("{key} {value}"));
        Some(self.lark.rule(&format!("({member} ({comma} {member})*)?")))
    }

    /// A key and the mark behind it; `None` if the dialect cannot write it.
    fn key(&self, name: &str, is_call: bool) -> Option<String> {
        let is_plain = is_name(name);
        match (self.is_python(), is_call) {
            (true, true) => is_plain.then(|| literal(&format!("{name}="))),
            (true, false) => Some(literal(&format!("{}: ", Value::from(name)))),
            (false, _) => is_plain.then(|| literal(&format!("{name}:"))),
        }
    }

    fn definition(&mut self, reference: &str, depth: usize) -> Option<String> {
        if let Some(rule) = self.definitions.get(reference) {
            return Some(rule.clone());
        }
        let pointer = reference.strip_prefix('#').filter(|pointer| pointer.starts_with('/'))?;
        let schema = self.root.pointer(pointer)?;
        let rule = self.lark.name();
        self.definitions.insert(reference.to_owned(), rule.clone());
        let value = self.value(schema, depth)?;
        self.lark.define(&rule, &value);
        Some(rule)
    }

    /// A constant in the dialect.
    fn constant(&mut self, value: &Value) -> Option<String> {
        match (value, self.is_python()) {
            (Value::String(text), true) => {
                let quoted = Value::from(text.as_str()).to_string();
                let is_plain = quoted.len() == text.len() + 2 && !text.contains('\'');
                let single = is_plain.then(|| format!("'{text}'"));
                let forms: Vec<String> = std::iter::once(quoted).chain(single).map(|form| literal(&form)).collect();
                Some(format!("({})", forms.join(" | ")))
            }
            (Value::String(text), false) => {
                if text.contains(GEMMA_QUOTE) {
                    return None;
                }
                let quote = self.lark.marked(GEMMA_QUOTE);
                Some(format!("{quote} {} {quote}", literal(text)))
            }
            (Value::Bool(true), true) => Some("\"True\"".into()),
            (Value::Bool(false), true) => Some("\"False\"".into()),
            (Value::Null, true) => Some("\"None\"".into()),
            (Value::Bool(_) | Value::Null | Value::Number(_), _) => Some(literal(&value.to_string())),
            (Value::Array(_) | Value::Object(_), _) => None,
        }
    }

    /// Any value.
    fn any(&mut self) -> String {
        if let Some(any) = &self.any {
            return any.clone();
        }
        let (any, comma) = (self.lark.name(), self.comma());
        self.any = Some(any.clone());
        let (text, key, constants) = if self.is_python() {
            ("PYTHON_TEXT | PYTHON_TEXT_1".to_owned(), "PYTHON_TEXT \": \"", "\"True\" | \"False\" | \"None\"")
        } else {
            (self.gemma_text(&Value::Null), "KEY \":\"", "\"true\" | \"false\" | \"null\"")
        };
        let list = self.lark.rule(&format!("\"[\" ({any} ({comma} {any})*)? \"]\""));
        let member = self.lark.rule(&format!("{key} {any}"));
        let object = self.lark.rule(&format!("\"{{\" ({member} ({comma} {member})*)? \"}}\""));
        self.lark.define(&any, &format!("{text} | NUMBER | {constants} | {list} | {object}"));
        any
    }
}

fn is_distinct(values: &[Value]) -> bool {
    values.iter().enumerate().all(|(index, value)| !values[..index].contains(value))
}

/// Whether a name can stand without quotation marks in every syntax.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= crate::answer::syntax::NAME_BYTES_MAX
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-.".contains(letter))
}
