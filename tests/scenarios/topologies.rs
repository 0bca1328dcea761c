//! Pipelines, replicas and unequal shares: the same logits as one rank in threads, the same text from daemons, and
//! impossible layouts refused by name before anything is loaded.
use std::sync::Arc;

use common::precision::{Exchange, KvFormat};
use gguf::{BlockFormat, GgufFile};
use harness::tiny_model::Architecture;
use harness::{
    oracle::kl_divergence,
    programs::{Cluster, finish, folder_with, spawn_console},
    ranks::{Run, rms_error, run},
    tiny_model::TinyModel,
};
use serde_json::Value;

/// Four layers that cut badly on purpose: super-blocks of 256 across cuts, more ranks than KV heads.
fn model(architecture: Architecture) -> TinyModel {
    let mut model = TinyModel::new(architecture);
    (model.head_count, model.head_count_kv, model.head_length, model.block_count) = (8, 2, 32, 4);
    (model.rope_dimension_count, model.embedding_length, model.feed_forward_length) = (32, 256, 512);
    model
}

fn file(model: &TinyModel) -> Arc<GgufFile> {
    Arc::new(GgufFile::from_bytes(vec![model.bytes()]).expect("the model is valid"))
}

fn bits(logits: &[Vec<f32>]) -> Vec<u32> {
    logits.iter().flatten().map(|logit| logit.to_bits()).collect()
}

#[test]
fn pipeline_has_the_bits_of_its_group_and_matches_one_rank() {
    let tokens: Vec<u32> = (0..20).map(|index| (index * 37 + 5) % 300).collect();
    for architecture in [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3] {
        for format in [BlockFormat::Q4K, BlockFormat::Q8_0, BlockFormat::F16] {
            let file = file(&model(architecture).with_format(format));
            let alone = run(&file, &tokens, &Run::exact(1)).logits;
            // Summing in another order may at most flip the rounding of single activations.
            let bound = if format.is_quantised() { 0.015 } else { 1e-4 };
            let groups = [vec![1], vec![1; 2], vec![1; 3], vec![1; 4], vec![3, 2, 1]];
            for weights in groups {
                let group = run(&file, &tokens, &Run { weights: weights.clone(), ..Run::exact(1) }).logits;
                let error = rms_error(&group, &alone);
                assert!(error <= bound, "{} {} {weights:?}: {error}", architecture.name(), format.name());
                let most = if weights.len() == 1 { 4 } else { 2 };
                for stages in 2..=most {
                    let how = Run { stages, weights: weights.clone(), chunks: vec![7, 1], ..Run::exact(1) };
                    let found = run(&file, &tokens, &how).logits;
                    assert_eq!(bits(&found), bits(&group), "{stages} stages of {weights:?}, {}", format.name());
                }
            }
        }
    }
}

#[test]
fn long_prompt_through_many_stages_gives_the_same_bits() {
    let mut model = model(Architecture::Qwen3);
    model.block_count = 7;
    let file = file(&model.with_format(BlockFormat::Q4_0));
    let tokens: Vec<u32> = (0..100).map(|index| (index * 41 + 3) % 300).collect();
    let base = Run { kv: KvFormat::F16, chunks: vec![64, 33, 1], ..Run::exact(1) };
    let expected = bits(&run(&file, &tokens, &base).logits);
    for stages in [2, 5, 7] {
        assert_eq!(bits(&run(&file, &tokens, &Run { stages, ..base.clone() }).logits), expected, "{stages} stages");
    }
}

/// The completion of `console generate` on a topology.
fn generate(cluster: &Cluster, topology: &str, more: &[&str]) -> Value {
    let nodes = cluster.nodes();
    let nodes: Vec<&str> = nodes.split(',').take(nodes_of(topology)).collect();
    let nodes = nodes.join(",");
    let mut arguments =
        vec!["generate", "--nodes", &nodes, "--model", "tiny.gguf", "--topology", topology, "--json", "--yes"];
    arguments.extend(["--prompt", "ab", "--max-tokens", "24", "--seed", "7", "--kv", "f32"]);
    arguments.extend(more);
    cluster.console(&arguments).completion()
}

#[test]
fn pipelines_replicas_and_unequal_shares_write_the_same_text() {
    // Without quantised weights ranks differ by a millionth, and no sample is that close to a boundary.
    let mut model = TinyModel::new(Architecture::Qwen3);
    model.block_count = 4;
    let folder = folder_with(&[("tiny.gguf", &model.bytes())]);
    let cluster = Cluster::with(6, folder.path(), "");
    let sampled: &[&[&str]] =
        &[&["--temperature", "0"], &["--temperature", "0.9", "--top-p", "0.8", "--logprobs", "3"]];
    for sampling in sampled {
        let expected = generate(&cluster, "tp1", sampling);
        let runs: [(&str, &[&str]); 7] = [
            ("pp2", &[]),
            ("pp4-tp1", &["--layers", "1,1,1,1"]),
            ("pp2-tp2", &[]),
            ("pp2-tp3", &["--weights", "3,2,1", "--layers", "3,1"]),
            ("dp2-tp2", &[]),
            ("dp2-pp3", &[]),
            ("tp3", &["--weights", "3,2,1"]),
        ];
        for (topology, more) in runs {
            let found = generate(&cluster, topology, &[more, *sampling].concat());
            assert_eq!(found["token_ids"], expected["token_ids"], "{topology} {more:?} {sampling:?}");
            let ranks = found["ranks"].as_array().expect("ranks");
            let replicas = if topology.starts_with("dp2") { 2 } else { 1 };
            assert_eq!(ranks.len(), nodes_of(topology) / replicas);
            for rank in ranks {
                // Every rank reports where its time went, in any stage. Accepted speculative tokens save steps.
                assert!((1..=23).contains(&rank["decode"]["steps"].as_u64().expect("a number")), "{topology} {rank}");
                assert!(rank["compute_ms"].as_f64().is_some_and(|time| time > 0.0), "{topology} {rank}");
            }
        }
    }
    cluster.assert_alive();
}

fn nodes_of(topology: &str) -> usize {
    topology.split('-').map(|part| part[2..].parse::<usize>().expect("a count")).product()
}

#[test]
fn daemons_write_the_same_text_with_every_collective() {
    let folder = folder_with(&[("tiny.gguf", &TinyModel::new(Architecture::Llama).bytes())]);
    let cluster = Cluster::with(3, folder.path(), "");
    let greedy: &[&str] = &["--temperature", "0"];
    let expected = generate(&cluster, "tp1", greedy);
    let table = || {
        let status = cluster.console(&["status", "--nodes", &cluster.nodes(), "--json"]).json();
        let nodes = status["nodes"].as_array().expect("nodes").clone();
        assert!(
            nodes.iter().all(|node| node["collectives"] == nodes[0]["collectives"]),
            "all ranks must hold the same table"
        );
        nodes[0]["collectives"]["rows"].clone()
    };
    for collective in ["direct", "rs-ag", "doubling", "ring", "star", "two-level"] {
        let found = generate(&cluster, "tp3", &[&["--collective", collective], greedy].concat());
        assert_eq!(found["token_ids"], expected["token_ids"], "{collective}");
        assert_eq!(table()[0]["algorithm"], collective);
    }
    let found = generate(&cluster, "tp3", &[&["--collective", "auto"], greedy].concat());
    assert_eq!(found["token_ids"], expected["token_ids"], "auto");
    let rows = table();
    let rows = rows.as_array().expect("a row for each number of tokens");
    assert_eq!(rows.len(), 8);
    assert!(rows.iter().any(|row| row["timed"].as_array().is_some_and(|timed| timed.len() == 3)), "{rows:?}");
}

#[test]
fn topology_file_is_checked_assigned_and_printed_again() {
    let cluster = Cluster::of(4);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cluster.toml");
    let path = path.to_str().expect("its name is text");
    let nodes = &cluster.addresses;
    let write = |more: &str| {
        let stage = |a: &str, b: &str, rest: &str| format!("[[stage]]\nnodes = [\"{a}\", \"{b}\"]\n{rest}\n");
        let stages = [stage(&nodes[2], &nodes[0], "weights = [3, 1]"), stage(&nodes[1], &nodes[3], more)];
        std::fs::write(path, format!("model = \"bard-q8_0.gguf\"\n{}", stages.concat())).expect("the folder is ours");
    };
    write("");
    let checked = cluster.console(&["topology", "assign", path, "--dry-run", "--json"]).json()["plan"].clone();
    let layers: Vec<u64> = checked["members"]
        .as_array()
        .expect("members")
        .iter()
        .map(|m| m["layers"][1].as_u64().expect("a layer"))
        .collect();
    assert_eq!((layers, checked["members"][0]["share"].as_f64()), (vec![3, 3, 6, 6], Some(0.75)));
    assert!(cluster.status(0)["topology"].is_null(), "nothing was loaded");
    let assigned = cluster.console(&["topology", "assign", path, "--yes", "--json"]).json();
    assert_eq!((assigned["topology"].as_str(), assigned["reused"].as_bool()), (Some("pp2-tp2"), Some(false)));
    let shown = cluster.console(&["topology", "show", "--nodes", &cluster.nodes()]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    std::fs::write(path, &shown.out).expect("the folder is ours");
    let again = cluster.console(&["topology", "assign", path, "--yes", "--json"]).json();
    assert_eq!((again["epoch"].clone(), again["reused"].as_bool()), (assigned["epoch"].clone(), Some(true)));
    write("layers = 3");
    let refused = cluster.console(&["topology", "assign", path, "--dry-run"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("1 of 2 stages set layers"), "{}", refused.err);
}

#[test]
fn f16_hand_over_stays_within_the_divergence_bound() {
    let demo = harness::programs::demo_models().join("bard-q8_0.gguf");
    let file = Arc::new(GgufFile::open(&demo).expect("the demo model is valid"));
    let tokens: Vec<u32> = vec![1, 367, 561, 378, 594, 304, 1760, 332, 328, 1536, 266, 2013, 1995, 1999, 799, 280];
    let exact = run(&file, &tokens, &Run::exact(1)).logits;
    for (exchange, weights) in [(Exchange::F16, vec![1]), (Exchange::F16, vec![1; 2]), (Exchange::Q80, vec![1; 3])] {
        let found = run(&file, &tokens, &Run { stages: 3, exchange, weights, ..Run::exact(1) }).logits;
        let divergence = kl_divergence(&exact, &found);
        assert!(divergence <= 1e-3, "{exchange}: {divergence}");
        assert!(rms_error(&found, &exact) > 0.0, "{exchange} rounds");
    }
}

#[test]
fn concurrent_answers_in_a_pipeline_equal_single_ones() {
    let mut model = TinyModel::new(Architecture::Qwen3);
    model.block_count = 4;
    let folder = folder_with(&[("tiny.gguf", &model.bytes())]);
    let cluster = Cluster::with(4, folder.path(), "");
    let nodes = cluster.nodes();
    // Long prompts run in chunks while short ones already generate.
    let prompts: Vec<String> = (0..6).map(|index| "ab ".repeat(1 + 30 * (index % 3)) + &"c".repeat(index)).collect();
    let start = |prompt: &String, topology: &str| {
        let arguments = [
            "generate",
            "--nodes",
            &nodes,
            "--model",
            "tiny.gguf",
            "--topology",
            topology,
            "--yes",
            "--json",
            "--prompt",
        ];
        let more = [prompt.as_str(), "--max-tokens", "40", "--temperature", "0.7", "--seed", "5", "--kv", "f32"];
        spawn_console(&[&arguments[..], &more[..]].concat())
    };
    let ids = |child| finish(child).completion()["token_ids"].clone();
    let alone: Vec<Value> = prompts.iter().map(|prompt| ids(start(prompt, "tp4"))).collect();
    for topology in ["pp2-tp2", "pp4"] {
        // The first request assigns the topology; the others find it running.
        assert_eq!(ids(start(&prompts[0], topology)), alone[0], "{topology}");
        let running: Vec<_> = prompts.iter().map(|prompt| start(prompt, topology)).collect();
        for (child, expected) in running.into_iter().zip(&alone) {
            assert_eq!(&ids(child), expected, "{topology}");
        }
    }
    cluster.assert_alive();
}
