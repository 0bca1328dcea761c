//! Tests of how `console sync` reports members that do not serve, and which records it takes.
use common::{
    fault::{FaultKind, Loss},
    ids::LayerIndex,
};

use super::*;

fn member(name: &str, fault: Option<Fault>) -> Of {
    let (health, records, hops, shard) = (Health::default(), Vec::new(), Vec::new(), Bytes(1));
    Of { name: name.into(), health, records, hops, shard, fault, is_given: true }
}

fn picture(members: &[Of]) -> Picture<'_> {
    Picture {
        title: "tp2".into(),
        head: json!({}),
        rows: Vec::new(),
        layers: Layers::new(),
        straggler: None,
        steps: 0,
        members,
        boundaries: Vec::new(),
        slow_stage: None,
    }
}

#[test]
fn broken_cluster_is_reported_and_sets_exit_code() {
    let lost = Fault::new("pi4", FaultKind::NodeLost { how: Loss::Silent });
    let members = [member("pi1", None), member("pi4", Some(lost.clone()))];
    let broken = picture(&members).seen(&[]);
    assert_eq!(broken.code, Failure::from(lost).code());
    assert!(broken.code != 0);
    assert!(broken.lines.iter().any(|line| line.starts_with("pi4: ")), "{:?}", broken.lines);
    assert_eq!(broken.object["faults"][0]["node"], "pi4");
    let members = [member("pi1", None), member("pi4", None)];
    let quiet = picture(&members).seen(&[]);
    assert_eq!((quiet.code, &quiet.object["faults"]), (0, &json!([])));
    assert!(quiet.lines.iter().any(|line| line.starts_with("idle")), "{:?}", quiet.lines);
}

#[test]
fn member_that_was_not_asked_is_not_shown_as_healthy() {
    let members = [member("pi1", None), Of { is_given: false, ..member("pi2", None) }];
    let (late, none) = (0.0, Nanoseconds(0));
    let (means, arrival) = ([none; 3], [none; 2]);
    let row = RankSyncRow { member: 1, rank: 1, stage: 0, late, last: late, means, arrival, count: 0 };
    let seen = Picture { rows: vec![row], ..picture(&members) }.seen(&[]);
    assert_eq!((seen.code, &seen.object["not_asked"]), (0, &json!(["pi2"])));
    assert!(seen.lines.iter().any(|line| line.starts_with("not asked: pi2;")), "{:?}", seen.lines);
    assert!(seen.lines.iter().any(|line| line.starts_with("pi2") && line.ends_with("not asked")), "{:?}", seen.lines);
}

/// Steps of the records that are kept of those from `first` to `last`, if those up to `seen` were seen before.
fn kept(first: u64, last: u64, mut seen: u64) -> Vec<u64> {
    let mut records: Vec<SyncRecord> = (first..=last).map(at_step).collect();
    retain_new(&mut records, &mut seen);
    assert_eq!(seen, last);
    records.iter().map(|record| record.step).collect()
}

fn at_step(step: u64) -> SyncRecord {
    let (none, rank) = (Nanoseconds(0), Rank(0));
    SyncRecord {
        step,
        enter: none,
        exit: none,
        layer: LayerIndex(0),
        kind: SyncKind::Attention,
        tokens: 1,
        compute: none,
        wait: none,
        wire: none,
        slowest: rank,
        last: rank,
        late: none,
        arrivals: Vec::new(),
    }
}

#[test]
fn look_takes_new_records_and_enough_to_name_a_straggler() {
    let window = u64::from(WINDOW_STEPS);
    assert_eq!(kept(1, 10, 0), (1..=10).collect::<Vec<_>>(), "the first look");
    assert_eq!(kept(1, 500, 300), (301..=500).collect::<Vec<_>>(), "only new ones");
    assert_eq!(kept(1, 500, 497), (501 - window..=500).collect::<Vec<_>>(), "few new ones of a slow cluster");
    assert_eq!(kept(400, 500, 500), [0; 0], "idle");
    assert_eq!(kept(1, 9, 500), (1..=9).collect::<Vec<_>>(), "another run of the engine");
    let (mut none, mut seen) = (Vec::new(), 7);
    retain_new(&mut none, &mut seen);
    assert_eq!((none.len(), seen), (0, 7), "a member that did not answer");
}
