//! Compares the figures of two reports: of two clusters, or of one before and after a change.
use std::collections::HashMap;

use common::latency::ratio;
use serde::Serialize;

use super::{
    judge::{JudgedLine, Verdict, judge},
    markdown::{number, table},
    report::AcceptanceReport,
    step::AcceptanceStep,
};

/// A figure of two reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedFigure {
    /// The step.
    pub step: AcceptanceStep,
    /// The node, link or layout.
    pub subject: String,
    /// What was measured.
    pub figure: String,
    /// The unit.
    pub unit: &'static str,
    /// Of the first report.
    pub first: Option<f64>,
    /// Of the second report.
    pub second: Option<f64>,
    /// Second / first.
    pub ratio: Option<f64>,
    /// The verdicts.
    pub verdicts: [Verdict; 2],
}

/// The figures that at least one of the reports has, in the order of the first one.
pub fn compare(first: &AcceptanceReport, second: &AcceptanceReport) -> Vec<ComparedFigure> {
    let mut theirs: Vec<Option<JudgedLine>> = judge(second).into_iter().map(Some).collect();
    let places: HashMap<(AcceptanceStep, String, String), usize> = theirs.iter().flatten().map(key).zip(0..).collect();
    let mut rows = Vec::new();
    for line in judge(first) {
        let other = places.get(&key(&line)).and_then(|place| theirs[*place].take());
        rows.push(compared(Some(line), other));
    }
    rows.extend(theirs.into_iter().map(|line| compared(None, line)));
    rows.into_iter().flatten().filter(|row| row.first.is_some() || row.second.is_some()).collect()
}

fn key(line: &JudgedLine) -> (AcceptanceStep, String, String) {
    (line.step, line.subject.clone(), line.figure.clone())
}

fn compared(first: Option<JudgedLine>, second: Option<JudgedLine>) -> Option<ComparedFigure> {
    let values = [&first, &second].map(|line| line.as_ref().and_then(|line| line.value));
    let verdicts = [&first, &second].map(|line| line.as_ref().map_or(Verdict::NotMeasured, |line| line.verdict));
    let line = first.or(second)?;
    let [one, other] = values;
    let of = one.zip(other).filter(|(one, _)| *one != 0.0).map(|(one, other)| ratio(other, one));
    let JudgedLine { step, subject, figure, unit, .. } = line;
    Some(ComparedFigure { step, subject, figure, unit, first: one, second: other, ratio: of, verdicts })
}

/// The comparison as a Markdown table.
pub fn lines(rows: &[ComparedFigure]) -> Vec<String> {
    let head = ["step", "subject", "figure", "first", "second", "ratio", "verdicts"].map(str::to_owned);
    let cells = rows.iter().map(|row| {
        let of = |value: Option<f64>| value.map_or("-".to_owned(), |value| number(value, row.unit));
        let ratio = row.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        let verdicts = row.verdicts.map(Verdict::word).join(" / ");
        let (subject, figure) = (row.subject.clone(), row.figure.clone());
        [row.step.name().to_owned(), subject, figure, of(row.first), of(row.second), ratio, verdicts]
    });
    table(&head, &cells.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::{
        super::{LinkFacts, report::StepOutcome},
        *,
    };

    fn report(rates: &[(&str, f64)]) -> AcceptanceReport {
        let mut report = AcceptanceReport::new("m.gguf", vec!["pi1".into(), "pi2".into()], 0);
        let links = rates.iter().map(|(to, rate)| LinkFacts {
            from: "pi1".into(),
            to: (*to).into(),
            mbit_per_second: *rate,
            round_trip_us: 200.0,
            ..LinkFacts::default()
        });
        report.steps.links = StepOutcome::new(1.0, Ok(links.collect()));
        report
    }

    #[test]
    fn figures_of_both_reports_are_paired_and_the_rest_is_kept() {
        let rows = compare(&report(&[("pi2", 900.0), ("pi3", 500.0)]), &report(&[("pi2", 450.0), ("pi4", 800.0)]));
        let of = |to: &str| {
            let row = rows.iter().find(|row| row.subject.ends_with(to) && row.figure == "bandwidth");
            row.map(|row| (row.first, row.second, row.ratio)).expect("a row")
        };
        assert_eq!(of("pi2"), (Some(900.0), Some(450.0), Some(0.5)));
        assert_eq!(of("pi3"), (Some(500.0), None, None));
        assert_eq!(of("pi4"), (None, Some(800.0), None));
        let text = lines(&rows).join("\n");
        assert!(text.contains("| links | pi1 > pi2 | bandwidth | 900 Mb/s | 450 Mb/s | 0.50 | - / - |"), "{text}");
    }
}
