//! The planner on the screen: ask it, show a candidate's preview, assign it.
use super::operate;
use crate::{
    effect::Effect,
    planned::share_a_machine,
    state::{
        Page, State,
        node::Node,
        plan::{self, Planning},
        tables,
    },
    wanted::Wanted,
};

/// `p`: asks the planner.
pub(super) fn ask(state: &mut State) -> Vec<Effect> {
    if state.planning == Planning::Asked {
        state.notice = Some("the planner is asked already".to_owned());
        return Vec::new();
    }
    match plan::ask(state) {
        Some(ask) => {
            state.planning = Planning::Asked;
            vec![Effect::Plan(Box::new(ask))]
        }
        None => {
            state.notice =
                Some("no model to plan for: start the console with --model, or wait for the nodes".to_owned());
            Vec::new()
        }
    }
}

/// Asks the planner before an assignment, unless it was asked already or nodes share a machine, where predictions do not hold.
pub(super) fn ask_before(state: &mut State, wanted: &Wanted) -> Vec<Effect> {
    let is_known = match &state.planning {
        Planning::Asked => true,
        Planning::Done(planned) => planned.ask.model == wanted.model,
        Planning::Nothing | Planning::Failed(_) => false,
    };
    let ask = plan::ask_for(state, wanted.clone()).filter(|ask| !is_known && ask.nodes.len() > 1);
    let Some(ask) = ask.filter(|ask| !share_a_machine(&ask.nodes)) else { return Vec::new() };
    state.planning = Planning::Asked;
    vec![Effect::Plan(Box::new(ask))]
}

/// The planner's best candidate, and its members by their place in the list.
pub(super) fn best(state: &State) -> Option<(Wanted, Vec<usize>)> {
    let Planning::Done(planned) = &state.planning else { return None };
    let candidate = planned.plan.ranked.first()?;
    Some((planned.wanted(candidate), planned.members(candidate)))
}

/// Enter on a candidate: asks whether to assign it.
pub(super) fn ask_assign(state: &mut State) {
    if operate::refuses_looker(state) {
        return;
    }
    let key = tables::selected(state, Page::Topology);
    let Planning::Done(planned) = &state.planning else {
        state.notice = Some("p asks the planner for candidates".to_owned());
        return;
    };
    let Some(candidate) = planned.candidate(&key) else {
        state.notice = Some("this layout does not fit; the table says why".to_owned());
        return;
    };
    let (wanted, members) = (planned.wanted(candidate), planned.members(candidate));
    if members.iter().any(|place| !state.nodes.get(*place).is_some_and(Node::is_open)) {
        state.notice = Some("a node of this candidate is gone; p plans anew".to_owned());
        return;
    }
    operate::ask_assign(state, wanted, members);
}
