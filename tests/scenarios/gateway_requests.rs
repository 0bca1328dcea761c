//! Requests to the OpenAI API, option by option, and the refusals: every refusal is a 4xx that names the field.
use std::fs;

use harness::{
    deep_models::deep_models,
    http::{beside, bytes, get, post, raw, serving, stream, text_of, with_fields},
    programs::{Cluster, DEEP, wait_until},
    random::Random,
};
use serde_json::{Value, json};

const KEY: &str = "sk-0123456789abcdef";

fn prompt(more: Value) -> Value {
    with_fields(json!({"prompt": "ROMEO:\n", "max_tokens": 12, "temperature": 0}), more)
}

#[test]
fn choices_wait_for_each_other_longer_than_for_other_requests() {
    let models = deep_models();
    let cluster = Cluster::with(1, models.path(), "http_queue = 2\nhttp_queue_ms = 200\n");
    let file = models.path().join("one.toml");
    let node = &cluster.addresses[0];
    let text = format!("model = \"{DEEP}\"\nslots = 1\ncontext_length = 2048\n[[stage]]\nnodes = [\"{node}\"]\n");
    fs::write(&file, text).expect("the folder is ours");
    cluster.console(&["topology", "assign", &file.display().to_string(), "--yes", "--json"]).json();
    let address = beside(node);
    wait_until("the gateway has the topology", || get(&address, "/health").status == 200);
    let body =
        |more: Value| with_fields(json!({"prompt": "ab", "max_tokens": 400, "temperature": 0.9, "seed": 1}), more);
    let mut begun = stream(&address, "/v1/completions", &body(json!({"n": 3, "stream": true})));
    begun.event().expect("tokens arrive");
    let other = post(&address, "/v1/completions", &body(json!({"max_tokens": 3})));
    assert_eq!(other.status, 429, "{}", other.body);
    let ends = begun.events().iter().filter(|event| event["choices"][0]["finish_reason"] == "length").count();
    assert_eq!(ends, 3);
}

#[test]
fn options_take_effect() {
    let (_cluster, address) = serving("");
    let ask = |more: Value| post(&address, "/v1/completions", &prompt(more)).good();
    let text = |object: &Value, index: usize| object["choices"][index]["text"].as_str().expect("a text").to_owned();
    let whole = ask(json!({}));
    let plain = text(&whole, 0);

    let stop: String = plain.chars().skip(4).take(3).collect();
    for value in [json!(stop), json!(["\u{1}", stop])] {
        let cut = ask(json!({"stop": value}));
        assert_eq!(Some(text(&cut, 0).as_str()), plain.find(&stop).map(|at| &plain[..at]));
        assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    }
    let hot = |more: Value| {
        let mut body = prompt(more);
        body["temperature"] = json!(1.5);
        post(&address, "/v1/completions", &body).good()
    };
    assert_eq!(text(&hot(json!({"seed": 7})), 0), text(&hot(json!({"seed": 7})), 0));
    let three = hot(json!({"seed": 7, "n": 3}));
    assert_eq!(three["choices"].as_array().map(Vec::len), Some(3));
    for (index, seed) in [7, 8, 9].into_iter().enumerate() {
        assert_eq!(text(&three, index), text(&hot(json!({"seed": seed})), 0), "choice {index}");
    }
    assert_eq!(three["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"], "a prompt must count once");

    let ids = json!([1, 2, 3]);
    let two = ask(json!({"prompt": [[1, 2, 3], [4, 5]]}));
    assert_eq!(text(&ask(json!({"prompt": ids})), 0), text(&two, 0));
    assert_eq!(two["usage"]["prompt_tokens"], 5);

    let shown = ask(json!({"logprobs": 3}));
    let logprobs = &shown["choices"][0]["logprobs"];
    let tokens: Vec<&str> = logprobs["tokens"].as_array().expect("tokens").iter().filter_map(Value::as_str).collect();
    assert_eq!((tokens.len(), tokens.concat()), (12, plain.clone()));
    assert_eq!(logprobs["top_logprobs"][0].as_object().map(serde_json::Map::len), Some(3));
    let streamed =
        stream(&address, "/v1/completions", &prompt(json!({"logprobs": 0, "stream": true, "n": 2}))).events();
    assert_eq!((text_of(&streamed, 0), text_of(&streamed, 1)), (plain.clone(), plain.clone()));
    assert_eq!(
        streamed
            .iter()
            .map(|event| event["choices"][0]["logprobs"]["tokens"].as_array().map_or(0, Vec::len))
            .sum::<usize>(),
        24
    );

    let first = tokens[0];
    let ids = raw(
        &address,
        &bytes("POST", "/v1/completions", &[], Some(&prompt(json!({"logit_bias": {"1": 0.0}})).to_string())),
    );
    assert_eq!(text(&ids.rest().good(), 0), plain, "a zero bias changed {first:?}");
    assert_eq!(ask(json!({"max_tokens": null, "max_completion_tokens": 3}))["usage"]["completion_tokens"], 3);
    assert_eq!(ask(json!({"max_tokens": null}))["usage"]["completion_tokens"], 16, "the default of OpenAI's API");
    ask(json!({"user": "me", "top_k": 5, "top_p": 0.9, "min_p": 0.1, "presence_penalty": 1, "unknown": {"a": []}}));
}

#[test]
fn same_request_id_gives_the_same_text_and_is_returned() {
    let (_cluster, address) = serving("");
    let body = json!({"prompt": "ROMEO:\n", "max_tokens": 20, "temperature": 1.5}).to_string();
    let ask = |id: &str| {
        let headers: &[(&str, &str)] = if id.is_empty() { &[] } else { &[("X-Request-Id", id)] };
        let answer = raw(&address, &bytes("POST", "/v1/completions", headers, Some(&body))).rest();
        let found = answer.header("x-request-id").expect("an id").to_owned();
        (found, answer.good()["choices"][0]["text"].clone())
    };
    let first = ask("retry-me");
    assert_eq!(first.0, "retry-me");
    assert_eq!(ask("retry-me"), first);
    assert_ne!(ask("another").1, first.1);
    let (own, other) = (ask(""), ask(""));
    assert_ne!(own.0, other.0);
    assert_ne!(ask("\u{e9}").0, "\u{e9}", "an unprintable id must be replaced");
    let traces = get(&address, "/traces?limit=50").good();
    let has = |id: &str| traces["data"].as_array().expect("a list").iter().any(|trace| trace["request_id"] == id);
    assert!(has("retry-me") && has("another") && has(&own.0), "{traces}");
}

#[test]
fn every_bad_request_is_a_4xx_that_names_the_field() {
    let (_cluster, address) = serving("");
    for (more, part) in [
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": [1, "a"]}), "prompt"),
        (json!({"prompt": [-1]}), "prompt"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": 101}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"n": 129}), "n "),
        (json!({"n": 65, "prompt": ["a", "b"]}), "2 prompts"),
        (json!({"logprobs": 21}), "logprobs"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"stop": [""]}), "stop"),
        (json!({"stop": 3}), "stop"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"response_format": {"type": "xml"}}), "xml"),
        (json!({"response_format": {"type": "json_schema"}}), "schema"),
        (json!({"prompt": [4_000_000_000_u32]}), "vocabulary"),
    ] {
        let answer = post(&address, "/v1/completions", &prompt(more.clone()));
        assert_eq!(answer.status, 400, "{more}: {}", answer.body);
        let message = answer.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert!(message.contains(part), "{more}: {message}");
    }
    for (messages, part) in [
        (json!([]), "messages"),
        (json!([{"content": "x"}]), "messages[0].role"),
        (json!([{"role": "user", "content": 1}]), "messages[0].content"),
        (json!([{"role": "user", "content": [{"type": "image_url"}]}]), "not text"),
    ] {
        let answer = post(&address, "/v1/chat/completions", &json!({"messages": messages}));
        answer.assert_error(400, "invalid_value", part);
    }
    post(&address, "/v1/completions", &prompt(json!({"model": "gpt-4"}))).assert_error(
        404,
        "model_not_found",
        "bard-q8_0",
    );
    post(&address, "/v1/audio/speech", &json!({})).assert_error(404, "not_found", "/v1/chat/completions");
    get(&address, "/v1/completions").assert_error(405, "method_not_allowed", "POST");
    post(&address, "/v1/completions", &prompt(json!({"prompt": "a ".repeat(20_000)}))).assert_error(
        400,
        "context_length_exceeded",
        "context",
    );
    let long = format!("{{\"prompt\": \"{}\"}}", "x".repeat(8 << 20));
    raw(&address, &bytes("POST", "/v1/completions", &[], Some(&long))).rest().assert_error(
        413,
        "body_too_large",
        "shorten",
    );
}

#[test]
fn only_health_answers_without_the_key() {
    let (_cluster, address) = serving(&format!("api_keys = [\"sk-another-key\", \"{KEY}\"]\n"));
    let ask = |path: &str, key: Option<&str>| {
        let value = key.map(|key| format!("Bearer {key}"));
        let headers: Vec<(&str, &str)> = value.iter().map(|value| ("Authorization", value.as_str())).collect();
        raw(&address, &bytes("GET", path, &headers, None)).rest()
    };
    for path in ["/v1/models", "/metrics", "/traces", "/v1/unknown"] {
        for key in [None, Some("sk-wrong-key-0"), Some("")] {
            ask(path, key).assert_error(401, "invalid_api_key", "Authorization: Bearer");
        }
    }
    post(&address, "/v1/completions", &prompt(json!({}))).assert_error(401, "invalid_api_key", "Bearer");
    assert_eq!(ask("/v1/models", Some(KEY)).status, 200);
    assert_eq!(get(&address, "/health").status, 200);
}

#[test]
fn ten_thousand_malformed_requests_get_4xx_and_disturb_nobody() {
    let (cluster, address) = serving("");
    let body = json!({"prompt": "ROMEO:\n", "max_tokens": 200, "temperature": 0.9, "seed": 3, "stream": true});
    let expected = text_of(&stream(&address, "/v1/completions", &body).events(), 0);
    let running = stream(&address, "/v1/completions", &body);
    let good = prompt(json!({"stream": true, "stop": ["x"], "logit_bias": {"3": 1}})).to_string();
    let mut random = Random::new(5);
    let mut statuses = std::collections::BTreeMap::<u16, u32>::new();
    for round in 0..10_000_usize {
        let request = match round % 4 {
            0 => bytes("POST", "/v1/completions", &[], Some(&good[..round / 4 % good.len()])),
            1 => {
                let noise: String = (0..round % 300).map(|_| char::from(random.below(127) as u8)).collect();
                bytes("POST", "/v1/chat/completions", &[], Some(&noise))
            }
            2 => bytes("POST", "/v1/completions", &[], Some(&good.replace("\"ROMEO:\\n\"", &"[".repeat(round / 4)))),
            _ => {
                let mut noise: Vec<u8> = (0..round % 200).map(|_| random.below(256) as u8).collect();
                noise.extend(b"\r\n\r\n");
                noise
            }
        };
        let answer = raw(&address, &request);
        assert!((400..500).contains(&answer.status), "{}: {:?}", answer.status, String::from_utf8_lossy(&request));
        *statuses.entry(answer.status).or_default() += 1;
    }
    println!("{statuses:?}");
    assert_eq!(text_of(&running.events(), 0), expected);
    assert_eq!(cluster.status(0)["state"], "ready");
}
