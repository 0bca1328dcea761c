//! Layers with a window keep only the blocks that later tokens see.
use std::sync::Arc;

use common::sampling::SamplingParameters;
use gguf::GgufFile;
use harness::{
    engines::Replica,
    family_model::FamilyModel,
    gguf_writer::Value,
    ranks::{Run, run},
};
use models::known;
use planner::holding::kv_bytes;
use protocol::message::{Generate, Prompt};
use topology::{KvBlocks, cut};

/// Gemma 3 with five layers of a window of 40 positions before one that attends to everything.
fn file() -> Arc<GgufFile> {
    let keys = [
        ("block_count", Value::U32(6)),
        ("context_length", Value::U32(1024)),
        ("embedding_length", Value::U32(128)),
        ("feed_forward_length", Value::U32(256)),
        ("attention.head_count", Value::U32(4)),
        ("attention.head_count_kv", Value::U32(2)),
        ("attention.key_length", Value::U32(32)),
        ("attention.value_length", Value::U32(32)),
        ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("attention.sliding_window", Value::U32(40)),
    ];
    let bytes = FamilyModel::new("gemma3", &keys).bytes();
    Arc::new(GgufFile::from_bytes(vec![bytes]).expect("the model is valid"))
}

/// `count` ids chosen by a seed.
fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| 3 + (index * (2 * seed + 7) + seed * 31 + index * index / 3) % 290).collect()
}

fn generate(prompt: Vec<u32>, count: usize) -> Generate {
    let sampling =
        SamplingParameters { temperature: 0.0, logit_bias: vec![(2, -1e9)], ..SamplingParameters::default() };
    Generate::new(Prompt::Tokens(prompt), count as u32, sampling, Vec::new())
}

/// The token with the largest logit after each of `tokens` from `first` on, with all blocks kept.
fn greedy(file: &Arc<GgufFile>, tokens: &[u32], first: usize) -> Vec<u32> {
    let logits = run(file, tokens, &Run { kv: common::precision::KvFormat::F16, ..Run::exact(1) }).logits;
    let best = logits[first..].iter().map(|logits| {
        let allowed = logits.iter().enumerate().filter(|(id, _)| *id != 2);
        allowed.max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(id, _)| id as u32)
    });
    best.collect()
}

#[test]
fn answers_are_the_same_with_freed_blocks_on_any_layout() {
    let file = file();
    // Turns of two conversations with a common beginning, and a long prompt of another one in between.
    let first = generate(tokens(1, 300), 60);
    for replica in [Replica::of(1), Replica::of(2), Replica::pipeline()] {
        let replica = Replica { slots: 3, blocks: 34, ..replica };
        let begun = replica.each_alone(&file, std::slice::from_ref(&first)).remove(0);
        let turn = |seed: u32| [&tokens(1, 300)[..], &begun.ids, &tokens(seed, 90)].concat();
        let batches = vec![
            vec![first.clone(), generate(tokens(2, 200), 50)],
            vec![generate(turn(3), 40)],
            vec![generate(tokens(4, 600), 50)],
            vec![generate(turn(5), 40), generate(turn(3), 90)],
        ];
        let answers = replica.answers(&file, &batches);
        for answer in answers.iter().flatten() {
            let all = [&answer.prompt[..], &answer.ids].concat();
            let expected = greedy(&file, &all[..all.len() - 1], answer.prompt.len() - 1);
            assert_eq!(answer.ids, expected, "{} prompt tokens on {replica:?}", answer.prompt.len());
        }
        let cached = |batch: usize, index: usize| answers[batch][index].end().times.cached_tokens;
        // The last token of an answer is never computed; blocks are reused whole.
        assert_eq!(cached(1, 0), 352, "the second turn begins behind the first");
        assert_eq!(cached(3, 1) % 32, 0);
    }
}

#[test]
fn windows_of_known_models_keep_their_published_part_of_the_cache() {
    let spec = known::MODELS.iter().find(|model| model.name == "gemma-3-12b").expect("it is known").spec();
    let plans = cut(&spec, &[1]).expect("one rank has all");
    let bytes = |window, slots| {
        let blocks = KvBlocks::of(32_768, slots, window);
        let blocks = KvBlocks { windowed: if window.is_some() { blocks.windowed } else { blocks.whole }, ..blocks };
        kv_bytes(common::precision::KvFormat::F16, &spec, &plans[0], blocks) as f64 / f64::from(1 << 20)
    };
    // 48 layers of 8 KV heads of 256: 8 attend to everything, 40 to the last 1024 positions.
    assert_eq!(bytes(None, 1), 12_288.0);
    assert_eq!(bytes(spec.window(), 1), 2048.0 + 380.0);
    assert_eq!(bytes(spec.window(), 16), 2078.0 + 1850.0);
}
