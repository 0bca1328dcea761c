//! Answers of all formats, split at every place.
use ToolFormat::{Hermes, Keyed, Lfm2, Llama3, Mistral, Xml};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{syntax::NAME_BYTES_MAX, *};

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

/// A part of a message.
#[derive(Clone, Debug, PartialEq)]
enum Found {
    Thought(String),
    Content(String),
    Call { index: usize, name: String, arguments: String },
}

/// The message that a client puts together: adjacent texts joined, and without calls that turned out to be none.
fn joined(parts: Vec<AnswerPart>) -> Vec<Found> {
    let mut message: Vec<Found> = Vec::new();
    for part in parts {
        match (message.last_mut(), part) {
            (Some(Found::Content(before)), AnswerPart::Content(text)) => before.push_str(&text),
            (Some(Found::Thought(before)), AnswerPart::Thought(text)) => before.push_str(&text),
            (_, AnswerPart::Content(text)) => message.push(Found::Content(text)),
            (_, AnswerPart::Thought(text)) => message.push(Found::Thought(text)),
            (_, AnswerPart::Call { index, name }) => {
                message.push(Found::Call { index, name, arguments: String::new() });
            }
            (Some(Found::Call { index, arguments, .. }), AnswerPart::Arguments { index: of, text }) if *index == of => {
                arguments.push_str(&text);
            }
            (Some(Found::Call { index, .. }), AnswerPart::Broken { index: of }) if *index == of => {
                message.pop();
            }
            (_, part) => panic!("{part:?} without its call"),
        }
    }
    // Content around what was no call.
    message.dedup_by(|text, before| match (before, text) {
        (Found::Content(before), Found::Content(text)) => {
            before.push_str(text);
            true
        }
        _ => false,
    });
    message
}

/// The message of an answer that arrives in these pieces.
fn parse_thinking<'a>(format: ToolFormat, thinking: Thinking, pieces: impl Iterator<Item = &'a str>) -> Vec<Found> {
    let mut parser = AnswerParser::new(format, thinking, Some(schemas()));
    let mut parts: Vec<AnswerPart> = pieces.flat_map(|piece| parser.push(piece)).collect();
    parts.extend(parser.finish());
    joined(parts)
}

fn parse<'a>(format: ToolFormat, parts: impl Iterator<Item = &'a str>) -> Vec<Found> {
    parse_thinking(format, Thinking::None, parts)
}

fn content(text: &str) -> Found {
    Found::Content(text.into())
}

fn call(index: usize, name: &str, arguments: &str) -> Found {
    Found::Call { index, name: name.into(), arguments: arguments.into() }
}

/// Checks the message of a text: whole, in every split into two, and letter by letter.
#[track_caller]
fn check_thinking(format: ToolFormat, thinking: Thinking, text: &str, expected: &[Found]) {
    assert_eq!(parse_thinking(format, thinking, std::iter::once(text)), expected, "{text:?} whole");
    let places: Vec<usize> = (0..=text.len()).filter(|place| text.is_char_boundary(*place)).collect();
    for place in &places {
        let parts = [&text[..*place], &text[*place..]];
        assert_eq!(parse_thinking(format, thinking, parts.into_iter()), expected, "{parts:?}");
    }
    let letters = places.windows(2).map(|pair| &text[pair[0]..pair[1]]);
    assert_eq!(parse_thinking(format, thinking, letters), expected, "{text:?} letter by letter");
}

#[track_caller]
fn check(format: ToolFormat, text: &str, expected: &[Found]) {
    check_thinking(format, Thinking::None, text, expected);
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
fn second_name_does_not_replace_the_first_which_a_stream_has_passed_on() {
    let text = r#"<tool_call>{"name":"f","arguments":{},"name":"g"}</tool_call>"#;
    let mut parser = AnswerParser::new(Hermes, Thinking::None, Some(schemas()));
    let (parts, rest) = (parser.push(text), joined(parser.finish()));
    let names: Vec<&str> = parts
        .iter()
        .filter_map(|part| match part {
            AnswerPart::Call { name, .. } => Some(name.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!((names, rest.len()), (vec!["f"], 0), "{parts:?}");
    check(Hermes, text, &[content(text)]);
}

/// A call may begin inside what was too long for a name, however the text arrives.
#[test]
fn too_long_names_are_content_up_to_the_next_call() {
    let long = "n".repeat(NAME_BYTES_MAX);
    let keyed = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>";
    let text = format!("<tool_call>{long} {keyed}");
    check(Keyed, &text, &[content(&format!("<tool_call>{long}")), call(0, "f", r#"{"a":1}"#)]);
    let spaced = format!("<tool_call>f{}\n</tool_call>", " ".repeat(NAME_BYTES_MAX));
    check(Keyed, &spaced, &[content(&spaced)]);
    let mistral = format!("[TOOL_CALLS]{long}n[ARGS]{{}}");
    check(Mistral, &mistral, &[content(&mistral)]);
    let apart = format!("[TOOL_CALLS]f[ARGS]{}{{}}", " ".repeat(NAME_BYTES_MAX + 1));
    check(Mistral, &apart, &[call(0, "f", "{}")]);
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
    let mut parser = AnswerParser::new(ToolFormat::None, Thinking::None, Some(schemas()));
    assert_eq!(joined(parser.push("<tool_call>{\"name\":\"f\"} ")), [content("<tool_call>{\"name\":\"f\"} ")]);
    assert_eq!(joined(parser.finish()), []);
}

#[test]
fn content_is_held_back_only_while_it_may_begin_a_call() {
    let mut parser = AnswerParser::new(Hermes, Thinking::None, Some(schemas()));
    assert_eq!(joined(parser.push("a <b> <tool")), [content("a <b>")]);
    assert_eq!(joined(parser.push("s")), [content(" <tools")]);
    let mut parser = AnswerParser::new(Llama3, Thinking::None, Some(schemas()));
    assert_eq!(joined(parser.push("Hi")), [content("Hi")]);
    assert_eq!(joined(parser.push(" {")), [content(" {")]);
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
    let mut parser = AnswerParser::new(Hermes, Thinking::None, Some(schemas()));
    let mut given = 0;
    let mut sent = 0;
    for part in std::iter::once("<tool_call>{\"").chain(std::iter::repeat_n("0123456789abcdef", CALL_BYTES_MAX / 8)) {
        sent += part.len();
        for piece in parser.push(part) {
            let AnswerPart::Content(text) = piece else { panic!("it is no call") };
            given += text.len();
        }
        assert!(sent - given <= CALL_BYTES_MAX + "<tool_call>".len() + part.len());
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

/// Checks thought and answer of a text.
#[track_caller]
fn check_thoughts(thinking: Thinking, text: &str, thought: &str, answer: &str) {
    let parts = [Found::Thought(thought.into()), content(answer)];
    let expected: Vec<Found> =
        [thought, answer].iter().zip(parts).filter(|(text, _)| !text.is_empty()).map(|(_, part)| part).collect();
    for format in [ToolFormat::None, Llama3, Lfm2] {
        check_thinking(format, thinking, text, &expected);
    }
}

#[test]
fn thoughts_at_the_beginning_are_apart_from_the_answer() {
    check_thoughts(Thinking::Marked, "<think>\nhm, 2 < 3\n\nyes\n</think>\n\nIt is.\n", "hm, 2 < 3\n\nyes", "It is.\n");
    check_thoughts(Thinking::Marked, "\n<think>a</think>b", "a", "b");
    check_thoughts(Thinking::Marked, "<think>\n\n</think>\n\nb", "", "b");
    check_thoughts(Thinking::Open, "hm</th </think>\né", "hm</th", "é");
    check_thoughts(Thinking::Open, "\n<think>hm</think>a</think>", "hm", "a</think>");
    let both = [Found::Thought("one call".into()), content("<tool_call>{}")];
    check_thinking(Hermes, Thinking::Open, "one call <tool_call>{}", &both);
}

#[test]
fn mark_of_a_call_in_a_thought_is_text_without_tools() {
    let mut parser = AnswerParser::new(Hermes, Thinking::Open, None);
    let mut parts = parser.push("It uses <tool_call> tags.</think>\n\nSo");
    parts.extend(parser.finish());
    let expected = [AnswerPart::Thought("It uses <tool_call> tags.".into()), AnswerPart::Content("So".into())];
    assert_eq!(parts, expected);
}

#[test]
fn a_prompt_that_ends_inside_a_thought_is_found() {
    assert_eq!(ChatFormat::of(Hermes).thinking_behind("<|im_start|>assistant\n<think>\n"), Thinking::Open);
    assert_eq!(ChatFormat::of(Hermes).thinking_behind("assistant\n<think>\n\n</think>\n\n"), Thinking::Marked);
}

#[test]
fn answers_without_thoughts_are_unchanged() {
    for text in ["", " \n", "<thin", "2 < 3", " an answer about <think>a</think>"] {
        check_thoughts(Thinking::Marked, text, "", text);
        check_thoughts(Thinking::None, text, "", text);
    }
    check_thoughts(Thinking::None, "<think>a</think>", "", "<think>a</think>");
}

#[test]
fn a_thought_that_does_not_end_is_no_answer() {
    check_thoughts(Thinking::Open, " and then\n", "and then", "");
    check_thoughts(Thinking::Open, " ", "", "");
    check_thoughts(Thinking::Marked, "<think> and </thi", "and </thi", "");
}

/// An answer with its message, from a file.
#[derive(Debug, Deserialize)]
struct Stream {
    format: ToolFormat,
    /// Where the answer is from.
    source: String,
    #[serde(default)]
    thinking: Thinking,
    text: String,
    #[serde(default)]
    thought: String,
    #[serde(default)]
    content: String,
    #[serde(default)]
    calls: Vec<(String, Value)>,
}

/// Answers written after the templates, the documentation and the tests of others.
fn streams() -> Vec<Stream> {
    serde_json::from_str(include_str!("streams.json")).expect("a list of answers")
}

#[test]
fn every_format_has_three_streams_that_give_the_same_message_however_they_are_cut() {
    for stream in streams() {
        let thinking = if stream.thinking == Thinking::None { Thinking::Marked } else { stream.thinking };
        let whole = parse_thinking(stream.format, thinking, std::iter::once(stream.text.as_str()));
        let of = |wanted: fn(&Found) -> Option<&str>| whole.iter().filter_map(wanted).collect::<String>();
        let thought = of(|part| if let Found::Thought(text) = part { Some(text) } else { None });
        let text = of(|part| if let Found::Content(text) = part { Some(text) } else { None });
        let calls: Vec<(String, Value)> = whole
            .iter()
            .filter_map(|part| match part {
                Found::Call { name, arguments, .. } => {
                    Some((name.clone(), serde_json::from_str(arguments).expect(arguments)))
                }
                _ => None,
            })
            .collect();
        assert_eq!(
            (thought, text, calls),
            (stream.thought.clone(), stream.content.clone(), stream.calls.clone()),
            "{stream:?}"
        );
        check_thinking(stream.format, thinking, &stream.text, &whole);
    }
    for row in CHAT_FORMATS {
        let count = streams().iter().filter(|stream| stream.format == row.format && !stream.source.is_empty()).count();
        assert!(count >= 3, "{:?} has {count} streams", row.format);
    }
}

/// The letters and marks of which mutants consist.
fn pieces_of(format: ToolFormat) -> Vec<&'static str> {
    let row = ChatFormat::of(format);
    let common =
        ["{", "}", "[", "]", "(", ")", "\"", "'", "\\", ":", "=", ",", ";", " ", "\n", "é", "call:", "```json", "```"];
    let tags = [
        "<function=",
        "</function>",
        "<parameter=",
        "</parameter>",
        ">",
        "\"name\"",
        "\"arguments\"",
        "1",
        "f",
        "<|\"|>",
    ];
    let marks =
        [row.thinking.begin, row.thinking.end, "</tool_call>", "<tool_call>", " to=functions.f", "<function_calls>"];
    row.preserved.iter().copied().chain(common).chain(tags).chain(marks).collect()
}

/// The letters of a message without white space, in which nothing may be lost but marks that mean nothing.
fn letters(format: ToolFormat, message: &[Found]) -> usize {
    let marks = ChatFormat::of(format).thinking;
    message
        .iter()
        .map(|part| match part {
            Found::Thought(text) | Found::Content(text) if marks.returns => {
                text.replace(marks.begin, "").replace(marks.end, "")
            }
            Found::Thought(text) | Found::Content(text) => text.clone(),
            Found::Call { .. } => String::new(),
        })
        .map(|text| text.chars().filter(|letter| !letter.is_whitespace()).count())
        .sum()
}

#[test]
fn mutants_of_answers_are_read_alike_however_they_are_cut_and_lose_nothing() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |most: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % most as u64) as usize
    };
    let streams = streams();

    for _ in 0..100_000 {
        let Stream { format, text, .. } = &streams[below(streams.len())];
        let pieces = pieces_of(*format);
        let mut mutant = text.clone();
        for _ in 0..=below(4) {
            let at = mutant.floor_char_boundary(below(mutant.len() + 1));
            let end = mutant.floor_char_boundary((at + below(8)).min(mutant.len())).max(at);
            match below(3) {
                0 => mutant.insert_str(at, pieces[below(pieces.len())]),
                1 => mutant.replace_range(at..end, pieces[below(pieces.len())]),
                _ => mutant.replace_range(at..end, ""),
            }
        }
        let thinking = [Thinking::None, Thinking::Marked, Thinking::Open][below(3)];
        let whole = parse_thinking(*format, thinking, std::iter::once(mutant.as_str()));
        let letters_apart = mutant.char_indices().map(|(at, letter)| &mutant[at..at + letter.len_utf8()]);
        assert_eq!(parse_thinking(*format, thinking, letters_apart), whole, "{format:?} {thinking:?} {mutant:?}");
        let mut cut = Vec::new();
        let mut rest = mutant.as_str();
        while !rest.is_empty() {
            let (part, more) = rest.split_at(rest.ceil_char_boundary(1 + below(12).min(rest.len() - 1)));
            cut.push(part);
            rest = more;
        }
        assert_eq!(parse_thinking(*format, thinking, cut.into_iter()), whole, "{format:?} {thinking:?} {mutant:?}");
        for part in &whole {
            if let Found::Call { arguments, .. } = part {
                let is_object = serde_json::from_str::<serde_json::Map<String, Value>>(arguments).is_ok();
                assert!(is_object, "{format:?} {mutant:?}: {arguments}");
            }
        }
        let without_calls = AnswerParser::new(*format, Thinking::None, None);
        let has_calls = whole.iter().any(|part| matches!(part, Found::Call { .. }));
        if !has_calls && thinking == Thinking::None && *format != ToolFormat::Harmony {
            let mut plain = without_calls;
            let mut parts = plain.push(&mutant);
            parts.extend(plain.finish());
            assert_eq!(letters(*format, &whole), letters(*format, &joined(parts)), "{format:?} {mutant:?}");
        }
    }
}
