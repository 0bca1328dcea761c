//! The Models page: lists of files, predictions for the catalogue, and the questions before a model is loaded,
//! downloaded, unloaded or deleted. Nothing is done without such a question.
use std::time::Duration;

use common::fault::Fault;
use protocol::models::ModelFile;

use super::{
    plan,
    question::{ask_assign, refuses, refuses_looker},
};
use crate::{
    catalogue,
    keymap::{Focus, Page},
    operator::{
        desired::{SLOTS_DEFAULT, TopologyRequest},
        model_order::{ModelEvent, ModelOrder},
        planner_query::share_a_machine,
        transfer::{Lane, TransferReport},
    },
    state::{
        AssignmentStatus, State,
        clean::clean_line,
        models::{ModelChoice, ModelList, ModelRow, PullState, planner_nodes, row_of},
        operation::{Dialog, Question},
        plan::{Planning, query_for},
        tables,
    },
    update::effect::Effect,
};

/// What to do where no node has a model file.
pub(super) const NO_MODEL: &str =
    "no node has a model file: select one in the catalogue and press Enter to download it";
/// Time between two lists of the nodes' files while the page is shown.
const REFRESH: Duration = Duration::from_secs(10);

/// Least time between two rounds of predictions for the same nodes.
const REPLAN: Duration = Duration::from_secs(30);

/// Opens the page and asks the nodes for their files.
pub(super) fn open(state: &mut State) -> Vec<Effect> {
    state.screen.focus = Focus::first_of(Page::Models);
    ask(state)
}

/// Opens the page where something needs a model and none is loaded.
pub(super) fn lead_here(state: &mut State) -> Vec<Effect> {
    if reachable(state).is_empty() { ask(state) } else { open(state) }
}

/// Loads a model by its name, as if it were chosen on the page.
pub(super) fn load(state: &mut State, name: &str) -> Vec<Effect> {
    if refuses_looker(state) || refuses(state) {
        return Vec::new();
    }
    let effects = open(state);
    state.models.requested = (!name.is_empty() && !effects.is_empty()).then(|| name.to_owned());
    effects
}

/// List indices of the nodes that are included and connected.
fn reachable(state: &State) -> Vec<usize> {
    state.cluster.usable().into_iter().filter(|place| state.cluster.nodes[*place].is_open()).collect()
}

fn ask(state: &mut State) -> Vec<Effect> {
    let nodes = reachable(state);
    if nodes.is_empty() {
        state.screen.notice = Some("no node is connected".to_owned());
        return Vec::new();
    }
    state.models.asked = Some(state.now);
    state.models.fresh = Some(ModelList::new(nodes.clone()));
    vec![Effect::Models(ModelOrder::List(nodes))]
}

/// Keeps lists and predictions current while the page is shown.
pub(super) fn keep_current(state: &mut State) -> Vec<Effect> {
    if state.screen.focus.page != Page::Models || reachable(state).is_empty() {
        return Vec::new();
    }
    let is_due = state.models.asked.is_none_or(|asked| state.now.saturating_sub(asked) >= REFRESH);
    let mut effects = if is_due { ask(state) } else { Vec::new() };
    let nodes = planner_nodes(state);
    // Free memory changes all the time; predictions in whole GiB are as precise as the planner.
    let wanted: Vec<(String, u64)> = nodes.iter().map(|node| (node.name.clone(), node.memory >> 30)).collect();
    let before = &state.models.fits_for;
    let is_other = before.len() != wanted.len() || before.iter().zip(&wanted).any(|(old, new)| old.0 != new.0);
    let waited = state.models.fits_asked.is_none_or(|asked| state.now.saturating_sub(asked) >= REPLAN);
    if !nodes.is_empty() && wanted != state.models.fits_for && (is_other || waited) {
        state.models.fits_for = wanted;
        state.models.fits_asked = Some(state.now);
        effects.push(Effect::Models(ModelOrder::Fit { nodes, goal: state.plan.goal }));
    }
    effects
}

/// Handles the files of a node.
pub(super) fn on_answer(state: &mut State, node: usize, answer: Result<Vec<ModelFile>, Fault>) -> Vec<Effect> {
    let Some(fresh) = &mut state.models.fresh else { return Vec::new() };
    fresh.answered(node, answer);
    if !fresh.waiting.is_empty() {
        return Vec::new();
    }
    state.models.list = state.models.fresh.take().unwrap_or_default();
    let Some(name) = state.models.requested.take() else { return Vec::new() };
    match state.models.list.find(&name).cloned() {
        Some(choice) => choose(state, choice),
        None => {
            let is_empty = state.models.list.choices.is_empty();
            let text = if is_empty {
                NO_MODEL.to_owned()
            } else {
                format!("no node has {name:?}; p downloads a model of the catalogue")
            };
            state.screen.notice = Some(clean_line(&text));
            Vec::new()
        }
    }
}

fn selected(state: &State) -> Option<ModelRow> {
    row_of(state, &tables::selected(state, Page::Models))
}

/// Enter: loads the selected model, or asks whether to download it.
pub(super) fn choose_selected(state: &mut State) -> Vec<Effect> {
    if refuses_looker(state) {
        return Vec::new();
    }
    match selected(state) {
        Some(ModelRow::Held(choice)) => {
            if refuses(state) {
                return Vec::new();
            }
            choose(state, choice)
        }
        Some(ModelRow::Known(entry)) => {
            let mut files = state.models.shown().choices.iter();
            let held = files.find(|choice| entry.file_named(&choice.model).is_some());
            match held.cloned() {
                Some(_) if refuses(state) => Vec::new(),
                Some(choice) => choose(state, choice),
                None => {
                    ask_pull(state);
                    Vec::new()
                }
            }
        }
        None => Vec::new(),
    }
}

/// `p`: asks whether to download the selected model of the catalogue to the nodes that lack it: in the upper table the
/// selected file, in the catalogue the usual file.
pub(super) fn ask_pull(state: &mut State) {
    let wanted = match selected(state) {
        Some(ModelRow::Known(entry)) => Some((entry, entry.usual())),
        Some(ModelRow::Held(choice)) => catalogue::of_file(&choice.model),
        None => None,
    };
    let nodes = reachable(state);
    let notice = match (wanted, &state.models.pull) {
        (_, Some(pull)) => format!("{} is downloading; X cancels it", pull.name),
        (None, _) => "select a model of the catalogue; console model pull downloads other files".to_owned(),
        (Some(_), _) if nodes.is_empty() => "no node is connected".to_owned(),
        (Some((entry, file)), _) if have_all(state, &nodes, file.file_name()) => {
            format!("all nodes have {}; Enter loads it", entry.name)
        }
        (Some((entry, file)), None) => {
            let question = Question::Pull { name: entry.name, file: *file, nodes };
            state.operations.dialog = Some(Dialog::plain(question));
            return;
        }
    };
    state.screen.notice = Some(notice);
}

/// Whether all of these nodes have a file.
fn have_all(state: &State, nodes: &[usize], file_name: &str) -> bool {
    let choice = state.models.shown().find(file_name);
    choice.is_some_and(|choice| nodes.iter().all(|node| choice.nodes.contains(node)))
}

/// `X`: cancels the download.
pub(super) fn cancel_pull(state: &mut State) -> Vec<Effect> {
    if state.models.pull.is_none() {
        state.screen.notice = Some("nothing is downloading".to_owned());
        return Vec::new();
    }
    vec![Effect::Models(ModelOrder::CancelPull)]
}

/// `u`: asks whether to unload the running model.
pub(super) fn ask_unload(state: &mut State) {
    if refuses(state) {
        return;
    }
    match state.cluster.topology() {
        Some((topology, epoch)) => {
            let question = Question::Unload { epoch, topology: Box::new(topology.clone()) };
            state.operations.dialog = Some(Dialog::plain(question));
        }
        None => state.screen.notice = Some("no model is loaded".to_owned()),
    }
}

/// Delete: asks whether to delete the files of the selected model; refused for the one that is loaded.
pub(super) fn ask_delete(state: &mut State) {
    let Some(ModelRow::Held(ModelChoice { model, nodes, .. })) = selected(state) else {
        state.screen.notice = Some("select a model that nodes have, in the upper table".to_owned());
        return;
    };
    if state.cluster.topology().is_some_and(|(topology, _)| topology.model == model) {
        state.screen.notice = Some(clean_line(&format!("{model} is loaded: u unloads it first")));
        return;
    }
    let nodes: Vec<usize> = nodes.into_iter().filter(|place| state.cluster.nodes[*place].is_open()).collect();
    state.operations.dialog = Some(Dialog::plain(Question::DeleteModel { model, nodes }));
}

/// Remembers an order that was issued.
pub(super) fn ordered(state: &mut State, order: &ModelOrder) {
    let ModelOrder::Pull { source, nodes } = order else { return };
    let entry = catalogue::ENTRIES.iter().find(|entry| entry.files.iter().any(|file| file.source == *source));
    let lanes = nodes.iter().map(|place| Lane::new(clean_line(state.cluster.nodes[*place].name())));
    let (name, lanes) = (entry.map_or("", |entry| entry.name).to_owned(), lanes.collect());
    state.models.pull = Some(PullState { name, nodes: nodes.clone(), lanes });
}

/// Handles the other answers of the client.
pub(super) fn on_event(state: &mut State, event: ModelEvent) -> Vec<Effect> {
    let said = match event {
        ModelEvent::Fits { name, fit } => {
            state.models.fits.insert(name, fit);
            return Vec::new();
        }
        ModelEvent::Pulling { node, step, done, total } => {
            let now = state.now;
            if let Some(pull) = &mut state.models.pull
                && let Some(place) = pull.nodes.iter().position(|place| *place == node)
            {
                pull.lanes[place].tell(now, TransferReport::exact(step, done, total));
            }
            return Vec::new();
        }
        ModelEvent::Pulled(answer) => {
            let name = state.models.pull.take().map_or_else(String::new, |pull| pull.name);
            match answer {
                Ok(0) => format!("all nodes have {name} already"),
                Ok(_) => format!("{name} is on the nodes; Enter loads it"),
                Err(fault) => failed(&format!("{name} is not on all nodes"), &fault),
            }
        }
        ModelEvent::Cancelled => {
            state.models.pull = None;
            "download cancelled; the next download of this file resumes it".to_owned()
        }
        ModelEvent::Removed { model, answer } => match answer {
            Ok(nodes) => format!("{model} is deleted on {}", nodes.join(", ")),
            Err(fault) => failed(&format!("{model} is not deleted"), &fault),
        },
        ModelEvent::Unloaded { model, answer } => match answer {
            Ok(()) => {
                // Otherwise it would count as a topology that was lost.
                state.plan.desired = None;
                (state.cluster.assignment, state.cluster.assigned) = (AssignmentStatus::Nothing, None);
                format!("{model} is unloaded")
            }
            Err(fault) => failed(&format!("{model} stays loaded"), &fault),
        },
    };
    state.screen.notice = Some(clean_line(&said));
    if reachable(state).is_empty() { Vec::new() } else { ask(state) }
}

fn failed(what: &str, fault: &Fault) -> String {
    format!("{what}: {fault}; {}", fault.next())
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
            state.models.planning = Some(choice.model);
            plan::put(state, Box::new(query))
        }
        _ if members.is_empty() => {
            state.screen.notice = Some("no connected node has this model any more".to_owned());
            Vec::new()
        }
        _ => {
            ask_assign(state, desired, members);
            Vec::new()
        }
    }
}

/// Asks whether to assign the planner's best layout for the chosen model.
pub(super) fn on_planned(state: &mut State) {
    let Some(model) = state.models.planning.clone() else { return };
    let notice = match &state.plan.answer {
        Planning::Done(planned) if planned.ask.model == model => match planned.plan.ranked.first() {
            Some(best) => {
                let (desired, members) = (planned.wanted(best), planned.members(best));
                state.models.planning = None;
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
    state.models.planning = None;
    state.screen.notice = Some(clean_line(&notice));
}
