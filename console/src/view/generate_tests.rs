//! Pictures of the page of prompt and text: where time went, what is asked for, two results side by side.
use shared::protocol::message::Finished;

use super::snapshot_tests::check_all;
use crate::{
    event::{Event, GenerateEvent},
    fixtures::{Story, VERSE, finished, lost_fault},
    keymap::KeyCode,
    state::State,
};

/// The same prompt again, on another topology, until its end.
fn again(story: &mut Story, text: &str, change: impl FnOnce(&mut Finished)) {
    story.on(Event::Paste("ROMEO:".to_owned())).key(KeyCode::Enter).at(5000);
    story.generate(GenerateEvent::Started { prompt_token_ids: vec![1, 2, 3, 4] }).at(5100).token(text);
    let mut end = finished();
    change(&mut end);
    story.generate(GenerateEvent::Finished(Box::new(end)));
}

fn pinned() -> Story {
    let mut story = Story::finished();
    story.key(KeyCode::Function(3));
    story
}

#[test]
fn the_stages_of_a_request_stand_on_one_scale_while_it_runs_and_when_it_is_over() {
    check_all("generate-running", Story::generating());
    let mut story = Story::finished();
    let mut end = finished();
    end.ranks.iter_mut().for_each(|rank| {
        rank.prefill = rank.decode;
        rank.prefill.wait.0 *= 3;
    });
    story.on(Event::Paste("JULIET:".to_owned())).key(KeyCode::Enter);
    story.generate(GenerateEvent::Started { prompt_token_ids: vec![1; 40] }).token(VERSE);
    story.generate(GenerateEvent::Finished(Box::new(end)));
    check_all("generate-finished", story);
}

#[test]
fn two_results_stand_side_by_side_with_their_figures() {
    check_all("generate-pinned", pinned());
    let mut story = pinned();
    again(&mut story, VERSE, |end| end.times.last_token.0 -= 120_000_000);
    check_all("generate-same", story);
    let mut story = pinned();
    again(&mut story, &VERSE.replace("jewel", "lantern"), |end| end.times.first_token.0 += 60_000_000);
    check_all("generate-differs", story);
}

#[test]
fn what_is_asked_for_is_a_form() {
    let mut story = Story::ready();
    story.key(KeyCode::Function(2)).key(KeyCode::Down).key(KeyCode::Char('x')).key(KeyCode::Enter);
    check_all("generate-form", story);
}

#[test]
fn an_empty_page_and_one_whose_request_failed_say_what_to_do() {
    let mut story = Story::with(State::new(&[], None, "x", crate::fixtures::defaults()));
    story.key(KeyCode::Enter);
    check_all("generate-empty", story);
    let mut story = pinned();
    story.on(Event::Paste("ROMEO:".to_owned())).key(KeyCode::Enter).at(5000);
    story.generate(GenerateEvent::Started { prompt_token_ids: vec![1] }).generate(GenerateEvent::Failed(lost_fault()));
    check_all("generate-failed", story);
}
