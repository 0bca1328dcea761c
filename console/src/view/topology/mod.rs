//! The Topology page: the running topology with a block for each rank, the planner's candidates with bars, the model's
//! figures, and the measured rates. The Cluster page has a small diagram of the same topology.
mod blocks;
mod diagram;
mod model;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    text::{Line, Span},
};

pub(super) use diagram::draw;

use crate::{
    state::{
        Extent, Page, Panel, State,
        clean::clean_line,
        plan::{self, Planning},
        pulse::{ClusterMoment, moments},
        tables::selected,
    },
    view::{
        chart::{self, Chart},
        format::percent,
        tables::{self, TableTexts},
        theme::Theme,
        widgets::panel::{hit, lines, panel},
    },
};

/// Lines of the candidates besides their rows: rule and heading.
const CANDIDATE_LINES: u16 = 2;
/// Least height of the charts below the candidates.
const CHART_LINES: u16 = 5;
/// From this width charts stand to the right of the candidates, which have this width then.
const WIDTH_CHARTS: u16 = 190;
const WIDTH_CANDIDATES: u16 = 128;
/// Least height of a page that has the model's figures.
const HEIGHT_MODEL: u16 = 24;

/// Renders the page.
pub(super) fn draw_page(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let model = if area.height >= HEIGHT_MODEL { model::lines_of(state, theme, area.width) } else { Vec::new() };
    let model_lines = if model.is_empty() { 0 } else { model.len() as u16 + 1 };
    let most = (area.height / 2).saturating_sub(model_lines / 2).max(4);
    let upper = blocks::height(state, area.width, most.saturating_sub(1)) + 1;
    let rows = plan::table(state).rows.len() as u16;
    let rest = area.height.saturating_sub(upper + model_lines);
    let wanted = if rows == 0 { 3 } else { rows.saturating_add(CANDIDATE_LINES) };
    let charts = rest.saturating_sub(wanted);
    let is_wide = area.width >= WIDTH_CHARTS && rows > 0;
    let charts = if charts < CHART_LINES || is_wide { 0 } else { charts };
    let parts = [Constraint::Length(upper), Constraint::Length(model_lines)];
    let parts = parts.into_iter().chain([Constraint::Fill(1), Constraint::Length(charts)]);
    let [above, figures, table, below] = Layout::vertical(parts).areas(area);
    (extent.panels[0], extent.panels[1]) = (hit(table), hit(above));
    draw_running(state, theme, frame, above, extent);
    if !model.is_empty() {
        let inner = panel(frame, theme, figures, false, "Model", Span::raw(""));
        lines(frame, inner, model);
    }
    let columns = [Constraint::Length(if is_wide { WIDTH_CANDIDATES } else { table.width }), Constraint::Fill(1)];
    let [table, beside] = Layout::horizontal(columns).spacing(u16::from(is_wide)).areas(table);
    draw_candidates(state, theme, frame, table, charts == 0 && !is_wide, extent);
    let halves = [Constraint::Fill(1); 2];
    if is_wide {
        draw_measured(state, theme, frame, Layout::vertical(halves).areas(beside));
    } else if charts > 0 {
        draw_measured(state, theme, frame, Layout::horizontal(halves).spacing(1).areas(below));
    }
}

fn draw_running(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let known = state.cluster.topology();
    let remark = known.map_or_else(String::new, |(topology, epoch)| {
        format!("{}, epoch {epoch}, {}", topology.layout, clean_line(&topology.model))
    });
    let focused = state.screen.focus.panel == Panel::Picture;
    let inner = panel(frame, theme, area, focused, "Runs", Span::styled(remark, theme.dim));
    let Some((topology, _)) = known else {
        let hint = state.plan.desired.as_ref().map_or("No topology runs.".to_owned(), |wanted| {
            format!("Not assigned yet: {} of {}.", wanted.layout, clean_line(&wanted.model))
        });
        return lines(frame, inner, [Line::styled(format!(" {hint}"), theme.dim)]);
    };
    let all = blocks::picture(state, theme, topology, [inner.width, inner.height]);
    (extent.picture_lines, extent.picture_height) = (all.len(), usize::from(inner.height));
    let first = state.screen.scroll.picture.min(all.len().saturating_sub(usize::from(inner.height)));
    lines(frame, inner, all.into_iter().skip(first));
}

/// Renders the candidates; the selected one's remark is below them if there is room, otherwise why it does not fit is
/// in the title.
fn draw_candidates(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, repeats: bool, extent: &mut Extent) {
    let (title, remark, empty) = match &state.plan.answer {
        Planning::Nothing => {
            ("Candidates", Span::raw(""), "p asks the planner which layouts fit and how fast they would be.".to_owned())
        }
        Planning::Asked => {
            ("Candidates", Span::styled("planning", theme.warn), "The planner simulates the layouts.".to_owned())
        }
        Planning::Failed(fault) => {
            ("Candidates", Span::styled("failed", theme.bad), clean_line(&format!("{fault}; {}", fault.next())))
        }
        Planning::Done(planned) => {
            let remark = plan::why_not(state, &selected(state, Page::Topology))
                .unwrap_or_else(|| format!("simulated as Pis on 1 Gb/s, context {}", planned.context));
            ("Candidates, predicted", Span::styled(remark, theme.dim), String::new())
        }
    };
    tables::draw(state, theme, frame, area, TableTexts { title, remark, empty: &empty, repeats }, extent);
}

/// What the running topology does: tokens per second, and the network's share.
fn draw_measured(state: &State, theme: &Theme, frame: &mut Frame, areas: [Rect; 2]) {
    let moments = moments(state, chart::cells(areas[0]));
    let axis = format!("{} s ago", moments.len());
    let rates: Vec<Option<f64>> = moments.iter().map(|moment: &ClusterMoment| moment.tokens_per_second).collect();
    let shares: Vec<Option<f64>> = moments.iter().map(|moment: &ClusterMoment| moment.network).collect();
    let last = |values: &[Option<f64>]| values.last().copied().flatten();
    let predicted = plan::predicted(state).map_or_else(String::new, |rate| format!(", predicted {rate:.1} for one"));
    let remark = last(&rates).map_or_else(String::new, |rate| format!("{rate:.1} tokens/s{predicted}"));
    let chart = Chart { title: "Measured", remark, values: &rates, mark: chart::short, axis: &axis };
    chart::draw(theme, frame, areas[0], chart);
    let remark = last(&shares).map_or_else(String::new, |share| format!("{} of the time", percent(share)));
    let chart = Chart { title: "Waiting and network", remark, values: &shares, mark: percent, axis: &axis };
    chart::draw(theme, frame, areas[1], chart);
}
