//! Bodies of the Responses API as chats, answers as its events and objects, and what is kept.
use serde_json::{Value, json};

use super::{
    events::ResponseWriter,
    request::{ResponsesRequest, translate},
    store::{ResponseStore, new_id},
};
use crate::gateway::{choice::ChoicePart, error::ApiError, object::Usage, writer::Tally};

fn translated(body: Value) -> Result<ResponsesRequest, ApiError> {
    translate(body.as_object().expect("an object").clone(), Vec::new(), |_| None)
}

#[test]
fn ids_have_32_digits_and_differ() {
    let [one, two] = [(); 2].map(|()| new_id().expect("random numbers"));
    assert!(one.len() == 32 && one.bytes().all(|digit| digit.is_ascii_hexdigit()), "{one}");
    assert_ne!(one, two);
}

#[test]
fn items_become_turns_of_a_chat() {
    let body = json!({
        "model": "m", "instructions": "Be brief.", "max_output_tokens": 7, "reasoning": {"effort": "low"},
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look."}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "4"}]},
        ],
    });
    let ResponsesRequest { chat, messages, echo } = translated(body).expect("it is good");
    let call =
        |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
    let expected = json!([
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant", "content": "Look.", "reasoning_content": "Hm.",
            "tool_calls": [call("c1", "f"), call("c2", "g")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "tool", "tool_call_id": "c2", "content": "4"},
    ]);
    assert_eq!(Value::from(messages), expected);
    assert_eq!(chat["messages"][0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!((&chat["max_tokens"], &chat["reasoning_effort"]), (&json!(7), &json!("low")));
    assert_eq!(echo["instructions"], "Be brief.");
}

#[test]
fn images_in_results_of_tools_are_left_out() {
    let output = json!([{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:x"}]);
    let item = json!({"type": "function_call_output", "call_id": "c1", "output": output});
    let messages = translated(json!({"input": [item]})).expect("it is good").messages;
    assert_eq!(messages[0]["content"], "a\n[input_image left out: this model reads only text]");
}

#[test]
fn tools_and_formats_have_their_counterparts() {
    let tool = json!({"type": "function", "name": "f", "description": null, "parameters": {}, "strict": true});
    let format = json!({"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true});
    let body = json!({
        "input": "Hi", "tools": [tool], "tool_choice": {"type": "function", "name": "f"}, "text": {"format": format},
    });
    let chat = translated(body).expect("it is good").chat;
    let function = json!({"name": "f", "parameters": {}, "strict": true});
    assert_eq!(chat["tools"], json!([{"type": "function", "function": function}]));
    assert_eq!(chat["response_format"]["json_schema"]["schema"]["type"], "object");
    for (body, name) in [
        (json!({"input": "Hi", "tools": [{"type": "web_search"}]}), "web_search"),
        (json!({"input": "Hi", "background": true}), "background"),
        (json!({"input": "Hi", "conversation": "c"}), "conversation"),
        (json!({"input": [{"type": "computer_call"}]}), "computer_call"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}), "input_image"),
        (json!({"input": [{"type": "item_reference", "id": "msg_1_0"}]}), "msg_1_0"),
        (json!({"input": [7]}), "role"),
        (json!({}), "input"),
    ] {
        let refused = translated(body.clone()).expect_err(name);
        assert!(refused.message().contains(name), "{body}: {}", refused.message());
    }
}

#[test]
fn references_are_bounded_by_the_length_of_a_prompt() {
    let item = json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x".repeat(500_000)}]});
    let translated = |count| {
        let input = vec![json!({"type": "item_reference", "id": "msg_1_0"}); count];
        let body = json!({"input": input}).as_object().expect("an object").clone();
        translate(body, Vec::new(), |_| Some(item.to_string())).map(|request| request.messages.len())
    };
    assert!(translated(4).is_ok());
    assert!(translated(20_000).is_err_and(|error| error.code == "prompt_too_large"));
}

fn parts(reason: &'static str) -> [ChoicePart; 6] {
    [
        ChoicePart::Started,
        ChoicePart::Thought("Hm.".into()),
        ChoicePart::Content("Look.".into(), Vec::new()),
        ChoicePart::Call { index: 0, name: "f".into() },
        ChoicePart::Arguments { index: 0, text: "{}".into() },
        ChoicePart::End(reason, Box::default()),
    ]
}

fn writer() -> ResponseWriter {
    let mut writer = ResponseWriter::new("7".into(), 1, json!({"store": false}).as_object().expect("one").clone());
    writer.begin("m");
    writer
}

fn tally() -> Tally {
    Tally {
        usage: Usage { prompt: 12, cached: 4, completion: 9, reasoning: 2, ..Usage::default() },
        ..Tally::default()
    }
}

#[test]
fn stream_is_the_documented_sequence_of_events() {
    let mut writer = writer();
    let mut events: Vec<Value> =
        parts("tool_calls").into_iter().flat_map(|part| writer.stream(part, &tally())).collect();
    let alive = writer.alive(&tally()).expect("an event");
    assert_eq!((&alive["type"], &alive["sequence_number"]), (&json!("response.in_progress"), &json!(events.len())));
    events.push(alive);
    events.extend(writer.finish(&tally()));
    let kinds: Vec<&str> =
        events.iter().filter_map(|event| event["type"].as_str()?.strip_prefix("response.")).collect();
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "in_progress",
        "completed",
    ];
    assert_eq!(kinds, expected);
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], index);
    }
    let response = &events[19]["response"];
    assert_eq!((&response["status"], &response["store"]), (&json!("completed"), &json!(false)));
    assert_eq!(response["usage"]["output_tokens_details"]["reasoning_tokens"], 2);
    assert_eq!(response["output"][2], events[17]["item"]);
    assert_eq!(events[0]["response"]["status"], "in_progress");
}

#[test]
fn calls_that_break_off_are_not_in_the_response() {
    let mut writer = writer();
    let parts = [
        ChoicePart::Started,
        ChoicePart::Call { index: 0, name: "f".into() },
        ChoicePart::Broken,
        ChoicePart::Content("f(".into(), Vec::new()),
        ChoicePart::End("stop", Box::default()),
    ];
    let events: Vec<Value> = parts.into_iter().flat_map(|part| writer.stream(part, &tally())).collect();
    assert_eq!(
        (&events[3]["type"], &events[3]["item"]["status"]),
        (&json!("response.output_item.done"), &json!("incomplete"))
    );
    let response = writer.object(&tally());
    assert_eq!(response["output"].as_array().map(Vec::len), Some(1));
    assert_eq!(response["output"][0]["content"][0]["text"], "f(");
    assert_eq!(writer.message().expect("a message")["content"], "f(");
}

#[test]
fn answers_that_are_cut_off_are_incomplete() {
    let mut writer = writer();
    parts("length").into_iter().for_each(|part| writer.keep(part));
    let response = writer.object(&tally());
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!((&response["status"], &response["output"][2]["status"]), (&json!("incomplete"), &json!("incomplete")));
    assert_eq!(response["output"][1]["status"], "completed");
    let failed = writer.fail(&ApiError::shutting_down());
    assert_eq!((&failed[0]["type"], &failed[0]["response"]["status"]), (&json!("response.failed"), &json!("failed")));
}

#[test]
fn final_failures_have_a_code_that_codex_does_not_retry() {
    for (error, code) in [
        (ApiError::overdue(600), "invalid_prompt"),
        (ApiError::cancelled(3), "invalid_prompt"),
        (ApiError::shutting_down(), "shutting_down"),
        (ApiError::prompt_exceeds_context(9, 8), "context_length_exceeded"),
    ] {
        assert_eq!(writer().fail(&error)[0]["response"]["error"]["code"], code);
    }
}

#[test]
fn store_keeps_the_latest_within_its_bounds() {
    let store = ResponseStore::new(0);
    let mut writer = writer();
    parts("stop").into_iter().for_each(|part| writer.keep(part));
    let object = writer.object(&tally());
    store.keep("resp_7", &object, &[json!({"role": "user", "content": "Hi"})]);
    assert_eq!(store.object("resp_7"), Some(object.clone()));
    assert_eq!(store.messages("resp_7").map(|list| list.len()), Some(1));
    assert_eq!(store.item("msg_7_1"), Some(object["output"][1].to_string()));
    assert_eq!((store.item("msg"), store.item("msg_8_1"), store.item("")), (None, None, None));
    store.keep("resp_8", &object, &[json!("x".repeat(1 << 20))]);
    assert_eq!(store.object("resp_8"), None, "it is too long");
    for index in 0..300 {
        store.keep(&format!("resp_a{index}"), &object, &[]);
    }
    assert_eq!((store.object("resp_7"), store.object("resp_a43")), (None, None), "the oldest made room");
    assert!(store.object("resp_a44").is_some());
    for index in 0..9 {
        store.keep(&format!("resp_b{index}"), &object, &[json!("x".repeat(500_000))]);
    }
    assert_eq!(store.object("resp_a299"), None, "the bytes of all are bounded, too");
    assert!(store.object("resp_b8").is_some());
    assert!(store.delete("resp_b8") && !store.delete("resp_b8"));
}
