//! Untrusted input that breaks libraries: schemas, chat templates, vocabularies and prompts, against real daemons.
use std::{fs, sync::Arc};

use common::{chat::FinishReason, fault::FaultKind, sampling::SamplingParameters};
use gguf::GgufFile;
use harness::tiny_model::Architecture;
use harness::{
    engines::Replica,
    http::{beside, get, post, with_fields},
    programs::{Cluster, folder_with, wait_until},
    tiny_model::TinyModel,
};
use protocol::message::{Generate, Prompt};
use serde_json::{Value, json};

/// Waits until the API of a node serves; returns its address.
fn api(cluster: &Cluster) -> String {
    let address = beside(&cluster.addresses[0]);
    wait_until("the gateway has the topology", || get(&address, "/health").status == 200);
    address
}

fn complete(address: &str, more: Value) -> harness::http::HttpAnswer {
    post(address, "/v1/completions", &with_fields(json!({"prompt": "a", "max_tokens": 1}), more))
}

#[test]
fn stack_overflowing_schema_is_refused_and_all_keep_running() {
    let mut cluster = Cluster::of(1);
    cluster.generate(1, &["--prompt", "ROMEO:", "--max-tokens", "1"]).completion();
    let (address, process) = (api(&cluster), cluster.pid(0));
    let form = |schema: &Value| json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let least = i64::MIN;
    for schema in [
        json!({"const": least}),
        json!({"enum": [1, least + 1]}),
        json!({"type": "array", "items": {"const": least + 2}}),
        json!({"type": "integer", "minimum": least, "maximum": least + 1}),
        json!({"enum": ["v".repeat(100_000)]}),
    ] {
        let answer = complete(&address, form(&schema));
        answer.assert_error(400, "parameter_invalid", "response format: ");
    }
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"const": least}}}}});
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "tools": [tool], "tool_choice": "required"});
    assert_eq!(post(&address, "/v1/chat/completions", &chat).status, 400);
    let good =
        complete(&address, form(&json!({"type": "integer", "minimum": -5, "maximum": 9_007_199_254_740_991_i64})));
    assert_eq!(good.status, 200, "{}", good.body);
    assert!(cluster.is_running(0) && cluster.pid(0) == process, "the daemon must not restart");
}

/// Templates that crash the process that runs them, or use all its memory or time, each with a word of the refusal.
fn bombs() -> Vec<(String, &'static str)> {
    vec![
        ("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".into(), "stack"),
        (
            "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
                .into(),
            "memory",
        ),
        ("{{ 'a\nb' | indent(100000000000) }}".into(), "at most 256"),
        ("{% for i in range(99999) %}{% set x = range(99999) | sort %}{% endfor %}".into(), "processor"),
    ]
}

/// A figure of a process's status in kB.
fn kilobytes(process: nix::unistd::Pid, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("the kernel reports it");
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("a number")
}

#[test]
fn template_bombs_fail_only_their_chats() {
    let model = TinyModel::new(Architecture::Llama);
    for (template, word) in bombs() {
        let file = model.writer().text("tokenizer.chat_template", &template).finish();
        let folder = folder_with(&[("bomb.gguf", &file)]);
        let mut cluster = Cluster::with(1, folder.path(), "");
        let process = cluster.pid(0);
        // The model loads and serves plain prompts.
        cluster.generate(1, &["--model", "bomb.gguf", "--prompt", "a", "--max-tokens", "1"]).completion();
        let (address, idle) = (api(&cluster), kilobytes(process, "VmRSS:"));
        let chat = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
        let answer = post(&address, "/v1/chat/completions", &chat);
        answer.assert_error(400, "parameter_invalid", word);
        assert_eq!(complete(&address, json!({})).status, 200, "plain prompts need no template");
        assert!(cluster.is_running(0) && cluster.pid(0) == process, "the daemon must not restart");
        let most = kilobytes(process, "VmHWM:");
        assert!(most < idle * 5 / 4 + (64 << 10), "{idle} kB before, {most} kB at most");
    }
}

/// Token 2 ends an answer: it is never sampled here.
fn sampling() -> SamplingParameters {
    SamplingParameters { temperature: 0.0, logit_bias: vec![(2, -1e9)], ..SamplingParameters::default() }
}

fn tokens(ids: &[u32], max_tokens: u32, resumed: &[u32]) -> Generate {
    let generate = Generate::new(Prompt::Tokens(ids.to_vec()), max_tokens, sampling(), Vec::new());
    Generate { resumed: resumed.to_vec(), ..generate }
}

#[test]
fn answer_resumed_at_the_end_of_its_context_is_complete() {
    let bytes = TinyModel::new(Architecture::Llama).bytes();
    let file = Arc::new(GgufFile::from_bytes(vec![bytes]).expect("the model is valid"));
    let replica = Replica { context_length: 64, ..Replica::of(1) };
    let one = |generate: Generate| replica.each_alone(&file, &[generate]).remove(0);
    for length in [40, 63, 64] {
        let prompt: Vec<u32> = (0..length).map(|index| 3 + index % 250).collect();
        let whole = one(tokens(&prompt, 100, &[]));
        assert_eq!(whole.end().reason, FinishReason::Context);
        assert_eq!(whole.ids.len(), (64 - length as usize).max(1));
        let again = one(tokens(&prompt, 100, &whole.ids));
        assert_eq!((again.end().reason, again.ids.as_slice()), (FinishReason::Context, &[][..]), "prompt of {length}");
    }
    let beyond = one(tokens(&[5; 64], 100, &[5; 2]));
    assert!(matches!(
        beyond.refused.map(|fault| fault.kind),
        Some(FaultKind::PromptTooLong { tokens: 66, context: 64 })
    ));
}

#[test]
fn last_token_flushes_all_text_that_was_held_back() {
    let bytes = TinyModel::new(Architecture::Llama).bytes();
    let file = Arc::new(GgufFile::from_bytes(vec![bytes]).expect("the model is valid"));
    let one = |generate: Generate| Replica::of(1).each_alone(&file, &[generate]).remove(0);
    let plain = one(tokens(&[5, 6, 7], 12, &[]));
    // The answer's last character may begin this stop string.
    let last = plain.text.chars().last().expect("it has text");
    let stop = vec![format!("{last}\u{1}")];
    let held = one(Generate { stop: stop.clone(), ..tokens(&[5, 6, 7], 12, &[]) });
    assert_eq!((&held.text, held.told.last()), (&plain.text, Some(&plain.text.len())));
    let again = one(Generate { stop, ..tokens(&[5, 6, 7], 12, &held.ids) });
    assert_eq!((again.end().reason, again.text.as_str()), (FinishReason::Length, ""), "no text may be sent twice");
}

#[test]
fn nan_logit_fails_only_its_request() {
    let model = TinyModel { tied: false, ..TinyModel::new(Architecture::Llama) };
    let mut bytes = model.bytes();
    let whole = GgufFile::from_bytes(vec![bytes.clone()]).expect("the model is valid");
    let embedding = whole.tensor("token_embd.weight").expect("a model has one");
    let row = embedding.offset + 77 * model.embedding_length * 4;
    bytes[row..row + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let file = Arc::new(GgufFile::from_bytes(vec![bytes]).expect("the model is valid"));
    let good = tokens(&[5, 6, 7], 12, &[]);
    for replica in [Replica::of(1), Replica::of(2), Replica::pipeline()] {
        let alone = replica.each_alone(&file, std::slice::from_ref(&good)).remove(0);
        assert_eq!(alone.end().reason, FinishReason::Length);
        let mut answers =
            replica.answers(&file, &[vec![good.clone(), tokens(&[5, 77], 12, &[]), good.clone()]]).remove(0);
        let broken = answers.remove(1).refused.map(|fault| fault.kind);
        assert!(matches!(&broken, Some(FaultKind::Internal { reason }) if reason.contains("not finite")), "{broken:?}");
        answers.iter().for_each(|answer| assert_eq!((&answer.ids, &answer.text), (&alone.ids, &alone.text)));
    }
}
