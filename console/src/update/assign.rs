//! When this console assigns a topology, and which: the one that was asked for, or the planner's best if the layout was left open.
use super::{
    operate,
    plan::{self, Inquiry},
};
use crate::{
    effect::Effect,
    state::{Assignment, State, plan::Planning},
    wanted::Wanted,
};

/// Assigns now if every node that is in is there and has said what it knows of nodes that are out, else as soon as they have.
pub(super) fn assign(state: &mut State) -> Vec<Effect> {
    if state.assigns_best {
        // The answer may have come while it could not be used.
        return if state.planning == Planning::Asked { Vec::new() } else { on_planned(state) };
    }
    let Some(wanted) = state.assignable().filter(|_| !state.readonly) else { return Vec::new() };
    if !state.all_report() {
        state.wanted.get_or_insert(wanted);
        state.assignment = Assignment::WaitsForNodes;
        return Vec::new();
    }
    let asked = state.asked.take();
    if let (true, Some(asked), Some((topology, _))) = (state.is_ready(), &asked, state.topology())
        && asked.is_met_by(topology)
    {
        // The running topology is used as it is.
        state.assignment = Assignment::Nothing;
        state.wanted = None;
        return Vec::new();
    }
    let is_start = asked.is_some();
    if asked.is_some_and(|asked| asked.leaves_layout_open())
        && let Some(inquiry) = plan::inquire(state, &wanted)
    {
        state.wanted = Some(wanted);
        state.assigns_best = true;
        state.assignment = Assignment::WaitsForNodes;
        return match inquiry {
            Inquiry::Answered => on_planned(state),
            Inquiry::Pending => Vec::new(),
            Inquiry::New(ask) => plan::put(state, ask),
        };
    }
    let members = state.usable();
    assign_to(state, wanted, members, is_start)
}

/// Assigns, or asks for confirmation if that would replace another topology.
fn assign_to(state: &mut State, wanted: Wanted, members: Vec<usize>, is_start: bool) -> Vec<Effect> {
    if replaces(state, &wanted, is_start) {
        state.assignment = Assignment::Nothing;
        state.wanted = None;
        operate::ask_assign(state, wanted, members);
        return Vec::new();
    }
    state.assignment = Assignment::Loading;
    vec![Effect::Assign { wanted, members }]
}

/// Assigns the planner's best layout if the layout was left open to it, or one for all nodes if nothing could be planned. Does so later
/// while an operation runs or a node is away.
pub(super) fn on_planned(state: &mut State) -> Vec<Effect> {
    if !state.assigns_best || state.readonly || state.is_operating() || !state.all_report() {
        return Vec::new();
    }
    let Some(all) = state.assignable() else { return Vec::new() };
    if matches!(state.planning, Planning::Done(_))
        && let Some(Inquiry::New(ask)) = plan::inquire(state, &all)
    {
        // The answer is to another question: of the operator, or about other nodes.
        return plan::put(state, ask);
    }
    state.assigns_best = false;
    let (wanted, members) = plan::best(state).unwrap_or_else(|| (all, state.usable()));
    // A layout of some of the nodes cannot be assigned to all of them later.
    state.wanted = (members == state.usable()).then(|| wanted.clone());
    assign_to(state, wanted, members, true)
}

/// Whether an assignment would end something else: what serves, or at the start also what broke and may come back.
fn replaces(state: &State, wanted: &Wanted, is_start: bool) -> bool {
    let Some((topology, _)) = state.topology() else { return false };
    let is_same = topology.layout == wanted.layout && topology.model == wanted.model;
    !is_same && (is_start || state.is_ready())
}

#[cfg(test)]
#[path = "assign_tests.rs"]
mod tests;
