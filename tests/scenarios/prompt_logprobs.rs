//! Log probabilities of prompts over the OpenAI API: `echo` with `logprobs`, which programs need that score texts.
use std::sync::Arc;

use common::sampling::SamplingParameters;
use gguf::{BlockFormat, GgufFile};
use harness::{
    engines::Replica,
    greedy::log_softmax,
    http::{beside, get, post},
    oracle::Oracle,
    programs::{Cluster, demo_models, wait_until},
    tiny_model::{Architecture, TinyModel},
};
use protocol::message::{Generate, Prompt};
use serde_json::{Value, json};

const MODEL: &str = "bard-q8_0.gguf";
/// More than two steps of log probabilities.
const TOKENS: usize = 70;

/// Daemons that serve the demo model in this layout, and the address of their API.
fn serving(nodes: usize, layout: &str) -> (Cluster, String) {
    let cluster = Cluster::with(nodes, &demo_models(), "");
    let run = ["--model", MODEL, "--prompt", "ab", "--max-tokens", "1", "--context", "256", "--topology", layout];
    cluster.generate(nodes, &run).completion();
    let address = beside(&cluster.addresses[0]);
    wait_until("it serves", || get(&address, "/health").status == 200);
    (cluster, address)
}

/// Ids without meaning, in the vocabulary.
fn prompt() -> Vec<u32> {
    (0..TOKENS as u32).map(|index| 10 + index * 37 % 400).collect()
}

fn complete(address: &str, prompt: &Value, echo: bool, max_tokens: u32) -> Value {
    let body = json!({
        "prompt": prompt, "echo": echo, "max_tokens": max_tokens, "logprobs": 5, "temperature": 0, "seed": 1,
    });
    post(address, "/v1/completions", &body).good()
}

fn assert_scores_are_those_of_sampling(nodes: usize, layout: &str) {
    let (_cluster, address) = serving(nodes, layout);
    let ids = prompt();
    // The beginning of the prompt is cached, which must change nothing.
    complete(&address, &json!(ids[..40]), false, 1);
    let scored = complete(&address, &json!(ids), true, 1);
    let logprobs = &scored["choices"][0]["logprobs"];
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[name].as_array().map(Vec::len), Some(TOKENS + 1), "{name}: {scored}");
    }
    assert_eq!((&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]), (&Value::Null, &Value::Null));
    for position in [1, 2, 31, 32, 33, 34, 63, 64, 65, TOKENS - 1, TOKENS] {
        let sampled = complete(&address, &json!(ids[..position]), false, 1);
        let expected = &sampled["choices"][0]["logprobs"]["top_logprobs"][0];
        assert_eq!(&logprobs["top_logprobs"][position], expected, "{layout}, position {position}");
        let own = logprobs["token_logprobs"][position].as_f64().expect("a number");
        let best = expected.as_object().expect("an object").values().filter_map(Value::as_f64).fold(-1e9, f64::max);
        assert!(own.is_finite() && own <= best, "{own} of {best}");
    }
    let again = complete(&address, &json!(ids), true, 1);
    assert_eq!(again["choices"][0], scored["choices"][0], "{layout}: a second time");
    let usage = &scored["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(TOKENS), &json!(1)), "{usage}");
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0, "cached positions have no logits");
}

#[test]
fn prompt_scores_are_those_of_sampling_on_one_rank() {
    assert_scores_are_those_of_sampling(1, "tp1");
}

#[test]
fn prompt_scores_are_those_of_sampling_on_two_ranks() {
    assert_scores_are_those_of_sampling(2, "tp2");
}

#[test]
fn prompt_scores_are_those_of_sampling_in_a_pipeline() {
    assert_scores_are_those_of_sampling(2, "pp2");
}

#[test]
fn echo_takes_texts_ids_and_lists_with_and_without_an_answer() {
    let (_cluster, address) = serving(1, "tp1");
    let text = "ROMEO: But soft!";
    let only = complete(&address, &json!(text), true, 0);
    let choice = &only["choices"][0];
    assert_eq!((choice["text"].as_str(), choice["finish_reason"].as_str()), (Some(text), Some("length")), "{only}");
    assert_eq!(only["usage"]["completion_tokens"], 0, "{only}");
    let count = only["usage"]["prompt_tokens"].as_u64().expect("a number") as usize;
    assert_eq!(choice["logprobs"]["token_logprobs"].as_array().map(Vec::len), Some(count));
    let ids = post(&address, "/tokenize", &json!({"prompt": text})).good()["tokens"].clone();
    let both = complete(&address, &json!([ids, ids]), true, 1);
    for index in 0..2 {
        let scored = &both["choices"][index]["logprobs"]["token_logprobs"];
        assert_eq!(
            scored.as_array().expect("a list")[..count],
            choice["logprobs"]["token_logprobs"].as_array().expect("a list")[..]
        );
    }
    let plain = post(&address, "/v1/completions", &json!({"prompt": text, "echo": true, "max_tokens": 4})).good();
    let begun = plain["choices"][0]["text"].as_str().expect("a text");
    assert!(
        begun.starts_with(text) && begun.len() > text.len() && plain["choices"][0]["logprobs"].is_null(),
        "{plain}"
    );
    let refused =
        post(&address, "/v1/completions", &json!({"prompt": text, "echo": true, "logprobs": 1, "stream": true}));
    refused.assert_error(400, "invalid_value", "stream");
}

#[test]
fn prompt_scores_are_those_of_the_reference_pass_in_any_company() {
    let model = TinyModel { context_length: 1024, ..TinyModel::new(Architecture::Llama) };
    let bytes = model.with_format(BlockFormat::F32).bytes();
    let file = Arc::new(GgufFile::from_bytes(vec![bytes]).expect("the model is valid"));
    let tokens = |seed: u32, count: u32| (0..count).map(|index| 3 + (index * 37 + seed * 31) % 290).collect::<Vec<_>>();
    let sampling = |scores_prompt| SamplingParameters {
        temperature: 0.0,
        logprobs: 3,
        scores_prompt,
        ..SamplingParameters::default()
    };
    let prompts = [tokens(1, 150), tokens(2, 1), tokens(3, 33), tokens(1, 90)];
    let mut requests: Vec<Generate> = prompts
        .iter()
        .map(|prompt| Generate::new(Prompt::Tokens(prompt.clone()), 4, sampling(true), Vec::new()))
        .collect();
    // Answers without scores run in the same steps.
    requests
        .extend((0..3).map(|seed| Generate::new(Prompt::Tokens(tokens(seed, 60)), 40, sampling(false), Vec::new())));
    for replica in [Replica::of(1), Replica::of(2), Replica::pipeline()] {
        let found = replica.answers(&file, &[requests.clone(), requests.clone()]);
        for (answer, prompt) in found.iter().flat_map(|batch| batch.iter().zip(&prompts)) {
            assert_eq!(answer.scored.iter().filter_map(|one| one.id).collect::<Vec<_>>(), *prompt);
            assert!(answer.scored[0].logprobs.is_empty() && answer.ids.len() == 4);
            let exact = Oracle::new(&file).logits(prompt);
            for (logits, scored) in exact.iter().zip(&answer.scored[1..]) {
                let expected = log_softmax(logits);
                assert!((3..=4).contains(&scored.logprobs.len()), "{scored:?}");
                for one in &scored.logprobs {
                    let error = (f64::from(one.logprob) - expected[one.id as usize]).abs();
                    assert!(error < 2e-2, "{one:?}, expected {}", expected[one.id as usize]);
                }
                assert!(scored.logprobs.iter().any(|one| Some(one.id) == scored.id), "its own is there");
            }
        }
        for batch in &found {
            assert!(batch[prompts.len()..].iter().all(|answer| answer.scored.is_empty() && answer.ids.len() == 40));
        }
    }
}
