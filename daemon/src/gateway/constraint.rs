//! The structure that a request demands of its answer, in OpenAI's form and in those of llama-server and vLLM. Forms
//! that no head enforces are refused by name: a client must not believe that its constraint holds. Pure.
use common::chat::{GRAMMAR_BYTES_MAX, Grammar};
use serde_json::{Value, json};

use super::{
    error::ApiError,
    schemas::{Unenforced, relax},
    typed_json::{Fields, brief},
};

/// Constraints of other servers that no head enforces.
pub(super) const REFUSED: [&str; 7] =
    ["ebnf", "grammar", "guided_choice", "guided_grammar", "guided_regex", "regex", "structural_tag"];
/// The same within vLLM's `structured_outputs`.
const REFUSED_WITHIN: [&str; 4] = ["choice", "grammar", "regex", "structural_tag"];

/// Reads the grammar of an answer; adds to `unenforced` what it leaves out.
///
/// # Errors
/// The first field that is invalid or cannot be enforced.
pub(super) fn read(fields: Fields<'_>, unenforced: &mut Unenforced) -> Result<Option<Grammar>, ApiError> {
    for name in REFUSED {
        refuse(fields, name, name)?;
    }
    if let Some(outputs) = fields.object("structured_outputs")? {
        for name in REFUSED_WITHIN {
            refuse(outputs, name, &format!("structured_outputs.{name}"))?;
        }
        if let Some(schema) = outputs.get("json") {
            return json_schema("structured_outputs.json", schema, false, unenforced);
        }
        if outputs.flag("json_object")? {
            return Ok(Some(Grammar::Json));
        }
    }
    for name in ["guided_json", "json_schema"] {
        if let Some(schema) = fields.get(name) {
            return json_schema(name, schema, false, unenforced);
        }
    }
    response_format(fields, unenforced)
}

fn refuse(fields: Fields<'_>, name: &str, param: &str) -> Result<(), ApiError> {
    match fields.get(name) {
        None => Ok(()),
        Some(value) if value == "" => Ok(()),
        Some(_) => {
            let message = format!("{param} is not supported; describe the answer by response_format json_schema");
            Err(ApiError::invalid(param, message))
        }
    }
}

fn response_format(fields: Fields<'_>, unenforced: &mut Unenforced) -> Result<Option<Grammar>, ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    match format.text("type")? {
        None | Some("text") => Ok(None),
        Some("json_object") => match format.get("schema") {
            // llama-server's form.
            Some(schema) => json_schema("response_format.schema", schema, false, unenforced),
            None => Ok(Some(Grammar::Json)),
        },
        Some("json_schema") => {
            let wrapped = format.object("json_schema")?;
            let schema = wrapped.and_then(|wrapped| wrapped.get("schema"));
            let schema = schema.ok_or_else(|| {
                let message = "response_format.json_schema.schema is missing; give the JSON schema of the answer";
                ApiError::invalid("response_format", message)
            })?;
            let is_strict = wrapped.map_or(Ok(false), |wrapped| wrapped.flag("strict"))?;
            json_schema("response_format.json_schema.schema", schema, is_strict, unenforced)
        }
        Some(other) => {
            let message =
                format!("response_format {:?} is unknown; use text, json_object or json_schema", brief(&other.into()));
            Err(ApiError::invalid("response_format", message))
        }
    }
}

/// The grammar of a schema, which may also be a string that holds one.
fn json_schema(
    param: &str,
    schema: &Value,
    is_strict: bool,
    unenforced: &mut Unenforced,
) -> Result<Option<Grammar>, ApiError> {
    let mut schema = match schema {
        Value::String(text) => serde_json::from_str(text)
            .map_err(|error| ApiError::invalid(param, format!("{param} is not valid JSON: {error}; correct it")))?,
        other => other.clone(),
    };
    if schema == true {
        schema = json!({});
    }
    relax(&mut schema, param, is_strict, unenforced)?;
    let text = schema.to_string();
    if text.len() > GRAMMAR_BYTES_MAX {
        let message = format!("{param} has {} bytes, at most {GRAMMAR_BYTES_MAX}; simplify it", text.len());
        return Err(ApiError::invalid(param, message));
    }
    Ok(Some(Grammar::JsonSchema(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grammar(body: Value) -> Result<Option<Grammar>, ApiError> {
        read(Fields(body.as_object().expect("an object")), &mut Unenforced::new())
    }

    #[test]
    fn schemas_are_found_in_the_fields_of_each_server() {
        let schema = json!({"type": "object"});
        for body in [
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}),
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            json!({"guided_json": schema}),
            json!({"guided_json": schema.to_string()}),
            json!({"structured_outputs": {"json": schema}}),
            json!({"json_schema": schema, "grammar": ""}),
        ] {
            assert_eq!(grammar(body.clone()), Ok(Some(Grammar::JsonSchema(schema.to_string()))), "{body}");
        }
        assert_eq!(grammar(json!({"guided_json": true})), Ok(Some(Grammar::JsonSchema("{}".into()))), "any value");
        assert_eq!(grammar(json!({"structured_outputs": {"json_object": true}})), Ok(Some(Grammar::Json)));
        assert_eq!(grammar(json!({"response_format": {"type": "text"}, "guided_regex": null})), Ok(None));
    }

    #[test]
    fn constraints_that_no_head_enforces_are_refused_by_name() {
        for (body, name) in [
            (json!({"guided_choice": ["a", "b"]}), "guided_choice"),
            (json!({"guided_regex": "a+"}), "guided_regex"),
            (json!({"grammar": "root ::= \"a\""}), "grammar"),
            (json!({"structured_outputs": {"choice": ["a"]}}), "structured_outputs.choice"),
            (json!({"guided_json": {"title": "x".repeat(GRAMMAR_BYTES_MAX)}}), "guided_json"),
        ] {
            let refused = grammar(body.clone()).expect_err(name).object();
            assert_eq!(refused["error"]["param"], name, "{body}");
        }
    }
}
