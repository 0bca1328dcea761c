//! The ranks of the running topology: a block for each with its layers, its memory and its link, as many lines as fit.
use common::{ids::MemberIndex, latency::ratio, units::Bytes};
use planner::working::RankMemory;
use ratatui::{
    style::Style,
    text::{Line, Span},
};
use topology::{Role, Topology};

use super::diagram::sign;
use crate::{
    state::{
        State,
        clean::clean_line,
        node::{Node, NodeStatus},
        nodes,
        plan::{division, span},
    },
    view::{
        format::{fit, fit_right, shorten, width},
        theme::Theme,
        trend::Trends,
        widgets::{bar::stacked, graph::EIGHTHS},
    },
};

/// Least width of a block, in cells.
const BLOCK: usize = 56;
/// Width of a bar's label and of its figure.
const LABEL: usize = 11;
const FIGURE: usize = 23;
/// Width of a rank's sign, number and name.
const NAME: usize = 16;
/// Lines of a block that has room.
const LINES_MAX: usize = 4;

/// Lines wanted at a width, at most `most`.
pub(super) fn height(state: &State, width: u16, most: u16) -> u16 {
    let Some((topology, _)) = state.cluster.topology() else { return 1 };
    let size = [width, most];
    let wanted = total(topology, columns(topology, width), lines_of_block(topology, size));
    (wanted as u16).min(most).max(1)
}

/// The stages with their ranks.
pub(super) fn picture(state: &State, theme: &Theme, topology: &Topology, size: [u16; 2]) -> Vec<Line<'static>> {
    let [width, _] = size;
    let division = division(state);
    let a_row = columns(topology, width);
    let rows = lines_of_block(topology, size);
    let cells = (usize::from(width) + 1) / a_row - 1;
    let layout = topology.layout;
    let mut picture = Vec::new();
    for replica in 0..layout.replicas {
        let ranks = usize::from(layout.ranks_of(replica));
        for stage in 0..usize::from(layout.stages) {
            let first = layout.members(replica).start + stage * ranks;
            picture.push(heading(theme, topology, [usize::from(replica), stage, first], usize::from(width)));
            let members: Vec<usize> = (first..first + ranks).collect();
            for members in members.chunks(a_row) {
                let blocks = members.iter().map(|member| {
                    let rank = RankBlock { state, theme, topology, member: *member, first, cells };
                    rank.lines(rows, division.as_deref().and_then(|all| all.get(*member)))
                });
                let blocks: Vec<Vec<Vec<Span>>> = blocks.collect();
                picture.extend((0..rows).map(|row| {
                    let spans = blocks.iter().flat_map(|block| block[row].iter().cloned().chain([Span::raw(" ")]));
                    Line::from_iter(spans)
                }));
            }
        }
    }
    picture
}

/// Blocks side by side.
fn columns(topology: &Topology, width: u16) -> usize {
    let most = (0..topology.layout.replicas).map(|replica| usize::from(topology.layout.ranks_of(replica))).max();
    let most = most.unwrap_or(1).max(1);
    let fit = ((usize::from(width) + 1) / (BLOCK + 1)).clamp(1, most);
    // As many in every row, if possible.
    most.div_ceil(most.div_ceil(fit))
}

/// Lines of all stages with blocks of so many lines.
fn total(topology: &Topology, a_row: usize, lines: usize) -> usize {
    let layout = topology.layout;
    (0..layout.replicas)
        .map(|replica| {
            let rows = usize::from(layout.ranks_of(replica)).div_ceil(a_row);
            usize::from(layout.stages) * (1 + rows * lines)
        })
        .sum()
}

/// The most lines of a block with which all fit.
fn lines_of_block(topology: &Topology, [width, height]: [u16; 2]) -> usize {
    let a_row = columns(topology, width);
    (1..=LINES_MAX).rev().find(|lines| total(topology, a_row, *lines) <= usize::from(height)).unwrap_or(1)
}

/// A stage's title with the legend of its bars.
fn heading(theme: &Theme, topology: &Topology, [replica, stage, first]: [usize; 3], width: usize) -> Line<'static> {
    let role = topology.layout.role(replica as u16);
    let role = if role == Role::Both { String::new() } else { format!(" ({role})") };
    let layers = topology.members.get(first).map_or(0..0, |one| one.layers.start as usize..one.layers.end as usize);
    let title = format!(" replica {replica}{role} › stage {stage} › layers {}", span(&layers));
    let legend = [
        ("█", "weights", theme.ok),
        ("▓", "KV", theme.accent),
        ("▒", "work space", theme.warn),
        ("▒", "others", theme.dim),
    ];
    let cells: usize = legend.iter().map(|(_, name, _)| name.len() + 3).sum();
    let room = width.saturating_sub(self::width(&title) + 1);
    let mut spans = vec![Span::styled(title, theme.plain)];
    if room > cells + 10 {
        spans.push(Span::styled(format!(" {} ", "╌".repeat(room - cells - 2)), theme.faint));
        for (glyph, name, style) in legend {
            spans.extend([Span::styled(glyph, style), Span::styled(format!(" {name} "), theme.dim)]);
        }
    }
    Line::from(spans)
}

/// A rank of the topology and the width of its block.
struct RankBlock<'a> {
    state: &'a State,
    theme: &'a Theme,
    topology: &'a Topology,
    member: usize,
    first: usize,
    cells: usize,
}

impl RankBlock<'_> {
    fn lines(&self, rows: usize, memory: Option<&RankMemory>) -> Vec<Vec<Span<'static>>> {
        if rows == 1 {
            let mut line = self.name();
            line.extend(self.memory(memory, self.cells.saturating_sub(NAME)));
            return vec![line];
        }
        let room = self.cells.saturating_sub(LABEL);
        let bars =
            [("memory", self.memory(memory, room)), ("layers", self.layers(room)), ("traffic", self.traffic(room))];
        let bars = bars.into_iter().take(rows - 1).map(|(name, bar)| {
            let label = Span::styled(format!("   {}", fit(name, LABEL - 3)), self.theme.dim);
            std::iter::once(label).chain(bar).collect()
        });
        std::iter::once(self.title()).chain(bars).collect()
    }

    fn node(&self) -> Option<&Node> {
        self.state.cluster.node_of(self.member)
    }

    /// A style for current figures; old ones are dim.
    fn current(&self, style: Style) -> Style {
        let is_live = self.node().is_some_and(|node| matches!(node.status(self.state.now), NodeStatus::Reports(_)));
        if is_live { style } else { self.theme.dim }
    }

    /// The rank's sign, number and name.
    fn name(&self) -> Vec<Span<'static>> {
        let (sign, style) = sign(self.state, self.theme, self.member);
        let name = self.topology.members.get(self.member).map_or_else(String::new, |known| clean_line(&known.name));
        vec![
            Span::styled(format!(" {sign}{:<3}", self.member - self.first), style),
            Span::styled(fit(&name, NAME - 6) + " ", self.current(self.theme.plain)),
        ]
    }

    /// The rank in words, on a rule.
    fn title(&self) -> Vec<Span<'static>> {
        let mut words = Vec::new();
        if self.topology.place(MemberIndex(self.member as u16)).is_head() {
            words.push("head".to_owned());
        }
        if let Some(node) = self.node() {
            words.push(nodes::status_cell(self.state, node).text);
        }
        if let Some(member) = self.topology.members.get(self.member) {
            words.push(format!("{} thread{}", member.threads, if member.threads == 1 { "" } else { "s" }));
        }
        let blocks = self.node().and_then(|node| node.report.as_ref()?.kv);
        words.extend(blocks.map(|kv| format!("{} of {} KV blocks", kv.held + kv.kept, kv.total)));
        let text = shorten(&words.join(", "), self.cells.saturating_sub(NAME + 2));
        let rest = self.cells.saturating_sub(NAME + width(&text) + 1);
        let mut spans = self.name();
        spans.push(Span::styled(text + " ", self.theme.dim));
        spans.push(Span::styled("╌".repeat(rest), self.theme.faint));
        spans
    }

    /// The machine's memory as a bar: the rank's parts, other programs, and free memory.
    fn memory(&self, memory: Option<&RankMemory>, room: usize) -> Vec<Span<'static>> {
        let report = self.node().and_then(|node| node.report.as_ref());
        let shard = report.map_or(Bytes(0), |report| report.shard);
        let parts = memory.copied().unwrap_or(RankMemory { weights: shard, ..RankMemory::default() });
        let own = parts.total().0;
        let machine = report.and_then(|report| report.health.memory).filter(|memory| memory.total.0 > 0);
        let total = machine.map_or(own, |memory| memory.total.0.max(own)).max(1);
        let used = machine.map_or(own, |memory| memory.total.0.saturating_sub(memory.available.0)).max(own);
        let cells = room.saturating_sub(FIGURE);
        let theme = self.theme;
        let bar = [
            (parts.weights.0, "█", self.current(theme.ok)),
            (parts.kv.0 + parts.state.0, "▓", self.current(theme.accent)),
            (parts.working.0, "▒", self.current(theme.warn)),
            (used - own, "▒", theme.dim),
            (total.saturating_sub(used), "░", theme.faint),
        ];
        let mut spans = stacked(&bar, total, cells);
        let figure = match machine {
            Some(memory) => format!("{} of {}", Bytes(own), memory.total),
            None => Bytes(own).to_string(),
        };
        spans.push(Span::styled(fit_right(&figure, FIGURE), self.current(theme.plain)));
        spans
    }

    /// The model's layers from the first to the last: how much of each the rank holds.
    fn layers(&self, room: usize) -> Vec<Span<'static>> {
        let Some(member) = self.topology.members.get(self.member) else { return vec![Span::raw(" ".repeat(room))] };
        let all = self.topology.members.iter().map(|one| one.layers.end).max().unwrap_or(0).max(1) as usize;
        let place = self.topology.place(MemberIndex(self.member as u16));
        let ranks = usize::from(self.topology.layout.ranks_of(place.replica));
        let stage = self.topology.members.iter().skip(self.first).take(ranks);
        let weights: u64 = stage.map(|one| u64::from(one.weight)).sum();
        let share = ratio(f64::from(member.weight), weights as f64);
        let glyph = EIGHTHS[((share * 8.0).round() as usize).clamp(1, 8)];
        let cells = room.saturating_sub(FIGURE);
        let own = member.layers.start as usize..member.layers.end as usize;
        let mut spans: Vec<Span> = Vec::new();
        for cell in 0..cells {
            let is_own = own.contains(&(cell * all / cells));
            let (glyph, style) = if is_own { (glyph, self.theme.ok) } else { (EIGHTHS[0], self.theme.faint) };
            spans.push(Span::styled(glyph.to_string(), style));
        }
        let figure = match ranks {
            1 => format!("{} of {all}", own.len()),
            _ => format!("{:.0} % of {}", share * 100.0, span(&own)),
        };
        spans.push(Span::styled(fit_right(&figure, FIGURE), self.theme.plain));
        spans
    }

    /// The last seconds of the link's traffic.
    fn traffic(&self, room: usize) -> Vec<Span<'static>> {
        let cells = room.saturating_sub(FIGURE);
        let Some(node) = self.node() else { return vec![Span::raw(" ".repeat(room))] };
        let trends = Trends::of(self.state, self.theme, node, [cells, 1]);
        let trend = trends.trend(|one| one.bytes_per_second, None, nodes::traffic);
        let link = node.report.as_ref().and_then(|report| report.health.link.as_ref()?.mbit);
        let link = link.map_or_else(String::new, |mbit| format!(" of {}", nodes::link_speed(mbit)));
        let mut spans = trend.graph.into_iter().next().unwrap_or_default();
        spans.push(Span::styled(fit_right(&format!("{}{link}", trend.figure), FIGURE), trend.style));
        spans
    }
}
