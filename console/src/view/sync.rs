//! The Sync page: the straggler and its cause; below, the all-reduces of every layer and rank, live or at a recent
//! moment.
use std::borrow::Cow;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::{Line, Span},
};

use crate::{
    state::{Area, Panel, State, lateness::RankRow, sync::SyncPicture},
    view::{
        format::{fit, fit_right, tight_time, wrap_words},
        health, heat, hops,
        theme::Theme,
        widgets::panel::{hit, lines, panel},
    },
};

const NAME: usize = 10;
const RANK: usize = 4;
const SHARE: usize = 5;
const TIME: usize = 6;
/// From this width the table shows how often a rank arrived last, when its parts start to arrive, and their
/// transmission time.
const WIDTH_WIDE: u16 = 100;
/// Maximum number of lines about the straggler.
pub(super) const WORDS_MAX: usize = 2;

/// Scrolling state of the page: total and visible rows of the lower table.
pub(super) struct Shown {
    pub(super) rows: usize,
    pub(super) height: usize,
    /// Areas of the ranks and of the layers.
    pub(super) areas: [Area; 2],
}

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) -> Shown {
    let picture = match state.cluster.sync.shown() {
        Some(past) => Cow::Borrowed(past),
        None => Cow::Owned(SyncPicture::take(state)),
    };
    let words = words(&picture, usize::from(area.width).saturating_sub(2));
    let most = (area.height / 3).max(3);
    let height = 2 + words.len() as u16 + (picture.ranks.len() as u16).clamp(1, most);
    let parts = [height, hops::height(&picture)].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let [upper, middle, lower] = Layout::vertical(parts).areas(area);
    draw_ranks(state, theme, frame, upper, &picture, words);
    hops::draw(theme, frame, middle, &picture);
    let (rows, height) = heat::draw(state, theme, frame, lower, &picture);
    Shown { rows, height, areas: [hit(upper), hit(lower)] }
}

/// The straggler and its cause as lines of text.
pub(super) fn words(picture: &SyncPicture, cells: usize) -> Vec<String> {
    let Some((_, text)) = &picture.straggler else { return Vec::new() };
    let mut lines: Vec<String> =
        wrap_words(text, cells).into_iter().map(|range| text[range].trim_end().to_owned()).collect();
    if lines.len() > WORDS_MAX {
        lines.truncate(WORDS_MAX);
        lines.last_mut().expect("two are left").push('…');
    }
    lines
}

fn draw_ranks(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, picture: &SyncPicture, words: Vec<String>) {
    let late = picture.straggler.as_ref().map(|(place, _)| *place);
    let remark = match late {
        _ if state.cluster.sync.shown().is_some() => {
            let seconds = state.now.saturating_sub(picture.at).as_secs();
            Span::styled(format!("as of {seconds} s ago; 0 shows now"), theme.warn)
        }
        _ if !state.layers_move() => match state.cluster.nodes.iter().filter_map(|node| node.layers_at).max() {
            Some(at) => Span::styled(format!("as of {} s ago", state.now.saturating_sub(at).as_secs()), theme.dim),
            None => Span::raw(""),
        },
        Some(place) => Span::styled(format!("straggler: {}", picture.ranks[place].1), theme.warn),
        None if picture.lateness() > 0.0 => Span::styled("no straggler", theme.ok),
        None => Span::raw(""),
    };
    let is_wide = area.width >= WIDTH_WIDE;
    let area = panel(frame, theme, area, state.screen.focus.panel == Panel::Nodes, "Ranks, the latest first", remark);
    if picture.ranks.is_empty() {
        return lines(frame, area, [Line::styled(" Ranks appear here when a topology runs.", theme.dim)]);
    }
    let words: Vec<Line> = words.into_iter().map(|line| Line::styled(format!(" {line}"), theme.warn)).collect();
    let room = usize::from(area.height).saturating_sub(words.len() + 1).max(1);
    let selected = picture.ranks.iter().position(|(row, _)| row.node == Some(state.screen.selected)).unwrap_or(0);
    let first = (selected + 1).saturating_sub(room);
    let mut cells = vec![fit("  node", NAME + 2), fit_right("rank", RANK), fit_right("late", SHARE)];
    cells.extend(is_wide.then(|| fit_right("last", SHARE)));
    cells.extend(["own", "wait", "wire"].map(|title| fit_right(title, TIME)));
    cells.extend(["first", "way"].map(|title| fit_right(title, TIME)).into_iter().filter(|_| is_wide));
    cells.extend([fit_right("net", SHARE), health::heading()]);
    let heading = Line::styled(cells.join(" "), theme.dim);
    let rows = picture.ranks.iter().enumerate().skip(first).map(|(place, (row, name))| {
        let style = if late == Some(place) { theme.warn } else { theme.plain };
        rank(state, theme, row, name, style, is_wide)
    });
    lines(frame, area, words.into_iter().chain([heading]).chain(rows));
}

fn rank(state: &State, theme: &Theme, row: &RankRow, name: &str, style: Style, is_wide: bool) -> Line<'static> {
    let is_selected = row.node == Some(state.screen.selected);
    // A stage with one rank has no all-reduces to measure.
    let is_known = row.means.iter().any(|mean| mean.0 > 0);
    let share = |share: f64| {
        let text = if is_known { format!("{:.0} %", share * 100.0) } else { "–".to_owned() };
        fit_right(&text, SHARE)
    };
    let tight_time = |time| if is_known { tight_time(time) } else { "–".to_owned() };
    let mut cells = vec![fit_right(&row.member.to_string(), RANK), share(row.late)];
    cells.extend(is_wide.then(|| share(row.last)));
    cells.extend(row.means.map(|mean| fit_right(&tight_time(mean), TIME)));
    cells.extend(row.arrival.map(|mean| fit_right(&tight_time(mean), TIME)).into_iter().filter(|_| is_wide));
    cells.push(share(row.network));
    let name_style = if is_selected { style.add_modifier(Modifier::BOLD) } else { style };
    let mut spans = vec![
        Span::styled(if is_selected { "▸ " } else { "  " }, theme.accent),
        Span::styled(fit(name, NAME) + " ", name_style),
        Span::styled(cells.join(" ") + " ", style),
    ];
    // Health is current, so it would mislead next to a past snapshot.
    let report = row
        .node
        .filter(|_| state.cluster.sync.shown().is_none())
        .and_then(|node| state.cluster.nodes[node].report.as_ref());
    spans.extend(report.map(|report| health::spans(theme, &report.health)).unwrap_or_default());
    Line::from(spans).style(if is_selected { theme.selected } else { Style::new() })
}
