//! The OpenAI API of real daemons: complete and streamed answers, options, errors, cancellation.
use std::{io::Write, net::TcpStream};

use harness::{
    deep_models::deep_models,
    http::{Stream, beside, bytes, get, post, raw, stream, text_of, with_fields},
    programs::{Cluster, DEEP, wait_until},
};
use serde_json::{Value, json};

/// Two daemons that serve the demo model, and the addresses of their APIs.
fn serving(count: usize) -> (Cluster, Vec<String>) {
    let cluster = Cluster::of(count);
    cluster.generate(count, &["--prompt", "ROMEO:\n", "--max-tokens", "1"]).completion();
    let addresses: Vec<String> = cluster.addresses.iter().map(|address| beside(address)).collect();
    for address in &addresses {
        wait_until("the gateway has the topology", || get(address, "/health").status == 200);
    }
    (cluster, addresses)
}

fn prompt(more: Value) -> Value {
    with_fields(json!({"model": "bard-q8_0", "prompt": "ROMEO:\n", "max_tokens": 24, "temperature": 0}), more)
}

#[test]
fn completion_is_equal_from_console_whole_and_streamed() {
    let (cluster, addresses) = serving(2);
    let run = &["--prompt", "ROMEO:\n", "--max-tokens", "24", "--temperature", "0"];
    let expected = cluster.generate(2, run).completion()["text"].clone();
    for address in &addresses {
        let whole = post(address, "/v1/completions", &prompt(json!({}))).good();
        assert_eq!(whole["choices"][0]["text"], expected);
        assert_eq!(
            (whole["object"].as_str(), &whole["choices"][0]["finish_reason"]),
            (Some("text_completion"), &json!("length"))
        );
        assert_eq!(whole["usage"]["completion_tokens"], 24);
        assert!(whole["usage"]["prompt_tokens"].as_u64().is_some_and(|count| count > 1));
        let options = json!({"stream": true, "stream_options": {"include_usage": true}});
        let answer = stream(address, "/v1/completions", &prompt(options));
        assert_eq!(answer.status, 200);
        let events = answer.events();
        assert_eq!(text_of(&events, 0), expected.as_str().expect("a text"));
        let last = events.last().expect("events arrived");
        assert_eq!(last["choices"], json!([]));
        // How many tokens were speculated or cached depends on measured times and on earlier requests.
        for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(last["usage"][count], whole["usage"][count]);
        }
        let end = &events[events.len() - 2];
        assert_eq!(end["choices"][0]["finish_reason"], "length");
        assert!(events.iter().all(|event| event["id"] == last["id"] && event["model"] == "bard-q8_0.gguf"));
        let stages = [
            "t_accept",
            "t_dispatch",
            "t_prefill_start",
            "t_prefill_done",
            "t_first_token",
            "t_first_byte_sent",
            "t_done",
        ];
        for timings in [&end["timings"], &whole["timings"]] {
            let times: Vec<f64> =
                stages.iter().map(|stage| timings["trace"][stage].as_f64().expect("a time")).collect();
            assert!(times[..5].is_sorted() && times[5] <= times[6] && times[6] > 0.0, "{timings}");
            assert_eq!(timings["predicted_n"], 24);
        }
    }
}

#[test]
fn models_and_health_reflect_the_running_topology() {
    let cluster = Cluster::of(2);
    let address = beside(&cluster.addresses[1]);
    wait_until("the node has reported", || get(&address, "/health").json()["status"] == "unavailable");
    assert_eq!(get(&address, "/health").status, 503);
    let refused = post(&address, "/v1/completions", &prompt(json!({})));
    refused.assert_error(503, "not_serving", "console generate");
    assert!(
        refused.header("retry-after").is_some_and(|seconds| seconds.parse::<u64>().is_ok_and(|seconds| seconds > 0))
    );
    assert_eq!(get(&address, "/v1/models").good()["data"], json!([]));
    cluster.generate(2, &["--prompt", "ROMEO:\n", "--max-tokens", "1"]).completion();
    wait_until("it serves", || get(&address, "/health").status == 200);
    let health = get(&address, "/health").good();
    assert_eq!((&health["status"], &health["replicas"]), (&json!("ready"), &json!({"serving": 1, "all": 1})));
    let models = get(&address, "/v1/models").good();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["meta"]["topology"]),
        (&json!("bard-q8_0.gguf"), &json!("tp2"))
    );
    assert_eq!(get(&address, "/v1/models/bard-q8_0").good()["id"], "bard-q8_0.gguf");
    get(&address, "/v1/models/gpt-4").assert_error(404, "model_not_found", "bard-q8_0");
}

#[test]
fn disconnected_client_cancels_its_request() {
    let models = deep_models();
    let cluster = Cluster::with(2, models.path(), "");
    cluster.generate(2, &["--model", DEEP, "--prompt", "ab", "--max-tokens", "1", "--context", "8192"]).completion();
    let address = beside(&cluster.addresses[1]);
    wait_until("it serves", || get(&address, "/health").status == 200);
    post(&address, "/v1/chat/completions", &json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true}))
        .assert_error(400, "no_template", "instruct");
    let body = |is_streamed: bool| json!({"prompt": "ab", "max_tokens": 8000, "temperature": 0, "stream": is_streamed});
    let mut answer: Stream = stream(&address, "/v1/completions", &body(true));
    (0..3).for_each(|_| drop(answer.event().expect("tokens arrive")));
    assert_eq!(cluster.status(0)["requests"], 1);
    drop(answer);
    wait_until("the head is idle again", || cluster.status(0)["requests"] == 0);
    let mut socket = TcpStream::connect(&address).expect("it listens");
    let request = bytes("POST", "/v1/completions", &[], Some(&body(false).to_string()));
    socket.write_all(&request).expect("it is sent");
    wait_until("it runs", || cluster.status(0)["requests"] == 1);
    drop(socket);
    wait_until("the head is idle again", || cluster.status(0)["requests"] == 0);
    let metrics = get(&address, "/metrics").body;
    assert!(metrics.contains("bramble_cancelled_total 1"), "{metrics}");
    let id = raw(&address, &bytes("GET", "/health", &[("X-Request-Id", "mine-1")], None)).rest();
    assert_eq!(id.header("x-request-id"), Some("mine-1"));
}
