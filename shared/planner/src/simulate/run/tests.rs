//! Whole models on simulated clusters, compared with published figures and the project's targets.
use collectives::{Algorithm, Choice};
use common::limits::FRAME_HEADER_BYTES;
use common::{precision::Exchange, units::Nanoseconds};
use topology::sizes::{ModelSizes, Quantisation};

use super::*;
use crate::simulate::*;

const LINK: Link = Link { alpha_ns: 60_000, bits_per_second: 1_000_000_000, packets: Link::ETHERNET };

fn sizes(name: &str, quantisation: Quantisation) -> ModelSizes {
    ModelSizes::known(name, quantisation).expect("it is known")
}

/// A prompt of 512 tokens and 8 more.
fn outcome(sizes: &ModelSizes, setup: &Setup) -> Outcome {
    let replica = Replica::new(sizes, setup).expect("it can be cut");
    answer(&replica, &Request::quiet(512, 8)).expect("it fits together")
}

fn tensor_parallel(sizes: &ModelSizes, profile: &NodeProfile, ranks: usize) -> Setup {
    Setup::equal(profile, ranks, sizes.spec.block_count(), LINK)
}

#[test]
fn model_of_8b_speeds_up_3_4_times_on_4_and_6_times_on_8_pi5() {
    for quantisation in [Quantisation::Q4_0, Quantisation::Q4KM] {
        let sizes = sizes("llama-3.1-8b", quantisation);
        let [one, four, eight] = [1, 4, 8].map(|n| outcome(&sizes, &tensor_parallel(&sizes, &NodeProfile::pi5(), n)));
        let speed = |many: &Outcome| one.tpot.0 as f64 / many.tpot.0 as f64;
        assert!(speed(&four) >= 3.4, "{quantisation}: {}", speed(&four));
        assert!(speed(&eight) >= 6.0, "{quantisation}: {}", speed(&eight));
        assert!(eight.ttft.0 as f64 <= 0.65 * four.ttft.0 as f64, "{quantisation}: {} {}", eight.ttft, four.ttft);
    }
}

fn star(sizes: &ModelSizes, profile: &NodeProfile, ranks: usize) -> Outcome {
    let setup = tensor_parallel(sizes, profile, ranks);
    outcome(sizes, &Setup { exchange: Exchange::F32, choice: Choice::Forced(Algorithm::Star), ..setup })
}

#[test]
fn star_with_f32_is_slower_on_eight_nodes_than_on_four() {
    for name in ["tinyllama-1.1b", "llama-3.2-1b", "llama-3.2-3b", "qwen3-4b"] {
        let sizes = sizes(name, Quantisation::Q4_0);
        let times = [1, 2, 4, 8].map(|ranks| (ranks, star(&sizes, &NodeProfile::pi5(), ranks).tpot));
        assert!(times[3].1 > times[2].1 && times[2].1 < times[1].1, "{name}: {times:?}");
        assert_eq!(knee(&times), Some(4), "{name}");
    }
    // Ranks that receive the result early compute while rank 0 still sends to the others: an 8B model still gains a
    // little.
    let sizes = sizes("llama-3.1-8b", Quantisation::Q4_0);
    let [four, eight, sixteen] = [4, 8, 16].map(|n| star(&sizes, &NodeProfile::pi5(), n).tokens_per_second());
    assert!(eight < 1.1 * four && sixteen < four, "{four} {eight} {sixteen}");
    assert_eq!((knee(&[]), knee(&[(1, Nanoseconds(5)), (2, Nanoseconds(4))])), (None, Some(2)));
}

#[test]
fn one_pi_4_runs_llama_2_7b_as_fast_as_published() {
    // distributed-llama 0.1 on one Raspberry Pi 4: 0.76 tokens/s.
    let sizes = sizes("llama-2-7b", Quantisation::Q4_0);
    let found = star(&sizes, &NodeProfile::pi4(), 1).tokens_per_second();
    assert!((found / 0.76 - 1.0).abs() < 0.1, "{found}");
}

#[test]
fn rank_20_percent_slower_is_named_within_64_tokens() {
    let sizes = sizes("llama-3.1-8b", Quantisation::Q4_0);
    for (world, late) in [(2, 1), (4, 2), (8, 5)] {
        let mut setup = tensor_parallel(&sizes, &NodeProfile::pi5(), world);
        setup.stages[0].1[late].0.profile.slowness = 1200;
        let replica = Replica::new(&sizes, &setup).expect("it can be cut");
        let noise = Noise::Random { mean_ppm: 20_000 };
        let watched = watch(&replica, &Request { noise, seed: 1, ..Request::quiet(512, 64) });
        let watched = watched.expect("it fits together");
        assert_eq!((watched.windows, watched.named[late]), (1, 1), "{world}: {watched:?}");
    }
}

#[test]
fn equal_ranks_name_no_straggler_in_a_million_tokens() {
    let mut sizes = sizes("llama-3.2-1b", Quantisation::Q4_0);
    // One layer: the fewer all-reduces a window has, the less the noise averages out.
    sizes.spec.layers.truncate(1);
    sizes.layers.truncate(1);
    let setup = tensor_parallel(&sizes, &NodeProfile::pi5(), 4);
    let replica = Replica::new(&sizes, &setup).expect("it can be cut");
    let noise = Noise::Random { mean_ppm: 50_000 };
    let request = Request { noise, seed: 1, ..Request::quiet(512, 1_000_000) };
    let watched = watch(&replica, &request).expect("it fits together");
    assert_eq!((watched.windows, watched.named.iter().sum::<u64>()), (15_625, 0), "{watched:?}");
    assert!(watched.latest_share > 0.005, "the noise is measured: {watched:?}");
}

#[test]
fn the_same_replica_takes_the_same_nanoseconds() {
    let sizes = sizes("tinyllama-1.1b", Quantisation::Q4_0);
    let setup = tensor_parallel(&sizes, &NodeProfile::pi5(), 4);
    assert_eq!(outcome(&sizes, &setup), outcome(&sizes, &setup));
}

/// Two stages of two ranks.
fn pipeline(sizes: &ModelSizes, stages: usize, ranks: usize) -> Setup {
    let count = sizes.spec.block_count();
    let each = vec![(Machine { profile: NodeProfile::pi5(), link: LINK }, 1); ranks];
    let stages =
        (0..stages).map(|stage| (count * stage / stages..count * (stage + 1) / stages, each.clone())).collect();
    Setup { stages, ..tensor_parallel(sizes, &NodeProfile::pi5(), 1) }
}

#[test]
fn stages_overlap_on_prompts_and_on_concurrent_answers() {
    let sizes = sizes("llama-3.1-8b", Quantisation::Q4_0);
    let one = outcome(&sizes, &pipeline(&sizes, 1, 1));
    let two = outcome(&sizes, &pipeline(&sizes, 2, 1));
    // Eight chunks over two stages take nine times as long as one chunk in one stage: 16 / 9, except for output and
    // hand-over.
    let prefill = one.ttft.0 as f64 / two.ttft.0 as f64;
    assert!((1.7..1.78).contains(&prefill), "{prefill}");
    let decode = one.tpot.0 as f64 / two.tpot.0 as f64;
    assert!((0.98..1.0).contains(&decode), "{decode}");
    let rate = |stages: usize, sequences: u32| {
        let setup = pipeline(&sizes, stages, 1);
        let replica = Replica::new(&sizes, &setup).expect("it can be cut");
        throughput(&replica, sequences, 512).expect("it fits together")
    };
    assert!((rate(2, 1) * one.tpot.0 as f64 / 1e9 - 1.0).abs() < 0.03);
    // The second stage, which also computes the output, is slower.
    assert!((1.75..2.0).contains(&(rate(2, 2) / rate(2, 1))), "{} {}", rate(2, 2), rate(2, 1));
    let four = outcome(&sizes, &pipeline(&sizes, 4, 2));
    assert!(four.ttft < two.ttft && four.tpot < two.tpot, "{four:?}");
}

#[test]
fn bytes_and_messages_per_token_match_the_schedules() {
    let sizes = sizes("tinyllama-1.1b", Quantisation::Q4_0);
    let setup = Setup { choice: Choice::Forced(Algorithm::Direct), ..tensor_parallel(&sizes, &NodeProfile::pi5(), 4) };
    let [bytes, messages] = outcome(&sizes, &setup).sent_per_token();
    // 22 layers, two all-reduces, 4 ranks, 3 messages; 3 plans and 3 candidates.
    assert_eq!(messages, (22 * 2 * 4 * 3 + 6) as f64);
    let all_reduces = (22 * 2 * 4 * 3 * (2048 / 32 * 34 + FRAME_HEADER_BYTES)) as f64;
    assert!(bytes > all_reduces && bytes - all_reduces < 4000.0, "{bytes}");
}

#[test]
fn longer_context_costs_the_time_to_read_its_kv_cache() {
    let sizes = sizes("llama-3.1-8b", Quantisation::Q4_0);
    let setup = tensor_parallel(&sizes, &NodeProfile::pi5(), 1);
    let replica = Replica::new(&sizes, &setup).expect("it can be cut");
    let time = |context| answer(&replica, &Request::quiet(context, 1)).expect("it fits together").tpot.0 as f64;
    let more = (time(5001) - time(1)) / 1e9;
    let bytes = 5000.0 * 131_072.0;
    assert!((more * 12.194e9 / bytes - 1.0).abs() < 0.02, "{more}");
}
