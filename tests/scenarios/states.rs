//! Recurrent layers continue from saved states: answers are those of a fresh computation.
use std::sync::Arc;

use common::{precision::KvFormat, sampling::SamplingParameters};
use gguf::GgufFile;
use harness::{
    engines::Replica,
    families,
    ranks::{Run, run},
};
use protocol::message::{Generate, Prompt};

/// Families with states.
const FAMILIES: [&str; 4] = ["lfm2-", "lfm2moe-", "qwen35-", "qwen35moe-"];

fn files() -> Vec<(String, Arc<GgufFile>)> {
    let shapes = families::shapes().into_iter();
    let shapes = shapes.filter(|(name, _)| FAMILIES.iter().any(|family| name.starts_with(family)));
    let files = shapes.map(|(name, model)| {
        let file = GgufFile::from_bytes(vec![model.bytes()]).expect("the model is valid");
        (name, Arc::new(file))
    });
    files.collect()
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

/// The token with the largest logit after each of `tokens` from `first` on, computed in one step on one rank.
fn greedy(file: &Arc<GgufFile>, tokens: &[u32], first: usize) -> Vec<u32> {
    let logits = run(file, tokens, &Run { kv: KvFormat::F16, ..Run::exact(1) }).logits;
    let best = logits[first..].iter().map(|logits| {
        let allowed = logits.iter().enumerate().filter(|(id, _)| *id != 2);
        allowed.max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(id, _)| id as u32)
    });
    best.collect()
}

#[test]
fn prompts_have_the_same_logits_in_one_step_and_in_many() {
    for (name, file) in files() {
        let all = tokens(9, 90);
        let exact = run(&file, &all, &Run::exact(1)).logits;
        for chunks in [vec![1], vec![7, 32, 3], vec![64, 1, 1, 9]] {
            let found = run(&file, &all, &Run { chunks: chunks.clone(), ..Run::exact(1) }).logits;
            assert!(found == exact, "{name} in steps of {chunks:?}");
        }
    }
}

#[test]
fn turns_continue_from_saved_states_and_answer_as_if_computed_afresh() {
    for (name, file) in files() {
        let first = generate(tokens(1, 150), 20);
        for replica in [Replica::of(1), Replica::of(2), Replica::pipeline()] {
            let replica = Replica { slots: 3, blocks: 80, context_length: 500, ..replica };
            let begun = replica.each_alone(&file, std::slice::from_ref(&first)).remove(0);
            let turn = |seed: u32| [&tokens(1, 150)[..], &begun.ids, &tokens(seed, 30)].concat();
            // An edited history: it differs within the first prompt.
            let edited = [&tokens(1, 140)[..], &tokens(6, 20)].concat();
            let batches = vec![
                vec![first.clone(), generate(tokens(2, 60), 10)],
                vec![generate(turn(3), 10)],
                vec![generate(tokens(4, 90), 10)],
                vec![generate(turn(5), 10), generate(edited, 10)],
                vec![generate(tokens(1, 150), 10)],
            ];
            let answers = replica.answers(&file, &batches);
            for answer in answers.iter().flatten() {
                let all = [&answer.prompt[..], &answer.ids].concat();
                let expected = greedy(&file, &all[..all.len() - 1], answer.prompt.len() - 1);
                assert_eq!(answer.ids, expected, "{name}: {} prompt tokens on {replica:?}", answer.prompt.len());
            }
            let cached = |batch: usize, index: usize| answers[batch][index].end().times.cached_tokens;
            // The last token of an answer is never computed.
            assert_eq!(cached(1, 0), 169, "{name}: the second turn begins behind the first answer");
            assert_eq!(cached(3, 0), 169, "{name}: another turn behind the same answer");
            assert_eq!(cached(3, 1), 128, "{name}: an edited history begins at the last saved place before");
            assert_eq!(cached(4, 0), 128, "{name}: the same prompt again");
        }
    }
}
