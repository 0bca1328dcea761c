//! Lines of the steps that answer prompts.
use common::latency::ratio;

use super::JudgedLine;
use crate::operator::acceptance::{
    AnswerFacts, LayoutFacts, LlamaFacts, RecoveryFacts,
    goals::{self, Bound},
    ids::IdsDiffer,
    prompts::{ESSAY, STORY},
    report::AcceptanceReport,
    step::AcceptanceStep,
};

/// The answers of a topology: speeds, and tokens compared with those of one node.
pub(super) fn layout(report: &AcceptanceReport, step: AcceptanceStep) -> Vec<JudgedLine> {
    let Some(layout) = report.layout(step) else { return Vec::new() };
    let name = layout.topology.as_str();
    let mut lines = Vec::new();
    let answer = |name: &str| layout.answers.iter().find(|answer| answer.prompt == name);
    if let Some(story) = answer(STORY.name) {
        let line = JudgedLine::new(step, name, "decode", "tokens/s", story.speeds.decode);
        let line = line.against(layout.predicted.map(|predicted| predicted.decode)).judged(goals::SPEED);
        let faster = faster(report, layout, |answer| answer.speeds.decode, STORY.name);
        lines.push(line.noted(layout.unpredicted.clone()).noted(faster));
    }
    if let Some(essay) = answer(ESSAY.name) {
        let figure = format!("prefill of {} tokens", essay.prompt_tokens);
        let line = JudgedLine::new(step, name, &figure, "tokens/s", essay.speeds.prefill);
        let line = line.against(layout.predicted.map(|predicted| predicted.prefill)).judged(goals::SPEED);
        let faster = faster(report, layout, |answer| answer.speeds.prefill, ESSAY.name);
        lines.push(line.noted(layout.unpredicted.clone()).noted(faster));
    }
    for time in &layout.all_reduces {
        let figure = format!("all-reduce of {} tokens ({})", time.tokens, time.algorithm);
        let line = JudgedLine::new(step, name, &figure, "us", time.p50_us);
        let tail = format!("p99 {:.0} us", time.p99_us);
        lines.push(line.against(time.predicted_us).judged(goals::ALL_REDUCE).noted(Some(tail)));
    }
    let is_first = report.expected(STORY.name).is_some_and(|ids| answer(STORY.name).is_some_and(|it| it.ids == ids));
    if step != AcceptanceStep::Single && !(is_first && report.steps.single.found.is_none()) {
        lines.extend(layout.answers.iter().map(|answer| same_ids(step, name, answer, "fewer nodes")));
    }
    lines
}

/// How much faster than one node a topology is.
fn faster(
    report: &AcceptanceReport,
    layout: &LayoutFacts,
    speed: impl Fn(&AnswerFacts) -> f64,
    prompt: &str,
) -> Option<String> {
    let of = |layout: &LayoutFacts| layout.answers.iter().find(|answer| answer.prompt == prompt).map(&speed);
    let single = report.steps.single.found.as_ref().filter(|single| single.nodes.len() < layout.nodes.len())?;
    let (one, these) = of(single).zip(of(layout)).filter(|(one, _)| *one > 0.0)?;
    Some(format!("{:.2} x one node", ratio(these, one)))
}

/// Whether an answer has the expected tokens. A near tie may be decided by rounding.
fn same_ids(step: AcceptanceStep, subject: &str, answer: &AnswerFacts, others: &str) -> JudgedLine {
    let figure = format!("equal tokens ({})", answer.prompt);
    let equal = answer.differs.map_or(answer.ids.len(), |differs| differs.at);
    let line = JudgedLine::new(step, subject, &figure, "", equal as f64);
    let (holds, why) = same(answer.differs);
    let of = format!("of {}, compared with {others}{why}", answer.ids.len());
    line.required("all, or up to a near tie", holds).noted(Some(of))
}

fn same(differs: Option<IdsDiffer>) -> (bool, String) {
    match differs {
        None => (true, String::new()),
        Some(differs) => {
            let is_near = differs.is_near_tie();
            let why = match differs.margin {
                Some(margin) if is_near => format!("; then a near tie, decided by rounding (margin {margin:.4})"),
                Some(margin) => format!("; the logarithms of probability there differ by {margin:.3}"),
                None => "; the other token is not probable there".to_owned(),
            };
            (is_near, why)
        }
    }
}

/// The answers of llama.cpp.
pub(super) fn llama(report: &AcceptanceReport) -> Vec<JudgedLine> {
    let Some(found) = &report.steps.llama.found else { return Vec::new() };
    let subject = found.node.as_deref().unwrap_or("this machine");
    let step = AcceptanceStep::Llama;
    let mut lines: Vec<JudgedLine> =
        found.answers.iter().map(|answer| same_ids(step, subject, answer, "Bramble")).collect();
    lines.extend(speed_of_llama(report, found, subject));
    lines
}

/// Speeds relative to llama.cpp, if it ran on the node that answered alone.
fn speed_of_llama(report: &AcceptanceReport, found: &LlamaFacts, subject: &str) -> Vec<JudgedLine> {
    let step = AcceptanceStep::Llama;
    let single = report.steps.single.found.as_ref();
    let own = single.filter(|single| found.node.as_ref().is_some_and(|node| single.nodes == [node.clone()]));
    let Some(own) = own else {
        let reason = "llama.cpp did not run on the node that answered alone";
        return vec![JudgedLine::missing(step, subject, "speed relative to llama.cpp", reason)];
    };
    let mut lines = Vec::new();
    let mut compare = |prompt: &str, figure: &str, speed: fn(&AnswerFacts) -> f64, bound: Bound| {
        let of = |answers: &[AnswerFacts]| answers.iter().find(|answer| answer.prompt == prompt).map(speed);
        let Some((ours, theirs)) = of(&own.answers).zip(of(&found.answers)).filter(|(_, theirs)| *theirs > 0.0) else {
            return;
        };
        let note = format!("{ours:.2} and {theirs:.2} tokens/s");
        lines.push(JudgedLine::new(step, subject, figure, "", ratio(ours, theirs)).judged(bound).noted(Some(note)));
    };
    compare(STORY.name, "decode / llama.cpp", |answer| answer.speeds.decode, goals::LLAMA_DECODE);
    compare(ESSAY.name, "prefill / llama.cpp", |answer| answer.speeds.prefill, goals::LLAMA_PREFILL);
    lines
}

/// The loss of a node.
pub(super) fn recovery(report: &AcceptanceReport) -> Vec<JudgedLine> {
    let Some(found) = &report.steps.recovery.found else { return Vec::new() };
    let RecoveryFacts { node, how, differs, .. } = found;
    let step = AcceptanceStep::Recovery;
    let subject = format!("{node} {how}");
    let pause = JudgedLine::new(step, &subject, "pause of the answer", "s", found.pause_ms / 1e3);
    let after = format!("lost after {} of {} tokens", found.tokens_before, found.tokens);
    let equal = differs.map_or(found.tokens as usize, |differs| differs.at);
    let same_text = JudgedLine::new(step, &subject, "equal tokens", "", equal as f64);
    let (holds, why) = same(*differs);
    let of = format!("of {}, compared with the answer without a loss{why}", found.tokens);
    let back = match found.back_ms {
        Some(back) => JudgedLine::new(step, &subject, "all nodes serve again", "s", back / 1e3),
        None => JudgedLine::missing(step, &subject, "all nodes serve again", "not within the time limit"),
    };
    vec![
        pause.judged(goals::PAUSE).noted(Some(after)),
        same_text.required("all, or up to a near tie", holds).noted(Some(of)),
        back,
    ]
}
