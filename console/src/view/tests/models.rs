//! The Models page with files on nodes, predictions and a download.
use common::units::Bytes;
use protocol::models::{FileState, ModelFile, Step};
use topology::Layout;

use super::snapshot::check_all;
use crate::{
    catalogue::ENTRIES,
    fixtures::{NODES, Story, address, defaults},
    keymap::KeyCode,
    operator::{fit::Fit, model_order::ModelEvent},
    state::{Focus, Page, State},
    update::event::ClientEvent,
};

/// Files of the nodes, the running one among them if one runs, and a prediction for each model of the catalogue.
pub(super) fn fill(story: &mut Story) {
    story.key(KeyCode::Char('M'));
    let running = story.state.cluster.topology().map(|(topology, _)| topology.model.clone());
    for node in 0..NODES {
        let others = ["Llama-3.2-1B-Instruct-Q4_K_M.gguf", "qwen2.5-0.5b-instruct-q8_0.gguf"];
        let count = if node == 2 { 1 } else { 2 };
        let models = running.clone().into_iter().chain(others.into_iter().take(count).map(str::to_owned));
        let files = models.map(|model| ModelFile {
            model,
            folder: "/var/lib/bramble/models".to_owned(),
            size: Bytes(700 << 20),
            state: FileState::Complete,
            identity: None,
            sha256: None,
            content: None,
        });
        story.arrives(ClientEvent::Models { node, answer: Ok(files.collect()) });
    }
    let names = story.state.cluster.names().into_iter().map(|name| (name.to_owned(), 3)).collect();
    story.state.models.fits_for = names;
    for entry in ENTRIES {
        let bytes = entry.usual().bytes / NODES as u64;
        let layout: Layout = "tp4".parse().expect("it is a layout");
        let tokens_per_second = Some(36.0 / f64::from(entry.active.unwrap_or(entry.parameters)));
        let fit = match bytes {
            4_000_000_000.. => Fit::TooLarge,
            _ if entry.shape.is_none() => Fit::Unknown,
            _ => Fit::As { layout, tokens_per_second, bytes },
        };
        story.arrives(ClientEvent::Model(ModelEvent::Fits { name: entry.name.to_owned(), fit }));
    }
}

fn idle_cluster() -> Story {
    let addresses: Vec<String> = (0..NODES).map(address).collect();
    let mut story = Story::with(State::new(&addresses, None, "", defaults()));
    story.at(10).all_connected().key(KeyCode::Char('M'));
    story
}

#[test]
fn models_of_nodes_and_catalogue_are_shown_or_what_to_do() {
    let mut story = idle_cluster();
    fill(&mut story);
    story.key(KeyCode::Down);
    check_all("models", story);
    let mut story = idle_cluster();
    for node in 0..NODES {
        story.arrives(ClientEvent::Models { node, answer: Ok(Vec::new()) });
    }
    check_all("models-none", story);
}

#[test]
fn download_shows_rate_and_time_left_and_can_be_cancelled() {
    let mut story = idle_cluster();
    fill(&mut story);
    story.key(KeyCode::End).key(KeyCode::Home).key(KeyCode::Down).key(KeyCode::Down).key(KeyCode::Char('p'));
    check_all("ask-pull", story);
    let mut story = idle_cluster();
    fill(&mut story);
    story.key(KeyCode::Down).key(KeyCode::Down).key(KeyCode::Char('p')).key(KeyCode::Enter);
    let (step, total) = (Step::Downloading, Some(Bytes(532_000_000)));
    for (at, done) in [(1000, 0), (11_000, 120_000_000)] {
        story.at(at);
        story.arrives(ClientEvent::Model(ModelEvent::Pulling { node: 0, step, done: Bytes(done), total }));
    }
    check_all("models-download", story);
}

#[test]
fn filter_and_order_apply_to_both_tables() {
    let mut story = Story::ready();
    story.state.screen.focus = Focus::first_of(Page::Models);
    fill(&mut story);
    for letter in "/llama".chars() {
        story.key(KeyCode::Char(letter));
    }
    story.key(KeyCode::Enter).key(KeyCode::Char('s'));
    check_all("models-sorted", story);
}
