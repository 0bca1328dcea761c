//! A small map of the all-reduces by layer and rank, with the straggler below, or the hand-overs of a pipeline.
use common::units::Nanoseconds;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::{
    state::{
        State,
        sync::{Metric, SyncPicture},
    },
    view::{
        format::fit,
        heat, hops,
        sync::{self, WORDS_MAX},
        theme::Theme,
        widgets::{
            graph::{graph, styled},
            panel::{lines, panel},
        },
    },
};

/// Width of a rank's name, in cells.
const NAME: usize = 10;
/// Most ranks, and lines of a rank.
const RANKS_MAX: usize = 8;
const LINES_MAX: usize = 4;
/// The figure shown.
const METRIC: Metric = Metric::P95;

/// Lines wanted in an area.
pub(super) fn height(state: &State, area: Rect) -> u16 {
    let Some(picture) = latest(state) else { return 3.min(area.height) };
    if picture.layer_count() == 0 {
        return hops::height(picture).max(3).min(area.height);
    }
    let ranks = picture.ranks.len().min(RANKS_MAX) as u16;
    let lines = (area.height / 2 / ranks.max(1)).clamp(1, LINES_MAX as u16);
    (1 + ranks * lines + WORDS_MAX as u16).min(area.height)
}

/// The latest picture of all ranks.
fn latest(state: &State) -> Option<&SyncPicture> {
    state.cluster.sync.kept().back().filter(|picture| !picture.ranks.is_empty())
}

/// Renders the map.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    if area.height < 2 {
        return;
    }
    let picture = latest(state);
    if let Some(picture) = picture.filter(|picture| picture.layer_count() == 0 && !picture.boundaries.is_empty()) {
        return hops::draw(theme, frame, area, picture);
    }
    let age = picture.map(|picture| state.now.saturating_sub(picture.at).as_secs());
    let remark = match age {
        Some(_) if state.layers_move() => Span::styled("p95 of waiting and transfer, live", theme.dim),
        Some(seconds) => Span::styled(format!("as of {seconds} s ago"), theme.dim),
        None => Span::raw(""),
    };
    let inner = panel(frame, theme, area, false, "All-reduces by layer", remark);
    let Some(picture) = picture.filter(|picture| picture.layer_count() > 0) else {
        let hint = " Times appear here while text is generated on more than one rank.";
        return lines(frame, inner, [Line::styled(hint, theme.dim)]);
    };
    let words = sync::words(picture, usize::from(inner.width).saturating_sub(2));
    let ranks = picture.ranks.len().min(RANKS_MAX);
    let rows = (usize::from(inner.height).saturating_sub(WORDS_MAX) / ranks).clamp(1, LINES_MAX);
    let usual = picture.usual(METRIC);
    let all = (0..ranks).flat_map(|rank| rank_lines(theme, picture, rank, usual, rows, usize::from(inner.width)));
    let words = words.into_iter().map(|text| Line::styled(format!(" {text}"), theme.warn));
    lines(frame, inner, all.chain(words));
}

/// A rank's all-reduces as bars: the median fills half of the height.
fn rank_lines(
    theme: &Theme,
    picture: &SyncPicture,
    rank: usize,
    usual: Nanoseconds,
    rows: usize,
    width: usize,
) -> Vec<Line<'static>> {
    let cells = width.saturating_sub(NAME + 2);
    let count = 2 * picture.layer_count();
    // Adjacent all-reduces share a cell if there are too many; together they fill the line.
    let merged = count.div_ceil(cells.max(1)).max(1);
    let times: Vec<Nanoseconds> = (0..count)
        .step_by(merged)
        .map(|first| {
            let syncs = (first..(first + merged).min(count)).filter_map(|row| picture.sync(rank, row));
            syncs.map(|sync| METRIC.of(sync)).max().unwrap_or(Nanoseconds(0))
        })
        .collect();
    let values: Vec<Option<f64>> = times.iter().map(|time| (time.0 > 0).then_some(time.0 as f64)).collect();
    let bars = graph(&values, 2.0 * usual.0 as f64, values.len(), rows);
    let late = picture.straggler.as_ref().is_some_and(|(place, _)| *place == rank);
    let name = &picture.ranks[rank].1;
    bars.into_iter()
        .enumerate()
        .map(|(row, bars)| {
            let name = if row == 0 { fit(name, NAME) } else { " ".repeat(NAME) };
            let mut spans = vec![Span::styled(format!(" {name} "), if late { theme.warn } else { theme.plain })];
            for (index, (bar, time)) in bars.chars().zip(&times).enumerate() {
                let wide = (index + 1) * cells / times.len() - index * cells / times.len();
                let bars = bar.to_string().repeat(wide);
                let style = heat::style(theme, *time, usual);
                let style = if style == theme.plain { theme.ok } else { style };
                spans.extend(styled(&bars, |_| style, theme.faint));
            }
            Line::from(spans)
        })
        .collect()
}
