//! Requests in the forms of older clients and of clients of other servers: they are served, or refused by name.
use common::chat::Grammar;
use harness::{
    fake_heads::{FakeHeads, Script},
    http::{HttpAnswer, beside, bytes, get, post, raw, serving, with_fields},
    programs::{Cluster, demo_models, wait_until},
};
use serde_json::{Value, json};

const KEY: &str = "sk-0123456789abcdef";

fn complete(address: &str, path: &str, more: Value) -> HttpAnswer {
    post(address, path, &with_fields(json!({"prompt": "ROMEO:\n", "max_tokens": 6, "temperature": 0}), more))
}

#[test]
fn numbers_lists_and_paths_of_other_clients_are_served() {
    let (_cluster, address) = serving("");
    let text = |answer: HttpAnswer, index: usize| answer.good()["choices"][index]["text"].clone();
    let plain = text(complete(&address, "/v1/completions", json!({})), 0);
    for more in [
        json!({"top_k": -1}),
        json!({"max_tokens": 6.0, "n": 1.0}),
        json!({"stop": "", "suffix": "", "logprobs": false}),
        json!({"modalities": ["text"], "grammar": ""}),
    ] {
        assert_eq!(text(complete(&address, "/v1/completions", more.clone()), 0), plain, "{more}");
    }
    for path in ["/v1/completions/", "//v1//completions", "/completions"] {
        assert_eq!(text(complete(&address, path, json!({})), 0), plain, "{path}");
    }
    let many = complete(&address, "/v1/completions", json!({"prompt": vec!["ROMEO:\n"; 20]}));
    assert_eq!(many.good()["choices"].as_array().map(Vec::len), Some(20));
    assert_eq!(text(many, 19), plain);
    for path in ["/", "/ping", "/version", "/v1/health", "/models/"] {
        assert_eq!(get(&address, path).status, 200, "{path}");
    }
    let models = get(&address, "/v1/models").good();
    assert!(models["data"][0]["created"].as_u64().is_some_and(|created| created > 1_700_000_000), "{models}");
}

#[test]
fn unenforceable_schemas_warn_or_are_refused() {
    let (_cluster, address) = serving("");
    let form = |is_strict: bool| {
        let schema = json!({"type": "array", "maxItems": 1, "items": {"type": "string", "format": "uuid4", "maxLength": 1}, "uniqueItems": true});
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema, "strict": is_strict}}})
    };
    let answer = complete(&address, "/v1/completions", form(false));
    answer.good();
    assert_eq!(answer.header("x-bramble-warning"), Some("not enforced: format uuid4, uniqueItems"));
    complete(&address, "/v1/completions", form(true)).assert_error(400, "invalid_value", "uniqueItems");
    assert_eq!(complete(&address, "/v1/completions", json!({})).header("x-bramble-warning"), None);
    for name in ["guided_regex", "guided_choice", "grammar", "modalities"] {
        let answer = complete(&address, "/v1/completions", json!({name: ["a"]}));
        answer.assert_error(400, "invalid_value", name);
    }
}

#[test]
fn too_long_prompts_are_refused_at_once_and_named() {
    let (_cluster, address) = serving("");
    let long = "a ".repeat(5 << 19);
    complete(&address, "/v1/completions", json!({"prompt": long})).assert_error(413, "prompt_too_large", "shorten");
    let chat = json!({"messages": [{"role": "user", "content": long}]});
    post(&address, "/v1/chat/completions", &chat).assert_error(413, "prompt_too_large", "shorten");
    let answer = complete(&address, "/v1/completions", json!({"prompt": "a ".repeat(20_000)}));
    assert_eq!(answer.json()["error"]["param"], "prompt", "{}", answer.body);
}

#[test]
fn key_may_be_in_either_header() {
    let (_cluster, address) = serving(&format!("api_keys = [\"{KEY}\"]\n"));
    let bearer = format!("bearer {KEY}");
    for (name, value, status) in [
        ("Authorization", bearer.as_str(), 200),
        ("X-Api-Key", KEY, 200),
        ("X-Api-Key", "sk-wrong-key-0", 401),
        ("Authorization", KEY, 401),
    ] {
        let answer = raw(&address, &bytes("GET", "/v1/models", &[(name, value)], None)).rest();
        assert_eq!(answer.status, status, "{name}: {value}");
    }
    assert_eq!((get(&address, "/ping").status, get(&address, "/version").status), (200, 401));
}

#[test]
fn required_calls_carry_their_definitions_to_the_head() {
    let heads = FakeHeads::start(&[Script::IsCancelledAfter(1)]);
    let cluster = Cluster::with(1, &demo_models(), &format!("peers = [\"{}\"]\n", heads.addresses[0]));
    let address = beside(&cluster.addresses[0]);
    wait_until("the head serves", || get(&address, "/health").json()["replicas"]["serving"] == 1);
    let parameters = json!({
        "type": "object", "properties": {"at": {"$ref": "#/$defs/Place"}}, "$defs": {"Place": {"type": "string"}},
    });
    let chat = json!({
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}],
        "functions": [{"name": "go", "parameters": parameters}],
        "function_call": {"name": "go"},
    });
    assert_eq!(post(&address, "/v1/chat/completions", &chat).status, 499, "the script cancels it");
    let asked = heads.asked();
    let Some(Grammar::JsonSchema(schema)) = &asked[0].grammar else { panic!("a schema") };
    assert!(schema.contains("\"#/$defs/0/$defs/Place\""), "{schema}");
    assert_eq!(asked[0].max_tokens, 1024, "the first part of an answer that only the context bounds");
}
