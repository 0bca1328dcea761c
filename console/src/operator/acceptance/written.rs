//! The report as JSON with its verdicts, as its file and `--json` have it.
use serde_json::{Value, json};

use super::{
    judge::{Tally, judge},
    report::AcceptanceReport,
};

/// The object. Reading ignores the verdicts: they follow from the rest.
pub fn object(report: &AcceptanceReport) -> Value {
    let lines = judge(report);
    let Tally { pass, miss, not_measured } = Tally::of(&lines);
    let mut object = json!(report);
    object["pass"] = json!(pass);
    object["miss"] = json!(miss);
    object["not_measured"] = json!(not_measured);
    object["not_run"] = json!(report.not_run());
    object["lines"] = json!(lines);
    object
}
