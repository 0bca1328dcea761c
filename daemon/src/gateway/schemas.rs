//! JSON schemas of clients. Those of tools become one schema of a call: definitions move along with their schema, and
//! references are rewritten to the place where they resolve. Keywords that no head enforces are removed and named.
//! Pure; the work is linear in the schemas, whose size and depth the reader of the body has bounded.
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::error::ApiError;

/// Keywords whose values are data and not schemas.
const DATA: [&str; 7] = ["const", "default", "enum", "example", "examples", "required", "type"];
/// Keywords whose values map names to schemas.
const NAMED: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
/// Keywords that describe a value without naming its type.
const APPLICATORS: [&str; 6] = ["$ref", "allOf", "anyOf", "const", "enum", "oneOf"];

/// Keywords that no head enforces.
const UNENFORCED: [&str; 16] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];
/// Formats of strings that heads enforce.
const FORMATS: [&str; 11] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"];
/// Parts of regular expressions that need more than a finite automaton.
const IRREGULAR: [&str; 7] = ["(?=", "(?!", "(?<=", "(?<!", "\\b", "\\B", "\\k"];
/// Most keywords that are named, and the longest name of a format.
const NAMED_MAX: usize = 16;
const FORMAT_CHARS_MAX: usize = 32;

/// Names of the keywords that are not enforced.
pub(super) type Unenforced = BTreeSet<String>;

/// The schema of a call of one of the functions, from the names and parameters of each.
pub(super) fn call(functions: Vec<(Value, Value)>) -> Value {
    let mut definitions = Map::new();
    let mut calls = Vec::new();
    for (index, function) in functions.into_iter().enumerate() {
        let (name, mut parameters) = function;
        let base = format!("#/$defs/{index}");
        let id = parameters.get("$id").and_then(Value::as_str).map(str::to_owned).unwrap_or_default();
        if rebase(&mut parameters, &id, &base) {
            definitions.insert(index.to_string(), parameters);
            parameters = json!({ "$ref": base });
        }
        calls.push(json!({
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": parameters},
            "required": ["name", "arguments"],
            "additionalProperties": false,
        }));
    }
    let mut schema = match &mut calls[..] {
        [one] => one.take(),
        _ => json!({ "anyOf": calls }),
    };
    if !definitions.is_empty() {
        schema["$defs"] = definitions.into();
    }
    schema
}

/// Completes the parameters of a function: without any, its arguments are an empty object, as in OpenAI's API.
pub(super) fn parameters(given: Option<&Value>) -> Value {
    match given {
        Some(Value::Object(map)) if !map.is_empty() => {
            let mut parameters = map.clone();
            if !APPLICATORS.iter().any(|keyword| map.contains_key(*keyword)) {
                parameters.entry("type").or_insert("object".into());
            }
            parameters.into()
        }
        Some(Value::Bool(true)) => json!({"type": "object"}),
        None | Some(Value::Null | Value::Object(_)) => {
            json!({"type": "object", "properties": {}, "additionalProperties": false})
        }
        Some(other) => other.clone(),
    }
}

/// Removes the keywords that no head enforces from a schema, and adds their names to `unenforced`.
///
/// # Errors
/// There is something, and the client demanded strictness.
pub(super) fn relax(
    schema: &mut Value,
    param: &str,
    is_strict: bool,
    unenforced: &mut Unenforced,
) -> Result<(), ApiError> {
    let mut found = Unenforced::new();
    remove_unenforced(schema, is_strict, &mut found);
    if is_strict && !found.is_empty() {
        let names: Vec<String> = found.into_iter().take(NAMED_MAX).collect();
        let names = names.join(", ");
        let message = format!("{param} has {names}, which cannot be enforced; leave it out or set strict to false");
        return Err(ApiError::invalid(param, message));
    }
    unenforced.extend(found);
    while unenforced.len() > NAMED_MAX {
        unenforced.pop_last();
    }
    Ok(())
}

fn remove_unenforced(schema: &mut Value, keeps_one_of: bool, found: &mut Unenforced) {
    each_schema(schema, &mut |inner| remove_unenforced(inner, keeps_one_of, found));
    let Value::Object(map) = schema else { return };
    let (is_text, is_countable) = (may_be_text(map), is_countable(map));
    map.retain(|keyword, value| {
        let name = match (keyword.as_str(), &*value) {
            ("uniqueItems", Value::Bool(false)) | ("$dynamicAnchor" | "$recursiveAnchor", _) => return false,
            // It constrains numbers, whose formats JSON does not distinguish.
            ("format", Value::String(_)) if !is_text => return false,
            ("format", Value::String(format)) if !FORMATS.contains(&format.as_str()) => {
                let name: String = format.chars().filter(char::is_ascii_graphic).take(FORMAT_CHARS_MAX).collect();
                format!("format {name}")
            }
            ("pattern", Value::String(pattern)) if !is_regular(pattern) => "pattern with look-around".into(),
            ("minProperties" | "maxProperties", _) if !is_countable => keyword.clone(),
            (name, _) if UNENFORCED.contains(&name) => keyword.clone(),
            _ => return true,
        };
        found.insert(name);
        false
    });
    if let Some(patterns) = map.get_mut("patternProperties").and_then(Value::as_object_mut) {
        let count = patterns.len();
        patterns.retain(|pattern, _| is_regular(pattern));
        if patterns.len() < count {
            found.insert("patternProperties with look-around".into());
        }
    }
    if !keeps_one_of && map.contains_key("oneOf") && !map.contains_key("anyOf") {
        found.insert("oneOf (read as anyOf)".into());
        let mut renamed = Map::new();
        for (keyword, value) in std::mem::take(map) {
            renamed.insert(if keyword == "oneOf" { "anyOf".into() } else { keyword }, value);
        }
        *map = renamed;
    }
}

fn may_be_text(schema: &Map<String, Value>) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        _ => true,
    }
}

/// Whether the number of properties can be enforced: optional ones cannot be counted, except one of them.
fn is_countable(schema: &Map<String, Value>) -> bool {
    if !schema.contains_key("minProperties") && !schema.contains_key("maxProperties") {
        return true;
    }
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let required: BTreeSet<&str> = required.filter_map(Value::as_str).collect();
    let mut names = schema.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    let is_one = |name: &str, least: u64| {
        schema.get(name).is_none_or(|count| count.as_u64().is_some_and(|count| (least..=1).contains(&count)))
    };
    let is_simple = is_closed && required.is_empty() && !schema.contains_key("patternProperties");
    names.all(|name| required.contains(name.as_str()))
        || (is_simple && is_one("minProperties", 0) && is_one("maxProperties", 1))
}

/// Whether a finite automaton finds a pattern.
fn is_regular(pattern: &str) -> bool {
    let refers_back = pattern.as_bytes().windows(2).any(|two| two[0] == b'\\' && (b'1'..=b'9').contains(&two[1]));
    !refers_back && !IRREGULAR.iter().any(|part| pattern.contains(part))
}

/// Rewrites the references of a schema with this `$id` that moves to `base`. Returns whether it has any.
fn rebase(schema: &mut Value, id: &str, base: &str) -> bool {
    let mut is_found = false;
    if let Value::Object(map) = schema {
        let moved = map.get("$ref").and_then(Value::as_str).and_then(|reference| moved(reference, id, base));
        if let Some(moved) = moved {
            map.insert("$ref".into(), moved.into());
            is_found = true;
        }
    }
    each_schema(schema, &mut |inner| is_found |= rebase(inner, id, base));
    is_found
}

/// A reference after its schema has moved; `None` if it is of a kind that is not followed.
fn moved(reference: &str, id: &str, base: &str) -> Option<String> {
    let pointer = reference.strip_prefix(id).unwrap_or(reference).strip_prefix('#')?;
    match pointer {
        "" | "/" => Some(base.to_owned()),
        _ => pointer.starts_with('/').then(|| format!("{base}{pointer}")),
    }
}

/// Calls `act` on each schema directly within a schema. Unknown keywords may hold schemas, too, to which references
/// point.
fn each_schema(schema: &mut Value, act: &mut dyn FnMut(&mut Value)) {
    let Value::Object(map) = schema else { return };
    for (keyword, value) in map {
        let is_named = NAMED.contains(&keyword.as_str());
        match value {
            _ if DATA.contains(&keyword.as_str()) => {}
            Value::Object(named) if is_named => named.values_mut().for_each(&mut *act),
            Value::Object(_) => act(value),
            Value::Array(list) => list.iter_mut().for_each(&mut *act),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use common::chat::Grammar;
    use engine::structured_output::check;

    use super::*;

    fn town(kind: &str) -> Value {
        json!({
            "type": "object",
            "properties": {"at": {"$ref": "#/$defs/Place"}, "$ref": {"type": "string"}},
            "required": ["at"],
            "$defs": {"Place": {"type": kind}},
        })
    }

    fn allowed(schema: &Value) -> Result<(), String> {
        check(&Grammar::JsonSchema(schema.to_string()))
    }

    #[test]
    fn references_of_tools_resolve_to_their_own_definitions() {
        let schema = call(vec![("a".into(), town("string")), ("b".into(), town("boolean"))]);
        assert_eq!(allowed(&schema), Ok(()), "{schema}");
        let place = |index: usize| {
            let argument = &schema["anyOf"][index]["properties"]["arguments"]["$ref"];
            let moved = schema.pointer(argument.as_str().expect("it is moved").trim_start_matches('#'));
            let inner = moved.and_then(|moved| moved["properties"]["at"]["$ref"].as_str()).expect("a reference");
            schema.pointer(inner.trim_start_matches('#')).expect("it resolves")["type"].clone()
        };
        assert_eq!((place(0), place(1)), ("string".into(), "boolean".into()));
        assert_eq!(schema["$defs"]["0"]["properties"]["$ref"], json!({"type": "string"}), "a property's name");
        let plain = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
        let schema = call(vec![("a".into(), plain.clone())]);
        assert_eq!(schema["properties"]["arguments"], plain, "nothing moves without a reason");
    }

    #[test]
    fn a_reference_to_the_root_means_the_parameters() {
        let schema = json!({"type": "object", "$id": "https://a.example/tree", "properties": {
            "left": {"$ref": "#"}, "right": {"$ref": "https://a.example/tree#/properties/left"},
            "note": {"const": {"$ref": "#"}},
        }});
        let schema = call(vec![("grow".into(), schema)]);
        let tree = &schema["$defs"]["0"]["properties"];
        assert_eq!((&tree["left"]["$ref"], &tree["note"]["const"]["$ref"]), (&json!("#/$defs/0"), &json!("#")));
        assert_eq!(tree["right"]["$ref"], "#/$defs/0/properties/left");
        assert_eq!(allowed(&schema), Ok(()));
    }

    #[test]
    fn functions_without_parameters_take_an_empty_object() {
        for none in [None, Some(json!(null)), Some(json!({}))] {
            let schema = call(vec![("now".into(), parameters(none.as_ref()))]);
            let arguments = &schema["properties"]["arguments"];
            assert_eq!((&arguments["type"], &arguments["additionalProperties"]), (&json!("object"), &json!(false)));
            assert_eq!(allowed(&schema), Ok(()));
        }
        let open = parameters(Some(&json!({"properties": {"a": {}}})));
        assert_eq!(open, json!({"properties": {"a": {}}, "type": "object"}));
        let referring = json!({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}});
        assert_eq!(parameters(Some(&referring)), referring);
    }

    #[test]
    fn keywords_that_cannot_be_enforced_are_named_and_taken_out() {
        let uuid = "550e8400-e29b-41d4-a716-446655440000";
        for (schema, name) in [
            (json!({"type": "string", "format": "uuid4"}), "format uuid4"),
            (json!({"type": "string", "pattern": "^(?!a)b+$"}), "pattern with look-around"),
            (json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}), "uniqueItems"),
            (json!({"type": "array", "contains": {"const": 1}, "minContains": 2}), "contains, minContains"),
            (json!({"type": "object", "propertyNames": {"minLength": 1}}), "propertyNames"),
            (json!({"not": {"type": "string"}}), "not"),
            (json!({"if": {"const": 1}, "then": true, "else": false}), "else, if, then"),
            (json!({"type": "object", "dependentRequired": {"a": ["b"]}}), "dependentRequired"),
            (json!({"patternProperties": {"^(?=a)": true}}), "patternProperties with look-around"),
            (json!({"oneOf": [{"type": "number"}, {"type": "integer"}]}), "oneOf (read as anyOf)"),
            (json!({"properties": {"a": true, "b": true}, "minProperties": 1}), "minProperties"),
        ] {
            let schema = json!({"type": "object", "properties": {"x": schema, "id": {"const": uuid}}});
            let (mut relaxed, mut unenforced) = (schema.clone(), Unenforced::new());
            assert_eq!(relax(&mut relaxed, "schema", false, &mut unenforced), Ok(()));
            assert_eq!(unenforced.into_iter().collect::<Vec<_>>().join(", "), name);
            assert_eq!(allowed(&relaxed), Ok(()), "{schema}");
            let strict = relax(&mut schema.clone(), "schema", true, &mut Unenforced::new());
            assert_eq!(strict.is_err(), !name.starts_with("oneOf"), "heads can distinguish disjoint schemas: {schema}");
        }
    }

    #[test]
    fn what_can_be_enforced_stays() {
        let schema = json!({
            "type": "object",
            "properties": {
                "not": {"type": "string", "format": "date"},
                "if": {"const": {"uniqueItems": true, "not": 1}},
                "count": {"type": "integer", "minimum": 1},
                "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
            },
            "required": ["not"],
            "additionalProperties": false,
        });
        let (mut relaxed, mut unenforced) = (schema.clone(), Unenforced::new());
        assert_eq!(relax(&mut relaxed, "schema", true, &mut unenforced), Ok(()));
        assert_eq!((&relaxed, unenforced.len()), (&schema, 0));
        let mut number = json!({"type": "integer", "format": "int32", "uniqueItems": false});
        assert_eq!(relax(&mut number, "schema", true, &mut unenforced), Ok(()));
        assert_eq!(number, json!({"type": "integer"}), "neither constrains anything");
    }

    #[test]
    fn work_is_linear_in_the_schema() {
        let names: Vec<String> = (0..60_000).map(|number| format!("p{number}")).collect();
        let properties: Map<String, Value> = names.iter().map(|name| (name.clone(), Value::Bool(true))).collect();
        let mut schema = json!({"properties": properties, "required": names, "minProperties": 2});
        let begin = std::time::Instant::now();
        relax(&mut schema, "schema", true, &mut Unenforced::new()).expect("all properties are required");
        assert!(begin.elapsed().as_secs() < 5, "{:?}", begin.elapsed());
    }
}
