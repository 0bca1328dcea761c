//! The node during recovery: what it prepares again, what it learns, and two competing consoles.
use std::{collections::BTreeMap, time::Duration};

use common::{
    fault::{FaultKind, Loss},
    ids::{Epoch, MemberIndex, Rank, RequestId, TopologyHash},
    planted::{Planted, plant},
    units::Bytes,
};
use protocol::{
    message::{Prepare, Previous, RequestBody, ResponseBody},
    recovery::{Ballot, Committed, RecoveryAnswer, RecoveryAsk, Vote, VoteReply},
};
use telemetry::NodeState;
use topology::{Exclusions, Rolling, Topology, rolling::Phase};

use crate::node::effect::{AssignmentEffect, DiskEffect, Effect, EngineEffect, PendingAnswer, SessionEffect};
use crate::node::{
    event::{Event, ExclusionsKept, Record, ReplyTo, SessionId},
    machine::{Node, NodeInit, Patience},
    quorum::{Acceptor, VoteGap},
    tests::{CONSOLE, OTHER, ask, failure, generate, running, topology},
};

pub(super) fn again(node: &mut Node, session: SessionId, epoch: u64, topology: Topology) -> Vec<Effect> {
    let (epoch, member) = (Epoch(epoch), MemberIndex(0));
    let prepare = Prepare { seen: epoch, epoch, topology, member, desired: None, previous: Previous::Serves };
    ask(node, session, 1, RequestBody::Prepare(Box::new(prepare)))
}

pub(super) fn of(name: &str, committed: Option<Committed>) -> Node {
    let patience = Patience { lease: Duration::from_secs(60), drain: Duration::from_secs(20) };
    let epoch = committed.as_ref().map_or(Epoch(0), |committed| committed.epoch);
    Node::new(NodeInit { name: name.into(), epoch, committed, ..NodeInit::default() }, patience)
}

pub(super) fn base(epoch: u64) -> Committed {
    Committed::new(Epoch(epoch), topology(2))
}

pub(super) fn recover(node: &mut Node, question: RecoveryAsk) -> Vec<Effect> {
    ask(node, OTHER, 50, RequestBody::Recovery(Box::new(question)))
}

#[test]
fn recovery_writes_nothing_and_a_console_supersedes_it() {
    let mut node = of("pi1", Some(base(4)));
    assert!(matches!(again(&mut node, CONSOLE, 4, topology(2))[..], [Effect::Assignment(AssignmentEffect::Load(_))]));
    let hash = topology(2).hash();
    let effects = node.handle(Event::Loaded(Epoch(4), Ok(Bytes(5))));
    let to = ReplyTo { session: CONSOLE, id: RequestId(1) };
    assert_eq!(effects, [Effect::respond_after_writes(to, ResponseBody::Prepared)]);
    let effects = ask(&mut node, CONSOLE, 2, RequestBody::Commit { epoch: Epoch(4), hash });
    assert_eq!(effects, [Effect::Assignment(AssignmentEffect::Connect(Epoch(4)))], "nothing new to store");
    node.handle(Event::Connected(Epoch(4), Ok(())));
    assert_eq!(node.state(), NodeState::Ready);
    let effects = again(&mut node, OTHER, 4, topology(2));
    assert!(
        matches!(
            effects[..],
            [Effect::Engine(EngineEffect::Stop(Epoch(4))), Effect::Assignment(AssignmentEffect::Load(_))]
        ),
        "a member found it broken: {effects:?}"
    );

    let mut node = of("pi1", Some(base(4)));
    again(&mut node, CONSOLE, 4, topology(2));
    assert!(matches!(failure(&again(&mut node, OTHER, 4, topology(2))), Some(FaultKind::PrepareOpen { .. })));
    let effects = super::prepare(&mut node, OTHER, 4, 5);
    assert!(matches!(failure(&effects), Some(FaultKind::Superseded { epoch: Epoch(5), .. })), "{effects:?}");
    assert!(
        matches!(
            effects[..],
            [_, Effect::Assignment(AssignmentEffect::Discard(Epoch(4))), Effect::Assignment(AssignmentEffect::Load(_))]
        ),
        "{effects:?}"
    );
}

#[test]
fn links_of_a_recovery_end_with_the_session_of_its_leader() {
    for (planted, discards) in [(None, true), (Some(Planted::PatientAbort), false)] {
        plant(planted);
        let mut node = of("pi1", Some(base(4)));
        again(&mut node, CONSOLE, 4, topology(2));
        node.handle(Event::Loaded(Epoch(4), Ok(Bytes(5))));
        ask(&mut node, CONSOLE, 2, RequestBody::Commit { epoch: Epoch(4), hash: topology(2).hash() });
        let effects = node.handle(Event::SessionClosed(CONSOLE));
        assert_eq!(effects.contains(&Effect::Assignment(AssignmentEffect::Discard(Epoch(4)))), discards, "{effects:?}");
        plant(None);
    }
}

#[test]
fn peer_fault_breaks_topology_and_is_passed_on() {
    let mut node = running();
    let failed = || Event::PeerFailed { epoch: Epoch(4), reporter: Rank(1), failed: Rank(1), how: Loss::Reset };
    let effects = node.handle(failed());
    assert_eq!(
        effects,
        [Effect::Engine(EngineEffect::AnnounceFault(Epoch(4), Rank(1))), Effect::Engine(EngineEffect::Abort(Epoch(4)))]
    );
    assert_eq!(node.state(), NodeState::Faulted);
    assert!(node.handle(failed()).is_empty(), "once");
}

#[test]
fn reported_rank_is_lost_as_seen_from_here_unless_it_reports_itself() {
    for (reporter, expected) in [(Rank(2), Loss::Silent), (Rank(1), Loss::Stalled)] {
        let mut node = running();
        generate(&mut node, CONSOLE, 5);
        let failed = Event::PeerFailed { epoch: Epoch(4), reporter, failed: Rank(1), how: Loss::Silent };
        assert_eq!(failure(&node.handle(failed)), Some(&FaultKind::NodeLost { how: expected }));
    }
}

#[test]
fn wiped_voter_recalls_then_votes_on_later_topologies() {
    let voter = Acceptor { forgot: Some(VoteGap::Fresh), ..Acceptor::default() };
    let patience = Patience { lease: Duration::from_secs(60), drain: Duration::from_secs(20) };
    let mut node = Node::new(NodeInit { name: "pi1".into(), voter, ..NodeInit::default() }, patience);
    let of_three = |epoch| Committed::new(Epoch(epoch), topology(3));
    let vote = |base: Committed| {
        let ballot = Ballot { round: 1, member: 1 };
        RecoveryAsk::Vote(Box::new(Vote { base, witness: None, ballot, next: None }))
    };
    let told = format!("{:?}", recover(&mut node, vote(of_three(4))));
    assert!(told.contains("Abstains") && node.forgets(), "{told}");
    let effects = recover(&mut node, RecoveryAsk::Recall(Box::new(of_three(4))));
    let Some(Effect::Disk(DiskEffect::Write { records, .. })) = effects.last() else { panic!("{effects:?}") };
    assert!(records.contains(&Record::VoteGap(Some(VoteGap::UpTo(Epoch(4))))), "{records:?}");
    let told = format!("{:?}", recover(&mut node, vote(of_three(4))));
    assert!(told.contains("Abstains"), "it may have voted about this one: {told}");
    let told = format!("{:?}", recover(&mut node, vote(of_three(5))));
    assert!(told.contains("Promised"), "{told}");
}

#[test]
fn node_notes_the_epoch_of_a_topology_that_it_is_asked_to_bring_back() {
    let mut lost = of("pi1", None);
    again(&mut lost, CONSOLE, 4, topology(2));
    ask(&mut lost, CONSOLE, 7, RequestBody::Abort { epoch: Epoch(4), hash: topology(2).hash() });
    assert_eq!((lost.state(), lost.epoch()), (NodeState::Idle, Epoch(4)), "an operator's next epoch is above it");
}

#[test]
fn console_that_gives_up_does_not_end_a_recovery_of_the_same_topology() {
    let mut node = of("pi1", Some(base(4)));
    again(&mut node, OTHER, 4, topology(2));
    let abort = || RequestBody::Abort { epoch: Epoch(4), hash: topology(2).hash() };
    ask(&mut node, CONSOLE, 7, abort());
    assert_eq!(node.state(), NodeState::Loading, "another node prepared it, and would wait for the answer");
    ask(&mut node, OTHER, 8, abort());
    assert_eq!(node.state(), NodeState::Idle);
}

#[test]
fn vote_ends_an_open_assignment_with_an_answer() {
    for (epoch, ends) in [(8, true), (7, true), (6, false)] {
        let mut node = of("pi1", Some(base(4)));
        super::prepare(&mut node, CONSOLE, 4, 7);
        let next = Committed::new(Epoch(epoch), Topology { slots: 1, ..topology(2) });
        let effects = recover(&mut node, RecoveryAsk::Learn(Box::new(next)));
        let is_superseded = matches!(failure(&effects), Some(FaultKind::Superseded { .. }));
        assert_eq!(is_superseded, ends, "epoch {epoch} and an open assignment of epoch 7: {effects:?}");
    }
}

#[test]
fn conflicting_or_older_topology_is_not_restored() {
    let mut node = of("pi1", Some(base(4)));
    let other = Topology { slots: 1, ..topology(2) };
    assert!(matches!(failure(&again(&mut node, CONSOLE, 4, other)), Some(FaultKind::TopologyInvalid { .. })));
    assert!(matches!(failure(&again(&mut node, CONSOLE, 3, topology(2))), Some(FaultKind::Superseded { .. })));
    // A node whose record was lost learns the topology from the others, and stores it.
    let mut lost = of("pi1", None);
    assert!(matches!(again(&mut lost, CONSOLE, 4, topology(2))[..], [Effect::Assignment(AssignmentEffect::Load(_))]));
    assert!(matches!(
        lost.handle(Event::Loaded(Epoch(4), Ok(Bytes(5))))[..],
        [Effect::Disk(DiskEffect::Persist(Epoch(4), _))]
    ));
}

#[test]
fn vote_is_stored_before_the_answer_and_blocks_its_epoch() {
    let mut node = of("pi1", Some(base(4)));
    let next = Committed::new(Epoch(5), Topology { slots: 1, ..topology(2) });
    let vote = |next| Vote { base: base(4), witness: None, ballot: Ballot { round: 1, member: 1 }, next };
    let effects = recover(&mut node, RecoveryAsk::Vote(Box::new(vote(Some(next)))));
    let [Effect::Disk(DiskEffect::Write { records, then: Some(PendingAnswer { body, .. }) })] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert!(matches!(records[..], [Record::Votes(_), Record::Promise(Epoch(5), _)]), "{records:?}");
    assert_eq!(*body, ResponseBody::Recovery(RecoveryAnswer::Vote(VoteReply::Accepted)));
    assert!(failure(&super::prepare(&mut node, CONSOLE, 4, 5)).is_some(), "its epoch is 5 now");
    assert!(failure(&again(&mut node, CONSOLE, 4, topology(2))).is_some(), "the vote has precedence");
    let other = Vote { witness: Some("127.0.0.1:1".into()), ..vote(None) };
    let effects = recover(&mut node, RecoveryAsk::Vote(Box::new(other)));
    let told = format!("{effects:?}");
    assert!(told.contains("different witness"), "{told}");
}

#[test]
fn no_message_moves_a_counter_out_of_reach() {
    let last = Epoch(u64::MAX);
    let far = || Box::new(Committed::new(last, Topology { slots: 1, ..topology(2) }));
    let ballot_of = |round, base, next| {
        let ballot = Ballot { round, member: 1 };
        RecoveryAsk::Vote(Box::new(Vote { base, witness: None, ballot, next }))
    };
    let vote = |base, next| ballot_of(1, base, next);
    let rolling = Rolling {
        targets: vec![("pi1".into(), "pi1:9999".into())],
        done: 0,
        before: None,
        phase: Phase::Runs,
        drain_ms: 1,
        by: "me@here".into(),
        revision: u64::MAX,
    };
    let asked = [
        RecoveryAsk::Learn(far()),
        RecoveryAsk::Recall(far()),
        vote(*far(), None),
        vote(base(4), Some(*far())),
        ballot_of(u32::MAX, base(4), None),
        RecoveryAsk::Rolling(rolling),
    ];
    for ask in asked {
        let mut node = of("pi1", Some(base(4)));
        let effects = recover(&mut node, ask.clone());
        assert!(failure(&effects).is_some(), "{ask:?}: {effects:?}");
        assert_eq!((node.epoch(), node.committed(), node.rolling()), (Epoch(4), Some(&base(4)), None));
    }
    let mut node = of("pi1", Some(base(4)));
    assert!(failure(&super::prepare(&mut node, CONSOLE, 4, u64::MAX)).is_some());
    assert!(failure(&again(&mut of("pi1", None), CONSOLE, u64::MAX, topology(2))).is_some());
    let mut list = Exclusions::default();
    list.say("pi2", "pi2:9999", Some("hot"), "me@here");
    list.0[0].revision = u64::MAX;
    assert!(failure(&ask(&mut node, OTHER, 51, RequestBody::Exclude(list))).is_some());
}

#[test]
fn cordoned_member_forms_the_topology_again_after_a_loss() {
    for (own, is_cordon) in [("pi1", true), ("pi2", true), ("pi2", false)] {
        let mut list = Exclusions::default();
        match is_cordon {
            true => list.cordon(own, &format!("{own}:9999"), "fan noise", "me@here"),
            false => list.say(own, &format!("{own}:9999"), Some("fan noise"), "me@here"),
        }
        let patience = Patience { lease: Duration::from_secs(60), drain: Duration::from_secs(20) };
        let (name, committed) = ("pi1".into(), Some(base(4)));
        let beginning = NodeInit { name, epoch: Epoch(4), committed, exclusions: list, ..NodeInit::default() };
        let mut node = Node::new(beginning, patience);
        let refused = super::prepare(&mut node, CONSOLE, 4, 5);
        assert!(matches!(failure(&refused), Some(FaultKind::Excluded { .. })), "a new assignment: {refused:?}");
        let effects = again(&mut node, CONSOLE, 4, topology(2));
        assert_eq!(
            matches!(effects[..], [Effect::Assignment(AssignmentEffect::Load(_))]),
            is_cordon,
            "{own}: {effects:?}"
        );
    }
}

#[test]
fn cordoned_node_announces_the_fault_of_a_peer() {
    let mut node = running();
    let mut list = Exclusions::default();
    list.cordon("pi1", "pi1:9999", "fan noise", "me@here");
    let (session, id) = (CONSOLE, RequestId(9));
    node.handle(Event::ExclusionsKept(ExclusionsKept { session, id, list, result: Ok(()) }));
    let effects = node.handle(Event::PeerLost(Epoch(4), Rank(1), Loss::Reset));
    assert_eq!(
        effects,
        [Effect::Engine(EngineEffect::AnnounceFault(Epoch(4), Rank(1))), Effect::Engine(EngineEffect::Abort(Epoch(4)))]
    );
    assert_eq!(node.state(), NodeState::Faulted);
}

#[test]
fn missing_desired_topology_is_adopted_once_and_stored() {
    let mut node = running();
    let desired = Some(Box::new(topology(3)));
    let learn = |desired| RecoveryAsk::Learn(Box::new(Committed { desired, ..base(4) }));
    let effects = recover(&mut node, learn(desired.clone()));
    let [Effect::Disk(DiskEffect::Write { records, .. })] = &effects[..] else {
        panic!("the topology keeps serving: {effects:?}")
    };
    let [Record::Committed(Some(kept))] = &records[..] else { panic!("{records:?}") };
    assert_eq!((&kept.desired, node.desired()), (&desired, desired.as_deref()));
    for later in [Some(Box::new(topology(4))), None, desired.clone()] {
        let effects = recover(&mut node, learn(later));
        assert!(
            matches!(&effects[..], [Effect::Disk(DiskEffect::Write { records, .. })] if records.is_empty()),
            "{effects:?}"
        );
    }
    assert_eq!(node.desired(), desired.as_deref());
}

#[test]
fn take_over_is_refused_while_serving_and_ends_when_it_serves() {
    let mut node = running();
    let refused = recover(&mut node, RecoveryAsk::TakeOver);
    assert!(matches!(failure(&refused), Some(FaultKind::ParameterInvalid { .. })), "{refused:?}");
    assert!(!node.takes_over());
    node.handle(Event::PeerLost(Epoch(4), Rank(1), Loss::Reset));
    recover(&mut node, RecoveryAsk::TakeOver);
    assert!(node.takes_over());
    again(&mut node, CONSOLE, 4, topology(2));
    node.handle(Event::Loaded(Epoch(4), Ok(Bytes(5))));
    ask(&mut node, CONSOLE, 2, RequestBody::Commit { epoch: Epoch(4), hash: topology(2).hash() });
    // The operator gives it again before the links are open.
    recover(&mut node, RecoveryAsk::TakeOver);
    assert!(node.takes_over());
    node.handle(Event::Connected(Epoch(4), Ok(())));
    assert_eq!((node.state(), node.takes_over()), (NodeState::Ready, false));
}

/// A console that assigns its own topology, slowly.
struct Console {
    session: SessionId,
    topology: Topology,
    epoch: Epoch,
    /// Number of answers that it waits for before it commits; `None`: no assignment is under way.
    waits: Option<usize>,
    prepared: usize,
    /// All nodes have prepared.
    commits: bool,
    /// Number of the attempt; answers to earlier attempts are ignored.
    attempt: u64,
    paused: u32,
}

struct Fight {
    random: u64,
    nodes: Vec<Node>,
    consoles: Vec<Console>,
    events: Vec<(usize, Event)>,
    now: Duration,
    committed: BTreeMap<Epoch, TopologyHash>,
    switches: u32,
    refused: u32,
}

impl Fight {
    fn new(seed: u64) -> Self {
        let console = |which: u16| Console {
            session: SessionId(u64::from(which) + 1),
            topology: Topology { slots: which + 1, ..topology(3) },
            epoch: Epoch(0),
            waits: None,
            prepared: 0,
            commits: false,
            attempt: 0,
            paused: 0,
        };
        Self {
            random: seed.wrapping_mul(2_654_435_761).wrapping_add(1),
            nodes: (1..=3).map(|index| of(&format!("pi{index}"), None)).collect(),
            consoles: vec![console(0), console(1)],
            events: Vec::new(),
            now: Duration::ZERO,
            committed: BTreeMap::new(),
            switches: 0,
            refused: 0,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % bound
    }

    fn send(&mut self, which: usize, node: usize, body: RequestBody) -> Vec<Effect> {
        let effects = ask(&mut self.nodes[node], self.consoles[which].session, self.consoles[which].attempt, body);
        self.perform(node, effects.clone());
        effects
    }

    fn perform(&mut self, node: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Assignment(AssignmentEffect::Load(prepare)) => {
                    self.events.push((node, Event::Loaded(prepare.epoch, Ok(Bytes(1)))))
                }
                Effect::Disk(DiskEffect::Persist(epoch, hash)) => {
                    self.events.push((node, Event::Persisted(epoch, hash, Ok(()))))
                }
                Effect::Assignment(AssignmentEffect::Connect(epoch)) => {
                    self.events.push((node, Event::Connected(epoch, Ok(()))))
                }
                Effect::Session(SessionEffect::Respond { session, id, body }) => {
                    let console =
                        self.consoles.iter_mut().find(|console| console.session == session).expect("one of two");
                    match body {
                        ResponseBody::Prepared if id.0 == console.attempt => console.prepared += 1,
                        // It gives up and aborts its open assignments on other nodes.
                        ResponseBody::Failed(_) if id.0 == console.attempt => console.waits = None,
                        _ => {}
                    }
                }
                _ => {}
            }
        }
    }

    fn turn(&mut self, which: usize) {
        let count = self.nodes.len();
        if self.consoles[which].paused > 0 {
            self.consoles[which].paused -= 1;
            return;
        }
        let (epoch, hash) = (self.consoles[which].epoch, self.consoles[which].topology.hash());
        match self.consoles[which].waits {
            None => {
                (0..count).for_each(|node| drop(self.send(which, node, RequestBody::Abort { epoch, hash })));
                let seen: Vec<Epoch> = self.nodes.iter().map(Node::epoch).collect();
                let epoch = seen.iter().max().copied().unwrap_or_default().next();
                let console = &mut self.consoles[which];
                (console.epoch, console.waits, console.prepared, console.commits) = (epoch, Some(count), 0, false);
                console.attempt += 1;
                // It may also be stopped between reading and preparing.
                for (node, seen) in seen.into_iter().enumerate() {
                    let topology = self.consoles[which].topology.clone();
                    let member = MemberIndex(node as u16);
                    let prepare = Prepare { seen, epoch, topology, member, desired: None, previous: Previous::Serves };
                    self.send(which, node, RequestBody::Prepare(Box::new(prepare)));
                }
            }
            Some(waits) if self.consoles[which].prepared >= waits => {
                if self.below(2) == 0 {
                    // SIGSTOP: the other console assigns meanwhile, or the leases end.
                    self.consoles[which].paused = self.below(40) as u32;
                }
                self.consoles[which].commits = true;
            }
            Some(_) => {}
        }
        if self.consoles[which].commits && self.consoles[which].paused == 0 {
            (0..count).for_each(|node| self.commit(which, node, epoch, hash));
            (self.consoles[which].waits, self.consoles[which].commits) = (None, false);
        }
    }

    fn commit(&mut self, which: usize, node: usize, epoch: Epoch, hash: TopologyHash) {
        let before = self.nodes[node].committed().map(|committed| committed.epoch);
        let effects = self.send(which, node, RequestBody::Commit { epoch, hash });
        if !effects.contains(&Effect::Assignment(AssignmentEffect::Connect(epoch))) {
            self.refused += 1;
            return;
        }
        self.switches += 1;
        assert!(
            before.is_none_or(|before| before < epoch),
            "a stale commit of epoch {epoch} was accepted after {before:?}"
        );
        assert_eq!(self.nodes[node].epoch(), epoch, "a later epoch was promised");
        assert_eq!(*self.committed.entry(epoch).or_insert(hash), hash, "two topologies have epoch {epoch}");
    }

    fn run(&mut self, turns: u32) {
        for _ in 0..turns {
            match self.below(6) {
                choice @ (0 | 1) => self.turn(choice),
                2 => {
                    let passed = self.below(25) as u64;
                    self.now += Duration::from_secs(passed);
                    for node in 0..self.nodes.len() {
                        let effects = self.nodes[node].handle(Event::Tick { now: self.now });
                        self.perform(node, effects);
                    }
                }
                _ if !self.events.is_empty() => {
                    let which = self.below(self.events.len());
                    let (node, event) = self.events.remove(which);
                    let effects = self.nodes[node].handle(event);
                    self.perform(node, effects);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn stale_commands_of_competing_consoles_are_never_accepted() {
    let (mut switches, mut refused) = (0, 0);
    for seed in 0..1000 {
        let mut fight = Fight::new(seed);
        fight.run(300);
        (switches, refused) = (switches + fight.switches, refused + fight.refused);
    }
    println!("{switches} commits accepted, {refused} refused");
    assert!(switches > 1000 && refused > 1000, "{switches} accepted, {refused} refused: the consoles do not compete");
}
