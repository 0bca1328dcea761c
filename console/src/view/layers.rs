//! All-reduce latency by layer of the selected node, and its components; wide screens also show the other ranks.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use telemetry::LayerSync;

use crate::{
    state::{
        Panel, State,
        node::{Layer, Node},
    },
    view::{
        format::{fit, fit_right, short_time},
        theme::Theme,
        widgets::{
            bar,
            panel::{lines, panel},
        },
    },
};

/// Width of the `layer` column and of a pair of percentiles, in cells.
const LAYER: usize = 6;
const PAIR: usize = 15;
/// Width of a time, in cells.
const TIME: usize = 7;
/// Width of the straggler's rank, in cells.
const WAITED: usize = 4;
/// Minimum width of the bar, in cells, before other ranks get columns.
const BAR_MIN: usize = 24;

/// Renders the panel; returns the number of layers that fit.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) -> usize {
    let Some(node) = state.cluster.nodes.get(state.screen.selected) else {
        panel(frame, theme, area, state.screen.focus.panel == Panel::Layers, "Layers", Span::raw(""));
        return 0;
    };
    let height = usize::from(area.height).saturating_sub(2);
    let first = state.screen.scroll.layers.min(node.layers.len().saturating_sub(height));
    let (focused, remark) = (state.screen.focus.panel == Panel::Layers, remark(state, theme, node, first, height));
    let rank = state.cluster.member_of(node).map_or_else(String::new, |rank| format!(", rank {rank}"));
    let title = format!("All-reduce by layer, {}{rank}", node.name());
    let area = panel(frame, theme, area, focused, &title, remark);
    if node.layers.is_empty() {
        lines(frame, area, [Line::styled(format!(" {}", empty(state, node)), theme.dim)]);
        return height;
    }
    let bar_and_others = usize::from(area.width).saturating_sub(LAYER + 2 * PAIR + 4 + WAITED);
    let others = state.cluster.nodes.len().min(bar_and_others.saturating_sub(BAR_MIN) / TIME);
    let others = if state.cluster.nodes.len() > 1 { others } else { 0 };
    let bar_cells = bar_and_others - others * TIME;
    let full = node.layers.iter().map(total).max().unwrap_or(0);
    let heading = heading(state, theme, bar_cells, others);
    let own = state.cluster.member_of(node);
    let rows = node.layers.iter().enumerate().skip(first).map(|(index, layer)| {
        let mut row = row(theme, index, layer, own, full, bar_cells);
        row.extend(state.cluster.nodes.iter().take(others).map(|node| other(theme, node, index)));
        Line::from(row)
    });
    lines(frame, area, std::iter::once(heading).chain(rows));
    height
}

fn remark(state: &State, theme: &Theme, node: &Node, first: usize, height: usize) -> Span<'static> {
    let count = node.layers.len();
    if count == 0 {
        return Span::raw("");
    }
    let is_live = node.layers_move(state.now);
    let age = if is_live { "live" } else { "as last seen" };
    let style = if is_live { theme.ok } else { theme.dim };
    if count <= height {
        return Span::styled(age, style);
    }
    Span::styled(format!("{}–{} of {count}, {age}", first, (first + height).min(count) - 1), style)
}

fn empty(state: &State, node: &Node) -> &'static str {
    match state.cluster.topology() {
        _ if !node.is_open() => "Nothing from a node that is not connected.",
        Some((topology, _)) if topology.layout.ranks < 2 => "One rank has nobody to exchange with.",
        Some(_) => "Latencies appear here while text is generated.",
        None => "Latencies appear here when a topology runs.",
    }
}

fn heading(state: &State, theme: &Theme, bar_cells: usize, others: usize) -> Line<'static> {
    let pair = |name: &str| format!("{} {}", fit_right(&format!("{name} p50"), 8), fit_right("p95", 6));
    let others = state.cluster.nodes.iter().take(others).map(|node| match state.cluster.member_of(node) {
        Some(rank) => fit_right(&format!("p95 r{rank}"), TIME),
        None => fit_right("p95", TIME),
    });
    let mut spans =
        vec![Span::styled(format!("{} {} {}  ", fit(" layer", LAYER), pair("attn"), pair("ffn")), theme.dim)];
    spans.extend([
        Span::styled("█", theme.ok),
        Span::styled("computing ", theme.dim),
        Span::styled("▒", theme.warn),
        Span::styled("waiting ", theme.dim),
        Span::styled("░", theme.accent),
        Span::styled(fit("network", (bar_cells + WAITED).saturating_sub(21)), theme.dim),
        Span::styled(others.collect::<String>(), theme.dim),
    ]);
    Line::from(spans)
}

fn total(layer: &Layer) -> u64 {
    layer.split().iter().map(|part| part.0).sum()
}

fn row(theme: &Theme, index: usize, layer: &Layer, own: Option<usize>, full: u64, cells: usize) -> Vec<Span<'static>> {
    let [compute, wait, wire] = layer.split();
    let pair = |sync: &Option<LayerSync>| match sync {
        Some(sync) => format!("{} {}", fit_right(&short_time(sync.p50), 8), fit_right(&short_time(sync.p95), 6)),
        None => format!("{} {}", fit_right("–", 8), fit_right("–", 6)),
    };
    let mut spans = vec![
        Span::styled(fit_right(&index.to_string(), LAYER) + " ", theme.dim),
        Span::styled(format!("{} {}  ", pair(&layer.attention), pair(&layer.feed_forward)), theme.plain),
    ];
    let parts = [(compute.0, "█", theme.ok), (wait.0, "▒", theme.warn), (wire.0, "░", theme.accent)];
    let rest = (full.saturating_sub(total(layer)), "·", theme.faint);
    spans.extend(bar::stacked(&[parts[0], parts[1], parts[2], rest], full, cells));
    // Name the straggler if the peer wait takes at least a tenth of the layer's time.
    let waited = layer.slower().filter(|sync| Some(sync.slowest.index()) != own);
    let waited = waited.filter(|_| wait.0 > 0 && wait.0 * 10 >= total(layer));
    let waited = waited.map_or_else(String::new, |sync| format!(" r{}", sync.slowest));
    spans.push(Span::styled(fit(&waited, WAITED), theme.warn));
    spans
}

fn other(theme: &Theme, node: &Node, layer: usize) -> Span<'static> {
    let p95 = node.layers.get(layer).and_then(Layer::p95);
    let text = p95.map_or_else(|| "–".to_owned(), short_time);
    Span::styled(fit_right(&text, TIME), if node.is_open() { theme.plain } else { theme.dim })
}
