//! Planner actions on the screen: query it, preview a candidate, assign it.
use super::question;
use crate::{
    operator::desired::DesiredTopology,
    operator::planner_query::{PlannerQuery, share_a_machine},
    state::{
        Page, State,
        node::Node,
        plan::{self, Planning},
        tables,
    },
    update::effect::Effect,
};

/// `p`: queries the planner; `None` without a model to plan for.
pub(super) fn ask(state: &mut State) -> Option<Vec<Effect>> {
    if state.plan.answer == Planning::Asked {
        state.screen.notice = Some("the planner is asked already".to_owned());
        return Some(Vec::new());
    }
    plan::query(state).map(|ask| put(state, Box::new(ask)))
}

/// Status of the planner's answer to a query.
pub(super) enum Inquiry {
    /// The planner has answered this query.
    Answered,
    /// The planner is working on a query.
    Pending,
    /// The planner has to be queried.
    New(Box<PlannerQuery>),
}

/// The planner query to make before an assignment; `None` for one node and for nodes that share a machine, where
/// predictions do not hold.
pub(super) fn inquire(state: &State, wanted: &DesiredTopology) -> Option<Inquiry> {
    let ask =
        plan::query_for(state, wanted.clone()).filter(|ask| ask.nodes.len() > 1 && !share_a_machine(&ask.nodes))?;
    Some(match &state.plan.answer {
        Planning::Asked => Inquiry::Pending,
        Planning::Done(planned) if is_same_question(&planned.ask, &ask) => Inquiry::Answered,
        Planning::Nothing | Planning::Failed(_) | Planning::Done(_) => Inquiry::New(Box::new(ask)),
    })
}

/// Whether two queries are equal except for continuously measured values.
fn is_same_question(one: &PlannerQuery, other: &PlannerQuery) -> bool {
    let places = |ask: &PlannerQuery| ask.nodes.iter().map(|node| node.place).collect::<Vec<usize>>();
    let settings = |ask: &PlannerQuery| (ask.goal, ask.context, ask.slots, ask.kv, ask.exchange, ask.choice);
    one.model == other.model && settings(one) == settings(other) && places(one) == places(other)
}

/// Queries the planner.
pub(super) fn put(state: &mut State, ask: Box<PlannerQuery>) -> Vec<Effect> {
    state.plan.answer = Planning::Asked;
    vec![Effect::Plan(ask)]
}

/// Queries the planner before an assignment, unless that is pointless or the answer is already there or on its way.
pub(super) fn ask_before(state: &mut State, wanted: &DesiredTopology) -> Vec<Effect> {
    match inquire(state, wanted) {
        Some(Inquiry::New(ask)) => put(state, ask),
        Some(Inquiry::Answered | Inquiry::Pending) | None => Vec::new(),
    }
}

/// The planner's best candidate and the list indices of its members; `None` if one of them is excluded or disconnected.
pub(super) fn best(state: &State) -> Option<(DesiredTopology, Vec<usize>)> {
    let Planning::Done(planned) = &state.plan.answer else { return None };
    let candidate = planned.plan.ranked.first()?;
    let (members, usable) = (planned.members(candidate), state.cluster.usable());
    members
        .iter()
        .all(|place: &usize| usable.contains(place) && state.cluster.nodes[*place].is_open())
        .then(|| (planned.wanted(candidate), members))
}

/// Enter on a candidate: asks whether to assign it.
pub(super) fn ask_assign(state: &mut State) {
    if question::refuses_looker(state) {
        return;
    }
    let key = tables::selected(state, Page::Topology);
    let Planning::Done(planned) = &state.plan.answer else {
        state.screen.notice = Some("p asks the planner for candidates".to_owned());
        return;
    };
    let Some(candidate) = planned.candidate(&key) else {
        state.screen.notice = Some("this layout does not fit; the table says why".to_owned());
        return;
    };
    let (wanted, members) = (planned.wanted(candidate), planned.members(candidate));
    if members.iter().any(|place| !state.cluster.nodes.get(*place).is_some_and(Node::is_open)) {
        state.screen.notice = Some("a node of this candidate is gone; p plans again".to_owned());
        return;
    }
    question::ask_assign(state, wanted, members);
}
