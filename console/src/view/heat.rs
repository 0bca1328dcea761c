//! Heat map of the all-reduces of every layer and rank: a bar with its time where there is room, otherwise a digit, so
//! that it is readable without colour; to its right the figures of the selected rank, below it the last minutes.
use std::time::Duration;

use common::units::Nanoseconds;
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use telemetry::LayerSync;

use crate::{
    state::{
        Panel, State,
        sync::{Metric, SyncPicture},
    },
    view::{
        format::{fit, fit_right, tight_time},
        theme::Theme,
        widgets::{
            graph::EIGHTHS,
            panel::{lines, panel},
        },
    },
};

/// Width of `12 attn`, in cells.
const LAYER: usize = 8;
/// Width of a figure, and of the straggler's name, in cells.
const TIME: usize = 6;
const WAITED: usize = 4;
/// Least width of a rank's cell that has a bar and a time, its greatest width, and the width of the selected rank's name.
const CELL_BAR: usize = 11;
const CELL_MAX: usize = 24;
const OWN_NAME: usize = 12;
/// Fillings of the last cell of a bar in eighths.
const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
/// The shortest time with digit 1; each further digit doubles it.
const SCALE_NS: u64 = 32_000;
/// Share of the peers' time that fills a bar of the strip.
const FULL: f64 = 0.4;

/// The digit of a time.
fn digit(time: Nanoseconds) -> char {
    let doublings = (time.0 / SCALE_NS).checked_ilog2().map_or(0, |power| power + 1);
    char::from_digit(doublings.min(9), 10).expect("at most 9")
}

/// The colour of a time: usual, at least twice, or at least four times the usual one.
pub(super) fn style(theme: &Theme, time: Nanoseconds, usual: Nanoseconds) -> Style {
    match time.0 {
        time if usual.0 > 0 && time >= 4 * usual.0 => theme.bad,
        time if usual.0 > 0 && time >= 2 * usual.0 => theme.warn,
        0 => theme.dim,
        _ => theme.plain,
    }
}

/// Division of the width: cells per rank, visible ranks, figures next to them.
struct Columns {
    cell: usize,
    ranks: usize,
    numbers: Vec<Metric>,
    with_waited: bool,
}

impl Columns {
    fn of(width: usize, ranks: usize) -> Self {
        let room = width.saturating_sub(LAYER);
        // Two digits and a space if they fit.
        let cell = if 3 * ranks <= room { 3 } else { 2 };
        let shown = ranks.min(room / cell);
        let left = room.saturating_sub(shown * cell + 2);
        let numbers = match left / TIME {
            6.. => Metric::ALL.to_vec(),
            4 | 5 => vec![Metric::P95, Metric::Own, Metric::Wait, Metric::Wire],
            3 => vec![Metric::P95, Metric::Wait, Metric::Wire],
            _ => Vec::new(),
        };
        let with_waited = !numbers.is_empty() && left >= numbers.len() * TIME + WAITED;
        let beside = numbers.len() * TIME + if with_waited { WAITED } else { 0 } + OWN_NAME;
        let wide = cell + left.saturating_sub(beside) / shown.max(1);
        let cell = if shown == ranks && wide >= CELL_BAR { wide.min(CELL_MAX) } else { cell };
        Self { cell, ranks: shown, numbers, with_waited }
    }

    /// Whether a rank's cell has a time and a bar.
    fn has_bars(&self) -> bool {
        self.cell >= CELL_BAR
    }
}

/// Renders the map; returns the total and the visible number of rows.
pub(super) fn draw(
    state: &State,
    theme: &Theme,
    frame: &mut Frame,
    area: Rect,
    picture: &SyncPicture,
) -> (usize, usize) {
    let metric = state.tables.sync_metric;
    // A rule, a heading, the scale and the time strip.
    let height = usize::from(area.height).saturating_sub(4);
    let rows = 2 * picture.layer_count();
    let first = state.screen.scroll.sync.min(rows.saturating_sub(height));
    let columns = Columns::of(usize::from(area.width), picture.ranks.len());
    let title = format!("All-reduces: {}", meaning(metric));
    let remark = remark(state, first, height, rows, picture.ranks.len() - columns.ranks);
    let is_past = state.cluster.sync.shown().is_some();
    let remark = Span::styled(remark, if is_past { theme.warn } else { theme.dim });
    let area = panel(frame, theme, area, state.screen.focus.panel == Panel::Layers, &title, remark);
    if rows == 0 {
        let hint = match picture.boundaries.is_empty() {
            true => " Latencies appear here while text is generated on more than one rank.",
            false => " A stage of one rank has no all-reduces.",
        };
        lines(frame, area, [Line::styled(hint, theme.dim)]);
        return (0, height);
    }
    let usual = picture.usual(metric);
    let selected = picture.ranks.iter().position(|(row, _)| row.node == Some(state.screen.selected)).unwrap_or(0);
    let body =
        (first..rows.min(first + height)).map(|row| line(theme, picture, &columns, row, metric, usual, selected));
    let heading = heading(theme, picture, &columns, selected, metric);
    lines(frame, area, std::iter::once(heading).chain(body));
    let bottom = |above: u16| Rect { y: area.bottom().saturating_sub(above), height: 1, ..area };
    if area.height >= 4 {
        frame.render_widget(scale(theme, usual, columns.has_bars()), bottom(2));
        frame.render_widget(strip(state, theme, usize::from(area.width)), bottom(1));
    }
    (rows, height)
}

fn meaning(metric: Metric) -> &'static str {
    match metric {
        Metric::P50 => "p50 of wait and wire",
        Metric::P95 => "p95 of wait and wire",
        Metric::P99 => "p99 of wait and wire",
        Metric::Own => "own computing",
        Metric::Wait => "waiting for others",
        Metric::Wire => "wire",
    }
}

fn ago(state: &State, picture: &SyncPicture) -> u64 {
    state.now.saturating_sub(picture.at).as_secs()
}

fn remark(state: &State, first: usize, height: usize, rows: usize, hidden: usize) -> String {
    let mut parts = Vec::new();
    if hidden > 0 {
        parts.push(format!("{hidden} more ranks on a wider screen"));
    }
    if rows > height {
        parts.push(format!("{}–{} of {rows}", first + 1, (first + height).min(rows)));
    }
    match state.cluster.sync.shown() {
        Some(past) => parts.push(format!("t-{} s", ago(state, past))),
        None if rows > 0 => parts.push(if state.layers_move() { "live" } else { "as last seen" }.to_owned()),
        None => {}
    }
    parts.join(", ")
}

fn heading(theme: &Theme, picture: &SyncPicture, columns: &Columns, selected: usize, metric: Metric) -> Line<'static> {
    let late = picture.straggler.as_ref().map(|(place, _)| *place);
    let mut spans = vec![Span::styled(fit("layer", LAYER), theme.dim)];
    for (place, (row, name)) in picture.ranks.iter().take(columns.ranks).enumerate() {
        let style = match place {
            _ if place == selected => theme.accent,
            _ if late == Some(place) => theme.warn,
            _ => theme.dim,
        };
        let title = match columns.has_bars() {
            true => format!("{} {}", " ".repeat(TIME), fit(name, columns.cell - TIME - 1)),
            false => fit_right(&row.member.to_string(), columns.cell),
        };
        spans.push(Span::styled(title, style));
    }
    spans.push(Span::raw("  "));
    for number in &columns.numbers {
        let style = if *number == metric { theme.accent } else { theme.dim };
        spans.push(Span::styled(fit_right(number.title(), TIME), style));
    }
    if columns.with_waited {
        spans.push(Span::styled(fit(" for", WAITED), theme.dim));
    }
    let used: usize = spans.iter().map(ratatui::text::Span::width).sum();
    let name = picture.ranks.get(selected).map_or("", |(_, name)| name.as_str());
    if !columns.numbers.is_empty() {
        let room = 120_usize.saturating_sub(used + 2).min(24);
        spans.push(Span::styled(format!("  {}", fit(name, room)), theme.accent));
    }
    Line::from(spans)
}

fn line(
    theme: &Theme,
    picture: &SyncPicture,
    columns: &Columns,
    row: usize,
    metric: Metric,
    usual: Nanoseconds,
    selected: usize,
) -> Line<'static> {
    let kind = if row.is_multiple_of(2) { "attn" } else { "ffn" };
    let label = format!("{} {}", fit_right(&(row / 2).to_string(), 3), fit(kind, LAYER - 4));
    let mut spans = vec![Span::styled(label, theme.dim)];
    for rank in 0..columns.ranks {
        let time = picture.sync(rank, row).map(|sync| metric.of(sync));
        spans.push(match time {
            Some(time) if columns.has_bars() => Span::styled(bar(time, usual, columns.cell), style(theme, time, usual)),
            Some(time) => Span::styled(fit_right(&digit(time).to_string(), columns.cell), style(theme, time, usual)),
            None => Span::styled(fit_right("–", columns.cell), theme.dim),
        });
    }
    spans.push(Span::raw("  "));
    let own = picture.ranks.get(selected).map(|(row, _)| row.member);
    spans.extend(picture.sync(selected, row).into_iter().flat_map(|sync| numbers(theme, columns, sync, own)));
    Line::from(spans)
}

/// A time and a bar that is full at four times the usual one.
fn bar(time: Nanoseconds, usual: Nanoseconds, width: usize) -> String {
    let cells = width - TIME - 1;
    let share = common::latency::ratio(time.0 as f64, 4.0 * usual.0 as f64);
    let eighths = ((share * 8.0 * cells as f64).round() as usize).min(8 * cells);
    let bar = "█".repeat(eighths / 8) + PARTS[eighths % 8];
    format!("{} {}", fit_right(&tight_time(time), TIME), fit(&bar, cells))
}

/// The figures of the selected rank.
fn numbers(theme: &Theme, columns: &Columns, sync: &LayerSync, own: Option<usize>) -> Vec<Span<'static>> {
    let total = sync.compute.0 + sync.wait.0 + sync.wire.0;
    let waits = sync.wait.0 * 3 > total && Some(sync.slowest.index()) != own;
    let mut spans: Vec<Span> = columns
        .numbers
        .iter()
        .map(|metric: &Metric| {
            let style = if *metric == Metric::Wait && waits { theme.warn } else { theme.plain };
            Span::styled(fit_right(&tight_time(metric.of(sync)), TIME), style)
        })
        .collect();
    if columns.with_waited && waits {
        spans.push(Span::styled(fit(&format!(" r{}", sync.slowest), WAITED), theme.warn));
    }
    spans
}

/// The legend of bars or digits, and of colours.
fn scale(theme: &Theme, usual: Nanoseconds, has_bars: bool) -> Line<'static> {
    let median = tight_time(usual);
    let text = match has_bars {
        true => format!(" a full bar is 4 times the median of {median}; colours from "),
        false => {
            format!(" digit n: up to {} times 2^n; median {median}, colours from ", tight_time(Nanoseconds(SCALE_NS)))
        }
    };
    Line::from_iter([
        Span::styled(text, theme.dim),
        Span::styled("2 times", theme.warn),
        Span::styled(" and ", theme.dim),
        Span::styled("4 times", theme.bad),
        Span::styled(" of it on", theme.dim),
    ])
}

/// The last minutes: the share of its peers' time that the worst straggler took, with the selected snapshot marked.
fn strip(state: &State, theme: &Theme, width: usize) -> Line<'static> {
    let kept = state.cluster.sync.kept();
    let span = kept.front().map_or(Duration::ZERO, |oldest| state.now.saturating_sub(oldest.at));
    let left = format!(" t-{} s ", span.as_secs());
    let right = " now  < older  > newer  0 now";
    let room = width.saturating_sub(left.len() + right.len() + 1);
    let place = state.cluster.sync.place();
    // Show the newest snapshots, unless an older one is selected.
    let last = place.map_or(kept.len(), |place| (place + room / 2).clamp(room.min(kept.len()), kept.len()));
    let mut spans = vec![Span::styled(left, theme.dim)];
    for (index, picture) in kept.iter().enumerate().take(last).skip(last.saturating_sub(room)) {
        let height = (picture.lateness() / FULL * 8.0).round().clamp(0.0, 8.0) as usize;
        let style = if picture.straggler.is_some() { theme.warn } else { theme.ok };
        let style = if place == Some(index) { theme.accent } else { style };
        let glyph = if place == Some(index) { '◆' } else { EIGHTHS[height] };
        spans.push(Span::styled(glyph.to_string(), style));
    }
    spans.push(Span::styled(right, theme.dim));
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_digit_doubles_the_time() {
        let times_us = [0, 31, 32, 63, 64, 128, 256, 512, 1024, 2048, 4096, 8191, 8192, 1_000_000];
        let digits: String = times_us.iter().map(|us| digit(Nanoseconds(us * 1000))).collect();
        assert_eq!(digits, "00112345678899");
    }

    #[test]
    fn sixteen_ranks_fit_80_columns_and_few_leave_room_for_figures() {
        let columns = Columns::of(80, 16);
        assert_eq!((columns.ranks, columns.cell, columns.numbers.len()), (16, 3, 3));
        let columns = Columns::of(80, 4);
        assert_eq!((columns.ranks, columns.numbers.len(), columns.with_waited), (4, 6, true));
        assert_eq!([80, 120, 200, 300].map(|width| Columns::of(width, 4).cell), [3, 14, 24, 24]);
        assert_eq!(Columns::of(120, 16).cell, 3);
    }

    #[test]
    fn bar_is_full_at_four_times_the_usual_time() {
        let bars = [0, 1, 2, 4, 9].map(|times| bar(Nanoseconds(times * 100_000), Nanoseconds(100_000), 11));
        assert_eq!(bars, ["   0us     ", " 100us █   ", " 200us ██  ", " 400us ████", " 900us ████"]);
        assert!(Columns::of(60, 64).ranks < 64 && Columns::of(0, 4).ranks == 0);
    }
}
