//! Requests on one engine: answers are the same when resumed elsewhere, when run concurrently, and when taken from the
//! prefix cache.
use std::sync::Arc;

use common::{chat::FinishReason, latency::RequestTimes, sampling::SamplingParameters};
use gguf::{BlockFormat, GgufFile};
use harness::tiny_model::Architecture;
use harness::{
    engines::{Answer, Replica},
    tiny_model::TinyModel,
};
use protocol::message::{Generate, Prompt};

fn file() -> Arc<GgufFile> {
    // With a tied output, the model would repeat a token, whatever its keys and values are.
    let model = TinyModel { context_length: 1024, tied: false, ..TinyModel::new(Architecture::Llama) };
    let bytes = model.with_format(BlockFormat::Q8_0).bytes();
    Arc::new(GgufFile::from_bytes(vec![bytes]).expect("the model is valid"))
}

/// Token 2 ends an answer: it is never sampled here.
fn sampling(temperature: f32, seed: u64) -> SamplingParameters {
    SamplingParameters { temperature, seed, logprobs: 2, logit_bias: vec![(2, -1e9)], ..SamplingParameters::default() }
}

/// `count` ids chosen by a seed.
fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| 3 + (index * (2 * seed + 7) + seed * 31 + index * index / 3) % 290).collect()
}

#[test]
fn cut_answer_resumed_elsewhere_has_the_same_ids_and_text() {
    let file = file();
    for (ranks, temperature) in [(1, 0.0), (1, 0.9), (2, 0.9)] {
        let replica = Replica::of(ranks);
        let generate = |resumed: &[u32], stop: &[String]| Generate {
            resumed: resumed.to_vec(),
            ..Generate::new(Prompt::Tokens(tokens(1, 40)), 48, sampling(temperature, 7), stop.to_vec())
        };
        let one = |generate: Generate| replica.each_alone(&file, &[generate]).remove(0);
        let whole = one(generate(&[], &[]));
        assert_eq!((whole.ids.len(), whole.end().reason), (48, FinishReason::Length));
        for cut in [1, 17, 30, 47] {
            let rest = one(generate(&whole.ids[..cut], &[]));
            assert_eq!((&rest.prompt, rest.ids.as_slice()), (&whole.prompt, &whole.ids[cut..]), "cut after {cut}");
            assert_eq!(rest.text, whole.text[whole.told[cut - 1]..], "cut after {cut}");
            assert_eq!(rest.logprobs, whole.logprobs[cut..], "cut after {cut}");
            assert_eq!(rest.end().reason, FinishReason::Length);
        }
        if temperature == 0.0 {
            // The text of a small model repeats itself, so some stop strings are ambiguous.
            continue;
        }
        // A stop string that begins in the token before the cut and ends in a token after it.
        let span = |cut: usize| whole.told[cut - 2]..whole.told[cut + 1];
        let cut = (8..40)
            .find(|cut| {
                let (span, middle) = (span(*cut), whole.told[cut - 1]);
                let fits = span.start < middle && middle < span.end;
                fits && whole.text.get(span.clone()).is_some_and(|stop| whole.text.find(stop) == Some(span.start))
            })
            .expect("some text is unique");
        let stop = [whole.text[span(cut)].to_owned()];
        let stopped = one(generate(&[], &stop));
        assert_eq!((stopped.end().reason, stopped.text.as_str()), (FinishReason::Stop, &whole.text[..span(cut).start]));
        let rest = one(generate(&whole.ids[..cut], &stop));
        assert_eq!((rest.end().reason, rest.ids.as_slice()), (FinishReason::Stop, &stopped.ids[cut..]));
        assert_eq!(rest.text, stopped.text[stopped.told[cut - 1]..], "text held back at the cut");
        let over = one(generate(&stopped.ids, &stop));
        assert_eq!(
            (over.end().reason, over.ids.len(), over.text.as_str()),
            (FinishReason::Stop, 0, ""),
            "the answer was already complete"
        );
    }
}

/// The parts of an answer that must not depend on concurrent requests or the prefix cache.
fn told(answer: &Answer) -> (&[u32], &str, FinishReason) {
    (&answer.ids, &answer.text, answer.end().reason)
}

#[track_caller]
fn check(found: &[Answer], alone: &[Answer], what: &str) {
    assert_eq!(found.len(), alone.len());
    for (index, (found, alone)) in found.iter().zip(alone).enumerate() {
        assert_eq!(told(found), told(alone), "request {index}, {what}");
        assert_eq!(found.logprobs, alone.logprobs, "request {index}, {what}");
    }
}

/// Prompts of 5 to 300 tokens; every third shares a prefix of up to 200 tokens with others.
fn requests() -> Vec<Generate> {
    (0..16)
        .map(|number: u32| {
            let mut prompt = if number.is_multiple_of(3) { tokens(99, 200 - number as usize * 7) } else { Vec::new() };
            prompt.extend(tokens(number, 5 + (number as usize * 53) % 120));
            let temperature = [0.0, 0.8, 1.3][number as usize % 3 % 2 + usize::from(number > 11)];
            let sampling = SamplingParameters { logprobs: number % 4, ..sampling(temperature, u64::from(number)) };
            Generate::new(Prompt::Tokens(prompt), 12 + number % 5 * 9, sampling, Vec::new())
        })
        .collect()
}

#[test]
fn concurrent_requests_equal_single_ones_even_cached() {
    let (file, requests) = (file(), requests());
    for replica in [Replica::of(1), Replica::of(2), Replica::pipeline()] {
        let alone = replica.each_alone(&file, &requests);
        let what = format!("{} ranks, {} stages", replica.ranks, replica.stages);
        let found = replica.answers(&file, &[requests.clone(), requests.clone()]);
        check(&found[0], &alone, &what);
        check(&found[1], &alone, &format!("again, {what}"));
        let cached = |answers: &[Answer]| answers.iter().map(|one| one.end().times.cached_tokens).collect::<Vec<_>>();
        assert!(cached(&found[0]).iter().filter(|cached| **cached >= 64).count() >= 4, "{:?}", cached(&found[0]));
        for (cached, answer) in cached(&found[1]).into_iter().zip(&alone) {
            assert_eq!(cached as usize, answer.prompt.len() - 1, "all but the last token of a prompt are kept");
        }
        let short = Replica { blocks: 33, slots: 5, ..replica };
        let found = short.answers(&file, &[requests.clone(), requests.iter().rev().cloned().collect()]);
        check(&found[0], &alone, &format!("few blocks, {what}"));
        check(&found[1], &alone.into_iter().rev().collect::<Vec<_>>(), &format!("few blocks, again, {what}"));
    }
}

#[test]
fn equal_prompts_share_the_prefix_cache_and_chats_continue() {
    let file = file();
    let replica = Replica::of(2);
    let ask = |prompt: &[u32]| Generate::new(Prompt::Tokens(prompt.to_vec()), 50, sampling(0.8, 3), Vec::new());
    let mut prompt = tokens(5, 70);
    let first = replica.each_alone(&file, &[ask(&prompt)]).remove(0);
    let begin = ask(&prompt);
    prompt.extend(&first.ids);
    prompt.extend(tokens(6, 20));
    let alone = replica.each_alone(&file, &[ask(&prompt)]);
    let copies = SamplingParameters { seed: 9, ..sampling(0.8, 3) };
    let same = Generate { sampling: copies, ..ask(&tokens(8, 300)) };
    let same_alone = replica.each_alone(&file, std::slice::from_ref(&same));
    let found = replica.answers(&file, &[vec![begin], vec![ask(&prompt)], vec![same; 6]]);
    check(&found[1], &alone, "second turn");
    found[2].iter().for_each(|one| check(std::slice::from_ref(one), &same_alone, "copies"));
    // All of the answer but its last token is in the KV cache.
    assert_eq!(found[1][0].end().times.cached_tokens, 70 + 50 - 1);
    let cached: Vec<u32> = found[2].iter().map(|one| one.end().times.cached_tokens).collect();
    assert_eq!(cached[0], 0);
    assert!(cached[1..].iter().all(|cached| (288..300).contains(cached)), "{cached:?}");
}

#[test]
fn speculative_decoding_changes_no_token() {
    let file = file();
    // Only a few tokens can be sampled, so earlier sequences are likely to recur.
    let few = |temperature: f32, seed: u64| {
        let logit_bias = (40..46).map(|id| (id, 60.0)).collect();
        SamplingParameters { logit_bias, ..sampling(temperature, seed) }
    };
    let penalised = SamplingParameters { repeat_penalty: 1.3, frequency_penalty: 0.4, logprobs: 3, ..few(0.8, 5) };
    let nucleus = SamplingParameters { top_p: 0.9, logprobs: 2, ..few(0.8, 6) };
    let ways = [few(0.0, 1), few(0.8, 2), sampling(0.0, 3), sampling(0.8, 4), penalised, nucleus];
    let mut prompt: Vec<u32> = (0..60).map(|index| 40 + index % 5).collect();
    prompt.extend(tokens(4, 9));
    let ask = |way: &SamplingParameters, stop: &[String]| {
        Generate::new(Prompt::Tokens(prompt.clone()), 120, way.clone(), stop.to_vec())
    };
    let mut requests: Vec<Generate> = ways.iter().map(|way| ask(way, &[])).collect();
    let plain = Replica { is_plain: true, ..Replica::of(1) }.each_alone(&file, &requests);
    // Until the context is full, and until stop strings that span several tokens.
    requests.push(Generate { max_tokens: 4000, ..ask(&ways[1], &[]) });
    for answer in &plain[..3] {
        let stop = answer.text.chars().skip(90).take(7).collect();
        requests.push(ask(&ways[1], &[stop]));
    }
    for replica in [Replica::of(1), Replica::of(2), Replica::pipeline()] {
        let replica = Replica { context_length: 320, blocks: 200, ..replica };
        let without = Replica { is_plain: true, ..replica }.each_alone(&file, &requests);
        assert!(without.iter().all(|answer| answer.end().times.drafted_tokens == 0));
        let with = replica.each_alone(&file, &requests);
        let what = format!("{} ranks, {} stages", replica.ranks, replica.stages);
        check(&with, &without, &what);
        check(&replica.answers(&file, &[requests.clone()])[0], &without, &format!("at once, {what}"));
        let sum = |count: fn(&RequestTimes) -> u32| with.iter().map(|one| count(&one.end().times)).sum::<u32>();
        let (drafted, accepted) = (sum(|times| times.drafted_tokens), sum(|times| times.accepted_tokens));
        println!("{accepted} of {drafted} speculative tokens accepted, {what}");
        assert!(accepted >= 40 && accepted < drafted, "{accepted} of {drafted}, {what}");
    }
}
