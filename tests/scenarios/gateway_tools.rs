//! Loops of tool calls in every chat format, as clients of the OpenAI API see them: a call, its result, an answer; also
//! where the head is lost in the middle of the call.
use harness::{
    fake_heads::{FakeHeads, Script},
    http::{beside, get, post, stream},
    programs::{Cluster, demo_models, wait_until},
    tool_answers::TOOL_ANSWERS,
};
use serde_json::{Value, json};

fn gateway(heads: &FakeHeads) -> (Cluster, String) {
    let cluster = Cluster::with(1, &demo_models(), &format!("peers = [\"{}\"]\n", heads.addresses[0]));
    let address = beside(&cluster.addresses[0]);
    let all = heads.addresses.len();
    wait_until("all heads serve", || {
        get(&address, "/health").json()["replicas"] == json!({"serving": all, "all": all})
    });
    (cluster, address)
}

fn body(messages: &[Value], is_streamed: bool) -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}]);
    json!({"messages": messages, "tools": tools, "stream": is_streamed, "max_tokens": 1000})
}

/// The message and the finish reason that a client puts together from chunks.
fn collect(events: &[Value]) -> (Value, String) {
    let (mut texts, mut calls, mut finish) = ([String::new(), String::new()], Vec::<Value>::new(), String::new());
    for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
        for (text, field) in texts.iter_mut().zip(["content", "reasoning_content"]) {
            text.push_str(choice["delta"][field].as_str().unwrap_or_default());
        }
        for delta in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = delta["index"].as_u64().expect("an index") as usize;
            match calls.get_mut(index) {
                None => calls.push(delta.clone()),
                Some(call) => {
                    assert!(delta.get("id").is_none(), "the id comes once: {delta}");
                    let more = delta["function"]["arguments"].as_str().expect("arguments");
                    let so_far = call["function"]["arguments"].as_str().expect("arguments").to_owned();
                    call["function"]["arguments"] = (so_far + more).into();
                }
            }
        }
        finish.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    }
    let [content, thought] = texts;
    (json!({"role": "assistant", "content": content, "reasoning_content": thought, "tool_calls": calls}), finish)
}

/// Runs the loop of every format; some arguments must arrive in several deltas.
fn loops(address: &str) {
    for (number, answer) in TOOL_ANSWERS.iter().enumerate() {
        let user = json!({"role": "user", "content": number.to_string()});
        let events = stream(address, "/v1/chat/completions", &body(std::slice::from_ref(&user), true)).events();
        let (message, finish) = collect(&events);
        let [call] = &message["tool_calls"].as_array().expect("calls")[..] else { panic!("{answer:?}: {message}") };
        assert_eq!((call["function"]["name"].as_str(), finish.as_str()), (Some("weather"), "tool_calls"), "{answer:?}");
        let arguments = call["function"]["arguments"].as_str().expect("arguments");
        assert_eq!(serde_json::from_str::<Value>(arguments).expect("JSON"), json!({"city": "Oslo"}), "{answer:?}");
        assert_eq!(message["content"], "", "{answer:?}");
        let thought = if answer.thinking == Default::default() { "" } else { "Hm." };
        assert_eq!(message["reasoning_content"], thought, "{answer:?}");
        let deltas = events.iter().filter(|event| event["choices"][0]["delta"].get("tool_calls").is_some()).count();
        assert!(deltas > 3, "{answer:?}: arguments arrive while they are made, in {deltas} deltas");
        let whole = post(address, "/v1/chat/completions", &body(std::slice::from_ref(&user), false)).good();
        let whole = &whole["choices"][0]["message"]["tool_calls"];
        assert_eq!(whole[0]["function"], call["function"], "{answer:?}");
        assert_eq!(whole.as_array().map(Vec::len), Some(1), "{answer:?}");
        let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "7"});
        let answered = post(address, "/v1/chat/completions", &body(&[user, message, result], false)).good();
        let answered = &answered["choices"][0];
        assert_eq!(
            (&answered["message"]["content"], &answered["finish_reason"]),
            (&json!("7 degrees."), &json!("stop"))
        );
    }
}

#[test]
fn tools_are_called_and_answered_in_every_format() {
    let heads = FakeHeads::start(&[Script::CallsTools { dies: false }]);
    let (_cluster, address) = gateway(&heads);
    loops(&address);
    assert!(heads.asked().iter().all(|generate| generate.shows_marks), "marks of most formats are control tokens");
}

#[test]
fn call_whose_head_is_lost_is_seen_once() {
    let heads = FakeHeads::start(&[Script::CallsTools { dies: true }; 2]);
    let (_cluster, address) = gateway(&heads);
    loops(&address);
    let resumed = heads.asked().iter().filter(|generate| !generate.resumed.is_empty()).count();
    assert!(resumed >= 2 * TOOL_ANSWERS.len(), "only {resumed} answers were resumed");
}
