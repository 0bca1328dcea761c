//! Orders of the dashboard against scripted nodes.
use std::{sync::Mutex, time::Duration};

use telemetry::LoadProgress;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::client::{
    assign::assign_until,
    event::AssignEvent,
    exclude::{ExclusionOutcome, ExclusionStop, WhenStopped},
    fake_node::{FakeNode, Script},
    recovery::rolling,
    tests::{addresses, assigns, open, start, wanted},
};

fn refused<T: std::fmt::Debug>(result: Result<T, Fault>) -> String {
    let fault = result.expect_err("it is refused");
    assert!(matches!(fault.kind, FaultKind::ParameterInvalid { .. }), "{fault}");
    fault.to_string()
}

#[tokio::test]
async fn any_console_can_pause_resume_and_abort_a_rolling_restart() {
    let nodes = start(vec![Script::default(), Script::default()]).await;
    let cluster = Cluster::dial(&addresses(&nodes)).await;
    refused(roll(&cluster, RollingCommand::Pause).await);
    refused(roll(&cluster, RollingCommand::Begin(vec![7])).await);
    let begun = roll(&cluster, RollingCommand::Begin(vec![1, 0])).await.expect("no other restart is running");
    let names: Vec<&str> = begun.targets.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((names, begun.drain_ms, begun.revision), (vec!["pi2", "pi1"], DRAIN_MS, 1));
    assert!(refused(roll(&cluster, RollingCommand::Begin(vec![0])).await).contains("is running"));
    // Another console, at a later time.
    let other = Cluster::dial(&addresses(&nodes)).await;
    let paused = roll(&other, RollingCommand::Pause).await.expect("it runs");
    assert!(matches!(paused.phase, Phase::Paused(_)));
    assert_eq!(roll(&cluster, RollingCommand::Resume).await.map(|rolling| rolling.phase), Ok(Phase::Runs));
    let ended = roll(&other, RollingCommand::Abort).await.expect("it runs");
    assert_eq!(rolling(&cluster).await, Some(ended));
    refused(roll(&cluster, RollingCommand::Resume).await);
}

#[tokio::test]
async fn cordoned_or_drained_node_is_announced_and_keeps_its_shard() {
    let nodes = start(vec![Script::default(), Script::default()]).await;
    assigns(&nodes).await.0.expect("both nodes agree");
    for (how, expected) in [(Removal::Cordon, None), (Removal::Drain, Some(true))] {
        let cluster = Cluster::dial(&addresses(&nodes)).await;
        let done = out(cluster, 1, "fan", how, &CancellationToken::new(), &|_| {}).await.expect("both store it");
        assert_eq!(done, OperateEvent::Cordoned { node: "pi2".into(), drained: expected });
    }
    let cluster = Cluster::dial(&addresses(&nodes)).await;
    assert_eq!(cluster.topology().map(|(topology, _)| topology.members.len()), Some(2));
    assert_eq!(cluster.exclusion(&cluster.nodes[1]).and_then(|entry| entry.reason.as_deref()), Some("fan"));
    assert_eq!(nodes[0].asked().iter().filter(|asked| **asked == "prepare").count(), 1, "nothing was assigned again");
}

#[tokio::test]
async fn last_node_stops_accepting_requests_without_assignment() {
    let nodes = start(vec![Script::default()]).await;
    assigns(&nodes).await.0.expect("it agrees");
    let cluster = Cluster::dial(&addresses(&nodes)).await;
    let done = out(cluster, 0, "sd card", Removal::Exclude, &CancellationToken::new(), &|_| {})
        .await
        .expect("it stores the list");
    assert_eq!(done, OperateEvent::Excluded { node: "pi1".into(), out: true, running: None });
    assert!(Cluster::dial(&addresses(&nodes)).await.usable().is_err());
}

#[tokio::test]
async fn assignment_is_aborted_on_all_nodes_while_they_load() {
    let nodes = start(vec![Script::default(), Script { loads_on: true, ..Script::default() }]).await;
    let (stop, loads) = (CancellationToken::new(), Mutex::new(Vec::<LoadProgress>::new()));
    let result = assign_until(&open(&nodes).await, &wanted(2), &stop, &|event| {
        if let AssignEvent::Loading { node: 1, progress } = event {
            loads.lock().expect("the lock is not poisoned").push(progress);
            stop.cancel();
        }
    })
    .await;
    let fault = result.expect_err("it was aborted");
    assert!(matches!(fault.kind, FaultKind::AssignmentAborted { .. }), "{fault}");
    assert!(!loads.lock().expect("the lock is not poisoned").is_empty());
    assert!(nodes.iter().all(|node| node.asked().contains(&"abort")), "{:?}", nodes[0].asked());
    assert!(!nodes[0].asked().contains(&"commit"));
}

#[tokio::test]
async fn node_that_has_loaded_is_asked_for_reports_while_others_load() {
    let nodes = start(vec![Script::default(), Script { loads_on: true, ..Script::default() }]).await;
    let (stop, sessions) = (CancellationToken::new(), open(&nodes).await);
    let sign = async {
        let asked = nodes[0].await_asked_after("prepare", "report");
        tokio::time::timeout(Duration::from_secs(20), asked).await.expect("the lease of its shard is extended");
        stop.cancel();
    };
    let wanted = wanted(2);
    let (result, ()) = tokio::join!(assign_until(&sessions, &wanted, &stop, &|_| {}), sign);
    result.expect_err("it was aborted");
}

/// The current reasons of all excluded nodes, as reported by the nodes.
async fn reasons(nodes: &[FakeNode]) -> Vec<Option<String>> {
    Cluster::dial(&addresses(nodes)).await.out().map(|entry| entry.reason.clone()).collect()
}

async fn excluded(nodes: &[FakeNode], named: usize, who: &str) -> Result<ExclusionOutcome, Fault> {
    let cluster = Cluster::dial(&addresses(&nodes[..named])).await.with_known(who).await;
    let node = cluster.find(who).expect("the other nodes have its address");
    exclude(
        cluster,
        node,
        Some("disk"),
        ExclusionStop { token: &CancellationToken::new(), leaves: WhenStopped::AsBefore },
        &|_| {},
    )
    .await
}

#[tokio::test]
async fn node_with_a_full_disk_is_excluded_by_the_others() {
    let full = Script { keeps_no_list: true, ..Script::default() };
    let nodes = start(vec![Script::default(), Script::default(), full]).await;
    assigns(&nodes).await.0.expect("all nodes agree");
    let done = excluded(&nodes, 3, "pi3").await.expect("the others store the list");
    let names = done.assigned.map(|done| done.topology.members.into_iter().map(|member| member.name).collect());
    assert_eq!(names, Some(vec!["pi1".to_owned(), "pi2".to_owned()]));
    assert_eq!(reasons(&nodes).await, [Some("disk".to_owned())]);
}

#[tokio::test]
async fn node_that_was_not_named_is_excluded() {
    let nodes = start(vec![Script::default(), Script::default(), Script::default()]).await;
    assigns(&nodes).await.0.expect("all nodes agree");
    let done = excluded(&nodes, 1, "pi3").await.expect("the others store the list");
    let layout = done.assigned.map(|done| done.topology.layout.to_string());
    assert_eq!(layout.as_deref(), Some("tp2"), "members that were not named stay members");
}

#[tokio::test]
async fn running_requests_finish_before_a_node_is_added() {
    let nodes = start(vec![Script::default(), Script::default()]).await;
    assigns(&nodes[..1]).await.0.expect("it agrees");
    nodes[0].runs(2);
    let waited = Mutex::new(Vec::new());
    let cluster = Cluster::dial(&addresses(&nodes)).await;
    let done = exclude(
        cluster,
        1,
        None,
        ExclusionStop { token: &CancellationToken::new(), leaves: WhenStopped::AsBefore },
        &|event| {
            if let OperateEvent::WaitsForRequests { count } = event {
                waited.lock().expect("the lock is not poisoned").push(count);
                nodes[0].runs(0);
            }
        },
    )
    .await;
    let done = done.expect("both agree");
    assert_eq!(done.assigned.map(|done| done.topology.members.len()), Some(2));
    assert_eq!(*waited.lock().expect("the lock is not poisoned"), [2]);
}

#[tokio::test]
async fn lost_member_does_not_cut_the_requests_of_the_other_heads() {
    let nodes = start((0..4).map(|_| Script::default()).collect()).await;
    assigns(&nodes).await.0.expect("all nodes agree");
    nodes[0].runs(1);
    let waited = Mutex::new(0);
    let mut cluster = Cluster::dial(&addresses(&nodes)).await;
    cluster.nodes[3].answer = Err(Fault::new("pi4", FaultKind::Draining));
    let done = exclude(
        cluster,
        1,
        Some("disk"),
        ExclusionStop { token: &CancellationToken::new(), leaves: WhenStopped::AsBefore },
        &|event| {
            if let OperateEvent::WaitsForRequests { .. } = event {
                *waited.lock().expect("the lock is not poisoned") += 1;
                nodes[0].runs(0);
            }
        },
    )
    .await;
    assert_eq!(*waited.lock().expect("the lock is not poisoned"), 1, "{done:?}");
}

#[tokio::test]
async fn exclusion_that_too_few_nodes_keep_is_taken_back() {
    let full = || Script { keeps_no_list: true, ..Script::default() };
    let nodes = start(vec![Script::default(), full(), full(), Script::default()]).await;
    assigns(&nodes).await.0.expect("all nodes agree");
    let fault = excluded(&nodes, 4, "pi4").await.expect_err("two of three others cannot store it");
    assert!(matches!(fault.kind, FaultKind::StateUnwritable { .. }), "{fault}");
    assert_eq!(reasons(&nodes).await, [], "heads that kept it serve on");
    assert_eq!(nodes[0].asked().iter().filter(|asked| **asked == "prepare").count(), 1, "nothing was assigned");
}

#[tokio::test]
async fn exclusion_whose_assignment_fails_is_taken_back() {
    let refuses = Script { refuses_later: true, ..Script::default() };
    let nodes = start(vec![refuses, Script::default(), Script::default()]).await;
    assigns(&nodes).await.0.expect("all nodes agree");
    let fault = excluded(&nodes, 3, "pi3").await.expect_err("pi1 has no room");
    assert!(matches!(fault.kind, FaultKind::Draining), "{fault}");
    assert_eq!(reasons(&nodes).await, [], "the topology accepts requests as before");
    let cluster = Cluster::dial(&addresses(&nodes)).await;
    assert_eq!(cluster.topology().map(|(topology, _)| topology.members.len()), Some(3));
}

#[tokio::test]
async fn cordon_that_its_head_cannot_keep_is_refused() {
    let full = Script { keeps_no_list: true, ..Script::default() };
    let nodes = start(vec![full, Script::default(), Script::default()]).await;
    assigns(&nodes).await.0.expect("all nodes agree");
    let cluster = Cluster::dial(&addresses(&nodes)).await;
    let said = Mutex::new(Vec::new());
    let fault = out(cluster, 1, "fan", Removal::Cordon, &CancellationToken::new(), &|event| {
        if let OperateEvent::Said(entry) = event {
            said.lock().expect("the lock is not poisoned").push(entry.reason);
        }
    })
    .await;
    assert!(matches!(fault, Err(Fault { kind: FaultKind::StateUnwritable { .. }, .. })), "{fault:?}");
    assert_eq!(reasons(&nodes).await, []);
    assert_eq!(said.into_inner().expect("the lock is not poisoned"), [Some("fan".to_owned()), None]);
}

#[tokio::test]
async fn aborted_exclusion_cordons_the_node_and_keeps_the_topology() {
    let nodes = start(vec![Script::default(), Script::default()]).await;
    assigns(&nodes).await.0.expect("both nodes agree");
    let stop = CancellationToken::new();
    stop.cancel();
    let cluster = Cluster::dial(&addresses(&nodes)).await;
    let done = out(cluster, 1, "fan", Removal::Exclude, &stop, &|_| {}).await;
    assert_eq!(done, Ok(OperateEvent::Cordoned { node: "pi2".into(), drained: None }));
    let cluster = Cluster::dial(&addresses(&nodes)).await;
    assert_eq!(cluster.topology().map(|(topology, _)| topology.members.len()), Some(2));
    assert_eq!(cluster.out().count(), 1);
}
