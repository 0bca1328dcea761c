//! The report for people, as Markdown.
use std::collections::BTreeSet;

use common::{calendar, text::is_unsafe, units::Bytes};

use super::{
    LoadReading, MachineFacts,
    judge::{JudgedLine, Tally, judge},
    report::AcceptanceReport,
    step::AcceptanceStep,
};
use crate::operator::transfer::duration;

/// The report.
pub fn markdown(report: &AcceptanceReport) -> String {
    let lines = judge(report);
    let mut text = vec!["# Acceptance report of a Bramble cluster".to_owned(), String::new()];
    text.extend(summary(report, &lines));
    text.extend(machines(report));
    for step in AcceptanceStep::ALL {
        let of_step: Vec<&JudgedLine> = lines.iter().filter(|line| line.step == step).collect();
        if of_step.is_empty() {
            continue;
        }
        let deed = step.deed();
        text.extend([format!("## {}: {deed}", step.name()), String::new()]);
        text.extend(figures(&of_step));
        text.push(String::new());
    }
    text.extend(course(report));
    text.extend(answers(report));
    text.join("\n")
}

fn summary(report: &AcceptanceReport, lines: &[JudgedLine]) -> Vec<String> {
    let Tally { pass, miss, not_measured } = Tally::of(lines);
    let seconds: f64 = AcceptanceStep::ALL.iter().map(|step| report.seconds(*step)).sum();
    let not_run: Vec<&str> = report.not_run().into_iter().map(AcceptanceStep::name).collect();
    let not_run = if not_run.is_empty() { "none".to_owned() } else { not_run.join(", ") };
    vec![
        format!("- model: {}", cell(&report.model)),
        format!("- nodes: {} ({})", report.nodes.len(), cell(&report.nodes.join(", "))),
        format!("- date: {} (UTC)", date(report.unix_ms)),
        format!("- console: {}", cell(&report.console)),
        format!("- duration: {}", duration(seconds)),
        format!("- result: {pass} PASS, {miss} MISS, {not_measured} NOT MEASURED"),
        format!("- steps that were not run: {not_run}"),
        String::new(),
        "Predictions are those of `console topology plan` for the same nodes. A figure without a goal, or without the \
         prediction that its goal refers to, has the verdict `-`."
            .to_owned(),
        String::new(),
    ]
}

fn machines(report: &AcceptanceReport) -> Vec<String> {
    let Some(machines) = &report.steps.machines.found else { return Vec::new() };
    let head = ["node", "machine", "kernel", "cores", "page", "memory", "kernels", "link", "daemon"].map(str::to_owned);
    let rows: Vec<[String; 9]> = machines.iter().map(machine).collect();
    let mut lines = vec!["## The machines".to_owned(), String::new()];
    lines.extend(table(&head, &rows));
    let numbers: BTreeSet<usize> = machines.iter().map(|machine| machine.machine).collect();
    if numbers.len() < machines.len() {
        lines.extend([
            String::new(),
            "Nodes share a machine: predictions for separate machines do not apply.".to_owned(),
        ]);
    }
    lines.push(String::new());
    lines
}

fn machine(machine: &MachineFacts) -> [String; 9] {
    let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".into());
    [
        machine.node.clone(),
        or(&machine.model),
        or(&machine.kernel),
        machine.cores.to_string(),
        machine.page_bytes.map_or("unknown".to_owned(), |bytes| format!("{} KiB", bytes >> 10)),
        machine.memory_bytes.map_or("unknown".to_owned(), |bytes| Bytes(bytes).to_string()),
        machine.kernels.clone(),
        machine.link_mbit.map_or("unknown".to_owned(), |mbit| format!("{mbit} Mb/s")),
        machine.build.clone(),
    ]
}

fn figures(lines: &[&JudgedLine]) -> Vec<String> {
    let head = ["subject", "figure", "measured", "predicted", "ratio", "goal", "verdict", "note"].map(str::to_owned);
    let rows = lines.iter().map(|line| {
        let of = |value: Option<f64>| value.map_or("-".to_owned(), |value| number(value, line.unit));
        let ratio = line.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        let (goal, note) = (line.goal.clone().unwrap_or("-".into()), line.note.clone().unwrap_or_default());
        let (subject, figure) = (line.subject.clone(), line.figure.clone());
        [subject, figure, of(line.value), of(line.predicted), ratio, goal, line.verdict.word().to_owned(), note]
    });
    table(&head, &rows.collect::<Vec<_>>())
}

/// The course of temperature, clock and power, at most ten readings of each node.
fn course(report: &AcceptanceReport) -> Vec<String> {
    let Some(loads) = report.steps.load.found.as_ref().filter(|loads| !loads.is_empty()) else { return Vec::new() };
    let mut lines = vec!["## Course of the load".to_owned(), String::new()];
    let head = ["node", "second", "°C", "MHz", "throttle bits", "W"].map(str::to_owned);
    let mut rows = Vec::new();
    for load in loads {
        let stride = load.during.len().div_ceil(8).max(1);
        let during = load.during.iter().step_by(stride);
        for reading in std::iter::once(&load.before).chain(during).chain([&load.after]) {
            rows.push(reading_row(&load.node, reading));
        }
    }
    lines.extend(table(&head, &rows));
    lines.push(String::new());
    lines
}

fn reading_row(node: &str, reading: &LoadReading) -> [String; 6] {
    fn or<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
        value.map_or("-".to_owned(), text)
    }
    [
        node.to_owned(),
        format!("{:.0}", reading.second),
        or(reading.celsius, |celsius| format!("{celsius:.1}")),
        or(reading.mhz, |mhz| mhz.to_string()),
        or(reading.throttle_bits, |bits| format!("{bits:#x}")),
        or(reading.watts, |watts| format!("{watts:.2}")),
    ]
}

/// The tokens of the answers, so that others can compare theirs.
fn answers(report: &AcceptanceReport) -> Vec<String> {
    let steps = [AcceptanceStep::Single, AcceptanceStep::Pair, AcceptanceStep::All];
    let layouts: Vec<_> = steps.into_iter().filter_map(|step| report.layout(step)).collect();
    if layouts.is_empty() {
        return Vec::new();
    }
    let mut lines = vec!["## Tokens of the answers".to_owned(), String::new()];
    let llama = report.steps.llama.found.as_ref();
    let all = layouts
        .iter()
        .flat_map(|layout| layout.answers.iter().map(|answer| (layout.topology.as_str(), answer)))
        .chain(llama.into_iter().flat_map(|llama| llama.answers.iter().map(|answer| ("llama.cpp", answer))));
    for (by, answer) in all {
        let ids: Vec<String> = answer.ids.iter().map(u32::to_string).collect();
        lines.push(format!("- {} by {}: {}", cell(&answer.prompt), cell(by), ids.join(" ")));
    }
    lines.push(String::new());
    lines
}

/// A Markdown table.
pub(super) fn table<const COLUMNS: usize>(head: &[String; COLUMNS], rows: &[[String; COLUMNS]]) -> Vec<String> {
    let row = |cells: &[String; COLUMNS]| {
        let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
        format!("| {} |", cells.join(" | "))
    };
    let mut lines = vec![row(head), format!("|{}", "---|".repeat(COLUMNS))];
    lines.extend(rows.iter().map(row));
    lines
}

/// Text of a node or a file that cannot break a table or become markup.
fn cell(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            // Not the beginning of a tag.
            '<' if !characters.peek().is_some_and(|next| next.is_alphabetic() || matches!(*next, '/' | '!' | '?')) => {
                clean.push(character);
            }
            '|' | '<' | '`' | '[' | ']' | '\\' => {
                clean.push('\\');
                clean.push(character);
            }
            _ if is_unsafe(character) => clean.push('\u{fffd}'),
            _ => clean.push(character),
        }
    }
    clean
}

/// A figure with at most two decimals, the fewer the larger it is, and its unit.
pub(super) fn number(value: f64, unit: &str) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let is_whole = unit.is_empty() && value.fract() == 0.0;
    let text = if is_whole { format!("{value:.0}") } else { format!("{value:.digits$}") };
    if unit.is_empty() { text } else { format!("{text} {unit}") }
}

/// `2026-11-28 02:45`, from milliseconds since 1970.
fn date(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (year, month, day) = calendar::civil(seconds / calendar::DAY_SECONDS);
    let time = calendar::time_of_day(seconds);
    format!("{year:04}-{month:02}-{day:02} {}", time.get(..5).unwrap_or(&time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_nodes_cannot_break_tables() {
        assert_eq!(cell("a|b<c>\n`x` <= 2"), "a\\|b\\<c>\u{fffd}\\`x\\` <= 2");
        let rows = table(&["a".into(), "b".into()], &[["1".into(), "x|y".into()]]);
        assert_eq!(rows, ["| a | b |", "|---|---|", "| 1 | x\\|y |"]);
    }

    #[test]
    fn figures_have_two_decimals_at_most() {
        let numbers = [(0.0, "s"), (0.034, ""), (3.0, ""), (12.34, "GB/s"), (941.2, "Mb/s")];
        let texts = numbers.map(|(value, unit)| number(value, unit));
        assert_eq!(texts, ["0 s", "0.03", "3", "12.3 GB/s", "941 Mb/s"]);
        assert_eq!(date(1_795_833_900_000), "2026-11-28 02:45");
    }
}
