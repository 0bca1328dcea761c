//! JSON schemas of tools, made one schema of a call: what moves takes its definitions along, and its references are
//! rewritten to the place where they resolve. Pure; the work is linear in the schemas, whose size and depth the reader
//! of the body has bounded.
use serde_json::{Map, Value, json};

/// Keywords whose values are data and not schemas.
const DATA: [&str; 7] = ["const", "default", "enum", "example", "examples", "required", "type"];
/// Keywords whose values map names to schemas.
const NAMED: [&str; 5] = ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];
/// Keywords that describe a value without naming its type.
const APPLICATORS: [&str; 6] = ["$ref", "allOf", "anyOf", "const", "enum", "oneOf"];

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
}
