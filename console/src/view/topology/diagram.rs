//! The small topology diagram of the Cluster page: replicas, their stages, and their ranks with a sign for their
//! condition.
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use telemetry::NodeState;
use topology::{Role, Topology};

use crate::{
    state::{State, node::NodeStatus, nodes},
    view::{
        theme::Theme,
        widgets::panel::{lines, panel},
    },
};

/// Renders the small diagram of the Cluster page.
pub(in crate::view) fn draw(state: &State, theme: &Theme, frame: &mut Frame, area: Rect) {
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

/// The sign of a rank's condition.
pub(super) fn sign(state: &State, theme: &Theme, member: usize) -> (&'static str, ratatui::style::Style) {
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
