//! Bodies of messages as chats, and answers as messages and events.
use common::chat::FinishReason;
use serde_json::{Map, Value, json};

use super::{events::MessageWriter, request};
use crate::gateway::{
    answer::Ended,
    choice::ChoicePart,
    error::ApiError,
    object::Usage,
    writer::{Framing, Tally, Writer},
};

fn chat(body: Value) -> Result<Map<String, Value>, ApiError> {
    request::chat(body.as_object().expect("an object").clone())
}

#[test]
fn conversation_becomes_turns_calls_and_results() {
    let body = json!({
        "model": "m", "max_tokens": 9, "stop_sequences": ["x"], "stream": true,
        "system": [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "B"}],
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "text", "text": "Look."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "3"}]},
                {"type": "tool_result", "tool_use_id": "t2"},
                {"type": "text", "text": "Go on."},
            ]},
        ],
    });
    let found = chat(body).expect("it is good");
    let expected = json!([
        {"role": "system", "content": "A\nB"},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant", "content": "Look.", "reasoning_content": "Hm.",
            "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "3"},
        {"role": "tool", "tool_call_id": "t2", "content": ""},
        {"role": "user", "content": "Go on."},
    ]);
    assert_eq!(found["messages"], expected);
    assert_eq!((&found["stop"], &found["stream"], &found["max_tokens"]), (&json!(["x"]), &json!(true), &json!(9)));
}

#[test]
fn line_that_differs_in_each_request_is_not_in_the_prompt() {
    let system = |system: Value| {
        let body = json!({"system": system, "messages": [{"role": "user", "content": "Hi"}]});
        chat(body).expect("it is good")["messages"][0]["content"].clone()
    };
    let block = |text: &str| json!({"type": "text", "text": text});
    let billed = "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;";
    assert_eq!(system(json!([block(billed), block("A\n\nB")])), "A\n\nB");
    assert_eq!(system(json!(format!("{billed}\nA"))), "A");
    assert_eq!(system(json!("A\r\nx-anthropic B\n")), "A\r\nx-anthropic B\n");
}

#[test]
fn last_message_of_the_assistant_is_continued() {
    let found = |last: Value| chat(json!({"messages": [{"role": "user", "content": "Hi"}, last]})).expect("it is good");
    let begun = found(json!({"role": "assistant", "content": [{"type": "text", "text": "Sure,"}]}));
    assert_eq!(begun["continue_final_message"], true);
    let calling = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]});
    for other in [json!({"role": "user", "content": "x"}), json!({"role": "assistant", "content": " "}), calling] {
        assert!(!found(other).contains_key("continue_final_message"));
    }
}

#[test]
fn tools_choices_and_thinking_have_their_counterparts() {
    let with = |name: &str, value: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}]});
        body[name] = value;
        chat(body)
    };
    let tool = json!({"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {}});
    let found = with("tools", json!([tool])).expect("it is good");
    let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
    assert_eq!(found["tools"], json!([{"type": "function", "function": function}]));
    for (choice, expected) in [
        (json!({"type": "auto"}), json!("auto")),
        (json!({"type": "any"}), json!("any")),
        (json!({"type": "none"}), json!("none")),
        (json!({"type": "tool", "name": "f"}), json!({"type": "function", "function": {"name": "f"}})),
    ] {
        assert_eq!(with("tool_choice", choice).expect("it is good")["tool_choice"], expected);
    }
    let single = with("tool_choice", json!({"type": "auto", "disable_parallel_tool_use": true})).expect("it is good");
    assert_eq!(single["parallel_tool_calls"], false);
    for (kind, thinks) in [("enabled", true), ("adaptive", true), ("disabled", false)] {
        let found = with("thinking", json!({"type": kind, "budget_tokens": 1024})).expect("it is good");
        assert_eq!(found["enable_thinking"], thinks);
        assert_eq!(found.get("thinking_budget"), thinks.then_some(&json!(1024)));
    }
    let form = json!({"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}});
    let found = with("output_config", form).expect("it is good");
    assert_eq!(found["response_format"]["json_schema"]["schema"]["type"], "object");
    assert_eq!(found["reasoning_effort"], "low");
}

#[test]
fn blocks_that_the_model_cannot_read_are_refused_by_name() {
    for (content, name) in [
        (json!([{"type": "image", "source": {}}]), "image"),
        (json!([{"type": "tool_use", "id": "t", "name": "f", "input": {}}]), "tool_use"),
        (json!([7]), "unknown"),
        (json!(7), "7"),
        (json!(null), "null"),
    ] {
        let body = json!({"messages": [{"role": "user", "content": content}]});
        let refused = chat(body).expect_err(name);
        assert!(refused.message().contains(name), "{content}: {}", refused.message());
    }
    for wrong in [
        json!({}),
        json!({"messages": []}),
        json!({"messages": 1}),
        json!({"messages": [7]}),
        json!({"messages": [{"role": "root"}]}),
    ] {
        assert!(chat(wrong.clone()).is_err(), "{wrong}");
    }
    let turns = json!([{"role": "user", "content": "Hi"}]);
    let server = json!({"messages": turns, "tools": [{"type": "web_search_20250305", "name": "web_search"}]});
    assert!(chat(server).expect_err("only Anthropic has it").message().contains("web_search_20250305"));
}

#[test]
fn results_of_tools_lose_images_and_show_errors() {
    let result = |more: Value| {
        let mut block = json!({"type": "tool_result", "tool_use_id": "t"});
        block.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let body = json!({"messages": [{"role": "user", "content": [block]}]});
        chat(body).expect("it is good")["messages"][0]["content"].clone()
    };
    let image = json!({"type": "image", "source": {"type": "base64", "data": "aGk="}});
    let text = json!({"type": "text", "text": "a"});
    assert_eq!(result(json!({"content": [text, image]})), "a\n[image left out: this model reads only text]");
    assert_eq!(result(json!({"content": "gone", "is_error": true})), "Error: gone");
    assert_eq!(result(json!({"content": "error: gone", "is_error": true})), "error: gone");
    assert_eq!(result(json!({"content": "gone", "is_error": false})), "gone");
    assert_eq!(result(json!({"is_error": true})), "Error: ");
}

fn parts() -> [ChoicePart; 6] {
    [
        ChoicePart::Started,
        ChoicePart::Thought("Hm.".into()),
        ChoicePart::Content("Look.".into(), Vec::new()),
        ChoicePart::Call { index: 0, name: "f".into() },
        ChoicePart::Arguments { index: 0, text: "{\"a\":1}".into() },
        ChoicePart::End("tool_calls", Box::default()),
    ]
}

fn tally() -> Tally {
    Tally {
        usage: Usage { prompt: 12, cached: 4, completion: 9, reasoning: 2, ..Usage::default() },
        ..Tally::default()
    }
}

#[test]
fn stream_is_the_documented_sequence_of_events() {
    let mut writer = MessageWriter::new("7");
    writer.begin("m", "");
    let mut events: Vec<Value> = parts().into_iter().flat_map(|part| writer.stream(0, part, &tally())).collect();
    events.extend(writer.finish(&tally()));
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let expected: Vec<&str> = ["message_start", "ping"]
        .into_iter()
        .chain(block.into_iter().cycle().take(9))
        .chain(["message_delta", "message_stop"])
        .collect();
    assert_eq!(kinds, expected);
    let start = &events[0]["message"];
    assert_eq!((&start["id"], &start["model"], &start["content"]), (&json!("msg_7"), &json!("m"), &json!([])));
    assert_eq!(start["stop_reason"], json!(null));
    assert_eq!(events[3]["delta"], json!({"type": "thinking_delta", "thinking": "Hm."}));
    let call = json!({"type": "tool_use", "id": "toolu_7_2", "name": "f", "input": {}});
    assert_eq!(events[8]["content_block"], call);
    assert_eq!(events[9]["delta"], json!({"type": "input_json_delta", "partial_json": "{\"a\":1}"}));
    assert_eq!(events[11]["delta"]["stop_reason"], "tool_use");
    assert_eq!(events[11]["usage"]["cache_read_input_tokens"], 4);
    assert!(Framing::Named.record(&events[1]).starts_with("event: ping\ndata: {"));
    assert_eq!(writer.alive(&tally()), Some(events[1].clone()));
}

#[test]
fn message_has_the_blocks_of_the_stream() {
    let mut writer = MessageWriter::new("7");
    writer.begin("m", "");
    parts().into_iter().for_each(|part| writer.keep(0, part));
    let message = writer.whole(&tally());
    let expected = json!([
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "Look."},
        {"type": "tool_use", "id": "toolu_7_2", "name": "f", "input": {"a": 1}},
    ]);
    assert_eq!(message["content"], expected);
    assert_eq!((&message["stop_reason"], &message["usage"]["input_tokens"]), (&json!("tool_use"), &json!(8)));
}

#[test]
fn answer_that_fills_the_context_has_a_reason_of_its_own() {
    for (reason, expected) in
        [(FinishReason::Context, "model_context_window_exceeded"), (FinishReason::Length, "max_tokens")]
    {
        let mut writer = MessageWriter::new("7");
        writer.keep(0, ChoicePart::End("length", Box::new(Ended { reason, ..Ended::default() })));
        assert_eq!(writer.whole(&tally())["stop_reason"], expected);
    }
}

#[test]
fn errors_have_the_types_of_this_api() {
    for (error, kind) in [
        (ApiError::unauthorized(), "authentication_error"),
        (ApiError::malformed("x"), "invalid_request_error"),
        (ApiError::queue_full(1, 1), "rate_limit_error"),
        (ApiError::shutting_down(), "overloaded_error"),
    ] {
        let object = super::error(&error);
        assert_eq!((&object["type"], &object["error"]["type"]), (&json!("error"), &json!(kind)));
        assert_eq!(object["error"]["message"], error.message());
    }
}
