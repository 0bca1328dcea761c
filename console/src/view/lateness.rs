//! The delay that each rank caused over the last minutes, with the moment that the page shows marked.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

use crate::{
    state::{State, sync::SyncPicture},
    view::{
        format::{fit, fit_right, percent},
        theme::Theme,
        widgets::{
            graph::{EIGHTHS, graph, styled},
            panel::{lines, panel},
        },
    },
};

/// Width of a rank's name and of its figure.
const NAME: usize = 10;
const FIGURE: usize = 6;
/// Share of the peers' time that fills a graph.
const FULL: f64 = 0.4;
/// Most lines of a rank's graph.
const LINES_MAX: usize = 16;

/// Lines wanted for so many ranks: a rule, graphs of `lines` lines, and the axis.
pub(super) fn height(picture: &SyncPicture, lines: usize) -> u16 {
    (2 + picture.ranks.len() * lines) as u16
}

/// Renders the graphs of the ranks that fit.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, picture: &SyncPicture) {
    if area.height < 3 {
        return;
    }
    let keys = Span::styled("< older  > newer  0 now", theme.dim);
    let inner = panel(frame, theme, area, false, "Delay caused to the others, over time", keys);
    if picture.ranks.is_empty() {
        return;
    }
    let kept = state.cluster.sync.kept();
    let cells = usize::from(inner.width).saturating_sub(NAME + FIGURE + 3);
    let room = usize::from(inner.height) - 1;
    let least = (room / picture.ranks.len()).clamp(1, LINES_MAX);
    let spare = if least < LINES_MAX { room.saturating_sub(least * picture.ranks.len()) } else { 0 };
    // The newest snapshots, unless an older one is selected.
    let place = state.cluster.sync.place();
    let last = place.map_or(kept.len(), |place| (place + cells / 2).clamp(cells.min(kept.len()), kept.len()));
    let first = last.saturating_sub(cells);
    let shown: Vec<&SyncPicture> = kept.iter().take(last).skip(first).collect();
    let marked = place.and_then(|place| place.checked_sub(first)).map(|place| place + cells - shown.len());
    let ranks = picture.ranks.iter().take(room / least).enumerate();
    let graphs = ranks.flat_map(|(index, (rank, name))| {
        let rows = least + usize::from(index < spare);
        let values: Vec<Option<f64>> = shown.iter().map(|picture| delay(picture, rank.member)).collect();
        let late: Vec<bool> = shown.iter().map(|picture| is_straggler(picture, rank.member)).collect();
        let unknown = cells - values.len();
        let figure = percent(rank.late);
        let bars = graph(&values, FULL, cells, rows).into_iter().enumerate();
        let all: Vec<Line> = bars
            .map(|(row, bars)| {
                let [name, figure] = if row + 1 == rows { [name.as_str(), figure.as_str()] } else { [""; 2] };
                let name =
                    Span::styled(format!(" {} {} ", fit(name, NAME), fit_right(figure, FIGURE - 1)), theme.plain);
                Line::from_iter(std::iter::once(name).chain(styled(
                    &bars,
                    |cell: usize| match cell.checked_sub(unknown).and_then(|at| late.get(at)) {
                        _ if marked == Some(cell) => theme.accent,
                        Some(true) => theme.warn,
                        _ => theme.ok,
                    },
                    theme.faint,
                )))
            })
            .collect();
        all
    });
    let axis = axis(state, theme, &shown, marked, cells);
    lines(frame, inner, graphs.chain([axis]));
}

/// The delay that a rank caused in a snapshot.
fn delay(picture: &SyncPicture, member: usize) -> Option<f64> {
    picture.ranks.iter().find(|(one, _)| one.member == member).map(|(one, _)| one.late)
}

/// Whether a rank was the straggler of a snapshot.
fn is_straggler(picture: &SyncPicture, member: usize) -> bool {
    let late = picture.straggler.as_ref().and_then(|(place, _)| picture.ranks.get(*place));
    late.is_some_and(|(row, _)| row.member == member)
}

/// The line below: the age of the oldest snapshot, the marked one, and the keys that select one.
fn axis(state: &State, theme: &Theme, shown: &[&SyncPicture], marked: Option<usize>, cells: usize) -> Line<'static> {
    let age = shown.first().map_or(0, |oldest| state.now.saturating_sub(oldest.at).as_secs());
    let left = format!("{age} s ago ");
    let right = " now";
    let room = cells.saturating_sub(left.len() + right.len());
    let mut rule: Vec<char> = "─".repeat(room).chars().collect();
    if let Some(mark) = marked.and_then(|marked| marked.checked_sub(left.len())).and_then(|at| rule.get_mut(at)) {
        *mark = '◆';
    }
    let rule: String = rule.into_iter().collect();
    let margin = " ".repeat(NAME + FIGURE + 2);
    Line::styled(format!("{margin}{left}{rule}{right}"), theme.dim)
}

/// The delays of the worst straggler in one line, with the selected snapshot marked.
pub(super) fn strip(state: &State, theme: &Theme, width: usize) -> Line<'static> {
    let kept = state.cluster.sync.kept();
    let age = kept.front().map_or(0, |oldest| state.now.saturating_sub(oldest.at).as_secs());
    let left = format!(" delay, {age} s ago ");
    let right = " now  < older  > newer  0 now";
    let room = width.saturating_sub(left.len() + right.len() + 1);
    let place = state.cluster.sync.place();
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
