//! The ranks that the straggler rule names in recordings of real runs by `bench/scripts/speed/straggler.py --record`:
//! all-reduces, and jitter.
use std::fs;

use common::{
    ids::{LayerIndex, Rank},
    units::Nanoseconds,
};
use harness::programs::root;
use planner::simulate::{Link, NodeProfile, Noise, Replica, Request, Setup, watch};
use telemetry::{SyncKind, SyncRecord, WINDOW_STEPS, judge};
use topology::sizes::{ModelSizes, Quantisation};

fn recorded(name: &str) -> String {
    fs::read_to_string(root().join("tests/fixtures/straggler").join(name)).expect("the recording is there")
}

/// The all-reduces of two ranks. A line of the file is a sum over several; each gets an equal share.
fn all_reduces(name: &str) -> Vec<Vec<SyncRecord>> {
    let mut lists = vec![Vec::new(); 2];
    for line in recorded(name).lines().filter(|line| !line.starts_with('#')) {
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [rank, step, last, count, time, late] = numbers[..] else { panic!("six columns: {line}") };
        let last = Rank(u16::try_from(last).expect("a rank"));
        let record = SyncRecord {
            step,
            enter: Nanoseconds(0),
            exit: Nanoseconds(0),
            layer: LayerIndex(0),
            kind: SyncKind::Attention,
            tokens: 1,
            compute: Nanoseconds(time / count),
            wait: Nanoseconds(0),
            wire: Nanoseconds(0),
            slowest: last,
            last,
            late: Nanoseconds(late / count),
            arrivals: Vec::new(),
        };
        lists[rank as usize].extend(vec![record; count as usize]);
    }
    lists
}

#[test]
fn rank_stopped_2_ms_in_every_10_is_named_within_64_tokens() {
    for rank in 0..2 {
        let lists = all_reduces(&format!("rank{rank}-stopped.txt"));
        assert_eq!(lists[0].len(), 64 * 44, "64 tokens, 22 layers");
        let judged = judge(0, &lists);
        let [Some(named)] = judged[..] else { panic!("one window, one name: {judged:?}") };
        assert!(named.rank == rank && named.after <= WINDOW_STEPS / 2, "{named:?}");
        assert!((0.1..0.5).contains(&named.late) && named.last > 0.9, "{named:?}");
    }
}

#[test]
fn no_rank_is_named_in_a_run_without_a_straggler() {
    assert_eq!(judge(0, &all_reduces("quiet.txt")), [None]);
}

/// Simulates many tokens of a replica with the recorded jitter and asserts that the rule names no rank.
fn watched(name: &str, ranks: usize) {
    let times: Vec<u64> = recorded(name).lines().map(|line| line.parse().expect("a time")).collect();
    let noise = Noise::recorded(&times).expect("enough times");
    let sizes = ModelSizes::known("tinyllama-1.1b", Quantisation::Q4_0).expect("it is known");
    let link = Link { alpha_ns: 60_000, bits_per_second: 1_000_000_000, packets: Link::ETHERNET };
    let setup = Setup::equal(&NodeProfile::pi5(), ranks, sizes.spec.block_count(), link);
    let replica = Replica::new(&sizes, &setup).expect("it can be cut");
    let request = Request { noise, seed: 1, ..Request::quiet(512, 1_000_000) };
    let watched = watch(&replica, &request).expect("it fits together");
    assert_eq!((watched.windows, watched.named.iter().sum::<u64>()), (15_625, 0), "{watched:?}");
    assert!(watched.latest_share > 0.005, "the jitter must be visible: {watched:?}");
}

#[test]
fn no_rank_is_named_in_a_million_tokens_on_two_ranks() {
    watched("jitter-tp2.txt", 2);
}

#[test]
fn no_rank_is_named_in_a_million_tokens_on_three_ranks() {
    watched("jitter-tp3.txt", 3);
}
