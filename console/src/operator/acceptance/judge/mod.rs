//! Judges the figures of a report: each becomes a line with its prediction, the goal and the verdict.
mod answers;
mod machines;
#[cfg(test)]
mod tests;

use common::latency::ratio;
use serde::Serialize;

use super::{goals::Bound, report::AcceptanceReport, step::AcceptanceStep};

/// The verdict on a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The goal is reached.
    Pass,
    /// The goal is missed.
    Miss,
    /// There is no figure.
    NotMeasured,
    /// There is no goal, or no prediction that the goal refers to.
    Info,
}

impl Verdict {
    /// The word in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Miss => "MISS",
            Self::NotMeasured => "NOT MEASURED",
            Self::Info => "-",
        }
    }

    fn of(holds: bool) -> Self {
        if holds { Self::Pass } else { Self::Miss }
    }
}

/// A figure with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgedLine {
    /// The step that measured it.
    pub step: AcceptanceStep,
    /// The node, link or layout.
    pub subject: String,
    /// What was measured.
    pub figure: String,
    /// The unit of value and prediction; empty for a ratio.
    pub unit: &'static str,
    /// The figure.
    pub value: Option<f64>,
    /// The prediction of the planner.
    pub predicted: Option<f64>,
    /// The figure relative to the prediction.
    pub ratio: Option<f64>,
    /// The goal in words.
    pub goal: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// An explanation.
    pub note: Option<String>,
}

impl JudgedLine {
    /// A figure without a goal.
    fn new(step: AcceptanceStep, subject: &str, figure: &str, unit: &'static str, value: f64) -> Self {
        Self {
            step,
            subject: subject.to_owned(),
            figure: figure.to_owned(),
            unit,
            value: Some(value),
            predicted: None,
            ratio: None,
            goal: None,
            verdict: Verdict::Info,
            note: None,
        }
    }

    /// A figure that was not measured.
    fn missing(step: AcceptanceStep, subject: &str, figure: &str, reason: &str) -> Self {
        let line = Self::new(step, subject, figure, "", 0.0);
        Self { value: None, verdict: Verdict::NotMeasured, note: Some(reason.to_owned()), ..line }
    }

    /// With the prediction that it is compared with, if there is one.
    fn against(self, predicted: Option<f64>) -> Self {
        let predicted = predicted.filter(|predicted| *predicted > 0.0);
        let ratio = self.value.zip(predicted).map(|(value, predicted)| ratio(value, predicted));
        Self { predicted, ratio, ..self }
    }

    /// Judged by a bound.
    fn judged(self, bound: Bound) -> Self {
        let holds = self.value.and_then(|value| bound.holds(value, self.predicted));
        let verdict = holds.map_or(self.verdict, Verdict::of);
        Self { goal: Some(bound.words()), verdict, ..self }
    }

    /// Judged by a condition in words.
    fn required(self, goal: &str, holds: bool) -> Self {
        Self { goal: Some(goal.to_owned()), verdict: Verdict::of(holds), ..self }
    }

    fn noted(self, note: Option<String>) -> Self {
        Self { note: note.or(self.note), ..self }
    }
}

/// How many lines have which verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Goals that were reached.
    pub pass: usize,
    /// Goals that were missed.
    pub miss: usize,
    /// Figures that were not measured.
    pub not_measured: usize,
}

impl Tally {
    /// Counts the verdicts.
    pub fn of(lines: &[JudgedLine]) -> Self {
        let [pass, miss, not_measured] = [Verdict::Pass, Verdict::Miss, Verdict::NotMeasured]
            .map(|verdict| lines.iter().filter(|line| line.verdict == verdict).count());
        Self { pass, miss, not_measured }
    }
}

/// The lines of a report, step by step. Steps that were not run have no lines; those that failed have one.
pub fn judge(report: &AcceptanceReport) -> Vec<JudgedLine> {
    let mut lines = Vec::new();
    for step in AcceptanceStep::ALL {
        match step {
            AcceptanceStep::Machines => lines.extend(machines::machines(report)),
            AcceptanceStep::Links => lines.extend(machines::links(report)),
            AcceptanceStep::Nodes => lines.extend(machines::nodes(report)),
            AcceptanceStep::Load => lines.extend(machines::load(report)),
            AcceptanceStep::Single | AcceptanceStep::Pair | AcceptanceStep::All => {
                lines.extend(answers::layout(report, step));
            }
            AcceptanceStep::Llama => lines.extend(answers::llama(report)),
            AcceptanceStep::Recovery => lines.extend(answers::recovery(report)),
        }
        if let Some(reason) = report.reason(step) {
            lines.push(JudgedLine::missing(step, "-", step.deed(), reason));
        }
    }
    lines
}
