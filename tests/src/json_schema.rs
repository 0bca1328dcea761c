//! A JSON Schema of the subset that `docs/json/console.schema.json` uses, the check of an object against it, and the
//! document that describes it. Objects may have no field that the schema does not name.
use std::fmt::Write as _;

use serde_json::{Map, Value};

/// Deepest nesting of a schema.
const DEPTH_MAX: usize = 24;

/// Why `value` does not match the definition `name` of a schema: a path and a reason for each difference.
pub fn differences(schema: &Value, name: &str, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    match schema["$defs"].get(name) {
        Some(definition) => check(schema, definition, value, name, 0, &mut found),
        None => found.push(format!("{name}: the schema has no such definition")),
    }
    found
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, depth: usize, found: &mut Vec<String>) {
    if depth > DEPTH_MAX {
        return found.push(format!("{at}: the schema is nested too deeply"));
    }
    if let Some(name) = schema["$ref"].as_str().and_then(|text| text.strip_prefix("#/$defs/")) {
        return match root["$defs"].get(name) {
            Some(definition) => check(root, definition, value, at, depth + 1, found),
            None => found.push(format!("{at}: the schema has no definition {name}")),
        };
    }
    if let Some(options) = schema["anyOf"].as_array() {
        let tried = options.iter().map(|option| {
            let mut found = Vec::new();
            check(root, option, value, at, depth + 1, &mut found);
            found
        });
        // The closest alternative explains the difference best.
        if let Some(fewest) = tried.min_by_key(Vec::len) {
            found.extend(fewest);
        }
        return;
    }
    let kind = kind(value);
    let types: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.contains(&kind) && (kind != "integer" || !types.contains(&"number")) {
        return found.push(format!("{at}: {kind} where the schema has {}", types.join(" or ")));
    }
    match value {
        Value::Object(fields) => check_fields(root, schema, fields, at, depth, found),
        Value::Array(items) if !schema["items"].is_null() => {
            let items = items.iter().enumerate();
            items.for_each(|(index, item)| {
                check(root, &schema["items"], item, &format!("{at}[{index}]"), depth + 1, found);
            });
        }
        _ => {}
    }
}

fn check_fields(
    root: &Value,
    schema: &Value,
    fields: &Map<String, Value>,
    at: &str,
    depth: usize,
    found: &mut Vec<String>,
) {
    for (name, value) in fields {
        let at = format!("{at}.{name}");
        match (schema["properties"].get(name), &schema["additionalProperties"]) {
            (Some(property), _) => check(root, property, value, &at, depth + 1, found),
            (None, Value::Bool(true)) => {}
            (None, more @ Value::Object(_)) => check(root, more, value, &at, depth + 1, found),
            (None, _) => found.push(format!("{at}: the schema does not name this field")),
        }
    }
    let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
    for name in required.iter().filter_map(Value::as_str).filter(|name| !fields.contains_key(*name)) {
        found.push(format!("{at}.{name}: missing"));
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The fields of a definition and of the objects within, each as a path, its type and its description.
pub fn rows(definition: &Value) -> Vec<[String; 3]> {
    let mut rows = Vec::new();
    describe(definition, "", 0, &mut rows);
    rows
}

fn describe(schema: &Value, at: &str, depth: usize, rows: &mut Vec<[String; 3]>) {
    if depth > DEPTH_MAX {
        return;
    }
    let options = schema["anyOf"].as_array().into_iter().flatten();
    options.for_each(|option| describe(option, at, depth + 1, rows));
    if schema["items"].is_object() {
        describe(&schema["items"], &format!("{at}[]"), depth + 1, rows);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        let text = property["description"].as_str().unwrap_or_default().to_owned();
        rows.push([path.clone(), type_of(property), text]);
        describe(property, &path, depth + 1, rows);
    }
}

/// The type of a field for people: `string`, `integer or null`, `list of object`, or the name of a definition.
fn type_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|text| text.strip_prefix("#/$defs/")) {
        return format!("[{name}](#{name})");
    }
    if let Some(options) = schema["anyOf"].as_array() {
        let mut names: Vec<String> = options.iter().map(type_of).collect();
        names.dedup();
        return names.join(" or ");
    }
    let name = |name: &str| match (name, schema["items"].is_object()) {
        ("array", true) => format!("list of {}", type_of(&schema["items"])),
        _ => name.to_owned(),
    };
    match &schema["type"] {
        Value::String(text) => name(text),
        Value::Array(names) => names.iter().filter_map(Value::as_str).map(name).collect::<Vec<_>>().join(" or "),
        _ => "any".into(),
    }
}

/// The document: a section per definition, with a table of its fields.
pub fn document(schema: &Value) -> String {
    let mut text = format!("# {}\n\n{}\n", string(&schema["title"]), string(&schema["description"]));
    for (name, definition) in schema["$defs"].as_object().into_iter().flatten() {
        let _ = write!(text, "\n## {name}\n{}\n", string(&definition["description"]));
        if definition["anyOf"].is_array() {
            let _ = writeln!(text, "\nOne of {}.", type_of(definition).replace(" or ", ", "));
        }
        let rows = rows(definition);
        if rows.is_empty() {
            continue;
        }
        text.push_str("\n| field | type | meaning |\n|---|---|---|\n");
        for [path, kind, meaning] in rows {
            let _ = writeln!(text, "| `{path}` | {kind} | {meaning} |");
        }
    }
    text
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"title": "T", "description": "D", "$defs": {
            "node": {"type": "object", "properties": {"name": {"type": ["string", "null"], "description": "its name"}}},
            "status": {"type": "object", "description": "All nodes.", "required": ["nodes"], "properties": {
                "nodes": {"type": "array", "items": {"$ref": "#/$defs/node"}, "description": "in order"},
                "rate": {"anyOf": [{"type": "number"}, {"type": "null"}], "description": "tokens/s"},
            }},
        }})
    }

    #[test]
    fn unnamed_missing_and_mistyped_fields_are_found() {
        let check = |value: Value| differences(&schema(), "status", &value);
        assert!(check(json!({"nodes": [{"name": "a"}, {"name": null}], "rate": 1})).is_empty());
        assert_eq!(check(json!({"rate": null})), ["status.nodes: missing"]);
        assert_eq!(check(json!({"nodes": [{"age": 1}]})), ["status.nodes[0].age: the schema does not name this field"]);
        assert_eq!(check(json!({"nodes": [], "rate": "1"})), ["status.rate: string where the schema has number"]);
        assert_eq!(differences(&schema(), "x", &Value::Null), ["x: the schema has no such definition"]);
    }

    #[test]
    fn document_has_a_row_per_field() {
        let text = document(&schema());
        for part in
            ["## status\nAll nodes.", "| `nodes` | list of [node](#node) | in order |", "| `rate` | number or null |"]
        {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
