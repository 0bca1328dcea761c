//! What happens to an answer whose head is lost, serves another model, or is ordered to end it, as seen by clients of
//! the OpenAI API.
use std::{collections::BTreeSet, fs};

use harness::{
    deep_models::deep_models,
    fake_heads::{FakeHeads, Script},
    http::{beside, get, post, stream, text_of, with_fields},
    programs::{Cluster, DEEP, demo_models, folder_with, wait_until},
    tiny_model::{Architecture, TinyModel},
};
use protocol::message::Prompt;
use serde_json::{Value, json};

/// A gateway on a node without a shard, in front of these heads.
fn gateway(heads: &FakeHeads) -> (Cluster, String) {
    let peers = format!("peers = [\"{}\"]\n", heads.addresses[0]);
    let cluster = Cluster::with(1, &demo_models(), &peers);
    let address = beside(&cluster.addresses[0]);
    let all = heads.addresses.len();
    wait_until("all heads serve", || {
        get(&address, "/health").json()["replicas"] == json!({"serving": all, "all": all})
    });
    (cluster, address)
}

fn body(max_tokens: u32, is_streamed: bool) -> Value {
    json!({"prompt": "ab", "max_tokens": max_tokens, "temperature": 0, "seed": 1, "stream": is_streamed})
}

#[test]
fn request_that_kills_two_heads_is_not_given_to_a_third() {
    let heads = FakeHeads::start(&[Script::DiesAfter(0); 3]);
    let (_cluster, address) = gateway(&heads);
    let answer = post(&address, "/v1/completions", &body(5, false));
    answer.assert_error(500, "request_ends_heads", "not retried");
    assert_eq!(answer.header("x-should-retry"), Some("false"), "clients retry 5xx by default");
    assert_eq!(heads.asked().len(), 2);
}

#[test]
fn answer_that_loses_every_head_is_continued() {
    let scripts = [Script::DiesAfter(2), Script::DiesAfter(2), Script::Answers];
    let heads = FakeHeads::start(&scripts);
    let (_cluster, address) = gateway(&heads);
    let answer = post(&address, "/v1/completions", &body(6, false)).good();
    assert_eq!(answer["choices"][0]["text"], "t0 t1 t2 t3 t4 t5 ", "{answer}");
    let asked = heads.asked();
    assert!(asked.len() > 1, "{} heads ran it", asked.len());
    assert!(asked.iter().all(|generate| generate.model.is_some()), "a resumed request must name its model");
}

#[test]
fn changes_of_a_conversation_are_named_after_the_loss_of_its_head() {
    let heads = FakeHeads::start(&[Script::DiesAfter(2); 3]);
    let (_cluster, address) = gateway(&heads);
    let body = json!({"messages": [{"role": "user", "content": "ab"}], "max_tokens": 6});
    let answer = post(&address, "/v1/chat/completions", &body);
    let whole = answer.good();
    let text = whole["choices"][0]["message"]["content"].as_str();
    assert_eq!(text.map(str::trim_end), Some("t0 t1 t2 t3 t4 t5"), "{whole}");
    assert!(heads.asked().len() > 1, "its first head was lost");
    assert_eq!(answer.header("x-bramble-changed"), Some("system messages joined"));
}

/// An answer of a model like Qwen3.5 to a prompt that ends inside a thought.
const CALLING: &str = "The user asks for <b>Oslo</b>.\n</think>\n\nI look.\n<tool_call>\n<function=weather>\n\
    <parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>";

fn chat(more: Value) -> Value {
    let weather =
        json!({"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}});
    let body = json!({"messages": [{"role": "user", "content": "Oslo?"}], "max_tokens": 500,
        "tools": [{"type": "function", "function": weather}]});
    with_fields(body, more)
}

#[test]
fn thoughts_and_calls_with_tags_are_told_apart_from_the_content() {
    let heads = FakeHeads::start(&[Script::Says(CALLING)]);
    let (_cluster, address) = gateway(&heads);
    let options = json!({"chat_template_kwargs": {"a": 1}, "enable_thinking": true, "reasoning_effort": "low"});
    let answer = post(&address, "/v1/chat/completions", &chat(options)).good();
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["reasoning_content"], "The user asks for <b>Oslo</b>.", "{answer}");
    assert_eq!(
        (choice["message"]["content"].as_str(), choice["finish_reason"].as_str()),
        (Some("I look."), Some("tool_calls"))
    );
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(
        (call["name"].as_str(), call["arguments"].as_str()),
        (Some("weather"), Some(r#"{"city":"Oslo","days":2}"#))
    );
    let Prompt::Chat(chatted) = &heads.asked()[0].prompt else { panic!("a conversation") };
    let variables: Value = serde_json::from_str(chatted.variables.as_deref().expect("variables")).expect("JSON");
    assert_eq!(variables, json!({"a": 1, "enable_thinking": true, "reasoning_effort": "low"}));
    let events = stream(&address, "/v1/chat/completions", &chat(json!({"stream": true})));
    let events = events.events();
    let all = |field: &str| -> String {
        events.iter().filter_map(|event| event["choices"][0]["delta"][field].as_str()).collect()
    };
    assert_eq!((all("reasoning_content"), all("content")), ("The user asks for <b>Oslo</b>.".into(), "I look.".into()));
    let raw = post(&address, "/v1/chat/completions", &chat(json!({"reasoning_format": "none"}))).good();
    let content = raw["choices"][0]["message"]["content"].as_str().expect("a content");
    assert!(content.starts_with("The user") && content.contains("</think>"), "{raw}");
    post(&address, "/v1/chat/completions", &chat(json!({"reasoning_format": "yes"}))).assert_error(
        400,
        "invalid_value",
        "auto",
    );
}

#[test]
fn thoughts_beyond_their_budget_are_ended() {
    let heads = FakeHeads::start(&[Script::Thinks]);
    let (_cluster, address) = gateway(&heads);
    for name in ["thinking_budget", "reasoning_budget"] {
        let answer = post(&address, "/v1/chat/completions", &chat(json!({name: 5}))).good();
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["reasoning_content"], "t0 t1 t2 t3 t4", "{answer}");
        assert_eq!((&message["content"], &answer["choices"][0]["finish_reason"]), (&json!("Done."), &json!("stop")));
        let usage = &answer["usage"];
        // Five thoughts, the two tokens that end them, and the answer.
        assert_eq!(usage["completion_tokens"], 8, "{usage}");
        assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 5, "{usage}");
    }
    let asked = heads.asked();
    assert_eq!((asked[0].max_tokens, &asked[1].resumed[5..]), (5, &[9007, 9008][..]));
    // Without room for the end of the thoughts and an answer, nothing follows.
    for most in [6, 7] {
        let answer = post(&address, "/v1/chat/completions", &chat(json!({"thinking_budget": 5, "max_tokens": most})));
        let answer = answer.good();
        let choice = &answer["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("length"), &json!("")));
        assert_eq!(choice["message"]["reasoning_content"], "t0 t1 t2 t3 t4", "{answer}");
    }
    let unlimited =
        post(&address, "/v1/chat/completions", &chat(json!({"thinking_budget": -1, "max_tokens": 7}))).good();
    let ended = &unlimited["choices"][0];
    assert_eq!((&ended["finish_reason"], &ended["message"]["content"]), (&json!("length"), &json!("")));
    post(&address, "/v1/chat/completions", &chat(json!({"thinking_budget": "x"}))).assert_error(
        400,
        "invalid_value",
        "thinking_budget",
    );
}

#[test]
fn long_answer_is_asked_for_in_parts_that_reserve_little() {
    let heads = FakeHeads::start(&[Script::Answers]);
    let (_cluster, address) = gateway(&heads);
    let answer = post(&address, "/v1/completions", &body(3000, false)).good();
    let text: String = (0..3000).map(|number| format!("t{number} ")).collect();
    assert_eq!(answer["choices"][0]["text"], text);
    assert_eq!(
        (&answer["choices"][0]["finish_reason"], &answer["usage"]["completion_tokens"]),
        (&json!("length"), &json!(3000))
    );
    let asked: Vec<(usize, u32)> =
        heads.asked().iter().map(|generate| (generate.resumed.len(), generate.max_tokens)).collect();
    // The last token of a part is computed again.
    assert_eq!(asked, [(0, 1024), (1023, 2046), (2045, 3000)]);
}

#[test]
fn text_that_a_head_holds_back_is_sent_once_where_a_part_ends() {
    let heads = FakeHeads::start(&[Script::HoldsBack]);
    let (_cluster, address) = gateway(&heads);
    for is_streamed in [false, true] {
        let text = match is_streamed {
            false => post(&address, "/v1/completions", &body(3000, false)).good()["choices"][0]["text"].to_string(),
            true => {
                let events = stream(&address, "/v1/completions", &body(3000, true)).events();
                json!(text_of(&events, 0)).to_string()
            }
        };
        assert_eq!(text, json!((0..3000).map(|number| format!("t{number} ")).collect::<String>()).to_string());
    }
}

#[test]
fn answer_in_parts_is_that_of_one_piece() {
    let models = deep_models();
    let cluster = Cluster::with(1, models.path(), "");
    let run = ["--model", DEEP, "--prompt", "ab", "--max-tokens", "1100", "--temperature", "0.7", "--seed", "1"];
    let expected = cluster.generate(1, &[&run[..], &["--context", "2048"]].concat()).completion();
    let address = beside(&cluster.addresses[0]);
    wait_until("it serves", || get(&address, "/health").status == 200);
    let mut asked = body(1100, false);
    asked["temperature"] = json!(0.7);
    let answer = post(&address, "/v1/completions", &asked).good();
    assert_eq!(answer["choices"][0]["text"], expected["text"]);
    assert_eq!(
        (&answer["usage"]["completion_tokens"], &answer["timings"]["predicted_n"]),
        (&json!(1100), &json!(1100))
    );
    assert!(
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() < Some(32),
        "of the prompt only: {answer}"
    );
}

#[test]
fn defaults_of_the_file_hold_where_a_request_names_no_value() {
    // Greedy by default.
    let model = TinyModel::new(Architecture::Llama).writer().f32("general.sampling.temp", 0.0);
    let models = folder_with(&[(DEEP, &model.finish())]);
    let cluster = Cluster::with(1, models.path(), "");
    cluster.generate(1, &["--model", DEEP, "--prompt", "ab", "--max-tokens", "1"]).completion();
    let address = beside(&cluster.addresses[0]);
    wait_until("it serves", || get(&address, "/health").status == 200);
    let texts = |more: &Value| -> BTreeSet<String> {
        let bodies =
            (1..6).map(|seed| with_fields(json!({"prompt": "ab", "max_tokens": 8, "seed": seed}), more.clone()));
        let answers = bodies.map(|body| post(&address, "/v1/completions", &body).good());
        answers.map(|answer| answer["choices"][0]["text"].to_string()).collect()
    };
    assert_eq!(texts(&json!({})), texts(&json!({"temperature": 0})), "the file's");
    assert_eq!(texts(&json!({"temperature": null})).len(), 1);
    assert!(texts(&json!({"temperature": 1.5})).len() > 1, "the request's");
}

#[test]
fn answers_without_a_limit_run_side_by_side() {
    let models = deep_models();
    let cluster = Cluster::with(1, models.path(), "");
    cluster.generate(1, &["--model", DEEP, "--prompt", "ab", "--max-tokens", "1", "--context", "8192"]).completion();
    let address = beside(&cluster.addresses[0]);
    wait_until("it serves", || get(&address, "/health").status == 200);
    let mut endless = body(1, true);
    endless["max_tokens"] = json!(-1);
    let mut answers = [(); 2].map(|()| stream(&address, "/v1/completions", &endless));
    for answer in &mut answers {
        (0..3).for_each(|_| drop(answer.event().expect("tokens arrive")));
    }
    let ended = get(&address, "/traces").good();
    assert_eq!(ended["data"], json!([]), "the second began before the first had ended");
}

#[test]
fn cancelled_answer_ends_as_an_error_and_never_as_complete() {
    let heads = FakeHeads::start(&[Script::IsCancelledAfter(3)]);
    let (_cluster, address) = gateway(&heads);
    let answer = post(&address, "/v1/completions", &body(50, false));
    answer.assert_error(499, "cancelled", "after 3 tokens");
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    let partial = answer.json();
    assert_eq!(partial["choices"][0]["text"], "t0 t1 t2 ", "{partial}");
    assert_eq!(partial["choices"][0]["finish_reason"], Value::Null, "{partial}");
    let mut events = stream(&address, "/v1/completions", &body(50, true));
    let events: Vec<String> = std::iter::from_fn(|| events.event()).collect();
    let last: Value = serde_json::from_str(events.last().expect("events")).expect("an error, not [DONE]");
    assert_eq!(last["error"]["code"], "cancelled", "{last}");
    assert!(events.iter().all(|event| !event.contains("\"finish_reason\":\"")), "{events:?}");
}

#[test]
fn request_during_a_new_assignment_is_answered_by_the_new_model() {
    const OTHER: &str = "bard-q8_0.gguf";
    let models = deep_models();
    fs::copy(demo_models().join(OTHER), models.path().join(OTHER)).expect("the folder has room");
    let cluster = Cluster::with(2, models.path(), "");
    let address = beside(&cluster.addresses[0]);
    for model in [OTHER, DEEP, OTHER, DEEP, OTHER] {
        let run = ["--model", model, "--prompt", "ab", "--max-tokens", "1", "--topology", "dp2", "--context", "512"];
        cluster.generate(2, &run).completion();
        // Both replicas receive requests, and the gateway learns of the assignment only from the next reports.
        for _ in 0..4 {
            let answer = post(&address, "/v1/completions", &body(2, false)).good();
            assert_eq!(answer["model"], model, "{answer}");
        }
    }
}

#[test]
fn answer_is_never_continued_by_another_model() {
    let models = deep_models();
    fs::copy(demo_models().join("bard-q8_0.gguf"), models.path().join("bard-q8_0.gguf")).expect("the folder has room");
    let cluster = Cluster::with(2, models.path(), "");
    let assign = |model: &str| {
        let run = ["--model", model, "--prompt", "ab", "--max-tokens", "1", "--topology", "tp2", "--context", "512"];
        cluster.generate(2, &run).completion();
    };
    assign(DEEP);
    let address = beside(&cluster.addresses[0]);
    wait_until("the gateway has the topology", || get(&address, "/health").status == 200);
    let mut answer = stream(&address, "/v1/completions", &body(400, true));
    assert_eq!(answer.status, 200);
    let mut events: Vec<Value> = Vec::new();
    let mut take = |answer: &mut harness::http::Stream| {
        let event = answer.event()?;
        events.push(serde_json::from_str(&event).unwrap_or_else(|_| json!({"done": event})));
        Some(())
    };
    take(&mut answer).expect("tokens arrive");
    assign("bard-q8_0.gguf");
    while take(&mut answer).is_some() {}
    let last = events.pop().expect("it ends");
    assert_eq!(last["error"]["code"], "model_replaced", "{last}");
    assert!(events.iter().all(|event| event["model"] == DEEP), "every chunk must name the model that computed it");
    let text = text_of(&events, 0);
    assign(DEEP);
    wait_until("the gateway reports it", || get(&address, "/v1/models").json()["data"][0]["id"] == DEEP);
    let whole = post(&address, "/v1/completions", &body(400, false)).good();
    let whole = whole["choices"][0]["text"].as_str().expect("a text");
    assert!(whole.starts_with(&text), "{text:?} is not a prefix of {whole:?}");
}
