//! A text from one daemon or several: the same ids, the fields of --json, cancellation, limits.
use harness::tiny_model::Architecture;
use harness::{
    deep_models::deep_models,
    programs::{Cluster, finish, folder_with, wait_until},
    tiny_model::TinyModel,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// Two ranks round differently: if the two best tokens are closer than this (natural logarithm), either may win. The
/// demo file's own error in llama.cpp is 0.8 % of a largest logit of about 16.
const NEAR: f64 = 0.13;

/// The ids up to the first step whose two best tokens are close.
fn sure_ids(completion: &Value) -> Vec<u64> {
    let lists = completion["logprobs"].as_array().expect("logprobs were asked for");
    let sure = lists.iter().take_while(|list| {
        let logprob = |index: usize| list[index]["logprob"].as_f64().expect("two logprobs a token");
        logprob(0) - logprob(1) >= NEAR
    });
    let sure = sure.count();
    let ids = completion["token_ids"].as_array().expect("ids").iter();
    ids.take(sure).map(|id| id.as_u64().expect("an id")).collect()
}

#[test]
fn one_to_four_daemons_write_the_same_text() {
    let cluster = Cluster::of(4);
    let prompts = [
        "ROMEO:\n",
        "First Citizen:\nBefore we",
        "KING RICHARD II:\nWhat must the king do now?",
        "JULIET:\nO ",
        "HAMLET:\nTo be, or not to be",
        "The quality of mercy is not",
        "KING RICHARD",
        "First Citi",
        "Second Murder",
        "QUEEN MARG",
        "DUKE VINC",
        "I pray thee, good Mercut",
    ];
    let complete = |count: usize, prompt: &str| {
        let run = ["--prompt", prompt, "--max-tokens", "48", "--temperature", "0", "--logprobs", "2", "--kv", "f32"];
        let layout = format!("tp{count}");
        let object = cluster.generate(count, &[&run[..], &["--topology", &layout]].concat()).completion();
        assert_eq!(object["topology"], layout);
        assert_eq!(object["ranks"].as_array().map(Vec::len), Some(count));
        object
    };
    let alone: Vec<Vec<u64>> = prompts.iter().map(|prompt| sure_ids(&complete(1, prompt))).collect();
    let count: usize = alone.iter().map(Vec::len).sum();
    println!("{count} ids compared");
    assert!(count >= 32, "only {count} ids can be compared");
    for world in 2..=4 {
        for (prompt, expected) in prompts.iter().zip(&alone) {
            let found = complete(world, prompt);
            let found: Vec<u64> =
                found["token_ids"].as_array().expect("ids").iter().filter_map(Value::as_u64).collect();
            assert_eq!(&found[..expected.len()], &expected[..], "{prompt:?} on {world} ranks");
        }
    }
}

#[test]
fn same_seed_gives_the_same_ids_on_one_and_four_ranks() {
    // Without quantised weights ranks differ by a millionth, and no sample is that close to a boundary.
    let model = TinyModel::new(Architecture::Qwen3).bytes();
    let folder = folder_with(&[("tiny.gguf", &model)]);
    let cluster = Cluster::with(4, folder.path(), "");
    let ids = |count: usize, seed: &str, temperature: &str| {
        let run = &[
            "--model",
            "tiny.gguf",
            "--prompt",
            "ab",
            "--max-tokens",
            "40",
            "--temperature",
            temperature,
            "--seed",
            seed,
        ];
        let layout = format!("tp{count}");
        cluster.generate(count, &[&run[..], &["--topology", &layout]].concat()).completion()["token_ids"].clone()
    };
    for (seed, temperature) in [("1", "0.8"), ("2", "1.5")] {
        let first = ids(1, seed, temperature);
        assert!(first.as_array().is_some_and(|ids| ids.len() > 8), "{first}");
        assert_eq!(ids(1, seed, temperature), first, "twice");
        assert_eq!(ids(4, seed, temperature), first, "on four ranks");
    }
    assert_ne!(ids(1, "1", "1.5"), ids(1, "2", "1.5"), "another seed must give another text");
}

#[test]
fn json_object_has_every_field_and_topology_is_reused() {
    let cluster = Cluster::of(2);
    let run = &["--prompt", "JULIET:\n", "--max-tokens", "4", "--seed", "3", "--logprobs", "2"];
    let first = cluster.generate(2, run).completion();
    let second = cluster.generate(2, run).completion();
    assert_eq!(first["epoch"], second["epoch"], "nothing may be assigned again");
    for field in ["text", "prompt_token_ids", "token_ids", "finish_reason", "seed", "topology", "epoch", "ranks"] {
        assert!(!first[field].is_null(), "{field}");
    }
    for field in [
        "ttft_ms",
        "tpot_ms",
        "prefill_tokens_per_second",
        "decode_tokens_per_second",
        "compute_ms",
        "wait_ms",
        "wire_ms",
        "network_fraction",
    ] {
        assert!(first["timings"][field].is_number(), "{field}");
    }
    let logprobs = first["logprobs"].as_array().expect("logprobs were asked for");
    assert_eq!(logprobs.len(), 4);
    for (list, id) in logprobs.iter().zip(first["token_ids"].as_array().expect("ids")) {
        let list = list.as_array().expect("one list a token");
        assert!(list.len() >= 2 && list.iter().any(|one| one["id"] == *id), "the chosen token is in {list:?}");
        assert!(list.iter().all(|one| one["logprob"].as_f64().is_some_and(|logprob| logprob <= 0.0)));
    }
    let third = cluster.generate(2, &["--prompt", "JULIET:\n", "--max-tokens", "4", "--kv", "f32"]).completion();
    assert_ne!(third["epoch"], first["epoch"], "another cache format is another topology");
}

#[test]
fn stop_strings_end_the_text_before_them() {
    let cluster = Cluster::of(1);
    let run = |more: &[&str]| {
        let mut all = vec!["--prompt", "ROMEO:\n", "--max-tokens", "40", "--temperature", "0"];
        all.extend(more);
        cluster.generate(1, &all).completion()
    };
    let whole = run(&[]);
    let text = whole["text"].as_str().expect("a text");
    let stop: String = text.chars().skip(10).take(3).collect();
    let cut = run(&["--stop", &stop]);
    assert_eq!(cut["finish_reason"], "stop");
    assert_eq!(cut["text"].as_str(), text.find(&stop).map(|at| &text[..at]));
}

#[test]
fn interrupted_console_cancels_on_the_head_and_exits_with_130() {
    let models = deep_models();
    let cluster = Cluster::with(2, models.path(), "");
    let child = cluster.start_generation("4000");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).expect("the console is running");
    let ended = finish(child);
    assert_eq!(ended.code, Some(130), "{}", ended.err);
    assert_eq!(ended.json()["finish_reason"], "cancelled");
    wait_until("the head is idle again", || cluster.status(0)["state"] == "ready");
}

#[test]
fn bytes_and_messages_equal_the_formula() {
    let cluster = Cluster::of(4);
    for count in 2..=4_u64 {
        let run = &["--prompt", "ROMEO:\n", "--max-tokens", "17", "--temperature", "0", "--collective", "direct"];
        let layout = format!("tp{count}");
        let run = [&run[..], &["--topology", &layout]].concat();
        let object = cluster.generate(count as usize, &run).completion();
        for rank in object["ranks"].as_array().expect("ranks") {
            let decode = &rank["decode"];
            let number = |field: &str| decode[field].as_u64().expect("a count");
            // Speculative tokens count as tokens as well.
            assert!((16..=16 * 16).contains(&number("tokens")), "{decode}");
            // NUMBERS section 2, direct exchange: N-1 messages of the hidden vector, twice per layer.
            let payload = 2 * 6 * (count - 1) * 256 * 4;
            let bytes = number("bytes_sent") / number("tokens");
            assert!(bytes >= payload && bytes as f64 <= payload as f64 * 1.02 + 4096.0, "{bytes} for {payload}");
            let messages = number("messages_sent") as f64 / number("steps") as f64;
            let all_reduces = (2 * 6 * (count - 1)) as f64;
            // In addition to the all-reduces: the head's step plans and the other ranks' candidates.
            assert!(messages >= all_reduces && messages <= all_reduces + count as f64, "{messages}");
        }
    }
}
