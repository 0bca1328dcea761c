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
        format::{fit, fit_right, percent, shorten, tight_time, wrap_words},
        health, heat, hops, lateness,
        theme::Theme,
        widgets::{
            bar,
            panel::{hit, lines, panel},
        },
    },
};

const NAME: usize = 10;
const RANK: usize = 4;
/// From this width the table has all columns, from the second one also their full names.
const WIDTH_WIDE: u16 = 100;
const WIDTH_FULL: u16 = 150;
/// Least width of the bar of a rank's times, and the room that its health has.
const BAR_MIN: usize = 17;
const HEALTH: usize = 30;
/// Least height of a page with the delays over time, and least lines of a rank there.
const HEIGHT_DELAYS: u16 = 24;

/// A column: its name, its short form, and whether it is for wide screens only.
struct RankColumn {
    name: &'static str,
    short: &'static str,
    is_wide: bool,
    of: fn(&RankRow) -> String,
}

/// The columns after node and rank.
const COLUMNS: [RankColumn; 8] = [
    RankColumn { name: "delay caused", short: "delay", is_wide: false, of: |row| percent(row.late) },
    RankColumn { name: "last in", short: " last", is_wide: true, of: |row| percent(row.last) },
    RankColumn { name: "computing", short: "  comp", is_wide: false, of: |row| tight_time(row.means[0]) },
    RankColumn { name: "waiting", short: "  wait", is_wide: false, of: |row| tight_time(row.means[1]) },
    RankColumn { name: "network", short: "   net", is_wide: false, of: |row| tight_time(row.means[2]) },
    RankColumn { name: "first byte", short: " first", is_wide: true, of: |row| tight_time(row.arrival[0]) },
    RankColumn { name: "transfer", short: "transfer", is_wide: true, of: |row| tight_time(row.arrival[1]) },
    RankColumn { name: "network share", short: "share", is_wide: false, of: |row| percent(row.network) },
];

/// What the short forms of these columns stand for.
fn legend(columns: &[(&'static RankColumn, usize)]) -> String {
    let parts = columns.iter().map(|(column, _)| (column.short.trim(), column.name));
    let told = parts.filter(|(short, name)| short != name && !name.starts_with("wait"));
    told.map(|(short, name)| format!("{short}: {name}")).collect::<Vec<_>>().join(", ")
}

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
    let legend = u16::from(area.height >= HEIGHT_DELAYS && area.width < WIDTH_FULL);
    let height = 2 + legend + words.len() as u16 + (picture.ranks.len() as u16).clamp(1, most);
    let hops = hops::height(&picture);
    let rows = 2 * picture.layer_count() as u16;
    // The map comes first: delays take what it leaves.
    let left = area.height.saturating_sub(height + hops);
    let delays = match area.height >= HEIGHT_DELAYS {
        true => left.saturating_sub(rows.saturating_add(3)).max(lateness::height(&picture, 1).min(left / 3)),
        false => 1,
    };
    let delays = if rows == 0 && hops == 0 { delays.min(lateness::height(&picture, 4)) } else { delays };
    let parts = [height, hops, delays].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let [upper, middle, history, lower] = Layout::vertical(parts).areas(area);
    draw_ranks(state, theme, frame, upper, &picture, words);
    hops::draw(theme, frame, middle, &picture);
    if history.height > 1 {
        lateness::draw(state, theme, frame, history, &picture);
    } else {
        frame.render_widget(lateness::strip(state, theme, usize::from(history.width)), history);
    }
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
    let size = [area.width, area.height];
    let area = panel(frame, theme, area, state.screen.focus.panel == Panel::Nodes, "Ranks, the latest first", remark);
    if picture.ranks.is_empty() {
        return lines(frame, area, [Line::styled(" Ranks appear here when a topology runs.", theme.dim)]);
    }
    let words: Vec<Line> = words.into_iter().map(|line| Line::styled(format!(" {line}"), theme.warn)).collect();
    let count = picture.ranks.len().min((usize::from(size[1]).saturating_sub(words.len() + 2)).max(1));
    let legend = usize::from(size[1]) > words.len() + 2 + count;
    let room = usize::from(area.height).saturating_sub(words.len() + 1 + usize::from(legend)).max(1);
    let selected = picture.ranks.iter().position(|(row, _)| row.node == Some(state.screen.selected)).unwrap_or(0);
    let first = (selected + 1).saturating_sub(room);
    let table = RankTable::of(area.width);
    let longest = picture.ranks.iter().map(|(row, _)| row.means.iter().map(|mean| mean.0).sum()).max().unwrap_or(0);
    let rows = picture.ranks.iter().enumerate().skip(first).take(room).map(|(place, (row, name))| {
        let style = if late == Some(place) { theme.warn } else { theme.plain };
        table.line(state, theme, row, name, style, longest)
    });
    let legend = legend.then(|| {
        Line::styled(format!(" {}", shorten(&self::legend(&table.columns), usize::from(area.width) - 1)), theme.dim)
    });
    lines(frame, area, words.into_iter().chain([table.heading(theme)]).chain(rows).chain(legend));
}

/// The shown columns with their widths, and the width of the bar of a rank's times.
struct RankTable {
    columns: Vec<(&'static RankColumn, usize)>,
    is_full: bool,
    bar: usize,
}

impl RankTable {
    fn of(width: u16) -> Self {
        let is_full = width >= WIDTH_FULL;
        let shown = COLUMNS.iter().filter(|column| width >= WIDTH_WIDE || !column.is_wide);
        let columns: Vec<_> =
            shown.map(|column| (column, if is_full { column.name.len() } else { column.short.len() })).collect();
        let used = NAME + 3 + RANK + columns.iter().map(|(_, cells)| cells + 1).sum::<usize>() + HEALTH + 2;
        let bar = usize::from(width).saturating_sub(used);
        Self { columns, is_full, bar: if bar >= BAR_MIN { bar } else { 0 } }
    }

    fn heading(&self, theme: &Theme) -> Line<'static> {
        let mut spans =
            vec![Span::styled(format!("{} {}", fit("  node", NAME + 2), fit_right("rank", RANK)), theme.dim)];
        for (column, cells) in &self.columns {
            let title = if self.is_full { column.name } else { column.short };
            spans.push(Span::styled(format!(" {}", fit_right(title, *cells)), theme.dim));
        }
        if self.bar > 0 {
            let names = if self.bar < 31 { ["comp", "wait", "net"] } else { ["computing", "waiting", "network"] };
            let used = names.iter().map(|name| name.len() + 2).sum();
            spans.push(Span::raw("  "));
            for ((glyph, style), name) in
                [("█", theme.ok), ("▒", theme.warn), ("░", theme.accent)].into_iter().zip(names)
            {
                spans.extend([Span::styled(glyph, style), Span::styled(format!("{name} "), theme.dim)]);
            }
            spans.push(Span::raw(" ".repeat(self.bar.saturating_sub(used))));
        }
        spans.push(Span::styled(format!(" {}", health::heading()), theme.dim));
        Line::from(spans)
    }

    fn line(
        &self,
        state: &State,
        theme: &Theme,
        row: &RankRow,
        name: &str,
        style: Style,
        longest: u64,
    ) -> Line<'static> {
        let is_selected = row.node == Some(state.screen.selected);
        // A stage with one rank has no all-reduces to measure.
        let is_known = row.means.iter().any(|mean| mean.0 > 0);
        let name_style = if is_selected { style.add_modifier(Modifier::BOLD) } else { style };
        let mut text = fit_right(&row.member.to_string(), RANK);
        for (column, cells) in &self.columns {
            let figure = if is_known { (column.of)(row) } else { "–".to_owned() };
            text += &format!(" {}", fit_right(&figure, *cells));
        }
        let mut spans = vec![
            Span::styled(if is_selected { "▸ " } else { "  " }, theme.accent),
            Span::styled(fit(name, NAME) + " ", name_style),
            Span::styled(text, style),
        ];
        if self.bar > 0 {
            let [own, wait, wire] = row.means.map(|mean| mean.0);
            let rest = longest.saturating_sub(own + wait + wire);
            let parts =
                [(own, "█", theme.ok), (wait, "▒", theme.warn), (wire, "░", theme.accent), (rest, "·", theme.faint)];
            spans.push(Span::raw("  "));
            spans.extend(bar::stacked(&parts, longest, self.bar));
        }
        spans.push(Span::raw(" "));
        // Health is current, so it would mislead next to a past snapshot.
        let report = row
            .node
            .filter(|_| state.cluster.sync.shown().is_none())
            .and_then(|node| state.cluster.nodes[node].report.as_ref());
        spans.extend(report.map(|report| health::spans(theme, &report.health)).unwrap_or_default());
        Line::from(spans).style(if is_selected { theme.selected } else { Style::new() })
    }
}
