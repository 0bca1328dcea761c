//! Calls as a model writes them, for templates that leave out the earlier calls of a conversation. Only in the syntaxes
//! of such templates: JSON objects between marks, and function calls of Python.
use serde_json::{Map, Value, json};

use super::{
    format::{Calls, ChatFormat},
    json::JsonMarks,
    pythonic::ListMarks,
};
use crate::one_line::OneLine;

/// A call of an earlier answer.
struct EarlierCall<'c> {
    name: &'c str,
    /// `None`: it has none.
    arguments: Option<&'c Map<String, Value>>,
}

impl ChatFormat {
    /// The text of an answer with these calls, which are those of a message in OpenAI's API, with arguments as objects.
    /// `None`: their syntax is not known here, or one of them is no call.
    pub(crate) fn write(&self, calls: &[Value]) -> Option<String> {
        let calls: Vec<EarlierCall<'_>> = calls.iter().map(EarlierCall::read).collect::<Option<_>>()?;
        match self.calls {
            Calls::Json(marks) => objects(marks, &calls),
            Calls::Pythonic(marks) => functions(marks, &calls),
            Calls::None | Calls::Tags | Calls::Keyed | Calls::Named(_) | Calls::Gemma | Calls::Harmony => None,
        }
    }
}

impl<'c> EarlierCall<'c> {
    fn read(call: &'c Value) -> Option<Self> {
        let function = call.get("function").unwrap_or(call);
        let name = function.get("name")?.as_str().filter(|name| !name.is_empty())?;
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => None,
            Some(arguments) => Some(arguments.as_object()?),
        };
        Some(Self { name, arguments })
    }

    /// The call as an object.
    fn object(&self) -> String {
        let none = Map::new();
        OneLine::JSON.text(&json!({"name": self.name, "arguments": self.arguments.unwrap_or(&none)}))
    }

    /// The call as a function call.
    fn function(&self) -> String {
        let mut out = format!("{}(", self.name);
        for (index, (key, value)) in self.arguments.into_iter().flatten().enumerate() {
            out.push_str(if index > 0 { ", " } else { "" });
            if is_name(key) {
                out.push_str(key);
            } else {
                out.push_str(&OneLine::PYTHON.text(&json!(key)));
            }
            out.push('=');
            out.push_str(&OneLine::PYTHON.text(value));
        }
        out.push(')');
        out
    }
}

/// Objects between marks; without marks, calls would look like content.
fn objects(marks: JsonMarks, calls: &[EarlierCall<'_>]) -> Option<String> {
    let open = marks.open.first()?;
    let close = marks.close.filter(|_| marks.is_closed).unwrap_or_default();
    let objects: Vec<String> = calls.iter().map(EarlierCall::object).collect();
    if marks.has_lists {
        return Some(format!("{open}[{}]{close}", objects.join(", ")));
    }
    let calls: Vec<String> = objects.iter().map(|object| format!("{open}\n{object}\n{close}")).collect();
    Some(calls.join("\n"))
}

fn functions(marks: ListMarks, calls: &[EarlierCall<'_>]) -> Option<String> {
    let (open, close) = (marks.open.first()?, marks.close);
    let calls: Vec<String> = calls.iter().map(EarlierCall::function).collect();
    Some(if marks.is_bracketed {
        format!("{open}[{}]{close}", calls.join(", "))
    } else {
        format!("{open}{}{close}", calls.join("\n"))
    })
}

/// Whether an argument of Python can have this name.
fn is_name(key: &str) -> bool {
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
    key.chars().all(is_letter) && key.starts_with(|letter: char| is_letter(letter) && !letter.is_numeric())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ToolFormat::{Capitals, Hermes, Lfm2, Listed, Llama3, Mistral, Olmo};
    use common::chat::{Thinking, ToolFormat};

    use super::*;
    use crate::answer::{AnswerParser, AnswerPart};

    fn written(format: ToolFormat, calls: &Value) -> Option<String> {
        ChatFormat::of(format).write(calls.as_array().expect("a list"))
    }

    #[test]
    fn written_calls_are_those_that_the_parser_reads() {
        let arguments = json!({"city": "Os\"lo'\n", "days": 2, "a b": [true, null, {"x": -1.5}], "é": {}, "o": false});
        let calls = json!([{"function": {"name": "look", "arguments": arguments}}, {"function": {"name": "now"}}]);
        for format in [Hermes, Lfm2, Olmo, Listed, Capitals] {
            let answer = written(format, &calls).expect("it has a syntax");
            let mut parser = AnswerParser::new(format, Thinking::None, Some(Arc::default()));
            let mut parts = parser.push(&answer);
            parts.extend(parser.finish());
            let mut found: Vec<[String; 2]> = Vec::new();
            for part in parts {
                match (part, found.last_mut()) {
                    (AnswerPart::Call { name, .. }, _) => found.push([name, String::new()]),
                    (AnswerPart::Arguments { text, .. }, Some([_, arguments])) => arguments.push_str(&text),
                    (part, _) => panic!("{format:?}: {part:?} of {answer}"),
                }
            }
            let found: Vec<(&str, Value)> = found
                .iter()
                .map(|[name, arguments]| (name.as_str(), serde_json::from_str(arguments).expect("JSON")))
                .collect();
            assert_eq!(found, [("look", arguments.clone()), ("now", json!({}))], "{answer}");
        }
    }

    #[test]
    fn calls_have_the_text_of_their_model() {
        let look = json!({"name": "look", "arguments": {"city": "Oslo", "wet": true}});
        let calls = json!([look, {"name": "now", "arguments": null}]);
        let text = |format| written(format, &calls);
        let functions = "look(city=\"Oslo\", wet=True)";
        let lfm2 = format!("<|tool_call_start|>[{functions}, now()]<|tool_call_end|>");
        assert_eq!(text(Lfm2), Some(lfm2));
        assert_eq!(text(Olmo), Some(format!("<function_calls>{functions}\nnow()</function_calls>")));
        let objects =
            [r#"{"name": "look", "arguments": {"city": "Oslo", "wet": true}}"#, r#"{"name": "now", "arguments": {}}"#];
        let hermes = objects.map(|object| format!("<tool_call>\n{object}\n</tool_call>")).join("\n");
        assert_eq!(text(Hermes), Some(hermes));
        let list = objects.join(", ");
        assert_eq!(text(Listed), Some(format!("<|tool_call|>[{list}]")), "Granite 3 writes no end");
        let phi = ChatFormat::detect("<|tool|>").write(calls.as_array().expect("a list"));
        assert_eq!(phi, Some(format!("<|tool_call|>[{list}]<|/tool_call|>")));
        assert_eq!((text(ToolFormat::None), text(Llama3), text(Mistral)), (None, None, None));
        for wrong in [json!([7]), json!([{"name": ""}]), json!([{"name": "f", "arguments": "x"}])] {
            assert_eq!(written(Lfm2, &wrong), None, "{wrong}");
        }
    }
}
