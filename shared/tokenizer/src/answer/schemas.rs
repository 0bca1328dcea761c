//! The parameters of a request's tools, for calls whose values have no types of their own.
use std::collections::BTreeMap;

use serde_json::Value;

/// For each tool, the parameters whose values are texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolSchemas(BTreeMap<String, BTreeMap<String, bool>>);

impl ToolSchemas {
    /// Reads a request's list of tools; entries that are not tools are skipped.
    pub fn read(tools: &[Value]) -> Self {
        let tools = tools.iter().filter_map(|tool| {
            let function = tool.get("function")?;
            let properties = function.get("parameters").and_then(|parameters| parameters.get("properties"));
            let properties = properties.and_then(Value::as_object).into_iter().flatten();
            let texts = properties.map(|(name, schema)| (name.clone(), is_text(schema)));
            Some((function.get("name")?.as_str()?.to_owned(), texts.collect()))
        });
        Self(tools.collect())
    }

    /// Whether there is such a tool.
    pub(super) fn has(&self, tool: &str) -> bool {
        self.0.contains_key(tool)
    }

    /// Whether the value of a parameter is a text even if it looks like another type.
    pub(super) fn is_text(&self, tool: &str, parameter: &str) -> bool {
        self.0.get(tool).and_then(|texts| texts.get(parameter)).copied() == Some(true)
    }

    /// The value of a parameter that need not be a text as JSON: a string if it is nothing else.
    pub(super) fn value(&self, text: &str) -> Value {
        // Values of Python.
        match text.trim() {
            "True" => true.into(),
            "False" => false.into(),
            "None" => Value::Null,
            trimmed => serde_json::from_str(trimmed).unwrap_or_else(|_| text.into()),
        }
    }
}

/// Whether a schema allows a text, and nothing else but null.
pub(super) fn is_text(schema: &Value) -> bool {
    let allows = |kind: &Value| kind == "string" || kind == "null";
    match (schema.get("type"), schema.get("anyOf").or(schema.get("oneOf"))) {
        (Some(Value::Array(kinds)), _) => kinds.iter().all(allows) && kinds.iter().any(|kind| kind == "string"),
        (Some(kind), _) => kind == "string",
        (None, Some(Value::Array(schemas))) => {
            schemas.iter().all(|schema| schema.get("type").is_some_and(allows)) && schemas.iter().any(is_text)
        }
        _ => schema.get("enum").and_then(Value::as_array).is_some_and(|values| values.iter().all(Value::is_string)),
    }
}
