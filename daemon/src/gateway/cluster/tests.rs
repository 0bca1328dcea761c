//! Groups and models from reports, without nodes.
use common::ids::{MemberIndex, ModelIdentity};
use telemetry::NodeState;
use topology::Layout;

use super::{groups::GIVEN_UP, *};
use crate::node::tests::topology;

const MODELS: [&str; 2] = ["one.gguf", "two.gguf"];

/// A topology of these nodes of four, with a model.
fn on(nodes: &[usize], model: usize) -> Topology {
    let all = topology(4);
    Topology {
        layout: Layout::tensor_parallel(nodes.len() as u16),
        members: nodes.iter().map(|node| all.members[*node].clone()).collect(),
        model: MODELS[model].into(),
        identity: ModelIdentity([model as u8 + 1; 32]),
        ..all
    }
}

fn report(topology: &Topology, member: usize, epoch: u64, state: NodeState) -> NodeReport {
    NodeReport {
        name: topology.members[member].name.clone(),
        state,
        epoch: Epoch(epoch),
        topology: Some((topology.clone(), topology.hash(), MemberIndex(member as u16))),
        ..assignment::fixtures::idle_report("")
    }
}

fn learn(groups: &mut Groups, topology: &Topology, epoch: u64, state: NodeState, now: Instant) {
    for member in 0..topology.members.len() {
        groups.learn(&report(topology, member, epoch, state), now, 7);
    }
}

/// What pi1 has learned of a cluster, at first nothing.
fn cluster(own: &str, peers: &[&str]) -> Cluster {
    let identity =
        Identity { name: "pi1".into(), build: "b".into(), numeric: 1, machine: String::new(), cores: vec![] };
    let peers = peers.iter().map(|peer| (*peer).to_owned()).collect();
    Cluster::new(own.into(), peers, identity, Duration::from_secs(2))
}

fn names(groups: &Groups) -> Vec<(String, usize)> {
    groups.by_model().iter().map(|of| (of[0].topology.model.clone(), of.len())).collect()
}

#[test]
fn groups_of_other_nodes_are_kept_and_those_that_lost_nodes_are_replaced() {
    let (mut groups, now) = (Groups::default(), Instant::now());
    learn(&mut groups, &on(&[0, 1, 2, 3], 0), 5, NodeState::Ready, now);
    assert_eq!(names(&groups), [("one.gguf".into(), 1)]);
    learn(&mut groups, &on(&[0, 1], 1), 6, NodeState::Ready, now);
    // The others still report the topology that has lost its nodes.
    groups.learn(&report(&on(&[0, 1, 2, 3], 0), 2, 5, NodeState::Faulted), now, 7);
    assert_eq!(names(&groups), [("two.gguf".into(), 1)]);
    learn(&mut groups, &on(&[2, 3], 0), 6, NodeState::Ready, now);
    assert_eq!(names(&groups), [("two.gguf".into(), 1), ("one.gguf".into(), 1)]);
    learn(&mut groups, &on(&[1], 0), 7, NodeState::Loading, now);
    assert_eq!(names(&groups), [("one.gguf".into(), 2)], "replicas in two groups");
}

#[test]
fn aborted_assignment_leaves_the_earlier_topology() {
    let (mut groups, now) = (Groups::default(), Instant::now());
    learn(&mut groups, &on(&[0, 1], 0), 5, NodeState::Ready, now);
    learn(&mut groups, &on(&[0, 1], 1), 6, NodeState::Loading, now);
    assert_eq!(names(&groups), [("two.gguf".into(), 1)]);
    learn(&mut groups, &on(&[0, 1], 0), 6, NodeState::Serving, now);
    assert_eq!(names(&groups), [("one.gguf".into(), 1)]);
}

#[test]
fn model_is_expected_back_in_another_topology_and_after_an_assignment_that_was_given_up() {
    let (mut groups, now) = (Groups::default(), Instant::now());
    let second = Duration::from_secs(1);
    learn(&mut groups, &on(&[0, 1], 0), 5, NodeState::Ready, now);
    // The same model on fewer nodes: requests wait for it.
    learn(&mut groups, &on(&[0], 0), 6, NodeState::Loading, now + second);
    assert!(groups.of(&on(&[0], 0).roots())[0].has_served_lately(now + second));
    // Another model has never served. Its assignment is given up, and the previous topology is brought up again.
    learn(&mut groups, &on(&[0, 1], 1), 7, NodeState::Prepared, now + 2 * second);
    assert_eq!(names(&groups), [("two.gguf".into(), 1)]);
    assert!(!groups.0[0].has_served_lately(now + 2 * second));
    learn(&mut groups, &on(&[0], 0), 7, NodeState::Loading, now + 3 * second);
    assert_eq!(names(&groups), [("one.gguf".into(), 1)]);
    assert!(groups.0[0].has_served_lately(now + 3 * second));
    assert!(!groups.0[0].has_served_lately(now + LATELY + second), "not for ever");
}

#[test]
fn joining_node_that_loads_does_not_replace_what_serves() {
    let (mut groups, now) = (Groups::default(), Instant::now());
    let (one, two) = (on(&[0, 2], 0), on(&[0, 1, 2], 1));
    learn(&mut groups, &one, 4, NodeState::Serving, now);
    groups.learn(&report(&two, 1, 5, NodeState::Prepared), now, 7);
    assert_eq!(names(&groups), [("one.gguf".into(), 1)], "pi1 and pi3 still serve");
    groups.learn(&report(&two, 2, 5, NodeState::Loading), now, 7);
    assert_eq!(names(&groups), [("two.gguf".into(), 1)], "pi3 gave up its part for the other topology");
}

#[test]
fn topology_comes_back_after_an_assignment_of_which_its_nodes_know_nothing() {
    let (mut groups, now) = (Groups::default(), Instant::now());
    let (one, two) = (on(&[0, 2], 0), on(&[0, 1, 2], 1));
    learn(&mut groups, &one, 4, NodeState::Serving, now);
    // pi1 loads another topology, and loses its power before the epoch of that one is on its disk.
    groups.learn(&report(&two, 0, 5, NodeState::Loading), now, 7);
    groups.learn(&report(&one, 1, 4, NodeState::Faulted), now, 7);
    assert_eq!(names(&groups), [("two.gguf".into(), 1)], "it may still load");
    let later = now + GIVEN_UP;
    groups.learn(&report(&one, 1, 4, NodeState::Faulted), later, 7);
    assert_eq!(names(&groups), [("one.gguf".into(), 1)]);
    assert!(groups.0[0].has_served_lately(later), "requests wait for it");
}

#[test]
fn equal_names_in_two_groups_count_only_while_one_does_not_serve() {
    let (mut groups, now) = (Groups::default(), Instant::now());
    learn(&mut groups, &on(&[0], 0), 5, NodeState::Ready, now);
    let mut same_name = on(&[1], 1);
    same_name.members[0].name = on(&[0], 0).members[0].name.clone();
    learn(&mut groups, &same_name, 6, NodeState::Ready, now);
    assert_eq!(names(&groups).len(), 2, "both serve, at different addresses");
    let mut groups = Groups::default();
    learn(&mut groups, &on(&[0], 0), 5, NodeState::Ready, now);
    learn(&mut groups, &same_name, 6, NodeState::Ready, now + LATELY);
    assert_eq!(names(&groups), [("two.gguf".into(), 1)], "the node has moved");
}

#[test]
fn unloaded_topology_is_dropped_until_it_is_assigned_again() {
    let (mut groups, now) = (Groups::default(), Instant::now());
    let one = on(&[0, 1], 0);
    learn(&mut groups, &one, 5, NodeState::Ready, now);
    let unloaded = Some((Epoch(5), one.hash()));
    let idle = NodeReport { unloaded, ..assignment::fixtures::idle_report(&one.members[0].name) };
    groups.learn(&idle, now, 7);
    assert!(names(&groups).is_empty());
    // Its nodes keep that record until they commit to the next assignment.
    groups.learn(&NodeReport { unloaded, ..report(&one, 0, 5, NodeState::Loading) }, now, 7);
    learn(&mut groups, &one, 6, NodeState::Ready, now);
    assert_eq!(names(&groups).len(), 1);
}

#[test]
fn restarted_node_names_the_topology_that_is_to_come_back() {
    let (mut groups, now) = (Groups::default(), Instant::now());
    let one = on(&[0, 1], 0);
    let expected = Some(Box::new(one.clone()));
    let idle = NodeReport { expected, epoch: Epoch(5), ..assignment::fixtures::idle_report(&one.members[0].name) };
    groups.learn(&idle, now, 7);
    assert_eq!(names(&groups), [("one.gguf".into(), 1)]);
    learn(&mut groups, &on(&[0], 1), 6, NodeState::Ready, now);
    groups.learn(&NodeReport { name: one.members[1].name.clone(), ..idle }, now, 7);
    assert_eq!(names(&groups), [("two.gguf".into(), 1)], "it was replaced meanwhile");
}

#[test]
fn model_is_found_by_name_and_a_serving_one_first() {
    let cluster = cluster("a:1", &[]);
    assert!(cluster.find(None).is_none());
    let take = |topology: &Topology, epoch| {
        for member in 0..topology.members.len() {
            cluster.learn(&topology.members[member].address, report(topology, member, epoch, NodeState::Ready));
        }
    };
    take(&on(&[0, 1], 0), 5);
    assert_eq!(cluster.find(None).map(|model| model.topology.model.clone()), Some(MODELS[0].into()));
    take(&on(&[2], 1), 5);
    assert!(cluster.find(None).is_none(), "several, and none is named");
    assert!(cluster.find(Some("two")).is_some_and(|model| model.is_serving()));
    assert!(cluster.find(Some("three")).is_none());
    // Another file of the same name on a node that does not answer.
    let other = Topology { identity: ModelIdentity([9; 32]), ..on(&[3], 1) };
    cluster.known().groups.learn(&report(&other, 0, 5, NodeState::Faulted), Instant::now(), 7);
    assert_eq!(cluster.models().len(), 3);
    let found = cluster.find(Some("two.gguf")).expect("it is known");
    assert_eq!(found.topology.identity, ModelIdentity([2; 32]));
}

#[test]
fn head_that_refuses_requests_for_an_excluded_member_gets_none() {
    let cluster = cluster("a:1", &[]);
    let served = on(&[0, 1], 0);
    for (reason, is_serving) in [(None, true), (Some("hot"), false)] {
        let mut head = report(&served, 0, 5, NodeState::Ready);
        let member = &served.members[1];
        head.exclusions.say(&member.name, &member.address, reason, "me@desk");
        cluster.learn(&served.members[0].address, head);
        let model = cluster.find(None).expect("it was reported");
        assert_eq!((model.is_serving(), model.cordon().is_some()), (is_serving, false), "{reason:?}");
    }
}

#[test]
fn every_node_is_listed_once_and_a_lost_one_keeps_its_report() {
    let cluster = cluster("own:1", &["peer:1"]);
    let one = on(&[0, 1], 0);
    let numbered = |member: usize| NodeReport { instance: member as u64, ..report(&one, member, 5, NodeState::Ready) };
    let (head, other) = (&one.members[0], &one.members[1]);
    cluster.learn(&head.address, numbered(0));
    // This node is the head: its own address is another one of the same node.
    cluster.learn("own:1", numbered(0));
    cluster.known().away.insert(other.address.clone(), Instant::now());
    let nodes = cluster.known_nodes();
    let addresses: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
    assert_eq!(addresses, [head.address.as_str(), other.address.as_str(), "peer:1"]);
    assert!(nodes[0].seen.is_some() && nodes[0].away.is_none());
    assert_eq!(nodes[1].name.as_ref(), Some(&other.name), "the topology has its name");
    assert!(nodes[1].seen.is_none() && nodes[1].away.is_some());
    assert_eq!((nodes[2].name.as_ref(), nodes[2].away), (None, None), "it has not been asked yet");
    cluster.learn(&other.address, numbered(1));
    cluster.known().away.insert(other.address.clone(), Instant::now());
    let lost = &cluster.known_nodes()[1];
    assert!(lost.away.is_some() && lost.seen.as_ref().is_some_and(|seen| seen.report.instance == 1));
}
