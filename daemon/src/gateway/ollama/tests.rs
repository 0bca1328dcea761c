//! Bodies of Ollama's API as chats, and answers as its records.
use std::time::Duration;

use protocol::message::Prompt;
use serde_json::{Value, json};

use super::{
    records::{RecordWriter, Shape, timestamp},
    request::{self, OllamaRequest},
};
use crate::gateway::{
    answer::Ended,
    choice::ChoicePart,
    error::ApiError,
    object::Usage,
    request::Kind,
    writer::{Framing, Tally, Writer},
};

fn chat(body: Value) -> Result<OllamaRequest, ApiError> {
    request::chat(body.as_object().expect("an object").clone())
}

fn generate(body: Value) -> Result<OllamaRequest, ApiError> {
    request::generate(body.as_object().expect("an object").clone())
}

#[test]
fn options_formats_and_names_have_their_counterparts() {
    let options = json!({"num_predict": 7, "temperature": 0, "stop": "x", "num_ctx": 4096, "top_k": 3});
    let body = json!({"model": "m:latest", "messages": [{"role": "user", "content": "Hi"}], "options": options});
    let OllamaRequest { chat: found, name, .. } = chat(body).expect("it is good");
    assert_eq!((&found["model"], name.as_deref()), (&json!("m"), Some("m:latest")));
    assert_eq!((&found["max_tokens"], &found["stop"], &found["stream"]), (&json!(7), &json!("x"), &json!(true)));
    assert_eq!((&found["top_k"], found.get("num_ctx")), (&json!(3), None));
    let with = |name: &str, value: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": false});
        body[name] = value;
        chat(body).map(|translated| translated.chat)
    };
    let plain = with("format", json!("")).expect("it is good");
    assert_eq!((&plain["max_tokens"], &plain["stream"]), (&json!(-1), &json!(false)));
    assert_eq!(plain.get("response_format"), None);
    assert_eq!(with("format", json!("json")).expect("good")["response_format"], json!({"type": "json_object"}));
    let schema = json!({"type": "object"});
    assert_eq!(with("format", schema.clone()).expect("good")["response_format"]["schema"], schema);
    assert_eq!(with("think", json!(false)).expect("good")["enable_thinking"], false);
    assert_eq!(with("think", json!("low")).expect("good")["reasoning_effort"], "low");
    for unlimited in [0, -1, -2] {
        assert_eq!(with("options", json!({"num_predict": unlimited})).expect("good")["max_tokens"], -1);
    }
    for (name, wrong) in [("format", json!("xml")), ("think", json!(1)), ("options", json!(1)), ("messages", json!(1))]
    {
        assert!(with(name, wrong).is_err(), "{name}");
    }
}

#[test]
fn results_of_tools_find_their_calls() {
    let call = |name: &str| json!({"function": {"name": name, "arguments": {"a": 1}}});
    let body = json!({"messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call("f"), call("g")]},
        {"role": "tool", "tool_name": "g", "content": "4"},
        {"role": "tool", "content": "3"},
        {"role": "tool", "content": "5"},
    ]});
    let found = chat(body).expect("it is good").chat;
    let messages = &found["messages"];
    assert_eq!(messages[1]["reasoning_content"], "Hm.");
    assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
    assert_eq!(messages[2]["tool_call_id"], messages[1]["tool_calls"][1]["id"]);
    assert_eq!(messages[3]["tool_call_id"], messages[1]["tool_calls"][0]["id"]);
    assert_eq!(messages[4]["tool_call_id"], json!(null), "there is no further call");
    assert!(chat(json!({"messages": [{"role": "user", "content": "Hi", "images": ["aGk="]}]})).is_err());
    assert!(chat(json!({"messages": [7]})).is_ok(), "the chat refuses it");
}

#[test]
fn completions_are_chats_of_one_turn_or_raw() {
    let found = generate(json!({"prompt": "Hi", "system": "S"})).expect("it is good");
    assert_eq!(found.chat["messages"][0]["content"], "S");
    assert_eq!((found.kind, &found.chat["messages"][1]["content"]), (Kind::Chat, &json!("Hi")));
    let raw = generate(json!({"prompt": "Hi", "raw": true})).expect("it is good");
    assert!(raw.kind == Kind::Completion && matches!(&raw.prompts[..], [Prompt::Text(text)] if text == "Hi"));
    assert_eq!(generate(json!({"model": "m"})).expect("it loads the model").chat["messages"], json!([]));
    assert!(generate(json!({"prompt": "Hi", "context": []})).is_ok());
    for wrong in [
        json!({"prompt": 1}),
        json!({"suffix": "x"}),
        json!({"images": ["x"]}),
        json!({"prompt": "Hi", "context": [1, 2]}),
    ] {
        assert!(generate(wrong.clone()).is_err(), "{wrong}");
    }
}

fn parts() -> Vec<ChoicePart> {
    let call = |index: usize| ChoicePart::Call { index, name: format!("f{index}") };
    let arguments = |index: usize| ChoicePart::Arguments { index, text: "{\"a\":1}".into() };
    vec![
        ChoicePart::Started,
        ChoicePart::Thought("Hm.".into()),
        ChoicePart::Content("Look.".into(), Vec::new()),
        call(0),
        arguments(0),
        call(1),
        arguments(1),
        call(2),
        ChoicePart::Broken,
        ChoicePart::End("tool_calls", Box::<Ended>::default()),
    ]
}

fn tally() -> Tally {
    let usage = Usage { prompt: 12, cached: 4, completion: 9, reasoning: 2, ..Usage::default() };
    Tally { usage, elapsed: Duration::from_millis(5), ..Tally::default() }
}

#[test]
fn records_have_thoughts_text_and_calls() {
    let mut writer = RecordWriter::new(Shape::Message, None, "7", 0);
    writer.begin("m.gguf", "");
    let mut records: Vec<Value> = parts().into_iter().flat_map(|part| writer.stream(0, part, &tally())).collect();
    records.extend(writer.finish(&tally()));
    let of = |index: usize| records[index]["message"].clone();
    assert_eq!(of(0), json!({"role": "assistant", "content": "", "thinking": "Hm."}));
    assert_eq!(of(1), json!({"role": "assistant", "content": "Look."}));
    for number in [0, 1] {
        let function = json!({"index": number, "name": format!("f{number}"), "arguments": {"a": 1}});
        assert_eq!(of(2 + number)["tool_calls"][0]["function"], function);
    }
    let last = &records[4];
    assert_eq!(
        (&last["done"], &last["done_reason"], &last["model"]),
        (&json!(true), &json!("stop"), &json!("m:latest"))
    );
    assert_eq!((&last["total_duration"], &last["eval_count"]), (&json!(5_000_000), &json!(9)));
    assert_eq!(records.len(), 5);
    assert_eq!(Framing::Lines.record(&json!({})), "{}\n");

    let mut writer = RecordWriter::new(Shape::Response, Some("x".into()), "7", 0);
    parts().into_iter().for_each(|part| writer.keep(0, part));
    let whole = writer.whole(&tally());
    assert_eq!(
        (&whole["response"], &whole["thinking"], &whole["model"]),
        (&json!("Look."), &json!("Hm."), &json!("x"))
    );
    assert_eq!(timestamp(1_795_676_580), "2026-11-26T07:03:00Z");
}
