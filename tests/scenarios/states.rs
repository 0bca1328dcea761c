//! Recurrent layers continue from saved states: answers are those of a fresh computation.
use std::{collections::BTreeSet, ops::Range, sync::Arc};

use common::precision::KvFormat;
use gguf::GgufFile;
use harness::{
    engines::{Answer, Replica},
    families,
    greedy::{END, best_among, ids, log_softmax, request, request_among},
    ranks::{Run, run},
};
use protocol::message::Generate;

/// Families with states.
const FAMILIES: [&str; 7] =
    ["lfm2-", "lfm2moe-", "qwen35-", "qwen35moe-", "qwen3next-", "granitehybrid-", "nemotron_h-"];
/// Largest difference of log probabilities that is rounding: several ranks add up the parts of a sum in another order.
const ROUNDING: f64 = 0.03;

/// The same request, whose answer has the log probability of each token.
fn scored(mut generate: Generate) -> Generate {
    generate.sampling.logprobs = 1;
    generate
}

/// Asserts that an answer is that of a computation of all tokens in one step on one rank: the same ids, and the same
/// log probabilities, which a wrong state changes even where it changes no id.
#[track_caller]
fn check(file: &Arc<GgufFile>, answer: &Answer, is_allowed: impl Fn(usize) -> bool, what: &str) {
    let all = [&answer.prompt[..], &answer.ids].concat();
    let logits = run(file, &all[..all.len() - 1], &Run { kv: KvFormat::F16, ..Run::exact(1) }).logits;
    let what = format!("{what}, {} prompt tokens", answer.prompt.len());
    for (index, row) in logits[answer.prompt.len() - 1..].iter().enumerate() {
        let (id, scores) = (answer.ids[index], &answer.logprobs[index]);
        assert_eq!(id, best_among(row, &is_allowed), "{what}: token {index} of {:?}", answer.ids);
        let reported = scores.iter().find(|score| score.id == id).map_or(f64::NAN, |score| score.logprob.into());
        let computed = log_softmax(row)[id as usize];
        assert!((reported - computed).abs() <= ROUNDING, "{what}: token {index} has {reported}, not {computed}");
    }
}

/// How many different tokens each answer has. An answer that repeats a token or two hides wrong states.
fn distinct(answers: &[Vec<Answer>]) -> Vec<usize> {
    answers.iter().flatten().map(|answer| answer.ids.iter().collect::<BTreeSet<_>>().len()).collect()
}

#[test]
fn turns_continue_from_saved_states_and_answer_as_if_computed_afresh() {
    for (name, file) in families::files(&FAMILIES) {
        // Behind a step with speculative tokens, the saved end depends on how many there were.
        let first = Generate { drafts_max: 0, ..scored(request(ids(1, 150), 20)) };
        let request = |prompt: Vec<u32>| scored(request(prompt, 10));
        for replica in [Replica::of(1), Replica::of(2), Replica::pipeline()] {
            let replica = Replica { slots: 3, blocks: 80, context_length: 500, ..replica };
            let begun = replica.each_alone(&file, std::slice::from_ref(&first)).remove(0);
            // Few new tokens: states of random weights forget, and behind many tokens a wrong one would not be seen.
            let turn = |seed: u32| [&ids(1, 150)[..], &begun.ids, &ids(seed, 3)].concat();
            // An edited history: it differs within the first prompt.
            let edited = [&ids(1, 130)[..], &ids(6, 3)].concat();
            let batches = vec![
                vec![first.clone(), request(ids(2, 60))],
                vec![request(turn(3))],
                vec![request(ids(4, 90))],
                vec![request(turn(5)), request(edited)],
                vec![request(ids(1, 150))],
            ];
            let answers = replica.answers(&file, &batches);
            let what = format!("{name} on {replica:?}");
            answers.iter().flatten().for_each(|answer| check(&file, answer, |id| id != END, &what));
            let distinct = distinct(&answers);
            assert!(distinct.iter().sum::<usize>() >= 3 * distinct.len(), "{what}: too few tokens: {distinct:?}");
            let cached = |batch: usize, index: usize| answers[batch][index].end().times.cached_tokens;
            // The last token of an answer is never computed.
            assert_eq!(cached(1, 0), 169, "{name}: the second turn begins behind the first answer");
            assert_eq!(cached(3, 0), 169, "{name}: another turn behind the same answer");
            assert_eq!(cached(3, 1), 128, "{name}: an edited history begins at the last saved place before");
            assert_eq!(cached(4, 0), 128, "{name}: the same prompt again");
        }
    }
}

#[test]
fn speculative_tokens_of_models_with_states_change_no_answer() {
    // Answers of few tokens repeat themselves: many tokens are proposed, and some of them are right.
    const AMONG: Range<usize> = 40..44;
    let (mut rejected, mut distinct_counts) = (0, Vec::new());
    for (name, file) in families::files(&FAMILIES) {
        let vocabulary = models::read(&file).expect("the model is valid").vocabulary_length;
        let request = |prompt: Vec<u32>, count: usize| scored(request_among(prompt, count, &AMONG, vocabulary));
        let replicas = [(Replica::of(1), true), (Replica::of(2), true), (Replica::pipeline(), false)];
        let mut counts = [0, 0];
        for (replica, speculates) in replicas {
            let replica = Replica { slots: 3, blocks: 80, context_length: 500, ..replica };
            let batches = vec![
                vec![request(ids(1, 48), 60), request(ids(2, 20), 40), request(ids(3, 30), 60)],
                vec![request(ids(1, 48), 90)],
            ];
            let mut answers = replica.answers(&file, &batches);
            let turn = [&answers[1][0].prompt[..], &answers[1][0].ids, &ids(4, 40)].concat();
            answers.extend(replica.answers(&file, &[batches[1].clone(), vec![request(turn, 40)]]));
            for answer in answers.iter().flatten() {
                check(&file, answer, |id| AMONG.contains(&id), &format!("{name} on {replica:?}"));
                let times = answer.end().times;
                assert!(speculates || times.drafted_tokens == 0, "{name}: a pipeline does not speculate");
                counts = [counts[0] + times.drafted_tokens, counts[1] + times.accepted_tokens];
            }
            distinct_counts.extend(distinct(&answers));
        }
        let [drafted, accepted] = counts;
        assert!(accepted > 0, "{name}: none of {drafted} is accepted");
        rejected += drafted - accepted;
    }
    assert!(rejected > 0, "all are accepted");
    let varied = distinct_counts.iter().filter(|count| **count > 1).count();
    assert!(2 * varied > distinct_counts.len(), "most answers repeat one token: {distinct_counts:?}");
}
