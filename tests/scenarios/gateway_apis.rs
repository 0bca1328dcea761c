//! APIs other than OpenAI's chats against real daemons and fake heads: Anthropic's messages, OpenAI's responses, Ollama.
use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use harness::{
    fake_heads::{FakeHeads, Script},
    http::{HttpAnswer, beside, bytes, get, post, raw, serving, with_fields},
    programs::{Cluster, demo_models, wait_until},
};
use serde_json::{Value, json};

/// A daemon that forwards to a head which says this.
fn saying(text: &'static str) -> (FakeHeads, Cluster, String) {
    let heads = FakeHeads::start(&[Script::Says(text)]);
    let cluster = Cluster::with(1, &demo_models(), &format!("peers = [\"{}\"]\n", heads.addresses[0]));
    let address = beside(&cluster.addresses[0]);
    wait_until("the head serves", || get(&address, "/health").json()["replicas"]["serving"] == 1);
    (heads, cluster, address)
}

/// The objects of a stream of server-sent events, each named after its type.
#[track_caller]
fn named_events(answer: &HttpAnswer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let records = answer.body.split("\n\n").filter(|record| !record.is_empty() && !record.starts_with(':'));
    records
        .map(|record| {
            let (name, data) = record.split_once("\ndata: ").expect("a name and data");
            let object: Value = serde_json::from_str(data).expect("data is JSON");
            assert_eq!(name, format!("event: {}", object["type"].as_str().expect("a type")));
            object
        })
        .collect()
}

/// The objects of a stream of lines.
#[track_caller]
fn lines(answer: &HttpAnswer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// The answer to a completion whose body has this encoding.
fn encoded(address: &str, encoding: &str, body: &[u8]) -> HttpAnswer {
    let length = body.len().to_string();
    let headers = [("Content-Type", "application/json"), ("Content-Encoding", encoding), ("Content-Length", &length)];
    let mut request = bytes("POST", "/v1/completions", &headers, None);
    request.extend(body);
    raw(address, &request).rest()
}

#[test]
fn bodies_may_be_compressed_but_not_beyond_the_limit() {
    let (_cluster, address) = serving("");
    let plain = json!({"prompt": "ROMEO:\n", "max_tokens": 6, "temperature": 0}).to_string();
    let gzip = |text: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text).expect("memory takes it");
        encoder.finish().expect("memory takes it")
    };
    let text = |answer: HttpAnswer| answer.good()["choices"][0]["text"].clone();
    let expected = text(encoded(&address, "identity", plain.as_bytes()));
    assert_eq!(text(encoded(&address, "gzip", &gzip(plain.as_bytes()))), expected);
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain.as_bytes()).expect("memory takes it");
    assert_eq!(text(encoded(&address, "deflate", &encoder.finish().expect("memory takes it"))), expected);
    let bomb = gzip(&vec![b' '; 64 << 20]);
    encoded(&address, "gzip", &bomb).assert_error(413, "body_too_large", "bytes");
    encoded(&address, "gzip", plain.as_bytes()).assert_error(400, "malformed_request", "compression");
    encoded(&address, "br", plain.as_bytes()).assert_error(415, "unsupported_content_encoding", "gzip");
}

#[test]
fn only_long_whole_answers_are_compressed() {
    let (_cluster, address) = serving("");
    let accepting = |method: &str, path: &str, body: Option<&str>| {
        let answer = raw(&address, &bytes(method, path, &[("Accept-Encoding", "gzip")], body)).rest();
        (answer.status, answer.header("content-encoding").map(str::to_owned))
    };
    let gzip = Some("gzip".to_owned());
    assert_eq!(accepting("GET", "/openapi.json", None), (200, gzip));
    assert_eq!(accepting("GET", "/version", None), (200, None));
    let body = json!({"prompt": "ROMEO:\n", "max_tokens": 40, "stream": true}).to_string();
    assert_eq!(accepting("POST", "/v1/completions", Some(&body)), (200, None));
    let body = json!({"prompt": "ROMEO:\n", "options": {"num_predict": 40}}).to_string();
    assert_eq!(accepting("POST", "/api/generate", Some(&body)), (200, None));
    assert_eq!(get(&address, "/openapi.json").header("content-encoding"), None);
}

#[test]
fn half_closed_clients_get_their_answer() {
    let (_cluster, address) = serving("");
    let body = json!({"prompt": "ROMEO:\n", "max_tokens": 40}).to_string();
    let mut socket = TcpStream::connect(&address).expect("connect to the node");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("set a deadline");
    socket.write_all(&bytes("POST", "/v1/completions", &[], Some(&body))).expect("send a request");
    socket.shutdown(Shutdown::Write).expect("close one half");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("the other half is open");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("finish_reason"), "{answer}");
}

/// The texts at a pointer, joined.
fn joined(objects: &[Value], pointer: &str) -> String {
    objects.iter().filter_map(|object| object.pointer(pointer)?.as_str()).collect()
}

const SPOKEN: &str =
    "Hm.</think>Look.<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>";

#[test]
fn messages_stream_what_they_answer_whole() {
    let (_cluster, address) = serving("");
    let body = json!({
        "model": "bard-q8_0", "max_tokens": 8, "temperature": 0, "system": [{"type": "text", "text": "You write."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Speak, Romeo."}]}],
    });
    let whole = post(&address, "/v1/messages", &body).good();
    assert_eq!((&whole["type"], &whole["stop_reason"]), (&json!("message"), &json!("max_tokens")));
    assert_eq!(whole["usage"]["output_tokens"], 8);
    let events = named_events(&post(&address, "/v1/messages", &with_fields(body.clone(), json!({"stream": true}))));
    assert_eq!(joined(&events, "/delta/text"), whole["content"][0]["text"].as_str().expect("a text"));
    let prompt = events[0]["message"]["usage"]["input_tokens"].as_u64().expect("a number");
    assert!(prompt > 3, "the prompt's tokens are known at the start");
    assert_eq!(events.last().expect("events")["type"], "message_stop");
    for (more, status, kind) in [
        (json!({"model": "other"}), 404, "not_found_error"),
        (json!({"messages": []}), 400, "invalid_request_error"),
        (json!({"temperature": -1}), 400, "invalid_request_error"),
    ] {
        let refused = post(&address, "/v1/messages", &with_fields(body.clone(), more));
        assert_eq!((refused.status, &refused.json()["error"]["type"]), (status, &json!(kind)), "{}", refused.body);
    }
    let batches = post(&address, "/v1/messages/batches", &json!({}));
    assert_eq!((batches.status, batches.json()["type"].as_str()), (404, Some("error")), "{}", batches.body);
    let head = raw(&address, &bytes("HEAD", "/", &[], None)).status;
    assert_eq!((head, get(&address, "/v1/messages").json()["type"].as_str()), (200, Some("error")));
}

#[test]
fn responses_are_kept_continued_and_deleted() {
    let (_cluster, address) = serving("");
    let body =
        json!({"input": "Speak, Romeo.", "max_output_tokens": 8, "temperature": 0, "instructions": "You write."});
    let first = post(&address, "/v1/responses", &body).good();
    assert_eq!((&first["status"], &first["usage"]["output_tokens"]), (&json!("incomplete"), &json!(8)));
    let id = first["id"].as_str().expect("an id");
    let path = format!("/v1/responses/{id}");
    assert_eq!(get(&address, &path).good(), first);
    let next = with_fields(body.clone(), json!({"input": "More.", "previous_response_id": id}));
    let second = post(&address, "/v1/responses", &next).good();
    let tokens = |response: &Value| response["usage"]["input_tokens"].as_u64().expect("a number");
    assert!(tokens(&second) > tokens(&first) + 8, "the first turn is part of the second prompt: {second}");
    let reference =
        json!([{"type": "item_reference", "id": first["output"][0]["id"]}, {"role": "user", "content": "More."}]);
    post(&address, "/v1/responses", &with_fields(body.clone(), json!({"input": reference}))).good();
    let events = named_events(&post(&address, "/v1/responses", &with_fields(body.clone(), json!({"stream": true}))));
    let last = events.last().expect("events");
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(joined(&events, "/delta"), first["output"][0]["content"][0]["text"].as_str().expect("a text"));
    assert_eq!(last["sequence_number"], events.len() - 1);
    let unkept = post(&address, "/v1/responses", &with_fields(body, json!({"store": false}))).good();
    let unkept = format!("/v1/responses/{}", unkept["id"].as_str().expect("an id"));
    get(&address, &unkept).assert_error(404, "response_not_found", "not kept");
    let delete = || raw(&address, &bytes("DELETE", &path, &[], None)).rest();
    assert_eq!(delete().good()["deleted"], true);
    delete().assert_error(404, "response_not_found", "not kept");
    post(&address, "/v1/responses", &next).assert_error(400, "previous_response_not_found", "not kept");
}

#[test]
fn ollama_clients_find_the_model_and_stream_lines() {
    let (_cluster, address) = serving("");
    let tags = get(&address, "/api/tags").good();
    let name = tags["models"][0]["name"].as_str().expect("a name");
    assert_eq!((name, &tags["models"][0]["details"]["quantization_level"]), ("bard-q8_0:latest", &json!("Q8_0")));
    assert!(tags["models"][0]["size"].as_u64().is_some_and(|size| size > 1 << 20), "{tags}");
    let shown = post(&address, "/api/show", &json!({"model": name})).good();
    assert!(shown["model_info"]["bramble.context_length"].as_u64().is_some_and(|length| length > 0), "{shown}");
    assert_eq!(shown["model_info"]["general.basename"], "bard-q8_0");
    assert_eq!(shown["template"], get(&address, "/props").good()["chat_template"]);
    assert!(shown["template"].as_str().is_some_and(|template| template.contains("message")), "{shown}");
    assert_eq!(get(&address, &format!("/v1/models/{name}")).good()["id"], "bard-q8_0.gguf");
    let openai = json!({"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2});
    post(&address, "/v1/chat/completions", &openai).good();
    let options = json!({"num_predict": 8, "temperature": 0});
    let raw_prompt = json!({"model": name, "prompt": "ROMEO:\n", "raw": true, "options": options});
    let records = lines(&post(&address, "/api/generate", &raw_prompt));
    let plain = json!({"prompt": "ROMEO:\n", "max_tokens": 8, "temperature": 0});
    let text = post(&address, "/v1/completions", &plain).good()["choices"][0]["text"].clone();
    assert_eq!(joined(&records, "/response"), text.as_str().expect("a text"));
    let last = records.last().expect("records");
    assert_eq!((&last["done"], &last["done_reason"], &last["eval_count"]), (&json!(true), &json!("length"), &json!(8)));
    let chat = json!({"model": name, "messages": [{"role": "user", "content": "Hi"}], "options": options});
    let records = lines(&post(&address, "/api/chat", &chat));
    let whole = post(&address, "/api/chat", &with_fields(chat, json!({"stream": false}))).good();
    assert_eq!(joined(&records, "/message/content"), whole["message"]["content"].as_str().expect("a text"));
    assert_eq!(post(&address, "/api/generate", &json!({"model": name})).good()["done_reason"], "load");
    for (path, body, status) in [
        ("/api/generate", json!({"model": "other"}), 404),
        ("/api/show", json!({"model": "other"}), 404),
        ("/api/chat", json!({"model": name, "messages": 1}), 400),
        ("/api/pull", json!({"model": name}), 403),
        ("/api/blobs/sha256", json!({}), 404),
        ("/api/generate", json!({"model": name, "prompt": "a", "context": [1]}), 400),
    ] {
        let refused = post(&address, path, &body);
        assert_eq!((refused.status, refused.json()["error"].is_string()), (status, true), "{path}: {}", refused.body);
    }
    assert!(get(&address, "/openapi.json").good()["paths"]["/api/chat"].is_object());
}

#[test]
fn thoughts_and_calls_reach_clients_of_each_api() {
    let (_heads, _cluster, address) = saying(SPOKEN);
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let turn = json!([{"role": "user", "content": "Add."}]);
    let tools = json!([{"name": "add", "input_schema": parameters}]);
    let message = post(&address, "/v1/messages", &json!({"messages": turn, "tools": tools})).good();
    let kinds: Vec<&str> =
        message["content"].as_array().into_iter().flatten().filter_map(|block| block["type"].as_str()).collect();
    assert_eq!((kinds, &message["stop_reason"]), (vec!["thinking", "text", "tool_use"], &json!("tool_use")));
    assert_eq!(message["content"][2]["input"], json!({"a": 1}));

    let tools = json!([{"type": "function", "name": "add", "parameters": parameters}]);
    let events =
        named_events(&post(&address, "/v1/responses", &json!({"input": turn, "tools": tools, "stream": true})));
    let response = &events.last().expect("events")["response"];
    assert_eq!(response["output"][0]["content"][0]["text"], "Hm.");
    assert_eq!(response["output"][2]["name"], "add");
    assert!(response["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64() >= Some(3), "{response}");
    let call = &response["output"][2];
    let output = json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "1"}]);
    let next = json!({"previous_response_id": response["id"], "input": output, "tools": tools});
    assert_eq!(post(&address, "/v1/responses", &next).good()["status"], "completed");

    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": parameters}}]);
    let records = lines(&post(&address, "/api/chat", &json!({"messages": turn, "tools": tools})));
    assert_eq!(
        (joined(&records, "/message/thinking"), joined(&records, "/message/content")),
        ("Hm.".into(), "Look.".into())
    );
    let called: Vec<&Value> =
        records.iter().filter_map(|record| record.pointer("/message/tool_calls/0/function/arguments")).collect();
    assert_eq!(called, [&json!({"a": 1})]);
}
