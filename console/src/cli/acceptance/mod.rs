//! `console acceptance`: measures a cluster of real machines and writes a report to share. The topology that runs is
//! replaced during the test and restored afterwards. Finished steps are kept in the report's file and not repeated.
mod answers;
mod bed;
mod earlier;
mod file;
mod links;
mod llama;
mod load;
mod nodes;
mod options;
mod predict;
mod prepare;
mod recovery;
mod steps;

use std::path::Path;

use serde_json::json;

use self::{
    file::{ReportFiles, read},
    prepare::{Prepared, prepare},
};
use super::{
    Failure,
    shared::{interrupts::Interrupts, output},
};
use crate::operator::acceptance::{
    AcceptanceReport,
    compare::{compare, lines},
    judge::{Tally, judge},
    markdown::markdown,
    written::object,
};

pub(crate) use options::Acceptance;

/// Exit code if a goal was missed: that of warnings.
const MISSED: u8 = 6;
/// Exit code if a step of this run failed: the report lacks figures that were asked for.
const FAILED: u8 = 1;

/// Runs the command.
pub(crate) async fn run(options: Acceptance) -> Result<u8, Failure> {
    if let Some(path) = &options.show {
        let report = read(path)?;
        return Ok(show(&report, options.json));
    }
    if let [first, second] = options.compare.as_slice() {
        return show_both(first, second, options.json);
    }
    options.consent.check()?;
    let mut interrupts = Interrupts::listen()?;
    let files = ReportFiles::new(&options.out);
    let Some(Prepared { mut bed, steps }) = interrupts.end(Box::pin(prepare(&options, &files))).await? else {
        return Ok(0);
    };
    let tested = interrupts.end(Box::pin(steps::run(&mut bed, &options, &steps))).await;
    // Also after a failure or a signal. A second signal ends the command.
    let restored = interrupts.end(Box::pin(bed.restore())).await;
    if let (Err(failure), Some(left)) = (&restored, earlier::words(bed.replaced())) {
        output::note(&output::clean(&format!("not restored: {left} ({failure})")));
        output::note("next: start what is missing and run the command again; it restores them at its end");
    }
    let report = bed.finish();
    let failed = tested?;
    restored?;
    output::note(&output::clean(&format!(
        "the report is in {} and {}",
        files.markdown().display(),
        files.json().display()
    )));
    let code = show(&report, options.json);
    if failed.is_empty() {
        return Ok(code);
    }
    let names: Vec<&str> = failed.iter().map(|step| step.name()).collect();
    output::note(&format!("failed: {}; next: run the command again, it repeats these steps", names.join(", ")));
    Ok(FAILED)
}

/// Prints a report, and returns the exit code.
fn show(report: &AcceptanceReport, json: bool) -> u8 {
    if json {
        output::line(&object(report).to_string());
    } else {
        output::line(&output::clean(&markdown(report)));
    }
    if Tally::of(&judge(report)).miss > 0 { MISSED } else { 0 }
}

fn show_both(first: &Path, second: &Path, json: bool) -> Result<u8, Failure> {
    let (one, other) = (read(first)?, read(second)?);
    let rows = compare(&one, &other);
    if json {
        output::line(&json!({"models": [one.model, other.model], "figures": rows}).to_string());
    } else {
        output::line(&output::clean(&lines(&rows).join("\n")));
    }
    Ok(0)
}
