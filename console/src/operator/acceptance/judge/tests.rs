//! Verdicts on made-up figures of each step.
use serde_json::json;

use super::*;
use crate::operator::acceptance::{
    AllReduceFacts, AnswerFacts, LayoutFacts, LinkFacts, LlamaFacts, LoadFacts, LoadReading, MachineFacts, NodeFacts,
    RecoveryFacts, Speeds,
    ids::IdsDiffer,
    markdown::markdown,
    report::{AcceptanceReport, StepOutcome},
    written::object,
};

fn done<T>(found: T) -> StepOutcome<T> {
    StepOutcome::new(1.0, Ok(found))
}

fn machine(node: &str, bits: Option<u32>) -> MachineFacts {
    MachineFacts {
        node: node.into(),
        model: Some("Raspberry Pi 5 Model B Rev 1.0".into()),
        link_mbit: Some(1000),
        throttle_bits: bits,
        ..MachineFacts::default()
    }
}

fn answer(prompt: &str, ids: &[u32], prefill: f64, decode: f64, differs: Option<IdsDiffer>) -> AnswerFacts {
    AnswerFacts {
        prompt: prompt.into(),
        prompt_tokens: 512,
        speeds: Speeds { prefill, decode },
        ids: ids.to_vec(),
        differs,
        ..AnswerFacts::default()
    }
}

fn layout(topology: &str, nodes: &[&str], decode: f64, differs: Option<IdsDiffer>) -> LayoutFacts {
    let ids: &[u32] = if differs.is_some() { &[1, 2, 9] } else { &[1, 2, 3] };
    LayoutFacts {
        topology: topology.into(),
        nodes: nodes.iter().map(|name| (*name).to_owned()).collect(),
        answers: vec![answer("story", ids, 0.0, decode, differs), answer("essay", &[4], 30.0, 0.0, None)],
        predicted: Some(Speeds { prefill: 32.0, decode: 5.0 }),
        ..LayoutFacts::default()
    }
}

fn report() -> AcceptanceReport {
    AcceptanceReport::new("m.gguf", vec!["pi1".into(), "pi2".into()], 0)
}

/// The verdict, value and note of a figure.
#[track_caller]
fn line(report: &AcceptanceReport, subject: &str, figure: &str) -> JudgedLine {
    let lines = judge(report);
    let found = lines.iter().find(|line| line.subject == subject && line.figure == figure);
    found.unwrap_or_else(|| panic!("no {figure} of {subject} among {lines:#?}")).clone()
}

#[test]
fn empty_report_has_no_lines_and_failed_steps_have_one() {
    let mut report = report();
    assert_eq!(judge(&report), []);
    report.give_up(AcceptanceStep::Load, 3.0, "pi1 was lost".into());
    let lines = judge(&report);
    assert_eq!(
        (lines.len(), lines[0].verdict, lines[0].note.as_deref()),
        (1, Verdict::NotMeasured, Some("pi1 was lost"))
    );
}

#[test]
fn throttled_machine_and_slow_link_miss_their_goals() {
    let mut report = report();
    report.steps.machines = done(vec![machine("pi1", Some(0x5_0000)), machine("pi2", Some(0)), machine("pc", None)]);
    let verdict = |node| line(&report, node, "throttle flags since boot").verdict;
    assert_eq!(line(&report, "pi1", "throttle flags since boot").note.as_deref(), Some("under-voltage, throttled"));
    assert_eq!([verdict("pi1"), verdict("pi2"), verdict("pc")], [Verdict::Miss, Verdict::Pass, Verdict::NotMeasured]);
    for (rate, us, verdicts) in
        [(941.0, 200.0, [Verdict::Pass, Verdict::Pass]), (94.0, 2000.0, [Verdict::Miss, Verdict::Miss])]
    {
        report.steps.links = done(vec![LinkFacts {
            from: "pi1".into(),
            to: "pi2".into(),
            round_trip_us: us,
            mbit_per_second: rate,
            predicted_us: Some(120.0),
            ..LinkFacts::default()
        }]);
        let of = |figure| line(&report, "pi1 > pi2", figure).verdict;
        assert_eq!([of("bandwidth"), of("round trip")], verdicts, "{rate}");
    }
}

#[test]
fn node_alone_is_judged_by_its_share_and_the_prediction() {
    let mut report = report();
    let node = NodeFacts {
        node: "pi1".into(),
        read_bytes_per_second: 12.2e9,
        predicted_read: Some(13.4e9),
        prompt_tokens: 512,
        speeds: Speeds { prefill: 20.0, decode: 2.9 },
        predicted: Some(Speeds { prefill: 30.0, decode: 2.8 }),
        decode_share: 0.93,
        ..NodeFacts::default()
    };
    report.steps.nodes = done(vec![node.clone()]);
    let of = |figure| line(&report, "pi1", figure);
    let read = of("read bandwidth");
    assert_eq!((read.verdict, read.value), (Verdict::Pass, Some(12.2)));
    assert_eq!(of("decode").verdict, Verdict::Pass);
    assert_eq!(of("decode, share of the read bandwidth").verdict, Verdict::Pass);
    let prefill = of("prefill of 512 tokens");
    assert_eq!((prefill.verdict, prefill.goal.as_deref()), (Verdict::Miss, Some(">= 0.9 x predicted")));
    report.steps.nodes = done(vec![NodeFacts { predicted: None, predicted_read: None, ..node }]);
    assert_eq!(line(&report, "pi1", "decode").verdict, Verdict::Info, "without a prediction there is no verdict");
}

#[test]
fn load_that_throttles_is_found_by_bits_heat_and_speed() {
    let reading = |celsius, mhz, bits, watts| LoadReading {
        celsius: Some(celsius),
        mhz: Some(mhz),
        limit_mhz: Some(2400),
        throttle_bits: Some(bits),
        watts,
        ..LoadReading::default()
    };
    let run = |prefill| Speeds { prefill, decode: 5.0 };
    let mut load = LoadFacts {
        node: "pi1".into(),
        seconds: 180.0,
        before: reading(45.0, 1500, 0, Some(2.5)),
        during: vec![reading(70.0, 2400, 0, Some(8.0)), reading(85.5, 1800, 0xE_0008, Some(6.0))],
        after: reading(60.0, 1500, 0xE_0000, None),
        runs: vec![run(30.0), run(30.0), run(24.0)],
    };
    let mut report = report();
    report.steps.load = done(vec![load.clone()]);
    let of = |figure| line(&report, "pi1", figure);
    assert_eq!((of("highest temperature").verdict, of("highest temperature").value), (Verdict::Miss, Some(85.5)));
    assert_eq!((of("throttled readings").verdict, of("throttled readings").value), (Verdict::Miss, Some(1.0)));
    assert_eq!(of("lowest clock").value, Some(1800.0));
    assert_eq!(of("prefill at the end / at the start").value, Some(0.8));
    let power = of("mean power under load");
    assert_eq!((power.value, power.note.as_deref()), (Some(7.0), Some("2.5 W idle")));
    load.during = vec![LoadReading::default()];
    load.before = LoadReading::default();
    load.runs.truncate(1);
    report.steps.load = done(vec![load]);
    let missing = judge(&report).iter().filter(|line| line.verdict == Verdict::NotMeasured).count();
    assert_eq!(missing, 5, "nothing was readable");
}

#[test]
fn tokens_of_more_nodes_are_equal_or_a_near_tie() {
    let mut report = report();
    report.steps.single = done(layout("tp1", &["pi1"], 2.5, None));
    let reduce = AllReduceFacts {
        tokens: 1,
        algorithm: "direct".into(),
        p50_us: 150.0,
        predicted_us: Some(120.0),
        p99_us: 300.0,
    };
    let all = |margin| {
        let differs = Some(IdsDiffer { at: 2, margin });
        LayoutFacts { all_reduces: vec![reduce.clone()], ..layout("tp2", &["pi1", "pi2"], 4.8, differs) }
    };
    report.steps.all = done(all(Some(0.01)));
    let decode = line(&report, "tp2", "decode");
    assert_eq!((decode.verdict, decode.note.as_deref()), (Verdict::Pass, Some("1.92 x one node")));
    assert_eq!(line(&report, "tp1", "decode").note, None);
    assert_eq!(line(&report, "tp2", "all-reduce of 1 tokens (direct)").verdict, Verdict::Pass);
    let same = |report: &AcceptanceReport| line(report, "tp2", "equal tokens (story)");
    assert_eq!((same(&report).verdict, same(&report).value), (Verdict::Pass, Some(2.0)));
    assert_eq!(line(&report, "tp2", "equal tokens (essay)").verdict, Verdict::Pass);
    report.steps.all = done(all(Some(0.8)));
    assert_eq!(same(&report).verdict, Verdict::Miss);
    report.steps.all = done(all(None));
    assert_eq!(same(&report).verdict, Verdict::Miss);
    assert!(judge(&report).iter().all(|line| line.subject != "tp1" || !line.figure.contains("equal")));
}

#[test]
fn llama_speeds_count_only_on_the_node_that_answered_alone() {
    let mut report = report();
    report.steps.single = done(layout("tp1", &["pi1"], 2.6, None));
    let found = |node: Option<&str>| LlamaFacts {
        node: node.map(str::to_owned),
        answers: vec![answer("story", &[1, 2, 3], 0.0, 2.0, None), answer("essay", &[4], 20.0, 0.0, None)],
    };
    report.steps.llama = done(found(Some("pi1")));
    let decode = line(&report, "pi1", "decode / llama.cpp");
    assert_eq!((decode.verdict, decode.value), (Verdict::Pass, Some(1.3)));
    assert_eq!(line(&report, "pi1", "prefill / llama.cpp").verdict, Verdict::Miss);
    report.steps.llama = done(found(None));
    assert_eq!(line(&report, "this machine", "equal tokens (story)").verdict, Verdict::Pass);
    assert_eq!(line(&report, "this machine", "speed relative to llama.cpp").verdict, Verdict::NotMeasured);
}

#[test]
fn recovery_is_judged_by_its_pause_and_its_text() {
    let mut report = report();
    let found = RecoveryFacts {
        node: "pi2".into(),
        how: "killed".into(),
        pause_ms: 2100.0,
        resumed: 1,
        tokens_before: 16,
        tokens: 64,
        differs: None,
        back_ms: None,
    };
    report.steps.recovery = done(found.clone());
    assert_eq!(line(&report, "pi2 killed", "pause of the answer").verdict, Verdict::Pass);
    assert_eq!(line(&report, "pi2 killed", "equal tokens").verdict, Verdict::Pass);
    assert_eq!(line(&report, "pi2 killed", "all nodes serve again").verdict, Verdict::NotMeasured);
    report.steps.recovery = done(RecoveryFacts { pause_ms: 10_001.0, back_ms: Some(4e3), ..found });
    assert_eq!(line(&report, "pi2 killed", "pause of the answer").verdict, Verdict::Miss);
    assert_eq!(line(&report, "pi2 killed", "all nodes serve again").value, Some(4.0));
}

#[test]
fn report_for_people_has_every_line_and_no_address() {
    let mut report = report();
    report.steps.machines = done(vec![machine("pi1", Some(0)), machine("pi2", None)]);
    report.steps.single = done(layout("tp1", &["pi1"], 2.5, None));
    report.give_up(AcceptanceStep::Recovery, 0.0, "no supervisor".into());
    let text = markdown(&report);
    assert!(text.contains("- result: 4 PASS, 1 MISS, 2 NOT MEASURED"), "{text}");
    let not_run: Vec<&str> = report.not_run().into_iter().map(AcceptanceStep::name).collect();
    assert_eq!(not_run, ["links", "nodes", "load", "pair", "all", "llama"]);
    assert!(text.contains("- steps that were not run: links, nodes, load, pair, all, llama\n"), "{text}");
    assert!(text.contains("| pi1 | Raspberry Pi 5 Model B Rev 1.0 |"), "{text}");
    assert!(text.contains("Nodes share a machine"), "both have the number 0: {text}");
    assert!(
        text.contains("| tp1 | decode | 2.50 tokens/s | 5.00 tokens/s | 0.50 | >= 0.9 x predicted | MISS |"),
        "{text}"
    );
    assert!(text.contains("NOT MEASURED | no supervisor |") && text.contains("- story by tp1: 1 2 3"), "{text}");
    let object = object(&report);
    let tally = Tally::of(&judge(&report));
    assert_eq!((&object["pass"], &object["not_run"]), (&json!(tally.pass), &json!(not_run)));
    assert_eq!(object["lines"].as_array().map(Vec::len), Some(judge(&report).len()));
    assert_eq!(AcceptanceReport::read(&object.to_string()), Ok(report));
}
