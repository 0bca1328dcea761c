//! Sessions, assignments and generations against scripted nodes.
use std::sync::atomic::AtomicBool;

use assignment::fixtures;
use collectives::Choice;
use common::{
    fault::{FaultClass, FaultKind},
    ids::Epoch,
    precision::{Exchange, KvFormat},
    sampling::SamplingParameters,
    units::Bytes,
    version::WIRE_HIGHEST,
};
use planner::search::Goal;
use tokio::{io::AsyncWriteExt, net::TcpListener, sync::mpsc::channel};
use topology::Layout;

use super::{
    assign::{Assigned, SLOTS_DEFAULT, assign},
    event::RestartStep,
    fake_node::{FakeNode, Generation, Script},
    *,
};

pub(super) async fn open(nodes: &[FakeNode]) -> Vec<Arc<Session>> {
    let mut sessions = Vec::new();
    for node in nodes {
        sessions.push(Arc::new(session::open(&node.address).await.expect("the node answers")));
    }
    sessions
}

pub(super) async fn start(scripts: Vec<Script>) -> Vec<FakeNode> {
    let mut nodes = Vec::new();
    for (index, script) in scripts.into_iter().enumerate() {
        nodes.push(FakeNode::start(&format!("pi{}", index + 1), script).await);
    }
    nodes
}

pub(super) fn wanted(ranks: u16) -> DesiredTopology {
    let (layout, model) = (Layout::tensor_parallel(ranks), "m.gguf".into());
    DesiredTopology { layout, model, slots: SLOTS_DEFAULT, ..fixtures::wanted() }
}

pub(super) fn request() -> Generate {
    let sampling = SamplingParameters::default();
    Generate::new("ROMEO:", 3, sampling, Vec::new())
}

/// Assigns on all nodes, and returns the result and the events.
pub(super) async fn assigns(nodes: &[FakeNode]) -> (Result<Assigned, Fault>, Vec<AssignEvent>) {
    let told = Mutex::new(Vec::new());
    let (sessions, wanted) = (open(nodes).await, wanted(nodes.len() as u16));
    let result = assign(&sessions, &wanted, &|event| told.lock().expect("the lock is not poisoned").push(event)).await;
    (result, told.into_inner().expect("the lock is not poisoned"))
}

#[tokio::test]
async fn assignment_commits_above_the_highest_epoch_and_is_reused() {
    let nodes = start(vec![Script { epoch: 4, ..Script::default() }, Script::default()]).await;
    let (assigned, told) = assigns(&nodes).await;
    let assigned = assigned.expect("both nodes agree");
    assert_eq!((assigned.epoch, assigned.reused), (Epoch(5), false));
    assert!(told.iter().any(|event| matches!(event, AssignEvent::Loading { node: 1, .. })), "{told:?}");
    assert_eq!(told.last(), Some(&AssignEvent::Committing));
    assert_eq!(nodes[0].asked(), ["identify", "model-content", "prepare", "commit"]);
    assert_eq!(nodes[1].asked(), ["model-content", "prepare", "commit"]);

    let (again, told) = assigns(&nodes).await;
    let again = again.expect("it runs");
    assert_eq!((again.epoch, again.reused, told), (Epoch(5), true, Vec::new()));
    assert_eq!(
        nodes[1].asked(),
        ["model-content", "prepare", "commit", "model-content"],
        "its file may be another one"
    );

    nodes[1].forget();
    let (anew, _) = assigns(&nodes).await;
    assert_eq!(anew.map(|anew| (anew.epoch, anew.reused)), Ok((Epoch(42), false)));
}

#[tokio::test]
async fn refusal_fails_the_assignment_and_aborts_it_on_all_nodes() {
    let short = FaultKind::MemoryShort { needed: Bytes(2), available: Bytes(1) };
    let nodes = start(vec![Script::default(), Script { prepare: Some(short.clone()), ..Script::default() }]).await;
    assert_eq!(assigns(&nodes).await.0, Err(Fault::new("pi2", short)));
    for node in &nodes {
        node.await_asked("abort").await;
        assert!(!node.asked().contains(&"commit"));
    }

    let failed = FaultKind::LinksFailed { reason: "refused".into() };
    let nodes = start(vec![Script::default(), Script { commit: Some(failed.clone()), ..Script::default() }]).await;
    assert_eq!(assigns(&nodes).await.0, Err(Fault::new("pi2", failed)));
    nodes[0].await_asked("abort").await;
}

#[tokio::test]
async fn node_with_other_weights_is_refused_before_prepare() {
    let nodes = start(vec![Script::default(), Script { content: 9, ..Script::default() }, Script::default()]).await;
    let fault = assigns(&nodes).await.0.expect_err("the files differ");
    assert_eq!((fault.node.as_str(), fault.kind.code()), ("pi2", "content_differs"));
    assert!(fault.to_string().contains("0000000000000000 on pi1, pi3; 0909090909090909 on pi2"), "{fault}");
    assert!(nodes.iter().all(|node| !node.asked().contains(&"prepare")));
}

#[tokio::test]
async fn impossible_topology_is_refused_before_prepare() {
    let nodes = start(vec![Script::default()]).await;
    let session = open(&nodes).await.remove(0);
    let twice = [Arc::clone(&session), session];
    let fault = assign(&twice, &wanted(2), &|_| ()).await.expect_err("one node holds one shard");
    assert!(matches!(fault.kind, FaultKind::TopologyInvalid { .. }), "{fault}");
    let fault = assign(&twice, &wanted(3), &|_| ()).await.expect_err("three ranks need three nodes");
    assert!(fault.to_string().contains("tp3 needs 3 nodes"), "{fault}");
    assert!(!nodes[0].asked().contains(&"prepare"));
}

#[tokio::test]
async fn mute_node_is_a_timeout_that_names_the_step() {
    let nodes = start(vec![Script { is_mute: true, ..Script::default() }]).await;
    let fault = assigns(&nodes).await.0.expect_err("it is mute");
    assert_eq!(fault.node, "pi1");
    assert!(matches!(&fault.kind, FaultKind::Timeout { what, .. } if what == "a report"), "{fault}");
}

/// Wire versions of a node that this build cannot talk to.
const NEWER: [u16; 2] = [WIRE_HIGHEST + 1, WIRE_HIGHEST + 3];

#[tokio::test]
async fn unreachable_node_is_reported_with_address_and_reason() {
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let address = closed.local_addr().expect("it has an address").to_string();
    drop(closed);
    let fault = session::open(&address).await.expect_err("the port is closed");
    assert_eq!((fault.kind.class(), fault.node.as_str()), (FaultClass::Unreachable, address.as_str()));

    let nodes = start(vec![Script { welcome: Some(FaultKind::Draining), ..Script::default() }]).await;
    let fault = session::open(&nodes[0].address).await.expect_err("it refuses");
    assert_eq!(fault, Fault::new("pi1", FaultKind::Draining));

    let newer = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be bound");
    let address = newer.local_addr().expect("it has an address").to_string();
    tokio::spawn(async move {
        let (mut stream, _) = newer.accept().await.expect("the console dials");
        let mut greeting = b"BRAMBLE\n".to_vec();
        greeting.extend([NEWER[0].to_le_bytes(), NEWER[1].to_le_bytes(), [0; 2], [0; 2]].concat());
        stream.write_all(&greeting).await.expect("the console reads");
        // Stays open until the console has read it.
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut Vec::new()).await;
    });
    let fault = session::open(&address).await.expect_err("it is newer");
    assert!(
        matches!(fault.kind, FaultKind::WireVersion { lowest, highest, .. } if [lowest, highest] == NEWER),
        "{fault}"
    );
    assert_eq!(fault.kind.class(), FaultClass::Refused);
}

#[tokio::test]
async fn requests_on_an_ended_session_fail_with_its_reason() {
    let nodes = start(vec![Script { generation: Generation::Closes, ..Script::default() }]).await;
    let session = open(&nodes).await.remove(0);
    let mut reply = session.ask(RequestBody::Generate(Box::new(request()))).await.expect("it listens");
    let first = loop {
        if let Err(fault) = reply.received().await {
            break fault;
        }
    };
    assert!(matches!(first.kind, FaultKind::SessionLost { .. }), "{first}");
    assert!(session.is_broken());
    assert_eq!(session.ask(RequestBody::Report).await.err(), Some(first));
}

#[tokio::test]
async fn client_connects_assigns_generates_and_redials() {
    let nodes = start(vec![Script::default(), Script::default()]).await;
    let addresses: Vec<String> = nodes.iter().map(|node| node.address.clone()).collect();
    let (events, mut received) = channel(256);
    let client = Client::start(&addresses, 1000, events);
    let (mut connected, mut reported) = (0, 0);
    while connected < 2 || reported < 2 {
        match received.recv().await.expect("the client runs") {
            ClientEvent::Connected { .. } => connected += 1,
            ClientEvent::Report { .. } => reported += 1,
            other => panic!("{other:?}"),
        }
    }
    client.assign(wanted(2), vec![0, 1]);
    loop {
        match received.recv().await.expect("the client runs") {
            ClientEvent::Assign(AssignEvent::Running { epoch, reused, .. }) => {
                assert_eq!((epoch, reused), (Epoch(1), false));
                break;
            }
            ClientEvent::Assign(AssignEvent::Failed(fault)) => panic!("{fault}"),
            _ => {}
        }
    }
    client.generate(0, request());
    let mut text = String::new();
    loop {
        match received.recv().await.expect("the client runs") {
            ClientEvent::Generate(GenerateEvent::Token(token)) => text.push_str(&token.text),
            ClientEvent::Generate(GenerateEvent::Finished(_)) => break,
            ClientEvent::Generate(GenerateEvent::Failed(fault)) => panic!("{fault}"),
            _ => {}
        }
    }
    assert_eq!(text, "O Romeo!");
}

#[tokio::test]
async fn cancelled_request_leaves_a_running_assignment_abortable() {
    let nodes = start(vec![Script::default(), Script { loads_on: true, ..Script::default() }]).await;
    let (events, mut received) = channel(256);
    let client = Client::start(&addresses(&nodes), 1000, events);
    let mut connected = 0;
    loop {
        match received.recv().await.expect("the client runs") {
            ClientEvent::Connected { .. } => {
                connected += 1;
                if connected == 2 {
                    client.assign(wanted(2), vec![0, 1]);
                }
            }
            ClientEvent::Assign(AssignEvent::Loading { node: 1, .. }) => {
                client.operate(OperatorCommand::CancelRequest { node: 0, number: 7 });
            }
            ClientEvent::Operate(OperateEvent::RequestCancelled { .. }) => {
                client.operate(OperatorCommand::AbortAssignment);
            }
            ClientEvent::Assign(AssignEvent::Failed(fault)) => {
                assert!(matches!(fault.kind, FaultKind::AssignmentAborted { .. }), "{fault}");
                break;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn broken_session_is_reported_and_reopened() {
    let nodes = start(vec![Script { generation: Generation::Closes, ..Script::default() }]).await;
    let (events, mut received) = channel(256);
    let client = Client::start(&[nodes[0].address.clone()], 1000, events);
    let mut steps = Vec::new();
    while steps.len() < 3 {
        match received.recv().await.expect("the client runs") {
            ClientEvent::Connected { .. } if steps.is_empty() => {
                steps.push("connected");
                client.generate(0, request());
            }
            ClientEvent::Connected { .. } => steps.push("connected"),
            ClientEvent::Disconnected { .. } => steps.push("disconnected"),
            _ => {}
        }
    }
    assert_eq!(steps, ["connected", "disconnected", "connected"]);
}

#[test]
fn missing_port_is_added() {
    assert_eq!(with_port("127.0.0.1"), "127.0.0.1:9999");
    assert_eq!(with_port("pi1:7"), "pi1:7");
    assert_eq!(with_port("[::1]:7"), "[::1]:7");
    assert_eq!(with_port("[::1]"), "[::1]:9999");
    assert_eq!(with_port("fe80::1:7"), "[fe80::1:7]:9999");
}

/// Runs an operation. Returns its result and its events.
async fn operates<T, F: Future<Output = T>>(
    run: impl FnOnce(Arc<Mutex<Vec<OperateEvent>>>) -> F,
) -> (T, Vec<OperateEvent>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let result = run(Arc::clone(&told)).await;
    let events = told.lock().expect("the lock is not poisoned").clone();
    (result, events)
}

pub(super) fn addresses(nodes: &[FakeNode]) -> Vec<String> {
    nodes.iter().map(|node| node.address.clone()).collect()
}

#[tokio::test]
async fn rolling_restart_reassigns_the_topology_after_each_node() {
    let nodes = start(vec![Script::default(), Script::default()]).await;
    assigns(&nodes).await.0.expect("both nodes agree");
    let addresses = addresses(&nodes);
    let (result, told) = operates(|told| async move {
        let stop = AtomicBool::new(false);
        restart::restart(&addresses, &[1, 0], &stop, &|event| {
            told.lock().expect("the lock is not poisoned").push(event);
        })
        .await
    })
    .await;
    assert_eq!(result, Ok(()));
    let steps: Vec<(usize, &str)> = told
        .iter()
        .filter_map(|event| match event {
            OperateEvent::Restart { node, step: RestartStep::Draining } => Some((*node, "drains")),
            OperateEvent::Restart { node, step: RestartStep::Starting } => Some((*node, "starts")),
            OperateEvent::Restart { node, step: RestartStep::Assigning } => Some((*node, "assigns")),
            OperateEvent::Restart { node, step: RestartStep::Done { .. } } => Some((*node, "done")),
            _ => None,
        })
        .collect();
    let of = |node| [(node, "drains"), (node, "starts"), (node, "assigns"), (node, "done")];
    assert_eq!(steps, [of(1), of(0)].concat());
    assert_eq!(
        nodes[0].asked(),
        [
            "identify",
            "model-content",
            "prepare",
            "commit",
            "identify",
            "model-content",
            "prepare",
            "commit",
            "restart",
            "identify",
            "model-content",
            "prepare",
            "commit"
        ]
    );
}

#[tokio::test]
async fn stopped_restart_returns_the_remaining_nodes() {
    let nodes = start(vec![Script::default(), Script::default()]).await;
    let addresses = addresses(&nodes);
    let (result, told) = operates(|told| async move {
        let stop = AtomicBool::new(true);
        restart::restart(&addresses, &[0, 1], &stop, &|event| {
            told.lock().expect("the lock is not poisoned").push(event);
        })
        .await
    })
    .await;
    assert_eq!(result, Err(restart::Stopped { fault: None, remaining: vec![0, 1] }));
    assert!(told.is_empty() && nodes[0].asked().is_empty());
}

#[tokio::test]
async fn exclusion_reaches_all_nodes_and_inclusion_reverts_it() {
    let nodes = start(vec![Script::default(), Script::default(), Script::default()]).await;
    assigns(&nodes).await.0.expect("all nodes agree");
    let quiet = |_: OperateEvent| {};
    let token = CancellationToken::new();
    let never = exclude::ExclusionStop { token: &token, leaves: exclude::WhenStopped::AsBefore };
    let cluster = Cluster::dial(&addresses(&nodes)).await;
    assert_eq!((cluster.find("pi2"), cluster.find(&nodes[1].address), cluster.find("pi9")), (Some(1), Some(1), None));
    let done = exclude::exclude(cluster, 1, Some("hot"), never, &quiet).await.expect("the rest agrees");
    let rest = done.assigned.expect("it was a member").topology;
    let names: Vec<&str> = rest.members.iter().map(|member| member.name.as_str()).collect();
    assert_eq!((names, rest.layout), (vec!["pi1", "pi3"], Layout::tensor_parallel(2)));

    let cluster = Cluster::dial(&addresses(&nodes)).await;
    assert_eq!(cluster.out().map(|entry| entry.reason.clone()).collect::<Vec<_>>(), [Some("hot".to_owned())]);
    assert_eq!(cluster.usable().map(|sessions| sessions.len()), Ok(2));
    assert!(
        cluster.spread().await.is_empty() && nodes[0].asked().len() == 9,
        "all nodes already have the list: {:?}",
        nodes[0].asked()
    );
    let done = exclude::exclude(cluster, 1, None, never, &quiet).await.expect("all agree");
    let all = done.assigned.expect("it is a member again").topology;
    let names: Vec<&str> = all.members.iter().map(|member| member.name.as_str()).collect();
    assert_eq!(names, ["pi1", "pi2", "pi3"], "in the order of the cluster");

    // The last included node cannot be excluded.
    let single = start(vec![Script::default()]).await;
    let alone = Cluster::dial(&addresses(&single)).await;
    let refused = exclude::exclude(alone, 0, Some("x"), never, &quiet).await.map(|done| done.node);
    assert!(matches!(refused, Err(Fault { kind: FaultKind::ParameterInvalid { .. }, .. })), "{refused:?}");
}

#[tokio::test]
async fn layouts_are_ranked_by_the_sizes_that_a_node_reports() {
    let node = FakeNode::start("pi1", Script::default()).await;
    let session = session::open(&node.address).await.expect("it answers");
    let ask = PlannerQuery {
        model: "m.gguf".to_owned(),
        nodes: (0..2)
            .map(|place: usize| crate::operator::planner_query::PlannerNode {
                place,
                name: format!("pi{place}"),
                machine: format!("boot {place}"),
                cores: 4,
                kernels: "neon-dotprod".to_owned(),
                memory: 4 << 30,
                measured: Default::default(),
            })
            .collect(),
        goal: Goal::Balanced,
        context: None,
        slots: 1,
        kv: KvFormat::F16,
        exchange: Exchange::F32,
        choice: Choice::Auto,
        now_unix_ms: 0,
    };
    let planned = plan::plan(&session, ask).await.expect("it fits");
    let layouts: Vec<String> = planned.plan.ranked.iter().map(|candidate| candidate.layout.to_string()).collect();
    assert!(layouts.contains(&"tp2".to_owned()) && layouts.contains(&"tp1".to_owned()), "{layouts:?}");
    let tp2 = planned.candidate("tp2").expect("it is ranked");
    assert_eq!(planned.members(tp2), [0, 1]);
    assert_eq!((planned.context, planned.wanted(tp2).context_length), (4096, None));
}
