//! Snapshot tests of the Generate page: time breakdown, sampling form, two results side by side.
use protocol::message::Finished;

use super::snapshot::check_all;
use crate::{
    fixtures::{Story, VERSE, finished, lost_fault},
    keymap::KeyCode,
    state::State,
    update::event::{Event, GenerateEvent},
};

/// Generates the same prompt again on another topology, until it is finished.
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
fn request_stages_share_one_scale_during_and_after_a_run() {
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
fn two_results_are_shown_side_by_side() {
    check_all("generate-pinned", pinned());
    let mut story = pinned();
    again(&mut story, VERSE, |end| end.times.last_token.0 -= 120_000_000);
    check_all("generate-same", story);
    let mut story = pinned();
    again(&mut story, &VERSE.replace("jewel", "lantern"), |end| end.times.first_token.0 += 60_000_000);
    check_all("generate-differs", story);
}

#[test]
fn sampling_form_is_shown() {
    let mut story = Story::ready();
    story.key(KeyCode::Function(2)).key(KeyCode::Down).key(KeyCode::Char('x')).key(KeyCode::Enter);
    check_all("generate-form", story);
}

#[test]
fn empty_page_and_failed_request_show_the_next_step() {
    let mut story = Story::with(State::new(&[], None, "x", crate::fixtures::defaults()));
    story.key(KeyCode::Enter);
    check_all("generate-empty", story);
    let mut story = pinned();
    story.on(Event::Paste("ROMEO:".to_owned())).key(KeyCode::Enter).at(5000);
    story.generate(GenerateEvent::Started { prompt_token_ids: vec![1] }).generate(GenerateEvent::Failed(lost_fault()));
    check_all("generate-failed", story);
}
