//! Loading a model from an idle dashboard: the list, the planner's choice and the question.
use common::{
    fault::{Fault, FaultKind},
    units::Bytes,
};
use protocol::models::{FileState, ModelFile, Step};

use crate::{
    fixtures::{NODES, Story, address, defaults, idle, sizes},
    keymap::KeyCode,
    operator::{
        fit::Fit,
        model_order::{ModelEvent, ModelOrder},
        planner_query::{PlannerAnswer, PlannerQuery},
    },
    state::{Page, State, operation::Question, status::hint},
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
    assert_eq!(story.effects, [Effect::Models(ModelOrder::List((0..NODES).collect()))]);
    listed(&mut story, &["a.gguf", "b.gguf"]);
    story.key(KeyCode::Down).key(KeyCode::Enter);
    let query = query(&story);
    assert_eq!((query.model.as_str(), query.nodes.len()), ("b.gguf", NODES));
    story.arrives(ClientEvent::Planned(Ok(Box::new(PlannerAnswer::new(query, sizes())))));
    let Some(Question::Assign { wanted, .. }) = story.state.operations.dialog.clone().map(|dialog| dialog.question)
    else {
        panic!("no question: {:?}", story.state.screen.notice);
    };
    assert_eq!((wanted.model.as_str(), story.state.models.planning.as_ref()), ("b.gguf", None));
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
    story.arrives(ClientEvent::Models { node: 3, answer: Ok(Vec::new()) });
    let fault = Fault::new("pi1", FaultKind::Internal { reason: "disk".into() });
    story.arrives(ClientEvent::Models { node: 1, answer: Err(fault) }).key(KeyCode::Enter);
    let places: Vec<usize> = query(&story).nodes.iter().map(|node| node.place).collect();
    assert_eq!(places, [0, 2]);
    assert_eq!(story.state.operations.dialog, None);
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
    assert!(notice.contains("\"other\"") && notice.contains("p downloads"), "{notice}");
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
    assert_eq!(story.state.screen.focus.page, Page::Models);
    assert_eq!(story.state.screen.editor.text(), "ROMEO:");
}

fn question(story: &Story) -> Option<&Question> {
    story.state.operations.dialog.as_ref().map(|dialog| &dialog.question)
}

#[test]
fn enter_on_the_catalogue_downloads_after_a_question_and_shows_progress() {
    let mut story = idle_cluster();
    story.key(KeyCode::Char('8'));
    listed(&mut story, &[]);
    story.at(300).key(KeyCode::Enter);
    let Some(Question::Pull { name, nodes, .. }) = question(&story).cloned() else { panic!("no question") };
    assert_eq!((name, nodes.len()), (crate::catalogue::ENTRIES[0].name, NODES));
    story.effects.clear();
    story.key(KeyCode::Enter);
    let [Effect::Models(ModelOrder::Pull { source, .. })] = story.effects.as_slice() else { panic!("no order") };
    assert!(source.starts_with("hf:"));
    let (step, total) = (Step::Downloading, Some(Bytes(100)));
    story.arrives(ClientEvent::Model(ModelEvent::Pulling { node: 0, step, done: Bytes(50), total }));
    let pull = story.state.models.pull.clone().expect("a download runs");
    assert_eq!(crate::operator::transfer::share(&pull.lanes), Some(0.5));
    story.key(KeyCode::Char('p'));
    assert!(story.state.screen.notice.as_ref().is_some_and(|notice| notice.contains("X cancels")));
    story.effects.clear();
    story.key(KeyCode::Char('X'));
    assert_eq!(story.effects, [Effect::Models(ModelOrder::CancelPull)]);
    story.arrives(ClientEvent::Model(ModelEvent::Cancelled));
    assert_eq!(story.state.models.pull, None);
}

#[test]
fn download_of_a_file_that_a_node_has_is_of_that_file() {
    let mut story = idle_cluster();
    story.key(KeyCode::Char('8')).at(250);
    let held = crate::catalogue::ENTRIES[0].file("Q8_0").expect("the catalogue has it");
    for node in 0..NODES {
        let files = if node == 0 { vec![file(held.file_name())] } else { Vec::new() };
        story.arrives(ClientEvent::Models { node, answer: Ok(files) });
    }
    story.at(300).key(KeyCode::Char('p'));
    let Some(Question::Pull { file, .. }) = question(&story) else { panic!("no question") };
    assert_eq!(file, held);
}

#[test]
fn page_asks_for_files_and_predictions_while_it_is_shown() {
    let mut story = idle_cluster();
    story.effects.clear();
    story.at(1000);
    assert_eq!(story.effects, [], "another page is shown");
    story.key(KeyCode::Char('8')).at(1250);
    let orders = |story: &Story| {
        let orders = story.effects.iter().filter_map(|effect| match effect {
            Effect::Models(order) => Some(order.clone()),
            _ => None,
        });
        orders.collect::<Vec<_>>()
    };
    let [ModelOrder::List(asked), ModelOrder::Fit { nodes, .. }] = &orders(&story)[..] else {
        panic!("{:?}", story.effects)
    };
    assert_eq!((asked.len(), nodes.len()), (NODES, NODES));
    story.at(1500);
    assert_eq!(orders(&story).len(), 2, "nothing changed");
    let name = "qwen3.5-4b".to_owned();
    story.arrives(ClientEvent::Model(ModelEvent::Fits { name: name.clone(), fit: Fit::TooLarge }));
    assert_eq!(story.state.models.fits.get(&name), Some(&Fit::TooLarge));
    story.at(12_000);
    assert!(matches!(orders(&story)[..], [_, _, ModelOrder::List(_)]), "{:?}", story.effects);
}

#[test]
fn loaded_model_is_unloaded_before_it_can_be_deleted() {
    let mut story = Story::ready();
    let model = story.state.cluster.topology().map(|(topology, _)| topology.model.clone()).expect("it runs");
    story.key(KeyCode::Esc).key(KeyCode::Char('M'));
    listed(&mut story, &[&model]);
    story.key(KeyCode::Delete);
    assert!(question(&story).is_none());
    assert!(story.state.screen.notice.as_ref().is_some_and(|notice| notice.contains("u unloads it first")));
    story.effects.clear();
    story.key(KeyCode::Char('u')).key(KeyCode::Enter);
    assert!(
        matches!(&story.effects[..], [Effect::Models(ModelOrder::Unload { topology, .. })] if topology.model == model)
    );
    let unloaded = ModelEvent::Unloaded { model: model.clone(), answer: Ok(()) };
    story.arrives(ClientEvent::Model(unloaded));
    for node in 0..NODES {
        story.report(node, idle(node));
    }
    assert_eq!(hint(&story.state), "No model is loaded. Press M to choose one.", "nothing counts as lost");
    story.key(KeyCode::Char('M'));
    listed(&mut story, &[&model, "old.gguf"]);
    let place = if model.as_str() < "old.gguf" { KeyCode::Down } else { KeyCode::Up };
    story.key(place);
    story.effects.clear();
    story.key(KeyCode::Delete).key(KeyCode::Enter);
    let expected = ModelOrder::Remove { model: "old.gguf".into(), nodes: (0..NODES).collect() };
    assert_eq!(story.effects, [Effect::Models(expected)]);
}

#[test]
fn readonly_page_shows_but_does_nothing() {
    let mut story = Story::ready();
    story.state.readonly = true;
    story.key(KeyCode::Esc).key(KeyCode::Char('M'));
    listed(&mut story, &["other.gguf"]);
    for key in [KeyCode::Enter, KeyCode::Char('p'), KeyCode::Char('u'), KeyCode::Delete] {
        story.effects.clear();
        story.key(key);
        assert!(question(&story).is_none() && story.effects.iter().all(|effect| !effect.acts()), "{key:?}");
    }
}
