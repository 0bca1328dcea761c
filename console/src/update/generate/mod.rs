//! Generations from the prompt box: submit, hold until a topology runs, cancel, and pin a result for comparison.
pub(super) mod form;

use super::{assign::assign, models};
use crate::{
    keymap::GenerateAction,
    state::{
        AssignmentStatus, GenerateDefaults, State, TextScroll,
        clean::clean_line,
        request::{Phase, Request, SentWith},
        result::GenerationResult,
        sampling_form,
        status::{ClusterStatus, hint, status},
    },
    update::{effect::Effect, event::GenerateEvent},
};

/// Performs an action of the Generate page.
pub(super) fn act(state: &mut State, action: GenerateAction) -> Vec<Effect> {
    match action {
        GenerateAction::Submit => return submit(state),
        GenerateAction::SamplingForm => form::open(state),
        GenerateAction::Pin => pin(state),
    }
    Vec::new()
}

/// Whether a generation is under way that can be cancelled.
pub(super) fn can_cancel(state: &State) -> bool {
    state.generation.request.is_open() && state.generation.request.phase != Phase::Cancelling
}

/// Cancels the generation, or withdraws the prompt if it has not been sent.
pub(super) fn cancel(state: &mut State) -> Vec<Effect> {
    if state.generation.request.phase == Phase::Held {
        state.generation.request.phase = Phase::Withdrawn;
        return Vec::new();
    }
    state.generation.request.phase = Phase::Cancelling;
    vec![Effect::Cancel]
}

fn submit(state: &mut State) -> Vec<Effect> {
    if !state.generation.request.is_open() && state.screen.editor.text().is_empty() {
        state.screen.notice = Some("type a prompt first".to_owned());
        return Vec::new();
    }
    if let Err(effects) = check(state) {
        return effects;
    }
    state.chat.awaited = None;
    let prompt = state.screen.editor.take();
    start(state, prompt)
}

/// Checks that a request can be sent, or kept until a topology runs.
///
/// # Errors
/// It cannot: the reason is shown, and these effects follow.
pub(super) fn check(state: &mut State) -> Result<(), Vec<Effect>> {
    if state.generation.request.is_open() {
        state.screen.notice = Some("one is generated already; Esc cancels it".to_owned());
        return Err(Vec::new());
    }
    let is_ready = state.cluster.is_ready();
    // A node that the operator cordoned is not worked around without confirmation.
    if let (false, false, ClusterStatus::Cordoned(_)) = (is_ready, state.is_operating(), status(state)) {
        state.screen.notice = Some(hint(state));
        return Err(Vec::new());
    }
    if !is_ready && !is_pending(state) && state.assignable().is_none() {
        // The prompt stays in its box meanwhile.
        return Err(models::lead_here(state));
    }
    Ok(())
}

/// Whether a topology is about to run. What the nodes restore is not assigned: they would not take a lost member back into
/// a topology without it.
fn is_pending(state: &State) -> bool {
    state.cluster.is_assigning() || state.is_operating() || state.cluster.recovers()
}

/// Sends a prompt, or keeps it until a topology runs.
pub(super) fn start(state: &mut State, prompt: String) -> Vec<Effect> {
    state.screen.scroll.text = TextScroll::Follow;
    state.generation.request = Request::new(Phase::Held, prompt, state.now);
    if state.cluster.is_ready() {
        return send(state);
    }
    if is_pending(state) { Vec::new() } else { assign(state) }
}

/// Sends a held prompt once a topology runs, or assigns one if none is about to run.
pub(super) fn release_held(state: &mut State) -> Vec<Effect> {
    if state.generation.request.phase != Phase::Held {
        return Vec::new();
    }
    if state.cluster.is_ready() {
        return send(state);
    }
    if is_pending(state) || state.cluster.assignment == AssignmentStatus::WaitsForNodes {
        Vec::new()
    } else {
        assign(state)
    }
}

/// Sends the held request.
pub(super) fn send(state: &mut State) -> Vec<Effect> {
    let running = state.cluster.topology();
    let topology = running.map(|(topology, _)| topology.clone());
    let model = running.map(|(topology, _)| topology.model.clone());
    let chat = state.chat.prompt(model.as_deref().unwrap_or_default());
    let defaults = if state.chat.awaited.is_some() { &state.chat.defaults } else { &state.generation.defaults };
    let seed = seed(state, defaults, &state.generation.request.prompt);
    let mut generate = defaults.request(&state.generation.request.prompt, state.generation.sent);
    if let Some(prompt) = chat {
        // The marks show where an answer thinks.
        (generate.prompt, generate.shows_marks) = (prompt, true);
    }
    generate.sampling.seed = seed;
    generate.model = running.map(|(topology, _)| topology.roots().into());
    let on = running.map_or_else(String::new, |(topology, epoch)| format!("{}, epoch {epoch}", topology.layout));
    let terms = sampling_form::summary(defaults, seed);
    state.generation.sent_model = model;
    state.generation.request.sent_with = Some(SentWith { seed, terms, on });
    state.generation.sent += 1;
    state.generation.topology = topology;
    if matches!(state.cluster.assignment, AssignmentStatus::Failed(_)) {
        // The previous topology still runs: the failure has been shown, and the text replaces it.
        state.cluster.assignment = AssignmentStatus::Nothing;
    }
    state.generation.request.send(state.now);
    let head = state.cluster.ready_head().or(state.cluster.place_of(0)).unwrap_or(0);
    vec![Effect::Generate { head, generate: Box::new(generate) }]
}

/// Handles an event of the running generation.
pub(super) fn on_event(state: &mut State, event: GenerateEvent) {
    let request = &mut state.generation.request;
    match event {
        GenerateEvent::Started { prompt_token_ids } => request.started(state.now, prompt_token_ids.len()),
        GenerateEvent::Form(form) => state.chat.form = form,
        GenerateEvent::Token(token) => request.token(state.now, &token),
        GenerateEvent::Finished(finished) if request.is_sent() => request.phase = Phase::Finished(finished),
        GenerateEvent::Failed(fault) if request.is_sent() => request.phase = Phase::Failed(fault),
        GenerateEvent::Finished(_) | GenerateEvent::Failed(_) => {}
        GenerateEvent::Waits { fault, seconds } => {
            let text = format!("waiting up to {seconds} s for a head to continue the answer: {fault}");
            state.screen.notice = Some(clean_line(&text));
        }
        GenerateEvent::Moved { fault, topology, head, .. } => {
            let node = topology.members.get(head.index()).map_or("?", |member| &member.name);
            let text = format!("{node} continues the answer on {}: {fault}", topology.layout);
            state.screen.notice = Some(clean_line(&text));
        }
    }
}

/// The seed of the next generation: the pinned result's seed for the same prompt, so that the texts can be compared.
fn seed(state: &State, defaults: &GenerateDefaults, prompt: &str) -> u64 {
    let generation = &state.generation;
    let pinned = generation.pinned.as_ref().filter(|result| result.prompt == prompt);
    pinned.map_or_else(|| defaults.sampling.seed.wrapping_add(generation.sent), |result| result.seed)
}

/// Pins the result for comparison, or unpins it if it is already pinned.
fn pin(state: &mut State) {
    let result = GenerationResult::of(&state.generation.request);
    let notice = match (result, &state.generation.pinned) {
        (None, None) => "nothing to pin: generate something first".to_owned(),
        (Some(result), pinned) if pinned.as_ref() != Some(&result) => {
            let notice = format!("pinned: {} on {}; the same prompt again uses its seed", result.terms, result.on);
            state.generation.pinned = Some(result);
            notice
        }
        _ => {
            state.generation.pinned = None;
            "no longer pinned".to_owned()
        }
    };
    state.screen.notice = Some(notice);
}

#[cfg(test)]
mod tests;
