//! The topology diagram: replicas, their stages, and their ranks with a sign for their condition. The Topology page
//! adds names, layers, memory and, above the diagram, the planner's candidates.
use common::units::Bytes;
use planner::working::RankMemory;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
};
use telemetry::NodeState;
use topology::{Role, Topology};

use crate::{
    state::{
        Extent, Panel, State,
        clean::clean_line,
        node::NodeStatus,
        nodes,
        plan::{Planning, division, span},
    },
    view::{
        format::{fit, shorten},
        tables::{self, TableTexts},
        theme::Theme,
        widgets::panel::{hit, lines, panel},
    },
};

/// Width of a rank with its name, layers and memory, in cells.
const RANK_CELLS: usize = 96;

/// Renders the page: candidates and the running topology.
pub(super) fn draw_page(state: &State, theme: &Theme, frame: &mut Frame, area: Rect, extent: &mut Extent) {
    let rows = state
        .cluster
        .topology()
        .map_or(1, |(topology, _)| topology.members.len() + topology.layout.stages as usize + 2);
    let upper = (rows as u16 + 1).clamp(3, area.height.saturating_sub(6).min(area.height / 2 + 2));
    let [above, below] = Layout::vertical([Constraint::Length(upper), Constraint::Fill(1)]).areas(area);
    (extent.panels[0], extent.panels[1]) = (hit(below), hit(above));
    draw_running(state, theme, frame, above, extent);
    let (title, remark, empty) = match &state.plan.answer {
        Planning::Nothing => {
            ("Candidates", Span::raw(""), "p asks the planner which layouts fit and how fast they would be.".to_owned())
        }
        Planning::Asked => {
            ("Candidates", Span::styled("planning", theme.warn), "The planner simulates the layouts.".to_owned())
        }
        Planning::Failed(fault) => {
            ("Candidates", Span::styled("failed", theme.bad), clean_line(&format!("{fault}; {}", fault.kind.next())))
        }
        Planning::Done(planned) => {
            let remark = format!("simulated as Pis on 1 Gbit/s, ctx {}", planned.context);
            ("Candidates, predicted", Span::styled(remark, theme.dim), String::new())
        }
    };
    tables::draw(state, theme, frame, below, TableTexts { title, remark, empty: &empty }, extent);
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
    let all = ranks(state, theme, topology, usize::from(inner.width));
    (extent.picture_lines, extent.picture_height) = (all.len(), usize::from(inner.height));
    let first = state.screen.scroll.picture.min(all.len().saturating_sub(usize::from(inner.height)));
    lines(frame, inner, all.into_iter().skip(first));
}

/// One line per rank, or two ranks per line if they fit.
fn ranks(state: &State, theme: &Theme, topology: &Topology, width: usize) -> Vec<Line<'static>> {
    let division = division(state);
    let layout = topology.layout;
    let a_row = (width / RANK_CELLS).max(1);
    let mut picture = Vec::new();
    for replica in 0..layout.replicas {
        let ranks = usize::from(layout.ranks_of(replica));
        for stage in 0..usize::from(layout.stages) {
            let first = layout.members(replica).start + stage * ranks;
            let members: Vec<usize> = (first..first + ranks).collect();
            let layers =
                topology.members.get(first).map_or(0..0, |one| one.layers.start as usize..one.layers.end as usize);
            let role =
                if layout.role(replica) == Role::Both { String::new() } else { format!(" ({})", layout.role(replica)) };
            let title = format!(" replica {replica}{role} › stage {stage} › layers {}", span(&layers));
            picture.push(Line::styled(title, theme.plain));
            for members in members.chunks(a_row) {
                let spans =
                    members.iter().flat_map(|member| rank(state, theme, topology, *member, first, division.as_deref()));
                picture.push(Line::from_iter(spans));
            }
        }
    }
    picture
}

/// The components of a rank's memory, in whole MiB.
fn parts(memory: &RankMemory) -> String {
    let mib = |bytes: Bytes| (bytes.0 as f64 / (1_u64 << 20) as f64).round();
    let RankMemory { weights, kv, state, working } = *memory;
    format!(
        "{:>5} weights +{:>4} KV +{} state +{:>4} working={:>6} MiB",
        mib(weights),
        mib(kv),
        mib(state),
        mib(working),
        mib(memory.total())
    )
}

fn rank(
    state: &State,
    theme: &Theme,
    topology: &Topology,
    member: usize,
    first: usize,
    division: Option<&[RankMemory]>,
) -> Vec<Span<'static>> {
    let (sign, style) = sign(state, theme, member);
    let Some(known) = topology.members.get(member) else { return Vec::new() };
    let node = state.cluster.node_of(member);
    let is_live = node.is_some_and(|node| matches!(node.status(state.now), NodeStatus::Reports(_)));
    let report = node.and_then(|node| node.report.as_ref());
    let memory = match division.and_then(|all| all.get(member)) {
        Some(memory) => parts(memory),
        None => report.map_or_else(|| "–".to_owned(), |report| format!("weights and KV {}", report.shard)),
    };
    let blocks = report
        .and_then(|report| report.kv)
        .map_or_else(String::new, |kv| format!("{} of {} KV blocks", kv.held + kv.kept, kv.total));
    let head =
        if member == first && topology.place(common::ids::MemberIndex(member as u16)).is_head() { "head" } else { "" };
    let text = format!(" {} {} {memory}  {blocks}", fit(&clean_line(&known.name), 10), fit(head, 4));
    let text_style: Style = if is_live { theme.plain } else { theme.dim };
    vec![
        Span::styled(format!("   {sign}{:<3}", member - first), style),
        Span::styled(fit(&shorten(&text, RANK_CELLS - 7), RANK_CELLS - 7), text_style),
    ]
}

/// Renders the small diagram of the Cluster page.
pub(super) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
    let known = state.cluster.topology().map(|(topology, _)| topology);
    let remark = known.map_or_else(String::new, |topology| topology.layout.to_string());
    let area = panel(frame, theme, area, false, "Topology", Span::styled(remark, theme.dim));
    match known {
        Some(topology) => lines(frame, area, picture(state, theme, topology, usize::from(area.width))),
        None => {
            let hint = state.plan.desired.as_ref().map_or("none", |_| "not assigned yet");
            lines(frame, area, [Line::styled(format!(" {hint}"), theme.dim)]);
        }
    }
}

fn picture(state: &State, theme: &Theme, topology: &Topology, width: usize) -> Vec<Line<'static>> {
    let layout = topology.layout;
    let most = (0..layout.replicas).map(|replica| layout.ranks_of(replica)).max().unwrap_or(1);
    // A sign, the number and a space.
    let cell = 2 + (most.saturating_sub(1)).to_string().len();
    let a_row = (width.saturating_sub(3) / cell).max(1);
    let mut picture = Vec::new();
    for replica in 0..layout.replicas {
        let (role, ranks) = (layout.role(replica), usize::from(layout.ranks_of(replica)));
        let role = if role == Role::Both { String::new() } else { format!(" {role}") };
        picture.push(Line::styled(format!(" replica {replica}{role}"), theme.plain));
        for stage in 0..usize::from(layout.stages) {
            picture.push(Line::styled(format!(" └ stage {stage}"), theme.dim));
            let first = layout.members(replica).start + stage * ranks;
            let members: Vec<usize> = (first..first + ranks).collect();
            for members in members.chunks(a_row) {
                let mut spans = vec![Span::raw("   ")];
                for member in members {
                    let (sign, style) = sign(state, theme, *member);
                    spans.push(Span::styled(format!("{:<cell$}", format!("{sign}{}", member - first)), style));
                }
                picture.push(Line::from(spans));
            }
        }
    }
    let head = layout.heads().next().and_then(|head| topology.members.get(head.index()));
    if let Some(head) = head {
        picture.push(Line::styled(format!(" head {}", crate::state::clean::clean_line(&head.name)), theme.dim));
    }
    picture
}

fn sign(state: &State, theme: &Theme, member: usize) -> (&'static str, ratatui::style::Style) {
    let Some(node) = state.cluster.node_of(member) else { return ("?", theme.dim) };
    let standing = node.status(state.now);
    if standing == NodeStatus::Reports(NodeState::Faulted) && nodes::waited_for(state, node).is_some() {
        return ("○", theme.warn);
    }
    let sign = match standing {
        NodeStatus::Away | NodeStatus::Lost | NodeStatus::Reports(NodeState::Faulted) => "✗",
        NodeStatus::Stale(_) | NodeStatus::Silent | NodeStatus::Connecting => "?",
        NodeStatus::Reports(NodeState::Ready | NodeState::Serving) => "●",
        NodeStatus::Reports(_) => "○",
    };
    (sign, theme.status(standing))
}
