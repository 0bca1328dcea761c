//! Which experts have slots; `tests/scenarios/experts_on_disk.rs` has their bytes.
use super::latest::{Latest, Missing};

/// Chooses experts of a layer; returns the experts that have to be read.
fn choose(latest: &mut Latest, first: usize, experts: &[usize]) -> Vec<usize> {
    let mut missing = vec![Missing { slot: 0, expert: 0 }];
    latest.choose(first, experts, &mut missing);
    assert!(missing.is_sorted_by_key(|missing| missing.slot));
    for expert in experts {
        assert!(latest.slot(first + expert).is_some(), "{expert} has a slot");
    }
    let mut experts: Vec<usize> = missing.iter().map(|missing| missing.expert).collect();
    experts.sort_unstable();
    experts
}

#[test]
fn the_longest_unused_expert_leaves_first() {
    let mut latest = Latest::new(8, 3);
    assert_eq!(latest.counts(), [3, 8]);
    assert_eq!(choose(&mut latest, 0, &[0, 1]), [0, 1]);
    assert_eq!(choose(&mut latest, 4, &[0]), [0], "of another layer");
    assert!(choose(&mut latest, 0, &[0]).is_empty(), "it is still there");
    assert_eq!(choose(&mut latest, 4, &[2]), [2]);
    assert_eq!((latest.slot(1), latest.slot(0).is_some()), (None, true));
    assert_eq!(latest.uses(), [1, 4]);
}

#[test]
fn a_step_never_loses_an_expert_that_it_needs() {
    let mut latest = Latest::new(64, 4);
    let mut seed = 1_usize;
    for _ in 0..1000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let first = (seed >> 40) % 4 * 16;
        let mut experts: Vec<usize> = (0..4).map(|index| (seed >> (44 + index * 4)) % 16).collect();
        experts.sort_unstable();
        experts.dedup();
        choose(&mut latest, first, &experts);
        let mut slots: Vec<usize> = (0..64).filter_map(|expert| latest.slot(expert)).collect();
        let found = slots.len();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), found, "no slot holds two experts");
    }
    let [hits, misses] = latest.uses();
    assert!(hits > 0 && misses > hits, "{hits} {misses}");
}

#[test]
fn an_emptied_slot_is_used_first_and_its_expert_read_again() {
    let mut latest = Latest::new(4, 2);
    choose(&mut latest, 0, &[0, 1]);
    latest.forget(latest.slot(1).expect("it has a slot"));
    assert_eq!(choose(&mut latest, 0, &[2]), [2]);
    assert_eq!((latest.slot(0).is_some(), latest.slot(1)), (true, None));
}
