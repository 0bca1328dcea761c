//! Tools of a chat request, and which of them an answer must call. The older fields `functions` and `function_call` of
//! OpenAI's API mean the same. Pure.
use common::{
    chat::{GRAMMAR_BYTES_MAX, Grammar},
    tool_use::ToolUse,
};
use serde_json::{Map, Value, json};

use super::{
    error::ApiError,
    schemas::{self, Unenforced, parameters, relax},
    typed_json::brief,
};

/// The tools of a request.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Those that the model receives.
    pub(super) tools: Vec<Value>,
    /// The grammar of a required call.
    pub(super) grammar: Option<Grammar>,
    /// The constraint on calls, for heads that have it in the syntax of their model.
    pub(super) tool_use: Option<ToolUse>,
    /// What of its schema is not enforced.
    pub(super) unenforced: Unenforced,
    /// Whether the client used the older fields and expects them in the answer.
    pub(super) is_legacy: bool,
}

/// Whether and what an answer calls.
#[derive(Debug, PartialEq)]
enum ToolChoice {
    Auto,
    Never,
    Required,
    Named(String),
}

/// Takes the tools from the fields of a body.
///
/// # Errors
/// The first invalid part.
pub(super) fn read(object: &mut Map<String, Value>) -> Result<Calls, ApiError> {
    let given = |value: Option<Value>| value.filter(|value| !value.is_null());
    let tools = given(object.remove("tools"));
    let functions = given(object.remove("functions"));
    let legacy_choice = given(object.remove("function_call"));
    let is_legacy = tools.is_none() && functions.is_some();
    let (list, choice) = if is_legacy {
        let list = self::list("functions", functions)?;
        let list = list.into_iter().map(|function| json!({"type": "function", "function": function})).collect();
        (list, self::choice("function_call", legacy_choice.as_ref())?)
    } else {
        let choice = object.get("tool_choice").filter(|choice| !choice.is_null());
        (self::list("tools", tools)?, self::choice("tool_choice", choice)?)
    };
    let mut tools = chosen(list, &choice)?;
    if matches!(choice, ToolChoice::Required) && tools.is_empty() {
        let message = "tool_choice requires a call, but there are no tools; give tools";
        return Err(ApiError::invalid("tool_choice", message));
    }
    if choice == ToolChoice::Never {
        return Ok(Calls::default());
    }
    let is_forced = matches!(choice, ToolChoice::Required | ToolChoice::Named(_));
    let mut unenforced = Unenforced::new();
    let grammar = if is_forced { Some(call_grammar(&tools, &mut unenforced)?) } else { None };
    let is_one = is_legacy || matches!(choice, ToolChoice::Named(_));
    let tool_use = tool_use(&tools, ToolUse { is_required: is_forced, is_one, ..ToolUse::default() });
    // Templates walk through the parameters of each tool.
    for function in tools.iter_mut().filter_map(|tool| tool["function"].as_object_mut()) {
        if function.get("parameters").is_none_or(Value::is_null) {
            function.insert("parameters".into(), json!({"type": "object", "properties": {}}));
        }
    }
    Ok(Calls { tools, grammar, tool_use, unenforced, is_legacy })
}

fn list(param: &str, value: Option<Value>) -> Result<Vec<Value>, ApiError> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => Ok(list),
        Some(other) => Err(ApiError::invalid(param, format!("{param} is {}, it must be a list", brief(&other)))),
    }
}

fn choice(param: &str, value: Option<&Value>) -> Result<ToolChoice, ApiError> {
    let Some(value) = value else { return Ok(ToolChoice::Auto) };
    let name = value.get("function").unwrap_or(value).get("name").and_then(Value::as_str);
    let word = value.as_str().or_else(|| value.get("type")?.as_str());
    match (word, name) {
        (_, Some(name)) => Ok(ToolChoice::Named(name.into())),
        (Some("auto"), _) => Ok(ToolChoice::Auto),
        (Some("none"), _) => Ok(ToolChoice::Never),
        (Some("required" | "any"), _) => Ok(ToolChoice::Required),
        _ => {
            let message =
                format!("{param} is {}; use auto, none, required, or an object that names a function", brief(value));
            Err(ApiError::invalid(param, message))
        }
    }
}

/// Grammar of a call of one of the tools.
fn call_grammar(tools: &[Value], unenforced: &mut Unenforced) -> Result<Grammar, ApiError> {
    let mut functions = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        let function = &tool["function"];
        let mut parameters = parameters(function.get("parameters"));
        let is_strict = function.get("strict") == Some(&Value::Bool(true));
        relax(&mut parameters, &format!("tools[{index}].function.parameters"), is_strict, unenforced)?;
        functions.push((function["name"].clone(), parameters));
    }
    let schema = schemas::call(functions).to_string();
    if schema.len() > GRAMMAR_BYTES_MAX {
        let message = format!(
            "the parameters of the tools have {} bytes, at most {GRAMMAR_BYTES_MAX} if a call is required; give fewer",
            schema.len()
        );
        return Err(ApiError::invalid("tools", message));
    }
    Ok(Grammar::JsonSchema(schema))
}

/// The constraint on calls of these tools. What a head cannot enforce is left out of the schemas, and all schemas if they are
/// too large: only required calls may be refused for them.
fn tool_use(tools: &[Value], how: ToolUse) -> Option<ToolUse> {
    let list = |has_parameters: bool| {
        let tools = tools.iter().map(|tool| {
            let function = &tool["function"];
            let mut parameters = parameters(function.get("parameters").filter(|_| has_parameters));
            // Without strictness, nothing is refused.
            drop(relax(&mut parameters, "tools", false, &mut Unenforced::new()));
            if has_parameters {
                json!({"name": function["name"], "parameters": parameters})
            } else {
                json!({"name": function["name"]})
            }
        });
        Some(Value::Array(tools.collect()).to_string()).filter(|text| text.len() <= GRAMMAR_BYTES_MAX)
    };
    let tools = if tools.is_empty() { None } else { list(true).or_else(|| list(false)) };
    Some(ToolUse { tools: tools?, ..how })
}

/// The tools that may be called: only one, if the client names it.
fn chosen(list: Vec<Value>, choice: &ToolChoice) -> Result<Vec<Value>, ApiError> {
    let name = |tool: &Value| tool.get("function")?.get("name")?.as_str().map(str::to_owned);
    if let Some(index) = list.iter().position(|tool| name(tool).is_none()) {
        let param = format!("tools[{index}].function.name");
        return Err(ApiError::invalid(
            &param,
            format!("{param} is missing; describe each tool as a function with a name"),
        ));
    }
    let ToolChoice::Named(wanted) = choice else { return Ok(list) };
    let found: Vec<Value> = list.into_iter().filter(|tool| name(tool).as_ref() == Some(wanted)).collect();
    if found.is_empty() {
        return Err(ApiError::invalid(
            "tool_choice",
            format!("tool_choice names {wanted:?}, which is not among the tools"),
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(value: Value) -> Result<Calls, ApiError> {
        let mut object = value.as_object().expect("an object").clone();
        read(&mut object)
    }

    #[test]
    fn every_form_of_choice_is_understood_or_refused() {
        let tools = json!([{"type": "function", "function": {"name": "a"}}, {"function": {"name": "b"}}]);
        let read = |choice: Value| calls(json!({"tools": tools, "tool_choice": choice}));
        let forced = |choice: Value| read(choice).map(|calls| (calls.tools.len(), calls.grammar.is_some()));
        for required in [json!("required"), json!("any"), json!({"type": "any"})] {
            assert_eq!(forced(required), Ok((2, true)));
        }
        for named in [json!({"type": "function", "function": {"name": "b"}}), json!({"type": "tool", "name": "b"})] {
            assert_eq!(forced(named), Ok((1, true)));
        }
        for (free, count) in [(json!(null), 2), (json!("auto"), 2), (json!("none"), 0), (json!({"type": "auto"}), 2)] {
            assert_eq!(forced(free), Ok((count, false)));
        }
        for wrong in [json!("some"), json!(1), json!({"type": "allowed_tools"}), json!({"name": "c"})] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
        let found = read(json!("auto")).expect("it is good");
        assert_eq!(found.tools[0]["function"]["parameters"]["type"], "object", "templates walk through it");
    }

    #[test]
    fn older_functions_are_tools() {
        let functions = json!([{"name": "a", "parameters": {"type": "object"}}, {"name": "b"}]);
        let found = calls(json!({"functions": functions, "function_call": {"name": "b"}})).expect("it is good");
        assert!(found.is_legacy && found.grammar.is_some());
        assert_eq!(found.tools[0]["function"]["name"], "b");
        let found = calls(json!({"functions": functions, "function_call": "none"})).expect("it is good");
        assert!(found.tools.is_empty());
        assert!(calls(json!({"functions": 1})).is_err());
    }
}
