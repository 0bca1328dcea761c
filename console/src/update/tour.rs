//! The guided tour: its keys, and when a step is done. A step begins with an effect that sets the scene on the nodes.
use crate::{
    keymap::{Key, KeyCode, TourAction},
    state::{
        State,
        hints::escape,
        tour::{STEPS, Scene, Tour},
    },
    update::effect::Effect,
};

/// Notes that the task of the step is done.
pub(super) fn observe(state: &mut State) {
    let Some(tour) = state.screen.tour else { return };
    if !tour.is_done && tour.is_reached(state) {
        state.screen.tour = Some(Tour { is_done: true, ..tour });
    }
}

/// Handles a key of the tour; `None` if the key has its usual meaning now.
pub(super) fn on_key(state: &mut State, key: Key) -> Option<Vec<Effect>> {
    let tour = state.screen.tour?;
    let action = state.preferences.keys.tour_action(key)?;
    let is_typing = state.screen.focus.is_typing();
    let is_enter = key.code == KeyCode::Enter;
    match action {
        // Enter belongs to the page until the task is done, and to the prompt box while it has a text.
        TourAction::Next if is_enter && (!tour.is_done || (is_typing && !state.screen.editor.text().is_empty())) => {
            None
        }
        TourAction::Next if is_typing && !is_enter => None,
        TourAction::Back if is_typing => None,
        TourAction::End if escape(state).is_some() => None,
        action => Some(act(state, action)),
    }
}

/// Moves through the tour.
pub(super) fn act(state: &mut State, action: TourAction) -> Vec<Effect> {
    let Some(tour) = state.screen.tour else {
        state.screen.notice = Some("no tour is running: console demo --tour starts one".to_owned());
        return Vec::new();
    };
    let to = match action {
        TourAction::Next => Some(tour.step + 1).filter(|step| *step < STEPS.len()),
        TourAction::Back => Some(tour.step.saturating_sub(1)),
        TourAction::End => None,
    };
    state.screen.tour = to.map(|step| Tour { step, is_done: false });
    if to.is_none() {
        state.screen.notice = Some("the tour is over; the demo continues until you quit with q".to_owned());
    }
    vec![Effect::Tour(state.screen.tour.map_or(Scene::Calm, |tour| tour.current().scene))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::Story,
        keymap::Page,
        state::{Focus, tour::Goal},
        update::event::Event,
    };

    fn touring(step: usize) -> Story {
        let mut story = Story::finished();
        story.state.screen.focus = Focus::first_of(Page::Node);
        story.state.screen.tour = Some(Tour { step, is_done: false });
        story.effects.clear();
        story
    }

    #[test]
    fn every_step_waits_for_its_task_and_sets_its_scene() {
        for (step, next) in STEPS.iter().enumerate() {
            let mut story = touring(step);
            story.at(20_000);
            if let Goal::Open(page) = next.goal {
                story.key(KeyCode::Char('7')).key(KeyCode::Enter);
                assert_eq!(story.state.screen.tour.map(|tour| tour.step), Some(step), "{}", next.title);
                story.key(KeyCode::Char(char::from(b'1' + page.index() as u8)));
            }
            story.on(Event::Resize);
            assert!(story.state.screen.tour.is_some_and(|tour| tour.is_done), "{}", next.title);
            story.effects.clear();
            story.key(KeyCode::Enter);
            let scene = STEPS.get(step + 1).map_or(Scene::Calm, |step| step.scene);
            assert_eq!(story.effects, [Effect::Tour(scene)], "{}", next.title);
        }
        let mut story = touring(3);
        story.key(KeyCode::Left);
        assert_eq!(
            (story.state.screen.tour.map(|tour| tour.step), story.effects.as_slice()),
            (Some(2), &[Effect::Tour(Scene::Calm)][..])
        );
    }

    #[test]
    fn keys_of_the_tour_leave_the_prompt_box_alone() {
        let mut story = touring(2);
        story.state.screen.focus = Focus::first_of(Page::Generate);
        story.on(Event::Paste("one two".to_owned())).key(KeyCode::Left).key(KeyCode::Right);
        assert_eq!(story.state.screen.tour.map(|tour| tour.step), Some(2));
        story.key(KeyCode::Esc);
        assert!(story.state.screen.tour.is_some() && !story.state.screen.focus.is_typing(), "Esc leaves the box first");
        story.key(KeyCode::Esc);
        assert_eq!((story.state.screen.tour, story.effects.last()), (None, Some(&Effect::Tour(Scene::Calm))));
    }
}
