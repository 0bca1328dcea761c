//! Loading a model: the list of model files, the planner's choice for the selected one, and then the question whether to
//! assign it. Nothing is assigned without that question.
use common::fault::Fault;
use protocol::models::ModelFile;

use super::{
    plan,
    question::{ask_assign, refuses, refuses_looker},
    scroll::scrolled,
};
use crate::{
    keymap::{Action, AppAction, Focus, GenerateAction, Key, NavigateAction, OperateAction, Page},
    operator::{
        desired::{SLOTS_DEFAULT, TopologyRequest},
        planner_query::share_a_machine,
    },
    state::{
        State,
        clean::clean_line,
        models::{ModelChoice, ModelList},
        plan::{Planning, query_for},
    },
    update::effect::Effect,
};

/// What to do where no node has a model file.
pub(super) const NO_MODEL: &str = "no node has a model file: run console model pull hf:OWNER/REPO:FILE";

/// Opens the list and asks the nodes for their files.
pub(super) fn open(state: &mut State) -> Vec<Effect> {
    ask(state, None)
}

/// Loads a model by its name, as if it were chosen from the list.
pub(super) fn load(state: &mut State, name: &str) -> Vec<Effect> {
    if refuses_looker(state) {
        return Vec::new();
    }
    ask(state, (!name.is_empty()).then(|| name.to_owned()))
}

fn ask(state: &mut State, requested: Option<String>) -> Vec<Effect> {
    if refuses(state) {
        return Vec::new();
    }
    let nodes = state.cluster.usable().into_iter().filter(|place| state.cluster.nodes[*place].is_open());
    let nodes: Vec<usize> = nodes.collect();
    if nodes.is_empty() {
        state.screen.notice = Some("no node is connected".to_owned());
        return Vec::new();
    }
    state.screen.models = Some(ModelList::new(nodes.clone(), requested));
    vec![Effect::ListModels(nodes)]
}

/// Handles the files of a node.
pub(super) fn on_answer(state: &mut State, node: usize, answer: Result<Vec<ModelFile>, Fault>) -> Vec<Effect> {
    let Some(list) = &mut state.screen.models else { return Vec::new() };
    list.answered(node, answer);
    if !list.waiting.is_empty() {
        return Vec::new();
    }
    let Some(name) = list.requested.take() else { return Vec::new() };
    match list.find(&name).cloned() {
        Some(choice) => choose(state, choice),
        None => {
            let text = if list.choices.is_empty() {
                NO_MODEL.to_owned()
            } else {
                format!("no node has {name:?}; M lists the models, console model pull downloads one")
            };
            state.screen.models = None;
            state.screen.notice = Some(clean_line(&text));
            Vec::new()
        }
    }
}

/// Handles all keys while the list is open.
pub(super) fn on_key(state: &mut State, key: Key) -> Vec<Effect> {
    let Some(list) = &mut state.screen.models else { return Vec::new() };
    match state.preferences.keys.action(Focus::first_of(Page::Cluster), key) {
        Some(Action::Scroll(action)) => {
            let last = list.choices.len().saturating_sub(1);
            let place = scrolled(list.place(), action, state.screen.extent.models_height, last);
            list.selected = list.choices.get(place).map(|choice| choice.model.clone());
        }
        Some(Action::Navigate(NavigateAction::Open) | Action::Generate(GenerateAction::Submit)) => {
            let choice = list.choice().cloned();
            return choice.map_or_else(Vec::new, |choice| choose(state, choice));
        }
        Some(
            Action::App(AppAction::Escape | AppAction::Interrupt | AppAction::Quit)
            | Action::Operate(OperateAction::LoadModel),
        ) => state.screen.models = None,
        Some(_) | None => {}
    }
    Vec::new()
}

/// Asks the planner for the layout of a model on the nodes that have it. Where its predictions do not hold, because
/// nodes share a machine, all of them are used.
fn choose(state: &mut State, choice: ModelChoice) -> Vec<Effect> {
    let usable = state.cluster.usable();
    let mut members: Vec<usize> = choice
        .nodes
        .into_iter()
        .filter(|place: &usize| usable.contains(place) && state.cluster.nodes[*place].is_open())
        .collect();
    members.sort_unstable();
    let request = TopologyRequest { goal: state.plan.goal, ..TopologyRequest::open(&choice.model, SLOTS_DEFAULT) };
    let desired = request.wanted(members.len());
    let query = query_for(state, desired.clone()).map(|mut query| {
        query.nodes.retain(|node| members.contains(&node.place));
        query
    });
    match query {
        Some(query) if !query.nodes.is_empty() && !share_a_machine(&query.nodes) => {
            if let Some(list) = &mut state.screen.models {
                list.planning = Some(choice.model);
            }
            plan::put(state, Box::new(query))
        }
        _ if members.is_empty() => {
            state.screen.models = None;
            state.screen.notice = Some("no connected node has this model any more".to_owned());
            Vec::new()
        }
        _ => {
            state.screen.models = None;
            ask_assign(state, desired, members);
            Vec::new()
        }
    }
}

/// Asks whether to assign the planner's best layout for the chosen model.
pub(super) fn on_planned(state: &mut State) {
    let Some(model) = state.screen.models.as_ref().and_then(|list| list.planning.clone()) else { return };
    let notice = match &state.plan.answer {
        Planning::Done(planned) if planned.ask.model == model => match planned.plan.ranked.first() {
            Some(best) => {
                let (desired, members) = (planned.wanted(best), planned.members(best));
                state.screen.models = None;
                return ask_assign(state, desired, members);
            }
            None => {
                let reason = planned.plan.dropped.first().map(|dropped| format!(": {}", dropped.reason));
                format!("{model} does not fit on these nodes{}", reason.unwrap_or_default())
            }
        },
        Planning::Failed(fault) => format!("cannot plan {model}: {fault}"),
        // The answer to an earlier query.
        Planning::Done(_) | Planning::Asked | Planning::Nothing => return,
    };
    state.screen.models = None;
    state.screen.notice = Some(clean_line(&notice));
}
