//! The planner on the screen: ask it, show a candidate's preview, assign it.
use crate::{
    effect::Effect,
    state::{
        Assignment, Page, State,
        operation::Dialog,
        plan::{self, Planning},
        tables,
    },
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

/// Enter on a candidate: asks whether to assign it.
pub(super) fn ask_assign(state: &mut State) {
    let key = tables::selected(state, Page::Topology);
    let Planning::Done(planned) = &state.planning else {
        state.notice = Some("p asks the planner for candidates".to_owned());
        return;
    };
    if planned.candidate(&key).is_none() {
        state.notice = Some("this layout does not fit; the table says why".to_owned());
    } else if state.is_assigning() || state.is_operating() {
        state.notice = Some("an assignment, a restart or an exclusion is under way".to_owned());
    } else if state.request.is_sent() {
        state.notice = Some("a generation runs; Esc cancels it, then assign".to_owned());
    } else {
        state.dialog = Some(Dialog::Assign { candidate: key });
    }
}

/// Yes: assigns the candidate.
pub(super) fn assign(state: &mut State, key: &str) -> Vec<Effect> {
    let Planning::Done(planned) = &state.planning else { return Vec::new() };
    let Some(candidate) = planned.candidate(key) else { return Vec::new() };
    let (wanted, members) = (planned.wanted(candidate), planned.members(candidate));
    if members.iter().any(|place| !state.nodes[*place].is_open()) {
        state.notice = Some("a node of this candidate is gone; p plans anew".to_owned());
        return Vec::new();
    }
    // Assigned again it is on all nodes; on fewer, what runs is the model for that.
    state.wanted = (members == state.usable()).then(|| wanted.clone());
    state.assignment = Assignment::Loading;
    vec![Effect::Assign { wanted, members }]
}
