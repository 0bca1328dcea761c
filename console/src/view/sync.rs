//! The page of all ranks: who waits for whom, the rank that holds the others up first; below, layers by ranks.
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::{Line, Span},
};
use shared::{telemetry::LayerSync, units::Nanoseconds};

use crate::{
    state::{
        Focus, State, SyncColumns,
        lateness::{RankRow, ranks, straggler},
        node::Layer,
    },
    view::{
        format::{fit, fit_right, tight_time},
        health,
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

const NAME: usize = 10;
const RANK: usize = 4;
const SHARE: usize = 5;
const TIME: usize = 6;
/// Cells of `12 attn`, and of one rank's three times.
const LAYER: usize = 8;
const CELL: usize = 18;
/// From this width on the table says how often a rank was the last.
const WIDTH_LAST: u16 = 100;

/// What scrolls on this page: rows of the lower table, and how many of them are shown.
pub(super) struct Shown {
    pub(super) rows: usize,
    pub(super) height: usize,
}

/// Draws the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) -> Shown {
    let rows = ranks(state);
    let height = 2 + (rows.len() as u16).clamp(1, (area.height / 2).saturating_sub(2).max(1));
    let [upper, lower] = Layout::vertical([Constraint::Length(height), Constraint::Fill(1)]).areas(area);
    draw_ranks(state, theme, frame, upper, &rows);
    draw_layers(state, theme, frame, lower, &rows)
}

fn draw_ranks(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, rows: &[RankRow]) {
    let late = straggler(rows);
    let remark = match late {
        Some(row) => Span::styled(
            format!("{} holds the others up: {:.0} % of their time", name(state, row), row.late * 100.0),
            theme.warn,
        ),
        None if rows.iter().any(|row| row.late > 0.0) => Span::styled("no straggler", theme.ok),
        None => Span::raw(""),
    };
    let with_last = area.width >= WIDTH_LAST;
    let area = panel(frame, theme, area, state.spot.focus == Focus::Nodes, "Ranks, the latest first", remark);
    if rows.is_empty() {
        return lines(frame, area, [Line::styled(" Ranks appear here when a topology runs.", theme.dim)]);
    }
    let mut cells = vec![fit("  node", NAME + 2), fit_right("rank", RANK), fit_right("late", SHARE)];
    cells.extend(with_last.then(|| fit_right("last", SHARE)));
    cells.extend(["own", "wait", "wire"].map(|title| fit_right(title, TIME)));
    cells.extend([fit_right("net", SHARE), health::heading()]);
    let heading = Line::styled(cells.join(" "), theme.dim);
    let rows = rows.iter().map(|row| {
        let style = if late.is_some_and(|late| late.member == row.member) { theme.warn } else { theme.plain };
        rank(state, theme, row, style, with_last)
    });
    lines(frame, area, std::iter::once(heading).chain(rows));
}

fn rank(state: &State, theme: &Theme, row: &RankRow, style: Style, with_last: bool) -> Line<'static> {
    let is_selected = row.node == Some(state.selected);
    let share = |share: f64| fit_right(&format!("{:.0} %", share * 100.0), SHARE);
    let mut cells = vec![fit_right(&row.member.to_string(), RANK), share(row.late)];
    cells.extend(with_last.then(|| share(row.last)));
    cells.extend(row.means.map(|mean| fit_right(&tight_time(mean), TIME)));
    cells.push(share(row.network));
    let name_style = if is_selected { style.add_modifier(Modifier::BOLD) } else { style };
    let mut spans = vec![
        Span::styled(if is_selected { "▸ " } else { "  " }, theme.accent),
        Span::styled(fit(name(state, row), NAME) + " ", name_style),
        Span::styled(cells.join(" ") + " ", style),
    ];
    let report = row.node.and_then(|node| state.nodes[node].report.as_ref());
    spans.extend(report.map(|report| health::spans(theme, &report.health)).unwrap_or_default());
    Line::from(spans)
}

fn name<'a>(state: &'a State, row: &RankRow) -> &'a str {
    row.node.map_or("not named", |node| state.nodes[node].name())
}

fn draw_layers(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, rows: &[RankRow]) -> Shown {
    let height = usize::from(area.height).saturating_sub(3);
    let layers = |row: &RankRow| row.node.map_or(&[][..], |node| state.nodes[node].layers.as_slice());
    let count = rows.iter().map(|row| layers(row).len()).max().unwrap_or(0);
    let fitting = (usize::from(area.width).saturating_sub(LAYER) / CELL).max(1);
    let first = state.sync_scroll.min((2 * count).saturating_sub(height));
    let (title, columns) = match state.sync_columns {
        SyncColumns::Percentiles => ("All-reduce by layer: wait and wire", ["p50", "p95", "p99"]),
        SyncColumns::Split => ("All-reduce by layer: means", ["own", "wait", "wire"]),
    };
    let remark = remark(state, rows.len().saturating_sub(fitting), (first, height, 2 * count));
    let focused = state.spot.focus == Focus::Layers;
    let area = panel(frame, theme, area, focused, title, Span::styled(remark, theme.dim));
    if count == 0 {
        let hint = " Latencies appear here while text is generated on more than one rank.";
        lines(frame, area, [Line::styled(hint, theme.dim)]);
        return Shown { rows: 0, height };
    }
    let shown = &rows[..rows.len().min(fitting)];
    let names = shown.iter().map(|row| Span::styled(fit_right(&title_of(state, row), CELL), theme.plain));
    let names = Line::from_iter(std::iter::once(Span::raw(" ".repeat(LAYER))).chain(names));
    let columns: String = columns.iter().map(|title| fit_right(title, CELL / 3)).collect();
    let heading = Line::styled(fit("layer", LAYER) + &columns.repeat(shown.len()), theme.dim);
    let body = (first..2 * count).map(|row| {
        let (index, kind) = (row / 2, if row % 2 == 0 { "attn" } else { "ffn" });
        let label = format!("{} {}", fit_right(&index.to_string(), 3), fit(kind, LAYER - 4));
        let cells = shown.iter().flat_map(|rank| {
            let sync = layers(rank).get(index).and_then(|layer| of_kind(layer, row % 2));
            cell(state, theme, rank.member, sync)
        });
        Line::from_iter(std::iter::once(Span::styled(label, theme.dim)).chain(cells))
    });
    lines(frame, area, [names, heading].into_iter().chain(body));
    Shown { rows: 2 * count, height }
}

fn title_of(state: &State, row: &RankRow) -> String {
    format!("r{} {}", row.member, name(state, row))
}

fn of_kind(layer: &Layer, kind: usize) -> Option<&LayerSync> {
    if kind == 0 { layer.attention.as_ref() } else { layer.feed_forward.as_ref() }
}

fn remark(state: &State, hidden: usize, (first, height, count): (usize, usize, usize)) -> String {
    let mut parts = Vec::new();
    if hidden > 0 {
        parts.push(format!("{hidden} more ranks on a wider screen"));
    }
    if count > height {
        parts.push(format!("rows {}–{} of {count}", first + 1, (first + height).min(count)));
    }
    if count > 0 {
        parts.push(if state.layers_move() { "live" } else { "as last seen" }.to_owned());
    }
    parts.join(", ")
}

/// One all-reduce of one rank: three times. Waiting that takes more than a third of it stands out.
fn cell(state: &State, theme: &Theme, own: usize, sync: Option<&LayerSync>) -> Vec<Span<'static>> {
    const WIDTH: usize = CELL / 3;
    let Some(sync) = sync else { return vec![Span::styled(fit_right("–", CELL), theme.dim)] };
    let time = |time: Nanoseconds, style| Span::styled(fit_right(&tight_time(time), WIDTH), style);
    match state.sync_columns {
        SyncColumns::Percentiles => {
            vec![time(sync.p50, theme.plain), time(sync.p95, theme.plain), time(sync.p99, theme.dim)]
        }
        SyncColumns::Split => {
            let total = sync.compute.0 + sync.wait.0 + sync.wire.0;
            let waits = sync.wait.0 * 3 > total && sync.slowest.index() != own;
            let style = if waits { theme.warn } else { theme.plain };
            vec![time(sync.compute, theme.plain), time(sync.wait, style), time(sync.wire, theme.plain)]
        }
    }
}
