//! Generations on scripted nodes, and how another head continues an answer.
use common::{
    chat::FinishReason,
    fault::FaultClass,
    ids::{Epoch, ModelIdentity},
};
use tokio::sync::mpsc::channel;
use topology::Topology;

use super::*;
use crate::{
    client::fake_node::{FakeNode, Generation, Script, TOKENS},
    client::tests::{open, request, start},
};

/// Generates on a node with this script, and returns the text and the last event.
async fn generates(generation: Generation, cancels: bool) -> (String, GenerateEvent) {
    let nodes = start(vec![Script { generation, ..Script::default() }]).await;
    let session = open(&nodes).await.remove(0);
    let cancel = CancellationToken::new();
    let (events, mut received) = channel(64);
    let (running, stop) = (Arc::clone(&session), cancel.clone());
    tokio::spawn(async move { generate(&[running], request(), &stop, &events).await });
    let mut text = String::new();
    while let Some(event) = received.recv().await {
        match event {
            GenerateEvent::Started { prompt_token_ids } => assert_eq!(prompt_token_ids, [1, 2]),
            GenerateEvent::Token(token) => {
                text.push_str(&token.text);
                if cancels && token.id == Some(TOKENS[2].0) {
                    cancel.cancel();
                }
            }
            last => return (text, last),
        }
    }
    panic!("a generation has an end");
}

#[tokio::test]
async fn generation_streams_text_and_ends() {
    let (text, last) = generates(Generation::Tokens, false).await;
    assert_eq!(text, "O Romeo!");
    assert!(matches!(&last, GenerateEvent::Finished(end) if end.reason == FinishReason::Length), "{last:?}");
}

#[tokio::test]
async fn cancelled_generation_ends_on_the_head_and_keeps_its_text() {
    let (text, last) = generates(Generation::UntilCancelled, true).await;
    assert_eq!(text, "O Romeo");
    assert!(matches!(&last, GenerateEvent::Finished(end) if end.reason == FinishReason::Cancelled), "{last:?}");
}

#[tokio::test]
async fn broken_generation_names_the_node_and_counts_as_lost() {
    let lost = Fault::new("pi3", FaultKind::NodeLost { how: Loss::Reset });
    assert_eq!(generates(Generation::Fails(lost.clone()), false).await.1, GenerateEvent::Failed(lost));
    let (text, last) = generates(Generation::Closes, false).await;
    assert_eq!(text, "O Romeo");
    let GenerateEvent::Failed(fault) = last else { panic!("{last:?}") };
    assert_eq!((fault.node.as_str(), fault.kind.class()), ("pi1", FaultClass::Lost));
}

/// Serves one replica on each of the nodes.
fn serve(nodes: &[FakeNode], recovers: bool) -> Topology {
    let mut topology = crate::fixtures::topology();
    topology.members.truncate(nodes.len());
    topology.layout = format!("dp{}-tp1", nodes.len()).parse().expect("a layout");
    for (node, member) in nodes.iter().zip(0..) {
        node.serves(&topology, member, recovers);
    }
    topology
}

/// Runs a request for the model of a topology and returns its events.
async fn events(sessions: &[Arc<Session>], topology: &Topology) -> Vec<GenerateEvent> {
    events_of(request(), sessions, topology).await
}

/// Like [`events`], for an answer that already has all of its tokens.
async fn events_of_rest(sessions: &[Arc<Session>], topology: &Topology) -> Vec<GenerateEvent> {
    events_of(Generate { resumed: TOKENS.map(|(id, _)| id).into(), ..request() }, sessions, topology).await
}

async fn events_of(request: Generate, sessions: &[Arc<Session>], topology: &Topology) -> Vec<GenerateEvent> {
    let (events, mut received) = channel(256);
    let request = Generate { model: Some(topology.roots().into()), ..request };
    generate(sessions, request, &CancellationToken::new(), &events).await;
    std::iter::from_fn(|| received.try_recv().ok()).collect()
}

/// The text, the number of starts, and the epochs that continue the answer.
fn summary(seen: &[GenerateEvent]) -> (String, usize, Vec<Epoch>) {
    let starts = seen.iter().filter(|event| matches!(event, GenerateEvent::Started { .. })).count();
    (
        seen.iter().filter_map(text_of).collect(),
        starts,
        seen.iter()
            .filter_map(
                |event: &GenerateEvent| {
                    if let GenerateEvent::Moved { epoch, .. } = event { Some(*epoch) } else { None }
                },
            )
            .collect(),
    )
}

fn fault(seen: &[GenerateEvent]) -> &Fault {
    let Some(GenerateEvent::Failed(fault)) = seen.last() else { panic!("{seen:?}") };
    fault
}

#[tokio::test]
async fn another_head_continues_an_answer_without_repeating_text() {
    let refuses = Generation::Fails(Fault::new("pi2", FaultKind::NotHead));
    let scripts = [Generation::Closes, refuses, Generation::Tokens];
    let nodes = start(scripts.map(|generation| Script { generation, ..Script::default() }).into()).await;
    let sessions = open(&nodes).await;
    let topology = serve(&nodes, true);
    nodes[0].forget();
    let seen = events(&sessions, &topology).await;
    let (text, starts, moved) = summary(&seen);
    assert_eq!((text.as_str(), starts), ("O Romeo!", 1));
    assert!(matches!(seen.last(), Some(GenerateEvent::Finished(_))), "{seen:?}");
    assert!(!moved.is_empty());

    // A refusal before the start ends the request: only a lost request is resumed.
    let alone = serve(&nodes[..1], false);
    nodes[0].forget();
    assert_eq!(fault(&events(&sessions[1..2], &alone).await).kind, FaultKind::NotHead);
}

#[tokio::test]
async fn answer_ended_by_a_new_topology_continues_in_it() {
    let superseded = Fault::new("pi1", FaultKind::Superseded { epoch: Epoch(7), by: "pi1".into() });
    let nodes = start(vec![Script { generation: Generation::FailsOnce(superseded), ..Script::default() }]).await;
    let topology = serve(&nodes, true);
    let seen = events(&open(&nodes).await, &topology).await;
    assert_eq!(summary(&seen), ("O Romeo!".into(), 1, vec![Epoch(7)]));
    assert!(matches!(seen.last(), Some(GenerateEvent::Finished(_))), "{seen:?}");
}

#[tokio::test]
async fn only_the_same_model_resumes_and_no_wait_without_recovery() {
    let left = Fault::new("pi1", FaultKind::NodeLost { how: Loss::Left });
    let nodes = start(vec![Script { generation: Generation::FailsOnce(left.clone()), ..Script::default() }]).await;
    let mut topology = serve(&nodes, false);
    topology.identity = ModelIdentity([9; 32]);
    let seen = events(&open(&nodes).await, &topology).await;
    assert_eq!(fault(&seen), &left);

    // If nodes recover by themselves, the console reports that it waits, and finally the loss.
    let nodes = start(vec![Script { generation: Generation::FailsOnce(left.clone()), ..Script::default() }]).await;
    let other = serve(&nodes, true);
    topology.layout = other.layout;
    let seen = events(&open(&nodes).await, &topology).await;
    assert!(seen.iter().any(|event| matches!(event, GenerateEvent::Waits { seconds: 0..=2, .. })), "{seen:?}");
    assert_eq!(fault(&seen), &left);
}

#[tokio::test]
async fn resume_is_retried_with_pauses_until_the_deadline() {
    let lost = Fault::new("pi1", FaultKind::NodeLost { how: Loss::Left });
    let mut scripts = vec![Script { generation: Generation::FailsOnce(lost.clone()), ..Script::default() }];
    scripts.extend(["pi2", "pi3"].map(|node| {
        let full = Fault::new(node, FaultKind::QueueFull { limit: 8 });
        Script { generation: Generation::Fails(full), ..Script::default() }
    }));
    let nodes = start(scripts).await;
    let topology = serve(&nodes, true);
    nodes[0].forget();
    let seen = events_of_rest(&open(&nodes).await, &topology).await;
    assert_eq!(fault(&seen), &lost, "the loss is the cause, the refusals follow from it");
    let asked = nodes.iter().flat_map(|node| node.asked()).filter(|what| *what == "generate").count();
    assert!((4..30).contains(&asked), "{asked} requests in 2 s");
}

#[tokio::test]
async fn head_that_cannot_resume_reports_the_reason() {
    let lost = Fault::new("pi1", FaultKind::NodeLost { how: Loss::Left });
    let long = Fault::new("pi2", FaultKind::PromptTooLong { tokens: 9, context: 8 });
    let scripts = [Generation::FailsOnce(lost), Generation::Fails(long.clone())];
    let nodes = start(scripts.map(|generation| Script { generation, ..Script::default() }).into()).await;
    let topology = serve(&nodes, true);
    nodes[0].forget();
    assert_eq!(fault(&events_of_rest(&open(&nodes).await, &topology).await), &long);
}

#[tokio::test]
async fn request_that_kills_two_heads_is_not_sent_to_a_third() {
    let scripts = ["pi1", "pi2", "pi3"].map(|node| {
        let hung = Fault::new(node, FaultKind::NodeLost { how: Loss::Stalled });
        Script { generation: Generation::Fails(hung), ..Script::default() }
    });
    let nodes = start(scripts.into()).await;
    let topology = serve(&nodes, true);
    let seen = events_of_rest(&open(&nodes).await, &topology).await;
    assert_eq!(fault(&seen).kind, FaultKind::EndsHeads { heads: 2 });
    let asked = nodes.iter().flat_map(|node| node.asked()).filter(|what| *what == "generate").count();
    assert_eq!(asked, 2);
}

fn text_of(event: &GenerateEvent) -> Option<&str> {
    if let GenerateEvent::Token(token) = event { Some(&token.text) } else { None }
}

#[tokio::test]
async fn silent_head_is_lost_only_when_it_stops_answering_reports() {
    let busy = Script { generation: Generation::UntilCancelled, ..Script::default() };
    let nodes = start(vec![busy, Script { is_mute: true, ..Script::default() }]).await;
    let sessions = open(&nodes).await;
    let cancel = CancellationToken::new();
    let (events, mut received) = channel(64);
    let generating = generate(&sessions[..1], request(), &cancel, &events);
    let asking = async {
        nodes[0].await_asked("report").await;
        cancel.cancel();
    };
    tokio::join!(generating, asking);
    let mut last = None;
    while let Ok(event) = received.try_recv() {
        last = Some(event);
    }
    assert!(matches!(last, Some(GenerateEvent::Finished(_))), "{last:?}");

    generate(&sessions[1..], request(), &CancellationToken::new(), &events).await;
    let lost = Fault::new("pi2", FaultKind::NodeLost { how: Loss::Silent });
    assert_eq!(received.try_recv(), Ok(GenerateEvent::Failed(lost)));
}
