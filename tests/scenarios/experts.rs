//! Mixtures of experts on n ranks against the oracle and against one rank. A quantised model is compared on seeds for
//! which no routing decision is close: int8 activations may flip a decision between two close logits.
use std::sync::Arc;

use common::precision::{Exchange, KvFormat};
use gguf::{BlockFormat, GgufFile};
use harness::tiny_model::{Architecture, Experts};
use harness::{
    oracle::{Oracle, Route},
    quantise::quantise,
    random::Random,
    ranks::{Run, max_error, rms_error, run},
    tiny_model::TinyModel,
};
use kernels::Kernels;

/// An expert of three super-blocks, as in Qwen3-30B-A3B: two ranks cut one of them, more ranks cut all.
fn model(experts: Experts) -> TinyModel {
    let mut model = TinyModel { experts, ..TinyModel::new(Architecture::Qwen3Moe) };
    (model.head_count, model.head_count_kv, model.head_length) = (8, 2, 32);
    (model.embedding_length, model.feed_forward_length) = (256, 768);
    model
}

const EXPERTS: Experts = Experts { count: 8, used_count: 3 };

/// Router logits are about 2; int8 activations change them by a hundredth of that.
const MARGIN: f64 = 0.06;

fn open(model: &TinyModel) -> Arc<GgufFile> {
    Arc::new(GgufFile::from_bytes(vec![model.bytes()]).expect("the model is valid"))
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| (index * 37 + 5) % 300).collect()
}

/// A model whose routing decisions for these tokens are all clear, and its exact logits.
#[track_caller]
fn clear(model: &TinyModel, tokens: &[u32]) -> (Arc<GgufFile>, Vec<Vec<f32>>) {
    (1..60)
        .find_map(|seed| {
            let file = open(&TinyModel { seed, ..model.clone() });
            let (logits, routes) = Oracle::new(&file).routed_logits(tokens);
            let is_clear = routes.iter().flatten().all(|route| route.margin > MARGIN);
            is_clear.then_some((file, logits))
        })
        .expect("some seed has only clear routing decisions")
}

fn bits(logits: &[Vec<f32>]) -> Vec<u32> {
    logits.iter().flatten().map(|logit| logit.to_bits()).collect()
}

#[test]
fn experts_match_the_oracle_on_1_to_8_ranks_and_unequal_shares() {
    let file = open(&model(EXPERTS));
    let tokens = tokens(24);
    let exact = Oracle::new(&file).logits(&tokens);
    for weights in (1..=8).map(|world| vec![1; world]).chain([vec![3, 2, 1], vec![1, 7], vec![1, 1, 30]]) {
        let error = max_error(&run(&file, &tokens, &Run { weights: weights.clone(), ..Run::exact(1) }).logits, &exact);
        assert!(error <= 1e-4, "{weights:?}: {error}");
    }
    // Three blocks of columns: five ranks hold none.
    let file = open(&TinyModel { feed_forward_length: 96, ..model(EXPERTS) });
    let error = max_error(&run(&file, &tokens, &Run::exact(8)).logits, &Oracle::new(&file).logits(&tokens));
    assert!(error <= 1e-4, "{error}");
}

#[test]
fn experts_in_several_formats_match_oracle_and_one_rank() {
    let tokens = tokens(6);
    let mixed = TinyModel {
        finer_format: Some(BlockFormat::Q6K),
        output_format: BlockFormat::Q6K,
        ..model(EXPERTS).with_format(BlockFormat::Q4K)
    };
    let formats = [BlockFormat::F16, BlockFormat::Q8_0, BlockFormat::Q4_0, BlockFormat::Q6K, BlockFormat::Iq4Xs];
    let formats = formats.into_iter().chain([BlockFormat::Iq3Xxs, BlockFormat::Iq2Xxs]);
    for model in formats.map(|format| model(EXPERTS).with_format(format)).chain([mixed]) {
        let (format, finer) = (model.feed_forward_format, model.finer_format.map_or("", BlockFormat::name));
        let (file, exact) = clear(&model, &tokens);
        let alone = run(&file, &tokens, &Run::exact(1)).logits;
        let bound = if format.is_quantised() { 0.03 } else { 1e-4 };
        for weights in [vec![1], vec![1; 2], vec![1; 4], vec![3, 2, 1], vec![1; 8]] {
            let found = run(&file, &tokens, &Run { weights: weights.clone(), ..Run::exact(1) }).logits;
            let (error, change) = (rms_error(&found, &exact), rms_error(&found, &alone));
            let what = format!("{} {finer} on {weights:?}", format.name());
            assert!(error <= bound, "{what}: {error}");
            assert!(change <= bound / 2.0, "{what} against one: {change}");
        }
    }
}

#[test]
fn expert_logits_are_bit_equal_for_any_chunking_and_threads() {
    for table in Kernels::available() {
        for (format, exchange, ranks, feed_forward_length) in [
            // Not a whole number of panels for each of three ranks.
            (BlockFormat::Q4K, Exchange::F32, 3, 800),
            (BlockFormat::Q8_0, Exchange::Q80, 3, 800),
            (BlockFormat::F16, Exchange::F32, 3, 800),
            // Four ranks hold whole blocks of some experts.
            (BlockFormat::Q4K, Exchange::F32, 4, 768),
        ] {
            let model = TinyModel { feed_forward_length, ..model(EXPERTS).with_format(format) };
            let file = open(&model);
            let tokens = tokens(40);
            let kernels = Some(table.name);
            let base = Run { exchange, kv: KvFormat::F16, kernels, ..Run::exact(ranks) };
            let whole = run(&file, &tokens, &base).logits;
            assert!(whole.iter().flatten().all(|logit| logit.is_finite()));
            for (chunks, threads) in [(vec![1], 1), (vec![21, 2, 7], 2), (vec![33, 1], 3), (vec![40], 4)] {
                let found = run(&file, &tokens, &Run { chunks: chunks.clone(), threads, ..base.clone() }).logits;
                let what = format!("{} {} in chunks of {chunks:?} on {threads} threads", table.name, format.name());
                assert_eq!(bits(&found), bits(&whole), "{what}");
            }
        }
    }
}

#[test]
fn every_kernel_table_agrees_on_experts() {
    for format in [BlockFormat::Q8_0, BlockFormat::Q4K, BlockFormat::Q6K, BlockFormat::BF16] {
        let tokens = tokens(8);
        let (file, _) = clear(&model(EXPERTS).with_format(format), &tokens);
        let scalar = run(&file, &tokens, &Run { kernels: Some("scalar"), ..Run::exact(2) }).logits;
        for table in Kernels::available() {
            let found = run(&file, &tokens, &Run { kernels: Some(table.name), ..Run::exact(2) }).logits;
            let error = rms_error(&found, &scalar);
            assert!(error <= 0.01, "{} {}: {error}", table.name, format.name());
        }
    }
}

/// Whether two tokens of a layer share an expert, and whether some expert is not chosen at all.
fn spread(routes: &[Route], count: usize) -> (bool, bool) {
    let mut uses = vec![0; count];
    routes.iter().flat_map(|route| &route.experts).for_each(|expert| uses[*expert] += 1);
    (uses.iter().any(|uses| *uses > 1), uses.contains(&0))
}

#[test]
fn tokens_may_share_no_expert_or_leave_some_expert_unused() {
    let small = |count, used_count| TinyModel {
        embedding_length: 128,
        feed_forward_length: 96,
        block_count: 1,
        ..model(Experts { count, used_count })
    };
    let check = |model: &TinyModel, tokens: &[u32], wanted: (bool, bool)| {
        let (file, exact) = (1..60)
            .find_map(|seed| {
                let file = open(&TinyModel { seed, ..model.clone() });
                let (exact, routes) = Oracle::new(&file).routed_logits(tokens);
                (spread(&routes[0], model.experts.count) == wanted).then_some((file, exact))
            })
            .expect("some seed has such a routing");
        for world in [1, 3] {
            let error = max_error(&run(&file, tokens, &Run::exact(world)).logits, &exact);
            assert!(error <= 1e-4, "{:?} on {world} ranks: {error}", model.experts);
        }
    };
    check(&small(64, 1), &tokens(5), (false, true));
    check(&small(8, 2), &tokens(9), (true, true));
    check(&small(8, 2), &tokens(40), (true, false));
    check(&small(5, 5), &tokens(4), (true, false));
    check(&small(1, 1), &tokens(3), (true, false));
    check(&small(1, 1), &tokens(1), (false, false));
}

#[test]
fn equal_logits_choose_the_lower_experts_on_every_rank() {
    // A router of zeros: the first three experts get a third each.
    let model = model(EXPERTS);
    let writer = (0..model.block_count).fold(model.writer(), |writer, layer| {
        let name = format!("blk.{layer}.ffn_gate_inp.weight");
        writer.without_tensor(&name).tensor(&name, &[256, 8], BlockFormat::F32, vec![0; 4 * 256 * 8])
    });
    let file = Arc::new(GgufFile::from_bytes(vec![writer.finish()]).expect("the model is valid"));
    let tokens = tokens(5);
    let (exact, routes) = Oracle::new(&file).routed_logits(&tokens);
    assert!(routes.iter().flatten().all(|route| route.experts == [0, 1, 2]));
    for world in 1..=4 {
        assert!(max_error(&run(&file, &tokens, &Run::exact(world)).logits, &exact) <= 1e-4, "{world} ranks");
    }
}

#[test]
fn nan_token_affects_no_other_token_and_no_expert_index() {
    let model = model(EXPERTS);
    let with = |name: &str, dimensions: [u64; 2], change: &dyn Fn(&mut [f32])| {
        let count = (dimensions[0] * dimensions[1]) as usize;
        let mut weights = Random::named(7, name).normals(count, 0.1);
        change(&mut weights);
        let bytes = quantise(BlockFormat::F32, &weights);
        let writer = model.writer().without_tensor(name).tensor(name, &dimensions, BlockFormat::F32, bytes);
        Arc::new(GgufFile::from_bytes(vec![writer.finish()]).expect("the model is valid"))
    };
    for bad in [f32::NAN, f32::INFINITY] {
        let router = with("blk.1.ffn_gate_inp.weight", [256, 8], &|weights| weights[256 * 5 + 3] = bad);
        for world in [1, 3] {
            let found = run(&router, &tokens(4), &Run::exact(world)).logits;
            assert!(found.iter().flatten().all(|logit| logit.is_nan()), "{bad} in the router on {world} ranks");
        }
        // The bad token is last: causal attention hides it from all others.
        let embedding = with("token_embd.weight", [256, 300], &|weights| weights[256 * 299] = bad);
        let (mut all, good) = (tokens(7), tokens(7));
        all.push(299);
        let found = run(&embedding, &all, &Run::exact(2)).logits;
        let expected = run(&embedding, &good, &Run::exact(2)).logits;
        assert_eq!(bits(&found[..7]), bits(&expected));
        assert!(expected.iter().flatten().all(|logit| logit.is_finite()));
        assert!(found[7].iter().all(|logit| logit.is_nan()), "{bad} in the hidden state");
    }
}
