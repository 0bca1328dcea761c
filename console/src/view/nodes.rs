//! The table of nodes: a row each, its reason where it is not as it should be.
use ratatui::{
    Frame,
    layout::Rect,
    style::Modifier,
    text::{Line, Span},
};
use shared::{ids::MemberIndex, latency::ratio, telemetry::NodeReport};

use crate::{
    state::{
        Focus, State,
        clean::clean_line,
        node::{Node, Standing},
    },
    view::{
        format::{fit, fit_right, shorten},
        health,
        theme::Theme,
        widgets::{
            bar,
            panel::{lines, panel},
        },
    },
};

const NAME: usize = 12;
const STATE: usize = 10;
const RANK: usize = 4;
const SHARD: usize = 10;
const MEMORY: usize = 9;

/// Draws the table, scrolled so that the selected node is on it.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let usable = state.usable();
    let open = usable.iter().filter(|place| state.nodes[**place].is_open()).count();
    let out = match state.nodes.len() - usable.len() {
        0 => String::new(),
        out => format!(", {out} out"),
    };
    let remark = format!("{open} of {} connected{out}", usable.len());
    let style = if open == usable.len() { theme.dim } else { theme.warn };
    let focused = state.spot.focus == Focus::Nodes;
    let area = panel(frame, theme, area, focused, "Nodes", Span::styled(remark, style));
    if state.nodes.is_empty() {
        let hint = Line::styled(" none named; start again with --nodes ADDRESS,ADDRESS,..", theme.warn);
        return lines(frame, area, [hint]);
    }
    let height = usize::from(area.height).saturating_sub(1).max(1);
    let first = (state.selected + 1).saturating_sub(height);
    let rows =
        state.nodes.iter().enumerate().skip(first).map(|(index, node)| row(state, theme, index, node, area.width));
    lines(frame, area, std::iter::once(heading(theme)).chain(rows));
}

fn heading(theme: &Theme) -> Line<'static> {
    let cells = [
        fit("  node", NAME + 2),
        fit("state", STATE),
        fit("rank", RANK),
        fit("shard", SHARD),
        fit_right("free", MEMORY),
        health::heading(),
    ];
    Line::styled(cells.join(" "), theme.dim)
}

fn row(state: &State, theme: &Theme, index: usize, node: &Node, width: u16) -> Line<'static> {
    let standing = node.standing(state.now);
    let exclusion = state.exclusion(node);
    let (word, style) = match exclusion {
        Some(_) if node.is_open() => ("out".to_owned(), theme.warn),
        Some(_) => ("out, away".to_owned(), theme.warn),
        None => (word(standing), theme.standing(standing)),
    };
    let is_selected = index == state.selected;
    let marker = if is_selected { "▸ " } else { "  " };
    let name_style = if is_selected { theme.plain.add_modifier(Modifier::BOLD) } else { theme.plain };
    let mut spans = vec![
        Span::styled(marker, theme.accent),
        Span::styled(fit(node.name(), NAME) + " ", name_style),
        Span::styled(fit(&word, STATE) + " ", style),
    ];
    let used = 2 + NAME + 1 + STATE + 1;
    let is_live = matches!(standing, Standing::Reports(_));
    let reason = node.fault().filter(|_| !matches!(standing, Standing::Stale(_)));
    if let Some(entry) = exclusion {
        let reason = format!("{} ({})", entry.reason.as_deref().unwrap_or_default(), entry.by);
        spans.push(Span::styled(shorten(&clean_line(&reason), usize::from(width).saturating_sub(used)), theme.plain));
    } else if let Some(fault) = reason {
        let reason = if fault.node == node.name() { fault.kind.to_string() } else { fault.to_string() };
        spans.push(Span::styled(shorten(&clean_line(&reason), usize::from(width).saturating_sub(used)), theme.plain));
    } else if let Some(report) = &node.report {
        let member = state.member_of(node).map_or_else(|| "–".to_owned(), |member| place(state, member));
        let rest = format!("{} {} ", fit(&member, RANK), figures(node, report));
        spans.push(Span::styled(rest, if is_live { theme.plain } else { theme.dim }));
        spans.extend(health::spans(theme, &report.health));
    } else if node.load.is_some() {
        spans.push(Span::raw(" ".repeat(RANK + 1) + &shard(node, None)));
    }
    Line::from(spans)
}

/// The rank within its stage; with the stage and the replica where there is more than one.
fn place(state: &State, member: usize) -> String {
    let Some((topology, _)) = state.topology() else { return String::new() };
    let place = topology.place(MemberIndex(member as u16));
    let (rank, stage, replica) = (place.rank.0 - place.group.start, place.stage, place.replica);
    match (topology.layout.replicas > 1, topology.layout.stages > 1) {
        (false, false) => rank.to_string(),
        (false, true) => format!("{stage}.{rank}"),
        (true, _) => format!("{replica}.{stage}.{rank}"),
    }
}

fn figures(node: &Node, report: &NodeReport) -> String {
    let free = report.health.memory.map_or_else(|| "–".to_owned(), |memory| memory.available.to_string());
    [shard(node, Some(report)), fit_right(&free, MEMORY)].join(" ")
}

/// Progress while it loads, else what it holds.
fn shard(node: &Node, report: Option<&NodeReport>) -> String {
    match (node.load, report) {
        (Some(load), _) => {
            let share = ratio(load.done.0 as f64, load.total.0 as f64);
            let percent = format!("{:.0} %", share * 100.0);
            bar::progress(share, SHARD - 5) + &fit_right(&percent, 5)
        }
        (None, Some(report)) if report.shard.0 > 0 => fit(&report.shard.to_string(), SHARD),
        _ => fit("–", SHARD),
    }
}

fn word(standing: Standing) -> String {
    match standing {
        Standing::Connecting => "dialling".to_owned(),
        Standing::Away => "away".to_owned(),
        Standing::Lost => "lost".to_owned(),
        Standing::Stale(seconds) => format!("stale {seconds} s"),
        Standing::Silent => "connected".to_owned(),
        Standing::Reports(state) => state.name().to_owned(),
    }
}
