//! Loading a model from an idle dashboard: the list, the planner's choice and the question.
use common::{
    fault::{Fault, FaultKind},
    units::Bytes,
};
use protocol::models::{FileState, ModelFile};

use crate::{
    fixtures::{NODES, Story, address, defaults, idle, sizes},
    keymap::KeyCode,
    operator::planner_query::{PlannerAnswer, PlannerQuery},
    state::{State, operation::Question, status::hint},
    update::{
        effect::Effect,
        event::{ClientEvent, Event},
    },
};

fn file(model: &str) -> ModelFile {
    let (folder, size) = ("/models".to_owned(), Bytes(3 << 30));
    ModelFile {
        model: model.into(),
        folder,
        size,
        state: FileState::Complete,
        identity: None,
        sha256: None,
        content: None,
    }
}

/// Nodes on machines of their own that run nothing.
fn idle_cluster() -> Story {
    let addresses: Vec<String> = (0..NODES).map(address).collect();
    let mut story = Story::with(State::new(&addresses, None, "", defaults()));
    story.at(10);
    for node in 0..NODES {
        story.connected(node).report(node, idle(node));
        story.state.cluster.nodes[node].machine.0 = format!("boot {node}");
    }
    story
}

/// All nodes list these files.
fn listed(story: &mut Story, files: &[&str]) {
    for node in 0..NODES {
        let answer = Ok(files.iter().map(|model| file(model)).collect());
        story.arrives(ClientEvent::Models { node, answer });
    }
}

fn query(story: &Story) -> PlannerQuery {
    match story.effects.last() {
        Some(Effect::Plan(query)) => query.as_ref().clone(),
        other => panic!("no planner query: {other:?}"),
    }
}

#[test]
fn chosen_model_is_planned_and_then_asked_about() {
    let mut story = idle_cluster();
    assert_eq!(hint(&story.state), "No model is loaded. Press M to choose one.");
    story.key(KeyCode::Char('M'));
    assert_eq!(story.effects, [Effect::ListModels((0..NODES).collect())]);
    listed(&mut story, &["a.gguf", "b.gguf"]);
    story.key(KeyCode::Down).key(KeyCode::Enter);
    let query = query(&story);
    assert_eq!((query.model.as_str(), query.nodes.len()), ("b.gguf", NODES));
    story.arrives(ClientEvent::Planned(Ok(Box::new(PlannerAnswer::new(query, sizes())))));
    let Some(Question::Assign { wanted, .. }) = story.state.operations.dialog.clone().map(|dialog| dialog.question)
    else {
        panic!("no question: {:?}", story.state.screen.notice);
    };
    assert_eq!((wanted.model.as_str(), story.state.screen.models.is_none()), ("b.gguf", true));
    story.effects.clear();
    story.key(KeyCode::Enter);
    assert!(matches!(story.effects.as_slice(), [Effect::Assign { wanted: given, .. }] if *given == wanted));
}

#[test]
fn only_nodes_that_have_the_file_are_planned_for() {
    let mut story = idle_cluster();
    story.key(KeyCode::Char('r'));
    story.arrives(ClientEvent::Models { node: 0, answer: Ok(vec![file("a.gguf")]) });
    story.arrives(ClientEvent::Models { node: 2, answer: Ok(vec![file("a.gguf")]) });
    let fault = Fault::new("pi1", FaultKind::Internal { reason: "disk".into() });
    story.arrives(ClientEvent::Models { node: 1, answer: Err(fault) }).key(KeyCode::Enter);
    let places: Vec<usize> = query(&story).nodes.iter().map(|node| node.place).collect();
    assert_eq!(places, [0, 2]);
    story.key(KeyCode::Esc);
    assert!(story.state.screen.models.is_none() && story.state.operations.dialog.is_none());
}

#[test]
fn load_command_finds_a_model_by_name_or_says_what_to_do() {
    let load = |story: &mut Story, name: &str| {
        story.key(KeyCode::Char(':')).on(Event::Paste(format!("load {name}"))).key(KeyCode::Enter);
    };
    let mut story = idle_cluster();
    load(&mut story, "a");
    listed(&mut story, &["a.gguf"]);
    assert_eq!(query(&story).model, "a.gguf");
    let mut story = idle_cluster();
    load(&mut story, "other");
    listed(&mut story, &["a.gguf"]);
    let notice = story.state.screen.notice.clone().unwrap_or_default();
    assert!(notice.contains("\"other\"") && notice.contains("console model pull"), "{notice}");
    load(&mut story, "other");
    listed(&mut story, &[]);
    assert!(story.state.screen.notice.as_ref().is_some_and(|notice| notice.starts_with("no node has a model file")));
}

#[test]
fn nodes_on_one_machine_are_all_used_after_the_question() {
    let mut story = idle_cluster();
    story.state.cluster.nodes.iter_mut().for_each(|node| node.machine.0 = "one".into());
    story.key(KeyCode::Char('M'));
    listed(&mut story, &["a.gguf"]);
    story.key(KeyCode::Enter);
    let question = story.state.operations.dialog.as_ref().map(|dialog| &dialog.question);
    let Some(Question::Assign { wanted, members }) = question else { panic!("no question") };
    assert_eq!((wanted.layout.node_count(), members.len()), (NODES, NODES));
}

#[test]
fn running_topology_is_replaced_only_after_the_question() {
    let mut story = Story::ready();
    story.key(KeyCode::Esc).key(KeyCode::Char('M'));
    listed(&mut story, &["other.gguf"]);
    story.effects.clear();
    story.key(KeyCode::Enter);
    assert!(story.effects.iter().all(|effect| !effect.acts()), "{:?}", story.effects);
}

#[test]
fn prompt_without_a_topology_opens_the_list_and_keeps_its_text() {
    let mut story = idle_cluster();
    story.on(Event::Paste("ROMEO:".to_owned())).key(KeyCode::Enter);
    assert!(story.state.screen.models.is_some());
    assert_eq!(story.state.screen.editor.text(), "ROMEO:");
}
