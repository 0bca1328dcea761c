//! The report about a matrix: three graphs, the stages of the time to first token, and its bottleneck in a sentence.
//! Pure.
use std::fmt::Write;

use super::{
    cell::{Cell, Experiment, Phase},
    run::{Measured, Metric, Run},
    sample::Stages,
    stats::median,
    svg::{Chart, Point, Series, escaped, number},
};

/// The three graphs, each with the name of its file.
pub fn charts(run: &Run) -> [(&'static str, Chart); 3] {
    let least = run.configuration.plan.concurrencies.iter().min().copied().unwrap_or(1);
    let most = run.configuration.plan.concurrencies.iter().max().copied().unwrap_or(1);
    let of = |experiment, concurrency| {
        move |cell: &Cell| {
            cell.experiment == experiment && cell.phase == Phase::Prefill && cell.concurrency == concurrency
        }
    };
    let input = |cell: &Cell| format!("in {}", cell.input);
    let layout = |cell: &Cell| cell.layout.clone();
    let tp = chart(run, Metric::Ttft, &of(Experiment::Tp, least), &layout, &input);
    let replicas = chart(run, Metric::Ttft, &of(Experiment::Replicas, most), &layout, &input);
    let (shortest, longest) =
        (run.configuration.plan.inputs.iter().min().copied(), run.configuration.plan.outputs.iter().max().copied());
    let tokens = chart(
        run,
        Metric::Throughput,
        &|cell| cell.phase == Phase::Decode && Some(cell.input) == shortest && Some(cell.output) == longest,
        &|cell| cell.concurrency.to_string(),
        &layout,
    );
    let title = |title: String, x: &str, y: &str, chart: Chart| Chart { title, x: x.into(), y: y.into(), ..chart };
    [
        (
            "ttft-tp",
            title(format!("TTFT p95 by tensor-parallel ranks, concurrency {least}"), "layout", "TTFT p95, ms", tp),
        ),
        (
            "ttft-replicas",
            title(format!("TTFT p95 by replicas, concurrency {most}"), "layout", "TTFT p95, ms", replicas),
        ),
        ("tokens", title("Tokens per second by concurrency".into(), "concurrent requests", "tokens/s", tokens)),
    ]
}

fn chart(
    run: &Run,
    metric: Metric,
    is_part: &dyn Fn(&Cell) -> bool,
    category: &dyn Fn(&Cell) -> String,
    series: &dyn Fn(&Cell) -> String,
) -> Chart {
    let mut chart =
        Chart { title: String::new(), x: String::new(), y: String::new(), categories: Vec::new(), series: Vec::new() };
    // If a layout is in two experiments, the first one is used.
    let mut seen = Vec::new();
    for measured in run.cells.iter().filter(|measured| is_part(&measured.cell)) {
        let (values, place) = (measured.values(metric), (category(&measured.cell), series(&measured.cell)));
        let Some(value) = median(&values) else { continue };
        if seen.contains(&place) {
            continue;
        }
        seen.push(place.clone());
        let at = index_of(&mut chart.categories, &place.0);
        let names = chart.series.iter().position(|series| series.name == place.1);
        let range = values.iter().fold((value, value), |(low, high), value| (low.min(*value), high.max(*value)));
        let index = names.unwrap_or_else(|| {
            chart.series.push(Series { name: place.1, points: Vec::new() });
            chart.series.len() - 1
        });
        chart.series[index].points.push(Point { at, value, range });
    }
    chart.series.iter_mut().for_each(|series| series.points.sort_by_key(|point| point.at));
    chart
}

fn index_of(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|other| other == name).unwrap_or_else(|| {
        names.push(name.into());
        names.len() - 1
    })
}

/// The stages of the time to first token, of one cell per layout: the one with the longest prompts, and among those the
/// lowest concurrency.
fn stages(run: &Run) -> Vec<(&Measured, Stages)> {
    let mut rows: Vec<(&Measured, Stages)> = Vec::new();
    for measured in run.cells.iter().filter(|measured| measured.cell.phase == Phase::Prefill) {
        let found: Vec<Stages> = measured.repeats.iter().filter_map(|summary| summary.stages).collect();
        let Some(stages) = Stages::median(&found) else { continue };
        let rank = |cell: &Cell| (cell.input, std::cmp::Reverse(cell.concurrency));
        match rows.iter_mut().find(|(row, _)| row.cell.layout == measured.cell.layout) {
            Some(row) if rank(&measured.cell) > rank(&row.0.cell) => *row = (measured, stages),
            Some(_) => {}
            None => rows.push((measured, stages)),
        }
    }
    rows
}

/// Sentences about the bottleneck of the time to first token, the effect of more ranks on it, and the concurrency above
/// which throughput hardly increases.
pub fn bottleneck(run: &Run) -> String {
    let mut sentences = Vec::new();
    let rows = stages(run);
    if let Some((measured, stages)) =
        rows.iter().max_by_key(|(measured, _)| measured.cell.layout().map_or(0, |layout| layout.node_count()))
    {
        let all: f64 = stages.named().iter().map(|(_, time)| time).sum();
        if let Some((name, time)) =
            stages.named().into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).filter(|_| all > 0.0)
        {
            let share = 100.0 * time / all;
            sentences.push(format!(
                "With {}, the time to first token is limited by {} ({share:.0} %).",
                measured.cell.layout,
                meaning(name)
            ));
        }
    }
    let [(_, tp), _, (_, tokens)] = charts(run);
    if let Some(series) =
        tp.series.iter().max_by_key(|series| series.points.len()).filter(|series| series.points.len() > 1)
    {
        let best = series.points.iter().min_by(|one, other| one.value.total_cmp(&other.value));
        if let (Some(best), Some(first)) = (best, series.points.first()) {
            let name = &tp.categories[best.at];
            let gain = first.value / best.value;
            sentences.push(if best.at == first.at {
                format!("More ranks than {name} do not make it shorter ({}).", series.name)
            } else {
                format!(
                    "It is shortest with {name} ({}), by a factor of {gain:.2} compared with {}.",
                    series.name, tp.categories[first.at]
                )
            });
        }
    }
    if let Some(series) =
        tokens.series.iter().max_by_key(|series| series.points.len()).filter(|series| series.points.len() > 1)
    {
        let pays = series.points.windows(2).take_while(|two| two[1].value > 1.1 * two[0].value).last();
        let last = pays.map_or(&series.points[0], |two| &two[1]);
        sentences.push(format!(
            "{} decodes {} tokens/s with {} concurrent requests{}.",
            series.name,
            number(last.value),
            tokens.categories[last.at],
            if Some(last.at) == series.points.last().map(|point| point.at) {
                ""
            } else {
                ", and gains less than 10 % from more"
            }
        ));
    }
    if sentences.is_empty() {
        "Too few cells were measured to find the bottleneck.".into()
    } else {
        sentences.join(" ")
    }
}

fn meaning(stage: &str) -> &'static str {
    match stage {
        "queue" => "queueing",
        "compute" => "computing",
        "threads" => "threads of a node waiting for each other",
        "wait" => "waiting for the slowest rank",
        "wire" => "transfers between ranks",
        "bubble" => "pipeline stages waiting for each other",
        "sampling" => "sampling the first token",
        "flush" => "writing the first token to the socket",
        _ => "work outside the steps of the ranks",
    }
}

fn facts(run: &Run) -> Vec<String> {
    let (configuration, machine) = (&run.configuration, &run.machine);
    let mut facts = vec![
        format!(
            "model {}; {} repeats; requests to {}; {}",
            configuration.model, configuration.repeats, configuration.door, configuration.settings
        ),
        format!(
            "console {} on {} ({}, {} cores); commit {}",
            run.build,
            machine.host,
            machine.cpu,
            machine.cores,
            run.commit.as_deref().unwrap_or("unknown")
        ),
    ];
    facts.extend(
        run.nodes
            .iter()
            .map(|node| format!("node {} at {}: brambled {}, {}", node.name, node.address, node.build, node.kernels)),
    );
    let remaining = run.remaining().len();
    if remaining > 0 {
        facts.push(format!("{remaining} cells are not measured yet"));
    }
    facts
}

/// The tables as rows of cells; the first row is the head.
fn tables(run: &Run) -> [(&'static str, Vec<Vec<String>>); 2] {
    let mut by_stage = vec![["cell", "TTFT p50, ms"].map(str::to_owned).to_vec()];
    by_stage[0].extend(Stages::default().named().map(|(name, _)| name.to_owned()));
    for (measured, stages) in stages(run) {
        let ttft = median(&measured.repeats.iter().map(|summary| summary.ttft_ms.p50).collect::<Vec<_>>());
        let mut row = vec![measured.cell.to_string(), number(ttft.unwrap_or(0.0))];
        row.extend(stages.named().map(|(_, time)| number(time)));
        by_stage.push(row);
    }
    let head = ["cell", "TTFT p50, ms", "TTFT p95, ms", "spread", "TPOT p95, ms", "tokens/s", "note"];
    let mut all = vec![head.map(str::to_owned).to_vec()];
    for measured in &run.cells {
        let figure = |metric| measured.median(metric).map_or("-".into(), number);
        let p50: Vec<f64> = measured.repeats.iter().map(|summary| summary.ttft_ms.p50).collect();
        let note = match (&measured.skipped, measured.failed()) {
            (Some(short), _) => short.to_string(),
            (None, failed) if failed > 0 => format!("{failed} requests failed"),
            (None, _) if measured.is_unstable() => "unstable".into(),
            _ => String::new(),
        };
        let spread = format!("{:.0} %", 100.0 * measured.ttft_spread());
        let p50 = median(&p50).map_or("-".into(), number);
        all.push(vec![
            measured.cell.to_string(),
            p50,
            figure(Metric::Ttft),
            spread,
            figure(Metric::Tpot),
            figure(Metric::Throughput),
            note,
        ]);
    }
    [("Time to first token by stage (medians, ms)", by_stage), ("All cells", all)]
}

/// The report as a single HTML file, including the graphs.
pub fn html(run: &Run) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>bramble: measurement matrix</title>\n<style>body{font-family:\
         sans-serif;max-width:60em;margin:2em auto;padding:0 1em}table{border-collapse:collapse}td,th{padding:.2em .6em;text-align:right;\
         border-bottom:1px solid #ddd}td:first-child,th:first-child,td:last-child{text-align:left}svg{max-width:100%;height:auto}</style>\n\
         <h1>Measurement matrix</h1>\n",
    );
    let mut add = |text: &str| page.push_str(text);
    add(&format!("<p><strong>{}</strong></p>\n<ul>\n", escaped(&bottleneck(run))));
    facts(run).iter().for_each(|fact| add(&format!("<li>{}</li>\n", escaped(fact))));
    add("</ul>\n");
    charts(run).iter().for_each(|(_, chart)| add(&format!("<p>{}</p>\n", chart.svg())));
    for (title, rows) in tables(run) {
        add(&format!("<h2>{}</h2>\n<table>\n", escaped(title)));
        for (index, row) in rows.iter().enumerate() {
            let kind = if index == 0 { "th" } else { "td" };
            let cells: String = row.iter().map(|cell| format!("<{kind}>{}</{kind}>", escaped(cell))).collect();
            add(&format!("<tr>{cells}</tr>\n"));
        }
        add("</table>\n");
    }
    page + "</html>\n"
}

/// The report as Markdown; its graphs are separate files `STEM-NAME.svg` in the same folder.
pub fn markdown(run: &Run, stem: &str) -> String {
    let mut page = format!("# Measurement matrix\n\n**{}**\n\n", bottleneck(run));
    facts(run).iter().for_each(|fact| page.push_str(&format!("- {fact}\n")));
    for (name, chart) in charts(run) {
        // Writing into a string cannot fail.
        let _ = write!(page, "\n![{}]({stem}-{name}.svg)\n", chart.title);
    }
    for (title, rows) in tables(run) {
        let _ = write!(page, "\n## {title}\n\n");
        for (index, row) in rows.iter().enumerate() {
            let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
            let _ = writeln!(page, "| {} |", cells.join(" | "));
            if index == 0 {
                let _ = writeln!(page, "|{}", " --- |".repeat(row.len()));
            }
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::run::tests::run;

    /// Two ranks are 1.6 times as fast as one; four concurrent requests take twice as long as one.
    fn figures(cell: &Cell, repeat: u32) -> f64 {
        let ranks = if cell.layout.ends_with("tp2") { 1.6 } else { 1.0 };
        let together = if cell.phase == Phase::Prefill && cell.concurrency == 4 { 2.0 } else { 1.0 };
        (100.0 + f64::from(repeat)) * together / ranks
    }

    #[test]
    fn graphs_never_mix_experiments() {
        let [(_, tp), (_, replicas), (_, tokens)] = charts(&run(figures));
        assert_eq!((tp.categories, tp.series.len()), (vec!["tp1".to_owned(), "tp2".to_owned()], 1));
        assert_eq!(tp.series[0].points.iter().map(|point| point.value).collect::<Vec<_>>(), [101.0, 101.0 / 1.6]);
        assert_eq!(tp.series[0].points[0].range, (100.0, 102.0));
        assert_eq!(replicas.categories, ["tp1", "dp2-tp1"]);
        assert_eq!(replicas.series[0].points[0].value, 202.0);
        assert_eq!(tokens.categories, ["1", "4"]);
        assert_eq!(
            tokens.series.iter().map(|series| series.name.as_str()).collect::<Vec<_>>(),
            ["tp1", "tp2", "dp2-tp1"]
        );
    }

    #[test]
    fn summary_names_stage_layout_and_concurrency() {
        let sentence = bottleneck(&run(figures));
        assert!(sentence.contains("limited by computing (70 %)"), "{sentence}");
        assert!(sentence.contains("shortest with tp2 (in 64), by a factor of 1.60"), "{sentence}");
        assert!(sentence.contains("with 1 concurrent requests, and gains less than 10 %"), "{sentence}");
        let mut empty = run(figures);
        empty.cells.clear();
        assert!(bottleneck(&empty).contains("Too few cells"));
    }

    #[test]
    fn report_has_three_graphs_and_all_cells_and_marks_unstable_ones() {
        let noisy = run(|cell, repeat| figures(cell, if cell.layout == "tp2" { 20 * repeat } else { repeat }));
        let page = html(&noisy);
        assert_eq!((page.matches("<svg").count(), page.matches("<table>").count()), (3, 2));
        assert_eq!(page.matches(">unstable<").count(), 4, "prefill and decode of tp2 with concurrency 1 and 4");
        assert!(page.contains("m.gguf") && page.contains("bench, &quot;1&quot;"));
        noisy.cells.iter().for_each(|measured| assert!(page.contains(&measured.cell.to_string())));
        let text = markdown(&noisy, "out");
        assert_eq!(text.matches("![").count(), 3);
        assert!(text.contains("(out-ttft-tp.svg)"));
    }
}
