//! When this console assigns a topology, and which one: the requested one, or the planner's best if the layout was left
//! open.
use super::{
    plan::{self, Inquiry},
    question,
};
use crate::{
    operator::desired::DesiredTopology,
    state::{AssignmentStatus, State, plan::Planning},
    update::effect::Effect,
};

/// Assigns now if every included node is connected and has reported its exclusions; otherwise as soon as they have.
pub(super) fn assign(state: &mut State) -> Vec<Effect> {
    if state.plan.assigns_best {
        // The plan may have arrived at a moment when it could not be used.
        return if state.plan.answer == Planning::Asked { Vec::new() } else { on_planned(state) };
    }
    let Some(wanted) = state.assignable().filter(|_| !state.readonly) else { return Vec::new() };
    if !state.cluster.all_report() {
        state.plan.desired.get_or_insert(wanted);
        state.cluster.assignment = AssignmentStatus::WaitsForNodes;
        return Vec::new();
    }
    let asked = state.plan.requested.take();
    if let (true, Some(asked), Some((topology, _))) = (state.cluster.is_ready(), &asked, state.cluster.topology())
        && asked.is_met_by(topology)
    {
        // Reuse the running topology.
        state.cluster.assignment = AssignmentStatus::Nothing;
        state.plan.desired = None;
        return Vec::new();
    }
    let is_start = asked.is_some();
    if asked.is_some_and(|asked| asked.leaves_layout_open())
        && let Some(inquiry) = plan::inquire(state, &wanted)
    {
        state.plan.desired = Some(wanted);
        state.plan.assigns_best = true;
        state.cluster.assignment = AssignmentStatus::WaitsForNodes;
        return match inquiry {
            Inquiry::Answered => on_planned(state),
            Inquiry::Pending => Vec::new(),
            Inquiry::New(ask) => plan::put(state, ask),
        };
    }
    let members = state.cluster.usable();
    assign_to(state, wanted, members, is_start)
}

/// Assigns, or asks for confirmation first if the assignment would replace another topology.
fn assign_to(state: &mut State, wanted: DesiredTopology, members: Vec<usize>, is_start: bool) -> Vec<Effect> {
    if replaces(state, &wanted, is_start) {
        state.cluster.assignment = AssignmentStatus::Nothing;
        state.plan.desired = None;
        question::ask_assign(state, wanted, members);
        return Vec::new();
    }
    state.cluster.assignment = AssignmentStatus::Loading;
    vec![Effect::Assign { wanted, members }]
}

/// Assigns the planner's best layout if the layout was left open, or a layout for all nodes if planning failed.
/// Deferred while an operation runs or a node is disconnected.
pub(super) fn on_planned(state: &mut State) -> Vec<Effect> {
    if !state.plan.assigns_best || state.readonly || state.is_operating() || !state.cluster.all_report() {
        return Vec::new();
    }
    let Some(all) = state.assignable() else { return Vec::new() };
    if matches!(state.plan.answer, Planning::Done(_))
        && let Some(Inquiry::New(ask)) = plan::inquire(state, &all)
    {
        // The plan answers another query: the operator's, or one about other nodes.
        return plan::put(state, ask);
    }
    state.plan.assigns_best = false;
    let (wanted, members) = plan::best(state).unwrap_or_else(|| (all, state.cluster.usable()));
    // A layout for some of the nodes cannot be assigned to all of them later.
    state.plan.desired = (members == state.cluster.usable()).then(|| wanted.clone());
    assign_to(state, wanted, members, true)
}

/// Whether an assignment would replace a topology that serves or, at the start, another one that broke and may recover.
/// At the start, a serving topology does not meet the request, or it would have been reused: its settings differ, even
/// with the same layout and model. Unless it serves, the same layout and model restore it.
fn replaces(state: &State, wanted: &DesiredTopology, is_start: bool) -> bool {
    let Some((topology, _)) = state.cluster.topology() else { return false };
    let is_same = topology.layout == wanted.layout && topology.model == wanted.model;
    if is_start { !is_same || state.cluster.is_ready() } else { !is_same && state.cluster.is_ready() }
}

#[cfg(test)]
mod tests;
