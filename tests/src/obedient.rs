//! Answers of a model whose user tells it what to do, for tests of programs that have prompts of their own: a
//! message of the user with `SAY[[[text]]]` is answered by the text, one with `CALL[[[name {..}]]]` (the space may
//! be missing) by a call of that tool, and the result of a tool by repeating it. Answers are in the format of
//! Hermes and Qwen and begin with a thought.
use serde_json::Value;

/// The answer to a conversation without such a message.
pub const GREETING: &str = "Hello.";

const THOUGHT: &str = "<think>\nHm.\n</think>\n\n";

/// The text of a message whose content is a string or a list of parts.
fn text(message: &Value) -> String {
    match &message["content"] {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        content => content.as_str().unwrap_or_default().to_owned(),
    }
}

/// The last part of a text in `NAME[[[..]]]`.
fn asked<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.rsplit_once(&format!("{name}[[["))?;
    rest.split_once("]]]").map(|(asked, _)| asked)
}

/// The answer to a JSON array of messages, with the marks of its format.
pub fn answer(messages: &str) -> String {
    let list: Vec<Value> = serde_json::from_str(messages).unwrap_or_default();
    let is_result = list.last().is_some_and(|message| message["role"] == "tool");
    if let Some(result) = list.last().filter(|_| is_result) {
        return format!("{THOUGHT}The tool said: {}", text(result));
    }
    for said in list.iter().rev().filter(|message| message["role"] == "user").map(text) {
        if let Some((name, arguments)) = asked(&said, "CALL").and_then(|call| call.split_at_checked(call.find('{')?)) {
            let name = name.trim_end();
            return format!("{THOUGHT}<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>");
        }
        if let Some(words) = asked(&said, "SAY") {
            return format!("{THOUGHT}{words}");
        }
    }
    format!("{THOUGHT}{GREETING}")
}

#[cfg(test)]
mod tests {
    use super::answer;

    #[test]
    fn user_decides_the_answer() {
        let call = r#"[{"role": "user", "content": [{"type": "text", "text": "CALL[[[f {\"a\": 1}]]]"}]}]"#;
        assert!(answer(call).ends_with("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"));
        assert!(answer(&call.replace("f {", "f{")).contains("\"name\": \"f\", "));
        let result = r#"[{"role": "user", "content": "CALL[[[f{}]]]"}, {"role": "tool", "content": "7"}]"#;
        assert!(answer(result).ends_with("The tool said: 7"));
        assert!(answer(r#"[{"role": "user", "content": "SAY[[[a [1]\nb]]] please"}]"#).ends_with("\n\na [1]\nb"));
        assert!(answer("[]").ends_with("Hello."));
    }
}
