//! Heat map of the all-reduces of every layer and rank: a bar with its time where there is room, otherwise a block of
//! colour, or a digit where there is none; to its right the figures of the selected rank.
use common::units::Nanoseconds;
use ratatui::{
    Frame,
    layout::Rect,
    style::{Modifier, Style},
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
        widgets::panel::{lines, panel},
    },
};

/// Width of `12 attn`, in cells.
const LAYER: usize = 8;
/// Width of a figure, and of the straggler's name, in cells.
const TIME: usize = 6;
const WAITED: usize = 4;
/// Least and greatest width of a rank's cell that has a bar and a time.
const CELL_BAR: usize = 11;
const CELL_MAX: usize = 60;
/// Fillings of the last cell of a bar in eighths.
const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
/// The shortest time with digit 1; each further digit doubles it.
const SCALE_NS: u64 = 32_000;
/// Blocks of a time up to the median, up to twice, and up to four times it, and beyond.
const SHADES: [&str; 4] = ["░", "▒", "▓", "█"];

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

/// As [`style`], for bars and blocks.
fn block_style(theme: &Theme, time: Nanoseconds, usual: Nanoseconds) -> Style {
    let style = style(theme, time, usual);
    if style == theme.plain { theme.ok } else { style }
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
        let beside = numbers.len() * TIME + if with_waited { WAITED } else { 0 };
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
    // A rule, a heading and the scale.
    let height = usize::from(area.height).saturating_sub(3);
    let rows = 2 * picture.layer_count();
    let first = state.screen.scroll.sync.min(rows.saturating_sub(height));
    let columns = Columns::of(usize::from(area.width), picture.ranks.len());
    let selected = picture.ranks.iter().position(|(row, _)| row.node == Some(state.screen.selected)).unwrap_or(0);
    let own = picture.ranks.get(selected).filter(|_| !columns.numbers.is_empty());
    let own = own.map_or_else(String::new, |(_, name)| format!(", all figures of {name} on the right"));
    let title = format!("All-reduces: {}{own}", meaning(metric));
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
    let body =
        (first..rows.min(first + height)).map(|row| line(theme, picture, &columns, row, metric, usual, selected));
    let heading = heading(theme, picture, &columns, selected, metric);
    lines(frame, area, std::iter::once(heading).chain(body));
    if area.height >= 3 {
        let below = Rect { y: area.bottom().saturating_sub(1), height: 1, ..area };
        frame.render_widget(scale(theme, usual, columns.has_bars()), below);
    }
    (rows, height)
}

fn meaning(metric: Metric) -> &'static str {
    match metric {
        Metric::P50 => "median of waiting and network",
        Metric::P95 => "p95 of waiting and network",
        Metric::P99 => "p99 of waiting and network",
        Metric::Own => "computing",
        Metric::Wait => "waiting for others",
        Metric::Wire => "network",
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
    let mut spans = vec![Span::styled(fit(" layer", LAYER), theme.dim)];
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
        let rest = match time {
            Some(time) if columns.has_bars() => {
                spans.push(Span::styled(fit_right(&tight_time(time), TIME) + " ", style(theme, time, usual)));
                let (bar, dots) = bar(time, usual, columns.cell - TIME - 2);
                spans.push(Span::styled(bar, block_style(theme, time, usual).remove_modifier(Modifier::REVERSED)));
                Span::styled(dots + " ", theme.faint)
            }
            Some(time) if theme.has_colour() => {
                let block =
                    SHADES[(time.0 / usual.0.max(1)).checked_ilog2().map_or(0, |power| power + 1).min(3) as usize];
                Span::styled(fit_right(&block.repeat(columns.cell - 1), columns.cell), block_style(theme, time, usual))
            }
            Some(time) => Span::styled(fit_right(&digit(time).to_string(), columns.cell), style(theme, time, usual)),
            None => Span::styled(fit_right("–", columns.cell), theme.dim),
        };
        spans.push(rest);
    }
    spans.push(Span::raw("  "));
    let own = picture.ranks.get(selected).map(|(row, _)| row.member);
    spans.extend(picture.sync(selected, row).into_iter().flat_map(|sync| numbers(theme, columns, sync, own)));
    Line::from(spans)
}

/// A bar that is full at four times the usual time, and the dots up to there.
fn bar(time: Nanoseconds, usual: Nanoseconds, cells: usize) -> (String, String) {
    let share = common::latency::ratio(time.0 as f64, 4.0 * usual.0 as f64);
    let eighths = ((share * 8.0 * cells as f64).round() as usize).min(8 * cells);
    let bar = "█".repeat(eighths / 8) + PARTS[eighths % 8];
    (bar, "·".repeat(cells - eighths.div_ceil(8)))
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

/// The legend of bars, blocks or digits, and of colours.
fn scale(theme: &Theme, usual: Nanoseconds, has_bars: bool) -> Line<'static> {
    let median = tight_time(usual);
    let text = match has_bars {
        true => format!(" a full bar: 4 times the median of {median}; colour: normal, "),
        false if theme.has_colour() => {
            format!(" ░ ▒ ▓ █: up to 1, 2, 4 times the median of {median}, more; colour: normal, ")
        }
        false => {
            format!(" digit n: {} times 2^n; median {median}; colour: normal, ", tight_time(Nanoseconds(SCALE_NS)))
        }
    };
    Line::from_iter([
        Span::styled(text, theme.dim),
        Span::styled("2x", theme.warn),
        Span::styled(", ", theme.dim),
        Span::styled("4x", theme.bad),
        Span::styled(" of the median", theme.dim),
    ])
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
        assert_eq!([80, 120, 200, 300].map(|width| Columns::of(width, 4).cell), [3, 17, 37, 60]);
        assert_eq!(Columns::of(120, 16).cell, 3);
    }

    #[test]
    fn bar_is_full_at_four_times_the_usual_time() {
        let bars = [0, 1, 2, 4, 9].map(|times| bar(Nanoseconds(times * 100_000), Nanoseconds(100_000), 4));
        let bars = bars.map(|(bar, rest)| bar + &rest);
        assert_eq!(bars, ["····", "█···", "██··", "████", "████"]);
        assert!(Columns::of(60, 64).ranks < 64 && Columns::of(0, 4).ranks == 0);
    }
}
