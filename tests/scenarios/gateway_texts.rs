//! Endpoints about the texts of the served model, as seen by clients of llama-server, vLLM and Anthropic.
use harness::{
    http::{beside, get, post, stream, with_fields},
    programs::{Cluster, demo_models, folder_with, wait_until},
    tiny_model::{Architecture, TinyModel},
};
use serde_json::{Value, json};

const MODEL: &str = "bard-q8_0.gguf";

/// A daemon that serves the demo model, and the address of its API.
fn serving() -> (Cluster, String) {
    let cluster = Cluster::with(1, &demo_models(), "");
    let run = ["--model", MODEL, "--prompt", "ab", "--max-tokens", "1", "--context", "256"];
    cluster.generate(1, &run).completion();
    let address = beside(&cluster.addresses[0]);
    wait_until("it serves", || get(&address, "/health").status == 200);
    (cluster, address)
}

fn ids(answer: &Value) -> Vec<u64> {
    answer["tokens"].as_array().expect("tokens").iter().map(|id| id.as_u64().expect("an id")).collect()
}

#[test]
fn tokens_of_a_text_are_those_that_its_completion_counts() {
    let (_cluster, address) = serving();
    let text = "ROMEO: But soft! \u{1f319}";
    let tokenize = |more: Value| post(&address, "/tokenize", &more).good();
    let plain = ids(&tokenize(json!({"content": text})));
    let counted = tokenize(json!({"model": MODEL, "prompt": text, "return_token_strs": true}));
    assert_eq!(counted["max_model_len"], 256, "{counted}");
    let completion = post(&address, "/v1/completions", &json!({"prompt": text, "max_tokens": 1})).good();
    assert_eq!(counted["count"], completion["usage"]["prompt_tokens"], "{counted}");
    assert_eq!(ids(&tokenize(json!({"content": text, "add_special": true}))), ids(&counted));
    let pieces = tokenize(json!({"content": text, "with_pieces": true}));
    let bytes: Vec<u8> = pieces["tokens"]
        .as_array()
        .expect("a list")
        .iter()
        .flat_map(|entry| match &entry["piece"] {
            Value::String(text) => text.as_bytes().to_vec(),
            list => list.as_array().expect("bytes").iter().map(|byte| byte.as_u64().expect("a byte") as u8).collect(),
        })
        .collect();
    assert!(String::from_utf8(bytes).expect("whole characters").ends_with(text), "{pieces}");
    let back = post(&address, "/detokenize", &json!({"tokens": plain})).good();
    assert_eq!((back["content"].as_str(), back["prompt"].as_str()), (Some(text), Some(text)));
    assert_eq!(post(&address, "/detokenize", &json!({"tokens": []})).good()["content"], "");
}

#[test]
fn conversation_is_rendered_and_counted_as_the_model_gets_it() {
    let (_cluster, address) = serving();
    let messages = json!([{"role": "system", "content": "Write plays."}, {"role": "user", "content": "Speak, Romeo."}]);
    let rendered = post(&address, "/apply-template", &json!({"messages": messages})).good();
    let prompt = rendered["prompt"].as_str().expect("a text");
    assert!(prompt.contains("Write plays.") && prompt.contains("Speak, Romeo."), "{prompt}");
    let chat = post(&address, "/v1/chat/completions", &json!({"messages": messages, "max_tokens": 1})).good();
    let body = json!({"model": MODEL, "system": "Write plays.", "messages": [messages[1]]});
    let counted = post(&address, "/v1/messages/count_tokens", &body).good();
    assert_eq!(counted["input_tokens"], chat["usage"]["prompt_tokens"], "{counted}");
    let tokens = post(&address, "/tokenize", &json!({"messages": messages})).good();
    assert_eq!(tokens["count"], chat["usage"]["prompt_tokens"], "{tokens}");
}

/// A template that refuses later system messages and leaves calls out.
const NARROW: &str = "{# <|tool_call_start|> #}{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
                      {{ raise_exception('System message must be at the beginning.') }}{% endif %}<{{ m.role }}>\
                      {{- m.content }}{% endfor %}";

#[test]
fn changes_of_conversations_are_named_by_every_api_and_logged_once() {
    let mut model = TinyModel::new(Architecture::Llama);
    model.context_length = 2048;
    let file = model.writer().text("tokenizer.chat_template", NARROW).finish();
    let folder = folder_with(&[("narrow.gguf", &file)]);
    let cluster = Cluster::with(1, folder.path(), "");
    cluster.generate(1, &["--model", "narrow.gguf", "--prompt", "ab", "--max-tokens", "1"]).completion();
    let address = beside(&cluster.addresses[0]);
    wait_until("it serves", || get(&address, "/health").status == 200);
    let changed = |path: &str, body: &Value| {
        let answer = post(&address, path, body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.header("x-bramble-changed").unwrap_or_default().to_owned()
    };
    let chat = |messages: &Value| changed("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 2}));
    let user = json!({"role": "user", "content": "ab"});
    let function = json!({"name": "look", "arguments": "{\"at\": 1}"});
    let calls = json!([{"id": "c1", "type": "function", "function": function}]);
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "7"});
    let messages = json!([user, {"role": "assistant", "content": null, "tool_calls": calls}, result]);
    assert_eq!(chat(&json!([user])), "");
    assert_eq!(chat(&messages), "calls written as text");
    let rendered = post(&address, "/apply-template", &json!({"messages": messages})).good();
    let text = "<user>ab<assistant><|tool_call_start|>[look(at=1)]<|tool_call_end|><tool>7";
    assert_eq!(rendered["prompt"], text, "{rendered}");
    let used = json!([{"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}}]);
    let results = json!([{"type": "tool_result", "tool_use_id": "c1", "content": "7"}]);
    let turns = json!([user, {"role": "assistant", "content": used}, {"role": "user", "content": results}]);
    let call = json!({"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{\"at\": 1}"});
    let items = json!([user, call, {"type": "function_call_output", "call_id": "c1", "output": "7"}]);
    let calling = json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look"}}]});
    let records = json!([user, calling, {"role": "tool", "content": "7"}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 2, "stream": true})),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 2, "n": 2})),
        ("/apply-template", json!({"messages": messages})),
        ("/v1/messages", json!({"messages": turns, "max_tokens": 2})),
        ("/v1/responses", json!({"input": items, "max_output_tokens": 2})),
        ("/api/chat", json!({"messages": records, "options": {"num_predict": 2}})),
    ] {
        assert_eq!(changed(path, &body), "calls written as text", "{path}");
    }
    let later = json!([user, {"role": "system", "content": "b"}]);
    assert_eq!(chat(&later), "system messages joined");
    wait_until("the first ones are logged", || cluster.log(0).contains("X-Bramble-Changed"));
    assert_eq!(cluster.log(0).matches("X-Bramble-Changed").count(), 1, "{}", cluster.log(0));
}

#[test]
fn props_describe_the_served_model_and_wrong_questions_are_refused() {
    let (_cluster, address) = serving();
    let props = get(&address, "/props").good();
    assert_eq!((&props["default_generation_settings"]["n_ctx"], &props["model_alias"]), (&json!(256), &json!(MODEL)));
    assert!(props["total_slots"].as_u64() > Some(0), "{props}");
    assert!(props["chat_template"].as_str().is_some_and(|template| template.contains("messages")), "{props}");
    let info = get(&address, "/tokenizer_info").good();
    assert_eq!((&info["model_max_length"], &info["chat_template"]), (&json!(256), &props["chat_template"]));
    for (path, body) in [
        ("/tokenize", json!({})),
        ("/detokenize", json!({"tokens": [99_999_999]})),
        ("/detokenize", json!({"tokens": "a"})),
        ("/apply-template", json!({"messages": []})),
        ("/v1/messages/count_tokens", json!({"messages": "a"})),
    ] {
        let refused = post(&address, path, &body);
        assert_eq!(refused.status, 400, "{path} {body}: {}", refused.json());
    }
    let refused = post(&address, "/v1/messages/count_tokens", &json!({"messages": "a"})).json();
    assert_eq!((&refused["type"], &refused["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
    let long = "x\n".repeat(1 << 16);
    post(&address, "/tokenize", &json!({"content": long})).assert_error(400, "context_length_exceeded", "256");
}

#[test]
fn completion_of_llama_server_is_answered_whole_and_streamed() {
    let (_cluster, address) = serving();
    let body = |more: Value| {
        let body = json!({"prompt": "ROMEO:", "n_predict": 6, "temperature": 0, "seed": 1, "return_tokens": true});
        with_fields(body, more)
    };
    let whole = post(&address, "/completion", &body(json!({"n_probs": 2}))).good();
    let openai = json!({"prompt": "ROMEO:", "max_tokens": 6, "temperature": 0, "seed": 1});
    let openai = post(&address, "/v1/completions", &openai).good();
    assert_eq!(whole["content"], openai["choices"][0]["text"], "{whole}");
    assert_eq!((&whole["stop"], &whole["stop_type"]), (&json!(true), &json!("limit")), "{whole}");
    assert_eq!((&whole["tokens_predicted"], whole["tokens"].as_array().map(Vec::len)), (&json!(6), Some(6)));
    assert_eq!(whole["tokens_evaluated"], openai["usage"]["prompt_tokens"], "{whole}");
    assert!(whole["timings"]["predicted_n"] == 6 && whole["generation_settings"]["top_k"] == 40, "{whole}");
    let shown = whole["completion_probabilities"].as_array().expect("a list");
    assert_eq!((shown.len(), &shown[0]["id"]), (6, &whole["tokens"][0]), "{whole}");
    assert_eq!(shown[0]["top_logprobs"].as_array().map(Vec::len), Some(2), "{whole}");
    let mut events = stream(&address, "/completion", &body(json!({"stream": true})));
    let events = std::iter::from_fn(|| events.event()).map(|event| serde_json::from_str(&event).expect("JSON"));
    let events: Vec<Value> = events.collect();
    let text: String = events.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(json!(text), whole["content"], "{events:?}");
    let last = events.last().expect("events");
    assert_eq!((&last["stop"], &last["tokens_predicted"]), (&json!(true), &json!(6)), "{last}");
    let word = text.chars().nth(3).expect("a text").to_string();
    let stopped = post(&address, "/completion", &body(json!({"stop": [word]}))).good();
    assert_eq!(stopped["stop_type"], "word", "{stopped}");
    let nothing = post(&address, "/completion", &body(json!({"n_predict": 0}))).good();
    assert_eq!((&nothing["content"], &nothing["tokens_predicted"]), (&json!(""), &json!(0)), "{nothing}");
    post(&address, "/completion", &body(json!({"prompt": ["a", "b"]}))).assert_error(
        400,
        "invalid_value",
        "one prompt",
    );
}
