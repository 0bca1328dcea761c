//! Requests on one engine: answers that go on elsewhere, beside each other and from what was computed before, are the same.
use std::sync::Arc;

use harness::{engines::Replica, tiny_model::TinyModel};
use shared::{
    gguf::{Architecture, BlockFormat, GgufFile},
    protocol::message::{FinishReason, Generate, Prompt},
    sampling::SamplingParameters,
};

fn file() -> Arc<GgufFile> {
    let model = TinyModel { context_length: 1024, ..TinyModel::new(Architecture::Llama) };
    let bytes = model.with_format(BlockFormat::Q8_0).bytes();
    Arc::new(GgufFile::from_bytes(vec![bytes]).expect("the model is good"))
}

/// Token 2 ends an answer: never drawn here.
fn sampling(temperature: f32, seed: u64) -> SamplingParameters {
    SamplingParameters { temperature, seed, logit_bias: vec![(2, -1e9)], ..SamplingParameters::default() }
}

/// `count` ids that a seed chooses.
fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| 3 + (index * (2 * seed + 7) + seed * 31 + index * index / 3) % 290).collect()
}

#[test]
fn an_answer_that_was_cut_goes_on_elsewhere_with_the_same_ids_and_text() {
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
            assert_eq!(rest.end().reason, FinishReason::Length);
        }
        if temperature == 0.0 {
            // A small model repeats itself: no text can be told apart.
            continue;
        }
        // A stop string that the token before the cut begins and a token after it ends.
        let span = |cut: usize| whole.told[cut - 2]..whole.told[cut + 1];
        let is_good = |cut: &usize| {
            let (span, middle) = (span(*cut), whole.told[cut - 1]);
            let fits = span.start < middle && middle < span.end;
            fits && whole.text.get(span.clone()).is_some_and(|stop| whole.text.find(stop) == Some(span.start))
        };
        let cut = (8..40).find(is_good).expect("some text can be told apart");
        let stop = [whole.text[span(cut)].to_owned()];
        let stopped = one(generate(&[], &stop));
        assert_eq!((stopped.end().reason, stopped.text.as_str()), (FinishReason::Stop, &whole.text[..span(cut).start]));
        let rest = one(generate(&whole.ids[..cut], &stop));
        assert_eq!((rest.end().reason, rest.ids.as_slice()), (FinishReason::Stop, &stopped.ids[cut..]));
        assert_eq!(rest.text, stopped.text[stopped.told[cut - 1]..], "what was held back at the cut");
    }
}
