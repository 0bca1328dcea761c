//! Tests of how `console sync` reports members that do not serve.
use common::fault::{FaultKind, Loss};

use super::*;

fn member(name: &str, fault: Option<Fault>) -> Of {
    Of { name: name.into(), health: Health::default(), records: Vec::new(), hops: Vec::new(), shard: Bytes(1), fault }
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
