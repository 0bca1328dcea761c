//! n ranks against the oracle and against one rank: every architecture, every format, 1 to 8 ranks, any chunking.
use std::sync::Arc;

use collectives::{Algorithm, Choice, Class, cost};
use common::{
    ids::Rank,
    precision::{Exchange, KvFormat},
};
use gguf::{BlockFormat, GgufFile};
use harness::tiny_model::Architecture;
use harness::{
    oracle::{Oracle, kl_divergence},
    ranks::{Run, max_error, rms_error, run},
    tiny_model::TinyModel,
};

fn file(model: &TinyModel) -> Arc<GgufFile> {
    Arc::new(GgufFile::from_bytes(vec![model.bytes()]).expect("the model is valid"))
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).map(|index| (index * 37 + 5) % 300).collect()
}

/// Shapes that cut badly on purpose: super-blocks of 256 across cuts, more ranks than heads, shared KV heads.
fn model(architecture: Architecture) -> TinyModel {
    let mut model = TinyModel::new(architecture);
    (model.head_count, model.head_count_kv, model.head_length) = (8, 2, 32);
    (model.rope_dimension_count, model.embedding_length, model.feed_forward_length) = (32, 256, 512);
    model.rope_factors = architecture == Architecture::Llama;
    model
}

#[test]
fn every_architecture_matches_the_oracle_on_1_to_8_ranks() {
    for architecture in Architecture::ALL {
        let file = file(&model(architecture));
        let tokens = tokens(40);
        let exact = Oracle::new(&file).logits(&tokens);
        for world in 1..=8 {
            let error = max_error(&run(&file, &tokens, &Run::exact(world)).logits, &exact);
            assert!(error <= 1e-4, "{} on {world} ranks: {error}", architecture.name());
        }
    }
}

#[test]
fn every_format_matches_oracle_and_one_rank_wherever_cut() {
    for (index, format) in BlockFormat::ALL.into_iter().enumerate() {
        let architecture = Architecture::ALL[index % 3];
        let file = file(&model(architecture).with_format(format));
        let tokens = tokens(12);
        let exact = Oracle::new(&file).logits(&tokens);
        let alone = run(&file, &tokens, &Run::exact(1)).logits;
        // Error of int8 activations on a random model: about one percent, as in llama.cpp.
        let bound = if format.is_quantised() { 0.03 } else { 1e-4 };
        for world in 1..=8 {
            let found = run(&file, &tokens, &Run::exact(world)).logits;
            let error = rms_error(&found, &exact);
            assert!(error <= bound, "{} on {world} ranks: {error}", format.name());
            // Summing in another order may at most flip the rounding of single activations.
            let change = rms_error(&found, &alone);
            assert!(change <= bound / 2.0, "{} on {world} ranks against one: {change}", format.name());
        }
    }
}

#[test]
fn unequal_shares_give_the_same_logits() {
    for format in [BlockFormat::Q4K, BlockFormat::F16] {
        let file = file(&model(Architecture::Qwen3).with_format(format));
        let tokens = tokens(12);
        let alone = run(&file, &tokens, &Run::exact(1)).logits;
        for weights in [vec![3, 2, 1], vec![1, 7], vec![1, 1, 30]] {
            let found = run(&file, &tokens, &Run { weights: weights.clone(), ..Run::exact(1) }).logits;
            let error = rms_error(&found, &alone);
            assert!(error <= 0.01, "{weights:?}: {error}");
        }
    }
}

#[test]
fn logits_are_bit_equal_for_any_chunking_and_threads() {
    for (format, exchange) in [(BlockFormat::Q4K, Exchange::F32), (BlockFormat::F16, Exchange::Q80)] {
        let file = file(&model(Architecture::Llama).with_format(format));
        let tokens = tokens(70);
        let base = Run { exchange, kv: KvFormat::F16, ..Run::exact(3) };
        let whole = run(&file, &tokens, &base).logits;
        for (chunks, threads) in [(vec![1], 1), (vec![31, 2, 7], 2), (vec![33, 1], 3)] {
            let found = run(&file, &tokens, &Run { chunks: chunks.clone(), threads, ..base.clone() }).logits;
            let is_equal = found.iter().flatten().zip(whole.iter().flatten()).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(is_equal, "{} in chunks of {chunks:?} on {threads} threads", format.name());
        }
    }
}

#[test]
fn long_context_gives_the_same_bits_however_it_is_computed() {
    // Attention processes 512 positions at a time: in parallel for a few tokens, one part after another for many.
    let model = TinyModel { context_length: 2048, ..model(Architecture::Qwen3) };
    let file = file(&model.with_format(BlockFormat::Q8_0));
    let tokens = tokens(1100);
    for kv in [KvFormat::F16, KvFormat::Q8, KvFormat::Q4] {
        let base = Run { kv, chunks: vec![128], ..Run::exact(2) };
        let expected = run(&file, &tokens, &base).logits;
        assert!(expected.iter().flatten().all(|logit| logit.is_finite()));
        for (chunks, threads) in [(vec![1], 1), (vec![511, 3, 1], 3), (vec![64, 1, 2], 2)] {
            let found = run(&file, &tokens, &Run { chunks: chunks.clone(), threads, ..base.clone() }).logits;
            assert_eq!(bits(&found), bits(&expected), "{kv} chunks {chunks:?}, {threads} threads");
        }
    }
}

fn bits(logits: &[Vec<f32>]) -> Vec<u32> {
    logits.iter().flatten().map(|logit| logit.to_bits()).collect()
}

#[test]
fn rounded_exchanges_stay_within_the_divergence_bound() {
    let demo = harness::programs::demo_models().join("bard-q8_0.gguf");
    let file = Arc::new(GgufFile::open(&demo).expect("the demo model is valid"));
    let tokens: Vec<u32> = vec![1, 367, 561, 378, 594, 304, 1760, 332, 328, 1536, 266, 2013, 1995, 1999, 799, 280];
    let exact = run(&file, &tokens, &Run::exact(4)).logits;
    for (world, exchange) in [(2, Exchange::Q80), (4, Exchange::Q80), (8, Exchange::Q80), (8, Exchange::F16)] {
        for algorithm in Algorithm::ALL {
            let collective = Choice::Forced(algorithm);
            let rounded = run(&file, &tokens, &Run { exchange, collective, ..Run::exact(world) }).logits;
            let divergence = kl_divergence(&exact, &rounded);
            assert!(divergence <= 1e-3, "{exchange} by {algorithm} on {world} ranks: {divergence}");
            assert!(rms_error(&rounded, &exact) > 0.0, "{exchange} rounds");
        }
    }
    let halves = run(&file, &tokens, &Run { kv: KvFormat::F16, ..Run::exact(1) }).logits;
    let divergence = kl_divergence(&exact, &halves);
    assert!(divergence <= 1e-3, "KV cache in f16: {divergence}");
    let bytes = run(&file, &tokens, &Run { kv: KvFormat::Q8, ..Run::exact(1) }).logits;
    let divergence = kl_divergence(&exact, &bytes);
    assert!(divergence <= 1e-3, "KV cache in q8_0: {divergence}");
    assert!(rms_error(&bytes, &exact) > rms_error(&halves, &exact), "q8_0 must round more than f16");
    let nibbles = run(&file, &tokens, &Run { kv: KvFormat::Q4, ..Run::exact(1) }).logits;
    let divergence = kl_divergence(&exact, &nibbles);
    println!("KV cache in q4_0: divergence {divergence}, rms error {}", rms_error(&nibbles, &exact));
    assert!(divergence <= 0.05, "KV cache in q4_0: {divergence}");
}

#[test]
fn collectives_match_the_oracle_and_a_class_has_one_result() {
    let file = file(&model(Architecture::Qwen2));
    let tokens = tokens(6);
    let exact = Oracle::new(&file).logits(&tokens);
    for world in 2..=8 {
        let usual = bits(&run(&file, &tokens, &Run::exact(world)).logits);
        for algorithm in Algorithm::ALL {
            let collective = Choice::Forced(algorithm);
            let found = run(&file, &tokens, &Run { collective, ..Run::exact(world) }).logits;
            let error = max_error(&found, &exact);
            assert!(error <= 1e-4, "{algorithm} on {world} ranks: {error}");
            assert!(algorithm.class() != Class::RankOrder || bits(&found) == usual, "{algorithm} on {world} ranks");
        }
    }
}

#[test]
fn logits_are_bit_equal_with_every_collective_and_format() {
    for algorithm in Algorithm::ALL {
        for (world, exchange) in [(3, Exchange::F32), (4, Exchange::F16), (5, Exchange::Q80)] {
            let file = file(&model(Architecture::Llama).with_format(BlockFormat::Q8_0));
            let (tokens, collective) = (tokens(40), Choice::Forced(algorithm));
            let base = Run { exchange, collective, ..Run::exact(world) };
            let whole = bits(&run(&file, &tokens, &base).logits);
            for chunks in [vec![1], vec![31, 2, 7]] {
                let found = run(&file, &tokens, &Run { chunks: chunks.clone(), ..base.clone() }).logits;
                assert_eq!(bits(&found), whole, "{algorithm} {exchange} in chunks of {chunks:?}");
            }
        }
    }
}

#[test]
fn every_kernel_table_agrees() {
    for format in [BlockFormat::Q8_0, BlockFormat::Q4K, BlockFormat::Q6K, BlockFormat::Q5_1, BlockFormat::BF16] {
        let file = file(&model(Architecture::Qwen2).with_format(format));
        let tokens = tokens(20);
        let scalar = run(&file, &tokens, &Run { kernels: Some("scalar"), ..Run::exact(2) }).logits;
        for table in kernels::Kernels::available() {
            let found = run(&file, &tokens, &Run { kernels: Some(table.name), ..Run::exact(2) }).logits;
            let error = rms_error(&found, &scalar);
            assert!(error <= 0.01, "{} {}: {error}", table.name, format.name());
        }
    }
}

#[test]
fn sent_bytes_and_messages_equal_the_formula() {
    let file = file(&model(Architecture::Llama));
    for algorithm in Algorithm::ALL {
        for (world, exchange) in [(2, Exchange::F32), (5, Exchange::F16), (4, Exchange::Q80), (7, Exchange::F32)] {
            let collective = Choice::Forced(algorithm);
            let run = run(&file, &tokens(9), &Run { exchange, collective, chunks: vec![1], ..Run::exact(world) });
            for (rank, totals) in run.totals.iter().enumerate() {
                // Nine tokens through two layers with two all-reduces each, of 256 columns.
                let one = cost(algorithm, exchange, Rank(rank as u16), world, 1, 256);
                assert_eq!(totals.messages_sent, 36 * one.messages, "{algorithm} on {world} ranks, rank {rank}");
                let bytes = 36 * (one.bytes + 64 * one.messages);
                assert_eq!(totals.bytes_sent, bytes, "payload and headers, {algorithm}");
            }
        }
    }
}

#[test]
fn message_costs_at_most_two_and_a_half_system_calls() {
    let file = file(&model(Architecture::Llama));
    for algorithm in Algorithm::ALL {
        for world in [2, 3, 4, 8] {
            let collective = Choice::Forced(algorithm);
            let measured = (0..3).map(|_| {
                let run = run(&file, &tokens(60), &Run { collective, chunks: vec![1], ..Run::exact(world) });
                let messages: u64 = run.totals.iter().map(|totals| totals.messages_sent).sum();
                let calls: u64 = run.calls.iter().map(|calls| calls.total()).sum();
                calls as f64 / messages as f64
            });
            // How often a rank wakes before all expected data has arrived depends on the load of the machine.
            let each = measured.fold(f64::INFINITY, f64::min);
            println!("{algorithm} on {world} ranks: {each:.2} calls per message");
            assert!(each <= 2.5, "{algorithm} on {world} ranks: {each} calls per message");
        }
    }
}
