//! Graphs of the cluster's last minutes: tokens per second, requests, and the network's share.
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
};

use crate::{
    state::{
        State,
        pulse::{ClusterMoment, moments},
    },
    view::{
        chart::{self, Chart},
        format::percent,
        theme::Theme,
    },
};

/// From this width there is a third graph.
const WIDTH_THREE: u16 = 110;

/// A graph: its title, its figure, how that is written, and how the end of the scale is.
struct Pulse {
    title: &'static str,
    of: fn(&ClusterMoment) -> Option<f64>,
    write: fn(f64) -> String,
    mark: fn(f64) -> String,
}

const PULSES: [Pulse; 3] = [
    Pulse {
        title: "Tokens/s",
        of: |moment| moment.tokens_per_second,
        write: |rate| format!("{rate:.1}"),
        mark: |high| format!("{high}"),
    },
    Pulse {
        title: "Requests",
        of: |moment| moment.requests,
        write: |count| format!("{count:.0}"),
        mark: |high| format!("{high}"),
    },
    Pulse { title: "Network", of: |moment| moment.network, write: percent, mark: percent },
];

/// Renders the graphs that fit side by side.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    if area.height < 2 {
        return;
    }
    let count = if area.width >= WIDTH_THREE { 3 } else { 2 };
    let areas = Layout::horizontal(vec![Constraint::Fill(1); count]).spacing(1).split(area);
    for (pulse, area) in PULSES.iter().zip(areas.iter()) {
        let moments = moments(state, chart::cells(*area));
        let values: Vec<Option<f64>> = moments.iter().map(pulse.of).collect();
        let most = values.iter().flatten().copied().fold(0.0, f64::max);
        let now = values.last().copied().flatten().map_or_else(|| "–".to_owned(), pulse.write);
        let remark = format!("{now}, max {}, {} s", (pulse.write)(most), moments.len());
        chart::draw(
            theme,
            frame,
            *area,
            Chart { title: pulse.title, remark, values: &values, mark: pulse.mark, axis: "" },
        );
    }
}
