//! Snapshot tests of the page Chat: turns, a thought, a tool call, a failure, the list and its dialogs.
use common::chat::{AnswerForm, Thinking, ToolFormat};

use super::snapshot::check_at;
use crate::{
    fixtures::{Story, VERSE, finished, lost_fault},
    keymap::{Focus, KeyCode, Page, Panel},
    update::event::{Event, GenerateEvent},
};

const SIZES: [(u16, u16); 2] = [(80, 24), (120, 40)];

fn opened() -> Story {
    let mut story = Story::ready();
    story.state.screen.editor.replace("");
    story.state.screen.focus = Focus::first_of(Page::Chat);
    story
}

/// Asks, and receives the answer in pieces, which may begin with a thought.
fn turn(story: &mut Story, prompt: &str, pieces: &[&str]) {
    story.on(Event::Paste(prompt.to_owned())).key(KeyCode::Enter);
    story.generate(GenerateEvent::Started { prompt_token_ids: vec![1; 40] });
    let form = AnswerForm { tool_format: ToolFormat::Hermes, thinking: Thinking::Marked, ..AnswerForm::default() };
    story.generate(GenerateEvent::Form(form));
    for piece in pieces {
        story.token(piece);
    }
}

fn end(story: &mut Story) {
    story.generate(GenerateEvent::Finished(Box::new(finished())));
}

/// Two answered turns, the second with a thought and a tool call.
fn answered() -> Story {
    let mut story = opened();
    turn(&mut story, "Write a verse about a ball in Verona.", &[VERSE]);
    end(&mut story);
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Verona\"}}\n</tool_call>";
    turn(&mut story, "Will it rain there?", &["<think>I need the weather.", "</think>", "I look it up.\n", call]);
    end(&mut story);
    story
}

#[test]
fn new_conversation_explains_its_keys() {
    check_at("chat-new", opened(), &SIZES);
}

#[test]
fn turns_thoughts_and_calls_are_told_apart() {
    check_at("chat-turns", answered(), &SIZES);
    let mut story = answered();
    story.key(KeyCode::Function(7)).key(KeyCode::Tab);
    check_at("chat-unfolded", story, &SIZES);
}

#[test]
fn answer_arrives_and_a_failed_one_shows_the_next_step() {
    let mut story = answered();
    turn(&mut story, "And tomorrow?", &["<think>Tomorrow is a day"]);
    check_at("chat-thinking", story, &SIZES);
    let mut story = opened();
    turn(&mut story, "And tomorrow?", &["It will"]);
    story.generate(GenerateEvent::Failed(lost_fault()));
    check_at("chat-failed", story, &SIZES);
}

#[test]
fn list_is_beside_the_conversation_or_replaces_it() {
    let mut story = answered();
    story.key(KeyCode::Function(6));
    turn(&mut story, "Another subject", &["Yes."]);
    end(&mut story);
    story.state.screen.focus.panel = Panel::Conversations;
    check_at("chat-list", story, &SIZES);
    let mut story = answered();
    story.state.screen.focus.panel = Panel::Conversations;
    story.key(KeyCode::Char('D'));
    check_at("chat-delete", story, &SIZES);
    let mut story = answered();
    story.key(KeyCode::Function(9));
    check_at("chat-system", story, &SIZES);
}
