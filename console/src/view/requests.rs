//! The Requests page: running and waiting requests on all heads and the last finished ones, with the times of their
//! stages; below, where there is room, the latencies of the latest ones.
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    text::Span,
};

use crate::{
    state::{
        Extent, State, nodes,
        requests::{finished, table},
    },
    view::{
        chart::{self, Chart},
        format::milliseconds,
        tables::{self, TableTexts},
        theme::Theme,
    },
};

/// Lines of the table beside its rows: rule, heading, filter, and the selected row's text.
const TABLE_LINES: u16 = 7;
/// Least and greatest height of the charts.
const CHART_LINES: (u16, u16) = (6, 16);

/// Renders the page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let remark = match nodes::requests(state) {
        0 => "none under way".to_owned(),
        count => format!("{count} under way"),
    };
    let rows = table(state).rows.len() as u16;
    let charts = area.height.saturating_sub(rows.saturating_add(TABLE_LINES)).min(CHART_LINES.1);
    let charts = if charts >= CHART_LINES.0 && rows > 0 { charts } else { 0 };
    let [above, below] = Layout::vertical([Constraint::Fill(1), Constraint::Length(charts)]).areas(area);
    let empty = "No request yet. i opens the prompt box.";
    let texts = TableTexts { title: "Requests", remark: Span::styled(remark, theme.dim), empty };
    tables::draw(state, theme, frame, above, texts, extent);
    if charts > 0 {
        latencies(state, theme, frame, below);
    }
}

/// A bar for each of the latest finished requests.
fn latencies(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let finished = finished(state);
    let ttft: Vec<Option<f64>> = finished.iter().map(|times| Some(times.ttft_ms())).collect();
    let tpot: Vec<Option<f64>> =
        finished.iter().filter(|times| times.sampled_tokens > 1).map(|times| Some(times.tpot_ms())).collect();
    let columns = [Constraint::Fill(1), Constraint::Fill(1)];
    let [left, right] = Layout::horizontal(columns).spacing(1).areas(area);
    for (title, values, area) in [("TTFT of finished requests", ttft, left), ("TPOT of finished requests", tpot, right)]
    {
        let last = values.last().copied().flatten();
        let remark =
            last.map_or_else(String::new, |last| format!("last {}, {} shown", milliseconds(last), values.len()));
        chart::draw(theme, frame, area, Chart { title, remark, values: &values, mark });
    }
}

/// The end of a scale in milliseconds.
fn mark(high: f64) -> String {
    if high >= 1000.0 { format!("{} s", high / 1000.0) } else { format!("{high}ms") }
}
