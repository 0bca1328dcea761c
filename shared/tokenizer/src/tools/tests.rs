//! Tool calls in answers that are split at every place.
use ToolFormat::{Hermes, Llama3, Xml};
use serde_json::json;

use super::*;

/// The tools of a request.
fn schemas() -> Arc<ToolSchemas> {
    let properties = json!({"city": {"type": "string"}, "days": {"type": "integer"}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}});
    let tools = json!([
        {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": properties}}},
        {"type": "function", "function": {"name": "now"}},
        7,
    ]);
    Arc::new(ToolSchemas::read(tools.as_array().expect("a list")))
}

/// All pieces of an answer, with adjacent content joined.
fn parse<'a>(format: ToolFormat, parts: impl Iterator<Item = &'a str>) -> Vec<Piece> {
    let mut parser = ToolParser::new(format, schemas());
    let mut pieces: Vec<Piece> = parts.flat_map(|part| parser.push(part)).collect();
    pieces.extend(parser.finish());
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (Some(Piece::Content(before)), Piece::Content(text)) => before.push_str(&text),
            (_, piece) => joined.push(piece),
        }
    }
    joined
}

fn content(text: &str) -> Piece {
    Piece::Content(text.into())
}

fn call(index: usize, name: &str, arguments: &str) -> Piece {
    Piece::Call { index, name: name.into(), arguments: arguments.into() }
}

/// Checks the pieces of a text: whole, in every split into three, and letter by letter.
#[track_caller]
fn check(format: ToolFormat, text: &str, expected: &[Piece]) {
    assert_eq!(parse(format, std::iter::once(text)), expected, "{text:?} whole");
    let places: Vec<usize> = (0..=text.len()).filter(|place| text.is_char_boundary(*place)).collect();
    for (index, first) in places.iter().enumerate() {
        for second in &places[index..] {
            let parts = [&text[..*first], &text[*first..*second], &text[*second..]];
            assert_eq!(parse(format, parts.into_iter()), expected, "{parts:?}");
        }
    }
    let letters = places.windows(2).map(|pair| &text[pair[0]..pair[1]]);
    assert_eq!(parse(format, letters), expected, "{text:?} letter by letter");
}

#[test]
fn calls_between_marks_are_found_with_the_text_around_them() {
    let one = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1.0, \"b\": [2]}}\n</tool_call>";
    let found = call(0, "add", "{\"a\": 1.0, \"b\": [2]}");
    check(Hermes, one, std::slice::from_ref(&found));
    check(Hermes, &format!("\n\n{one}\n"), std::slice::from_ref(&found));
    check(Hermes, &format!("Let me see.\n{one}\nDone."), &[content("Let me see."), found.clone(), content("\nDone.")]);
    let two = format!("{one}\n<tool_call>{{\"name\":\"é\",\"arguments\":{{}}}}</tool_call>");
    check(Hermes, &two, &[found, call(1, "é", "{}")]);
}

#[test]
fn markers_and_braces_in_strings_belong_to_the_call() {
    let text = r#"<tool_call>{"name":"say","arguments":{"text":"a </tool_call> \" } \\"}}</tool_call>!"#;
    check(Hermes, text, &[call(0, "say", r#"{"text":"a </tool_call> \" } \\"}"#), content("!")]);
}

#[test]
fn call_may_lack_end_marker_or_arguments() {
    check(Hermes, r#"<tool_call>{"name":"f","arguments":{}}"#, &[call(0, "f", "{}")]);
    check(Hermes, r#"<tool_call>{"name":"f"}</tool_call>"#, &[call(0, "f", "{}")]);
    check(Hermes, r#"<tool_call>{"name":"f","arguments":{}} and"#, &[call(0, "f", "{}"), content(" and")]);
    check(Hermes, r#"<tool_call>{"arguments":"{\"a\":1}","name":"f"}</tool_call>"#, &[call(0, "f", r#"{"a":1}"#)]);
}

#[test]
fn text_without_a_call_is_returned_unchanged() {
    for text in [
        "",
        " ",
        "a < b <tool",
        "a \n <tool_call",
        "<tool_call>",
        "<tool_call> nothing </tool_call>\n",
        "<tool_call>{\"name\": \"f\", \"arguments\": {</tool_call> end",
        "<tool_call>{\"name\": \"f\", \"arguments\": 7}</tool_call> end ",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"no\"}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>[1]</tool_call>",
        "<tool_call>{\"name\": \"cut off, \\",
        " \n</tool_call>",
    ] {
        let expected = if text.is_empty() { vec![] } else { vec![content(text)] };
        check(Hermes, text, &expected);
    }
    check(
        Hermes,
        "<tool_call>{x<tool_call>{\"name\":\"f\"}</tool_call>",
        &[content("<tool_call>{x"), call(0, "f", "{}")],
    );
}

#[test]
fn objects_at_the_beginning_are_calls_of_llama() {
    let one = r#"{"name": "get", "parameters": {"city": "Paris; {"}}"#;
    let found = call(0, "get", r#"{"city": "Paris; {"}"#);
    check(Llama3, one, std::slice::from_ref(&found));
    check(Llama3, &format!(" \n<|python_tag|>{one}\n"), std::slice::from_ref(&found));
    check(Llama3, &format!("{one}; {one}"), &[found.clone(), call(1, "get", r#"{"city": "Paris; {"}"#)]);
    check(Llama3, &format!("{one}\n\nThat is all."), &[found, content("\n\nThat is all.")]);
    check(Llama3, r#"{"type": "function", "function": "f", "parameters": {}}"#, &[call(0, "f", "{}")]);
}

#[test]
fn other_answers_of_llama_are_content() {
    for text in [
        "Hello {\"name\": \"f\", \"parameters\": {}}",
        "{\"name\": \"Ada\"}",
        "{\"name\": \"Ada\", \"parameters\": 3} {\"name\": \"f\", \"parameters\": {}}",
        " {\"answer\": 42} ",
        "<|python_tag|>print(1)",
        "<|python",
        "{\"name\": \"f\", \"parameters\": {\"a\"",
        "{unfinished",
    ] {
        check(Llama3, text, &[content(text)]);
    }
}

#[test]
fn without_a_format_all_is_content_at_once() {
    let mut parser = ToolParser::new(ToolFormat::None, schemas());
    assert_eq!(parser.push("<tool_call>{\"name\":\"f\"} "), [content("<tool_call>{\"name\":\"f\"} ")]);
    assert_eq!(parser.finish(), []);
}

#[test]
fn content_is_held_back_only_while_it_may_begin_a_call() {
    let mut parser = ToolParser::new(Hermes, schemas());
    assert_eq!(parser.push("a <b> <tool"), [content("a <b>")]);
    assert_eq!(parser.push("s"), [content(" <tools")]);
    let mut parser = ToolParser::new(Llama3, schemas());
    assert_eq!(parser.push("Hi"), [content("Hi")]);
    assert_eq!(parser.push(" {"), [content(" {")]);
}

#[test]
fn too_many_calls_and_too_long_ones_as_tags_are_content() {
    let calls = "<tool_call><function=now></function></tool_call>".repeat(CALLS_MAX + 1);
    let pieces = parse(Xml, std::iter::once(calls.as_str()));
    assert_eq!(pieces.len(), CALLS_MAX + 1);
    assert_eq!(pieces.last(), Some(&content("<tool_call><function=now></function></tool_call>")));
    let spaces = " ".repeat(CALL_BYTES_MAX);
    check_long(Xml, &format!("<tool_call><function=now>{spaces}</function></tool_call>"));
    check_long(Hermes, &format!("<tool_call>{{\"name\": \"f\"{spaces}}}</tool_call>"));
}

/// Checks that a call is content because of its length, in one piece and in many.
fn check_long(format: ToolFormat, text: &str) {
    let parts = text.as_bytes().chunks(64).map(|part| std::str::from_utf8(part).expect("ASCII"));
    let expected = [content(text)];
    assert!(parse(format, parts) == expected && parse(format, std::iter::once(text)) == expected, "{format:?}");
}

#[test]
fn too_long_call_and_all_text_after_it_are_content() {
    let mut parser = ToolParser::new(Hermes, schemas());
    let mut given = 0;
    let mut sent = 0;
    for part in std::iter::once("<tool_call>{\"").chain(std::iter::repeat_n("0123456789abcdef", CALL_BYTES_MAX / 8)) {
        sent += part.len();
        for piece in parser.push(part) {
            let Piece::Content(text) = piece else { panic!("it is no call") };
            given += text.len();
        }
        assert!(sent - given <= CALL_BYTES_MAX + held::OPENING.len() + part.len());
    }
    assert_eq!(given, sent);
    let calls = "<tool_call>{\"name\":\"f\"}</tool_call>".repeat(CALLS_MAX + 1);
    let pieces = parse(Hermes, std::iter::once(calls.as_str()));
    assert_eq!(pieces.len(), CALLS_MAX + 1);
    assert_eq!(pieces.last(), Some(&content("<tool_call>{\"name\":\"f\"}</tool_call>")));
}

#[test]
fn calls_as_tags_take_their_types_from_the_tools() {
    let text = "Let me see.\n<tool_call>\n<function=weather>\n<parameter=city>\n42 \"é\"\n</parameter>\n\
        <parameter=days>\n3\n</parameter>\n<parameter=other>\n{\"a\": [true]}\n</parameter>\n</function>\n</tool_call>";
    let found = call(0, "weather", r#"{"city":"42 \"é\"","days":3,"other":{"a":[true]}}"#);
    check(Xml, text, &[content("Let me see."), found.clone()]);
    let two = format!("{text}\n<tool_call><function=now></function></tool_call>\nDone.");
    check(Xml, &two, &[content("Let me see."), found, call(1, "now", "{}"), content("\nDone.")]);
    let lines =
        "<tool_call><function=weather><parameter=city>\n\na\n\n</parameter><parameter=note>null</parameter></function>";
    check(Xml, lines, &[call(0, "weather", r#"{"city":"\na\n","note":"null"}"#)]);
    let python = "<tool_call><function=f><parameter=a>True</parameter><parameter=b>None</parameter><parameter=c>x</parameter></function>";
    check(Xml, python, &[call(0, "f", r#"{"a":true,"b":null,"c":"x"}"#)]);
}

#[test]
fn calls_as_tags_may_lack_marks() {
    let bare = "<function=now>\n</function>\n</tool_call>";
    check(Xml, bare, &[call(0, "now", "{}")]);
    check(Xml, "<function=other></function>", &[content("<function=other></function>")]);
    let open = "<tool_call><function=weather><parameter=city>a<parameter=days>2</function></tool_call>";
    check(Xml, open, &[call(0, "weather", r#"{"city":"a","days":2}"#)]);
}

#[test]
fn text_without_a_call_as_tags_is_returned_unchanged() {
    for text in [
        " ",
        "a < b <tool",
        "<tool_call>",
        "<tool_call> nothing </tool_call>\n",
        "<tool_call>\n<functio",
        "<tool_call><function=weather><parameter=city>cut off",
        "<tool_call><function=></function> end",
        "<tool_call><function=weather>no parameter</function> end ",
        " \n</tool_call></function>",
    ] {
        check(Xml, text, &[content(text)]);
    }
}
