//! Turns of a conversation: sent with the model's template, streamed, stopped, failed, edited, answered again, stored.
use common::{
    chat::{AnswerForm, FinishReason, Thinking, ToolFormat},
    fault::{Fault, FaultKind},
};
use protocol::message::Prompt;
use serde_json::{Value, json};

use super::*;
use crate::{
    client::conversations::keeper::KeeperOrder,
    fixtures::{Story, finished, lost_fault},
    keymap::{KeyCode, Panel},
    update::event::{Event, GenerateEvent},
};

/// The page Chat of a cluster that is ready.
fn opened() -> Story {
    let mut story = Story::ready();
    story.state.screen.editor.replace("");
    story.state.screen.focus = Focus::first_of(Page::Chat);
    story.effects.clear();
    story
}

/// Types a message and sends it.
fn say(story: &mut Story, text: &str) {
    story.on(Event::Paste(text.to_owned())).key(KeyCode::Enter);
}

/// The head answers.
fn answer(story: &mut Story, text: &str) {
    story.generate(GenerateEvent::Started { prompt_token_ids: vec![1] }).token(text);
    story.generate(GenerateEvent::Finished(Box::new(finished())));
}

/// The messages of the requests sent so far.
fn sent(story: &Story) -> Vec<Value> {
    let prompts = story.effects.iter().filter_map(|effect| match effect {
        Effect::Generate { generate, .. } => Some(&generate.prompt),
        _ => None,
    });
    let texts = prompts.map(|prompt| match prompt {
        Prompt::Chat(chat) => serde_json::from_str(&chat.messages).expect("messages are JSON"),
        Prompt::Text(text) => json!(text),
        Prompt::Tokens(_) => Value::Null,
    });
    texts.collect()
}

/// The last conversation that was stored.
fn stored(story: &Story) -> Conversation {
    let kept = story.effects.iter().rev().find_map(|effect| match effect {
        Effect::File(FileEffect::Conversations(KeeperOrder::Keep(conversation))) => {
            Some(Conversation::clone(conversation))
        }
        _ => None,
    });
    kept.expect("a conversation was stored")
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

#[test]
fn each_turn_is_sent_with_all_earlier_ones() {
    let mut story = opened();
    say(&mut story, "one");
    assert!(story.state.chat.awaits() && stored(&story).turns[0].answer.is_none(), "stored before its answer");
    answer(&mut story, "1");
    say(&mut story, "two");
    answer(&mut story, "2");
    let requests = sent(&story);
    assert_eq!(requests, [json!([user("one")]), json!([user("one"), assistant("1"), user("two")])]);
    let kept = stored(&story);
    let last = kept.turns[1].answer.as_ref().expect("answered");
    assert_eq!((last.text.as_str(), last.model.is_empty()), ("2", false));
    assert!(last.figures.contains("31 tokens") && last.figures.contains("first token after 98 ms"), "{}", last.figures);
    let model = story.effects.iter().all(|effect| match effect {
        Effect::Generate { generate, .. } => generate.model.is_some() && generate.shows_marks,
        _ => true,
    });
    assert!(model, "every request names its model");
    assert_eq!(story.state.screen.focus, Focus::first_of(Page::Chat));
}

#[test]
fn stopped_answer_keeps_its_text() {
    let mut story = opened();
    say(&mut story, "one");
    story.generate(GenerateEvent::Started { prompt_token_ids: vec![1] }).token("half").key(KeyCode::Esc);
    assert!(story.effects.contains(&Effect::Cancel));
    let mut end = finished();
    end.reason = FinishReason::Cancelled;
    story.generate(GenerateEvent::Finished(Box::new(end)));
    let kept = stored(&story);
    let answer = kept.turns[0].answer.as_ref().expect("a part arrived");
    assert!(answer.text == "half" && answer.figures.ends_with("stopped") && !story.state.chat.awaits());
}

#[test]
fn failed_answer_names_the_next_step_and_enter_sends_it_again() {
    let mut story = opened();
    say(&mut story, "one");
    story.generate(GenerateEvent::Failed(lost_fault()));
    let failure = stored(&story).turns[0].answer.clone().and_then(|answer| answer.failure).expect("it failed");
    assert!(failure.contains("Next: "), "{failure}");
    story.key(KeyCode::Enter);
    answer(&mut story, "1");
    assert_eq!(sent(&story), [json!([user("one")]), json!([user("one")])]);
    let kept = stored(&story);
    assert!(kept.turns.len() == 1 && kept.turns[0].answer.as_ref().is_some_and(|answer| answer.failure.is_none()));
    story.key(KeyCode::Enter);
    assert_eq!(sent(&story).len(), 2, "an answered message is not sent by an empty box");
}

#[test]
fn last_message_is_edited_and_answered_again() {
    let mut story = opened();
    say(&mut story, "one");
    answer(&mut story, "1");
    say(&mut story, "twp");
    answer(&mut story, "?");
    story.key(KeyCode::Function(4)).key(KeyCode::Backspace).key(KeyCode::Char('o')).key(KeyCode::Enter);
    answer(&mut story, "2");
    assert_eq!(sent(&story)[2], json!([user("one"), assistant("1"), user("two")]));
    story.key(KeyCode::Function(5));
    answer(&mut story, "two");
    let kept = stored(&story);
    assert_eq!(sent(&story)[3], sent(&story)[2]);
    let answers: Vec<&str> = kept.turns.iter().filter_map(|turn| Some(turn.answer.as_ref()?.text.as_str())).collect();
    assert_eq!(answers, ["1", "two"]);
    story.key(KeyCode::Function(4)).key(KeyCode::Esc);
    assert!(!story.state.chat.edits && story.state.chat.last_turn().is_some_and(|turn| turn.answer.is_some()));
}

#[test]
fn earlier_answer_stays_if_no_new_one_arrives() {
    let mut story = opened();
    say(&mut story, "one");
    answer(&mut story, "1");
    let before = stored(&story);
    story.effects.clear();
    story.key(KeyCode::Function(5));
    let keeps = story.effects.iter().any(|effect| matches!(effect, Effect::File(_)));
    assert!(story.state.chat.awaits() && !keeps, "the file keeps the earlier answer");
    story.generate(GenerateEvent::Failed(lost_fault()));
    assert_eq!(stored(&story).turns, before.turns);
    assert!(story.state.screen.notice.as_ref().is_some_and(|notice| notice.contains("Next: ")));
    story.key(KeyCode::Function(5));
    answer(&mut story, "2");
    assert_eq!(stored(&story).turns[0].answer.as_ref().map(|answer| answer.text.as_str()), Some("2"));
}

#[test]
fn thoughts_are_stored_apart_and_not_sent_again() {
    let mut story = opened();
    say(&mut story, "2 + 2?");
    let form = AnswerForm { tool_format: ToolFormat::Hermes, thinking: Thinking::Open, ..AnswerForm::default() };
    story.generate(GenerateEvent::Started { prompt_token_ids: vec![1] }).generate(GenerateEvent::Form(form));
    story.token("I add.").token("\n</think>\n\n").token("4");
    story.generate(GenerateEvent::Finished(Box::new(finished())));
    let kept = stored(&story);
    let answer = kept.turns[0].answer.as_ref().expect("answered");
    assert_eq!((answer.thought.as_str(), answer.text.as_str()), ("I add.", "4"));
    say(&mut story, "sure?");
    assert_eq!(sent(&story)[1][1], assistant("4"));
    assert!(!story.state.chat.shows_thoughts);
    story.key(KeyCode::Function(7));
    assert!(story.state.chat.shows_thoughts);
}

#[test]
fn model_without_a_template_continues_the_text() {
    let mut story = opened();
    say(&mut story, "ROMEO:");
    story.generate(GenerateEvent::Failed(Fault::new("pi0", FaultKind::NoTemplate)));
    assert!(story.state.chat.awaits() && story.state.screen.notice.is_some(), "it is sent again by itself");
    answer(&mut story, " O!");
    say(&mut story, "JULIET:");
    assert_eq!(sent(&story)[1..], [json!("ROMEO:"), json!("JULIET:")]);
    story.generate(GenerateEvent::Failed(Fault::new("pi0", FaultKind::NoTemplate)));
    assert!(!story.state.chat.awaits(), "a second refusal is a failure");
}

#[test]
fn conversations_are_chosen_renamed_and_deleted() {
    let mut story = opened();
    for text in ["one", "two"] {
        say(&mut story, text);
        answer(&mut story, text);
        story.key(KeyCode::Function(6));
    }
    let titles = |story: &Story| story.state.chat.all.iter().map(|one| one.title()).collect::<Vec<_>>();
    assert_eq!((titles(&story), story.state.chat.current.is_none()), (vec!["two".to_owned(), "one".to_owned()], true));
    story.state.screen.focus.panel = Panel::Conversations;
    story.key(KeyCode::Down).key(KeyCode::Down).key(KeyCode::Char('N'));
    story.on(Event::Paste(" more".to_owned())).key(KeyCode::Enter);
    assert_eq!(titles(&story), ["two", "one more"]);
    story.key(KeyCode::Char('D')).key(KeyCode::Esc);
    assert_eq!(titles(&story).len(), 2);
    story.key(KeyCode::Char('D')).key(KeyCode::Enter);
    assert_eq!(
        (titles(&story), story.state.chat.shown().map(|one| one.title())),
        (vec!["two".to_owned()], Some("two".to_owned()))
    );
    assert!(
        story
            .effects
            .iter()
            .any(|effect| { matches!(effect, Effect::File(FileEffect::Conversations(KeeperOrder::Remove(_)))) })
    );
}

#[test]
fn system_prompt_is_sent_first_and_carried_over() {
    let mut story = opened();
    story.key(KeyCode::Function(9)).on(Event::Paste("be short".to_owned())).key(KeyCode::Enter);
    say(&mut story, "one");
    let system = json!({"role": "system", "content": "be short"});
    assert_eq!(sent(&story)[0], json!([system, user("one")]));
    answer(&mut story, "1");
    story.key(KeyCode::Function(6));
    say(&mut story, "two");
    assert_eq!(sent(&story)[1], json!([system, user("two")]));
}

#[test]
fn read_conversations_are_listed_and_skipped_files_named() {
    let mut story = opened();
    let all = vec![Conversation::new("old-1".to_owned(), String::new())];
    let read = ReadConversations { all, skipped: vec!["x.json: broken".to_owned(), "y.json: broken".to_owned()] };
    story.on(Event::Conversations(KeeperNews::Read(read)));
    assert_eq!(story.state.chat.all.len(), 1);
    let notice = story.state.screen.notice.clone().expect("the skipped files are named");
    assert!(notice.contains("x.json") && notice.contains("1 more"), "{notice}");
}

#[test]
fn user_is_told_that_a_conversation_is_stored_as_a_copy() {
    let mut story = opened();
    story.on(Event::Conversations(KeeperNews::Copied("it is stored as \"one (copy)\"".to_owned())));
    assert_eq!(story.state.screen.notice.as_deref(), Some("it is stored as \"one (copy)\""));
}

#[test]
fn without_a_running_model_the_list_opens_and_the_text_stays() {
    let mut story = Story::begin();
    story.at(10).all_connected();
    story.state.plan.desired = None;
    story.state.cluster.assignment = crate::state::AssignmentStatus::Nothing;
    story.state.screen.editor.replace("");
    story.state.screen.focus = Focus::first_of(Page::Chat);
    say(&mut story, "one");
    assert!(story.state.screen.focus.page == Page::Models && story.state.screen.editor.text() == "one");
    assert!(story.state.chat.all.is_empty());
}

#[test]
fn quitting_stores_what_has_arrived() {
    let mut story = opened();
    say(&mut story, "one");
    story.generate(GenerateEvent::Started { prompt_token_ids: vec![1] }).token("half");
    story.key(KeyCode::Tab).key(KeyCode::Char('q'));
    assert_eq!(stored(&story).turns[0].answer.as_ref().map(|answer| answer.text.as_str()), Some("half"));
}

#[test]
fn last_answer_is_copied() {
    let mut story = opened();
    story.key(KeyCode::Function(8));
    assert!(!story.effects.iter().any(|effect| matches!(effect, Effect::Copy(_))));
    say(&mut story, "one");
    answer(&mut story, "1");
    story.key(KeyCode::Function(8));
    assert!(story.effects.contains(&Effect::Copy("1".to_owned())));
}
