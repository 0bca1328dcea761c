//! The extent of a body's fields before their values are built: where each begins and ends, and how much memory it
//! would take. Unused and oversized fields are never built, and a prompt of token ids is parsed directly into a list of
//! numbers.
use std::{borrow::Cow, cell::Cell, fmt};

use common::chat::{GRAMMAR_BYTES_MAX, PROMPT_BYTES_MAX};
use protocol::message::Prompt;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use super::error::ApiError;

/// Most fields in a body.
const FIELDS_MAX: usize = 256;
/// Most values within one field: each takes some 100 bytes.
const NODES_MAX: usize = 1 << 17;
/// Longest field except those; a schema may be written with escapes.
const FIELD_BYTES_MAX: usize = 2 * GRAMMAR_BYTES_MAX;

/// Fields of all APIs that may be as long as a prompt.
const PROMPTS: [&str; 6] = ["input", "instructions", "messages", "prompt", "system", "tools"];

/// The fields of a body, unparsed.
#[derive(Debug)]
pub(super) struct Outline<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// Limits on prompts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Context length of the served model in tokens, if known.
    pub(super) context: Option<usize>,
}

/// Lower bounds of the size of a value: bytes of compact JSON, and number of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ValueSize {
    bytes: usize,
    nodes: usize,
}

impl<'a> Outline<'a> {
    /// Locates the fields.
    ///
    /// # Errors
    /// The body is not a JSON object, or has too many fields.
    pub(super) fn read(body: &'a [u8]) -> Result<Self, ApiError> {
        serde_json::from_slice(body)
            .map_err(|error| ApiError::malformed(format!("the body is not a JSON object: {error}; send a JSON object")))
    }

    fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, raw)| *raw).filter(|raw| raw.get() != "null")
    }

    /// Whether a field is present and not null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// An object of those of these fields that are present and not among `others`, and of `others`.
    pub(super) fn renamed(&self, names: &[&str], others: &Map<String, Value>) -> String {
        let own = names.iter().filter(|name| !others.contains_key(**name));
        let own = own.filter_map(|name| Some(format!("{}:{}", Value::from(*name), self.get(name)?.get())));
        let others = others.iter().map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())));
        format!("{{{}}}", own.chain(others).collect::<Vec<_>>().join(","))
    }

    /// Whether a field is a list without entries.
    pub(super) fn is_empty_list(&self, name: &str) -> bool {
        let raw = self.get(name).map_or("", RawValue::get).as_bytes();
        raw.first() == Some(&b'[') && raw[1..].iter().all(|byte| *byte == b']' || byte.is_ascii_whitespace())
    }

    /// Builds the values of the named fields.
    ///
    /// # Errors
    /// A value is too large.
    pub(super) fn values(&self, names: &[&str]) -> Result<Map<String, Value>, ApiError> {
        let mut values = Map::new();
        for name in names {
            let Some(raw) = self.get(name) else { continue };
            let size = size(raw.get());
            let is_prompt = PROMPTS.contains(name);
            let most = if is_prompt { PROMPT_BYTES_MAX } else { FIELD_BYTES_MAX };
            if size.bytes > most {
                return Err(if is_prompt {
                    ApiError::prompt_too_large(name, size.bytes, most)
                } else {
                    ApiError::invalid(name, format!("{name} has {} bytes, at most {most}; shorten it", size.bytes))
                });
            }
            if size.nodes > NODES_MAX {
                let message = format!("{name} has {} values, at most {NODES_MAX}; send fewer", size.nodes);
                return Err(ApiError::invalid(name, message));
            }
            let value = serde_json::from_str(raw.get())
                .map_err(|error| ApiError::invalid(name, format!("{name} cannot be read: {error}; nest it less")))?;
            values.insert((*name).to_owned(), value);
        }
        Ok(values)
    }

    /// The prompts in a field: a string, a list of ids, or a list of either.
    ///
    /// # Errors
    /// The value has another form, or exceeds the limits.
    pub(super) fn prompts(&self, field: &str, bounds: Bounds) -> Result<Vec<Prompt>, ApiError> {
        self.prompts_up_to(field, CHOICES_MAX, bounds)
    }

    /// As [`Self::prompts`], at most `most`.
    ///
    /// # Errors
    /// The value has another form, or exceeds the limits.
    pub(super) fn prompts_up_to(&self, field: &str, most: usize, bounds: Bounds) -> Result<Vec<Prompt>, ApiError> {
        let wrong = || {
            let message = format!(
                "{field} must be a string, a list of strings, a list of token ids, or a list of such lists; give one"
            );
            ApiError::invalid(field, message)
        };
        let raw = self.get(field).ok_or_else(wrong)?;
        let refusal = Cell::new(None);
        let mut json = serde_json::Deserializer::from_str(raw.get());
        let reading = PromptReader { bounds, most, refusal: &refusal };
        let Ok(read) = reading.deserialize(&mut json) else {
            return Err(refusal.take().unwrap_or_else(wrong).about(field));
        };
        match read {
            Read::Text(text) => Ok(vec![Prompt::Text(text)]),
            Read::Tokens(tokens) if !tokens.is_empty() => Ok(vec![Prompt::Tokens(tokens)]),
            Read::Tokens(_) | Read::Token(_) => Err(wrong()),
            Read::List(list) => Ok(list),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Outline<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OutlineVisitor;
        impl<'de> Visitor<'de> for OutlineVisitor {
            type Value = Outline<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of fields")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Outline<'de>, A::Error> {
                #[derive(Deserialize)]
                struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
                let mut fields: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
                while let Some((Name(name), raw)) = map.next_entry::<Name<'de>, &'de RawValue>()? {
                    // A repeated field has its last value.
                    fields.retain(|(known, _)| *known != name);
                    if fields.len() >= FIELDS_MAX {
                        return Err(A::Error::custom(format!("more than {FIELDS_MAX} fields")));
                    }
                    fields.push((name, raw));
                }
                Ok(Outline(fields))
            }
        }
        deserializer.deserialize_map(OutlineVisitor)
    }
}

/// The possible forms of a prompt or a part of one.
#[derive(Debug)]
enum Read {
    Token(u32),
    Text(String),
    Tokens(Vec<u32>),
    List(Vec<Prompt>),
}

/// Reads a prompt; stops as soon as it is too large.
#[derive(Clone, Copy)]
struct PromptReader<'a> {
    bounds: Bounds,
    /// Most prompts.
    most: usize,
    refusal: &'a Cell<Option<ApiError>>,
}

impl PromptReader<'_> {
    fn refuse<E: Error>(self, refusal: ApiError) -> E {
        self.refusal.set(Some(refusal));
        E::custom("refused")
    }

    fn check_tokens<E: Error>(self, count: usize) -> Result<(), E> {
        match self.bounds.context {
            Some(context) if count > context => Err(self.refuse(ApiError::prompt_exceeds_context(count, context))),
            _ if 4 * count > PROMPT_BYTES_MAX => {
                Err(self.refuse(ApiError::prompt_too_large("prompt", 4 * count, PROMPT_BYTES_MAX)))
            }
            _ => Ok(()),
        }
    }
}

impl<'de> DeserializeSeed<'de> for PromptReader<'_> {
    type Value = Read;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Read, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PromptReader<'_> {
    type Value = Read;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a prompt")
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Read, E> {
        u32::try_from(id).map(Read::Token).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Read, E> {
        if text.len() > PROMPT_BYTES_MAX {
            return Err(self.refuse(ApiError::prompt_too_large("prompt", text.len(), PROMPT_BYTES_MAX)));
        }
        Ok(Read::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Read, A::Error> {
        let (mut tokens, mut prompts) = (Vec::new(), Vec::new());
        while let Some(element) = list.next_element_seed(self)? {
            match element {
                Read::Token(id) if prompts.is_empty() => {
                    tokens.push(id);
                    self.check_tokens(tokens.len())?;
                    continue;
                }
                Read::Text(text) if tokens.is_empty() => prompts.push(Prompt::Text(text)),
                Read::Tokens(ids) if tokens.is_empty() => prompts.push(Prompt::Tokens(ids)),
                _ => return Err(A::Error::custom("a mixture")),
            }
            if prompts.len() > self.most {
                let message = format!("prompt has more than {} prompts; send fewer at a time", self.most);
                return Err(self.refuse(ApiError::invalid("prompt", message)));
            }
        }
        Ok(if prompts.is_empty() { Read::Tokens(tokens) } else { Read::List(prompts) })
    }
}

/// The size of valid JSON, from one pass over its bytes.
fn size(json: &str) -> ValueSize {
    let bytes = json.as_bytes();
    let (mut size, mut at, mut is_text) = (ValueSize::default(), 0, false);
    while at < bytes.len() {
        size.bytes += 1;
        at += match (is_text, bytes[at]) {
            (true, b'\\') if bytes.get(at + 1) == Some(&b'u') => 6,
            (true, b'\\') => 2,
            (_, b'"') => {
                is_text = !is_text;
                1
            }
            (false, b',' | b':' | b'[' | b'{') => {
                size.nodes += 1;
                1
            }
            (false, b' ' | b'\t' | b'\r' | b'\n') => {
                size.bytes -= 1;
                1
            }
            _ => 1,
        };
    }
    size
}

/// Most answers per request, as in OpenAI's API.
pub(super) const CHOICES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(json: &str, context: Option<usize>) -> Result<Vec<Prompt>, ApiError> {
        let body = format!("{{\"prompt\": {json}}}");
        Outline::read(body.as_bytes()).expect("it is an object").prompts("prompt", Bounds { context })
    }

    #[test]
    fn prompts_are_read_in_each_form_and_nothing_else_is() {
        let text = |text: &str| Prompt::Text(text.into());
        assert_eq!(prompts("\"a\\u00e9\"", None), Ok(vec![text("a\u{e9}")]));
        assert_eq!(prompts("[1, 2, 4294967295]", None), Ok(vec![Prompt::Tokens(vec![1, 2, u32::MAX])]));
        assert_eq!(
            prompts("[\"a\", [3], []]", None),
            Ok(vec![text("a"), Prompt::Tokens(vec![3]), Prompt::Tokens(vec![])])
        );
        for wrong in [
            "null",
            "[]",
            "{}",
            "true",
            "1",
            "1.5",
            "[1, \"a\"]",
            "[\"a\", 1]",
            "[-1]",
            "[1.5]",
            "[4294967296]",
            "[[[1]]]",
            "[null]",
        ] {
            let refused = prompts(wrong, None).expect_err(wrong);
            assert!(refused.status.as_u16() == 400 && refused.code == "invalid_value", "{wrong}: {refused:?}");
        }
    }

    #[test]
    fn oversized_prompt_is_refused_while_it_is_read() {
        let tokens = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
        assert!(prompts(&tokens(512), Some(512)).is_ok());
        let refused = prompts(&tokens(513), Some(512)).expect_err("there is no room");
        assert_eq!((refused.status.as_u16(), refused.code.as_str()), (400, "context_length_exceeded"));
        assert!(prompts(&format!("[[1], {}]", tokens(513)), Some(512)).is_err());
        let refused = prompts(&tokens(PROMPT_BYTES_MAX / 4 + 1), None).expect_err("no node takes it");
        assert_eq!((refused.status.as_u16(), refused.code.as_str()), (413, "prompt_too_large"));
        let text = |length: usize| format!("\"{}\"", "x".repeat(length));
        assert!(prompts(&text(PROMPT_BYTES_MAX), None).is_ok());
        for json in [text(PROMPT_BYTES_MAX + 1), format!("[{}]", text(PROMPT_BYTES_MAX + 1))] {
            assert_eq!(prompts(&json, None).expect_err("no node takes it").status.as_u16(), 413);
        }
    }

    #[test]
    fn large_or_many_fields_are_refused_before_building() {
        let values = |body: &str| Outline::read(body.as_bytes())?.values(&["messages", "stop"]);
        let good = values(r#"{"stop": 1, "other": [1, 2], "stop": "last", "messages": null}"#).expect("it is good");
        assert_eq!(
            Value::Object(good),
            serde_json::json!({"stop": "last"}),
            "only the named fields, with their last values"
        );
        let many = format!("{{\"messages\": [{}1]}}", "1,".repeat(NODES_MAX + 1));
        assert!(values(&many).is_err_and(|error| error.status.as_u16() == 400));
        let long = format!("{{\"messages\": [\"{}\"]}}", "x".repeat(PROMPT_BYTES_MAX));
        assert!(values(&long).is_err_and(|error| error.status.as_u16() == 413));
        let escaped = format!("{{\"messages\": [\"{}\"]}}", "\\u00e9".repeat(PROMPT_BYTES_MAX / 6));
        assert!(values(&escaped).is_ok(), "the unescaped length counts");
        let stop = format!("{{\"stop\": \"{}\"}}", "x".repeat(FIELD_BYTES_MAX));
        assert!(values(&stop).is_err_and(|error| error.code == "invalid_value"));
        let fields: Vec<String> = (0..=FIELDS_MAX).map(|index| format!("\"f{index}\": 1")).collect();
        assert!(values(&format!("{{{}}}", fields.join(","))).is_err_and(|error| error.code == "malformed_request"));
        let deep = format!("{{\"stop\": {}1{}}}", "[".repeat(1000), "]".repeat(1000));
        assert!(values(&deep).is_err_and(|error| error.status.as_u16() == 400));
        for none in ["[1]", "1", "", "{", "{\"stop\": 1} x", "[[[["] {
            assert!(values(none).is_err_and(|error| error.code == "malformed_request"), "{none}");
        }
    }

    #[test]
    fn sizes_are_those_of_compact_json_or_less() {
        let text = "{ \"a\" : [ 1 , \"b\\\"c\\u00e9 , [\" ] }";
        let compact = serde_json::from_str::<Value>(text).expect("it is JSON").to_string();
        let found = size(text);
        assert!(found.bytes <= compact.len() && found.bytes + 3 >= compact.len(), "{found:?} of {compact}");
        assert_eq!(found.nodes, 4, "an object, a colon, a list and a comma");
    }
}
