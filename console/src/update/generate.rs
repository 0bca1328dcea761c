//! Actions of the Generate page except the prompt box: the sampling form, and the result pinned for comparison.
use crate::{
    keymap::{Action, Key, KeyCode},
    state::{Focus, Page, Spot, State, request::SentWith, run::Run, terms},
    update::effect::Effect,
};

/// The seed of the next generation: the pinned result's seed for the same prompt, so that the texts can be compared.
pub(super) fn seed(state: &State, prompt: &str) -> u64 {
    let pinned = state.pinned.as_ref().filter(|run| run.prompt == prompt);
    pinned.map_or_else(|| state.defaults.sampling.seed.wrapping_add(state.requests_sent), |run| run.seed)
}

/// The parameters stored with a request when it is sent.
pub(super) fn sent_with(state: &State, seed: u64) -> SentWith {
    let on =
        state.topology().map_or_else(String::new, |(topology, epoch)| format!("{}, epoch {epoch}", topology.layout));
    SentWith { seed, terms: terms::summary(&state.defaults, seed), on }
}

/// Pins the result for comparison, or unpins it if it is already pinned.
pub(super) fn pin(state: &mut State) {
    let run = Run::of(&state.request);
    let notice = match (run, &state.pinned) {
        (None, None) => "nothing to pin: generate something first".to_owned(),
        (Some(run), pinned) if pinned.as_ref() != Some(&run) => {
            let notice = format!("pinned: {} on {}; the same prompt again uses its seed", run.terms, run.on);
            state.pinned = Some(run);
            notice
        }
        _ => {
            state.pinned = None;
            "no longer pinned".to_owned()
        }
    };
    state.notice = Some(notice);
}

/// Opens the sampling form.
pub(super) fn open_form(state: &mut State) {
    state.form = Some(terms::Form::new(&state.defaults, state.requests_sent));
}

/// Handles all keys while the form is open.
pub(super) fn on_key(state: &mut State, key: Key) -> Vec<Effect> {
    let keys = state.desk.keys.clone();
    let Some(form) = &mut state.form else { return Vec::new() };
    let action = keys.action(Spot { page: Page::Generate, focus: Focus::Prompt }, key);
    match action {
        Some(Action::Escape | Action::Interrupt) => state.form = None,
        Some(Action::Submit) => match form.terms(&state.defaults, state.requests_sent) {
            Ok(terms) => {
                state.defaults = terms;
                state.form = None;
                let seed = seed(state, "");
                state.notice = Some(format!("from now on {}", terms::summary(&state.defaults, seed)));
            }
            Err((place, error)) => (form.at, form.error) = (place, Some(error)),
        },
        Some(action @ (Action::LineUp | Action::LineDown | Action::FocusNext | Action::FocusPrevious)) => {
            form.turn(action);
        }
        Some(Action::NewLine) => {}
        Some(action) => {
            if let Some(field) = form.field() {
                super::edit_in(field, action);
            }
        }
        None => {
            if let Key { code: KeyCode::Char(letter), control: false, alt: false, .. } = key {
                form.insert(letter.encode_utf8(&mut [0; 4]));
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use common::sampling::SamplingParameters;

    use crate::{
        fixtures::{Story, finished},
        keymap::KeyCode,
        state::run::{Difference, Run, difference},
        update::effect::Effect,
        update::event::{Event, GenerateEvent},
    };

    fn sent(story: &Story) -> Vec<(&str, &SamplingParameters, u32)> {
        let generate = |effect: &'_ Effect| match effect {
            Effect::Generate { generate, .. } => Some(generate.clone()),
            _ => None,
        };
        let all: Vec<_> = story.effects.iter().filter_map(generate).collect();
        let all: &'static Vec<_> = Box::leak(Box::new(all));
        all.iter().map(|one| (one.prompt.text().unwrap_or_default(), &one.sampling, one.max_tokens)).collect()
    }

    fn again(story: &mut Story, text: &str) {
        story.on(Event::Paste("ROMEO:".to_owned())).key(KeyCode::Enter).at(5000);
        story.generate(GenerateEvent::Started { prompt_token_ids: vec![1, 2] }).token(text);
        story.generate(GenerateEvent::Finished(Box::new(finished())));
    }

    #[test]
    fn pinned_prompt_reuses_its_seed_and_texts_are_compared() {
        let mut story = Story::finished();
        story.key(KeyCode::Function(3));
        let pinned = story.state.pinned.clone().expect("a result exists");
        again(&mut story, "another text");
        let now = Run::of(&story.state.request).expect("generation is finished");
        assert_eq!((now.seed, pinned.seed), (42, 42));
        assert!(matches!(difference(&pinned, &now), Difference::From { at: 0, .. }));
        story.on(Event::Paste("other".to_owned())).key(KeyCode::Enter);
        let seeds: Vec<(&str, u64)> = sent(&story).iter().map(|(text, sampling, _)| (*text, sampling.seed)).collect();
        assert_eq!(seeds, [("ROMEO:", 42), ("ROMEO:", 42), ("other", 44)]);
    }

    #[test]
    fn newer_result_replaces_the_pinned_one_and_the_same_unpins() {
        let mut story = Story::ready();
        story.key(KeyCode::Function(3));
        assert!(story.state.pinned.is_none() && story.state.notice.is_some());
        let mut story = Story::finished();
        story.key(KeyCode::Function(3)).on(Event::Paste("x".to_owned()));
        again(&mut story, "another text");
        story.key(KeyCode::Function(3));
        assert_eq!(story.state.pinned.as_ref().map(|run| run.text.as_str()), Some("another text"));
        story.key(KeyCode::Function(3));
        assert_eq!(story.state.pinned, None);
    }

    #[test]
    fn form_values_are_applied_and_errors_shown_in_the_form() {
        let mut story = Story::finished();
        story.key(KeyCode::Function(2)).key(KeyCode::Backspace).key(KeyCode::Backspace).key(KeyCode::Enter);
        let form = story.state.form.as_ref().expect("form is still open");
        assert!(form.at == 0 && form.error.is_some());
        story.key(KeyCode::Char('9')).key(KeyCode::Down);
        story.on(Event::Paste("5".to_owned())).key(KeyCode::Enter);
        assert_eq!(story.state.form, None);
        again(&mut story, "x");
        let last = sent(&story).last().map(|(_, sampling, tokens)| (sampling.temperature, *tokens));
        assert_eq!(last, Some((0.85, 9)));
        story.key(KeyCode::Function(2)).key(KeyCode::Char('7')).key(KeyCode::Esc);
        assert!(story.state.form.is_none() && story.state.defaults.max_tokens == 9, "Esc changes nothing");
    }
}
