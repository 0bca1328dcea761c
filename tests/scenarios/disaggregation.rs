//! Prefill groups that compute prompts for decode groups: the same tokens for any number of ranks on both sides, and
//! the behaviour when either group dies.
use harness::tiny_model::Architecture;
use harness::{
    deep_models::deep_models,
    programs::{Cluster, DEEP, finish, folder_with, spawn_console, wait_until},
    tiny_model::TinyModel,
};
use nix::sys::signal::Signal;
use serde_json::Value;
use topology::Layout;

const SETTINGS: &str = "prefill_elsewhere_from = 16\n";

/// Four layers, eight heads over four KV heads: three ranks hold some KV heads twice.
fn model() -> TinyModel {
    let mut model = TinyModel::new(Architecture::Qwen3);
    (model.block_count, model.head_count, model.head_count_kv, model.context_length) = (4, 8, 4, 1024);
    model
}

fn arguments<'a>(nodes: &'a str, model: &'a str, topology: &'a str, prompt: &'a str) -> Vec<&'a str> {
    vec!["generate", "--nodes", nodes, "--model", model, "--topology", topology, "--yes", "--json", "--prompt", prompt]
}

fn nodes(cluster: &Cluster, topology: &str) -> String {
    let count = topology.parse::<Layout>().expect("a layout").node_count();
    cluster.addresses[..count].join(",")
}

fn generate(cluster: &Cluster, topology: &str, prompt: &str, more: &[&str]) -> Value {
    let nodes = nodes(cluster, topology);
    let mut arguments = arguments(&nodes, "tiny.gguf", topology, prompt);
    arguments.extend(["--max-tokens", "24", "--seed", "7"]);
    arguments.extend(more);
    cluster.console(&arguments).completion()
}

#[test]
fn remote_prefill_gives_the_same_tokens_for_any_rank_counts() {
    let folder = folder_with(&[("tiny.gguf", &model().bytes())]);
    let cluster = Cluster::with(6, folder.path(), SETTINGS);
    let sampled: [&[&str]; 2] =
        [&["--temperature", "0"], &["--temperature", "0.9", "--top-p", "0.8", "--logprobs", "2"]];
    // Prompts that end within a block, at the end of a block, and that span several chunks.
    let prompts = ["ab ".repeat(8), "abcdefgh".repeat(4), "xyz ".repeat(100)];
    for (sampling, kv) in sampled.into_iter().zip(["f32", "f16"]) {
        for prompt in &prompts {
            let more = [sampling, &["--kv", kv]].concat();
            let expected = generate(&cluster, "tp1", prompt, &more);
            assert!(expected["timings"]["transfer"].is_null());
            for topology in [
                "prefill:tp2+decode:tp1",
                "prefill:tp2+decode:tp3",
                "prefill:tp1+decode:tp4",
                "decode:tp2+prefill:tp3",
                "prefill:pp2-tp2+decode:pp2-tp1",
            ] {
                let found = generate(&cluster, topology, prompt, &more);
                assert_eq!(found["token_ids"], expected["token_ids"], "{topology} {more:?}");
                let (tokens, transfer) =
                    (found["prompt_token_ids"].as_array().expect("ids").len(), &found["timings"]["transfer"]);
                assert_eq!(transfer["tokens"].as_u64(), Some(tokens as u64 - 1), "{topology} {found}");
                // No rank of the decode group computed the prompt; each holds the transferred KV cache.
                for rank in found["ranks"].as_array().expect("ranks") {
                    assert_eq!(rank["prefill"]["tokens"].as_u64(), Some(0));
                    // Accepted speculative tokens save steps.
                    assert!((1..=24).contains(&rank["decode"]["steps"].as_u64().expect("a number")), "{rank}");
                }
            }
        }
    }
    cluster.assert_alive();
}

#[test]
fn windows_shared_keys_and_states_are_transferred_to_any_cut() {
    let models = harness::families::shapes().into_iter().filter(|(name, _)| SPECIAL.contains(&name.as_str()));
    let files: Vec<(String, Vec<u8>)> =
        models.map(|(name, model)| (format!("{name}.gguf"), model.untied().bytes())).collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let folder = folder_with(&files);
    let cluster = Cluster::with(4, folder.path(), SETTINGS);
    for (name, _) in &files {
        // Shorter than a window, and much longer.
        for prompt in ["abcdefgh".repeat(2), "xyz to be or not ".repeat(12)] {
            let answer = |topology: &str| {
                let nodes = nodes(&cluster, topology);
                let mut arguments = arguments(&nodes, name, topology, &prompt);
                arguments.extend(["--max-tokens", "40", "--seed", "7", "--temperature", "1.2", "--kv", "f32"]);
                cluster.console(&arguments).completion()
            };
            let expected = answer("tp1");
            for topology in ["prefill:tp2+decode:tp1", "prefill:tp1+decode:tp3", "prefill:pp2-tp1+decode:pp2-tp1"] {
                let found = answer(topology);
                assert_eq!(found["token_ids"], expected["token_ids"], "{name} on {topology}");
                assert!(found["timings"]["transfer"]["bytes"].as_u64() > Some(0), "{name} on {topology}");
            }
        }
    }
}

/// Layers with a window, layers that read the keys of earlier ones, KV heads that differ between layers; recurrent layers.
const SPECIAL: [&str; 6] = [
    "gpt-oss-ordinary",
    "gemma4-ordinary",
    "gemma4+experts-ordinary",
    "lfm2-ordinary",
    "qwen35-ordinary",
    "qwen35-awkward",
];

#[test]
fn equally_cut_ranks_hold_the_same_bits_as_after_local_prefill() {
    let folder = folder_with(&[("tiny.gguf", &model().with_format(gguf::BlockFormat::Q4_0).bytes())]);
    let cluster = Cluster::with(4, folder.path(), SETTINGS);
    for kv in ["f32", "f16", "q8_0"] {
        let more = ["--temperature", "0.8", "--logprobs", "5", "--kv", kv];
        let prompt = "to be or not to be ".repeat(12);
        let own = generate(&cluster, "tp2", &prompt, &more);
        let other = generate(&cluster, "prefill:tp2+decode:tp2", &prompt, &more);
        assert!(other["timings"]["transfer"]["bytes"].as_u64() > Some(0));
        assert_eq!((&other["token_ids"], &other["logprobs"]), (&own["token_ids"], &own["logprobs"]), "{kv}");
    }
}

#[test]
fn short_prompts_are_local_and_prefill_groups_take_no_requests() {
    let folder = folder_with(&[("tiny.gguf", &model().bytes())]);
    let cluster = Cluster::with(2, folder.path(), SETTINGS);
    let found = generate(&cluster, "prefill:tp1+decode:tp1", "ab", &["--temperature", "0"]);
    assert!(found["timings"]["transfer"].is_null(), "{found}");
    assert_eq!((found["replica"].as_u64(), cluster.status(0)["state"].as_str()), (Some(1), Some("ready")));
    let refused = cluster.console(&arguments(&cluster.nodes(), "tiny.gguf", "prefill:tp1+prefill:tp1", "ab"));
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("no group has the role decode"), "{}", refused.err);
}

#[test]
fn eight_requests_through_one_prefill_group_equal_single_ones() {
    let folder = folder_with(&[("tiny.gguf", &model().bytes())]);
    let cluster = Cluster::with(6, folder.path(), SETTINGS);
    let topology = "prefill:tp2+decode:tp1+decode:tp3";
    // Different beginnings: a shared prefix would not be requested from the prefill group.
    let prompt = |index: usize| format!("{index}{}", "ab ".repeat(20 + 35 * (index % 4)));
    let prompts: Vec<String> = (0..8).map(prompt).collect();
    let more = ["--temperature", "0.7", "--kv", "f32"];
    let alone: Vec<Value> = prompts.iter().map(|prompt| generate(&cluster, "tp1", prompt, &more)).collect();
    generate(&cluster, topology, "ab", &more);
    let nodes = nodes(&cluster, topology);
    let running: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            let rest = ["--max-tokens", "24", "--seed", "7"];
            spawn_console(&[&arguments(&nodes, "tiny.gguf", topology, prompt)[..], &rest[..], &more[..]].concat())
        })
        .collect();
    let mut replicas = Vec::new();
    for (child, expected) in running.into_iter().zip(&alone) {
        let found = finish(child).completion();
        assert_eq!(found["token_ids"], expected["token_ids"]);
        assert!(found["timings"]["transfer"]["tokens"].as_u64() > Some(16), "{found}");
        replicas.push(found["replica"].as_u64());
    }
    replicas.sort_unstable();
    replicas.dedup();
    assert_eq!(replicas, [Some(1), Some(2)], "both groups must answer");
}

/// Starts a request with a long prompt, which keeps the prefill group busy for a while.
fn start_long(cluster: &Cluster, topology: &str, prompt: &str) -> std::process::Child {
    let nodes = nodes(cluster, topology);
    let more = ["--max-tokens", "8", "--temperature", "0", "--context", "8192"];
    spawn_console(&[&arguments(&nodes, DEEP, topology, prompt)[..], &more[..]].concat())
}

#[test]
fn killed_prefill_group_costs_only_time() {
    let models = deep_models();
    let mut cluster = Cluster::with(4, models.path(), SETTINGS);
    let prompt = "ab ".repeat(300);
    let expected = finish(start_long(&cluster, "tp2", &prompt)).completion()["token_ids"].clone();
    let topology = "prefill:tp2+decode:tp2";
    for victim in [0, 1] {
        let warm = finish(start_long(&cluster, topology, &"ab ".repeat(40))).completion();
        assert!(warm["timings"]["transfer"]["tokens"].as_u64() > Some(0));
        let child = start_long(&cluster, topology, &prompt);
        wait_until("it is at work", || cluster.status(2)["requests"].as_u64() == Some(1));
        std::thread::sleep(std::time::Duration::from_millis(150));
        cluster.signal(victim, Signal::SIGKILL);
        cluster.wait(victim);
        let found = finish(child).completion();
        assert_eq!(found["token_ids"], expected, "node {victim} was killed");
        assert!(found["timings"]["transfer"].is_null(), "the prompt must be computed again: {}", found["timings"]);
        // Without a prefill group the decode group continues alone.
        assert!(cluster.log(2).contains("computing the prompt locally"), "{}", cluster.log(2));
        cluster.start(victim);
    }
}

#[test]
fn killed_decode_group_moves_its_answer_and_keeps_prefill_alive() {
    let models = deep_models();
    let mut cluster = Cluster::with(3, models.path(), SETTINGS);
    let expected = finish(start_long(&cluster, "tp1", &"ab ".repeat(300))).completion()["token_ids"].clone();
    let topology = "prefill:tp1+decode:dp2-tp1";
    let warm = finish(start_long(&cluster, topology, &"ab ".repeat(40))).completion();
    assert_eq!(warm["replica"].as_u64(), Some(1));
    let prompt = "ab ".repeat(300);
    // The first request goes to the first decode group, the second to the other.
    let lost = start_long(&cluster, topology, &prompt);
    wait_until("the first is at work", || cluster.status(1)["requests"].as_u64() == Some(1));
    let kept = start_long(&cluster, topology, &prompt);
    wait_until("the second is at work", || cluster.status(2)["requests"].as_u64() == Some(1));
    cluster.signal(1, Signal::SIGKILL);
    cluster.wait(1);
    assert_eq!(finish(lost).completion()["token_ids"], expected);
    let kept = finish(kept).completion();
    assert_eq!(kept["token_ids"], expected);
    assert!(
        kept["timings"]["transfer"]["tokens"].as_u64() > Some(0),
        "the prefill group must survive: {}",
        kept["timings"]
    );
    assert_eq!(cluster.status(0)["state"], "ready");
}
