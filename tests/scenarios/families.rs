//! Every model family, in two shapes: any number of ranks and stages against the independent forward pass.
use std::sync::Arc;

use common::precision::Exchange;
use gguf::{BlockFormat, GgufFile};
use harness::{
    families::shapes,
    family_model::FamilyModel,
    oracle::{Oracle, kl_divergence},
    random::Random,
    ranks::{Run, max_error, run},
};

/// Longer than every window, and than a KV block.
const LENGTH: usize = 40;

/// The shapes without the deep ones, which take long here; `.ci/models` has all of them.
fn shallow() -> impl Iterator<Item = (String, FamilyModel)> {
    shapes().into_iter().filter(|(_, model)| model.block_count() <= 8)
}

fn tokens() -> Vec<u32> {
    let mut random = Random::new(19);
    (0..LENGTH).map(|_| 3 + random.below(290) as u32).collect()
}

fn generates(file: &GgufFile) -> bool {
    models::read(file).expect("a valid model").generates()
}

#[test]
fn every_family_matches_the_independent_forward_pass_on_any_layout() {
    let tokens = tokens();
    for (name, model) in shallow() {
        let file = Arc::new(GgufFile::from_bytes(vec![model.bytes()]).expect("a whole model"));
        let oracle = Oracle::new(&file);
        let generates = generates(&file);
        let exact = if generates { oracle.logits(&tokens) } else { Vec::new() };
        let embedding = oracle.embedding(&tokens);
        for (stages, world, chunk) in [(1, 1, usize::MAX), (1, 2, 17), (1, 3, 11), (2, 1, 1), (2, 2, 23)] {
            // A text whose tokens attend to later ones is computed at once.
            let chunk = if generates { chunk } else { usize::MAX };
            let how = Run { stages, chunks: vec![chunk], ..Run::exact(world) };
            let found = run(&file, &tokens, &how);
            if generates {
                let error = max_error(&found.logits, &exact);
                assert!(error < 1e-3, "{name} on pp{stages}-tp{world} in chunks of {chunk}: {error}");
            }
            let embedding = embedding.iter().cloned().collect::<Vec<_>>();
            assert!(embedding.is_empty() || !found.embeddings.is_empty(), "{name} on pp{stages}-tp{world}");
            for found in found.embeddings {
                let error = max_error(&[found], &embedding);
                assert!(error < 1e-3, "{name} on pp{stages}-tp{world}: embedding {error}");
            }
        }
    }
}

#[test]
fn every_family_gives_the_same_bits_in_one_chunk_and_in_many() {
    let tokens = tokens();
    for (name, model) in shallow() {
        let file = Arc::new(GgufFile::from_bytes(vec![model.with_format(BlockFormat::Q8_0).bytes()]).expect("a model"));
        if !generates(&file) {
            continue;
        }
        for (stages, world) in [(1, 1), (2, 2)] {
            let bits = |chunks: Vec<usize>| {
                let how = Run { stages, chunks, threads: 2, ..Run::exact(world) };
                let logits = run(&file, &tokens, &how).logits.concat();
                logits.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            };
            assert!(bits(vec![usize::MAX]) == bits(vec![1]), "{name} on pp{stages}-tp{world}");
            assert!(bits(vec![13, 20]) == bits(vec![1]), "{name} on pp{stages}-tp{world}");
        }
    }
}

#[test]
fn latents_in_the_form_of_earlier_converters_are_refused() {
    let (_, model) = shapes().into_iter().find(|(name, _)| name == "deepseek2-ordinary").expect("it has this shape");
    let name = "blk.0.attn_kv_b.weight";
    let bytes = vec![0; 4 * 128 * 768];
    let former =
        model.writer().without_tensor("blk.0.attn_k_b.weight").tensor(name, &[128, 768], BlockFormat::F32, bytes);
    let file = GgufFile::from_bytes(vec![former.finish()]).expect("a whole file");
    let error = models::read(&file).expect_err("the keys of heads are missing").to_string();
    assert!(error.contains(name) && error.contains("convert the model again"), "{error}");
}

#[test]
fn norms_across_ranks_survive_rounded_exchanges() {
    let tokens = tokens();
    for (name, model) in shallow().filter(|(name, _)| name.starts_with("granitehybrid-")) {
        let file = Arc::new(GgufFile::from_bytes(vec![model.bytes()]).expect("a whole model"));
        let exact = run(&file, &tokens, &Run::exact(1)).logits;
        for (world, exchange) in [(2, Exchange::F16), (2, Exchange::Q80), (3, Exchange::Q80)] {
            let rounded = run(&file, &tokens, &Run { exchange, ..Run::exact(world) }).logits;
            let divergence = kl_divergence(&exact, &rounded);
            assert!(divergence <= 1e-3, "{name} with {exchange} on {world} ranks: {divergence}");
        }
    }
}
