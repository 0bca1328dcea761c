//! Recurrent layers continue from saved states: answers are those of a fresh computation.
use harness::{
    engines::Replica,
    families,
    greedy::{fresh, fresh_among, ids, request, request_among},
};
use protocol::message::Generate;

/// Families with states.
const FAMILIES: [&str; 7] =
    ["lfm2-", "lfm2moe-", "qwen35-", "qwen35moe-", "qwen3next-", "granitehybrid-", "nemotron_h-"];

#[test]
fn turns_continue_from_saved_states_and_answer_as_if_computed_afresh() {
    for (name, file) in families::files(&FAMILIES) {
        // Behind a step with speculative tokens, the saved end depends on how many there were.
        let first = Generate { drafts_max: 0, ..request(ids(1, 150), 20) };
        for replica in [Replica::of(1), Replica::of(2), Replica::pipeline()] {
            let replica = Replica { slots: 3, blocks: 80, context_length: 500, ..replica };
            let begun = replica.each_alone(&file, std::slice::from_ref(&first)).remove(0);
            let turn = |seed: u32| [&ids(1, 150)[..], &begun.ids, &ids(seed, 30)].concat();
            // An edited history: it differs within the first prompt.
            let edited = [&ids(1, 140)[..], &ids(6, 20)].concat();
            let batches = vec![
                vec![first.clone(), request(ids(2, 60), 10)],
                vec![request(turn(3), 10)],
                vec![request(ids(4, 90), 10)],
                vec![request(turn(5), 10), request(edited, 10)],
                vec![request(ids(1, 150), 10)],
            ];
            let answers = replica.answers(&file, &batches);
            for answer in answers.iter().flatten() {
                let all = [&answer.prompt[..], &answer.ids].concat();
                let expected = fresh(&file, &all[..all.len() - 1], answer.prompt.len() - 1);
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

#[test]
fn speculative_tokens_of_models_with_states_change_no_answer() {
    // Answers of few tokens repeat themselves: many tokens are proposed, and some of them are right.
    const AMONG: std::ops::Range<usize> = 40..44;
    let mut rejected = 0;
    for (name, file) in families::files(&FAMILIES) {
        let vocabulary = models::read(&file).expect("the model is valid").vocabulary_length;
        let request = |prompt: Vec<u32>, count: usize| request_among(prompt, count, &AMONG, vocabulary);
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
                let all = [&answer.prompt[..], &answer.ids].concat();
                let begin = answer.prompt.len() - 1;
                let expected = fresh_among(&file, &all[..all.len() - 1], begin, |id| AMONG.contains(&id));
                assert_eq!(answer.ids, expected, "{name}: {} prompt tokens on {replica:?}", answer.prompt.len());
                let times = answer.end().times;
                assert!(speculates || times.drafted_tokens == 0, "{name}: a pipeline does not speculate");
                counts = [counts[0] + times.drafted_tokens, counts[1] + times.accepted_tokens];
            }
        }
        let [drafted, accepted] = counts;
        assert!(accepted > 0, "{name}: none of {drafted} is accepted");
        rejected += drafted - accepted;
    }
    assert!(rejected > 0, "all are accepted");
}
