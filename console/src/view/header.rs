//! The two header lines: topology and status; figures of the request.
use common::latency::ratio;
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};

use crate::{
    state::{
        State,
        lateness::{ranks, straggler},
        nodes::{requests, tokens_per_second},
        requests::latencies,
        status::{ClusterStatus, status},
        sync::slow_pipeline,
    },
    view::{
        format::{milliseconds, percent, shorten, width},
        theme::Theme,
    },
};

/// Renders the header.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let (word, style) = standing(state, theme);
    let cells = usize::from(area.width);
    let left = what_runs(state);
    let word = shorten(&word, cells / 2);
    let name = match (&state.preferences.replay, state.readonly) {
        (Some(_), _) => " bramble, a recording  ",
        (None, true) => " bramble, read-only  ",
        (None, false) => " bramble  ",
    };
    let name = Span::styled(name, theme.accent);
    let left = shorten(&left, cells.saturating_sub(width(&name.content) + width(&word) + 3));
    let gap = cells.saturating_sub(width(&name.content) + width(&left) + width(&word) + 1);
    let spans = [name, Span::styled(left, theme.plain), Span::raw(" ".repeat(gap)), Span::styled(word, style)];
    frame.render_widget(Line::from_iter(spans), Rect { height: 1, ..area });
    let figures = Rect { y: area.y + 1, height: 1, ..area };
    frame.render_widget(figures_line(state, theme), figures);
}

fn what_runs(state: &State) -> String {
    let Some((topology, epoch)) = state.cluster.topology() else {
        let wanted = state.plan.desired.as_ref();
        return wanted
            .map_or_else(|| "no topology".to_owned(), |wanted| format!("{}  {}", wanted.layout, wanted.model));
    };
    let (layout, exchange, kv) = (topology.layout, topology.exchange, topology.kv);
    let model = crate::state::clean::clean_line(&topology.model);
    format!("{layout}  epoch {epoch}  {model}  ctx {}  kv {kv}  exchange {exchange}", topology.context_length)
}

fn standing(state: &State, theme: &Theme) -> (String, Style) {
    match status(state) {
        ClusterStatus::Empty => ("no nodes".to_owned(), theme.bad),
        ClusterStatus::Connecting => ("connecting".to_owned(), theme.warn),
        ClusterStatus::WaitsFor(node) => (format!("waits for {}", node.name()), theme.warn),
        ClusterStatus::Loading(share) => (format!("loading {}", percent(share)), theme.warn),
        ClusterStatus::Committing => ("opening links".to_owned(), theme.warn),
        ClusterStatus::Refused(_) => ("not assigned".to_owned(), theme.bad),
        ClusterStatus::Restarting => ("restarting".to_owned(), theme.warn),
        ClusterStatus::Changing => ("changing".to_owned(), theme.warn),
        ClusterStatus::Broken(name) => (format!("broken: {name}"), theme.bad),
        ClusterStatus::Cordoned(name) => (format!("cordoned: {name}"), theme.warn),
        ClusterStatus::Silent(node) => (format!("silent: {}", node.name()), theme.warn),
        ClusterStatus::Idle => ("idle".to_owned(), theme.dim),
        ClusterStatus::Ready => ("ready".to_owned(), theme.ok),
        ClusterStatus::Serving => ("serving".to_owned(), theme.ok),
    }
}

fn figures_line(state: &State, theme: &Theme) -> Line<'static> {
    let request = &state.generation.request;
    let figure = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
    // Figures of this console's request while it runs, otherwise of recently finished requests.
    let (ttft_all, tpot_all) = latencies(state);
    let (ttft, tpot) = match request.is_sent() {
        true => (request.ttft_ms(), request.tpot_ms()),
        false => (ttft_all, tpot_all),
    };
    // Heads count once per second; until then the rate of this console's running request is more accurate.
    let own = tpot.filter(|_| request.is_sent() && state.cluster.is_ready()).map(|tpot| ratio(1e3, tpot));
    let all = tokens_per_second(state);
    let rate = all.filter(|rate| *rate > 0.0).or(own).or(all);
    // Between requests nothing is computed; past figures are shown on the request's page.
    let network = state.network_fraction();
    let figures = [
        ("", figure(rate.map(|rate| format!("{rate:.1}"))) + " tokens/s"),
        ("TTFT ", figure(ttft.map(milliseconds))),
        ("TPOT ", figure(tpot.map(milliseconds))),
        ("network ", figure(network.map(percent))),
        ("req ", requests(state).to_string()),
    ];
    let spans = figures.into_iter().flat_map(|(label, value)| {
        [Span::styled(format!(" {label}"), theme.dim), Span::styled(value, theme.plain), Span::raw(" ")]
    });
    let rows = if state.layers_move() { ranks(state) } else { Vec::new() };
    let late = straggler(&rows).and_then(|row| row.node.map(|node| (state.cluster.nodes[node].name(), row.late)));
    let late = late.map(|(name, share)| format!(" {name} delays {}", percent(share)));
    let late = late.or_else(|| {
        let (node, factor) = slow_pipeline(state).filter(|_| state.layers_move())?;
        Some(format!(" slow {} {factor:.1}x", state.cluster.nodes[node].name()))
    });
    Line::from_iter(spans.chain(late.map(|text| Span::styled(text, theme.warn))))
}
