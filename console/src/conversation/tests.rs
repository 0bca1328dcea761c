//! Titles, the messages of a request, reading answers, and the exported forms.
use common::{
    chat::{AnswerForm, Thinking, ToolFormat},
    units::Nanoseconds,
};

use super::*;

fn turn(prompt: &str, answer: Option<&str>) -> ChatTurn {
    let answer = answer.map(|text| ChatAnswer { text: text.to_owned(), ..ChatAnswer::default() });
    ChatTurn { prompt: prompt.to_owned(), answer }
}

fn talk(turns: Vec<ChatTurn>) -> Conversation {
    Conversation { turns, ..Conversation::new("a-1".to_owned(), "be short".to_owned()) }
}

#[test]
fn messages_leave_out_prompts_without_an_answer_and_thoughts() {
    let mut all = talk(vec![turn("one", Some("1")), turn("lost", None), turn("failed", Some("")), turn("two", None)]);
    all.turns[0].answer.as_mut().expect("answered").thought = "secret".to_owned();
    let messages: Value = serde_json::from_str(&all.messages().expect("it is short")).expect("valid JSON");
    let expected = json!([
        {"role": "system", "content": "be short"}, {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"}, {"role": "user", "content": "two"},
    ]);
    assert_eq!(messages, expected);
    assert!(talk(Vec::new()).messages().is_err());
    let error = talk(vec![turn(&"x".repeat(PROMPT_BYTES_MAX), None)]).messages().expect_err("it is too long");
    assert!(error.contains("longer than"), "{error}");
    let error = talk(vec![turn("x", None); TURNS_MAX + 1]).messages().expect_err("it has too many turns");
    assert!(error.contains("turns"), "{error}");
}

#[test]
fn title_is_given_or_the_beginning_of_the_first_prompt() {
    assert_eq!(talk(Vec::new()).title(), "new conversation");
    assert_eq!(talk(vec![turn("hello", None)]).title(), "hello");
    assert_eq!(talk(vec![turn("first\nsecond", None)]).title(), "first…");
    assert_eq!(talk(vec![turn(&"é".repeat(60), None)]).title(), format!("{}…", "é".repeat(48)));
    let named = Conversation { title: "mine".to_owned(), ..talk(vec![turn("hello", None)]) };
    assert_eq!(named.title(), "mine");
}

#[test]
fn damaged_conversations_are_rejected() {
    assert_eq!(talk(Vec::new()).check(), Ok(()));
    for bad in [
        Conversation { version: 2, ..talk(Vec::new()) },
        Conversation { id: "../x".to_owned(), ..talk(Vec::new()) },
        Conversation { id: String::new(), ..talk(Vec::new()) },
        Conversation { title: "x".repeat(TITLE_BYTES_MAX + 1), ..talk(Vec::new()) },
        talk(vec![turn("x", None); TURNS_MAX + 1]),
    ] {
        assert!(bad.check().is_err(), "{}", bad.id);
    }
}

#[test]
fn thoughts_are_separated_while_they_arrive() {
    let form = AnswerForm { tool_format: ToolFormat::Hermes, thinking: Thinking::Open, ..AnswerForm::default() };
    let begun = read("first I add", &form);
    assert_eq!((begun.thought.as_str(), begun.text.as_str(), begun.thinks), ("first I add", "", true));
    let whole = read("first I add\n</think>\n\nIt is 4.", &form);
    assert_eq!((whole.thought.as_str(), whole.text.as_str(), whole.thinks), ("first I add", "It is 4.", false));
    assert_eq!(read("<think> stays", &AnswerForm::default()).text, "<think> stays");
}

#[test]
fn tool_calls_are_blocks_of_their_own() {
    let text = "Let me look.\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>\nDone.";
    let expected =
        [AnswerBlock::Text("Let me look."), AnswerBlock::Call("{\"name\": \"f\"}"), AnswerBlock::Text("Done.")];
    assert_eq!(blocks(text), expected);
    assert_eq!(blocks("a <TOOLCALL>[1"), [AnswerBlock::Text("a"), AnswerBlock::Call("[1")]);
    assert_eq!(blocks("  plain\n"), [AnswerBlock::Text("  plain\n")]);
    assert!(blocks("").is_empty());
    let (begin, many) = (std::time::Instant::now(), "<tool_call></tool_call>".repeat(300_000));
    assert_eq!(blocks(&many).len(), 300_000);
    assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?}", begin.elapsed());
}

#[test]
fn exported_forms_contain_all_turns() {
    let mut all = talk(vec![turn("2 + 2?", Some("4")), turn("why?", None)]);
    let answer = all.turns[0].answer.as_mut().expect("answered");
    (answer.model, answer.thought, answer.figures) =
        ("m.gguf".to_owned(), "add\nthem".to_owned(), "1 token".to_owned());
    let expected = "# 2 + 2?\n\nSystem prompt: be short\n\n## You\n\n2 + 2?\n\n## m.gguf\n\n> add\n> them\n\n4\n\n*1 token*\n\n## You\n\nwhy?\n";
    assert_eq!(all.markdown(), expected);
    assert_eq!(serde_json::from_str::<Conversation>(&all.json()).expect("valid JSON"), all);
}

#[test]
fn figures_are_one_line() {
    let times = RequestTimes {
        first_token: Nanoseconds(98_000_000),
        last_token: Nanoseconds(698_000_000),
        sampled_tokens: 31,
        ..RequestTimes::default()
    };
    assert_eq!(figures(&times, FinishReason::Stop), "31 tokens, 50.0 tok/s, first token after 98 ms, complete");
    assert_eq!(figures(&RequestTimes::default(), FinishReason::Cancelled), "stopped");
}
